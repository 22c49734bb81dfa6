"""The in-process engine: whole episodes of several turns, decoded in one batch with a cache of keys and values.

A step takes one token of every live row through the model and samples the next of every row. What a row has to read besides
(its prompt, an observation) is read before, in chunks, by the rows concerned alone: fed one token a step while others
sample, observations took 1.8 to 2.0 times the CPU time (32 episodes at the width of SmolLM2). A prompt is read once for all
rows that share it; a row that ends makes room at once, for a waiting one or for none.

When weights are published in the middle of an episode, what has been read is read again with the new ones, so that every
log-prob is that of one version given the tokens before it; the tokens that follow carry the new version.

A row's tokens depend on its own uniforms and on the weights alone, up to rounding: a matrix product may order its sums
otherwise in other company, which moves a log-prob by 1e-6 or so in float32, and a token only where its uniform falls as
near to an edge.
"""

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fullscale.engine.episode import Episode
from fullscale.engine.prefixes import Prefixes
from fullscale.engine.protocol import Answering, Between, Settings, Spoken, Turn, Uniforms
from fullscale.engine.sampling import Decode, Drawn, draw
from fullscale.engine.slots import Slots
from fullscale.model.halves import halves

__all__ = ["LocalEngine", "decoder", "turn_ends"]


class LocalEngine:
    """Samples with one version of a Hugging Face causal LM at a time.

    Parameters
    ----------
    decode
        Ids -> text, as :func:`decoder` makes it.
    ends
        Ids that end a turn, as :func:`turn_ends` finds them.
    rows
        Most rows at a time; others wait until one ends.
    chunk_tokens
        Most tokens one forward reads, padding included: bounds the memory of reading.
    prefix_bytes
        Most bytes kept of prompts that were read, for later calls with the same version.
    """

    def __init__(
        self,
        decode: Decode,
        ends: Collection[int],
        *,
        rows: int = 256,
        chunk_tokens: int = 2048,
        prefix_bytes: int = 2**28,
    ) -> None:
        for name, value in (("rows", rows), ("chunk_tokens", chunk_tokens)):
            if value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        self.decode, self.ends = decode, frozenset(ends)
        self.rows, self.chunk_tokens = rows, chunk_tokens
        self.prefixes = Prefixes(prefix_bytes)
        self.published: Weights | None = None

    def publish(self, version: int, model: Any) -> None:
        """Sample with `model`, under this version number, from the next step on; a hook or another thread may call this.

        The model is not copied, save that a head that is not float32 is copied to float32: it must stay as it is while it
        samples.

        Raises
        ------
        ValueError
            For a negative version.
        TypeError
            For a model that :func:`~fullscale.model.halves.halves` refuses.
        """
        if version < 0:
            raise ValueError(f"version = {version} must be at least 0: -1 marks tokens that no version sampled")
        weights, before = Weights(version, model), self.published
        if before is None or before.version != version or before.model is not model:
            self.prefixes.clear()
        self.published = weights  # in one go: a step under way keeps what it began with

    def play(
        self,
        prompts: Sequence[Sequence[int]],
        reply: Answering,
        settings: Settings,
        uniforms: Uniforms | None,
        between: Between | None = None,
    ) -> list[Spoken]:
        """Play an episode on every prompt; see :class:`~fullscale.engine.protocol.Engine`.

        What `reply`, `uniforms` or `between` raise passes through, and the engine can play again.

        Raises
        ------
        RuntimeError
            Before any weights were published.
        ValueError
            For an empty prompt, an id outside the vocabulary, a uniform outside [0, 1), or replies of another number than
            the turns.
        FloatingPointError
            Where the logits are no distribution.
        """
        if self.published is None:
            raise RuntimeError("nothing was published to this engine yet; call publish(version, model) first")
        vocabulary = len(self.published.halves.weight)
        episodes = [Episode(row, prompt, settings, vocabulary) for row, prompt in enumerate(prompts)]
        _Play(self, self.published, episodes, settings, uniforms).run(reply, between)
        return [episode.spoken() for episode in episodes]


class Weights:
    """A version that was published, and how to run it."""

    def __init__(self, version: int, model: Any) -> None:
        self.version, self.model = version, model
        whole = halves(model)
        self.like = whole.weight.detach()[:0]
        """Has the dtype and device of the hidden states."""
        self.halves = whole.widened()

    def hidden(self, ids: Tensor, positions: Tensor, mask: Tensor, slots: Slots) -> Tensor:
        """Return the hidden states of ids [B, T] after what the slots hold, [B, T, H]."""
        body, device = self.halves.body, self.like.device
        with _sampling(body), torch.no_grad(), torch.autocast(device.type, enabled=False):
            found: Tensor = body(
                input_ids=ids.to(device),
                attention_mask=mask,
                position_ids=positions,
                use_cache=True,
                **{self.halves.cache: slots},
            ).last_hidden_state
        return found

    def draw(self, hidden: Tensor, temperature: float, uniforms: Tensor | None) -> Drawn:
        """Draw a token after each hidden state, [B, H]."""
        with torch.no_grad(), torch.autocast(hidden.device.type, enabled=False):
            return draw(self.halves.logits(hidden), temperature, uniforms)


class _Play:
    """One call: which rows are live, one in each of the first slots, and which wait."""

    def __init__(
        self,
        engine: LocalEngine,
        weights: Weights,
        episodes: Sequence[Episode],
        settings: Settings,
        uniforms: Uniforms | None,
    ) -> None:
        self.engine, self.weights, self.settings, self.uniforms = engine, weights, settings, uniforms
        self.waiting = deque(episode for episode in episodes if not episode.ended)
        self.live: list[Episode] = []
        self._clear(min(engine.rows, len(self.waiting)))

    def run(self, reply: Answering, between: Between | None) -> None:
        """Step until no row is left."""
        step = 0
        while self.live or self.waiting:
            if between is not None:
                between(step)
            self._take_up()
            while self.waiting and len(self.live) < self.slots.slots:
                self.live.append(self.waiting.popleft())
            self._read_prompts()
            self._read({slot: len(episode.ids) - 1 for slot, episode in enumerate(self.live)})
            ended = self._write(self._step())
            if ended:
                self._answer(ended, reply)
            step += 1

    def _clear(self, rows: int) -> None:
        self.slots = Slots(rows, self.settings.context_tokens)

    def _take_up(self) -> None:
        """Go over to what was published last; what was read is forgotten, and read again."""
        published = self.engine.published
        assert published is not None
        if published is not self.weights:
            self.weights = published
            self._clear(self.slots.slots)

    def _read_prompts(self) -> None:
        """Read all but the last token of each prompt that was not, once for all rows that share it."""
        rows: dict[tuple[int, ...], list[int]] = {}
        for slot, episode in enumerate(self.live):
            if not self.slots.lengths[slot] and episode.prompt_tokens > 1:
                rows.setdefault(tuple(episode.ids[: episode.prompt_tokens - 1]), []).append(slot)
        version, prefixes = self.weights.version, self.engine.prefixes
        unread = {}
        for ids, slots in rows.items():
            kept = prefixes.get(version, ids)
            if kept is None:
                unread[slots[0]] = len(ids)
            else:
                self.slots.put(slots[0], kept)
        self._read(unread)
        for ids, slots in rows.items():
            if slots[0] in unread:
                prefixes.add(version, ids, self.slots.take(slots[0], len(ids)))
            self.slots.copy(slots[0], slots[1:], len(ids))

    def _read(self, until: dict[int, int]) -> None:
        """Read the tokens of each slot's row up to a place, in as few forwards as the bound on one allows."""
        lengths, most = self.slots.lengths, self.engine.chunk_tokens
        pending = [slot for slot in until if lengths[slot] < until[slot]]
        while pending:
            pending.sort(key=lambda slot: lengths[slot] - until[slot])  # alike in length, so that little is padding
            width = min(most, until[pending[0]] - lengths[pending[0]])
            batch = sorted(pending[: max(1, most // width)])
            self._forward(batch, [min(width, until[slot] - lengths[slot]) for slot in batch])
            pending = [slot for slot in pending if lengths[slot] < until[slot]]

    def _forward(self, slots: Sequence[int], counts: Sequence[int]) -> Tensor:
        """Read the next tokens of these slots' rows; return their hidden states, [slots, most tokens, H]."""
        ids = torch.zeros(len(slots), max(counts), dtype=torch.int64)
        for i, (slot, count) in enumerate(zip(slots, counts, strict=True)):
            start = self.slots.lengths[slot]
            ids[i, :count] = torch.tensor(self.live[slot].ids[start : start + count])
        positions, mask = self.slots.aim(slots, counts, self.weights.like)
        return self.weights.hidden(ids, positions, mask, self.slots)

    def _step(self) -> Drawn:
        """Read the last token of every live row, and draw the next."""
        uniforms = None
        if self.uniforms is not None:
            uniforms = torch.tensor([episode.uniform(self.uniforms) for episode in self.live], dtype=torch.float64)
        hidden = self._forward(range(len(self.live)), [1] * len(self.live))[:, 0]
        return self.weights.draw(hidden, self.settings.temperature, uniforms)

    def _write(self, drawn: Drawn) -> list[tuple[Episode, Turn]]:
        """Write down what was drawn, with the version that was asked for it; return the turns that ended."""
        ended, e = [], self.engine
        columns = (drawn.ids.tolist(), drawn.logp.tolist(), drawn.entropy.tolist())
        for episode, token, logp, entropy in zip(self.live, *columns, strict=True):
            turn = episode.write(token, logp, entropy, self.weights.version, e.decode, e.ends)
            if turn is not None:
                ended.append((episode, turn))
        return sorted(ended, key=lambda each: each[0].row)

    def _answer(self, ended: Sequence[tuple[Episode, Turn]], reply: Answering) -> None:
        """Ask for what follows each turn, and give the slots of rows that are over to the last ones."""
        replies = reply([episode.row for episode, _ in ended], [turn for _, turn in ended])
        if len(replies) != len(ended):
            raise ValueError(f"{len(ended)} turns had {len(replies)} replies; give one to each, in their order")
        for (episode, _), said in zip(ended, replies, strict=True):
            episode.answer(said)
            if said.compacts:
                self.slots.lengths[self.live.index(episode)] = 0  # what it held is not seen any more
            if episode.ended:
                slot, last = self.live.index(episode), len(self.live) - 1
                self.slots.move(last, slot)
                self.live[slot] = self.live[last]
                self.live.pop()


def decoder(tokenizer: Any) -> Decode:
    """Return how a Hugging Face tokenizer writes ids: special tokens too, and no space tidied, so that nothing is lost."""

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    return decode


def turn_ends(tokenizer: Any, model: Any = None) -> frozenset[int]:
    """Return the ids that end a turn: the tokenizer's end-of-text token, and those of the model's generation config."""
    configured = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    also = configured if isinstance(configured, list) else [configured]
    return frozenset(i for i in (tokenizer.eos_token_id, *also) if i is not None)


@contextmanager
def _sampling(body: torch.nn.Module) -> Iterator[None]:
    """Run a model as it samples, without dropout or checkpointing, and leave it as it was."""
    training = [module for module in body.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True
