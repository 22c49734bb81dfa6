"""How points and outcomes of a sweep are put into words."""

from collections.abc import Mapping
from typing import Any

from studies.kit.words import VERDICTS, interval, number

__all__ = ["count", "label", "measured", "shown", "tally"]


def label(point: Mapping[str, Any]) -> str:
    """Write a point.

    >>> label({"world.known": 0.3, "group": 8})
    'world.known=0.3, group=8'
    """
    return ", ".join(f"{path}={shown(value)}" for path, value in point.items())


def shown(value: Any) -> str:
    """Write a value of a key."""
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else repr(value)


def count(n: int, noun: str) -> str:
    """Write a number of things.

    >>> count(1, "point"), count(2, "point")
    ('1 point', '2 points')
    """
    return f"{n:,} {noun}{'s' if n != 1 else ''}"


def measured(effect: float | None, low: float | None, high: float | None) -> str:
    """Write an effect with its interval."""
    return f"{number(effect)} {interval(low, high)}".rstrip()


def tally(verdicts: Mapping[str, int], failed: int = 0) -> str:
    """Write how many points came to which verdict.

    >>> tally({"refuted": 3, "supported": 40}, failed=1)
    '40 supported, 3 refuted, 1 failed'
    """
    parts = [f"{verdicts[verdict]} {verdict}" for verdict in VERDICTS if verdicts.get(verdict)]
    return ", ".join([*parts, *([f"{failed} failed"] if failed else [])])
