"""One long run: where its warm-up ends, and an interval for its mean from batches."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sim.cluster.statistics.intervals import checked, require_finite_variance, student_half

__all__ = ["BatchMeans", "batch_means", "mser5"]

_SIZE = 5  # of a batch, in MSER-5
_ENDS = 5  # batches at the end that no truncation may reach: few values agree by chance
_LEAST = 10  # batches, effective or not, below which an interval is refused


def mser5(series: ArrayLike) -> int:
    """Return how many values at the start of a series to delete as warm-up, a multiple of 5.

    With Z_1 .. Z_m the means of batches of 5, the d in front are deleted that minimise

        MSER(d) = sum_{j > d} (Z_j - mean_{j > d} Z)^2 / (m - d)^2,

    the squared half-width of the mean of what is kept, up to a factor. Sources: White, "An effective truncation heuristic
    for bias reduction in simulation output" (Simulation 1997); batches of 5: White, Cobb and Spratt (WSC 2000).

    Parameters
    ----------
    series
        One number per learner step, say, [n]; the last n mod 5 are not used.

    Raises
    ------
    ValueError
        For fewer than 10 batches, or when the minimum lies in the second half: the series is too short to tell.
    """
    x = checked("series", series, _LEAST * _SIZE)
    m = len(x) // _SIZE
    z = x[: m * _SIZE].reshape(m, _SIZE).mean(axis=1)
    z = z - z[-1]  # near 0 where the series has settled: squares of large numbers cancel badly
    kept = m - np.arange(m - _ENDS + 1)
    first, second = (np.cumsum(part[::-1])[::-1][: len(kept)] for part in (z, z * z))
    best = int(np.argmin(np.maximum(second - first**2 / kept, 0) / kept**2))
    if best > m / 2:
        raise ValueError(
            f"MSER-5 would delete {best} of {m} batches, bound {m // 2}: not enough data to see the end of the warm-up;"
            f" run longer than {len(x)}"
        )
    return best * _SIZE


@dataclass(frozen=True)
class BatchMeans:
    """The mean of a stationary series, with an interval from the means of its batches."""

    mean: float
    """Over all batches."""
    low: float
    """Lower limit."""
    high: float
    """Upper limit."""
    batches: int
    """How many."""
    size: int
    """Values of one batch."""
    lag1: float
    """Autocorrelation of neighbouring batch means."""
    correlated: bool
    """Whether `lag1` is more than chance gives 1 in 100 series of independent batches: the interval is then too narrow."""
    effective: float
    """Batches that independent ones would do as well: b (1 - lag1) / (1 + lag1) where correlated, else b."""


def batch_means(
    series: ArrayLike,
    batches: int = 20,
    *,
    alpha: float = 0.05,
    tail_index: float | None = None,
    variance: float | None = None,
) -> BatchMeans:
    """Return Student's interval over means of equal batches of one stationary series.

    Honest where batches are long against the correlation of the series, so that their means are nearly independent; the
    lag-1 autocorrelation of the means is compared with its law for independent ones, about normal(-1 / b, 1 / b).

    Parameters
    ----------
    series
        In order of time, [n], warm-up deleted (:func:`mser5`); the first n mod b values are not used.
    batches
        b.
    alpha
        Probability that the limits miss the mean.
    tail_index, variance
        What is known of the law that drives the series; None where unknown.

    Raises
    ------
    ValueError
        For fewer than 10 batches, effective ones included; for a constant series; for an infinite variance.
    """
    require_finite_variance(tail_index, variance)
    if batches < _LEAST:
        raise ValueError(f"batches = {batches} must be at least {_LEAST}: the spread of fewer is not known")
    x = checked("series", series, batches)
    size = len(x) // batches
    means = x[len(x) - size * batches :].reshape(batches, size).mean(axis=1)
    centre = float(means.mean())
    around = means - centre
    if np.ptp(means) == 0:
        raise ValueError(f"all {batches} batch means are {centre}: a series that never changes has no interval")
    lag1 = float((around[1:] * around[:-1]).sum() / (around**2).sum())
    correlated = lag1 > -1 / batches + 2.326 / math.sqrt(batches)  # 1 in 100, one-sided
    effective = batches * (1 - lag1) / (1 + lag1) if correlated else float(batches)
    if effective < _LEAST:
        raise ValueError(
            f"{batches} batches of {size} with lag-1 autocorrelation {lag1:.2f} are worth {effective:.1f} independent ones,"
            f" bound {_LEAST}; run longer"
        )
    half = student_half(float(means.std(ddof=1)), batches, batches - 1, alpha)
    return BatchMeans(centre, centre - half, centre + half, batches, size, lag1, correlated, effective)
