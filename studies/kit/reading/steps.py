"""Files that are named by a step, and steps in records."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["MOST", "is_jsonl", "number", "numbered", "samples", "step_of"]

MOST = 2**63
"""Numbers from here on are no steps, versions or counts: the tables hold 64 bits."""

_OTHERS = 20
_NUMBER = re.compile(r"(?:(?:global_)?step[_-]?)?(\d{1,12})\.jsonl(?:\.gz)?")


def is_jsonl(path: Path) -> bool:
    """Whether a file is one of JSON lines, by its name; one beside which it lies uncompressed is its copy, and is none."""
    return path.name.endswith((".jsonl", ".jsonl.gz")) and path.is_file() and not _is_copy(path)


def _is_copy(path: Path) -> bool:
    return path.suffix == ".gz" and path.with_suffix("").is_file()


def number(path: Path) -> int | None:
    """Return the step that a file is named by, or None.

    >>> number(Path("run/12.jsonl")), number(Path("step_7.jsonl.gz")), number(Path("v2.jsonl"))
    (12, 7, None)
    """
    match = _NUMBER.fullmatch(path.name)
    return int(match[1]) if match else None


def numbered(folder: Path) -> tuple[Path, ...]:
    """Return the files of a folder that are named by a step, by number: 9 comes before 10; no compressed copies."""
    found = [(step, each.name, each) for each in folder.iterdir() if (step := number(each)) is not None]
    return tuple(path for _, _, path in sorted(found) if is_jsonl(path))


def step_of(record: Mapping[str, Any]) -> int | None:
    """Return the step that a record names, or None if it is no whole number of 0 or more, below `MOST`."""
    step = record.get("step")
    if isinstance(step, float) and step.is_integer():
        step = int(step)
    return step if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < MOST else None


def samples(path: Path) -> tuple[Path, ...]:
    """Return the files of JSON lines whose first records tell the layout of a file or folder.

    The first and last of those that are named by a step, which may be thousands, and the first of the others.
    """
    if not path.is_dir():
        return (path,) if is_jsonl(path) else ()
    steps = numbered(path)
    others = [each for each in sorted(path.iterdir()) if is_jsonl(each) and number(each) is None]
    return (*dict.fromkeys((*steps[:1], *steps[-1:])), *others[:_OTHERS])
