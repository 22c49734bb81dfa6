"""The engine's memory: keys and values of rows that differ in length, one slot a row.

A row's tokens stand in the first places of its slot, so a token's place is its position, no row is padded at the front, and
rows grow at different speeds: one reads a document in one go while the others stand still. Live rows fill the first slots.
A row that ends is replaced by the last one, so that a step costs what the live rows cost; nothing else is moved.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

__all__ = ["Kept", "Slots"]

Kept = list[tuple[Tensor, Tensor]]
"""Keys and values of the first tokens of one row, layer by layer, [heads, tokens, D] each."""
_STEP = 64
"""Places are added in multiples of this."""


class Slots(Cache):
    """Keys and values, [slots, heads, places, D] a layer.

    Before a forward, :meth:`aim` says which rows it reads and how many tokens of each; the forward's layers then write to
    those rows and are given back all that these rows hold.

    Parameters
    ----------
    slots
        Most rows at a time.
    tokens
        Most tokens a row.
    """

    def __init__(self, slots: int, tokens: int) -> None:
        super().__init__(layers=[])
        self.slots, self.tokens = slots, tokens
        self.lengths = [0] * slots
        """Tokens each slot holds."""
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self._reach, self._fresh = 0, True

    @property
    def nbytes(self) -> int:
        """Return the bytes that are held."""
        return sum(x.nbytes for x in (*self.keys, *self.values))

    def aim(self, rows: Sequence[int], counts: Sequence[int], like: Tensor) -> tuple[Tensor, Tensor]:
        """Make room for `counts` further tokens in `rows`, and count them; return what a forward takes.

        Parameters
        ----------
        like
            Has the model's dtype and device.

        Returns
        -------
        positions, mask
            Positions of the new tokens, [rows, most new], and what may be attended to, [rows, 1, most new, places]: 0 or
            -inf, added to the scores.
        """
        held = [self.lengths[row] for row in rows]
        reach, new = max(h + n for h, n in zip(held, counts, strict=True)), max(counts)
        start, places = torch.tensor(held), torch.arange(new)
        positions = start[:, None] + places  # [b, new]
        row, place = (places < torch.tensor(counts)[:, None]).nonzero(as_tuple=True)  # the others are padding
        self._new = (row.to(like.device), place.to(like.device))
        self._slot, self._place = (x.to(like.device) for x in (torch.tensor(rows)[row], positions[row, place]))
        self._rows: Any = (
            slice(len(rows)) if list(rows) == list(range(len(rows))) else torch.tensor(rows).to(like.device)
        )
        self._reach, self._fresh = reach, not any(held)
        for slot, length, count in zip(rows, held, counts, strict=True):
            self.lengths[slot] = length + count
        unseen = torch.arange(reach) > positions[..., None]
        mask = torch.zeros(unseen.shape, dtype=like.dtype).masked_fill(unseen, -torch.inf)[:, None]
        return positions.to(like.device), mask.to(like.device)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values, [rows, heads, new, D], and return those to attend to, [rows, heads, places, D]."""
        found = []
        for held, new in ((self.keys, key_states), (self.values, value_states)):
            whole = self._room(held, layer_idx, new[0], self._reach)
            whole[self._slot, :, self._place] = new.transpose(1, 2)[self._new]
            found.append(new if self._fresh else whole[self._rows, :, : self._reach])
        return found[0], found[1]

    def move(self, source: int, target: int) -> None:
        """Put a row into another slot; its own is then empty."""
        if source != target:
            self.copy(source, (target,), self.lengths[source])
        self.lengths[source] = 0

    def copy(self, source: int, targets: Sequence[int], tokens: int) -> None:
        """Give the first `tokens` tokens of one row to others as well."""
        for whole in (*self.keys, *self.values):
            for target in targets:  # one by one: torch refuses an indexed write from the tensor's own memory
                whole[target, :, :tokens] = whole[source, :, :tokens]
        for target in targets:
            self.lengths[target] = tokens

    def take(self, row: int, tokens: int) -> Kept:
        """Return a copy of the first `tokens` tokens of a row."""
        pairs = zip(self.keys, self.values, strict=True)
        return [(key[row, :, :tokens].clone(), value[row, :, :tokens].clone()) for key, value in pairs]

    def put(self, row: int, kept: Kept) -> None:
        """Begin a row with what :meth:`take` returned."""
        tokens = kept[0][0].shape[1]
        for layer, pair in enumerate(kept):
            for held, new in zip((self.keys, self.values), pair, strict=True):
                self._room(held, layer, new, tokens)[row, :, :tokens] = new
        self.lengths[row] = tokens

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the tokens of the longest row that the forward under way reads."""
        return self._reach

    def _room(self, held: list[Tensor], layer: int, like: Tensor, places: int) -> Tensor:
        """Return what is held of a layer, with so many places at least; `like` is [heads, any, D].

        New places are zeros, as what is masked is multiplied by 0, and half as many again as there were, so that growing
        costs little a token.
        """
        if layer == len(held):
            held.append(like.new_zeros(self.slots, like.shape[0], 0, like.shape[2]))
        had = held[layer].shape[2]
        if had < places:
            more = max(places, min(had * 3 // 2, self.tokens))
            whole = like.new_zeros(self.slots, like.shape[0], -(-more // _STEP) * _STEP, like.shape[2])
            whole[:, :, :had] = held[layer]
            held[layer] = whole
        return held[layer]
