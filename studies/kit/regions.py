"""Regions: the set of values of one number for which a claim holds.

A claim is *supported* when its whole interval lies inside the region, *refuted* when the whole interval lies inside the
complement, and *undecided* otherwise. Ends are treated exactly: ``above`` and ``below`` are open, ``within`` is closed,
and the complement is the set that is left.
"""

import math
from dataclasses import dataclass

from studies.kit.words import number

__all__ = ["Region", "above", "below", "within"]


@dataclass(frozen=True)
class Region:
    """An interval of the real line; open where an end is infinite or ``closed`` is false."""

    low: float
    """Lower end; ``-inf`` when the region has none."""
    high: float
    """Upper end; ``inf`` when the region has none."""
    closed: bool
    """Whether the finite ends belong to the region."""

    def __post_init__(self) -> None:
        """Refuse a region that is empty or has no boundary."""
        if math.isnan(self.low) or math.isnan(self.high):
            raise ValueError(f"a region needs numbers, not {self.low} and {self.high}")
        if self.low > self.high or (self.low == self.high and not self.closed):
            raise ValueError(f"the region from {self.low} to {self.high} is empty: give the lower end first")
        if math.isinf(self.low) and math.isinf(self.high):
            raise ValueError("a region without a finite end holds whatever is measured: use above, below or within")

    def contains(self, low: float, high: float) -> bool:
        """Whether the interval [low, high] lies inside the region.

        >>> above(2).contains(2.0, 3.0), within(2, 4).contains(2.0, 3.0)
        (False, True)
        """
        if self.closed:
            return low >= self.low and high <= self.high
        return (low > self.low or math.isinf(self.low)) and (high < self.high or math.isinf(self.high))

    def excludes(self, low: float, high: float) -> bool:
        """Whether the interval [low, high] lies inside the complement.

        >>> above(2).excludes(1.0, 2.0), within(2, 4).excludes(1.0, 2.0)
        (True, False)
        """
        if self.closed:
            return high < self.low or low > self.high
        return (high <= self.low and not math.isinf(self.low)) or (low >= self.high and not math.isinf(self.high))

    @property
    def boundaries(self) -> tuple[float, ...]:
        """The finite ends, in order."""
        return tuple(dict.fromkeys(end for end in (self.low, self.high) if math.isfinite(end)))

    @property
    def words(self) -> str:
        """The region as it is printed, such as ``> .5``."""
        if math.isinf(self.low):
            return f"< {number(self.high)}"
        if math.isinf(self.high):
            return f"> {number(self.low)}"
        if self.low == self.high:
            return f"= {number(self.low)}"
        return f"{number(self.low)} to {number(self.high)}"

    @property
    def sentence(self) -> str:
        """The region in words, such as ``above .5``."""
        if math.isinf(self.low):
            return f"below {number(self.high)}"
        if math.isinf(self.high):
            return f"above {number(self.low)}"
        return f"within {number(self.low)} and {number(self.high)}, ends included"


def _finite(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} takes a number, not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{name} takes a finite number, not {value!r}")
    return float(value)


def above(bound: float) -> Region:
    """Return the open region (bound, inf)."""
    return Region(_finite("above", bound), math.inf, closed=False)


def below(bound: float) -> Region:
    """Return the open region (-inf, bound)."""
    return Region(-math.inf, _finite("below", bound), closed=False)


def within(low: float, high: float) -> Region:
    """Return the closed region [low, high]."""
    return Region(_finite("within", low), _finite("within", high), closed=True)
