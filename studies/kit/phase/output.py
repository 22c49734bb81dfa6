"""What a sweep leaves beside its ledger: the table, and the diagram of each claim."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.kit.phase.bisection import Boundaries
from studies.kit.phase.diagram import diagram, theory
from studies.kit.phase.ledger import Entry, put
from studies.kit.phase.sweeps import Swept
from studies.kit.phase.words import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["boundary_rows", "rows", "save", "save_boundaries"]

HEADER = ("claim", "verdict", "effect", "low", "high", "n", "reason")


def rows(entries: tuple[Entry, ...], keys: tuple[str, ...]) -> Iterator[tuple[Any, ...]]:
    """Yield a header, then a row for every point and claim; a point that failed has one row, with its error."""
    yield (*keys, *HEADER)
    for entry in entries:
        at = tuple(shown(entry.point[key]) if not _plain(entry.point[key]) else entry.point[key] for key in keys)
        if entry.failure is not None:
            yield (*at, "", "failed", "", "", "", "", entry.failure.error)
        for found in entry.concluded:
            yield (*at, *(_cell(getattr(found, name)) for name in HEADER))


def boundary_rows(found: Boundaries) -> Iterator[tuple[Any, ...]]:
    """Yield a header, then a row for every bisection."""
    keys = tuple(found.rows[0].fixed)
    yield (*keys, "key", "low", "high", "decided_low", "decided_high", "at_low", "probes", "reason")
    for row in found.rows:
        at = tuple(row.fixed[key] if _plain(row.fixed[key]) else shown(row.fixed[key]) for key in keys)
        decided = (_cell(row.decided_low), _cell(row.decided_high))
        yield (*at, row.key, row.low, row.high, *decided, row.at_low, len(row.probes), row.failed)


def save(swept: Swept, claim: str | None = None) -> list[Path]:
    """Write ``table.csv`` and, of one key or two, ``diagram.svg`` and ``diagram.png``; return their paths.

    What is there already and has nothing new to show is left as it is.
    """
    keys = tuple(axis.path for axis in swept.axes)
    wanted = [swept.folder / "table.csv"]
    name = "diagram" if claim in (None, swept.target.claims[0].id) else f"diagram-{claim}"
    if len(swept.axes) <= 2:
        wanted += [swept.folder / f"{name}.{ending}" for ending in ("svg", "png")]
    if swept.fresh or not all(path.is_file() for path in wanted):
        _csv(wanted[0], rows(swept.entries, keys))
        if len(wanted) > 1:
            _draw(diagram(swept, claim, theory(swept)), wanted[1], wanted[2])
    return wanted


def save_boundaries(found: Boundaries) -> list[Path]:
    """Write ``boundary.csv`` and the table of all probes; return their paths."""
    keys = (*found.rows[0].fixed, found.rows[0].key)
    paths = [found.folder / "boundary.csv", found.folder / "table.csv"]
    _csv(paths[0], boundary_rows(found))
    _csv(paths[1], rows(tuple(entry for row in found.rows for entry in row.probes), keys))
    return paths


def _draw(made: "Figure", svg_path: Path, png_path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from studies.kit.figures import style, svg

    text = svg(made).replace("<svg ", '<svg style="background: white" ', 1)
    out = io.BytesIO()
    made.set_dpi(150)
    with style():
        FigureCanvasAgg(made).print_png(out)
    put(svg_path, (text + "\n").encode())
    put(png_path, out.getvalue())


def _csv(path: Path, lines: Iterator[tuple[Any, ...]]) -> None:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    put(path, out.getvalue().encode())


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str)


def _cell(value: Any) -> Any:
    return "" if value is None else value
