"""Intervals over independent replicas, and what forbids them.

The mean of one long stretch of each replica, warm-up deleted, is one value; replicas are independent, so Student's interval
over these values is the default. It means nothing when the variance is infinite: see :func:`tail_index`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, gammaincinv, stdtrit

__all__ = [
    "Interval",
    "TailIndex",
    "checked",
    "quantile_interval",
    "relative_half_width",
    "replicas_needed",
    "replicated",
    "require_finite_variance",
    "student_half",
    "tail_index",
]

F64 = NDArray[np.float64]
_LEAST = 5  # Student's interval at 4 degrees of freedom is 2.8 standard errors wide; below that it says nothing


@dataclass(frozen=True)
class Interval:
    """An estimate with its limits."""

    value: float
    """Estimate."""
    low: float
    """Lower limit."""
    high: float
    """Upper limit."""
    n: int
    """Independent values behind it."""
    level: float
    """Probability that such limits enclose the truth: nominal for a mean, exact for a quantile of a continuous law."""


def checked(name: str, values: ArrayLike, least: int = _LEAST) -> F64:
    """Return the values [n] as floats, refusing fewer than `least`, a NaN or an infinity."""
    x = np.asarray(values, np.float64)
    if x.ndim != 1 or len(x) < least:
        raise ValueError(f"{name} {x.shape} must be an array [n] of at least {least} values; run more")
    if not np.isfinite(x).all():
        i = int(np.argmin(np.isfinite(x)))
        raise ValueError(f"{name}[{i}] = {x[i]} is not finite; find out what went wrong there before averaging")
    return x


def require_finite_variance(tail_index: float | None, variance: float | None) -> None:
    """Refuse a mean with an interval for a law of tail index 2 or less, or of infinite variance; None where unknown."""
    if tail_index is not None and not tail_index > 2:
        raise ValueError(f"tail_index = {tail_index} must be above 2: the variance is infinite and no interval for the mean"
                         " holds; use quantile_interval, or cap the law")  # fmt: skip
    if variance is not None and not math.isfinite(variance):
        raise ValueError(f"variance = {variance} must be finite: no interval for the mean holds; use quantile_interval,"
                         " or cap the law")  # fmt: skip


def student_half(deviation: float, n: float, freedom: float, alpha: float) -> float:
    """Return the half-width t(1 - alpha / 2; freedom) deviation / sqrt n."""
    return float(stdtrit(freedom, 1 - alpha / 2)) * deviation / math.sqrt(n)


def replicated(
    values: ArrayLike, *, alpha: float = 0.05, tail_index: float | None = None, variance: float | None = None
) -> Interval:
    """Return Student's interval for the mean over replicas.

    Parameters
    ----------
    values
        One number per replica, [n], independent (seeds of their own), warm-up deleted.
    alpha
        Probability that the limits miss the mean.
    tail_index, variance
        What is known of the law that drives the values; None where unknown.

    Raises
    ------
    ValueError
        For n < 5, a value that is not finite, values that are all the same, or an infinite variance.

    >>> found = replicated([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> round(found.low, 3), found.value, round(found.high, 3)
    (1.537, 3.5, 5.463)
    """
    require_finite_variance(tail_index, variance)
    x = checked("values", values)
    if np.ptp(x) == 0:
        raise ValueError(f"all {len(x)} values are {x[0]}: replicas do not differ; give each a seed of its own")
    half = student_half(float(x.std(ddof=1)), len(x), len(x) - 1, alpha)
    centre = float(x.mean())
    return Interval(centre, centre - half, centre + half, len(x), 1 - alpha)


def quantile_interval(values: ArrayLike, q: float = 0.5, *, alpha: float = 0.05) -> Interval:
    """Return an interval for the q-quantile from order statistics x(l) and x(u), for any law.

    B, the number of values below the quantile, is binomial(n, q): l is the largest with P(B < l) <= alpha / 2, u the least
    with P(B >= u) <= alpha / 2, and `level` is P(l <= B < u). The estimate is x(ceil(n q)). Values may be infinite.

    Raises
    ------
    ValueError
        When n is too small for limits at this q, naming how many it takes, or for NaN.

    >>> found = quantile_interval(range(1, 21))
    >>> found.low, found.value, found.high, round(found.level, 4)
    (6.0, 10.0, 15.0, 0.9586)
    """
    if not 0 < q < 1:
        raise ValueError(f"q = {q} must lie between 0 and 1")
    x = np.sort(np.asarray(values, np.float64))
    if x.ndim != 1 or np.isnan(x).any():
        raise ValueError(f"values {x.shape} must be an array [n] without NaN")
    n = len(x)
    below = bdtr(np.arange(n), n, q) if n else np.zeros(0)  # P(B <= j), j = 0 .. n - 1
    allowed = alpha / 2 * (1 + 1e-12)  # a tail of just alpha / 2 up to rounding is allowed
    low = int(np.searchsorted(below, allowed, side="right"))
    high = int(np.searchsorted(below, 1 - allowed, side="left")) + 1
    if low < 1 or high > n:
        need = math.ceil(math.log(alpha / 2) / math.log(max(q, 1 - q)))
        raise ValueError(f"n = {n} values give no limits for q = {q} at alpha = {alpha}; need at least {need}")
    level = float(below[high - 1] - below[low - 1])
    return Interval(float(x[math.ceil(n * q) - 1]), float(x[low - 1]), float(x[high - 1]), n, level)


def relative_half_width(interval: Interval) -> float:
    """Return the half-width as a share of the estimate."""
    if interval.value == 0:
        raise ValueError("value = 0: a half-width relative to it does not exist; ask for an absolute one")
    return (interval.high - interval.low) / 2 / abs(interval.value)


def replicas_needed(values: ArrayLike, relative: float, *, alpha: float = 0.05) -> int:
    """Return how many replicas in all make the half-width `relative` times the mean, by the variance seen so far.

    The least n, not below those there are, with t(1 - alpha / 2; n - 1) s / sqrt n <= relative |mean|. Asked once, of a
    pilot, the final interval keeps its level; stopping at the first n that looks narrow enough loses a little of it.

    Parameters
    ----------
    values
        Those of the replicas there are, [n].
    relative
        Wanted half-width over |mean|.
    """
    if not relative > 0:
        raise ValueError(f"relative = {relative} must be above 0")
    x = checked("values", values)
    spread, wanted = float(x.std(ddof=1)), relative * abs(float(x.mean()))
    if wanted == 0:
        raise ValueError("the mean is 0: no number of replicas makes a half-width relative to it")
    low = high = len(x)
    while student_half(spread, high, high - 1, alpha) > wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if student_half(spread, middle, middle - 1, alpha) > wanted else (low, middle)
    return high


@dataclass(frozen=True)
class TailIndex:
    """An estimate of alpha in P(X > x) ~ x^-alpha."""

    value: float
    """Estimate."""
    low: float
    """Lower limit."""
    high: float
    """Upper limit."""
    k: int
    """Largest values it rests on."""

    @property
    def may_lack_variance(self) -> bool:
        """Whether the limits allow alpha <= 2: then no interval for a mean is safe."""
        return self.low <= 2


def tail_index(values: ArrayLike, k: int, *, alpha: float = 0.05) -> TailIndex:
    """Return Hill's estimate of the tail index, k / sum_{i <= k} log(x(n - i + 1) / x(n - k)), and its interval.

    For a Pareto tail k alpha / estimate is gamma(k), which gives the limits; elsewhere they hold as far as the tail is
    straight on a log-log scale above x(n - k). A light tail shows as an estimate that grows as k falls. Source: Hill, "A
    simple general approach to inference about the tail of a distribution" (Annals of Statistics 1975).

    Parameters
    ----------
    values
        Independent, [n].
    k
        How many of the largest to use, 2 <= k < n; those must lie above 0.
    """
    x = np.sort(checked("values", values))
    if not 2 <= k < len(x):
        raise ValueError(f"k = {k} must be at least 2 and below n = {len(x)}")
    threshold = x[-k - 1]
    if threshold <= 0:
        raise ValueError(f"the {k + 1} largest values reach down to {threshold}, must be above 0; take a smaller k")
    total = float(np.log(x[-k:] / threshold).sum())
    if total == 0:
        raise ValueError(f"the {k + 1} largest values are all {threshold}: a cap, not a tail; take a larger k")
    estimate = k / total
    low, high = (float(gammaincinv(k, p)) / total for p in (alpha / 2, 1 - alpha / 2))
    return TailIndex(estimate, low, high, k)
