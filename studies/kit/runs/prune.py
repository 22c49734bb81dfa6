"""Removing runs that nothing refers to.

A folder is renamed first, to a name that no reader takes for a run, and emptied afterwards: whoever is killed in between
leaves a run whole or not at all.
"""

import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.kit.runs.listing import Row
from studies.kit.runs.references import Reason, References

__all__ = ["REMOVING", "STALE_S", "Plan", "plan", "remove"]

REMOVING = ".removing-"
"""How the name of a folder begins that is about to go."""
STALE_S = 86_400.0
"""A temporary folder untouched for so long has no writer any more: writing a run takes milliseconds."""


@dataclass(frozen=True)
class Plan:
    """What would go, and what would stay although it was chosen."""

    going: tuple[Row, ...]
    """Rows that nothing refers to."""
    kept: tuple[tuple[Row, tuple[Reason, ...]], ...]
    """Rows that stay, each with every reason why."""

    @property
    def size(self) -> int:
        """Bytes that would be freed."""
        return sum(row.size for row in self.going)

    @property
    def counts(self) -> Counter[str]:
        """How many rows stay, by the first reason of each."""
        return Counter(reasons[0].kind for _, reasons in self.kept)


def plan(chosen: Iterable[Row], references: References, now: float | None = None) -> Plan:
    """Divide the chosen rows into those that may go and those that stay. ``now`` is the time as `time.time` gives it."""
    now = time.time() if now is None else now
    going, kept = [], []
    for row in chosen:
        reasons = references.reasons(row)
        if row.path.is_symlink():
            reasons.append(Reason("link", "it is a link; remove it by hand"))
        if row.kind == "temporary" and not row.name.startswith(REMOVING) and _age_s(row.path, now) < STALE_S:
            reasons.append(Reason("young", "touched within a day: its writer may be alive"))
        if reasons:
            kept.append((row, tuple(reasons)))
        else:
            going.append(row)
    return Plan(tuple(going), tuple(kept))


def remove(rows: Sequence[Row]) -> tuple[int, list[str]]:
    """Remove the folders of the rows; return bytes freed, and a line for each that could not be removed."""
    freed, failures = 0, []
    for row in rows:
        path = row.path
        try:
            if not row.name.startswith(REMOVING):
                path = row.path.rename(row.path.with_name(f"{REMOVING}{row.name.lstrip('.')}-{uuid.uuid4().hex}"))
            shutil.rmtree(path)
            freed += row.size
        except FileNotFoundError:
            continue  # somebody else removed it meanwhile
        except OSError as error:
            failures.append(f"{path}: {error}")
    return freed, failures


def _age_s(path: Path, now: float) -> float:
    """Seconds since a folder or a file in it was last touched; none where it has gone."""
    try:
        return now - max(each.stat().st_mtime for each in (path, *path.iterdir()))
    except OSError:
        return STALE_S
