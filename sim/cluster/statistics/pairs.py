"""Fewer replicas for the same answer: arms that share their draws, and draws whose mean is known."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sim.cluster.statistics.intervals import checked, require_finite_variance, student_half

__all__ = ["Controlled", "PairedDifference", "control_variate", "paired_difference"]


@dataclass(frozen=True)
class PairedDifference:
    """Mean difference of two arms over replicas that share their random numbers."""

    mean: float
    """Of a - b."""
    low: float
    """Lower limit."""
    high: float
    """Upper limit."""
    n: int
    """Pairs."""
    variance_reduction: float
    """(var a + var b) / var(a - b): how many times more replicas two independent arms would take; below 1, pairing hurt."""


def paired_difference(
    a: ArrayLike, b: ArrayLike, *, alpha: float = 0.05, tail_index: float | None = None, variance: float | None = None
) -> PairedDifference:
    """Return Student's interval for the mean of a - b, replica by replica.

    Parameters
    ----------
    a, b
        One number per replica and arm, [n] each; a[i] and b[i] come from the same draws.
    alpha
        Probability that the limits miss the mean difference.
    tail_index, variance
        What is known of the law that drives the values; None where unknown.

    Raises
    ------
    ValueError
        For fewer than 5 pairs, a value that is not finite, an infinite variance, or differences that are all the same.

    >>> found = paired_difference([1.0, 3.0, 2.0, 5.0, 4.0], [0.0, 2.0, 1.0, 4.0, 2.0])
    >>> found.mean, round(found.variance_reduction, 6)
    (1.2, 23.5)
    """
    require_finite_variance(tail_index, variance)
    x, y = checked("a", a), checked("b", b)
    if len(x) != len(y):
        raise ValueError(f"a has {len(x)} replicas and b has {len(y)}: pairs need as many of both")
    d = x - y
    if np.ptp(d) == 0:
        raise ValueError(f"all {len(d)} differences are {d[0]}: the arms do not differ by chance; check that both ran")
    half = student_half(float(d.std(ddof=1)), len(d), len(d) - 1, alpha)
    centre = float(d.mean())
    reduction = float((x.var(ddof=1) + y.var(ddof=1)) / d.var(ddof=1))
    return PairedDifference(centre, centre - half, centre + half, len(d), reduction)


@dataclass(frozen=True)
class Controlled:
    """A mean corrected by a control whose mean is known."""

    mean: float
    """mean(y) - slope (mean(x) - E[x])."""
    low: float
    """Lower limit."""
    high: float
    """Upper limit."""
    n: int
    """Replicas."""
    slope: float
    """Regression coefficient of y on x."""
    variance_reduction: float
    """Variance of y over that left by the regression, about 1 / (1 - correlation^2); below 1, the control did not help."""


def control_variate(
    y: ArrayLike,
    x: ArrayLike,
    mean_x: float,
    *,
    alpha: float = 0.05,
    tail_index: float | None = None,
    variance: float | None = None,
) -> Controlled:
    """Return the mean of y at x = E[x] on the regression line of y on x, with its interval.

        y_i = m + slope (x_i - E[x]) + e_i,   se^2 = s_e^2 (1 / n + (mean(x) - E[x])^2 / sum (x - mean(x))^2),

    with s_e^2 and t on n - 2 degrees of freedom: exact for normal pairs. Source: Lavenberg and Welch, "A perspective on
    the use of control variables to increase the efficiency of Monte Carlo simulations" (Management Science 1981).

    Parameters
    ----------
    y
        What is asked for, one number per replica, [n].
    x
        The control, of the same replicas, [n]: mean length drawn, mean latency drawn.
    mean_x
        E[x], known from the law.
    alpha
        Probability that the limits miss the mean.
    tail_index, variance
        What is known of the laws that drive x and y; None where unknown.

    Raises
    ------
    ValueError
        For fewer than 5 replicas, a value that is not finite, a control that never varies or explains all of y, or an
        infinite variance.
    """
    require_finite_variance(tail_index, variance)
    y, x = checked("y", y), checked("x", x)
    n = len(y)
    if len(x) != n or not math.isfinite(mean_x):
        raise ValueError(f"y has {n} values, x has {len(x)}, mean_x = {mean_x}: need as many, and a finite mean")
    dx, dy = x - x.mean(), y - y.mean()
    sxx = float(dx @ dx)
    if sxx == 0:
        raise ValueError(f"all {n} values of x are {x[0]}: a control that never varies controls nothing")
    slope = float(dx @ dy) / sxx
    residual = float(((dy - slope * dx) ** 2).sum()) / (n - 2)
    total = float(dy @ dy) / (n - 1)
    if residual <= 1e-24 * total or total == 0:
        raise ValueError(f"y is a line in x, or constant, over all {n} replicas: no spread is left for an interval")
    off = float(x.mean()) - mean_x
    centre = float(y.mean()) - slope * off
    half = student_half(math.sqrt(residual * (1 / n + off**2 / sxx)), 1, n - 2, alpha)
    return Controlled(centre, centre - half, centre + half, n, slope, total / residual)
