"""Exact kinds: an identity with a tolerance, and the agreement of two computations. No interval, no seeds."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from studies.kit.estimate import Estimate, settled
from studies.kit.samples import DataError
from studies.kit.words import number

__all__ = ["Agreement", "Identity", "agreement", "identity"]


def _numbers(name: str, given: Any) -> NDArray[np.float64]:
    array = np.atleast_1d(np.asarray(given))
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} has type {array.dtype}: it takes real numbers")
    array = array.astype(np.float64)
    if array.size == 0:
        raise DataError(f"{name} is empty: nothing was compared")
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise DataError(f"{name}[{', '.join(map(str, where))}] is {array[where]}: an exact claim needs finite numbers")
    return array


@dataclass(frozen=True)
class Identity:
    """A computed value equals a target up to a tolerance, or lies in a region with that much to spare."""

    tolerance: float
    """Largest distance that still counts as equal."""
    target: float | None = None
    """The value it must have; the claim's prediction when left out; unused where the claim names a region."""
    name: ClassVar[str] = "identity"
    exact: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    @property
    def sentence(self) -> str:
        """What is compared."""
        return f"a computed value, tolerance {number(self.tolerance)}"

    def estimate(self, value: Any) -> Estimate:
        """Return the value farthest from the target; without a target, the value plus or minus the tolerance.

        ``value`` is a number, or an array of numbers that must all equal the target.
        """
        array = _numbers("value", value)
        if self.target is None:
            if array.size > 1:
                raise DataError(f"value has {array.size} entries: a claim with a region takes one number")
            only, slack = float(array.flat[0]), self.tolerance
            return Estimate(only, 1, lambda _alpha: (only - slack, only + slack), "value and tolerance", tested=False)
        worst = float(array.flat[int(np.argmax(np.abs(array - self.target)))])
        return Estimate(worst, array.size, lambda _alpha: (worst, worst), "farthest value", tested=False)


@dataclass(frozen=True)
class Agreement:
    """Two computations of the same numbers differ by no more than a tolerance."""

    tolerance: float
    """Largest deviation allowed."""
    relative: bool = False
    """Whether a deviation is divided by the size of the reference."""
    name: ClassVar[str] = "agreement"
    exact: ClassVar[bool] = True
    bounds: ClassVar[tuple[float, float]] = (0.0, math.inf)

    @property
    def sentence(self) -> str:
        """What is compared."""
        size = "relative" if self.relative else "absolute"
        return f"largest {size} deviation of two computations, tolerance {number(self.tolerance)}"

    def estimate(self, value: Any, reference: Any) -> Estimate:
        """Return max |value - reference|, divided by |reference| entry by entry where relative."""
        one, other = _numbers("value", value), _numbers("reference", reference)
        if one.shape != other.shape:
            raise DataError(f"value has shape {one.shape} and reference {other.shape}: compare like with like")
        if not one.any() and not other.any():
            return settled(0.0, "both computations are zero everywhere: nothing was compared", one.size, "deviation")
        deviation = np.abs(one - other)
        if self.relative:
            if not other.all():
                raise DataError("the reference holds a 0: a relative deviation is not defined; use relative=False")
            deviation = deviation / np.abs(other)
        worst = float(deviation.max())
        return Estimate(worst, one.size, lambda _alpha: (worst, worst), "largest deviation", tested=False)


def identity(tolerance: float, target: float | None = None) -> Identity:
    """A claim about a computed value. Data: ``value=``, a number or an array.

    Without a region the value must equal ``target`` (by default the claim's prediction) within the tolerance; with a
    region, the value must lie in it with the tolerance to spare.
    """
    return Identity(_tolerance(tolerance), target)


def agreement(tolerance: float, relative: bool = False) -> Agreement:
    """A claim that two computations agree. Data: ``value=``, ``reference=`` of one shape."""
    return Agreement(_tolerance(tolerance), relative)


def _tolerance(tolerance: float) -> float:
    if not (np.isfinite(tolerance) and tolerance >= 0):
        raise ValueError(f"tolerance is {tolerance}: it takes a finite number, 0 or more")
    return float(tolerance)
