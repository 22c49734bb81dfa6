"""What became of a case."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Outcome", "judged", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """One line of a record, but for its phase, name and time."""

    status: str
    """``passed``, ``failed`` (a value beyond its bound), ``error`` (an exception) or ``skipped``."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """What was found."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """The most that some of them may be."""
    reason: str | None = None
    """Why it was skipped: ``budget``, ``device lost``, ``memory``, ``refused``, ``absent``."""
    note: str | None = None
    """In words."""

    def line(self) -> dict[str, Any]:
        """Return it as JSON; numbers that JSON does not have become words."""
        told: dict[str, Any] = {"status": self.status, "values": _plain(self.values), "bounds": dict(self.bounds)}
        return told | {k: v for k, v in (("reason", self.reason), ("note", self.note)) if v is not None}


def judged(values: Mapping[str, float], bounds: Mapping[str, float], note: str | None = None) -> Outcome:
    """Return passed if every value that has a bound is within it. A NaN is within no bound."""
    beyond = [name for name, bound in bounds.items() if not values[name] <= bound]
    return Outcome("failed" if beyond else "passed", values, bounds, note=note)


def skipped(reason: str, note: str | None = None) -> Outcome:
    """Return a case that was not run."""
    return Outcome("skipped", reason=reason, note=note)


def _plain(x: Any) -> Any:
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    if isinstance(x, list | tuple):
        return [_plain(v) for v in x]
    if isinstance(x, float) and not math.isfinite(x):
        return str(x)
    return x
