"""What must hold between the tables of rollouts; checked once, when a record is built."""

from __future__ import annotations

from typing import Any

import numpy as np

from sim.records.tables import (
    Array,
    Groups,
    Outcome,
    Pauses,
    Reason,
    RecordError,
    Segments,
    Tokens,
    Trajectories,
    Turns,
    parents,
)

__all__ = ["check_rollouts"]

_ROUNDING = 1e-6  # what a log-softmax in single precision may exceed 0 by


def check_rollouts(
    groups: Groups,
    trajectories: Trajectories,
    segments: Segments,
    turns: Turns,
    tokens: Tokens | None,
    pauses: Pauses,
) -> None:
    """Check all tables and their links. RecordError names table, field, row, value, bound and way out."""
    _check_offsets("groups.offsets", groups.offsets, len(trajectories), "trajectories", empty=False)
    _check_offsets("trajectories.offsets", trajectories.offsets, len(segments), "segments", empty=False)
    _check_offsets("segments.offsets", segments.offsets, len(turns), "turns")
    _check_offsets("segments.pause_offsets", segments.pause_offsets, len(pauses), "pauses")
    _check_offsets("turns.offsets", turns.offsets, 0 if tokens is None else len(tokens), "tokens")
    _check_groups(groups)
    _check_trajectories(trajectories)
    _check_tree(trajectories, segments)
    _check_versions(segments)
    _check_times(segments, pauses)
    _check_turns(segments, turns)
    if tokens is not None:
        _check_tokens(segments, turns, tokens)


def _refuse(bad: Array, field: str, values: Any, bound: str, way_out: str) -> None:
    """Raise for the first row where ``bad`` holds."""
    if np.any(bad):
        row = int(np.argmax(bad))
        value = values[row].item() if isinstance(values, np.ndarray) else values[row]
        raise RecordError(f"{field}[{row}] = {value!r}: must be {bound}; {way_out}")


def _check_offsets(field: str, offsets: Array, length: int, below: str, empty: bool = True) -> None:
    ends = np.zeros(len(offsets), dtype=bool)
    ends[0] = offsets[0] != 0
    _refuse(ends, field, offsets, "0 at the start", "offsets begin with 0 and then count up")
    gaps = np.concatenate([[0], np.diff(offsets)])
    _refuse(gaps < 0, field, offsets, "no less than the offset before it", "keep the rows of one parent together")
    ends[0], ends[-1] = False, offsets[-1] != length
    _refuse(ends, field, offsets, f"{length} at the end, the number of {below}", f"count each of the {below} once")
    if not empty:
        gaps[0] = 1
        way_out = f"leave out a parent without {below}"
        _refuse(gaps == 0, field, offsets, "more than the offset before it", way_out)


def _check_groups(groups: Groups) -> None:
    seen: set[tuple[Any, str]] = set()
    for row, key in enumerate(zip(groups.task.tolist(), groups.role.tolist(), strict=True)):
        if key in seen:
            raise RecordError(
                f"groups.task[{row}] = {key[0]!r} with role {key[1]!r}: must not repeat an earlier group; "
                f"put all trajectories of one (task, role) into one group"
            )
        seen.add(key)


def _check_trajectories(trajectories: Trajectories) -> None:
    outcome, reward = trajectories.outcome, trajectories.reward
    codes = ", ".join(f"{each.value} {each.words}" for each in Outcome)
    _refuse(~np.isin(outcome, list(Outcome)), "trajectories.outcome", outcome, f"one of {codes}", "use Outcome")
    failed = np.isin(outcome, (Outcome.INFRASTRUCTURE_FAILURE, Outcome.NOT_RECORDED))
    way_out = "a trajectory without reward has the outcome infrastructure failure, or not recorded"
    _refuse(np.isnan(reward) & ~failed, "trajectories.reward", reward, "a number", way_out)
    _refuse(np.isinf(reward), "trajectories.reward", reward, "finite", "bound the reward where it is computed")
    late = trajectories.end < trajectories.start
    _refuse(late, "trajectories.end", trajectories.end, "no earlier than its start", "use one clock for both")


def _check_tree(trajectories: Trajectories, segments: Segments) -> None:
    parent, reason, rows = segments.parent, segments.reason, np.arange(len(segments))
    bound = "-1 or the row of an earlier segment"
    _refuse((parent < -1) | (parent >= rows), "segments.parent", parent, bound, "write parents before children")
    owner = parents(trajectories.offsets)
    strange = (parent >= 0) & (owner[np.maximum(parent, 0)] != owner)
    _refuse(strange, "segments.parent", parent, "in the same trajectory", "a sub-agent's segments belong to its caller")
    codes = ", ".join(f"{each.value} {each.name.lower()}" for each in Reason)
    _refuse(~np.isin(reason, list(Reason)), "segments.reason", reason, f"one of {codes}", "use Reason")
    orphan = (reason != Reason.START) & (parent < 0)
    _refuse(orphan, "segments.parent", parent, "a segment, as the reason is not start", "name what it continues")


def _check_versions(segments: Segments) -> None:
    oldest, newest, taken = segments.version_oldest, segments.version_newest, segments.take_version
    for field, values in (("version_oldest", oldest), ("version_newest", newest), ("take_version", taken)):
        _refuse(values < -1, f"segments.{field}", values, "-1 or more", "-1 says that nobody noted it")
    halves = (oldest < 0) != (newest < 0)
    _refuse(halves, "segments.version_newest", newest, "noted where version_oldest is, and only there", "note both")
    bound = "no less than version_oldest"
    _refuse(newest < oldest, "segments.version_newest", newest, bound, "note a version when tokens are asked for")
    early = (taken >= 0) & (taken < newest)
    _refuse(early, "segments.take_version", taken, "no less than version_newest", "note the learner's own version")


def _check_times(segments: Segments, pauses: Pauses) -> None:
    way_out = "use one clock throughout"
    order = (("end", segments.end, "start", segments.start), ("take_time", segments.take_time, "end", segments.end))
    for field, later, before, earlier in order:
        _refuse(later < earlier, f"segments.{field}", later, f"no earlier than its {before}", way_out)
    _refuse(np.isnan(pauses.start), "pauses.start", pauses.start, "a time", "leave out a pause that was not timed")
    _refuse(~(pauses.end >= pauses.start), "pauses.end", pauses.end, "no earlier than its start", way_out)
    owner = parents(segments.pause_offsets)
    _refuse(pauses.start < segments.start[owner], "pauses.start", pauses.start, "inside its segment", way_out)
    _refuse(pauses.end > segments.end[owner], "pauses.end", pauses.end, "inside its segment", way_out)
    overlap = np.zeros(len(pauses), dtype=bool)
    overlap[1:] = (owner[1:] == owner[:-1]) & (pauses.start[1:] < pauses.end[:-1])
    _refuse(overlap, "pauses.start", pauses.start, "no earlier than the end of the pause before it", "sort the pauses")


def _check_turns(segments: Segments, turns: Turns) -> None:
    way_out = "count turns from the start of the trajectory"
    _refuse(turns.index < 0, "turns.index", turns.index, "0 or more", way_out)
    owner, falls = parents(segments.offsets), np.zeros(len(turns), dtype=bool)
    falls[1:] = (owner[1:] == owner[:-1]) & (np.diff(turns.index) <= 0)
    _refuse(falls, "turns.index", turns.index, "above the turn before it in its segment", way_out)
    for field in ("generated", "observed"):
        values = getattr(turns, field)
        _refuse(values < 0, f"turns.{field}", values, "0 or more", "it counts tokens")
    _refuse(turns.entropy < -_ROUNDING, "turns.entropy", turns.entropy, "0 or more", "entropy is not a log-probability")
    _check_logps("turns", turns)


def _check_logps(table: str, rows: Turns | Tokens) -> None:
    for field in ("logp_behaviour", "logp_proximal", "logp_reference"):
        values = getattr(rows, field)
        way_out = "keep log-probabilities in nats, not losses"
        _refuse(values > _ROUNDING, f"{table}.{field}", values, "0 or less", way_out)


def _check_tokens(segments: Segments, turns: Turns, tokens: Tokens) -> None:
    _refuse(tokens.train & ~tokens.sampled, "tokens.train", tokens.train, "False where nothing was sampled", "mask it")
    counts = np.bincount(parents(turns.offsets), weights=tokens.sampled, minlength=len(turns)).astype(np.int64)
    bound = "the number of its sampled tokens"
    _refuse(turns.generated != counts, "turns.generated", turns.generated, bound, "count the sampled tokens")
    version = tokens.version
    _refuse(version < -1, "tokens.version", version, "-1 or more", "-1 says that nobody noted it")
    _refuse((version >= 0) & ~tokens.sampled, "tokens.version", version, "-1, as it was not sampled", "leave it out")
    owner = parents(segments.offsets)[parents(turns.offsets)]
    oldest, newest = segments.version_oldest[owner], segments.version_newest[owner]
    outside = (version >= 0) & (newest >= 0) & ((version < oldest) | (version > newest))
    way_out = "a segment's oldest and newest span its tokens' versions"
    _refuse(outside, "tokens.version", version, "within its segment's versions", way_out)
    _check_logps("tokens", tokens)
