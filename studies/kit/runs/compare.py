"""Two runs held against each other: in what they were asked to differ, and where they do."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.records.config import difference, near_misses
from sim.records.run import RunRecord, run_key

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Comparison", "Departure", "compare", "draw"]


@dataclass(frozen=True)
class Departure:
    """How one column of two runs departs, over the steps both have."""

    column: str
    """Its name."""
    first: int | float
    """First step at which the bits differ."""
    steps: int
    """How many steps differ."""
    largest: float
    """Largest absolute difference; infinite where one is finite and the other is not, or where signs of infinity differ."""
    at: int | float
    """Step of the largest difference."""


@dataclass(frozen=True)
class Comparison:
    """Two runs of a store, held against each other."""

    kin: str
    """What they are to each other, in words."""
    identity: Mapping[str, tuple[Any, Any]]
    """Study, rung, seed and code where they differ."""
    config: Mapping[str, tuple[Any, Any]]
    """Settings in which the configs differ, by dotted path."""
    only: tuple[tuple[str, ...], tuple[str, ...]]
    """Columns that only the first has, and only the second."""
    common: int
    """Number of columns both have, without ``step``."""
    steps: tuple[int, int, int]
    """Steps both have, only the first has, only the second has."""
    departures: tuple[Departure, ...]
    """Columns that differ, those that do so first first."""

    @property
    def same(self) -> bool:
        """Whether the step tables are equal bit for bit."""
        return not (self.departures or any(self.only) or any(self.steps[1:]))


def compare(a: RunRecord, b: RunRecord) -> Comparison:
    """Return how two runs differ. Rows are matched by step; NaN with the same bits is equal, 0.0 and -0.0 are not."""
    left, right = a.manifest, b.manifest
    names = [name for name in a.steps.names if name in b.steps and name != "step"]
    shared, rows_a, rows_b = np.intersect1d(a.steps["step"], b.steps["step"], return_indices=True)
    found = (_departure(name, shared, a.steps[name][rows_a], b.steps[name][rows_b]) for name in names)
    departures = sorted((each for each in found if each is not None), key=lambda each: (each.first, each.column))
    return Comparison(
        kin=_kin(left, right),
        identity={
            name: (left[name], right[name])
            for name in ("study", "rung", "seed", "fingerprint")
            if left[name] != right[name]
        },
        config=difference(left["config"], right["config"]),
        only=(
            tuple(name for name in a.steps.names if name not in b.steps),
            tuple(name for name in b.steps.names if name not in a.steps),
        ),
        common=len(names),
        steps=(len(shared), len(a.steps) - len(shared), len(b.steps) - len(shared)),
        departures=tuple(departures),
    )


def draw(a: RunRecord, b: RunRecord, column: str, path: Path) -> None:
    """Draw a column of both runs over the step, and below it their difference; ``path`` ends in .svg, .png or .pdf.

    ValueError for a column that not both have (with near misses), or for another ending.
    """
    for record in (a, b):
        if column not in record.steps:
            raise ValueError(f"run {record.key} has no column {column!r}{near_misses(column, record.steps.names)}")
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"{path} should end in .svg, .png or .pdf")
    made = _drawn(a, b, column)
    from studies.kit.figures import style

    with style():
        made.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def _drawn(a: RunRecord, b: RunRecord, column: str) -> "Figure":
    from studies.kit.figures import COLOURS, figure, style

    shared, rows_a, rows_b = np.intersect1d(a.steps["step"], b.steps["step"], return_indices=True)
    with style(), np.errstate(invalid="ignore"):
        made, (upper, lower) = figure(2, 1, title=column, sharex=True)
        for record, colour in ((a, COLOURS[0]), (b, COLOURS[1])):
            label = f"{record.key[:8]} ({record.manifest['study']}, seed {record.seed})"
            upper.plot(record.steps["step"], record.steps[column], color=colour, label=label)
        upper.legend()
        gap = b.steps[column][rows_b].astype(np.float64) - a.steps[column][rows_a].astype(np.float64)
        lower.plot(shared, gap, color="#555555")
        lower.axhline(0.0, color="#bbbbbb", linewidth=1)
        lower.set_ylabel("second - first")
        lower.set_xlabel("optimiser step")
    return made


def _kin(left: Mapping[str, Any], right: Mapping[str, Any]) -> str:
    """Say what two runs are to each other."""
    if left["key"] == right["key"]:
        return "the same run"
    bare = [run_key(m["config"], m["study"], m["seed"], m["rung"], fingerprint="") for m in (left, right)]
    if bare[0] == bare[1]:
        return "the same run, made by other code"
    if left["study"] == right["study"] and left["rung"] == right["rung"] and left["config"] == right["config"]:
        return "the same config, another seed"
    return "different runs"


def _departure(name: str, steps: np.ndarray, a: np.ndarray, b: np.ndarray) -> Departure | None:
    """Return how two columns [T] over the same steps [T] differ; None where every bit agrees."""
    differs = np.full(len(a), True) if a.dtype != b.dtype else a.view(np.int64) != b.view(np.int64)
    rows = np.flatnonzero(differs)
    if not len(rows):
        return None
    x, y = a[rows].astype(np.float64), b[rows].astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(x - y)
    gap[(x == y) | (np.isnan(x) & np.isnan(y))] = 0.0
    gap[np.isnan(gap)] = np.inf
    largest = int(np.argmax(gap))
    return Departure(name, steps[rows[0]].item(), len(rows), float(gap[largest]), steps[rows[largest]].item())
