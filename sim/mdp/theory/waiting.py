"""How long a behaviour that pays waits before it emerges, and how fast it then takes over (T5).

z is the log-odds of the behaviour, p = sigmoid(z), p0 its share at first, D > 0 the effective gap in its favour. Every
optimiser here moves the log-odds as

    dz/dt = speed x (p (1 - p))^power,

from which follow the wait T50 (steps from p0 to one half), the width (steps from 10 to 90 %) and their ratio, in which the
speed cancels. The power is what the ratio tells: 1 for SGD, 0 for a step that does not depend on how rare the behaviour
is, 1/2 for Adam on a gradient that is mostly noise. Ours, except where a source is named.
"""

from dataclasses import dataclass

import numpy as np
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import logit

__all__ = ["Emergence", "adam", "adam_in_noise", "adam_steps", "clock", "natural", "power_of_ratio", "sgd"]

WIDTH = float(np.log(9.0))
"""Log-odds of a share of 90 %."""


def clock(z: float, power: float) -> float:
    """Return the integral of (p (1 - p))^-power dz from 0 to z: the time to get there, at speed 1.

    p (1 - p) = 1 / (4 cosh^2(z / 2)), so it is z for power 0, 4 sinh(z / 2) for 1/2 and 2 (z + sinh z) for 1; otherwise
    the integral is taken numerically.
    """
    if power == 0:
        return float(z)
    if power == 0.5:
        return float(4 * np.sinh(z / 2))
    if power == 1:
        return float(2 * (z + np.sinh(z)))
    value, _ = quad(lambda x: (4 * np.cosh(x / 2) ** 2) ** power, 0, z, limit=200)
    return float(value)


@dataclass(frozen=True)
class Emergence:
    """An S-curve: dz/dt = speed x (p (1 - p))^power, with a constant speed."""

    speed: float
    """Logits per step where p (1 - p) = 1."""
    power: float
    """How strongly rarity slows the step."""

    def __post_init__(self) -> None:
        if self.speed <= 0:
            raise ValueError(
                f"speed = {self.speed} must be positive; the gap is the one in favour of the behaviour, minus the "
                "effective gap of its logit"
            )

    def steps(self, start: float, end: float) -> float:
        """Return the steps from log-odds `start` to `end`."""
        return (clock(end, self.power) - clock(start, self.power)) / self.speed

    def wait(self, p0: float) -> float:
        """Return T50, the steps from a share of `p0` to one half."""
        return self.steps(_rare(p0), 0.0)

    @property
    def width(self) -> float:
        """Steps from a share of 10 % to 90 %."""
        return self.steps(-WIDTH, WIDTH)

    def ratio(self, p0: float) -> float:
        """Return wait / width, whatever the speed."""
        return self.wait(p0) / self.width

    def slope(self, p0: float) -> float:
        """Return d log T50 / d log p0; as p0 -> 0 it tends to -power, for power 0 to 0 as 1 / log p0."""
        z = _rare(p0)
        return float((2 * np.cosh(z / 2)) ** (2 * self.power)) / ((1 - p0) * clock(z, self.power))


def sgd(rate: float, gap: float) -> Emergence:
    """Return plain gradient steps: dz/dt = eta D p (1 - p). T50 = 2 (|z0| + sinh |z0|) / (eta D) ~ 1 / (p0 eta D).

    Assumes a constant gap, small steps, and one weight of strength 1 on the logit, read at every rollout.
    """
    return Emergence(rate * gap, 1.0)


def natural(rate: float, gap: float) -> Emergence:
    """Return the natural gradient, or the replicator equation: dz/dt = eta D, p logistic. T50 = |z0| / (eta D).

    Assumes a constant gap and a Fisher matrix that is p (1 - p) for this logit (private weights, no damping).
    """
    return Emergence(rate * gap, 0.0)


def adam(rate: float) -> Emergence:
    """Return Adam on a gradient that stands out from its noise: dz/dt = alpha, whatever the gap. T50 = |z0| / alpha.

    Assumes |mean| well above the standard deviation of one update's gradient, and a second moment that has forgotten
    what the gradient was; with b2 = .999 it has not for a thousand steps, and a growing gradient makes Adam faster.
    """
    return Emergence(rate, 0.0)


def adam_in_noise(rate: float, snr: float) -> Emergence:
    """Return Adam on a gradient that is mostly noise: dz/dt = alpha x snr x 2 sqrt(p (1 - p)), so T50 ~ p0^(-1/2).

    The noise of a mean over N rollouts has variance p (1 - p) E[A^2] / N; Adam divides by its root.

    Parameters
    ----------
    rate
        alpha.
    snr
        Signal over noise of one update's gradient at p = 1/2: D sqrt(N) / (2 sd(A)). Valid where
        snr x 2 sqrt(p (1 - p)) is well below 1.
    """
    return Emergence(2 * rate * snr, 0.5)


def adam_steps(rate: float, snr: float, start: float, end: float = 0.0) -> float:
    """Return Adam's steps from log-odds `start` to `end` at any signal-to-noise ratio.

    dz/dt = alpha r / sqrt(1 + r^2), r = snr x 2 sqrt(p (1 - p)): between :func:`adam` and :func:`adam_in_noise`. Same
    assumptions, except on r.
    """
    if snr <= 0:
        raise ValueError(f"snr = {snr} must be positive: without a signal there is no drift")
    value, _ = quad(lambda z: np.sqrt(1 + (np.cosh(z / 2) / snr) ** 2), start, end, limit=200)
    return float(value) / rate


def power_of_ratio(ratio: float, p0: float) -> float:
    """Return the power whose S-curve from `p0` has this ratio of wait to width: near 1 for SGD, near 0 for the natural.

    Raises
    ------
    ValueError
        For a ratio outside what powers from -1 to 2 give (`p0` must be rarer than 10 %, or the ratio says nothing).
    """
    if not 0 < p0 < 0.1:
        raise ValueError(f"p0 = {p0} must lie in (0, .1): from there on the wait is part of the width")
    low, high = (Emergence(1.0, q).ratio(p0) for q in (-1.0, 2.0))
    if not low <= ratio <= high:
        raise ValueError(f"ratio {ratio} lies outside {low:.3g} to {high:.3g}, what powers from -1 to 2 give")
    return float(brentq(lambda q: Emergence(1.0, q).ratio(p0) - ratio, -1.0, 2.0))


def _rare(p0: float) -> float:
    if not 0 < p0 < 0.5:
        raise ValueError(f"p0 = {p0} must lie in (0, .5): above one half there is nothing to wait for")
    return float(logit(p0))
