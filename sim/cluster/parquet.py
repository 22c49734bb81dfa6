"""Event logs as Parquet files, for polars, DuckDB and the like; with metadata about the run in the schema.

It needs pyarrow, which is an extra: ``pip install "metastable[parquet]"``. A log without it is saved by
:meth:`sim.cluster.events.EventLog.save`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from sim.cluster.events import EventLog

__all__ = ["read_parquet", "write_parquet"]

_REPEATING = ["kind", "entity", "turn", "version"]  # few values each; the others are smaller without a dictionary


def write_parquet(log: EventLog, path: Path, metadata: Mapping[str, str]) -> None:
    """Write one column a field, compressed with zstd. The file appears whole or not at all.

    Parameters
    ----------
    log
        The events.
    path
        Where; a file that is there is replaced.
    metadata
        What the run was (config, seed, versions), kept in the schema.

    Raises
    ------
    ImportError
        Without pyarrow.
    """
    pa, parquet = _pyarrow()
    names = [f.name for f in fields(EventLog)]
    table = pa.table({name: getattr(log, name) for name in names}).replace_schema_metadata(dict(metadata))
    writing = path.with_name(f".writing-{path.name}-{uuid.uuid4().hex}")
    try:
        parquet.write_table(table, writing, compression="zstd", use_dictionary=_REPEATING)
        writing.replace(path)
    finally:
        writing.unlink(missing_ok=True)


def read_parquet(path: Path) -> tuple[EventLog, dict[str, str]]:
    """Return the log and the metadata that :func:`write_parquet` wrote.

    Raises
    ------
    ValueError
        When the file is no event log; names the missing column.
    ImportError
        Without pyarrow.
    """
    _, parquet = _pyarrow()
    table = parquet.read_table(path)
    missing = [f.name for f in fields(EventLog) if f.name not in table.column_names]
    if missing:
        raise ValueError(
            f"{path} is no event log: it has no column {missing[0]!r}; write one with sim.cluster.parquet.write_parquet"
        )
    metadata = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
    return EventLog(*(table.column(f.name).to_numpy() for f in fields(EventLog))), metadata


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(
            'Parquet needs pyarrow, which is not installed: pip install "metastable[parquet]", or use EventLog.save'
        ) from error
    return pa, parquet
