"""Latency laws of one tool call or one stretch of generation, in seconds, as inverse distribution functions.

A law is asked for a quantile, never for a draw: the uniform comes from an indexed stream, so that the same rollout takes
the same time in every arm; :func:`quantiles_s` asks for many at once. A graph checks the laws it is given and names the
node; see :meth:`problem`. Laws are configs, so that they stand in records.

With a timeout tau after which a call is tried anew, as often as it takes, a call that would last X takes
``mean_min_s(law, tau) / (1 - survival(law, tau))`` s in the mean: every try costs E[min(X, tau)], and the number of tries
is geometric (Wald).
"""

import math
from bisect import bisect_right
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.mdp.latency_laws import (
    EDGE,
    CappedPareto,
    Constant,
    Empirical,
    Exponential,
    Latency,
    LogNormal,
    not_finite,
)
from sim.records.config import config

__all__ = [
    "Capped",
    "CappedPareto",
    "Constant",
    "Empirical",
    "Exponential",
    "Latency",
    "LogNormal",
    "Mixture",
    "mean_min_s",
    "percentile_s",
    "quantiles_s",
    "survival",
    "survivals",
]

F64 = NDArray[np.float64]

_TOLERANCE = 1e-9  # of a sum of weights


@config
class Capped(Latency):
    """min(T, cap) of another law's T: what would take longer takes the cap, an atom there."""

    uncapped: Latency
    """The law without the cap."""
    cap: float
    """Longest duration, s."""

    def variance(self) -> float:
        """Return the variance, s^2."""
        return max(self.moment_min(2, math.inf) - self.mean_s() ** 2, 0.0)

    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, cap, tau)^k], s^k."""
        return self.uncapped.moment_min(k, min(self.cap, tau))

    def survival(self, t: F64) -> F64:
        """Return P(min(T, cap) > t) for each `t`, s."""
        return np.where(t < self.cap, self.uncapped.survival(t), 0.0)

    def quantile_s(self, u: float) -> float:
        """Return the duration drawn by the uniform `u`, s."""
        return min(self.uncapped.quantile_s(u), self.cap)

    def quantiles_s(self, u: F64) -> F64:
        """Return the durations drawn by the uniforms `u`, s."""
        return np.minimum(self.uncapped.quantiles_s(u), self.cap)

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        return not_finite("cap", self.cap) or self.uncapped.problem()


@config
class Mixture(Latency):
    """One of several laws, chosen by weight: P(T > t) = sum_i w_i P_i(T > t).

    The quantile function of a mixture has no closed form. :meth:`quantile_s` is therefore a *draw* from one uniform u and
    not monotone in it: u falls into a part's share of [0, 1), and the part's quantile is taken where in the share u fell.
    For a continuous u the law of the draw is exactly that of the mixture. A uniform with steps of 2^-24 gives a part of
    weight w steps of 2^-24 / w, so a rare part's tail ends earlier. :func:`percentile_s` gives the quantile itself.
    """

    parts: tuple[tuple[float, Latency], ...]
    """(weight, law) of each part; the weights sum to 1."""

    @cached_property
    def _chosen(self) -> tuple[tuple[float, Latency], ...]:
        return tuple((w, law) for w, law in self.parts if w > 0)

    @cached_property
    def _starts(self) -> list[float]:
        """Where each part's share of [0, 1) begins."""
        return [0.0, *accumulate(w for w, _ in self._chosen[:-1])]

    def mean_s(self) -> float:
        """Return the expected duration, s."""
        return math.fsum(w * law.mean_s() for w, law in self._chosen)

    def variance(self) -> float:
        """Return the variance within the parts and between their means, s^2."""
        mean = self.mean_s()
        if mean == math.inf:
            return math.inf
        return math.fsum(w * (law.variance() + (law.mean_s() - mean) ** 2) for w, law in self._chosen)

    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, tau)^k], s^k."""
        return math.fsum(w * law.moment_min(k, tau) for w, law in self._chosen)

    def survival(self, t: F64) -> F64:
        """Return P(T > t) for each `t`, s."""
        return np.sum([w * law.survival(t) for w, law in self._chosen], axis=0)

    def quantile_s(self, u: float) -> float:
        """Return the duration drawn by the uniform `u`, s; not monotone in `u`, see the class."""
        i = bisect_right(self._starts, u) - 1
        weight, law = self._chosen[i]
        return law.quantile_s(min((u - self._starts[i]) / weight, 1 - EDGE))

    def quantiles_s(self, u: F64) -> F64:
        """Return the durations drawn by the uniforms `u`, s; not monotone in `u`, see the class."""
        part, found = np.searchsorted(self._starts, u, side="right") - 1, np.empty(u.shape)
        for i, (weight, law) in enumerate(self._chosen):
            here = part == i
            found[here] = law.quantiles_s(np.minimum((u[here] - self._starts[i]) / weight, 1 - EDGE))
        return found

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        for i, (weight, law) in enumerate(self.parts):
            if weight < 0:
                return f"latency weight {weight} of part {i} is negative; the weights of a mixture lie in [0, 1]"
            if law.problem():
                return f"part {i}: {law.problem()}"
        total = math.fsum(weight for weight, _ in self.parts)
        if abs(total - 1) > _TOLERANCE:
            return f"latency weights of the {len(self.parts)} parts sum to {total:.12g}, not 1; divide them by the sum"
        return None


def quantiles_s(law: Latency, u: ArrayLike) -> F64:
    """Return the duration not exceeded with each probability `u` [...], s: ``law.quantile_s`` to rounding, many at once.

    >>> quantiles_s(LogNormal(.8, .6), [.5, .5]).tolist()
    [0.8, 0.8]
    """
    return law.quantiles_s(np.asarray(u, np.float64))


def mean_min_s(law: Latency, tau: float) -> float:
    """Return E[min(T, tau)], s: what a call costs that is given up after `tau` s.

    >>> mean_min_s(CappedPareto(1.0, 2.0, None), 4.0)
    1.75

    Raises
    ------
    ValueError
        When `tau` is negative or NaN.
    """
    return law.moment_min(1, _at_least_0(tau))


def survival(law: Latency, tau: float) -> float:
    """Return P(T > tau): how often a call is not back after `tau` s; one back at exactly `tau` is.

    >>> survival(CappedPareto(1.0, 2.0, 8.0), 4.0), survival(CappedPareto(1.0, 2.0, 8.0), 8.0)
    (0.0625, 0.0)

    Raises
    ------
    ValueError
        When `tau` is negative or NaN.
    """
    return float(law.survival(np.asarray(_at_least_0(tau))))


def survivals(law: Latency, t: ArrayLike) -> F64:
    """Return P(T > t) for each of the times `t` [...], s."""
    return law.survival(np.asarray(t, np.float64))


def percentile_s(law: Latency, p: float) -> float:
    """Return the least t with P(T <= t) >= `p`, s, by bisection of :func:`survival` to neighbouring floats: slow.

    Unlike ``law.quantile_s`` it is a quantile of every law, mixtures too.

    >>> round(percentile_s(Mixture(((0.5, Constant(1.0)), (0.5, Exponential(2.0)))), 0.75), 6)
    1.386294

    Raises
    ------
    ValueError
        When `p` is outside [0, 1).
    """
    if not 0 <= p < 1:
        raise ValueError(f"p = {p} is outside [0, 1); a law without a cap has no longest duration")
    low, high = 0.0, 1.0
    if 1 - survival(law, low) >= p:
        return 0.0
    while 1 - survival(law, high) < p:
        low, high = high, 2 * high
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if 1 - survival(law, middle) >= p else (middle, high)
    return high


def _at_least_0(tau: float) -> float:
    if not tau >= 0:  # NaN fails this too
        raise ValueError(f"tau = {tau}; a time to wait is at least 0 s")
    return tau
