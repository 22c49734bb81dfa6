"""Intervals and exact tests, as functions of counts and arrays.

Every interval takes ``alpha`` and is equal-tailed: each end is wrong with probability about alpha / 2. What each one
was measured to do at 8 and 20 units stands in ``tests/studies/kit/test_calibration.py``.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

__all__ = [
    "Limits",
    "auroc",
    "auroc_interval",
    "clopper_pearson",
    "geometric_rank",
    "mcnemar",
    "newcombe_paired",
    "normal_quantile",
    "order_statistic",
    "order_statistic_coverage",
    "paired_t",
    "sign_flip_floor",
    "trend_permutation",
    "wilson",
]

Floats = NDArray[np.float64]
Limits = Callable[[float, float, float], tuple[float, float]]
"""Two limits for a share, from (count, n, alpha)."""


def normal_quantile(alpha: float) -> float:
    """Return z with P(|Z| > z) = alpha.

    >>> round(normal_quantile(0.05), 4)
    1.96
    """
    return float(-special.ndtri(alpha / 2))


def wilson(count: float, n: float, alpha: float = 0.05) -> tuple[float, float]:
    """Wilson's score limits for a share: the p with |count/n - p| = z sqrt(p (1 - p) / n).

    Short, and right on average over p; a single tail can exceed alpha / 2 (.057 at n=8, p=.05). Used for drawing.

    >>> [round(end, 4) for end in wilson(0, 64)]
    [0.0, 0.0566]
    """
    z2 = normal_quantile(alpha) ** 2
    share = count / n
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * share * (1 - share) / n + z2 * z2 / (4 * n * n)) / (1 + z2 / n)
    return (0.0 if count == 0 else max(0.0, centre - half)), (1.0 if count == n else min(1.0, centre + half))


def clopper_pearson(count: float, n: float, alpha: float = 0.05) -> tuple[float, float]:
    """Exact (beta) limits for a share: neither tail exceeds alpha / 2 at any p. Clopper and Pearson, 1934.

    A count between two whole numbers gives limits between theirs; planning and clusters ask for one.

    >>> [round(end, 4) for end in clopper_pearson(0, 64)]
    [0.0, 0.056]
    """
    low = 0.0 if count == 0 else float(special.betaincinv(count, n - count + 1, alpha / 2))
    high = 1.0 if count == n else float(special.betaincinv(count + 1, n - count, 1 - alpha / 2))
    return low, high


def mcnemar(treated_only: float, control_only: float) -> float:
    """Two-sided exact McNemar p: a fair coin for each discordant pair, the smaller tail doubled.

    Counts between two whole numbers (of clusters) take the tail along the incomplete beta function.

    >>> mcnemar(6, 0), mcnemar(5, 0), mcnemar(3, 3)
    (0.03125, 0.0625, 1.0)
    """
    fewer, discordant = min(treated_only, control_only), treated_only + control_only
    if float(fewer).is_integer() and float(discordant).is_integer():
        tail = special.bdtr(int(fewer), int(discordant), 0.5)
    else:
        tail = special.betainc(discordant - fewer, fewer + 1, 0.5)
    return min(1.0, 2.0 * float(tail))


def newcombe_paired(
    both: float,
    treated_only: float,
    control_only: float,
    neither: float,
    alpha: float = 0.05,
    limits: Limits = clopper_pearson,
) -> tuple[float, float]:
    """Newcombe's square-and-add limits for a difference of paired shares, treated minus control.

    Method 10 of Newcombe (Statistics in Medicine 17, 1998): the limits of the two shares are joined with their
    correlation phi (its numerator reduced by n/2 where positive). ``limits`` are the limits of one share: with
    ``wilson`` this is the published method, whose tails reach .03 to .11 at n=8; with exact ones (the default) they
    stay near .025.

    >>> [round(end, 3) for end in newcombe_paired(36, 12, 2, 0, limits=wilson)]  # 48/50 against 38/50
    [0.057, 0.34]
    """
    n = both + treated_only + control_only + neither
    treated, control = (both + treated_only) / n, (both + control_only) / n
    low1, high1 = limits(both + treated_only, n, alpha)
    low2, high2 = limits(both + control_only, n, alpha)
    phi = _phi(both, treated_only, control_only, neither)
    difference = treated - control
    below = _square_and_add(treated - low1, high2 - control, phi)
    above = _square_and_add(control - low2, high1 - treated, phi)
    return difference - below, difference + above


def _phi(both: float, treated_only: float, control_only: float, neither: float) -> float:
    """Phi of a two by two table, pulled towards 0 when positive, as in method 10."""
    margins = (both + treated_only) * (control_only + neither) * (both + control_only) * (treated_only + neither)
    if margins == 0:
        return 0.0
    numerator: float = both * neither - treated_only * control_only
    if numerator > 0:
        numerator = max(numerator - (both + treated_only + control_only + neither) / 2, 0.0)
    return numerator / math.sqrt(margins)


def _square_and_add(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))


def paired_t(differences: Floats, alpha: float = 0.05) -> tuple[float, float]:
    """Student's interval for the mean of differences  # [n].

    >>> [round(end, 3) for end in paired_t(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))]
    [1.537, 5.463]
    """
    n = len(differences)
    half = float(special.stdtrit(n - 1, 1 - alpha / 2)) * float(np.std(differences, ddof=1)) / math.sqrt(n)
    centre = float(np.mean(differences))
    return centre - half, centre + half


def geometric_rank(n: int, alpha: float = 0.05) -> int:
    """Return the largest k with P(Binomial(n, 1/2) < k) <= alpha / 2; 0 when there is none."""
    tails = special.bdtr(np.arange(n), n, 0.5)  # P(X <= j), j = 0 .. n-1
    # The tolerance keeps a tail that equals alpha / 2 up to rounding.
    return int(np.searchsorted(tails, alpha / 2 * (1 + 1e-12), side="right"))


def order_statistic(values: Floats, alpha: float = 0.05) -> tuple[float, float]:
    """Interval for a median from order statistics x(k) and x(n+1-k); no assumption about the distribution.

    ``values`` may hold ``inf`` (a time not seen by the end of the run). When n is too small for alpha the interval is
    the whole line.

    >>> order_statistic(np.arange(1.0, 9.0)), order_statistic(np.arange(1.0, 21.0))
    ((1.0, 8.0), (6.0, 15.0))
    """
    k = geometric_rank(len(values), alpha)
    if k == 0:
        return -math.inf, math.inf
    k = min(k, (len(values) + 1) // 2)
    ordered = np.sort(values)
    return float(ordered[k - 1]), float(ordered[len(values) - k])


def order_statistic_coverage(n: int, alpha: float = 0.05) -> float:
    """Exact coverage of ``order_statistic`` for a continuous distribution.

    >>> round(order_statistic_coverage(8), 4), round(order_statistic_coverage(20), 4)
    (0.9922, 0.9586)
    """
    k = geometric_rank(n, alpha)
    return 1.0 if k == 0 else 1.0 - 2.0 * float(special.bdtr(k - 1, n, 0.5))


def sign_flip_floor(n: int) -> float:
    """Smallest two-sided p of an exact sign-flip test on n units: 2 / 2**n.

    >>> sign_flip_floor(5), sign_flip_floor(6)
    (0.0625, 0.03125)
    """
    return 2.0 / 2.0**n


def auroc(positive: Floats, negative: Floats) -> float:
    """P(positive > negative) + P(equal) / 2 over all pairs: the rank statistic.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ordered = np.sort(negative)
    wins = np.searchsorted(ordered, positive, side="left")
    ties = np.searchsorted(ordered, positive, side="right") - wins
    return float((wins + ties / 2).sum() / (len(positive) * len(negative)))


def auroc_interval(area: float, m: int, n: int, alpha: float = 0.05) -> tuple[float, float]:
    """Limits for an AUROC of m positive and n negative scores, also for an area of 0 or 1.

    Newcombe's method 5 (Statistics in Medicine 25, 2006): the areas A with |area - A| = t sqrt(V(A)), where V is
    Hanley and McNeil's variance with both sample sizes in its bracket replaced by their mean,
    V = A (1 - A) (1 + s (1 - A) / (2 - A) + s A / (1 + A)) / (m n),  s = (m + n) / 2 - 1.
    The normal quantile of the paper gives tails of .02 to .05 at 8 + 8, so t has min(m, n) - 1 degrees of freedom here.

    >>> [round(end, 2) for end in auroc_interval(1.0, 8, 8)]
    [0.67, 1.0]
    """
    quantile = float(special.stdtrit(min(m, n) - 1, 1 - alpha / 2))
    spread = (m + n) / 2 - 1

    def gap(candidate: float) -> float:
        inner = 1 + spread * (1 - candidate) / (2 - candidate) + spread * candidate / (1 + candidate)
        return abs(area - candidate) - quantile * math.sqrt(candidate * (1 - candidate) * inner / (m * n))

    # At an area of 1 the variance vanishes at the estimate as well: the wanted root is the other one.
    edge = 1e-9
    below, above = area - edge, area + edge
    low = 0.0 if below <= 0 else area if gap(below) >= 0 else float(optimize.brentq(gap, 0.0, below))
    high = 1.0 if above >= 1 else area if gap(above) >= 0 else float(optimize.brentq(gap, above, 1.0))
    return low, high


def trend_permutation(outcomes: NDArray[np.bool_]) -> float:
    """Two-sided exact p of a trend over ordered arms, permuting the arms within each seed  # outcomes [n, arms].

    The statistic is the sum over successes of the arm's rank (0, 1, ...). Given how many arms succeeded at a seed,
    every choice of that many arms is equally likely; the null distribution is the convolution over seeds. The smaller
    tail is doubled.

    >>> trend_permutation(np.array([[False, True]] * 6))
    0.03125
    """
    arms = outcomes.shape[1]
    ranks = np.arange(arms)
    null = np.ones(1)
    for row in outcomes:
        null = np.convolve(null, _subset_sums(arms, int(row.sum())))
    observed = int((outcomes * ranks).sum())
    lower, upper = float(null[: observed + 1].sum()), float(null[observed:].sum())
    return min(1.0, 2.0 * min(lower, upper))


def _subset_sums(arms: int, size: int) -> Floats:
    """Distribution of the sum of ``size`` of the ranks 0 .. arms-1 drawn without replacement  # [total + 1]."""
    ways = np.zeros((size + 1, arms * (arms - 1) // 2 + 1))
    ways[0, 0] = 1.0
    for rank in range(arms):
        for chosen in range(min(size, rank + 1), 0, -1):
            ways[chosen, rank:] += ways[chosen - 1, : ways.shape[1] - rank]
    return ways[size] / ways[size].sum()
