"""Runs as event files of TensorBoard: ``tensorboard --logdir OUT``.

    OUT/STUDY/RUNG/seed0-KEY/events.out.tfevents.0.metastable      a scalar a column and step, and the settings

A scalar of TensorBoard is a float32: values are rounded to the nearest, NaN and infinities stay, and whole numbers are
exact to 2**24. (Tensors of float64 are read by some of its readers, but the server that ``tensorboard`` starts leaves
them out.) All times are the moment at which the run was recorded, so that the same runs give the same bytes. Settings
that differ between the exported runs are hyperparameters, with study and seed.

It needs the package tensorboard, which is an extra: ``pip install "metastable[tensorboard]"``.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sim.records.config import flatten
from sim.records.run import RunRecord
from studies.kit.export.folder import ExportError

__all__ = ["FILE", "check_installed", "place", "write"]

FILE = "events.out.tfevents.0.metastable"
"""Name of a run's event file: TensorBoard knows it by the second word."""
_EXACT = 2**24


def check_installed() -> None:
    """ExportError without tensorboard."""
    _tensorboard()


def place(record: RunRecord) -> str:
    """Return the folder of a run, from that of the export: study, rung, and a name that no other run has."""
    names = (str(record.manifest["study"]), str(record.manifest["rung"]))
    study, rung = (re.sub(r"[^\w-]", "_", name) or "_" for name in names)
    return f"{study}/{rung}/seed{record.seed}-{record.key}"


def write(records: Callable[[], Iterable[RunRecord]], folder: Path) -> list[str]:
    """Write the runs of ``records()``, which is gone through twice; return a line for what float32 cannot hold.

    ExportError for steps that are no whole numbers.
    """
    event, writer = _tensorboard()
    varied = _varied(records())
    notes = []
    for record in records():
        at = folder / place(record)
        at.mkdir(parents=True)
        notes += _beyond(record)
        with (at / FILE).open("wb") as file:
            out = writer(file)
            moment = _moment(record)
            out.write(event.Event(wall_time=moment, file_version="brain.Event:2").SerializeToString())
            for summary in _settings(record, varied, moment):
                out.write(event.Event(wall_time=moment, summary=summary).SerializeToString())
            for step, values in _scalars(record):
                out.write(event.Event(wall_time=moment, step=step, summary={"value": values}).SerializeToString())
    return notes


def _scalars(record: RunRecord) -> Iterable[tuple[int, list[dict[str, Any]]]]:
    """Yield (step, a value a column) for each row of the step table."""
    steps = record.steps["step"]
    whole = steps.astype(np.int64) if np.isfinite(steps).all() and np.abs(steps).max(initial=0) < 2**62 else steps
    if whole.dtype != np.int64 or (whole != steps).any():
        raise ExportError(f"run {record.key} has steps that are no whole numbers, as TensorBoard's are: --to parquet")
    names = [name for name in record.steps.names if name != "step"]
    with np.errstate(over="ignore"):  # said by _beyond
        columns = [record.steps[name].astype(np.float32).tolist() for name in names]
    for row, step in enumerate(whole.tolist()):
        yield step, [{"tag": name, "simple_value": column[row]} for name, column in zip(names, columns, strict=True)]


def _beyond(record: RunRecord) -> list[str]:
    """Return a line for each column with values that a float32 makes infinite, or whole numbers that it rounds."""
    lines = []
    most = float(np.finfo(np.float32).max)
    for name, values in record.steps.columns.items():
        if name == "step":
            continue
        if values.dtype.kind == "f":
            with np.errstate(over="ignore"):
                lost = int(np.sum(np.isfinite(values) & ~np.isfinite(values.astype(np.float32))))
            words = f"beyond {most:.2g}, written as infinite"
        else:
            lost = int(np.sum(values.astype(np.float32).astype(np.float64) != values))
            words = f"beyond 2**24 = {_EXACT}, rounded"
        if lost:
            lines.append(f"run {record.key}, column {name}: {lost} value{'s' * (lost > 1)} {words}")
    return lines


def _varied(records: Iterable[RunRecord]) -> frozenset[str]:
    """Return the settings that are not the same in all runs."""
    seen: dict[str, set[str]] = {}
    for record in records:
        for path, leaf in flatten(record.manifest["config"]).items():
            seen.setdefault(path, set()).add(repr(leaf))
    return frozenset(path for path, leaves in seen.items() if len(leaves) > 1)


def _settings(record: RunRecord, varied: frozenset[str], moment: float) -> Iterable[Any]:
    """Yield the summaries that TensorBoard's table of hyperparameters reads; its own writer of them needs TensorFlow."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.plugins.hparams import metadata
    from tensorboard.plugins.hparams.api_pb2 import STATUS_SUCCESS
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo, SessionStartInfo

    start = SessionStartInfo(group_name=record.key, start_time_secs=moment)
    leaves = flatten(record.manifest["config"])
    settings = {path: leaves[path] for path in varied & leaves.keys() if leaves[path] is not None}
    for path, leaf in {**settings, "study": record.manifest["study"], "seed": record.seed}.items():
        of = "bool_value" if isinstance(leaf, bool) else "string_value" if isinstance(leaf, str) else "number_value"
        setattr(start.hparams[path], of, leaf)
    end = SessionEndInfo(status=STATUS_SUCCESS, end_time_secs=moment)
    for tag, about in (
        (metadata.SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=start)),
        (metadata.SESSION_END_INFO_TAG, HParamsPluginData(session_end_info=end)),
    ):
        content = about.SerializeToString(deterministic=True)
        data = SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME, content=content)
        found = Summary.Value(tag=tag, tensor=metadata.NULL_TENSOR, metadata=SummaryMetadata(plugin_data=data))
        yield Summary(value=[found])


def _moment(record: RunRecord) -> float:
    """Return when a run was recorded, s since 1970; 0 where that is not known."""
    try:
        when = datetime.fromisoformat(str(record.provenance["recorded_at"]))
    except (KeyError, ValueError):
        return 0.0
    return (when.replace(tzinfo=UTC) if when.tzinfo is None else when).timestamp()


def _tensorboard() -> tuple[Any, Any]:
    try:
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter
    except ImportError as error:
        raise ExportError(
            'TensorBoard needs tensorboard, which is not installed: pip install "metastable[tensorboard]"'
        ) from error
    return event_pb2, RecordWriter
