"""Runs in lines of text: a list of them, a comparison, and what pruning would remove."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sim.records.run import RunRecord
from studies.kit.runs.compare import Comparison, Departure
from studies.kit.runs.listing import Row, plain
from studies.kit.runs.prune import Plan
from studies.kit.runs.words import amount, columns, departures, moment, value
from studies.kit.words import number

__all__ = ["as_json", "compared_lines", "listed_lines", "planned_lines", "total"]

Departs = Mapping[str, Mapping[str, tuple[Any, Any]]]
_HEADER = ["key", "study", "rung", "seed", "steps", "code", "recorded", "wall s", "cpu s", "size", "config"]
_MOST_KEPT, _MOST_GOING = 12, 40  # lines of a plan: more are not read


def planned_lines(planned: Plan) -> list[str]:
    """Put a plan into words: what goes, what stays and why."""
    about = [[row.name, row.study if row.is_run else row.kind, _seed(row), amount(row.size)] for row in planned.going]
    lines = columns(about[:_MOST_GOING], right=(3,))
    if len(about) > _MOST_GOING:
        lines.append(f"and {len(about) - _MOST_GOING} more")
    lines.append(f"{len(about)} would go, {amount(planned.size)}" if about else "nothing would go")
    if planned.kept:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(planned.counts.items()))
        lines.append(f"{len(planned.kept)} stay ({counts})")
        lines += [f"  {row.name}: {reasons[0].words}" for row, reasons in planned.kept[:_MOST_KEPT]]
        lines += ["  ..."] * (len(planned.kept) > _MOST_KEPT)
    return lines


def listed_lines(listed: Sequence[Row], unread: Sequence[Row], departs: Departs) -> list[str]:
    """Put runs into a table, followed by the folders that cannot be read as runs; ``departs`` as `against` gives it."""
    rows = [_HEADER]
    for row in listed:
        made = [number(row.seconds(name)) for name in ("wall_s", "cpu_s")]
        rung, steps = str(row.manifest["rung"]), str(row.manifest["rows"])
        facts = [row.name, row.study, rung, _seed(row), steps, row.code, moment(row.recorded), *made]
        rows.append([*facts, amount(row.size), departures(departs[row.name])])
    lines = columns(rows, right=(3, 4, 7, 8, 9)) if listed else []
    return lines + [f"{row.name}  {row.kind}: {row.problem}" for row in unread]


def total(found: Sequence[Row], listed: Sequence[Row], rows: Sequence[Row]) -> str:
    """Put the end of a list into words: how many, of how many, and what else lies there."""
    runs_here = sum(row.is_run for row in rows)
    size = sum(row.size for row in found)
    words = f"{len(found)} of {runs_here} runs, {amount(size)}"
    if len(listed) < len(found):
        words += f"; {len(found) - len(listed)} not listed (--limit)"
    kinds = [row.kind for row in rows if not row.is_run]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return words + (f"; besides {', '.join(counts)}" if counts else "")


def as_json(listed: Sequence[Row], unread: Sequence[Row], departs: Departs) -> str:
    """Return the same as a JSON list, one run a line."""
    items = [json.dumps(plain(row, departs.get(row.name)), sort_keys=True) for row in (*listed, *unread)]
    return "[" + ",\n ".join(items) + "]"


def compared_lines(a: RunRecord, b: RunRecord, found: Comparison) -> list[str]:
    """Put a comparison into words: how the runs were meant to differ, and every column that does."""
    lines = [f"{a.key} and {b.key}: {found.kin}"]
    for title, pairs in (("identity", found.identity), ("config", found.config)):
        if pairs:
            lines.append(title)
            cells = [[path, value(left)[:48], value(right)[:48]] for path, (left, right) in pairs.items()]
            lines += [f"  {line}" for line in columns(cells)]
    both, *lonely = found.steps
    for record, steps, names in zip((a, b), lonely, found.only, strict=True):
        if steps:
            lines.append(f"only {record.key} has {steps} steps beside the {both} that both have")
        if names:
            lines.append(f"only {record.key} has {', '.join(names)}")
    if found.departures:
        lines.append(f"columns that differ ({len(found.departures)} of {found.common}), with the largest difference")
        lines += [f"  {line}" for line in columns([_departure(each) for each in found.departures], right=(1,))]
    else:
        lines.append(f"{'the' if found.same else 'shared'} columns and steps are equal, bit for bit")
    return lines


def _departure(found: Departure) -> tuple[str, str, str, str]:
    """Return cells: column, largest difference, where, first step."""
    return found.column, number(found.largest), f"at step {found.at}", f"from step {found.first} ({found.steps} differ)"


def _seed(row: Row) -> str:
    return str(row.manifest["seed"]) if row.is_run else ""
