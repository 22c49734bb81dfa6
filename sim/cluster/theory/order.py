"""Order statistics: the longest of a batch, and the k-th of n where the first N of N' are kept.

A synchronous step waits for the largest of n times, so its slots are busy for mean / max of the step. Keeping the first N of
N' > N waits for the N-th smallest instead.

Numerical means are integrals over a normal score z: with u = Phi(z) and s = 1 - u,

    E[X_(k)] = int Q(u) n! / ((k - 1)! (n - k)!) u^(k - 1) s^(n - k) phi(z) dz,

whose integrand is smooth and dies out at both ends where the mean exists, so that the trapezoid rule is as exact as the
quantile function. A floating u ends at 1 - 2^-53; a heavy tail goes on, and needs Q as a function of s.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, ndtr

from sim.cluster.theory._checks import count, non_negative, positive

__all__ = [
    "exponential_mean_max",
    "lognormal_mean_max",
    "mean_kth",
    "mean_max",
    "pareto_mean_max",
    "slot_use",
]

F64 = NDArray[np.float64]
Quantile = Callable[[F64], F64]
"""An inverse distribution function of many probabilities at once, [...] to [...]."""

_SCORES = np.linspace(-37.0, 37.0, 2**15 + 1)  # P(z > 37) is near the least normal number
_LOG_BELOW = log_ndtr(_SCORES)
_EDGE = 2.0**-53
_TAIL_SHARE = 1e-4  # how much of a mean may lie beyond the last quantile that numbers can name


def pareto_mean_max(scale: float, tail: float, n: int) -> float:
    """Return the mean of the largest of n Pareto times: x_m Gamma(1 - 1/alpha) n! / Gamma(n + 1 - 1/alpha).

    Parameters
    ----------
    scale
        x_m, the least value, in the unit of the answer.
    tail
        alpha in P(X > x) = (x_m / x)^alpha.
    n
        How many are drawn.

    Raises
    ------
    ValueError
        When alpha <= 1: the mean is infinite.

    >>> round(pareto_mean_max(1.0, 2.0, 1), 12)  # alpha / (alpha - 1)
    2.0
    """
    positive(scale=scale)
    count(n=n)
    if not tail > 1:
        raise ValueError(f"tail = {tail} must be above 1: the mean is infinite; cap the law or ask for a quantile")
    return scale * math.exp(math.lgamma(1 - 1 / tail) + math.lgamma(n + 1) - math.lgamma(n + 1 - 1 / tail))


def exponential_mean_max(mean: float, n: int) -> float:
    """Return the mean of the largest of n exponential times: mean (1 + 1/2 + ... + 1/n).

    >>> round(exponential_mean_max(6.0, 3), 12)
    11.0
    """
    non_negative(mean=mean)
    count(n=n)
    return mean * float((1 / np.arange(1, n + 1)).sum())


def lognormal_mean_max(median: float, sigma: float, n: int) -> float:
    """Return the mean of the largest of n log-normal times, median exp(sigma Z), by quadrature over Z.

    >>> round(lognormal_mean_max(2.0, 0.5, 1) / (2.0 * math.exp(0.125)), 12)
    1.0
    """
    non_negative(median=median, sigma=sigma)
    return median * _integral(np.exp(sigma * _SCORES), n, n)


def mean_kth(quantile: Quantile, k: int, n: int, *, upper: Quantile | None = None) -> float:
    """Return the mean of the k-th smallest of n independent values, in the unit of `quantile`.

    Parameters
    ----------
    quantile
        Q(u), the value not exceeded with probability u.
    k, n
        Which of how many, 1 <= k <= n. Over-provisioning that keeps the first N of N' waits for k = N, n = N'.
    upper
        Q(1 - s) as a function of s, down to s = 1e-299. Needed for heavy tails only.

    Raises
    ------
    ValueError
        When k is not one of 1 .. n, or when more than 1e-4 of the mean lies beyond the last quantile numbers can name.

    >>> round(mean_kth(lambda u: u, 2, 3), 9)  # uniform: k / (n + 1)
    0.5
    """
    below = quantile(np.clip(ndtr(_SCORES), np.finfo(float).tiny, 1 - _EDGE))
    s = ndtr(-_SCORES)
    values = below if upper is None else np.where(_SCORES < 0, below, upper(s))
    found = _integral(values, k, n)
    edge = _EDGE if upper is None else float(s[-1])
    beyond = float(values[-1]) * -math.expm1(n * math.log1p(-edge)) if k == n else 0.0
    if not abs(beyond) <= _TAIL_SHARE * abs(found):
        way = "give Q(1 - s) as `upper`" if upper is None else "its mean is infinite or nearly: cap the law"
        raise ValueError(
            f"about {beyond / found:.2g} of the mean lies beyond the quantile at s = {edge:.2g}, bound {_TAIL_SHARE}: {way}"
        )
    return found


def mean_max(quantile: Quantile, n: int, *, upper: Quantile | None = None) -> float:
    """Return the mean of the largest of n independent values: int n u^(n - 1) Q(u) du. See :func:`mean_kth`."""
    return mean_kth(quantile, n, n, upper=upper)


def slot_use(mean_s: float, longest_s: float) -> float:
    """Return mean / max: the share of slot time a synchronous batch uses when each slot waits for the longest.

    >>> slot_use(2.0, 8.0)
    0.25
    """
    positive(mean_s=mean_s, longest_s=longest_s)
    if longest_s < mean_s * (1 - 1e-12):
        raise ValueError(f"longest_s = {longest_s} must be at least mean_s = {mean_s}")
    return mean_s / longest_s


def _integral(values: F64, k: int, n: int) -> float:
    """Trapezoid rule for values at the scores, weighted by the density of the k-th of n."""
    if not 1 <= k <= n:
        raise ValueError(f"k = {k} must be one of 1 .. n = {n}")
    ways = gammaln(n + 1) - gammaln(k) - gammaln(n - k + 1)
    logs = ways + (k - 1) * _LOG_BELOW + (n - k) * _LOG_BELOW[::-1] - _SCORES**2 / 2
    step = _SCORES[1] - _SCORES[0]
    weights = np.exp(logs) * step / math.sqrt(2 * math.pi)
    return float(weights @ values)
