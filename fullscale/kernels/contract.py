"""What the bits of a row may depend on: a fixed layout of the vocabulary, and fixed tiles.

A log-probability is a sum over the vocabulary, and a sum in floating point depends on its order. The order is fixed here by
the vocabulary alone. It is cut into *strips*; each strip is reduced to a few numbers, and the strips are merged in ascending
order. Nothing depends on how many rows there are, on where a row stands, on its neighbours, or on how many processors share
the work. No strip crosses the edge of a shard at 1, 2, 4 or 8 ranks, so a vocabulary split over ranks is merged in the very
order of one that is not.
"""

from dataclasses import dataclass
from itertools import pairwise

__all__ = ["BLOCKS", "STRIP", "Strip", "Tile", "shard", "strips"]

BLOCKS = 8
"""Blocks of the vocabulary inside which strips are laid: the most ranks that may share it."""
STRIP = 2048
"""Columns of a strip at most: eight tiles of the fused kernel, and a piece of logits that stays in a CPU's cache."""


@dataclass(frozen=True)
class Strip:
    """Columns of the vocabulary, start <= column < stop."""

    start: int
    """First column."""
    stop: int
    """One past the last."""

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Tile:
    """The piece of a matrix product that one program of the fused kernel holds in registers."""

    rows: int = 128
    """Tokens."""
    columns: int = 256
    """Columns of the vocabulary."""
    depth: int = 64
    """Hidden units a step; steps go upwards."""


def shard(vocabulary: int, rank: int = 0, ranks: int = 1) -> Strip:
    """Return the columns that `rank` of `ranks` holds: whole blocks, so not quite even where 8 does not divide V.

    Raises
    ------
    ValueError
        Unless ranks is 1, 2, 4 or 8 and 0 <= rank < ranks, and for a vocabulary of fewer than one column.
    """
    if vocabulary < 1:
        raise ValueError(f"vocabulary = {vocabulary} must be at least 1")
    if ranks < 1 or BLOCKS % ranks:
        raise ValueError(f"ranks = {ranks} must be one of 1, 2, 4, 8: the strips are laid inside {BLOCKS} blocks")
    if not 0 <= rank < ranks:
        raise ValueError(f"rank = {rank} must lie in 0 .. {ranks - 1}")
    return Strip(vocabulary * rank // ranks, vocabulary * (rank + 1) // ranks)


def strips(vocabulary: int, rank: int = 0, ranks: int = 1) -> tuple[Strip, ...]:
    """Return the strips of a shard in ascending order, in columns of the whole vocabulary.

    Those of all ranks, one after the other, are those of one rank. Blocks of a small vocabulary may be empty.

    >>> [(s.start, s.stop) for s in strips(40_000)][:4]
    [(0, 2048), (2048, 4096), (4096, 5000), (5000, 7048)]
    """
    whole = shard(vocabulary, rank, ranks)
    edges = [vocabulary * block // BLOCKS for block in range(BLOCKS + 1)]
    return tuple(
        Strip(start, min(start + STRIP, last))
        for first, last in pairwise(edges)
        if whole.start <= first and last <= whole.stop
        for start in range(first, last, STRIP)
    )
