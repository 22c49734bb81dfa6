"""What a latency law is, and the five that stand alone; :mod:`sim.mdp.latency` composes them.

Every law answers in closed form: E[min(T, tau)^k] for k = 1, 2 gives the mean (tau = inf), the variance and what a timeout
leaves of both; P(T > t) gives the chance to run into one.
"""

import bisect
import math
from abc import ABC, abstractmethod
from functools import cached_property
from statistics import NormalDist
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator
from scipy.special import gammainc, log_ndtr, ndtr, ndtri

from sim.records.config import config

__all__ = ["CappedPareto", "Constant", "Empirical", "Exponential", "Latency", "LogNormal", "not_finite"]

F64 = NDArray[np.float64]

EDGE = 2.0**-53  # closest a uniform is taken to 0 or 1 where the quantile there is infinite


class Latency(ABC):
    """A law of a duration T >= 0, s. A law of one's own is a subclass, decorated with `config` if it goes on record."""

    def mean_s(self) -> float:
        """Return the expected duration, s; inf where it is infinite."""
        return self.moment_min(1, math.inf)

    @abstractmethod
    def variance(self) -> float:
        """Return the variance, s^2; inf where it is infinite."""

    @abstractmethod
    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, tau)^k] for k = 1 or 2 and tau in [0, inf], s^k."""

    @abstractmethod
    def survival(self, t: F64) -> F64:
        """Return P(T > t) for each `t` [...], s."""

    @abstractmethod
    def quantile_s(self, u: float) -> float:
        """Return the duration drawn by the uniform `u` in [0, 1), s."""

    @abstractmethod
    def quantiles_s(self, u: F64) -> F64:
        """Return the durations drawn by the uniforms `u` [...], s."""

    @abstractmethod
    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""


@config
class Constant(Latency):
    """Always the same time."""

    seconds: float
    """Duration, s."""

    def variance(self) -> float:
        """Return the variance, s^2."""
        return 0.0

    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, tau)^k], s^k."""
        return min(self.seconds, tau) ** k

    def survival(self, t: F64) -> F64:
        """Return P(T > t) for each `t`, s."""
        return (t < self.seconds).astype(np.float64)

    def quantile_s(self, u: float) -> float:
        """Return the duration not exceeded with probability `u`, s."""
        return self.seconds

    def quantiles_s(self, u: F64) -> F64:
        """Return the duration not exceeded with each probability `u`, s."""
        return np.full(u.shape, self.seconds)

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        return not_finite("seconds", self.seconds)


@config
class Exponential(Latency):
    """Memoryless: P(T > t) = exp(-t / mean)."""

    mean: float
    """Expected duration, s."""

    def mean_s(self) -> float:
        """Return the expected duration, s."""
        return self.mean

    def variance(self) -> float:
        """Return the variance, s^2."""
        return self.mean**2

    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, tau)^k] = k! mean^k P(k, tau / mean), s^k; P is the regularised incomplete gamma function."""
        if self.mean == 0:
            return 0.0
        return math.factorial(k) * self.mean**k * float(gammainc(k, tau / self.mean))

    @np.errstate(over="ignore")  # t over a subnormal number is infinite, as it should be
    def survival(self, t: F64) -> F64:
        """Return P(T > t) for each `t`, s."""
        if self.mean == 0:
            return (t < 0).astype(np.float64)
        return np.exp(-np.maximum(t, 0) / self.mean)

    def quantile_s(self, u: float) -> float:
        """Return the duration not exceeded with probability `u`, s."""
        return -self.mean * math.log1p(-u)

    def quantiles_s(self, u: F64) -> F64:
        """Return the duration not exceeded with each probability `u`, s."""
        return -self.mean * np.log1p(-u)

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        return not_finite("mean", self.mean)


@config
class LogNormal(Latency):
    """log T is normal with mean log(median) and standard deviation sigma."""

    median: float
    """Median duration, s."""
    sigma: float
    """Standard deviation of log T."""

    def mean_s(self) -> float:
        """Return the expected duration, s."""
        return self.median * math.exp(self.sigma**2 / 2)

    def variance(self) -> float:
        """Return the variance, s^2: mean^2 (exp(sigma^2) - 1)."""
        return self.mean_s() ** 2 * math.expm1(self.sigma**2)

    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, tau)^k] = E[T^k] Phi(z - k sigma) + tau^k Phi(-z), s^k, with z = log(tau / median) / sigma."""
        if self.sigma == 0 or self.median == 0 or tau == 0:
            return min(self.median, tau) ** k
        if tau == math.inf:
            return self.median**k * math.exp((k * self.sigma) ** 2 / 2)
        z = (math.log(tau) - math.log(self.median)) / self.sigma  # a quotient might underflow
        below = math.exp((k * self.sigma) ** 2 / 2 + float(log_ndtr(z - k * self.sigma)))  # one exp: each may overflow
        return self.median**k * below + tau**k * float(ndtr(-z))

    @np.errstate(over="ignore")  # t over a subnormal number is infinite, as it should be
    def survival(self, t: F64) -> F64:
        """Return P(T > t) for each `t`, s."""
        if self.sigma == 0 or self.median == 0:
            return (t < self.median).astype(np.float64)
        positive = t > 0
        z = (np.log(np.where(positive, t, 1.0)) - math.log(self.median)) / self.sigma
        return np.where(positive, ndtr(-z), 1.0)

    def quantile_s(self, u: float) -> float:
        """Return the duration not exceeded with probability `u`, s."""
        inside = min(max(u, EDGE), 1 - EDGE)  # uniforms come in steps of 2**-24 and may be 0
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(inside))

    def quantiles_s(self, u: F64) -> F64:
        """Return the duration not exceeded with each probability `u`, s."""
        return self.median * np.exp(self.sigma * ndtri(np.clip(u, EDGE, 1 - EDGE)))

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        return not_finite("median", self.median) or not_finite("sigma", self.sigma)


def _none_if_infinite(cap: object) -> object:
    return None if isinstance(cap, float) and cap == math.inf else cap


@config
class CappedPareto(Latency):
    """A power law up to a cap: P(T > t) = (scale / t)^alpha for scale <= t < cap, and 0 from the cap on.

    What would exceed the cap takes the cap: an atom of (scale / cap)^alpha there, as of a client that gives up, and not the
    truncated law that spreads it below. Without a cap the mean is infinite for alpha <= 1, the variance for alpha <= 2.
    """

    scale: float
    """Shortest duration, s."""
    alpha: float
    """Exponent of the tail; the smaller, the heavier."""
    cap: Annotated[float | None, BeforeValidator(_none_if_infinite)]
    """Longest duration, s; None or inf for no cap, kept as None, since JSON has no infinity."""

    @property
    def top(self) -> float:
        """The cap, inf for none, s."""
        return math.inf if self.cap is None else self.cap

    def variance(self) -> float:
        """Return the variance, s^2; inf without a cap where alpha <= 2."""
        if self.cap is None and self.alpha > 2:
            return self.scale**2 * self.alpha / ((self.alpha - 1) ** 2 * (self.alpha - 2))
        second = self.moment_min(2, math.inf)
        return math.inf if second == math.inf else max(second - self.mean_s() ** 2, 0.0)

    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, tau)^k] = scale^k (1 + k (r^d - 1) / d), s^k, d = k - alpha, r = min(tau, cap) / scale >= 1."""
        t = min(tau, self.top)
        if t <= self.scale:
            return t**k
        d, log_r = k - self.alpha, math.log(t / self.scale)
        return self.scale**k * (1 + k * (log_r if d == 0 else math.expm1(d * log_r) / d))

    def survival(self, t: F64) -> F64:
        """Return P(T > t) for each `t`, s."""
        return np.where(t < self.top, (self.scale / np.maximum(t, self.scale)) ** self.alpha, 0.0)

    def quantile_s(self, u: float) -> float:
        """Return the duration not exceeded with probability `u`, s."""
        growth = -math.log1p(-min(u, 1 - EDGE)) / self.alpha
        if growth >= math.log(self.top / self.scale):
            return self.top
        return min(self.scale * math.exp(growth), self.top)

    def quantiles_s(self, u: F64) -> F64:
        """Return the duration not exceeded with each probability `u`, s."""
        growth, most = -np.log1p(-np.minimum(u, 1 - EDGE)) / self.alpha, math.log(self.top / self.scale)
        below = np.minimum(self.scale * np.exp(np.minimum(growth, most)), self.top)
        return np.where(growth >= most, self.top, below)

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        for name, value in (("scale", self.scale), ("alpha", self.alpha)):
            if not value > 0:
                return f"latency {name} = {value} of a Pareto law must be above 0"
        if self.cap is None and self.alpha <= 1:
            return (
                f"latency alpha = {self.alpha} without a cap has an infinite mean; give a finite cap or alpha above 1"
            )
        if self.top < self.scale:
            return f"latency cap = {self.cap} lies below the scale {self.scale}, the shortest duration"
        return None


@config
class Empirical(Latency):
    """A replayed trace: each of n recorded durations with probability 1/n, drawn with replacement, kept sorted."""

    values: tuple[float, ...]
    """Recorded durations in ascending order, s; the uniform u draws number floor(u n)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(self.values)))

    @cached_property
    def _array(self) -> F64:
        return np.array(self.values)

    def variance(self) -> float:
        """Return the variance of the recorded values (over n, not n - 1), s^2."""
        mean = self.mean_s()
        return math.fsum((v - mean) ** 2 for v in self.values) / len(self.values)

    def moment_min(self, k: int, tau: float) -> float:
        """Return E[min(T, tau)^k], s^k."""
        return math.fsum(min(v, tau) ** k for v in self.values) / len(self.values)

    def survival(self, t: F64) -> F64:
        """Return P(T > t) for each `t`, s."""
        return 1.0 - np.searchsorted(self._array, t, side="right") / len(self.values)

    def quantile_s(self, u: float) -> float:
        """Return the recorded duration number floor(u n), s."""
        return self.values[min(int(u * len(self.values)), len(self.values) - 1)]

    def quantiles_s(self, u: F64) -> F64:
        """Return the recorded durations number floor(u n), s."""
        return self._array[np.minimum((u * len(self.values)).astype(np.int64), len(self.values) - 1)]

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        if not self.values:
            return "latency values: 0 recorded durations; a replay needs at least 1"
        first = bisect.bisect_left(self.values, 0.0)
        return not_finite(f"values ({first} of {len(self.values)} negative)", self.values[0]) if first else None


def not_finite(name: str, value: float) -> str | None:
    """Return a sentence about `value` unless it is a finite number of at least 0."""
    if math.isnan(value) or math.isinf(value) or value < 0:
        return f"latency {name} = {value} is not a finite number of at least 0"
    return None
