"""What an episode has come to, leg by leg: an engine may be asked for a few turns at a time."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fullscale.engine.protocol import Ended, Reply, Spoken, Turn

__all__ = ["COLUMNS", "Story"]

COLUMNS = {"ids": 0, "sampled": False, "logp": 0.0, "entropy": 0.0, "version": -1, "turn": 0, "segment": 0}
"""Columns of an episode's tokens, and what stands in each where there is none."""


class Story:
    """The tokens of one episode, all segments, and the context that goes on.

    Parameters
    ----------
    row
        Its number in the batch.
    prompt
        Ids.
    """

    ids: NDArray[np.int64]
    """Tokens, [T]; the other columns are those of :class:`~fullscale.engine.protocol.Spoken`."""
    sampled: NDArray[np.bool_]
    logp: NDArray[np.float32]
    entropy: NDArray[np.float32]
    version: NDArray[np.int64]
    turn: NDArray[np.int64]
    segment: NDArray[np.int64]

    def __init__(self, row: int, prompt: Sequence[int]) -> None:
        self.row, self.turns = row, list[Turn]()
        self.ended: Ended | Literal[""] = ""
        self.reason = ""
        """Why it failed."""
        dtypes = {"sampled": np.bool_, "logp": np.float32, "entropy": np.float32}
        for name in COLUMNS:
            setattr(self, name, np.zeros(0, dtypes.get(name, np.int64)))
        self._begins = 0  # where the context does
        self._read(prompt, turn=0, segment=0)

    @property
    def context(self) -> list[int]:
        """Return what the policy sees: the tokens of the last segment."""
        found: list[int] = self.ids[self._begins :].tolist()
        return found

    def add(self, said: Spoken, pending: Reply | None, context_tokens: int) -> None:
        """Add what an engine made of the context, and the reply it was not told yet, where the episode goes on.

        Parameters
        ----------
        said
            Begins with the context; what comes after is new.
        pending
            What is read next.
        context_tokens
            Most tokens of a context.
        """
        had = len(self.ids) - self._begins
        new = {name: getattr(said, name)[had:] for name in COLUMNS}
        turns, segments = len(self.turns), int(self.segment[-1])
        self._append(**(new | {"turn": new["turn"] + turns, "segment": new["segment"] + segments}))
        self.turns += said.turns
        starts = np.flatnonzero(np.diff(self.segment)) + 1
        self._begins = int(starts[-1]) if len(starts) else 0
        if pending is None:
            self.ended, self.reason = said.ended, said.reason
            return
        assert pending.ids is not None
        held = 0 if pending.compacts else len(self.ids) - self._begins
        if held + len(pending.ids) >= context_tokens:
            self.ended = "context"
        elif pending.compacts:
            self._begins = len(self.ids)
            self._read(pending.ids, turn=len(self.turns), segment=int(self.segment[-1]) + 1)
        else:
            self._read(pending.ids, turn=len(self.turns) - 1, segment=int(self.segment[-1]))

    def _read(self, ids: Sequence[int], turn: int, segment: int) -> None:
        n = len(ids)
        values = COLUMNS | {"turn": turn, "segment": segment}
        self._append(**({name: np.full(n, value) for name, value in values.items()} | {"ids": np.array(ids, np.int64)}))

    def _append(self, **new: Any) -> None:
        for name, values in new.items():
            held = getattr(self, name)
            setattr(self, name, np.concatenate([held, np.asarray(values, held.dtype)]))
