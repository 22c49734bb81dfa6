"""A run in words: what it was asked to do, how it came about, and every column in a line."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sim.records.config import flatten
from sim.records.rollouts import Outcome, Rollouts
from sim.records.run import RunRecord
from sim.records.steps import StepTable
from studies.kit.runs.listing import Row
from studies.kit.runs.references import Reason
from studies.kit.runs.words import amount, columns, moment, sparkline, value
from studies.kit.words import number

__all__ = ["shown"]


def shown(row: Row, record: RunRecord, reasons: Iterable[Reason]) -> Iterator[str]:
    """Yield the lines that describe a run; ``reasons`` are those for which it would not be removed."""
    manifest = record.manifest
    yield f"{row.name}  {manifest['study']}, {manifest['rung']}, seed {manifest['seed']}, {manifest['rows']} steps"
    yield f"recorded {moment(row.recorded)} with {row.code} code ({manifest['fingerprint'][:12]}), {amount(row.size)}"
    yield "config"
    yield from _indented([path or "config", value(leaf)] for path, leaf in flatten(manifest["config"]).items())
    yield "provenance"
    yield from _indented([name, _plain(found)] for name, found in sorted(record.provenance.items()))
    yield "columns"
    yield from _columns(record.steps)
    if record.rollouts is not None:
        yield "rollouts"
        yield from _indented(_rollouts(record.rollouts))
    reasons = list(reasons)
    yield "kept, because" if reasons else "nothing refers to it: `metastable runs prune` may remove it"
    yield from (f"  {reason.words}" for reason in reasons)


def _columns(steps: StepTable) -> list[str]:
    """Return a line a column: name, first, last, least and greatest (of those that are numbers), curve, what is missing."""
    rows: list[tuple[str, ...]] = [("", "first", "last", "min", "max", "", "")]
    for name in steps.names:
        values = steps[name]
        if not len(values):
            continue
        real = values[~np.isnan(values)]
        ends = [values[0], values[-1], *([real.min(), real.max()] if len(real) else [np.nan, np.nan])]
        missing = len(values) - len(real)
        gaps = f"{missing} NaN" if missing else ""
        rows.append((name, *(number(float(end)) for end in ends), sparkline(values), gaps))
    return [f"  {line}" for line in columns(rows, right=(1, 2, 3, 4))]


def _rollouts(rollouts: Rollouts) -> Iterator[list[str]]:
    yield ["groups", str(len(rollouts.groups))]
    yield ["trajectories", str(len(rollouts))]
    yield ["turns", str(len(rollouts.turns))]
    if rollouts.tokens is not None:
        yield ["tokens", str(len(rollouts.tokens))]
    for outcome in Outcome:
        count = int(np.sum(rollouts.trajectories.outcome == outcome))
        if count:
            yield [outcome.words, str(count)]


def _indented(cells: Iterable[list[str]]) -> list[str]:
    return [f"  {line}" for line in columns(list(cells))]


def _plain(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found, sort_keys=True)
