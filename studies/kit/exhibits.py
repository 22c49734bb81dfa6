"""Exhibits: what a study shows beside its number, as builtins that travel between processes."""

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Exhibit", "dump", "load"]


@dataclass(frozen=True)
class Exhibit:
    """One thing on the card of a claim."""

    claim: str
    """The claim it belongs to."""
    sort: str
    """``figure``, ``table``, ``note``, ``rollouts`` or ``configs``."""
    text: str = ""
    """SVG of a figure, words of a note, raw text of rollouts (untrusted)."""
    caption: str = ""
    """What is to be seen."""
    header: tuple[str, ...] = ()
    """Column names of a table."""
    rows: tuple[tuple[str, ...], ...] = ()
    """Cells of a table."""
    headline: bool = False
    """Whether the figure opens the report."""


def dump(exhibits: Iterable[Exhibit]) -> str:
    """Write exhibits as JSON."""
    return json.dumps([dataclasses.asdict(exhibit) for exhibit in exhibits])


def load(text: str) -> list[Exhibit]:
    """Read what ``dump`` wrote."""
    return [
        Exhibit(**{**item, "header": tuple(item["header"]), "rows": tuple(tuple(row) for row in item["rows"])})
        for item in json.loads(text)
    ]
