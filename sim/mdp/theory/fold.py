"""A constant push against the restoring drift: the fold, passage through its bottleneck, and the way back (T4).

z is the log-odds of guessing at the start, g = sigmoid(z), eta the SGD rate, Delta the effective gap, v the drive in logits
per step: dz/dt = v - eta Delta g (1 - g).
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad
from scipy.special import expit

__all__ = ["Fold", "recovery_steps"]


@dataclass(frozen=True)
class Fold:
    """A constant drive v against the restoring drift eta Delta g (1 - g), Delta taken constant in g."""

    rate: float
    """eta."""
    gap: float
    """Delta."""

    @property
    def critical_drive(self) -> float:
        """v_c = eta Delta / 4, logits per step: above it no share of guessing is at rest."""
        return self.rate * self.gap / 4

    def fixed_point(self, drive: float) -> float:
        """Return the stable share of guessing g* = (1 - sqrt(1 - v / v_c)) / 2.

        Raises
        ------
        ValueError
            When the drive is above the critical one.
        """
        if drive > self.critical_drive:
            raise ValueError(f"drive {drive} is above v_c = {self.critical_drive:.4g}: there is no fixed point")
        return float((1 - np.sqrt(1 - drive / self.critical_drive)) / 2)

    def passage_steps(self, drive: float, start: float, end: float = 0.0) -> float:
        """Return the steps from log-odds `start` to `end` under a drive: the integral of dz / (v - eta Delta g (1 - g))."""
        if drive <= self.critical_drive:
            raise ValueError(f"drive {drive} is not above v_c = {self.critical_drive:.4g}: z = {end} is never reached")
        value, _ = quad(lambda z: 1 / (drive - self.rate * self.gap * expit(z) * expit(-z)), start, end)
        return float(value)


def recovery_steps(rate: float, gap: float, start: float, end: float = float(np.log(0.2 / 0.8))) -> float:
    """Return the steps of dz/dt = -eta Delta g (1 - g) from log-odds `start` down to `end`.

    With s(z) = z + sinh z, d s / dt = -eta Delta / 2 ... so the time is 2 (s(start) - s(end)) / (eta Delta): exponential
    in how far the overshoot went.
    """
    if end >= start:
        raise ValueError(f"end {end} must lie below start {start}")

    def s(z: float) -> float:
        return float(z + np.sinh(z))

    return 2 * (s(start) - s(end)) / (rate * gap)
