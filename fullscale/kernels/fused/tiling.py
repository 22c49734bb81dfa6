"""Which tile each kernel works on, and how many warps and stages it gets: by operands and head, never by how many rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fullscale.kernels.contract import STRIP, Strip, Tile

__all__ = ["CHUNK", "DTYPES", "Piece", "Plan", "elementwise", "parts", "pieces", "plan"]

CHUNK = 5 * STRIP
"""Columns whose derivatives are held at a time, at most: workspace is 2 bytes x n x this."""
DTYPES = (torch.bfloat16, torch.float32)
"""Operands there are kernels for. Derivatives are held in the operands' dtype, and float16 has no exponents for them."""
_EXACT = Tile(64, 64, 32)
"""Tile of float32 operands at most: they are multiplied in full precision, for which there are no tensor cores."""
_KEPT_ROWS = 16
"""Rows of a kept tile that one program turns into derivatives."""
_NARROWEST = 32
"""A quarter of so many columns is 16 bytes of bfloat16, the least that a tensor descriptor moves."""


@dataclass(frozen=True)
class Plan:
    """How a kernel is compiled."""

    tile: Tile
    """Of each head."""
    warps: int
    """Of 32 threads."""
    stages: int
    """Steps of K in flight."""

    @property
    def options(self) -> dict[str, int | bool]:
        """What Triton is told.

        Multiply and add are not fused: whether they would be depends on what else is computed nearby, and then a row's bits
        would depend on what else is wanted of the row.
        """
        return {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": False}


def plan(tile: Tile, dtype: torch.dtype, *, heads: int = 1, bias: bool = False) -> Plan:
    """Return how a kernel over tiles of logits is compiled; `tile` is that of one head without a bias.

    Accumulators of 128 x 256 are half of all registers. So two heads share them; and a head with a bias, whose columns
    need registers of their own, gets half the columns, lest some be spilled to memory.
    """
    columns = max(tile.columns // heads // (2 if bias else 1), _NARROWEST)
    if dtype == torch.float32:
        exact = Tile(min(tile.rows, _EXACT.rows), min(columns, _EXACT.columns), min(tile.depth, _EXACT.depth))
        return Plan(exact, warps=8, stages=2)
    return Plan(Tile(tile.rows, columns, tile.depth), warps=8, stages=4)


def elementwise(tile: Tile) -> Plan:
    """Return how the kernels are compiled that have no product: from kept tiles to derivatives, and from strips to rows."""
    return Plan(Tile(min(tile.rows, _KEPT_ROWS), tile.columns, tile.depth), warps=4, stages=1)


def parts(softcap: float | None) -> int:
    """Return in how many parts the forward does a tile's columns; the kernel has the same rule."""
    return 2 if softcap is None else 4


@dataclass(frozen=True)
class Piece:
    """Columns of the weight whose derivatives are made at once: whole strips, all kept or none."""

    start: int
    """First column, counted from the weight's row 0."""
    size: int
    """Number of columns."""
    strips: range
    """Strips."""


def pieces(strips: Sequence[Strip], kept: int, limit: int = CHUNK) -> Iterator[Piece]:
    """Yield the pieces of a vocabulary, ascending: as many whole strips as `limit` columns hold, and one at least.

    The first `kept` strips and the others do not share a piece.
    """
    begin = 0
    for j, strip in enumerate(strips):
        following = strips[j + 1] if j + 1 < len(strips) else None
        full = following is None or following.stop - strips[begin].start > limit
        if full or j + 1 == kept:
            start = strips[begin].start
            yield Piece(start - strips[0].start, strip.stop - start, range(begin, j + 1))
            begin = j + 1
