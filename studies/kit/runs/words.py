"""How sizes, values, moments and curves of runs are put into words."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from studies.kit.words import number

__all__ = ["amount", "columns", "departures", "moment", "sparkline", "value"]

_LEVELS = "▁▂▃▄▅▆▇█"
_FLAT = 1e-9  # of its size; a curve that moves less is drawn flat
_MOST_DEPARTURES = 4  # of a config, on one line of a list


def amount(size: int) -> str:
    """Write a number of bytes.

    >>> amount(0), amount(999), amount(25_300), amount(1_234_567_890)
    ('0 B', '999 B', '25.3 kB', '1.23 GB')
    """
    power = min(4, int(math.log10(size) // 3)) if size > 0 else 0
    return f"{size} B" if power == 0 else f"{number(size / 1000**power)} {' kMGT'[power]}B"


def moment(when: datetime | None) -> str:
    """Write when a run was recorded, to the minute, in UTC.

    >>> from datetime import UTC, datetime
    >>> moment(datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)), moment(None)
    ('2026-03-04 05:06', '-')
    """
    return "-" if when is None else f"{when:%Y-%m-%d %H:%M}"


def value(leaf: Any, path: str = "") -> str:
    """Write a leaf of a config; a type without its module, a number without the leading zero.

    >>> value(0.35), value("sim.learning.optimisers.Adam", "optimiser.type"), value(None), value("keep"), value(True)
    ('.35', 'Adam', 'null', 'keep', 'true')
    """
    if isinstance(leaf, bool) or leaf is None:
        return json.dumps(leaf)
    if isinstance(leaf, float):
        text = repr(leaf)
        return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) and leaf else text
    text = str(leaf)
    return text.rpartition(".")[2] if path.split(".")[-1] == "type" else text


def departures(found: Mapping[str, tuple[Any, Any]], most: int = _MOST_DEPARTURES) -> str:
    """Write in what a config departs from the one it is compared with; at most so many settings.

    >>> departures({"world.known": (0.5, 0.35), "steps": (200, 400)})
    'world.known=.35 steps=400'
    """
    words = [f"{path}={value(here, path)}" for path, (_, here) in found.items()]
    more = f" (+{len(words) - most} more)" if len(words) > most else ""
    return " ".join(words[:most]) + more


def sparkline(values: ArrayLike, width: int = 24) -> str:
    """Draw a curve in a line of text: means of equal spans from the lowest to the highest; a gap where none is finite.

    >>> sparkline([0, 1, 2, 3]), sparkline([5.0, 5.0]), sparkline([0.0, float("nan"), 1.0])
    ('▁▃▆█', '▁▁', '▁ █')
    """
    array = np.asarray(values, dtype=np.float64)  # [T]
    if not len(array):
        return ""
    means = [_mean(part) for part in np.array_split(array, min(width, len(array)))]
    finite = [mean for mean in means if math.isfinite(mean)]
    low = min(finite, default=0.0)
    span = max(finite, default=0.0) / 2 - low / 2  # halves: the difference of two large numbers may not be finite
    if span <= _FLAT * max(map(abs, finite), default=0.0):
        span = 0.0  # nothing to see but rounding
    return "".join(" " if not math.isfinite(m) else _LEVELS[_level(m / 2 - low / 2, span)] for m in means)


def _mean(part: np.ndarray) -> float:
    finite = part[np.isfinite(part)]
    return float(np.mean(finite / len(finite)) * len(finite)) if len(finite) else math.nan


def _level(height: float, span: float) -> int:
    return 0 if span <= 0 else min(len(_LEVELS) - 1, round(height / span * (len(_LEVELS) - 1)))


def columns(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Lay cells out in columns two spaces apart; those numbered in ``right`` are flush right, the last is not padded."""
    if not rows:
        return []
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    widths[-1] = 0 if len(widths) - 1 not in right else widths[-1]
    return [
        "  ".join(
            f"{cell:>{width}}" if i in right else f"{cell:<{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
