"""What a sweep has found so far: one small file a point, in a folder named by all that determines the answers.

    ROOT/length_diagram-3f1c0a5be2/sweep.json        what is swept: study, grid, seeds, rung, fingerprints
                                   points/KEY.json   a point: what each claim came to, or the error
                                   table.csv, diagram.svg, diagram.png

Each file is written under another name and then renamed, so it is there whole or not at all. The runs themselves lie in
the store; a ledger answers without them. Several sweeps may write one ledger at once: what they write is the same.
"""

import dataclasses
import hashlib
import json
import math
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.records.config import canonical_json
from studies.kit.guard import Failure
from studies.kit.phase.axes import Point, plain
from studies.kit.phase.points import Concluded

__all__ = ["SCHEMA", "Entry", "Ledger", "LedgerError", "point_key", "put"]

SCHEMA = 1
"""Version of the files' layout; one with a higher number was written by a newer program."""


class LedgerError(RuntimeError):
    """The ledger cannot be read or written; the message names the file and the way out."""


@dataclass(frozen=True)
class Entry:
    """What is known of one point."""

    point: Point
    """Dotted path to value."""
    concluded: tuple[Concluded, ...] = ()
    """What each claim came to; empty for a point that failed."""
    failure: Failure | None = None
    """Why it failed."""

    def of(self, claim: str) -> Concluded | None:
        """Return what a claim came to; ``None`` where the point failed."""
        return next((found for found in self.concluded if found.claim == claim), None)


def point_key(point: Point) -> str:
    """Return the name of a point: 16 hex digits of the sha256 of its canonical JSON."""
    return hashlib.sha256(canonical_json(plain(point)).encode()).hexdigest()[:16]


class Ledger:
    """The folder of one sweep."""

    def __init__(self, root: Path, about: Mapping[str, Any]) -> None:
        """``about`` is all that determines the answers, as JSON data; ``study`` in it begins the folder's name."""
        digest = hashlib.sha256(canonical_json(about).encode()).hexdigest()[:10]
        self.about = about
        self.folder = root / f"{about['study']}-{digest}"
        self.notes: list[str] = []

    def open(self) -> None:
        """Make the folder, or check that it is of this sweep. LedgerError where it was written by a newer program."""
        path = self.folder / "sweep.json"
        (self.folder / "points").mkdir(parents=True, exist_ok=True)
        known = self._read(path)
        if known is None:
            _write(path, {"schema": SCHEMA, **self.about})
        elif canonical_json({**known, "schema": SCHEMA}) != canonical_json({"schema": SCHEMA, **self.about}):
            self._set_aside(path, "is of another sweep than its folder")
            _write(path, {"schema": SCHEMA, **self.about})

    def entries(self, points: Iterable[Point]) -> dict[str, Entry]:
        """Return what is known of the points, by key. A file that is damaged is set aside, which ``notes`` tells."""
        there = {path.stem for path in (self.folder / "points").iterdir() if path.suffix == ".json"}
        found = {}
        for point in points:
            key = point_key(point)
            if key in there and (entry := self._entry(key, point)) is not None:
                found[key] = entry
        return found

    def write(self, entry: Entry) -> None:
        """Write what is known of a point, over what was known before."""
        body: dict[str, Any] = {"schema": SCHEMA, "point": plain(entry.point)}
        if entry.failure is not None:
            body["failure"] = dataclasses.asdict(entry.failure)
        else:
            body["concluded"] = [
                {name: _text(value) for name, value in dataclasses.asdict(found).items()} for found in entry.concluded
            ]
        _write(self.folder / "points" / f"{point_key(entry.point)}.json", body)

    def _entry(self, key: str, point: Point) -> Entry | None:
        path = self.folder / "points" / f"{key}.json"
        body = self._read(path)
        try:
            if body is None:
                return None
            if "failure" in body:
                return Entry(point, failure=Failure(**body["failure"]))
            fields = ({name: _number(name, value) for name, value in one.items()} for one in body["concluded"])
            return Entry(point, tuple(Concluded(**one) for one in fields))
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            self._set_aside(path, f"cannot be read ({error})")
            return None

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Return a file's content; ``None`` where there is none, or none that can be read."""
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            schema = int(body["schema"])
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            self._set_aside(path, f"cannot be read ({type(error).__name__}: {error})")
            return None
        if schema > SCHEMA:
            raise LedgerError(f"{path} has schema {schema}, this program reads up to {SCHEMA}: update it")
        return dict(body)

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(f"{path.name}.damaged-{uuid.uuid4().hex[:8]}")
        path.replace(aside)
        self.notes.append(f"{path} {why}; it is kept as {aside.name} and made again")


def _write(path: Path, body: Mapping[str, Any]) -> None:
    put(path, (json.dumps(body, sort_keys=True, indent=1, allow_nan=False) + "\n").encode())


def put(path: Path, content: bytes) -> None:
    """Write a file whole or not at all."""
    writing = path.with_name(f".writing-{path.name}-{uuid.uuid4().hex}")
    try:
        writing.write_bytes(content)
        writing.replace(path)
    finally:
        writing.unlink(missing_ok=True)


def _text(value: Any) -> Any:
    """Write an infinity, which strict JSON has not, as text."""
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _number(name: str, value: Any) -> Any:
    """Read what ``_text`` wrote."""
    return float(value) if name in ("effect", "low", "high") and value in ("inf", "-inf") else value
