"""How old the weights were that wrote what a cluster generated, when it was written and when it was used.

Versions are those of chunks, each stamped when it began: a turn that a publication interrupts has several, and its last one
says nothing of the others. A version that nobody noted (-1) is not a lag of 0: it lowers the coverage.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.events import EventLog, Kind

__all__ = [
    "Chunks",
    "VersionSpans",
    "chunks",
    "lag_sums",
    "published_at",
    "staleness_at_generation",
    "staleness_at_use",
    "taken",
    "token_versions",
    "versions_at",
]

Rows = NDArray[np.intp]
_KEPT = (Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT)


@dataclass(frozen=True, eq=False)
class Chunks:
    """The chunks whose tokens were kept, one an element, in the order in which they ended."""

    traj: NDArray[np.int32]
    """Trajectory, [n]."""
    turn: NDArray[np.int16]
    """Turn, [n]."""
    version: NDArray[np.int32]
    """Version that wrote it, stamped when it began; -1 where nobody noted it, [n]."""
    published: NDArray[np.int64]
    """Version published when it began, [n]."""
    tokens: NDArray[np.float64]
    """Tokens, [n]."""


@dataclass(frozen=True, eq=False)
class VersionSpans:
    """Versions, or lags in versions, of trajectories, one an element. NaN where no version is known."""

    traj: NDArray[np.int32]
    """Trajectory, rising, [n]."""
    oldest: NDArray[np.float64]
    """Of the oldest version that wrote any of it, [n]."""
    newest: NDArray[np.float64]
    """Of the newest version that wrote any of it, [n]."""
    token_mean: NDArray[np.float64]
    """Mean over the tokens whose version is known, [n]."""
    coverage: NDArray[np.float64]
    """Share of the tokens whose version is known; NaN where nothing was written, [n]."""


def chunks(log: EventLog) -> Chunks:
    """Return the chunks whose tokens were kept: those that ended, were paused or preempted, not those that were aborted."""
    ends, starts = log.of_kind(*_KEPT), log.of_kind(Kind.GEN_START)
    # A trajectory is in one place at a time, so a chunk's start is the last of its trajectory before its end.
    by_traj = starts[np.argsort(log.traj[starts], kind="stable")]
    keys = log.traj[by_traj].astype(np.int64) * (len(log) + 1) + by_traj
    before = np.searchsorted(keys, log.traj[ends].astype(np.int64) * (len(log) + 1) + ends) - 1
    begun = by_traj[np.maximum(before, 0)] if len(starts) else ends
    published = published_at(log, begun)
    return Chunks(log.traj[ends], log.turn[ends], log.version[ends], published, log.value[ends])


def token_versions(log: EventLog) -> VersionSpans:
    """Return oldest, newest and token-mean version of every trajectory that started, from its chunks.

    A chunk without tokens counts for nothing. Tokens of aborted chunks are lost and do not count.
    """
    traj, each = np.unique(log.traj[log.of_kind(Kind.TRAJ_START)]), chunks(log)
    here = np.isin(each.traj, traj) & (each.tokens > 0)
    place, tokens = np.searchsorted(traj, each.traj[here]), each.tokens[here]
    version = each.version[here].astype(np.float64)
    known = version >= 0
    total = np.bincount(place, tokens, len(traj))
    place, tokens, version = place[known], tokens[known], version[known]
    covered, weighted = (np.bincount(place, w, len(traj)) for w in (tokens, tokens * version))
    oldest, newest = np.full(len(traj), np.inf), np.full(len(traj), -np.inf)
    np.minimum.at(oldest, place, version)
    np.maximum.at(newest, place, version)
    oldest[covered == 0] = newest[covered == 0] = np.nan
    mean = np.clip(_ratio(weighted, covered), oldest, newest)  # rounding must not make it newer than the newest
    return VersionSpans(traj, oldest, newest, mean, _ratio(covered, total))


def staleness_at_use(log: EventLog) -> VersionSpans:
    """Return the lags of the trajectories that were taken: the learner's version when it took them less theirs.

    ``oldest`` is the lag of the oldest version that wrote any of a trajectory, so the largest lag; ``newest`` the smallest.
    """
    spans = token_versions(log)
    start, take = taken(log)
    traj, first = np.unique(log.traj[start], return_index=True)
    learner = log.version[take[first]].astype(np.float64)
    at = np.searchsorted(spans.traj, traj)
    lags = (learner - spans.oldest[at], learner - spans.newest[at], learner - spans.token_mean[at])
    return VersionSpans(traj, *lags, spans.coverage[at])


def staleness_at_generation(log: EventLog) -> NDArray[np.float64]:
    """Return the token-mean lag by turn, [turns]: the version published when a chunk began less the chunk's.

    It is above 0 where an engine has not yet loaded what was published. NaN for a turn in which no version is known.
    """
    each = chunks(log)
    known = each.version >= 0
    turn, tokens = each.turn[known].astype(np.intp), each.tokens[known]
    turns = int(each.turn.max(initial=-1)) + 1
    lag = (each.published - each.version)[known]
    return _ratio(np.bincount(turn, tokens * lag, turns), np.bincount(turn, tokens, turns))


def published_at(log: EventLog, rows: Rows) -> NDArray[np.int64]:
    """Return the version published when each of these rows happens: 0 before the first publication."""
    versions = log.of_kind(Kind.VERSION)
    return np.r_[0, log.version[versions]][np.searchsorted(versions, rows)].astype(np.int64)


def taken(log: EventLog) -> tuple[Rows, Rows]:
    """Return the rows of TRAJ_START (rising) and of TRAIN_TAKE of the trajectories that ended in a group that was taken."""
    start, take = log.of_kind(Kind.TRAJ_START), log.of_kind(Kind.TRAIN_TAKE)
    start = start[np.isin(log.traj[start], log.traj[log.of_kind(Kind.TRAJ_END)])]
    groups, first = np.unique(log.entity[take], return_index=True)
    start = start[np.isin(log.entity[start], groups)]
    return start, take[first[np.searchsorted(groups, log.entity[start])]]


def lag_sums(log: EventLog) -> tuple[int, int]:
    """Return the total lag of all trajectories taken, summed in two ways that must agree exactly.

        sum_i (v_take(i) - v_start(i))  =  sum_v N(v)

    Left, over trajectories i taken: the learner's version when taken less the one published when it started. Right, over
    versions v: how many of them had started when v was published and were not yet taken when v was made. The two moments
    are one unless the learner goes on while its weights travel. Ours; Little's law on one path, in versions.
    """
    start, take = taken(log)
    made, published = versions_at(log)
    held = np.searchsorted(start, published) - np.searchsorted(np.sort(take), made)  # N(v)
    return int((log.version[take].astype(np.int64) - log.version[start]).sum()), int(held.sum())


def versions_at(log: EventLog) -> tuple[Rows, Rows]:
    """Return the rows at which versions 1, 2, .. were made and published.

    A version is made by the last TRAIN_END of the one before it (where there is none, when it is published). One that never
    was published has the log's length in place of a row.
    """
    ends, publications = log.of_kind(Kind.TRAIN_END), log.of_kind(Kind.VERSION)
    last = dict(zip((log.version[ends] + 1).tolist(), ends.tolist(), strict=True))
    when = dict(zip(log.version[publications].tolist(), publications.tolist(), strict=True))
    used = int(log.version[log.of_kind(Kind.TRAIN_TAKE)].max(initial=0))
    versions = range(1, max(used, max(when, default=0)) + 1)
    published = [when.get(version, len(log)) for version in versions]
    made = [min(last.get(version, row), row) for version, row in zip(versions, published, strict=True)]
    return np.array(made, np.intp), np.array(published, np.intp)


def _ratio(part: NDArray[np.number], whole: NDArray[np.number]) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
