"""From a recorded trace to numbers: one pass over a CSV or JSONL file, in which nothing is skipped silently.

A row that cannot be used is an error that names the file, the line and the column; a row that shall not be used is left out
by `where`. :mod:`sim.cluster.fitting` makes laws of the numbers; its names are here too.
"""

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.cluster.families import Family, TraceError, capped_pareto, exponential, log_normal, log_normal_pareto
from sim.cluster.fitting import BestFit, Fit, best_fit, fit, fit_figure, replay
from sim.records.config import near_misses

__all__ = [
    "BestFit",
    "Family",
    "Fit",
    "TraceError",
    "best_fit",
    "capped_pareto",
    "exponential",
    "fit",
    "fit_figure",
    "interarrivals",
    "log_normal",
    "log_normal_pareto",
    "read_column",
    "read_trace",
    "replay",
]

F64 = NDArray[np.float64]
Row = Mapping[str, Any]
Where = Callable[[Row], bool]


def read_column(path: str | Path, column: str, *, where: Where | None = None) -> F64:
    """Return one column of numbers of a trace, [n], in the order of the file and in its unit.

    See :func:`read_trace`.
    """
    return read_trace(path, {column: column}, where=where)[column]


def read_trace(path: str | Path, columns: Mapping[str, str], *, where: Where | None = None) -> dict[str, F64]:
    """Return columns of numbers of a trace, each [n], in the order of the file and in its units.

    Parameters
    ----------
    path
        A ``.csv`` with a header, or a ``.jsonl`` with an object a line.
    columns
        Name in the result -> name in the file: ``{"output_tokens": "num_decode_tokens"}``.
    where
        Whether to keep a row, asked with all its fields (text in a CSV); every row by default. A row left out need hold
        no numbers.

    Raises
    ------
    TraceError
        For another suffix, a column the file does not have (with near misses), a line of another shape, no rows, and a
        value that is empty, text, NaN, infinite or negative; the message names file, line and column.
    """
    path = Path(path)
    found: dict[str, list[float]] = {name: [] for name in columns}
    seen = 0
    for line, row in _rows(path):
        seen += 1
        if seen == 1 or path.suffix == ".jsonl":  # each object names its own fields, a CSV's header does it once
            _check_columns(f"{path}, line {line}", row, columns)
        if where is None or where(row):
            for name, column in columns.items():
                found[name].append(
                    _number(row[column], f"{path}, line {line}, column {column!r}", path.suffix == ".csv")
                )
    if not seen:
        raise TraceError(f"{path} has 0 rows; a trace needs at least 1")
    if not all(found.values()):
        raise TraceError(f"{path}: `where` keeps 0 of {seen} rows; see what it compares with")
    return {name: np.array(values) for name, values in found.items()}


def interarrivals(arrived: ArrayLike) -> F64:
    """Return the gaps between successive arrivals, [n - 1], in the unit of `arrived` [n]; 0 where two came at once.

    >>> interarrivals([0.0, 1.5, 1.5, 4.0]).tolist()
    [1.5, 0.0, 2.5]

    Raises
    ------
    TraceError
        For fewer than 2 arrivals, one that is no finite number, or one before its predecessor.
    """
    at = np.asarray(arrived, np.float64)
    if at.ndim != 1 or len(at) < 2:
        raise TraceError(f"arrivals of shape {at.shape}; gaps need a column of at least 2")
    if not np.isfinite(at).all():
        first = int(np.flatnonzero(~np.isfinite(at))[0])
        raise TraceError(f"arrival {first} is {at[first]}; it must be finite")
    gaps = np.diff(at)
    if (gaps < 0).any():
        first = int(np.flatnonzero(gaps < 0)[0]) + 1
        raise TraceError(f"arrival {first} at {at[first]} lies before its predecessor at {at[first - 1]}; sort them")
    return gaps


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    readers: dict[str, Callable[[Path], Iterator[tuple[int, Row]]]] = {".csv": _csv_rows, ".jsonl": _jsonl_rows}
    if path.suffix not in readers:
        raise TraceError(f"{path} ends in {path.suffix!r}; a trace is one of {', '.join(readers)}")
    try:
        yield from readers[path.suffix](path)
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}; convert it") from None


def _csv_rows(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = next(reader, [])
            twice = {name for name in header if header.count(name) > 1}
            if twice:
                raise TraceError(f"{path}, line 1: column {min(twice)!r} stands there twice; rename one")
            for fields in reader:
                if len(fields) != len(header):
                    raise TraceError(
                        f"{path}, line {reader.line_num} has {len(fields)} fields, its header {len(header)}"
                    )
                yield reader.line_num, dict(zip(header, fields, strict=True))
        except csv.Error as error:
            raise TraceError(f"{path}, line {reader.line_num} is not CSV: {error}") from None


def _jsonl_rows(path: Path) -> Iterator[tuple[int, Row]]:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            try:
                row = json.loads(text, object_pairs_hook=_once)
            except ValueError as error:
                raise TraceError(f"{path}, line {line} is not JSON: {error}") from None
            if not isinstance(row, dict):
                raise TraceError(f"{path}, line {line} is {str(row)[:40]!r}, not a JSON object")
            yield line, row


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"field {next(n for n in names if names.count(n) > 1)!r} stands there twice")
    return row


def _check_columns(where: str, row: Row, columns: Mapping[str, str]) -> None:
    for column in columns.values():
        if column not in row:
            raise TraceError(f"{where}: no column {column!r}{near_misses(column, row)}")


def _number(value: Any, where: str, written_as_text: bool) -> float:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise TraceError(f"{where} is empty; leave the row out with `where` if it may be missing")
    readable = "_" not in str(value) if written_as_text else type(value) in {int, float}  # float("1_0") is 10
    try:
        number = float(value) if readable else None
    except (ValueError, OverflowError):
        number = None
    if number is None:
        raise TraceError(f"{where} = {value!r:.40} is not a number")
    if not 0 <= number < math.inf:
        raise TraceError(f"{where} = {value} is not a finite number of at least 0")
    return number
