"""The grid of a sweep: keys with their values, from text or from Python, and the points they span."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sim.records.config import canonical_json, to_dict
from studies.kit.phase.places import GridError, Place

__all__ = ["MOST_POINTS", "Axis", "Point", "axis", "check_keys", "plain", "points", "split"]

MOST_POINTS = 100_000
"""A larger grid is refused: it would take days, and bisection finds a boundary with a few points a row."""
_DIGITS = 12  # of a value in a range: .1 + .2 is .3


@dataclass(frozen=True)
class Axis:
    """One key of a grid."""

    path: str
    """Dotted path into the configs."""
    values: tuple[Any, ...]
    """Its values, in order, each once."""
    log: bool = False
    """Whether they are spaced evenly on a log scale."""

    @property
    def numeric(self) -> bool:
        """Whether every value is a number."""
        return all(type(value) in (int, float) for value in self.values)


Point = Mapping[str, Any]
"""A point of a grid: dotted path to value."""


def split(option: str) -> tuple[str, str]:
    """Divide ``key=values``. GridError where either is missing.

    >>> split("world.known=0.1:0.6:11")
    ('world.known', '0.1:0.6:11')
    """
    key, equals, text = option.partition("=")
    key, text = key.strip(), text.strip()
    if not equals or not key or not text or not all(key.split(".")):
        raise GridError(f"grid {option!r}: give KEY=A,B,C or KEY=LOW:HIGH:N, such as world.known=0.1:0.6:11")
    return key, text


def axis(place: Place, given: str | Iterable[Any]) -> Axis:
    """Return the axis of a place: of a text, ``a,b,c`` or ``low:high:n`` or ``low:high:n:log``, or of values."""
    log = False
    if not isinstance(given, str):
        values = [place.checked(value) for value in given]
    elif place.numeric and ":" in given:
        values, log = _range(place, given)
    else:
        values = [place.read(item) for item in _items(given)]
    if not values:
        raise GridError(f"grid {place.path}: it has no values; give one at least")
    counts = Counter(canonical_json(value) for value in values)
    again = [text for text, n in counts.items() if n > 1]
    if again:
        raise GridError(f"grid {place.path}: {again[0]} stands there twice; give each value once")
    return Axis(place.path, tuple(values), log)


def _range(place: Place, text: str) -> tuple[list[Any], bool]:
    """Read ``low:high:n[:log]``."""
    way = f"grid {place.path}={text}: a range is LOW:HIGH:N or LOW:HIGH:N:log, such as 0.1:0.6:11"
    parts = text.split(":")
    if len(parts) not in (3, 4) or parts[3:] not in ([], ["log"]):
        raise GridError(way)
    try:
        low, high, n = float(parts[0]), float(parts[1]), int(parts[2])
    except ValueError:
        raise GridError(way) from None
    log = len(parts) == 4
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or n < 2:
        raise GridError(f"{way}; LOW lies below HIGH, and N is 2 or more")
    if log and low <= 0:
        raise GridError(f"{way}; on a log scale LOW lies above 0")
    if n > MOST_POINTS:
        raise GridError(f"grid {place.path}={text}: {n:,} values; the most is {MOST_POINTS:,} points")
    first, last = (math.log(low), math.log(high)) if log else (low, high)
    found = [first + (last - first) * step / (n - 1) for step in range(n)]
    values = [float(f"{math.exp(value) if log else value:.{_DIGITS}g}") for value in found]
    if place.whole:
        broken = [value for value in values if not value.is_integer()]
        if broken:
            raise GridError(
                f"grid {place.path}={text}: {broken[0]:g} is no whole number and {place.owner.__name__} takes no other; "
                "choose N so that the steps are whole, or list the values: KEY=2,4,8"
            )
        return [place.checked(int(value)) for value in values], log
    return [place.checked(value) for value in values], log


def _items(text: str) -> list[str]:
    """Divide at commas outside brackets and quotes."""
    found, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "([{") - (letter in ")]}") if not quote else 0
        if letter == "," and depth == 0 and not quote:
            found.append("")
        else:
            found[-1] += letter
    if any(not item.strip() for item in found):
        raise GridError(f"{text!r} has an empty value; give them as A,B,C")
    return found


def check_keys(keys: Sequence[str]) -> None:
    """Refuse a key that stands twice, or inside another."""
    for index, key in enumerate(keys):
        for other in keys[:index]:
            if key == other:
                raise GridError(f"{key!r} stands in the grid twice; give its values at once")
            outer, inner = sorted((key, other), key=len)
            if inner.startswith(outer + "."):
                raise GridError(f"{outer!r} and {inner!r} contradict each other: the second lies inside the first")


def points(axes: Sequence[Axis]) -> Iterator[dict[str, Any]]:
    """Yield the points of a grid, the last key running fastest. GridError for more than ``MOST_POINTS``."""
    n = math.prod(len(each.values) for each in axes)
    if n > MOST_POINTS:
        sizes = " x ".join(str(len(each.values)) for each in axes)
        raise GridError(
            f"{sizes} = {n:,} points; the most is {MOST_POINTS:,}. Take a coarser grid, or --bisect for the boundary"
        )
    for values in itertools.product(*(each.values for each in axes)):
        yield dict(zip((each.path for each in axes), values, strict=True))


def plain(point: Point) -> dict[str, Any]:
    """Return a point as JSON data."""
    return {path: to_dict(value) for path, value in point.items()}
