"""Runs as Parquet files, for polars, DuckDB, pandas and the like; every bit of the store is in them.

    OUT/runs.parquet                   a row a run: identity, provenance, every setting as ``config.PATH``, and the JSON
        steps.parquet                  a row a run and optimiser step, one column a quantity
        rollouts/trajectories.parquet  ... and groups, segments, turns, tokens, pauses, where runs kept them

A column that a run does not have is null in its rows; NaN is NaN. ``integers`` of runs.parquet names the columns that
are whole numbers in a run, should other runs make a column one of reals. In ``rollouts`` a row has a number in its run
and table (``row``) and, in place of offsets, that of the row it belongs to: ``group``, ``trajectory``, ``segment`` or
``turn``.

It needs pyarrow, which is an extra: ``pip install "metastable[parquet]"``.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from sim.records.config import flatten
from sim.records.rollouts import Rollouts
from sim.records.run import RunRecord
from sim.records.tables import parents
from studies.kit.export.folder import ExportError

__all__ = ["PARENTS", "check_installed", "write"]

PARENTS: Mapping[str, tuple[str, str]] = {
    "trajectories": ("group", "groups/offsets"),
    "segments": ("trajectory", "trajectories/offsets"),
    "turns": ("segment", "segments/offsets"),
    "tokens": ("turn", "turns/offsets"),
    "pauses": ("segment", "segments/pause_offsets"),
}
"""For each table of rollouts the column that names a row's parent, and the offsets it replaces."""
_TABLES = ("groups", *PARENTS)
_ABOUT = ("run", "study", "rung", "seed")
_ROWS = 1 << 17  # of a row group
_EXACT = 2**53  # whole numbers up to here are floats without rounding
_WORDS = ["run", "study", "rung", "role"]  # few values each


def check_installed() -> None:
    """ExportError without pyarrow."""
    _pyarrow()


def write(records: Callable[[], Iterable[RunRecord]], folder: Path) -> list[str]:
    """Write the runs of ``records()``, which is gone through twice: for the columns there are, and for their values.

    Returns a line for what the files cannot hold, of which there is nothing. ExportError for a column of whole numbers
    in one run and reals in another that a float cannot hold exactly.
    """
    pa, parquet = _pyarrow()
    schema = _Schema()
    runs = _runs_table(pa, [schema.take(record) for record in records()])
    steps = {**_types(pa, dict(zip(_ABOUT, "UUUi", strict=True))), **_types(pa, schema.steps)}
    tables = {name: {"run": pa.string(), **_types(pa, kinds)} for name, kinds in schema.rollouts.items()}
    if tables:
        (folder / "rollouts").mkdir()
    with ExitStack() as stack:

        def file(name: str, of: Any) -> "_File":
            return stack.enter_context(closing(_File(pa, parquet, folder / f"{name}.parquet", of)))

        file("runs", runs.schema).add(runs)
        rows = file("steps", pa.schema(steps))
        kept = {name: file(f"rollouts/{name}", pa.schema(types)) for name, types in tables.items()}
        for record in records():
            rows.add(_steps_table(pa, record, steps))
            for name, columns in {} if record.rollouts is None else _flat(record.rollouts).items():
                kept[name].add(_rollouts_table(pa, record.key, columns, tables[name]))
    return []


class _File:
    """A file of one schema, written in row groups of a good size."""

    def __init__(self, pa: Any, parquet: Any, path: Path, schema: Any) -> None:
        self.pa, self.rows = pa, 0
        self.held: list[Any] = []
        text = [
            name for name in _WORDS if name in schema.names
        ]  # reals seldom repeat: a dictionary of them costs more than it saves
        self.writer = parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=text)

    def add(self, table: Any) -> None:
        self.held.append(table)
        self.rows += len(table)
        if self.rows >= _ROWS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self.writer.close()

    def _flush(self) -> None:
        if self.held:
            self.writer.write_table(self.pa.concat_tables(self.held))
            self.held, self.rows = [], 0


@dataclass
class _Schema:
    """The columns that runs have, with the kind that holds the values of all; grows by `take`."""

    steps: dict[str, str] = field(default_factory=dict)
    rollouts: dict[str, dict[str, str]] = field(default_factory=dict)
    _whole: dict[str, int] = field(default_factory=dict)  # largest whole number of a column

    def take(self, record: RunRecord) -> dict[str, Any]:
        """Count a run in, and return its row for runs.parquet."""
        integers = []
        for name, values in record.steps.columns.items():
            if name in _ABOUT:
                raise ExportError(f"run {record.key} has a column {name!r}, which is how the table names its runs")
            self._widen(self.steps, name, values, f"run {record.key}: column {name!r}")
            integers += [name] * (values.dtype.kind == "i")
        if record.rollouts is not None:
            for table, columns in _flat(record.rollouts).items():
                known = self.rollouts.setdefault(table, {})
                for name, values in columns.items():
                    self._widen(known, name, values, f"run {record.key}: {table}/{name}")
            integers += ["groups/task"] * (record.rollouts.groups.task.dtype.kind == "i")
        return _run_row(record, integers)

    def _widen(self, known: dict[str, str], name: str, values: np.ndarray, where: str) -> None:
        """Make the kind of a column hold these values too."""
        kind = values.dtype.kind
        if kind == "i" and len(values):
            size = max(abs(int(values.min())), abs(int(values.max())))
            self._whole[name] = max(size, self._whole.get(name, 0))
        had = known.get(name, kind)
        known[name] = kind if had == kind else "U" if "U" in (had, kind) else "f"
        if known[name] == "f" and self._whole.get(name, 0) > _EXACT:
            raise ExportError(
                f"{where} is of whole numbers in some runs and of reals in others, and {self._whole[name]} is no float: "
                "export these runs apart"
            )


def _run_row(record: RunRecord, integers: list[str]) -> dict[str, Any]:
    manifest, provenance = record.manifest, record.provenance
    row: dict[str, Any] = {"run": record.key}
    row |= {name: manifest[name] for name in ("study", "rung", "seed", "fingerprint", "rows", "columns")}
    row |= {"recorded_at": _text(provenance.get("recorded_at"))}
    row |= {name: _number(provenance.get(name)) for name in ("wall_s", "cpu_s")}
    row |= {"integers": integers, "rollouts": record.rollouts is not None}
    row |= {"tokens": record.rollouts is not None and record.rollouts.tokens is not None}
    row |= {"manifest": record.manifest_bytes().decode(), "provenance": json.dumps(provenance, sort_keys=True)}
    return row | {f"config.{path}" if path else "config": leaf for path, leaf in flatten(manifest["config"]).items()}


def _runs_table(pa: Any, rows: list[dict[str, Any]]) -> Any:
    """Return a row a run. A setting that is a number in one run and text in another is its JSON in all."""
    fixed = {
        name: pa.string() for name in ("run", "study", "rung", "fingerprint", "recorded_at", "manifest", "provenance")
    }
    fixed |= {"seed": pa.int64(), "rows": pa.int64(), "wall_s": pa.float64(), "cpu_s": pa.float64()}
    fixed |= {"columns": pa.list_(pa.string()), "integers": pa.list_(pa.string())}
    fixed |= {"rollouts": pa.bool_(), "tokens": pa.bool_()}
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row.get(name) for row in rows]
        if name in fixed:
            columns[name] = pa.array(values, fixed[name])
        else:
            columns[name] = _settings(pa, values)
    return pa.table(columns)


def _settings(pa: Any, values: list[Any]) -> Any:
    """Return a setting of every run in the narrowest type that holds them all exactly."""
    there = [value for value in values if value is not None]
    kinds = {type(value) for value in there}
    if kinds == {bool} or kinds == {str} or not kinds:
        return pa.array(values, pa.string() if not kinds else None)
    whole = [value for value in there if type(value) is int]
    if kinds == {int} and all(-(2**63) <= value < 2**63 for value in whole):
        return pa.array(values, pa.int64())
    if kinds <= {int, float} and all(abs(value) <= _EXACT for value in whole):
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else json.dumps(value) for value in values], pa.string())


def _steps_table(pa: Any, record: RunRecord, types: Mapping[str, Any]) -> Any:
    """Return the steps of a run in the columns of all, with nulls where it has none."""
    rows = len(record.steps)
    about = {"run": record.key, **{name: record.manifest[name] for name in _ABOUT[1:]}}
    arrays = []
    for name, kind in types.items():
        if name in about:
            arrays.append(pa.repeat(pa.scalar(about[name], kind), rows))
        elif name in record.steps:
            arrays.append(_array(pa, record.steps[name], kind))
        else:
            arrays.append(pa.nulls(rows, kind))
    return pa.table(dict(zip(types, arrays, strict=True)))


def _rollouts_table(pa: Any, key: str, columns: Mapping[str, np.ndarray], types: Mapping[str, Any]) -> Any:
    """Return one table of a run's rollouts."""
    arrays = {
        name: pa.repeat(pa.scalar(key, kind), len(columns["row"])) if name == "run" else _array(pa, columns[name], kind)
        for name, kind in types.items()
    }
    return pa.table(arrays)


def _flat(rollouts: Rollouts) -> dict[str, dict[str, np.ndarray]]:
    """Return the tables of rollouts with parents' rows in place of offsets, by table and column."""
    flat = rollouts.columns()
    tables: dict[str, dict[str, np.ndarray]] = {}
    for table in _TABLES:
        columns = {name.partition("/")[2]: values for name, values in flat.items() if name.startswith(f"{table}/")}
        if not columns:
            continue  # no tokens are kept
        found = {name: values for name, values in columns.items() if not name.endswith("offsets")}
        made: dict[str, np.ndarray] = {"row": np.arange(len(next(iter(found.values()))))}
        if table in PARENTS:
            column, offsets = PARENTS[table]
            made[column] = parents(flat[offsets])
        tables[table] = {**made, **found}
    return tables


def _array(pa: Any, values: np.ndarray, kind: Any) -> Any:
    if kind == pa.string():
        return pa.array([str(value) for value in values.tolist()], kind)
    return pa.array(values.astype(np.float64) if kind == pa.float64() else values, kind, from_pandas=False)


def _types(pa: Any, kinds: Mapping[str, str]) -> dict[str, Any]:
    """Return the types of columns of which the kinds are known, as numpy has them."""
    types = {"i": pa.int64(), "f": pa.float64(), "b": pa.bool_(), "U": pa.string()}
    return {name: types[kind] for name, kind in kinds.items()}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ExportError('Parquet needs pyarrow, which is not installed: pip install "metastable[parquet]"') from error
    return pa, parquet
