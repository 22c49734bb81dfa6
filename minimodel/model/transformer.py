"""A tiny decoder-only transformer: one forward for learning, one step by step for sampling, the same numbers.

Pre-norm blocks, learned positions, GELU, an untied head, no biases (as GPT-2 without them; Radford et al. 2019).
Convention: the logits at position i predict the token at position i + 1.

Sizes: B sequences, T positions, S positions fed at once, V words, L layers, H heads, D width, Dh = D / H.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from sim.records.config import config

__all__ = ["SIZES", "Cache", "Size", "Transformer"]


@config
class Size:
    """Shape of a transformer."""

    width: int = 64
    """D: width of the residual stream."""
    layers: int = 2
    """L: number of blocks."""
    heads: int = 4
    """H: attention heads of a block; they divide the width."""
    feedforward: int = 4
    """Width of a block's hidden layer, in widths of the residual stream."""
    decision: str = "shared"
    """``"shared"``: one network for every token. ``"private"``: logits of decision tokens come from a second network of the
    same shape, which the gradient of no other token reaches, and the reverse; twice the parameters."""

    def __post_init__(self) -> None:
        for name in ("width", "layers", "heads", "feedforward"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; a transformer needs at least 1")
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads} must divide the width {self.width}, which they share")
        if self.decision not in ("shared", "private"):
            raise ValueError(f"decision = {self.decision!r} must be 'shared' or 'private'")


SIZES: dict[str, Size] = {
    "35k": Size(width=32),
    "119k": Size(),
    "218k": Size(layers=4),
    "435k": Size(width=128),
    "829k": Size(width=128, layers=4),
}
"""Named by their number of parameters with 144 words and 36 positions: 35,104; 119,360; 217,920; 435,328; 829,056."""


class _Block(nn.Module):
    """Attention and a two-layer network, each added to the residual stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        D, hidden = size.width, size.feedforward * size.width
        self.heads = size.heads
        self.norm_attention = nn.LayerNorm(D, bias=False)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.mix = nn.Linear(D, D, bias=False)
        self.norm_feedforward = nn.LayerNorm(D, bias=False)
        self.widen = nn.Linear(D, hidden, bias=False)
        self.narrow = nn.Linear(hidden, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, D]
        q, k, v = self._split(self.qkv(self.norm_attention(x)))
        return self._after(x, nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))

    def extend(self, x: Tensor, past: Tensor, length: int, mask: Tensor | None) -> Tensor:
        """Return what `forward` gives at the last S positions, x [B, S, D]; keys and values go into `past`.

        `past` [2, B, H, positions, Dh] holds those of `length` earlier positions; `mask` [S, length + S] says who sees whom.
        """
        q, k, v = self._split(self.qkv(self.norm_attention(x)))
        upto = length + x.shape[1]
        past[0, :, :, length:upto], past[1, :, :, length:upto] = k, v
        k, v = past[0, :, :, :upto], past[1, :, :, :upto]
        return self._after(x, nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))

    def _split(self, qkv: Tensor) -> tuple[Tensor, ...]:
        B, S, D = qkv.shape
        return (
            qkv.view(B, S, 3, self.heads, D // (3 * self.heads)).permute(2, 0, 3, 1, 4).unbind(0)
        )  # [B, H, S, Dh] each

    def _after(self, x: Tensor, seen: Tensor) -> Tensor:
        x = x + self.mix(seen.transpose(1, 2).reshape(x.shape))
        return x + self.narrow(nn.functional.gelu(self.widen(self.norm_feedforward(x))))


class _Trunk(nn.Module):
    """Words and positions in, logits out."""

    def __init__(self, size: Size, vocabulary: int, positions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, size.width)
        self.position = nn.Embedding(positions, size.width)
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.head = nn.Linear(size.width, vocabulary, bias=False)
        deviation = 0.48 / math.sqrt(size.width)
        with torch.no_grad():
            for name, p in self.named_parameters():
                if p.ndim == 2:  # what writes into the residual stream starts smaller, so that depth does not widen it
                    into = name.endswith(("mix.weight", "narrow.weight"))
                    p.normal_(0.0, deviation / math.sqrt(2 * size.layers) if into else deviation, generator=generator)

    def stream(self, ids: Tensor) -> Tensor:  # [B, T] -> [B, T, D]
        x = self.word(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return x

    def extend(self, ids: Tensor, past: Tensor, length: int, mask: Tensor | None) -> Tensor:  # [B, S] -> [B, D]
        x = self.word(ids) + self.position.weight[length : length + ids.shape[1]]
        for block, memory in zip(self.blocks, past, strict=True):
            x = cast(_Block, block).extend(x, memory, length, mask)
        return x[:, -1]

    def read(self, x: Tensor) -> Tensor:  # [..., D] -> [..., V]
        logits: Tensor = self.head(self.norm(x))
        return logits


class Cache:
    """Keys and values of the positions read so far; one row per sequence."""

    def __init__(self, past: Tensor) -> None:
        self.past = past
        """[networks, L, 2, B, H, positions, Dh], float32."""
        self.length = 0
        """Positions held."""

    @property
    def rows(self) -> int:
        """Sequences held."""
        return self.past.shape[3]

    @property
    def positions(self) -> int:
        """Positions there is room for."""
        return self.past.shape[5]

    def keep(self, rows: Tensor) -> None:
        """Keep only these rows, in this order, so that sequences that have ended cost nothing."""
        kept = self.past.new_empty((*self.past.shape[:3], len(rows), *self.past.shape[4:]))
        kept[..., : self.length, :] = self.past[..., : self.length, :].index_select(3, rows)
        self.past = kept


class Transformer(nn.Module):
    """The network; see the module.

    Parameters
    ----------
    size
        Its shape.
    vocabulary
        V.
    positions
        Longest sequence it can read.
    decisions
        Positions of decision tokens (the tokens themselves; their logits stand one position before). Read only where
        ``size.decision`` is ``"private"``.
    generator
        What initial weights are drawn from: deviation 0.48 / sqrt(D), and 1 / sqrt(2 L) of it for matrices that write into
        the residual stream. At D = 64 that is 0.06. With 0.02 the supervised starts of this package know less and
        copy worse after the same updates (ours).
    """

    def __init__(
        self,
        size: Size,
        vocabulary: int,
        positions: int,
        *,
        decisions: Sequence[int] = (),
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.size, self.vocabulary, self.positions = size, vocabulary, positions
        self.trunk = _Trunk(size, vocabulary, positions, generator)
        self.decider: _Trunk | None = None
        self.predictors: list[int] = []  # positions whose logits are the decider's
        if size.decision == "private":
            self.predictors = _predictors(decisions, positions)
            self.decider = _Trunk(size, vocabulary, positions, generator)

    @property
    def parameter_count(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.parameters())

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits, [B, T, V], float32; those at [:, i] predict ids[:, i + 1].

        Parameters
        ----------
        ids
            [B, T], integers below V.

        Raises
        ------
        ValueError
            When T exceeds the positions the network has.
        """
        self._fits(ids.shape[1])
        logits = self.trunk.read(self.trunk.stream(ids))
        at = [i for i in self.predictors if i < ids.shape[1]]
        if self.decider is None or not at:
            return logits
        where = torch.tensor(at)
        return logits.index_copy(1, where, self.decider.read(self.decider.stream(ids)[:, where]))

    def start(self, batch: int, positions: int | None = None) -> Cache:
        """Return an empty cache for `batch` sequences of up to `positions` (all it can read, by default)."""
        room = self.positions if positions is None else positions
        self._fits(room)
        D, H = self.size.width, self.size.heads
        networks = 1 if self.decider is None else 2
        return Cache(torch.empty(networks, self.size.layers, 2, batch, H, room, D // H))

    @torch.no_grad()
    def extend(self, ids: Tensor, cache: Cache) -> Tensor:
        """Feed `ids` [B, S] after what the cache holds; return the logits that predict the next token, [B, V].

        Raises
        ------
        ValueError
            When the rows are not those of the cache, or there is no room for S more positions.
        """
        B, S = ids.shape
        upto = cache.length + S
        if cache.rows != B:
            raise ValueError(f"ids have {B} rows, the cache {cache.rows}; keep() the rows that go on")
        if upto > cache.positions:
            raise ValueError(
                f"{upto} positions do not fit a cache of {cache.positions}; start() one with room for them"
            )
        mask = None if S == 1 else torch.ones(S, upto, dtype=torch.bool).tril(cache.length)
        x = self.trunk.extend(ids, cache.past[0], cache.length, mask)
        private = self.decider.extend(ids, cache.past[1], cache.length, mask) if self.decider is not None else x
        cache.length = upto
        if self.decider is not None and upto - 1 in self.predictors:
            return self.decider.read(private)
        return self.trunk.read(x)

    def _fits(self, positions: int) -> None:
        if positions > self.positions:
            raise ValueError(
                f"{positions} positions exceed the {self.positions} this network has; build it with more of them"
            )


def _predictors(decisions: Sequence[int], positions: int) -> list[int]:
    """Return the positions whose logits predict decision tokens."""
    if not decisions:
        raise ValueError("a private decision network needs decisions=: the positions of the decision tokens")
    outside = [i for i in decisions if not 1 <= i <= positions]
    if outside:
        raise ValueError(f"decision position {outside[0]} is outside [1, {positions}]: nothing can predict it")
    return sorted(i - 1 for i in set(decisions))
