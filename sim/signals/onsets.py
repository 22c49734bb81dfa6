"""When something changed, looking back over a whole run: change points, first passages, the half-way point.

One definition is applied to every signal and every seed, so that one signal's onset can be subtracted from another's.
Times are places on the last axis of ``x``. A change that the run did not live to see is *censored*: it is reported as
None or NaN together with the time up to which there was none, never as a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Direction", "Onset", "change_points", "first_passage", "first_passages", "halfway", "least_squares"]

Floats = NDArray[np.float64]


class Direction(IntEnum):
    """Which way is a change: the sign that makes it a rise."""

    UP = 1
    DOWN = -1


@dataclass(frozen=True)
class Onset:
    """When a change began, or that it did not."""

    step: int | None
    """Place of the first value of the change; None if there was none."""
    censored_at: int
    """There was no onset before this place: equal to `step` if there is one."""

    @property
    def time(self) -> float:
        """`step` as a number, NaN if there was no onset."""
        return float("nan") if self.step is None else float(self.step)


def change_points(
    x: ArrayLike, *, count: int | None = None, penalty: float | None = None, min_size: int = 2
) -> tuple[int, ...]:
    """Where the mean of ``x`` [T] shifts: the segmentation with the least squared error about the segments' means.

    Minimises sum over segments of sum_t (x_t - mean)^2, exactly, by dynamic programming: over all segmentations with
    ``count`` change points, or over all of them with ``penalty`` added per change point (T^2 operations each). A point
    p says that a new segment begins with x[p]; ``min_size`` is the least length of a segment.

    A penalty for white noise of variance v is about 2 v ln T. Noise of autocorrelation r needs (1 + r) / (1 - r) times
    as much, or every slow swing becomes a change.

    ValueError if not exactly one of ``count`` and ``penalty`` is given, if ``x`` holds NaN, or if it is too short.
    Source: Auger and Lawrence 1989 (segment neighbourhood); Jackson et al. 2005 (optimal partitioning).

    >>> change_points([0, 0, 0, 5, 5, 5, 1, 1], count=2)
    (3, 6)
    """
    series = _series(x)
    if (count is None) == (penalty is None):
        raise ValueError(f"count={count}, penalty={penalty}: give one of the two")
    if min_size < 1:
        raise ValueError(f"min_size={min_size}: a segment needs 1 value at least")
    needed = min_size * (1 + (count or 0))
    if len(series) < needed:
        raise ValueError(f"{len(series)} values: {count or 0} changes with min_size={min_size} need {needed} or more")
    if count is not None:
        if count < 0:
            raise ValueError(f"count={count}: must be 0 or more")
        return _by_count(series, count, min_size)
    assert penalty is not None
    if not penalty >= 0:
        raise ValueError(f"penalty={penalty}: must be 0 or more")
    return _by_penalty(series, penalty, min_size)


def least_squares(x: ArrayLike, points: Sequence[int]) -> float:
    """The squared error of a segmentation of ``x`` [T]: what `change_points` minimises, without the penalty."""
    series = _series(x)
    return float(sum(((part - part.mean()) ** 2).sum() for part in np.split(series, list(points)) if len(part)))


def first_passage(x: ArrayLike, level: float, persistence: int = 1, direction: Direction = Direction.UP) -> Onset:
    """The first place from which ``x`` [T] is at or beyond ``level`` for ``persistence`` values in a row.

    NaN counts as not beyond. A crossing too close to the end to have persisted is censored.
    """
    array = np.asarray(x, dtype=np.float64)
    if array.ndim != 1:
        raise ValueError(f"x has shape {array.shape}: must be [T]; for many runs use first_passages")
    time = float(first_passages(array, level, persistence, direction))
    if np.isnan(time):
        return Onset(None, max(len(array) - persistence + 1, 0))
    return Onset(int(time), int(time))


def first_passages(x: ArrayLike, level: ArrayLike, persistence: int = 1, direction: Direction = Direction.UP) -> Floats:
    """`first_passage` of every run in ``x`` [..., T], as [...]; NaN where censored. ``level`` is one, or one per run.

    ValueError for a persistence below 1.

    >>> first_passages([[0, 1, 0, 1, 1], [0, 0, 0, 0, 1]], level=1, persistence=2)
    array([ 3., nan])
    """
    if persistence < 1:
        raise ValueError(f"persistence={persistence}: must be 1 step or more")
    sign = int(Direction(direction))
    array = np.asarray(x, dtype=np.float64)
    return _first_run(sign * array >= sign * np.asarray(level, dtype=np.float64)[..., None], persistence)


def halfway(x: ArrayLike, before: ArrayLike, after: ArrayLike, persistence: int = 1) -> Floats:
    """When each run in ``x`` [..., T] has gone half the way from ``before`` to ``after``, as [...]; NaN where censored.

    ``before`` and ``after`` are one value each, or one per run; their order gives the direction. ValueError where they
    are equal, as there is then no way to go.

    >>> halfway([1.0, 0.9, 0.6, 0.4, 0.3], before=1.0, after=0.2)
    array(2.)
    """
    start, end = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if persistence < 1:
        raise ValueError(f"persistence={persistence}: must be 1 step or more")
    if np.any(start == end):
        raise ValueError(f"before = after = {start[start == end].flat[0]}: there is no way to go; leave such runs out")
    sign = np.sign(end - start)[..., None]
    level = ((start + end) / 2)[..., None]
    return _first_run(sign * np.asarray(x, dtype=np.float64) >= sign * level, persistence)


def _first_run(hits: NDArray[np.bool_], persistence: int) -> Floats:
    """First place on the last axis where ``persistence`` hits in a row begin, NaN if there is none."""
    length = hits.shape[-1]
    if length < persistence:
        return np.full(hits.shape[:-1], np.nan)
    counts = np.concatenate([np.zeros((*hits.shape[:-1], 1), dtype=np.int64), np.cumsum(hits, axis=-1)], axis=-1)
    begins = counts[..., persistence:] - counts[..., : length - persistence + 1] == persistence
    return np.where(begins.any(axis=-1), begins.argmax(axis=-1), np.nan)


def _series(x: ArrayLike) -> Floats:
    series = np.asarray(x, dtype=np.float64)
    if series.ndim != 1:
        raise ValueError(f"x has shape {series.shape}: must be [T]; segment one run at a time")
    bad = np.flatnonzero(~np.isfinite(series))
    if len(bad):
        raise ValueError(f"x[{bad[0]}] = {series[bad[0]]}: must be finite; cut the run or fill the gap first")
    return series


class _Error:
    """Squared error of every segment that ends at one place, from prefix sums of the centred series."""

    def __init__(self, series: Floats) -> None:
        centred = series - series.mean() if len(series) else series  # a large mean would cancel the digits that count
        self.sums = np.concatenate([[0.0], np.cumsum(centred)])
        self.squares = np.concatenate([[0.0], np.cumsum(centred**2)])

    def __call__(self, starts: NDArray[np.int64], end: int) -> Floats:
        """Error of x[start:end] about its mean, for each start."""
        squares, sums = self.squares[end] - self.squares[starts], self.sums[end] - self.sums[starts]
        return np.maximum(squares - sums**2 / (end - starts), 0.0)


def _by_count(series: Floats, count: int, min_size: int) -> tuple[int, ...]:
    length, error = len(series), _Error(series)
    best = np.full(length + 1, np.inf)  # of x[:end] with the changes placed so far
    for end in range(min_size, length + 1):
        best[end] = error(np.array([0]), end)[0]
    last = np.zeros((count, length + 1), dtype=np.int64)
    for changes in range(1, count + 1):
        cheapest = np.full(length + 1, np.inf)
        for end in range(min_size * (changes + 1), length + 1):
            starts = np.arange(min_size * changes, end - min_size + 1)
            costs = best[starts] + error(starts, end)
            choice = int(costs.argmin())
            cheapest[end], last[changes - 1, end] = costs[choice], starts[choice]
        best = cheapest
    points: list[int] = []
    end = length
    for changes in range(count, 0, -1):
        end = int(last[changes - 1, end])
        points.append(end)
    return tuple(reversed(points))


def _by_penalty(series: Floats, penalty: float, min_size: int) -> tuple[int, ...]:
    length, error = len(series), _Error(series)
    best = np.full(length + 1, np.inf)
    best[0] = -penalty  # so that the first segment, which no change begins, is free
    last = np.zeros(length + 1, dtype=np.int64)
    for end in range(min_size, length + 1):
        starts = np.arange(0, end - min_size + 1)
        costs = best[starts] + penalty + error(starts, end)
        choice = int(costs.argmin())
        best[end], last[end] = costs[choice], starts[choice]
    points: list[int] = []
    end = int(last[length])
    while end > 0:
        points.append(end)
        end = int(last[end])
    return tuple(reversed(points))
