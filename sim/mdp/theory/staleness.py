"""Staleness at a fixed point of the fold: when a delayed pull overshoots (T6).

A pull that answers to the policy of k steps ago is, linearised at the stable share g*,

    delta' = -a delta(t - k),      a = eta Delta g* (1 - g*) (1 - 2 g*),

and loses stability in a Hopf bifurcation at a k = pi / 2. Two things limit what this says about training.

- The delay is in the *field*, and only a loss without importance weights has it: what it expects to do is
  -Delta g (1 - g) of the policy that sampled. With the ratio pi / mu the expected update is that of the policy now, up to
  the clip, and there is no delay to overshoot with: under PPO's ratio the bound does not apply, however old the data.
- Beyond the linearisation swings grow to a cycle that widens with k, and where it reaches the second, unstable fixed
  point at 1 - g* the drive takes the policy away for good: at 1.7 k* for v = .8 v_c, only beyond 2.5 k* for .5 v_c.

Ours, except where a source is named.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

__all__ = ["delayed_course", "hopf_lag", "most_stable_gain", "restoring_slope"]

F64 = NDArray[np.float64]


def restoring_slope(rate: float, gap: float, share: float) -> float:
    """Return a = eta Delta g (1 - g) (1 - 2 g), per step: how fast a small displacement from rest at `share` dies out."""
    return rate * gap * share * (1 - share) * (1 - 2 * share)


def hopf_lag(slope: float) -> float:
    """Return k* = pi / (2 a), steps: in continuous time a longer lag makes swings grow. Infinite for a = 0."""
    if slope < 0:
        raise ValueError(f"slope = {slope} must be at least 0: the fixed point is unstable without any lag")
    return float(np.pi / (2 * slope)) if slope > 0 else float("inf")


def most_stable_gain(lag: int) -> float:
    """Return the largest a at which delta(t + 1) = delta(t) - a delta(t - k) is stable: 2 sin(pi / (2 (2 k + 1))).

    The bound for steps rather than for continuous time; k* = pi / (2 a) - 1/2 for small a. Source: Levin and May, "A note
    on difference-delay equations" (Theoretical Population Biology 1976).

    >>> most_stable_gain(0), round(most_stable_gain(1), 12)
    (2.0, 1.0)
    """
    if lag < 0:
        raise ValueError(f"lag = {lag} must be at least 0")
    return float(2 * np.sin(np.pi / (2 * (2 * lag + 1))))


def delayed_course(
    rate: float, gap: float, drive: float, lag: int, start: float, steps: int, *, before: float | None = None
) -> F64:
    """Return z, [steps + 1], of z(t + 1) = z(t) + v - eta Delta g (1 - g) with g at time t - `lag`.

    The whole nonlinear pull, delayed; nothing is clipped. Before step 0 the policy stood at `before` (None: at `start`).
    """
    if lag < 0 or steps < 0:
        raise ValueError(f"lag = {lag} and steps = {steps} must be at least 0")
    z = np.full(lag + steps + 1, start if before is None else before)
    z[lag] = start
    for t in range(lag, lag + steps):
        old = z[t - lag]
        z[t + 1] = z[t] + drive - rate * gap * expit(old) * expit(-old)
    return z[lag:]
