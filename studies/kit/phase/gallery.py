"""The diagrams that sweeps have left, for the report."""

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Hung", "gallery"]


@dataclass(frozen=True)
class Hung:
    """A diagram of a sweep."""

    study: str
    """Name of the study."""
    folder: str
    """Name of the sweep's folder."""
    keys: tuple[str, ...]
    """What was varied."""
    points: int
    """Points that are done, those that failed among them."""
    image: str
    """The diagram as a ``data:`` address. As an image it cannot run anything, whoever wrote the file."""


def gallery(ledgers: Path, studies: Iterable[str]) -> tuple[Hung, ...]:
    """Return the diagrams of sweeps of these studies, by folder; folders that hold none, or cannot be read, are left out.

    A diagram shows what its sweep found, with the code it was found with; whether that is the present code is not looked at.
    """
    known, found = set(studies), []
    for path in sorted(ledgers.glob("*/diagram*.svg")):
        try:
            about = json.loads((path.parent / "sweep.json").read_text(encoding="utf-8"))
            study, keys = str(about["study"]), tuple(map(str, about["grid"]))
            drawn = base64.b64encode(path.read_bytes()).decode()
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if study in known:
            points = sum(1 for _ in (path.parent / "points").glob("*.json"))
            found.append(Hung(study, path.parent.name, keys, points, f"data:image/svg+xml;base64,{drawn}"))
    return tuple(found)
