"""The picture of a finding: prediction and measurement on one axis, the region shaded. Geometry only."""

import math
from dataclasses import dataclass

from studies.kit.finding import Finding
from studies.kit.words import number

__all__ = ["Gauge", "gauge", "ticks"]

WIDTH, MARGIN = 640.0, 28.0


@dataclass(frozen=True)
class Gauge:
    """Positions along the axis, in the units of a drawing 640 wide."""

    region: tuple[float, float] | None
    """Left end and width of the shaded region."""
    effect: float | None
    """The measured number."""
    ends: tuple[float, float] | None
    """The interval."""
    beyond: bool
    """Whether the interval goes on to the right, past the end of the run."""
    predicted: float | None
    """The predicted number."""
    predicted_ends: tuple[float, float] | None
    """The predicted range."""
    ticks: tuple[tuple[float, str], ...]
    """Position and label of each tick."""


def gauge(finding: Finding) -> Gauge | None:
    """Return the picture of a finding, or ``None`` when it has nothing to show."""
    found = finding
    given = (found.effect, found.low, found.high, found.predicted, found.predicted_low, found.predicted_high)
    points = [value for value in (*given, found.region_low, found.region_high) if _finite(value)]
    if not any(_finite(value) for value in given) or not points:
        return None
    least, most = _span([value for value in points if value is not None], found)

    def place(value: float) -> float:
        share = min(1.0, max(0.0, (value - least) / (most - least)))
        return round(MARGIN + share * (WIDTH - 2 * MARGIN), 1)

    def pair(low: float | None, high: float | None) -> tuple[float, float] | None:
        return None if low is None or high is None else (place(low), place(high))

    left = place(least if found.region_low is None else found.region_low)
    right = place(most if found.region_high is None else found.region_high)
    return Gauge(
        region=(left, max(round(right - left, 1), 1.0)),
        effect=place(found.effect) if found.effect is not None and math.isfinite(found.effect) else None,
        ends=pair(found.low, found.high),
        beyond=math.inf in (found.high, found.effect),
        predicted=None if found.predicted is None else place(found.predicted),
        predicted_ends=pair(found.predicted_low, found.predicted_high),
        ticks=tuple((place(at), number(at)) for at in ticks(least, most)),
    )


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _span(points: list[float], found: Finding) -> tuple[float, float]:
    """Return the ends of the axis: all points with room around them, but no room outside 0..1 for a share."""
    least, most = min(points), max(points)
    pad = 0.12 * (most - least) or 0.1 * abs(most) or 1.0
    least, most = least - pad, most + pad
    if found.kind in ("rate", "rank"):
        return max(0.0, least), min(1.0, most)
    return least, most


def ticks(least: float, most: float, about: int = 5) -> list[float]:
    """Return round numbers between two ends, about five of them.

    >>> ticks(0.0, 1.0), ticks(-3.0, 12.0)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 5.0, 10.0])
    """
    rough = (most - least) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * min((1, 2, 5, 10), key=lambda multiple: abs(multiple * power - rough))
    first, last = math.ceil(least / step - 1e-9), math.floor(most / step + 1e-9)
    return [round(index * step, 12) + 0.0 for index in range(first, last + 1)]
