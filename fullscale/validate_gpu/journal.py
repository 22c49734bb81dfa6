"""A record while it is being written: each line is on disk before the next case begins, so that a kill loses nothing."""

import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from fullscale.kernels.unlocking import INCOMPLETE, Record, RecordError, digest, read, shortfall
from fullscale.validate_gpu.outcome import Outcome

__all__ = ["Journal", "now", "write_whole"]

SAME = ("card", "backend", "source_hash", "interpreted", "dry_run", "planned")
"""What the header of a record must have in common with a sitting that goes on with it, beside the versions."""


def now() -> str:
    """Return the time, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Journal:
    """A header, the cases so far, and the file they are in."""

    def __init__(self, path: Path, header: Mapping[str, Any], cases: list[dict[str, Any]]) -> None:
        self.path, self.header, self.cases = path, header, cases
        self._began = time.monotonic()

    @classmethod
    def create(cls, folder: Path, header: Mapping[str, Any]) -> Self:
        """Begin a record in a folder, named by date and card; another of that name is left alone."""
        folder.mkdir(parents=True, exist_ok=True)
        card = header["card"] or "no card"
        if header["dry_run"]:
            card = f"dry run {card}"
        stem = f"{header['date'][:10]}-{re.sub(r'[^a-z0-9]+', '-', card.lower()).strip('-')}"
        for number in range(1, 1000):
            path = folder / (f"{stem}.jsonl" if number == 1 else f"{stem}-{number}.jsonl")
            try:
                path.open("x").close()
            except FileExistsError:
                continue
            journal = cls(path, header, [])
            journal._write(header)
            return journal
        raise FileExistsError(f"{folder} has a thousand records of {stem}: pass --out with another folder")

    @classmethod
    def resume(cls, path: Path, header: Mapping[str, Any]) -> Self:
        """Go on with a record that was cut off, by a kill or by its budget.

        What it finished stays, passed or not. A torn last line, the summary, and cases that were left out for want of time
        are taken out; the file changes in one step.

        Raises
        ------
        RecordError
            For a damaged file, and for one made on another card or by other code, backend, versions or list of cases.
        """
        old = read(path, finished=False)
        theirs = {**old.header, "versions": _counting(old.header)}
        mine = {**header, "versions": _counting(header)}
        other = [key for key in (*SAME, "versions") if theirs[key] != mine[key]]
        if other:
            told = ", ".join(f"{key} ({_short(theirs[key])}, here {_short(mine[key])})" for key in other)
            raise RecordError(
                f"{path} cannot be gone on with, it has another {told}: begin a new record, without --resume"
            )
        kept = [dict(c) for c in old.cases if c.get("reason") not in INCOMPLETE]
        write_whole(path, [old.header, *kept])
        return cls(path, old.header, kept)

    @property
    def finished(self) -> set[tuple[str, str]]:
        """Phase and name of every case so far."""
        return {(c["phase"], c["case"]) for c in self.cases}

    def add(self, phase: str, case: str, backend: str, outcome: Outcome, seconds: float) -> None:
        """Write a case down."""
        line = {
            "kind": "case",
            "phase": phase,
            "case": case,
            "backend": backend,
            **outcome.line(),
            "seconds": round(seconds, 3),
        }
        self.cases.append(line)
        self._write(line)

    def close(self, unlocks: Callable[[Record], Mapping[str, Any] | None]) -> Record:
        """Write the summary, with what `unlocks` says of the record if it passed; return the record."""
        counts = Counter(c["status"] for c in self.cases)
        draft = Record(self.path, self.header, tuple(self.cases), {"passed": True})
        passed = shortfall(draft) is None
        closing = {
            "kind": "closing",
            "date": now(),
            "passed": passed,
            "counts": {status: counts[status] for status in ("passed", "failed", "error", "skipped")},
            "unlocks": unlocks(draft) if passed else None,
            "seconds": round(time.monotonic() - self._began, 1),
            "digest": digest(self.header, self.cases),
        }
        self._write(closing)
        return replace(draft, closing=closing)

    def _write(self, line: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def write_whole(path: Path, lines: list[Mapping[str, Any]]) -> None:
    """Write a file that is never seen in part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        writing.write_text("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines), encoding="utf-8")
        writing.replace(path)
    finally:
        writing.unlink(missing_ok=True)


def _counting(header: Mapping[str, Any]) -> dict[str, Any]:
    """Return the versions on which numbers depend."""
    return {name: header["versions"].get(name) for name in ("torch", "triton")}


def _short(x: Any) -> str:
    return str(x) if len(str(x)) <= 40 else f"{str(x)[:37]}..."
