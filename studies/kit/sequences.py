"""Confidence sequences: intervals that hold at every number of seeds at once, so one may look after each and stop.

An interval for a fixed n, looked at again and again, excludes the truth sooner or later. A confidence sequence excludes it
at any look with probability at most alpha, however often and whenever one looks (Ville's inequality for a non-negative
martingale that starts at 1). Here

* shares of bounded outcomes, and so rates, paired rates and quantiles: a capital that bets on the next outcome, mixed
  uniformly over what is staked. For yes and no that is the beta-binomial mixture (Ville, 1939; Robbins, 1970), for
  numbers in [0, 1] the mixed capital of Waudby-Smith and Ramdas (JRSS B 86, 2024);
* means of normal differences with unknown spread: the t mixture (Robbins and Siegmund, 1970; Lai, 1976; in this form Wang
  and Ramdas, 2024), for logs likewise.

Each end is wrong with probability at most alpha / 2: exactly so for shares, by symmetry for means.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

__all__ = [
    "PRECISION",
    "log_capital",
    "log_capital_of_counts",
    "log_t_mixture",
    "mixture_rank",
    "paired_rates",
    "quantile_ends",
    "rate_ends",
    "t_ends",
]

Floats = NDArray[np.float64]

PRECISION = 1.0
"""1 / variance of the mean, in standard deviations, that the t mixture is prepared for: effects of about one."""
_NEAR = 1e-12  # how near to 0 or 1 a mean is looked for
_MOST_NODES = 4096  # of Gauss and Legendre, exact for 8190 outcomes


def log_capital_of_counts(happened: float, missed: float, mean: float) -> float:
    """Return the log of what betting that a share exceeds ``mean`` makes of 1, from counts of yes and no.

    The capital int_m^1 (q / m)^happened ((1 - q) / (1 - m))^missed dq / (1 - m): the likelihood ratio against a share of
    m, mixed over all greater ones. It is a martingale where the share is m and a supermartingale where it is less, so it
    ever reaches 1 / alpha with probability alpha at most.

    >>> round(math.exp(log_capital_of_counts(8, 0, 0.5)), 2)  # (2 ** 9 - 1) / 9
    56.78
    """
    tail = special.betaincc(happened + 1, missed + 1, mean)
    if tail <= 0:
        return -math.inf
    beta = special.betaln(happened + 1, missed + 1) + math.log(tail)
    return float(beta - special.xlogy(happened, mean) - (missed + 1) * math.log1p(-mean))


def log_capital(outcomes: Floats, mean: float) -> float:
    """Return the same for numbers in [0, 1]  # outcomes [n].

    The capital int_0^1 prod_i (1 + u (x_i / m - 1)) du: the share u of it is staked on the next outcome, uniformly mixed. A
    factor has mean 1 where that of the outcomes is m, whatever else their distribution, and less where it is less. A
    polynomial of degree n in u, so the sum over ceil((n + 1) / 2) nodes is exact. For outcomes of 0 and 1 it equals
    ``log_capital_of_counts``.
    """
    values, counts = np.unique(outcomes, return_counts=True)
    return _log_capital(tuple(values.tolist()), tuple(counts.tolist()), mean)


def _log_capital(values: Sequence[float], counts: Sequence[float], mean: float) -> float:
    nodes, weights = _legendre(min(_MOST_NODES, math.ceil((sum(counts) + 1) / 2)))
    factors = 1 + np.outer(np.asarray(values) / mean - 1, nodes)  # [values, nodes], positive inside (0, 1)
    return float(special.logsumexp(np.asarray(counts) @ np.log(factors), b=weights))


@lru_cache(maxsize=64)
def _legendre(n: int) -> tuple[Floats, Floats]:
    """Return nodes and weights on (0, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (nodes + 1) / 2, weights / 2


def rate_ends(happened: float, n: float, alpha: float = 0.05) -> tuple[float, float]:
    """Return the ends of the sequence for a share at n outcomes.

    The lower end is the least share that betting upwards has not refuted at alpha / 2; the capital falls as the share
    in question grows, so all lesser ones are refuted with it. The upper end is that of the complement.

    >>> [round(end, 3) for end in rate_ends(8, 8)], [round(end, 3) for end in rate_ends(16, 16)]
    ([0.526, 1.0], [0.72, 1.0])
    """
    missed = n - happened
    return _least(happened, missed, alpha), 1.0 - _least(missed, happened, alpha)


def _least(happened: float, missed: float, alpha: float) -> float:
    needed = math.log(2 / alpha)
    return _last(lambda mean: log_capital_of_counts(happened, missed, mean) - needed, happened / (happened + missed))


def _last(excess: Callable[[float], float], seen: float) -> float:
    """Return the mean up to which the capital exceeds what is needed; it falls with the mean. ``seen`` is a start."""
    top = min(seen, 1 - _NEAR)
    if top <= _NEAR or excess(_NEAR) < 0:
        return 0.0
    return top if excess(top) >= 0 else float(optimize.brentq(excess, _NEAR, top))


def paired_rates(
    both: float, treated_only: float, control_only: float, neither: float, alpha: float = 0.05
) -> tuple[float, float]:
    """Return the ends of the sequence for a difference of two paired shares, treated minus control.

    A pair is worth 1 where treated alone happened, 0 where control alone did, 1/2 where they agree, and the difference is
    2 E - 1; so any difference can be tested, whatever the correlation within pairs. At 0 agreeing pairs change nothing
    and the capital is that of the beta-binomial mixture on the discordant ones, as in McNemar's test.

    >>> paired_rates(0, 8, 0, 4)[0] > 0, paired_rates(0, 7, 0, 4)[0] > 0
    (True, False)
    """
    agree = both + neither

    def least(up: float, down: float) -> float:
        needed, values = math.log(2 / alpha), (0.0, 0.5, 1.0)

        seen = (up + agree / 2) / (up + agree + down)
        return _last(lambda mean: _log_capital(values, (down, agree, up), mean) - needed, seen)

    return 2 * least(treated_only, control_only) - 1, 1 - 2 * least(control_only, treated_only)


def mixture_rank(n: int, alpha: float = 0.05) -> int:
    """Return the k for which x(k) and x(n + 1 - k) are the ends of the sequence for a median; 0 when there is none.

    That n + 1 - k of n lie beyond a point refutes that the median is short of it.

    >>> mixture_rank(7), mixture_rank(8), mixture_rank(20), mixture_rank(256)
    (0, 1, 4, 102)
    """
    needed = math.log(2 / alpha)
    beyond = next(
        (count for count in range(n // 2, n + 1) if log_capital_of_counts(count, n - count, 0.5) >= needed), n + 1
    )
    return n + 1 - beyond


def quantile_ends(least: Floats, most: Floats, alpha: float = 0.05) -> tuple[float, float]:
    """Return the ends of the sequence for a median of units known to lie between ``least`` and ``most``  # [n], [n].

    Whether a unit lies beyond a point is yes or no, so nothing is assumed of the distribution; ``inf`` is allowed. When n
    is too small for alpha the interval is the whole line.
    """
    k = mixture_rank(len(most), alpha)
    if k == 0:
        return -math.inf, math.inf
    return float(np.sort(least)[k - 1]), float(np.sort(most)[len(most) - k])


def log_t_mixture(differences: Floats, precision: float = PRECISION) -> float:
    """Return the log of the t mixture against a mean of 0, for normal differences of any spread  # [n].

    With S the sum, V the sum of squares and c = ``precision``,

        sqrt(c / (n + c)) (1 - S^2 / ((n + c) V))^(-n / 2):

    the likelihood ratio of all the t statistics so far, mixed over means of N(0, 1 / c) standard deviations. It is 1 at
    n = 1 and a martingale at a mean of 0, whatever the spread (Wang and Ramdas, 2024; it does not depend on the unit).
    """
    n = len(differences)
    total, squares = float(differences.sum()), float(np.square(differences).sum())
    inside = 1.0 if squares == 0 else 1 - total**2 / ((n + precision) * squares)
    return 0.5 * math.log(precision / (n + precision)) - 0.5 * n * math.log(inside)


def t_ends(differences: Floats, alpha: float = 0.05, precision: float = PRECISION) -> tuple[float, float]:
    """Return the ends of the sequence for the mean of normal differences  # [n].

    Where the t mixture stays below 1 / alpha: |mean - mu| < s sqrt(K / (n - K)), s the standard deviation with n below,
    K = (n + c) (1 - (alpha^2 c / (n + c))^(1 / n)); the whole line while K >= n.

    >>> [round(end, 2) for end in t_ends(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))]
    [-0.66, 7.66]
    """
    n = len(differences)
    reach = (n + precision) * -math.expm1(math.log(alpha**2 * precision / (n + precision)) / n)
    if reach >= n:
        return -math.inf, math.inf
    half = float(np.std(differences)) * math.sqrt(reach / (n - reach))
    centre = float(np.mean(differences))
    return centre - half, centre + half
