"""A constant push against the restoring drift: the fold, passage through its bottleneck, and the way back (T4).

z is the log-odds of guessing at the start, g = sigmoid(z), eta the SGD rate, Delta the effective gap, v the drive in logits
per step: dz/dt = v - eta Delta g (1 - g). Delta is a number, or a function of z where the gap changes with the share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit

__all__ = ["Fold", "Gap", "recovery_steps"]

Gap = float | Callable[[float], float]
"""Delta, or Delta at log-odds z."""

_FAR = 40.0  # logits at which g (1 - g) is below 1e-17: nothing happens beyond


def _at(gap: Gap, z: float) -> float:
    return float(gap(z)) if callable(gap) else gap


@dataclass(frozen=True)
class Fold:
    """A constant drive v against the restoring drift F(z) = eta Delta g (1 - g).

    With a constant Delta the answers are closed forms. With a Delta of z they are found numerically, for an F with one
    maximum.
    """

    rate: float
    """eta."""
    gap: Gap
    """Delta, or Delta as a function of z. A number must be that near z = 0, where the fold is: in seed A's world the gap at
    the habit is a sixth larger."""

    def restoring(self, z: float) -> float:
        """Return F(z) = eta Delta g (1 - g), logits per step."""
        return float(self.rate * _at(self.gap, z) * expit(z) * expit(-z))

    @cached_property
    def critical_point(self) -> float:
        """Return z_c, the log-odds at which the restoring drift is strongest; 0 for a constant gap."""
        if not callable(self.gap):
            return 0.0
        grid = np.linspace(-6, 6, 61)
        best = float(grid[np.argmax([self.restoring(z) for z in grid])])
        return float(minimize_scalar(lambda z: -self.restoring(z), bounds=(best - 0.2, best + 0.2), method="bounded").x)

    @property
    def critical_drive(self) -> float:
        """v_c = max F, logits per step (eta Delta / 4 for a constant gap): above it no share of guessing is at rest."""
        return self.restoring(self.critical_point)

    def fixed_point(self, drive: float) -> float:
        """Return the stable share of guessing; for a constant gap g* = (1 - sqrt(1 - v / v_c)) / 2.

        Raises
        ------
        ValueError
            When the drive is above the critical one.
        """
        if drive > self.critical_drive:
            raise ValueError(f"drive {drive} is above v_c = {self.critical_drive:.4g}: there is no fixed point")
        if not callable(self.gap):
            return float((1 - np.sqrt(1 - drive / self.critical_drive)) / 2)
        if drive <= self.restoring(-_FAR):
            return 0.0
        return float(expit(brentq(lambda z: self.restoring(z) - drive, -_FAR, self.critical_point)))

    def passage_steps(self, drive: float, start: float, end: float = 0.0) -> float:
        """Return the steps from log-odds `start` to `end` under a drive: the integral of dz / (v - F(z)).

        Raises
        ------
        ValueError
            When the drive is not above the critical one.
        """
        if drive <= self.critical_drive:
            raise ValueError(f"drive {drive} is not above v_c = {self.critical_drive:.4g}: z = {end} is never reached")
        slow = [self.critical_point] if start < self.critical_point < end else None
        value, _ = quad(lambda z: 1 / (drive - self.restoring(z)), start, end, points=slow, limit=200)
        return float(value)

    def bottleneck_steps(self, drive: float) -> float:
        """Return the steps spent near z_c just above the fold: pi / sqrt((v - v_c) |F''(z_c)| / 2).

        F is replaced by its parabola at z_c, so this is the leading term of a passage from far below to far above as v
        comes down to v_c; a passage that ends at z_c takes half of it. For a constant gap it is
        2 pi / sqrt(v_c (v - v_c)).

        Raises
        ------
        ValueError
            When the drive is not above the critical one.

        Source: Strogatz, Nonlinear Dynamics and Chaos, section 4.3.
        """
        over = drive - self.critical_drive
        if over <= 0:
            raise ValueError(f"drive {drive} is not above v_c = {self.critical_drive:.4g}: there is no passage")
        z, h = self.critical_point, 0.02
        curvature = self.critical_drive / 2
        if callable(self.gap):
            curvature = -(self.restoring(z + h) - 2 * self.restoring(z) + self.restoring(z - h)) / h**2
        return float(np.pi / np.sqrt(over * curvature / 2))


def recovery_steps(rate: float, gap: Gap, start: float, end: float = float(np.log(0.2 / 0.8))) -> float:
    """Return the steps of dz/dt = -eta Delta g (1 - g) from log-odds `start` down to `end`.

    With s(z) = z + sinh z, d s / dt = -eta Delta / 2 for a constant Delta, so the time is
    2 (s(start) - s(end)) / (eta Delta): exponential in how far the overshoot went. With a Delta of z it is the integral
    of dz / (eta Delta g (1 - g)).

    Raises
    ------
    ValueError
        When `end` does not lie below `start`, or the gap is not positive all the way.
    """
    if end >= start:
        raise ValueError(f"end {end} must lie below start {start}")
    if callable(gap):
        least = min(gap(z) for z in np.linspace(end, start, 33))
        if least <= 0:
            raise ValueError(f"the gap falls to {least:.4g} on the way from {start} to {end}: z does not come back")
        value, _ = quad(lambda z: 2 * (1 + np.cosh(z)) / (rate * gap(z)), end, start, limit=200)
        return float(value)

    def s(z: float) -> float:
        return float(z + np.sinh(z))

    return 2 * (s(start) - s(end)) / (rate * gap)
