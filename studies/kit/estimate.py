"""An estimate: what a kind makes of the data, before it is held against a region."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["Estimate", "Kind"]


@dataclass(frozen=True)
class Estimate:
    """One number with an interval for every level."""

    effect: float
    """The number the claim is about; ``inf`` for a median that lies beyond the run."""
    n: int
    """Independent units: seeds, pairs of seeds, clusters; for exact kinds the numbers compared."""
    interval: Callable[[float], tuple[float, float]]
    """Ends of the interval at level 1 - alpha, equal-tailed and nested in alpha."""
    how: str
    """Name of the interval, as printed."""
    detail: Mapping[str, str | int | float] = field(default_factory=dict)
    """Counts and side results that belong beside the number."""
    reason: str = ""
    """Why these data allow no verdict; empty when they do."""
    p: float | None = None
    """The p of an exact test of "no effect", where the kind has one that does not follow from the interval."""
    null: float | None = None
    """The value at which ``p`` tests."""
    tested: bool = True
    """Whether chance enters at all; an identity has neither p nor seeds still needed."""
    log: bool = False
    """Whether distances are to be measured on a log scale."""
    regrown: Callable[[int, float], tuple[float, float]] | None = None
    """Interval (units, alpha) at another number of units, were the effect the same; ``None`` where the distance to an
    end shrinks as one over the root of the units."""
    seeds_a_unit: float = 1.0
    """Seeds that one unit takes; more where seeds share a cluster."""


class Kind(Protocol):
    """What kind of number a claim is about: which data it takes and which interval it gives."""

    @property
    def name(self) -> str:
        """The name as written in a study."""

    @property
    def sentence(self) -> str:
        """What is estimated and how, in a line."""

    @property
    def exact(self) -> bool:
        """Whether the number is computed rather than sampled, so that seeds play no part."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value the number can take; an end may be infinite."""

    @property
    def estimate(self) -> Callable[..., Estimate]:
        """Turn the data into an estimate; DataError for data the kind cannot serve."""


def settled(effect: float, reason: str, n: int, how: str, **detail: Any) -> Estimate:
    """Return an estimate that allows no verdict, with the reason."""
    return Estimate(effect, n, lambda _alpha: (effect, effect), how, detail, reason)
