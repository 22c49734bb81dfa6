"""Rollouts as trees, one trajectory at a time: what an agent appends to, a reader builds and a person looks at."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.records.tables import (
    Groups,
    Outcome,
    Pauses,
    Reason,
    RecordError,
    Segments,
    Table,
    Tokens,
    Trajectories,
    Turns,
)

if TYPE_CHECKING:
    from sim.records.rollouts import Rollouts

__all__ = ["Segment", "Trajectory", "Turn", "describe", "flatten", "group_rows", "unflatten"]

Key = tuple[int | str, str]


@dataclass(frozen=True)
class Turn:
    """One decision. See `sim.records.tables.Turns` for the fields."""

    action: int
    """Which decision."""
    index: int
    """Place in the trajectory."""
    context: int = -1
    """What the policy conditions on."""
    state_id: int = -1
    """Number shared by identical observations."""
    generated: int = 0
    """Tokens sampled."""
    observed: int = 0
    """Tokens that came back."""
    logp_behaviour: float = math.nan
    """Log-probability under the policy that made it."""
    logp_proximal: float = math.nan
    """The same at the start of the update."""
    logp_reference: float = math.nan
    """The same under the reference."""
    entropy: float = math.nan
    """Entropy of its first tokens."""
    tokens: Tokens | None = None
    """Its tokens; in the first turn of a segment, the prompt's before them."""


@dataclass(frozen=True)
class Segment:
    """One contiguous prompt with what was sampled after it. See `sim.records.tables.Segments`."""

    turns: tuple[Turn, ...]
    """In order."""
    parent: int = -1
    """Place in the trajectory of the segment it continues or was called from."""
    role: str = "main"
    """``main``, or a sub-agent's name."""
    reason: Reason = Reason.START
    """Why it began."""
    version_oldest: int = -1
    """Oldest version that sampled in it."""
    version_newest: int = -1
    """Newest version that sampled in it."""
    start: float = math.nan
    """Start in seconds."""
    end: float = math.nan
    """End in seconds."""
    take_time: float = math.nan
    """When the learner took it."""
    take_version: int = -1
    """The learner's version then."""
    pauses: tuple[tuple[float, float], ...] = ()
    """Start and end of each pause."""


@dataclass(frozen=True)
class Trajectory:
    """One attempt at a task."""

    task: int | str
    """The question or task."""
    segments: tuple[Segment, ...]
    """Parents before children."""
    reward: float
    """Final reward; NaN if the infrastructure failed or none was recorded."""
    outcome: Outcome
    """How it ended."""
    role: str = "main"
    """Role of its group."""
    start: float = math.nan
    """Start in seconds."""
    end: float = math.nan
    """End in seconds."""


def group_rows(keys: Sequence[Key]) -> tuple[list[Key], np.ndarray]:
    """The different keys, sorted, and for each row the place of its key among them.

    The key of a row is (task, role). A row's own id never enters: a group of one would have no baseline but itself.

    >>> group_rows([("b", "main"), ("a", "main"), ("b", "main")])
    ([('a', 'main'), ('b', 'main')], array([1, 0, 1]))
    """
    if len({isinstance(task, str) for task, _ in keys}) > 1:
        raise RecordError("some tasks are integers and others texts: name all of them in one way")
    known = sorted(set(keys))
    place = {key: index for index, key in enumerate(known)}
    return known, np.array([place[key] for key in keys], dtype=np.int64)


def flatten(trajectories: Sequence[Trajectory], baselines: Mapping[Key, float]) -> dict[str, Any]:
    """The tables of trajectories in any order."""
    keys, place = group_rows([(each.task, each.role) for each in trajectories])
    ordered = [trajectories[row] for row in np.argsort(place, kind="stable")]
    segments = [segment for each in ordered for segment in each.segments]
    turns = [turn for segment in segments for turn in segment.turns]
    pauses = [pause for segment in segments for pause in segment.pauses]
    first = np.cumsum([0] + [len(each.segments) for each in ordered])
    local = [(segment.parent, first[row]) for row, each in enumerate(ordered) for segment in each.segments]
    parent = np.array([near if near < 0 else near + start for near, start in local], dtype=np.int64)
    tokens = _join_tokens(turns)
    return {
        "groups": Groups(
            task=np.array([task for task, _ in keys]),
            role=np.array([role for _, role in keys]),
            baseline=np.array([baselines.get(key, math.nan) for key in keys]),
            offsets=_offsets(np.bincount(place, minlength=len(keys)).tolist()),
        ),
        "trajectories": Trajectories(
            offsets=_offsets([len(each.segments) for each in ordered]),
            **_gather(Trajectories, ordered),
        ),
        "segments": Segments(
            parent=parent,
            offsets=_offsets([len(segment.turns) for segment in segments]),
            pause_offsets=_offsets([len(segment.pauses) for segment in segments]),
            **_gather(Segments, segments),
        ),
        "turns": Turns(
            offsets=_offsets([0 if turn.tokens is None else len(turn.tokens) for turn in turns]),
            **_gather(Turns, turns),
        ),
        "tokens": tokens,
        "pauses": Pauses(start=np.array([start for start, _ in pauses]), end=np.array([end for _, end in pauses])),
    }


def unflatten(rollouts: Rollouts, row: int) -> Trajectory:
    """The tree of one trajectory."""
    group = int(np.searchsorted(rollouts.groups.offsets, row, side="right")) - 1
    first, last = rollouts.trajectories.offsets[row : row + 2].tolist()
    values = _row(rollouts.trajectories, row)
    return Trajectory(
        task=rollouts.groups.task[group].item(),
        role=str(rollouts.groups.role[group]),
        segments=tuple(_segment(rollouts, each, first) for each in range(first, last)),
        **{**values, "outcome": Outcome(values["outcome"])},
    )


def describe(
    rollouts: Rollouts,
    row: int,
    action: Callable[[int], str] = str,
    context: Callable[[int], str] = str,
) -> str:
    """One trajectory for the terminal: a line for it, one for each segment where there are several, one for each turn.

    ``action`` and ``context`` name the codes. Control characters in names are escaped: they come from outside.
    """
    tree = rollouts.trajectory(row)
    count = sum(len(segment.turns) for segment in tree.segments)
    head = f"task {tree.task} ({tree.role}), trajectory {row}: {tree.outcome.words}, reward {tree.reward:g}"
    lines = [f"{head}, {count} turn{'' if count == 1 else 's'}{_span(tree.start, tree.end)}"]
    for place, segment in enumerate(tree.segments):
        if len(tree.segments) > 1:
            origin = "" if segment.parent < 0 else f" of segment {segment.parent}"
            about = f"{segment.role}, {segment.reason.name.lower()}{origin}{_versions(segment)}"
            lines.append(f"  segment {place}: {about}{_span(segment.start, segment.end)}")
        lines += [f"  {_turn_line(turn, action, context)}" for turn in segment.turns]
    return "\n".join(_printable(line) for line in lines)


def _segment(rollouts: Rollouts, row: int, first: int) -> Segment:
    values = _row(rollouts.segments, row)
    start, stop = rollouts.segments.pause_offsets[row : row + 2].tolist()
    assert rollouts.pauses is not None
    spans = rollouts.pauses.rows(start, stop)
    turns = range(*rollouts.segments.offsets[row : row + 2].tolist())
    parent = values.pop("parent")
    return Segment(
        turns=tuple(_turn(rollouts, each) for each in turns),
        parent=parent if parent < 0 else parent - first,
        pauses=tuple(zip(spans.start.tolist(), spans.end.tolist(), strict=True)),
        **{**values, "reason": Reason(values["reason"])},
    )


def _turn(rollouts: Rollouts, row: int) -> Turn:
    start, stop = rollouts.turns.offsets[row : row + 2].tolist()
    return Turn(
        tokens=None if rollouts.tokens is None else rollouts.tokens.rows(start, stop),
        **_row(rollouts.turns, row),
    )


def _row(table: Table, row: int) -> dict[str, Any]:
    """One row of a table as plain values, without offsets."""
    columns = table.columns()
    return {name: values[row].item() for name, values in columns.items() if not name.endswith("offsets")}


def _gather(table: type[Table], items: Sequence[Any]) -> dict[str, np.ndarray]:
    """The columns of a table that its items carry under the same name."""
    names = [each.name for each in fields(table) if not each.name.endswith("offsets") and each.name != "parent"]
    return {name: np.array([getattr(item, name) for item in items]) for name in names}


def _join_tokens(turns: Sequence[Turn]) -> Tokens | None:
    kept = [turn.tokens for turn in turns if turn.tokens is not None]
    if not kept:
        return None
    if len(kept) != len(turns):
        raise RecordError(f"{len(kept)} of {len(turns)} turns have tokens: give all of them tokens, or none")
    names = Tokens.__dataclass_fields__
    return Tokens(**{name: np.concatenate([getattr(each, name) for each in kept]) for name in names})


def _offsets(counts: Sequence[int]) -> np.ndarray:
    return np.cumsum([0, *counts], dtype=np.int64)


def _turn_line(turn: Turn, action: Callable[[int], str], context: Callable[[int], str]) -> str:
    parts = [f"turn {turn.index:<3}"]
    if turn.context >= 0:
        parts.append(f"context {context(turn.context):<10}")
    if turn.state_id >= 0:
        parts.append(f"state {turn.state_id:<6}")
    parts.append(f"{action(turn.action):<10} generated {turn.generated:<5} observed {turn.observed:<5}")
    names = (("logp", turn.logp_behaviour), ("proximal", turn.logp_proximal), ("reference", turn.logp_reference))
    parts += [f"{name} {value:.3f}" for name, value in (*names, ("entropy", turn.entropy)) if not math.isnan(value)]
    return "  ".join(parts).rstrip()


def _versions(segment: Segment) -> str:
    if segment.version_oldest < 0:
        return ""
    return f", versions {segment.version_oldest} to {segment.version_newest}"


def _span(start: float, end: float) -> str:
    return "" if math.isnan(start) or math.isnan(end) else f", {start:.1f} to {end:.1f} s"


def _printable(line: str) -> str:
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
