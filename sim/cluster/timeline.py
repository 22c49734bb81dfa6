"""A window of a run as a timeline that Perfetto and chrome://tracing open.

    learner       training steps (an arrow from each group's last trajectory), versions, drops, loads of all engines
    slots         one track a slot: trajectories, with their chunks and tool attempts inside
    engine 0, ..  one track a sequence: chunks; loads of weights; time down
    pool 0, ..    one track a server: tool attempts

Counters: active sequences of each engine, calls in service and waiting in each pool, trajectories running, groups complete
and not yet taken, and their mean lag: the version published less the token-mean version of their trajectories (0 when there
are none).
"""

from __future__ import annotations

import gzip
import json
import math
import uuid
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.events import EventLog, Kind
from sim.cluster.spans import Names, Rows, Spans, buffered, count, queued, spans, window
from sim.cluster.staleness import published_at, token_versions
from sim.cluster.trace_format import Trace, validate_trace

__all__ = ["MOST_EVENTS", "Names", "trace_events", "validate_trace", "write_timeline"]

MOST_EVENTS = 2_000_000
"""Events that are written without asking which window is meant; some 200 MB."""
_LEARNER, _SLOTS, _FIRST = 1, 2, 3  # numbers of the processes; engines from 3 on, then pools
_LOADS, _DOWN = 90_000, 95_000  # tracks of an engine, below its sequences
_DROPPED = ("too old", "late", "invalid", "run over")


def trace_events(
    log: EventLog, start_s: float | None = None, end_s: float | None = None, *, names: Names | None = None
) -> dict[str, Any]:
    """Return the events of a window as the object that the Trace Event format wants.

    A span that crosses an edge of the window is cut there and has ``"cut": true`` among its arguments.

    Parameters
    ----------
    log
        The whole log: what the window shows may have begun before it.
    start_s, end_s
        Edges of the window, s; None for the beginning and the end of the run.
    names
        Names of engines and pools.

    Raises
    ------
    ValueError
        For an empty window.
    """
    drawn = _Timeline(log, *window(log, start_s, end_s), names or Names())
    drawn.slots()
    drawn.engines()
    drawn.pools()
    drawn.learner()
    first, last = drawn.trace.window
    return drawn.trace.data({"clock": "simulated", "start_s": first, "end_s": last, "events": len(log)})


def write_timeline(
    log: EventLog,
    path: Path,
    start_s: float | None = None,
    end_s: float | None = None,
    *,
    names: Names | None = None,
) -> None:
    """Write a window as JSON, compressed where the path ends in ``.gz``. The file appears whole or not at all.

    Raises
    ------
    ValueError
        For an empty window, and for more than :data:`MOST_EVENTS` events unless both edges of a window are given.
    """
    if len(log) > MOST_EVENTS and (start_s is None or end_s is None):
        raise ValueError(
            f"a timeline of all {len(log)} events would not open, at most {MOST_EVENTS} are written without a window: "
            f"give start_s and end_s"
        )
    data = trace_events(log, start_s, end_s, names=names)
    content = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    if path.suffix == ".gz":
        content = gzip.compress(content, compresslevel=6, mtime=0)  # no time of day: equal runs give equal bytes
    writing = path.with_name(f".writing-{path.name}-{uuid.uuid4().hex}")
    try:
        writing.write_bytes(content)
        writing.replace(path)
    finally:
        writing.unlink(missing_ok=True)


class _Timeline:
    """What of a log goes where."""

    def __init__(self, log: EventLog, start_s: float, end_s: float, names: Names) -> None:
        self.log, self.names, self.trace = log, names, Trace(start_s, end_s)
        self.every = {kind: spans(log, kind) for kind in (Kind.GEN_START, Kind.TOOL_START, Kind.TRAJ_START)}
        seen = log.traj[self.every[Kind.TRAJ_START].within(start_s, end_s).start]
        self.shown = {
            kind: (here := of.within(start_s, end_s)).of(np.isin(log.traj[here.start], seen))
            for kind, of in self.every.items()
        }
        starts = self.every[Kind.TRAJ_START].start
        self.begun = dict(zip(log.traj[starts].tolist(), starts.tolist(), strict=True))  # a trajectory's first row
        engines = log.entity[log.of_kind(Kind.GEN_START, Kind.ENGINE_FAIL, Kind.SYNC_START)]
        self.engine_count = int(engines.max(initial=-1)) + 1
        self.slot: dict[int, int] = {}

    def slots(self) -> None:
        """Draw the trajectories, each with what it does inside."""
        log, of = self.log, self.shown[Kind.TRAJ_START]
        self.trace.process(_SLOTS, "slots")
        tracks = self.trace.lanes(of, _SLOTS, "slot")
        self.slot = dict(zip(log.traj[of.start].tolist(), tracks.tolist(), strict=True))
        self.trace.spans(of, tracks, "trajectory", self._traj_name, self._trajectory)
        chunks, attempts = self.shown[Kind.GEN_START], self.shown[Kind.TOOL_START]
        self.trace.spans(chunks, self._slots_of(chunks), "chunk", self._chunk_name, self._chunk)
        self.trace.spans(attempts, self._slots_of(attempts), "tool", self._pool_name, self._attempt)
        self._counter(_SLOTS, "running trajectories", *count(self.every[Kind.TRAJ_START]))

    def engines(self) -> None:
        """Draw the chunks of each engine, its loads and its failures."""
        loads, down = spans(self.log, Kind.SYNC_START), spans(self.log, Kind.ENGINE_FAIL)
        for engine in range(self.engine_count):
            pid, here = _FIRST + engine, self.shown[Kind.GEN_START].at(engine)
            self.trace.process(pid, self.names.engine(engine))
            self.trace.spans(here, self.trace.lanes(here, pid, "sequence"), "chunk", self._chunk_name, self._chunk)
            self._counter(pid, "active sequences", *count(self.every[Kind.GEN_START].at(engine)))
            for number, name, of in ((_LOADS, "load", loads), (_DOWN, "down", down)):
                self._engine_state(pid, number, name, of.at(engine))

    def pools(self) -> None:
        """Draw the tool attempts of each pool."""
        log, waiting = self.log, queued(self.log)
        for pool in np.unique(log.entity[log.of_kind(Kind.TOOL_START, Kind.TOOL_ENQUEUE)]).tolist():
            pid, here = _FIRST + self.engine_count + pool, self.shown[Kind.TOOL_START].at(pool)
            self.trace.process(pid, self.names.pool(pool))
            self.trace.spans(here, self.trace.lanes(here, pid, "server"), "tool", self._traj_name, self._attempt)
            self._counter(pid, "in service", *count(self.every[Kind.TOOL_START].at(pool)))
            self._counter(pid, "waiting", *count(waiting.at(pool)))

    def learner(self) -> None:
        """Draw training, versions, drops, loads of all engines, and what is buffered."""
        log, ready, steps = self.log, buffered(self.log), spans(self.log, Kind.TRAIN_START).within(*self.trace.window)
        self.trace.process(_LEARNER, "learner")
        training = self.trace.track(_LEARNER, 0, "training")
        takes: dict[tuple[int, int], list[int]] = {}  # groups by step and mini-batch
        for row in log.of_kind(Kind.TRAIN_TAKE).tolist():
            takes.setdefault((int(log.value[row]), int(log.turn[row])), []).append(int(log.entity[row]))
        groups = {row: takes.get((int(log.entity[row]), int(log.turn[row])), []) for row in steps.start.tolist()}
        self.trace.spans(steps, training, "train", self._step_name, lambda row, _: self._step(row, groups[row]))
        self._engine_state(_LEARNER, 1, "load on all engines", spans(log, Kind.SYNC_START).at(-1))
        for row in log.of_kind(Kind.VERSION, Kind.GROUP_DROP).tolist():
            dropped = f"group {log.entity[row]} dropped: {_DROPPED[int(log.value[row]) % len(_DROPPED)]}"
            name = dropped if log.kind[row] == Kind.GROUP_DROP else f"version {log.version[row]}"
            self.trace.mark(float(log.t_s[row]), training, name)
        self._counter(_LEARNER, "buffered groups", *count(ready))
        self._counter(_LEARNER, "mean lag", *_mean_lag(log, ready))
        self._arrows(training, groups)

    def _arrows(self, training: int, groups: dict[int, list[int]]) -> None:
        """Draw an arrow from the end of each group's last trajectory to the step that took it, if both are shown."""
        log, ends = self.log, self.log.of_kind(Kind.TRAJ_END)
        final = dict(zip(log.entity[ends].tolist(), ends.tolist(), strict=True))  # the last of each group stays
        for step, group in ((step, group) for step, mine in groups.items() for group in mine):
            end = final.get(group, -1)
            traj, at_s, end_s = int(log.traj[end]), float(log.t_s[step]), float(log.t_s[end])
            if end >= 0 and traj in self.slot and at_s >= self.trace.window[0]:
                origin = (float(log.t_s[self.begun[traj]]), end_s, self.slot[traj])
                self.trace.arrow(group, f"group {group}", origin, (at_s, training))

    def _engine_state(self, pid: int, number: int, name: str, of: Spans) -> None:
        mine = of.within(*self.trace.window)
        tracks = self.trace.lanes(mine, pid, name, number)
        self.trace.spans(mine, tracks, "engine", self._state_name, self._loaded)

    def _counter(self, pid: int, name: str, rows: Rows, values: NDArray[Any]) -> None:
        self.trace.counter(pid, name, self.log.t_s[rows], values)

    def _slots_of(self, of: Spans) -> NDArray[np.int64]:
        return np.array([self.slot[traj] for traj in self.log.traj[of.start].tolist()], np.int64)

    # --- names and arguments of a span ------------------------------------------------------------------------------

    def _traj_name(self, row: int) -> str:
        return f"traj {self.log.traj[row]}"

    def _chunk_name(self, row: int) -> str:
        return f"v{self.log.version[row]} traj {self.log.traj[row]}"

    def _pool_name(self, row: int) -> str:
        return self.names.pool(int(self.log.entity[row]))

    def _step_name(self, row: int) -> str:
        return f"step {self.log.entity[row]}"

    def _state_name(self, row: int) -> str:
        return f"load v{self.log.version[row]}" if self.log.kind[row] == Kind.SYNC_START else "down"

    def _who(self, row: int) -> dict[str, Any]:
        traj = int(self.log.traj[row])
        return {"traj": traj, "group": int(self.log.entity[self.begun[traj]]), "turn": int(self.log.turn[row])}

    def _chunk(self, row: int, end: int) -> dict[str, Any]:
        log = self.log
        tokens = {"tokens": float(log.value[end])} if end >= 0 else {}
        return {**self._who(row), "version": int(log.version[row]), "context": float(log.value[row]), **tokens}

    def _attempt(self, row: int, end: int) -> dict[str, Any]:
        return {**self._who(row), "attempt": int(self.log.version[row])}

    def _loaded(self, row: int, end: int) -> dict[str, Any]:
        return {"version": int(self.log.version[end if end >= 0 else row])}

    def _trajectory(self, row: int, end: int) -> dict[str, Any]:
        log = self.log
        told: dict[str, Any] = {"traj": int(log.traj[row]), "group": int(log.entity[row]), "member": int(log.turn[row])}
        told |= {"kind": int(log.value[row]), "version": int(log.version[row])}
        if end >= 0 and log.kind[end] == Kind.TRAJ_END:
            reward = float(log.value[end])
            told |= {"turns": int(log.turn[end]), "reward": None if math.isnan(reward) else reward}
        return told

    def _step(self, row: int, groups: list[int]) -> dict[str, Any]:
        log = self.log
        told = {"step": int(log.entity[row]), "mini_batch": int(log.turn[row]), "version": int(log.version[row])}
        return {**told, "tokens": float(log.value[row]), "groups": groups}


def _mean_lag(log: EventLog, ready: Spans) -> tuple[Rows, NDArray[np.float64]]:
    """Rows at which the mean lag of the buffer may change, and the lag from there on; 0 while the buffer is empty."""
    versions, ends = token_versions(log), log.of_kind(Kind.TRAJ_END)
    mean = versions.token_mean[np.searchsorted(versions.traj, log.traj[ends])]
    group, mean = log.entity[ends][~np.isnan(mean)], mean[~np.isnan(mean)]
    size = int(log.entity[ready.start].max(initial=-1)) + 1
    of, closed, publications = log.entity[ready.start], ready.end >= 0, log.of_kind(Kind.VERSION)
    rows = np.concatenate([ready.start, ready.end[closed], publications])
    order = np.argsort(rows)
    held, total = (
        np.cumsum(np.concatenate([each[of], -each[of][closed], np.zeros(len(publications))])[order])
        for each in (np.bincount(group, minlength=size), np.bincount(group, mean, size))
    )
    now = published_at(log, rows[order] + 1)  # with what this very row publishes
    return rows[order], np.where(held > 0, now - total / np.maximum(held, 1), 0.0)
