"""One episode while it is written: its tokens, how each came about, and where its turn stands."""

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from fullscale.engine.protocol import Reply, Settings, Spoken, Turn, Uniforms, Why
from fullscale.engine.sampling import Decode, stop_reached

__all__ = ["Episode"]


class Episode:
    """A row of a batch.

    Parameters
    ----------
    row
        Its number, which names its luck.
    prompt
        Ids, at least one.
    vocabulary
        Ids lie below it.

    Raises
    ------
    ValueError
        For an empty prompt, or an id outside the vocabulary.
    """

    def __init__(self, row: int, prompt: Sequence[int], settings: Settings, vocabulary: int) -> None:
        if not len(prompt):
            raise ValueError(
                f"the prompt of row {row} is empty; a first token needs one before it to be predicted from"
            )
        self.row, self.settings, self.vocabulary = row, settings, vocabulary
        self.ids: list[int] = []  # of the segment that is being written
        self.before: list[int] = []  # of segments that are closed
        self.segments = 0  # that are closed
        self.segment: list[int] = []
        self.logp: list[float] = []
        self.entropy: list[float] = []
        self.version: list[int] = []
        self.turn: list[int] = []
        self.turns: list[Turn] = []
        self._read(prompt, turn=0)
        self.prompt_tokens = len(prompt)
        """Tokens of the prompt of the segment that is being written."""
        self.ended: Literal["", "over", "context"] = "context" if len(prompt) >= settings.context_tokens else ""

    def uniform(self, uniforms: Uniforms) -> float:
        """Return the luck of the next token.

        Raises
        ------
        ValueError
            Unless it lies in [0, 1).
        """
        place = len(self.turns) * self.settings.turn_tokens + len(self.ids) - self._begun
        found = float(uniforms(self.row, place))
        if not 0 <= found < 1:
            raise ValueError(f"the uniform of row {self.row} at place {place} is {found}; it must lie in [0, 1)")
        return found

    def write(
        self, token: int, logp: float, entropy: float, version: int, decode: Decode, ends: Collection[int]
    ) -> Turn | None:
        """Add a token that was sampled; return the turn where it ends with it."""
        self._append((token,), logp, entropy, version, len(self.turns))
        why = self._why(decode, ends)
        if why is None:
            return None
        ids = tuple(self.ids[self._begun :])
        self.turns.append(Turn(ids, decode(ids[:-1] if why == "eos" else ids), why))
        return self.turns[-1]

    def answer(self, reply: Reply) -> None:
        """Read what follows a turn, or end."""
        held = 0 if reply.compacts else len(self.ids)
        if reply.ids is None:
            self.ended = "over"
        elif held + len(reply.ids) >= self.settings.context_tokens:
            self.ended = "context"
        elif reply.compacts:
            self._begin_segment(reply.ids)
        else:
            self._read(reply.ids, turn=len(self.turns) - 1)

    def spoken(self) -> Spoken:
        """Return the episode as it ended."""
        assert self.ended
        version = np.array(self.version, np.int64)
        return Spoken(
            ids=np.array(self.before + self.ids, np.int64),
            sampled=version >= 0,
            logp=np.array(self.logp, np.float32),
            entropy=np.array(self.entropy, np.float32),
            version=version,
            turn=np.array(self.turn, np.int64),
            segment=np.array(self.segment, np.int64),
            turns=tuple(self.turns),
            ended=self.ended,
        )

    def _begin_segment(self, prompt: Sequence[int]) -> None:
        if not len(prompt):
            raise ValueError(f"the segment of row {self.row} that a compaction begins is empty; give it a prompt")
        self.before += self.ids
        self.ids, self.segments = [], self.segments + 1
        self._read(prompt, turn=len(self.turns))
        self.prompt_tokens = len(prompt)

    def _read(self, ids: Sequence[int], turn: int) -> None:
        strange = [i for i in ids if not 0 <= i < self.vocabulary]
        if strange:
            raise ValueError(
                f"row {self.row} was given the ids {strange[:5]}; the model's lie in 0 .. {self.vocabulary - 1}, so they "
                "come from another tokenizer"
            )
        self._append(ids, 0.0, 0.0, -1, turn)
        self._begun = len(self.ids)  # where the turn that follows begins

    def _append(self, ids: Sequence[int], logp: float, entropy: float, version: int, turn: int) -> None:
        self.ids += map(int, ids)
        self.segment += [self.segments] * len(ids)
        for column, value in ((self.logp, logp), (self.entropy, entropy)):
            column += [value] * len(ids)
        for numbers, number in ((self.version, version), (self.turn, turn)):
            numbers += [number] * len(ids)

    def _why(self, decode: Decode, ends: Collection[int]) -> Why | None:
        written = self.ids[self._begun :]
        if written[-1] in ends:
            return "eos"
        if stop_reached(decode, written, self.settings.stop):
            return "stop"
        if len(self.ids) >= self.settings.context_tokens:
            return "context"
        return "length" if len(written) >= self.settings.turn_tokens else None
