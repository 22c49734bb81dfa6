"""A log as spans of time: each start with its end, counts of what is open, and lanes in which spans do not overlap."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.events import PAIRS, EventLog, Kind

__all__ = ["Names", "Spans", "buffered", "count", "lanes", "queued", "spans", "window"]

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Names:
    """What engines and tool pools are called in pictures; those without a name are numbered."""

    engines: tuple[str, ...] = ()
    """Names of the engines, in order."""
    pools: tuple[str, ...] = ()
    """Names of the tool pools, in order."""

    def engine(self, index: int) -> str:
        """Return an engine's name."""
        return self.engines[index] if index < len(self.engines) else f"engine {index}"

    def pool(self, index: int) -> str:
        """Return a pool's name."""
        return self.pools[index] if index < len(self.pools) else f"pool {index}"


@dataclass(frozen=True, eq=False)
class Spans:
    """Stretches of time, in the order in which they began."""

    log: EventLog
    """The log whose rows they are."""
    start: Rows
    """Row that opens each, rising, [n]."""
    end: Rows
    """Row that closes it; -1 where it is open when the log ends, [n]."""

    def __len__(self) -> int:
        return len(self.start)

    @property
    def start_s(self) -> NDArray[np.float64]:
        """When each begins, s, [n]."""
        return self.log.t_s[self.start]

    @property
    def end_s(self) -> NDArray[np.float64]:
        """When each ends, s; the log's last time where it is open, [n]."""
        return self.log.t_s[self.end]

    def of(self, which: NDArray[np.bool_]) -> Spans:
        """Return some of them."""
        return Spans(self.log, self.start[which], self.end[which])

    def at(self, entity: int) -> Spans:
        """Return those of one engine, pool or step."""
        return self.of(self.log.entity[self.start] == entity)

    def within(self, start_s: float, end_s: float) -> Spans:
        """Return those that share time with a window; one of no length is in it if its instant is."""
        begin, end = self.start_s, self.end_s
        inside = (begin >= start_s) & (end <= end_s)
        return self.of(inside | ((end > start_s) & (begin < end_s)))


def spans(log: EventLog, opens: Kind) -> Spans:
    """Return what this kind opens and the kinds of :data:`sim.cluster.events.PAIRS` close.

    ENGINE_FAIL opens what ENGINE_UP closes: the time an engine is down. Loads may overlap: the first begun ends first.
    """
    if opens == Kind.SYNC_START:
        return _in_turn(log, opens, PAIRS[opens])
    closes = (Kind.ENGINE_UP,) if opens == Kind.ENGINE_FAIL else PAIRS[opens]
    if opens == Kind.TRAIN_START:
        return _spans(log, opens, closes, log.entity.astype(np.int64) * 2**16 + log.turn)  # a step's mini-batch
    return _spans(log, opens, closes, log.entity if opens == Kind.ENGINE_FAIL else log.traj)


def queued(log: EventLog) -> Spans:
    """Return the times for which tool calls wait for a server; who waits may also be aborted."""
    return _spans(log, Kind.TOOL_ENQUEUE, (Kind.TOOL_START, *PAIRS[Kind.TRAJ_START]), log.traj)


def buffered(log: EventLog) -> Spans:
    """Return the times for which complete groups wait to be taken; who waits may also be dropped."""
    return _spans(log, Kind.GROUP_READY, (Kind.TRAIN_TAKE, Kind.GROUP_DROP), log.entity)


def _spans(log: EventLog, opens: Kind, closes: tuple[Kind, ...], key: NDArray[np.integer]) -> Spans:
    rows = log.of_kind(opens, *closes)
    rows = rows[np.argsort(key[rows], kind="stable")]
    follow = np.r_[rows[1:], -1][: len(rows)]  # the next row of the same key
    closed = (key[follow] == key[rows]) & (log.kind[follow] != opens) & (follow >= 0)
    at = log.kind[rows] == opens
    start, end = rows[at], np.where(closed, follow, -1)[at]
    order = np.argsort(start)
    return Spans(log, start[order], end[order])


def _in_turn(log: EventLog, opens: Kind, closes: tuple[Kind, ...]) -> Spans:
    """Pair the k-th start of an entity with its k-th end."""
    start, end = log.of_kind(opens), np.full(len(log.of_kind(opens)), -1)
    ends = log.of_kind(*closes)
    for entity in np.unique(log.entity[start]).tolist():
        mine, closed = np.flatnonzero(log.entity[start] == entity), ends[log.entity[ends] == entity]
        paired = min(len(mine), len(closed))
        end[mine[:paired]] = closed[:paired]
    return Spans(log, start, end)


def count(of: Spans) -> tuple[Rows, NDArray[np.int64]]:
    """Return the rows at which the number of open spans changes, and the number from there on."""
    closed = of.end[of.end >= 0]
    rows = np.concatenate([of.start, closed])
    steps = np.repeat([1, -1], [len(of), len(closed)])
    order = np.argsort(rows, kind="stable")
    return rows[order], np.cumsum(steps[order])


def lanes(of: Spans) -> NDArray[np.int64]:
    """Return the lane of each span: the lowest one that is free when it begins, so that none in a lane overlap.

    One lane can be had again by what begins after the row at which it was given up, be it at the same instant.
    """
    found = np.zeros(len(of), np.int64)
    free: list[int] = []
    busy: list[tuple[int, int]] = []  # (row at which it ends, lane)
    for index, (start, end) in enumerate(zip(of.start.tolist(), of.end.tolist(), strict=True)):
        while busy and busy[0][0] < start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        lane = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (end if end >= 0 else len(of.log), lane))
        found[index] = lane
    return found


def window(log: EventLog, start_s: float | None, end_s: float | None) -> tuple[float, float]:
    """Return the window meant: from 0 and to the last event where an end is None.

    Raises
    ------
    ValueError
        When it is empty.
    """
    start = 0.0 if start_s is None else float(start_s)
    end = (float(log.t_s[-1]) if len(log) else 0.0) if end_s is None else float(end_s)
    if not start < end:
        raise ValueError(f"window from {start:g} s to {end:g} s is empty: give start_s below end_s, within the run")
    return start, end
