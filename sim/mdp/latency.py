"""Latency laws of one tool call or one stretch of generation, in seconds, as inverse distribution functions.

A law is asked for a quantile, never for a draw: the uniform comes from an indexed stream, so that the same rollout takes
the same time in every arm; :func:`quantiles_s` asks for many at once. A graph checks the laws it is given and names the
node; see :meth:`problem`.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

__all__ = ["Constant", "Exponential", "Latency", "LogNormal", "quantiles_s"]

_EDGE = 2.0**-53


@dataclass(frozen=True)
class Constant:
    """Always the same time."""

    seconds: float
    """Duration, s."""

    def mean_s(self) -> float:
        """Return the expected duration, s."""
        return self.seconds

    def quantile_s(self, u: float) -> float:
        """Return the duration not exceeded with probability `u`, s."""
        return self.seconds

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        return _negative("seconds", self.seconds)


@dataclass(frozen=True)
class Exponential:
    """Memoryless: P(T > t) = exp(-t / mean)."""

    mean: float
    """Expected duration, s."""

    def mean_s(self) -> float:
        """Return the expected duration, s."""
        return self.mean

    def quantile_s(self, u: float) -> float:
        """Return the duration not exceeded with probability `u`, s."""
        return -self.mean * math.log1p(-u)

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        return _negative("mean", self.mean)


@dataclass(frozen=True)
class LogNormal:
    """log T is normal with mean log(median) and standard deviation sigma."""

    median: float
    """Median duration, s."""
    sigma: float
    """Standard deviation of log T."""

    def mean_s(self) -> float:
        """Return the expected duration, s."""
        return self.median * math.exp(self.sigma**2 / 2)

    def quantile_s(self, u: float) -> float:
        """Return the duration not exceeded with probability `u`, s."""
        inside = min(max(u, _EDGE), 1 - _EDGE)  # uniforms come in steps of 2**-24 and may be 0
        return self.median * math.exp(self.sigma * NormalDist().inv_cdf(inside))

    def problem(self) -> str | None:
        """Return what is wrong with the law's numbers, or None."""
        return _negative("median", self.median) or _negative("sigma", self.sigma)


Latency = Constant | Exponential | LogNormal


def quantiles_s(law: Latency, u: ArrayLike) -> NDArray[np.float64]:
    """Return the duration not exceeded with each probability `u` [...], s: ``law.quantile_s`` to rounding, many at once.

    >>> quantiles_s(LogNormal(.8, .6), [.5, .5]).tolist()
    [0.8, 0.8]
    """
    p = np.asarray(u, np.float64)
    if isinstance(law, Constant):
        return np.full(p.shape, law.seconds)
    if isinstance(law, Exponential):
        return -law.mean * np.log1p(-p)
    inside = np.clip(p, _EDGE, 1 - _EDGE)
    return law.median * np.exp(law.sigma * ndtri(inside))


def _negative(name: str, value: float) -> str | None:
    if math.isnan(value) or math.isinf(value) or value < 0:
        return f"latency {name} = {value} is not a finite number of at least 0"
    return None
