"""Bisection along one key to the boundary at which a verdict changes."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.records.config import to_dict
from studies.kit.claims import Claim
from studies.kit.phase.axes import Point, check_keys, points
from studies.kit.phase.ledger import Entry
from studies.kit.phase.places import GridError, Place, locate
from studies.kit.phase.sweeps import Grid, Setting
from studies.kit.phase.target import Target
from studies.kit.phase.words import label, measured, shown
from studies.kit.regions import Region

__all__ = ["Boundaries", "Boundary", "bisect", "bisect_rows"]

_PARTS = 64  # of the range, where no tolerance is given


@dataclass(frozen=True)
class Boundary:
    """Where along one key a verdict changes, the other keys of a point being fixed."""

    key: str
    """Dotted path of the key."""
    fixed: Point
    """The other keys that were set."""
    low: float
    """Last value on the low end's side."""
    high: float
    """First value on the high end's side; the boundary lies between the two."""
    decided_low: float | None
    """Last value below at which the verdict is settled, as it is at the low end; ``None`` where it is at none."""
    decided_high: float | None
    """First value above at which it is settled the other way."""
    at_low: str
    """On which side the low end lies: ``supported`` or ``refuted``, if need be by its effect alone."""
    probes: tuple[Entry, ...]
    """Every point that was run, in the order of the key."""
    failed: str = ""
    """Why there is no boundary, where a probe gave nothing; else empty."""

    @property
    def middle(self) -> float:
        """The middle of the last bracket."""
        return (self.low + self.high) / 2


@dataclass(frozen=True)
class Boundaries:
    """The boundary along one key in every row of a grid of other keys."""

    target: Target
    """The study."""
    claim: Claim
    """The claim whose verdict changes."""
    rows: tuple[Boundary, ...]
    """One for each point of the other keys."""
    folder: Path
    """Where the ledger lies."""
    notes: tuple[str, ...]
    """What was found damaged and made again."""


def bisect(
    study: str,
    key: str,
    low: float,
    high: float,
    claim: str | None = None,
    *,
    tolerance: float | None = None,
    **options: Any,
) -> Boundary:
    """Find where along one key the verdict on a claim changes, the study's other settings as they are.

    Both ends are run first and must lie on different sides: in the claim's region, or in its complement. A probe that is
    undecided is put on the side of its effect; ``decided_low`` and ``decided_high`` say between which settled verdicts
    the boundary lies. The bracket is halved until it is no wider than ``tolerance`` (a 64th of the range by default; of
    whole numbers, until they are neighbours). If the verdict changes more than once on the way, one of the places is
    found.

    Parameters
    ----------
    study, claim
        The study, and the id of one of its claims; by default the first.
    key, low, high
        Dotted path, and the ends between which it is varied.
    tolerance
        Width at which to stop.
    options
        Those of ``sweep_study``.

    Raises
    ------
    GridError
        As ``sweep_study`` does; and where both ends lie on one side, or one of them has no verdict.
    """
    row = bisect_rows(study, key, low, high, claim, tolerance=tolerance, **options).rows[0]
    if row.failed:
        raise GridError(row.failed)
    return row


def bisect_rows(
    study: str,
    key: str,
    low: float,
    high: float,
    claim: str | None = None,
    *,
    grid: Grid | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> Boundaries:
    """Find the boundary along a key in every row of a grid of other keys; the probes of all rows run together.

    A row without a boundary says why in ``failed``; otherwise as ``bisect``.
    """
    setting = Setting.of(study, **options)
    stated = setting.target.claim(claim)
    if key in (grid or {}):
        raise GridError(f"{key!r} is both bisected and in the grid; leave it out of one")
    check_keys([*(grid or {}), key])
    place, ends = _ends(setting, key, low, high)
    width = _tolerance(place, ends, tolerance)
    others = tuple(setting.axis(path, given) for path, given in (grid or {}).items())
    region = stated.region_at(setting.rung)
    rows = [_Row(dict(fixed), key, ends, stated.id, region) for fixed in points(others)]
    setting.check(rows[0].point(ends[0]))
    what = {"key": key, "ends": list(ends), "grid": {each.path: [to_dict(v) for v in each.values] for each in others}}
    ledger = setting.ledger(bisect=what)
    while wanted := [(row, value) for row in rows for value in row.wanted(place.whole, width)]:
        asked = [row.point(value) for row, value in wanted]
        for (row, value), entry in zip(wanted, setting.run(asked, ledger, ledger.entries(asked)), strict=True):
            row.probes[value] = entry
    found = tuple(row.boundary() for row in rows)
    return Boundaries(setting.target, stated, found, ledger.folder, tuple(ledger.notes))


def _ends(setting: Setting, key: str, low: float, high: float) -> tuple[Place, tuple[float, float]]:
    place = locate(setting.base, key)
    if not place.numeric:
        raise GridError(f"{key!r} takes {place.takes}: bisection needs a number; name its values with --grid")
    least, most = place.checked(low), place.checked(high)
    if not least < most:
        raise GridError(f"bisect {key}={shown(low)}:{shown(high)}: give the lower end first")
    return place, (least, most)


def _tolerance(place: Place, ends: tuple[float, float], given: float | None) -> float:
    if given is not None and not (math.isfinite(given) and given > 0):
        raise GridError(f"tolerance {given}: it is a width above 0")
    least = (ends[1] - ends[0]) / _PARTS if given is None else given
    return max(1.0, least) if place.whole else max(least, 1e-12 * max(map(abs, ends)))


class _Row:
    """One bisection while it runs."""

    def __init__(self, fixed: Point, key: str, ends: tuple[float, float], claim: str, region: Region) -> None:
        self.fixed, self.key, self.ends, self.claim, self.region = fixed, key, ends, claim, region
        self.probes: dict[float, Entry] = {}
        self.failed = ""

    def point(self, value: float) -> Point:
        return {**self.fixed, self.key: value}

    def wanted(self, whole: bool, width: float) -> list[float]:
        """Return the values to be run next: both ends, then the middle of the bracket; none when it is over."""
        if not self.probes:
            return list(self.ends)
        self._check()
        if self.failed:
            return []
        low, high = self.bracket()
        if high - low <= width:
            return []
        middle = (low + high) // 2 if whole else float(f"{(low + high) / 2:.12g}")
        return [middle] if low < middle < high else []

    def bracket(self) -> tuple[float, float]:
        """Return the last value on the low end's side, and the first above it on the other."""
        values = sorted(self.probes)
        at_low = self._side(self.ends[0])
        first = next(value for value in values if self._side(value) != at_low)
        return max(value for value in values if value < first), first

    def boundary(self) -> Boundary:
        entries = tuple(self.probes[value] for value in sorted(self.probes))
        if self.failed:
            return Boundary(self.key, self.fixed, *self.ends, None, None, "", entries, self.failed)
        low, high = self.bracket()
        at_low = self._side(self.ends[0])
        settled = {v: found.verdict for v in self.probes if (found := self._found(v)) is not None}
        other = "refuted" if at_low == "supported" else "supported"
        below = [value for value, verdict in settled.items() if value <= low and verdict == at_low]
        above = [value for value, verdict in settled.items() if value >= high and verdict == other]
        ends = max(below, default=None), min(above, default=None)
        return Boundary(self.key, self.fixed, low, high, *ends, at_low, entries)

    def _found(self, value: float) -> Any:
        return self.probes[value].of(self.claim)

    def _side(self, value: float) -> str:
        """Return the verdict, or the one that the effect alone would give."""
        found = self._found(value)
        if found.verdict in ("supported", "refuted"):
            return str(found.verdict)
        return "supported" if self.region.contains(found.effect, found.effect) else "refuted"

    def _check(self) -> None:
        """Note why the search cannot go on, if so."""
        for value, entry in self.probes.items():
            where = label(self.point(value))
            found = entry.of(self.claim)
            if entry.failure is not None:
                self.failed = f"{where}: {entry.failure.error}"
            elif found is None or found.effect is None or found.verdict == "no verdict":
                self.failed = f"{where}: no verdict ({'' if found is None else found.reason})"
            if self.failed:
                return
        low, high = (self._found(value) for value in self.ends)
        if self._side(self.ends[0]) == self._side(self.ends[1]):
            both = ", ".join(
                f"{found.verdict} at {shown(value)} ({measured(found.effect, found.low, found.high)})"
                for value, found in zip(self.ends, (low, high), strict=True)
            )
            of = f" with {label(self.fixed)}" if self.fixed else ""
            self.failed = f"{self.key}{of}: the ends lie on one side, {both}; widen the range, or sweep it with --grid"
