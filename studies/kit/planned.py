"""What a study is about to run, found without running it: its arms, and what such runs have cost before."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from studies.kit.executors import inline
from studies.kit.fixture import Study
from studies.kit.library import Statement
from studies.kit.seeds import Seeds

__all__ = ["arms", "cpu_s", "digest", "leaves"]


class _Planned(BaseException):
    """Ends a study at its first sweep. Not an Exception, so that a study that catches those does not catch it."""

    def __init__(self, points: Mapping[str, Any]) -> None:
        super().__init__()
        self.points = dict(points)


class _Noting(Study):
    """A study that stops where it would begin to run."""

    def sweep(self, points: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Note the points and stop."""
        raise _Planned(points)

    def spread(self, work: Any, config: Any, seeds: Iterable[int]) -> Any:
        """Note the config and stop."""
        raise _Planned({getattr(work, "__name__", "work"): config})


def arms(made: Statement, rung: str, seeds: Seeds, start: Path) -> tuple[dict[str, Any], str]:
    """Return the points of a study's first sweep at a rung by label, or none and why they are not known.

    The study runs up to that sweep, so what it enumerates beforehand is enumerated.
    """
    study = _Noting(
        made.path,
        made.claims,
        rung=rung,
        seeds=seeds,
        store_dir=start,
        executor=lambda: inline,
        progress=None,
        start=start,
    )
    try:
        made.function(study)
    except _Planned as planned:
        return planned.points, ""
    except Exception as error:
        return {}, f"before its first sweep the study stopped with {type(error).__name__}: {error}"
    return {}, "the study sweeps nothing"


def digest(points: Mapping[str, Any]) -> str:
    """Return a hash of all configs by label; empty for none."""
    from sim.records.config import canonical_json

    return hashlib.sha256(canonical_json(dict(points)).encode()).hexdigest()[:16] if points else ""


def leaves(points: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the dotted leaves of the first config, and by label those in which the others differ from it."""
    from sim.records.config import difference, flatten

    labels = list(points)
    if not labels:
        return {}
    base = points[labels[0]]
    found = {labels[0]: flatten(base)}
    for label in labels[1:]:
        found[label] = {key: after for key, (_, after) in difference(base, points[label]).items()}
    return found


def cpu_s(store_dir: Path, study: str, rung: str) -> float | None:
    """Return the median CPU seconds of a study's runs at a rung that a store holds; ``None`` where none says."""
    from studies.kit.runs.listing import scan

    if not store_dir.is_dir():
        return None
    runs = (row for row in scan(store_dir) if row.is_run and row.study == study and row.manifest["rung"] == rung)
    took = [seconds for row in runs if (seconds := row.seconds("cpu_s")) is not None]
    return median(took) if took else None
