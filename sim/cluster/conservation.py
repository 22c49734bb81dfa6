"""Laws that every run obeys, checked from its log alone.

The laws, by the word that their messages begin with (a log without STOP is a run still going on, and may leave things open):

- *time*: it never falls. *stop*: after STOP come only aborts and drops, at its instant.
- *life*: a trajectory starts once, does nothing before and nothing after its end.
- *place*: a trajectory is in at most one place, a chunk or a tool attempt; nothing is trained on twice at once.
- *pair*: what ends was open, and ends as it began (engine or pool, turn, version or attempt); all has ended after STOP.
- *turns*: a chunk's turn is the number of turns written before it, a tool's is the last one written, so a turn rises by one
  and only after a GEN_END.
- *tokens*: a chunk has at least 0. *servers*, *sequences*: no more in service in a pool, active on an engine, than it has.
- *published*: versions rise by one, and every event that names the published one is right.
- *version*: a chunk has the version its engine loaded last (0 at first), which is not newer than the published one, and
  begins on no engine that is down.
- *group*: admitted once, before its trajectories start; ready at most once; taken at most once, when ready and with none of
  its trajectories running; never both taken and dropped.
- *held*: a trajectory is held from its start until it is aborted or its group taken or dropped; none is after STOP.
- *lag*: the identity of :func:`sim.cluster.staleness.lag_sums`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from sim.cluster.events import PAIRS, EventLog, Kind
from sim.cluster.staleness import Rows, lag_sums, published_at, taken, versions_at

__all__ = ["check", "violations"]

_AFTER_STOP = (Kind.GEN_ABORT, Kind.TOOL_ABORT, Kind.TRAJ_ABORT, Kind.GROUP_DROP)
_NAME_PUBLISHED = (
    Kind.GROUP_ADMIT,
    Kind.TRAJ_START,
    Kind.TRAJ_END,
    Kind.TRAJ_ABORT,
    Kind.GROUP_READY,
    Kind.GROUP_DROP,
    Kind.CONTROL,
)
_CHUNK_ENDS = PAIRS[Kind.GEN_START]
_ENDS = PAIRS[Kind.TRAJ_START]
_TOOL_KINDS = (Kind.TOOL_ENQUEUE, Kind.TOOL_START, *PAIRS[Kind.TOOL_START], Kind.TOOL_RETRY)
_FAMILY = np.full(256, -1)
"""The kind that opens what this kind opens or closes, by kind; -1 for none."""
for _opens, _closes in PAIRS.items():
    _FAMILY[[_opens, *_closes]] = _opens
_GROUP_STEPS: Mapping[int, tuple[tuple[str, ...], str]] = {
    Kind.GROUP_ADMIT: (("unknown",), "admitted"),
    Kind.TRAJ_START: (("admitted",), "admitted"),
    Kind.GROUP_READY: (("admitted",), "ready"),
    Kind.TRAIN_TAKE: (("ready",), "taken"),
    Kind.GROUP_DROP: (("admitted", "ready"), "dropped"),
}
"""What may happen to a group in which states, and the state that follows."""


def check(log: EventLog, *, servers: Mapping[int, int | None] | None = None, max_sequences: int | None = None) -> None:
    """Raise where the log breaks a law; see :func:`violations`.

    Raises
    ------
    ValueError
        Names how many violations there are and the first five.
    """
    found = violations(log, servers=servers, max_sequences=max_sequences)
    if found:
        raise ValueError(
            f"{len(found)} violations of conservation laws among {len(log)} events, where 0 are allowed; the first name "
            f"the rows to look at:\n" + "\n".join(found[:5])
        )


def violations(
    log: EventLog, *, servers: Mapping[int, int | None] | None = None, max_sequences: int | None = None
) -> list[str]:
    """Return what breaks a law, a message each: "law: row, time, whose: what"; empty for a legal log.

    Parameters
    ----------
    log
        A log from its first event on; a window of one has other beginnings and would break laws.
    servers
        Servers by pool, None for as many as are wanted; a pool that is not named is not checked.
    max_sequences
        Sequences that may be active on one engine; None for any number.
    """
    laws: tuple[Callable[[EventLog], Iterator[str]], ...] = (
        *(_time, _stop, _lives, _pairs_of_trajectories, _pairs_of_learner, _turns, _tokens),
        *(_published, _engine_versions, _groups, _held, _lags),
    )
    found = [message for law in laws for message in law(log)]
    if servers is not None:
        found += _crowds(log, Kind.TOOL_START, dict(servers), "servers", "pool")
    if max_sequences is not None:
        engines = np.unique(log.entity[log.of_kind(Kind.GEN_START)]).tolist()
        found += _crowds(log, Kind.GEN_START, dict.fromkeys(engines, max_sequences), "sequences", "engine")
    return found


def _note(log: EventLog, row: int, law: str, whose: str, what: str) -> str:
    return f"{law}: row {row}, t = {log.t_s[row]:g} s, {whose}: {what}"


def _whose(log: EventLog, row: int) -> str:
    return f"trajectory {log.traj[row]}" if log.traj[row] >= 0 else f"{_name(log, row)} {log.entity[row]}"


def _name(log: EventLog, row: int) -> str:
    return Kind(int(log.kind[row])).name


def _by(key: NDArray[np.integer], rows: Rows) -> tuple[Rows, NDArray[np.bool_]]:
    """Rows ordered by key, within a key as they happened, and which of them are their key's first."""
    rows = rows[np.argsort(key[rows], kind="stable")]
    return rows, np.r_[True, key[rows][1:] != key[rows][:-1]][: len(rows)]


def _before(flag: NDArray[np.bool_], first: NDArray[np.bool_]) -> NDArray[np.int64]:
    """How many flags stand before each place among those of its key."""
    count: NDArray[np.int64] = np.cumsum(flag) - flag
    return count - count[np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))]


def _stopped(log: EventLog) -> bool:
    return len(log.of_kind(Kind.STOP)) > 0


def _time(log: EventLog) -> Iterator[str]:
    before = np.r_[0.0, log.t_s[:-1]]
    for row in np.flatnonzero(~(log.t_s >= before)).tolist():
        yield _note(log, row, "time", _whose(log, row), f"falls from {before[row]:g} s")


def _stop(log: EventLog) -> Iterator[str]:
    stop = log.of_kind(Kind.STOP)
    if len(stop):
        after = np.arange(len(log)) > stop[0]
        wrong = after & (~np.isin(log.kind, _AFTER_STOP) | (log.t_s != log.t_s[stop[0]]))
        for row in np.flatnonzero(wrong).tolist():
            yield _note(log, row, "stop", _whose(log, row), f"{_name(log, row)} after STOP at {log.t_s[stop[0]]:g} s")


def _lives(log: EventLog) -> Iterator[str]:
    rows, first = _by(log.traj, np.flatnonzero(log.traj >= 0))
    begins, ends = log.kind[rows] == Kind.TRAJ_START, np.isin(log.kind[rows], _ENDS)
    begun, ended = _before(begins, first), _before(ends, first)
    last = np.r_[first[1:], True][: len(rows)]
    running = last & (begun + begins > 0) & (ended + ends == 0) & _stopped(log)
    for wrong, what in (
        (begun + begins == 0, "before it starts"),
        (begins & (begun > 0) & (ended == 0), "starts again"),
        (ended > 0, "after its end"),
        (running, "is its last event, and the run has stopped"),
    ):
        for row in rows[wrong].tolist():
            yield _note(log, row, "life", _whose(log, row), f"{_name(log, row)} {what}")


def _pairs_of_trajectories(log: EventLog) -> Iterator[str]:
    over = np.isin(log.traj, log.traj[log.of_kind(*_ENDS)]) | _stopped(log)  # [n], whether nothing may be open
    yield from _pairs(log, np.isin(_FAMILY[log.kind], (Kind.GEN_START, Kind.TOOL_START)), log.traj, over)


def _pairs_of_learner(log: EventLog) -> Iterator[str]:
    part = log.entity.astype(np.int64) * 2**16 + log.turn  # step and mini-batch
    yield from _pairs(log, _FAMILY[log.kind] == Kind.TRAIN_START, part, np.zeros(len(log), np.bool_))
    rows, first = _by(log.entity, log.of_kind(Kind.SYNC_START, *PAIRS[Kind.SYNC_START]))
    begins = log.kind[rows] == Kind.SYNC_START
    begun, ended = _before(begins, first), _before(~begins, first)
    for row in rows[~begins & (ended >= begun)].tolist():  # loads may overlap, in place
        yield _note(log, row, "pair", _whose(log, row), "SYNC_END ends what was not open")


def _pairs(log: EventLog, which: NDArray[np.bool_], key: NDArray[np.integer], over: NDArray[np.bool_]) -> Iterator[str]:
    """Of one key, starts and ends alternate, and an end is as its start was."""
    rows, first = _by(key, np.flatnonzero(which))
    opens = _FAMILY[log.kind[rows]] == log.kind[rows]
    before, last = np.roll(rows, 1), np.r_[first[1:], True][: len(rows)]
    open_before = np.roll(opens, 1) & ~first
    same = _FAMILY[log.kind[rows]] == _FAMILY[log.kind[before]]
    for column in (log.entity, log.turn, log.version):
        same &= column[rows] == column[before]
    for law, wrong, what in (
        ("place", opens & open_before, "while {} of row {} is open"),
        ("pair", ~opens & ~open_before, "ends what was not open"),
        ("pair", ~opens & open_before & ~same, "is no end of {} of row {}: another place, turn or version"),
        ("pair", opens & last & over[rows], "never ends"),
    ):
        for at in np.flatnonzero(wrong).tolist():
            row, other = int(rows[at]), int(before[at])
            yield _note(log, row, law, _whose(log, row), f"{_name(log, row)} {what.format(_name(log, other), other)}")


def _turns(log: EventLog) -> Iterator[str]:
    rows, first = _by(log.traj, np.flatnonzero(log.traj >= 0))
    kind, turn = log.kind[rows], log.turn[rows]
    written = _before(kind == Kind.GEN_END, first)
    tool = np.isin(kind, _TOOL_KINDS)
    due = np.where(tool, np.maximum(written - 1, 0), written)
    wrong = (tool | np.isin(kind, (Kind.GEN_START, *_ENDS))) & (turn != due)
    for row, right in zip(rows[wrong].tolist(), due[wrong].tolist(), strict=True):
        yield _note(
            log, row, "turns", _whose(log, row), f"{_name(log, row)} has turn {log.turn[row]} where {right} is due"
        )


def _tokens(log: EventLog) -> Iterator[str]:
    rows = log.of_kind(*_CHUNK_ENDS)
    for row in rows[~(log.value[rows] >= 0) | np.isinf(log.value[rows])].tolist():
        yield _note(log, row, "tokens", _whose(log, row), f"{log.value[row]:g} tokens, must be at least 0")


def _published(log: EventLog) -> Iterator[str]:
    rows = log.of_kind(Kind.VERSION, *_NAME_PUBLISHED)
    due = published_at(log, rows) + (log.kind[rows] == Kind.VERSION)
    wrong = log.version[rows] != due
    for row, right in zip(rows[wrong].tolist(), due[wrong].tolist(), strict=True):
        what = f"{_name(log, row)} has version {log.version[row]} where {right} is due"
        yield _note(log, row, "published", _whose(log, row), what)


def _engine_versions(log: EventLog) -> Iterator[str]:
    rows, loads = log.of_kind(Kind.GEN_START), log.of_kind(Kind.SYNC_END, Kind.ENGINE_UP)
    fails = log.of_kind(Kind.ENGINE_FAIL, Kind.ENGINE_UP)
    loaded, down = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
    for engine in np.unique(log.entity[rows]).tolist():
        mine = log.entity[rows] == engine
        here = loads[np.isin(log.entity[loads], (engine, -1))]
        loaded[mine] = np.r_[0, log.version[here]][np.searchsorted(here, rows[mine])]
        here = fails[log.entity[fails] == engine]
        down[mine] = np.r_[False, log.kind[here] == Kind.ENGINE_FAIL][np.searchsorted(here, rows[mine])]
    version, published = log.version[rows], published_at(log, rows)
    for wrong, of in (
        (version != loaded, lambda at: f"but engine {log.entity[rows[at]]} has version {loaded[at]}"),
        (version > published, lambda at: f"is newer than the published {published[at]}"),
        (down, lambda at: f"begins on engine {log.entity[rows[at]]}, which is down"),
    ):
        for at in np.flatnonzero(wrong).tolist():
            row = int(rows[at])
            yield _note(log, row, "version", _whose(log, row), f"a chunk of version {version[at]} {of(at)}")


def _groups(log: EventLog) -> Iterator[str]:
    state: dict[int, str] = {}
    running: dict[int, int] = {}
    rows = log.of_kind(*(Kind(k) for k in _GROUP_STEPS), *_ENDS)
    for row, kind, group in zip(rows.tolist(), log.kind[rows].tolist(), log.entity[rows].tolist(), strict=True):
        if kind in _GROUP_STEPS:
            allowed, then = _GROUP_STEPS[kind]
            now = state.get(group, "unknown")
            if now not in allowed:
                what = f"{_name(log, row)} when {now}, must be {' or '.join(allowed)}"
                yield _note(log, row, "group", f"group {group}", what)
            elif kind == Kind.TRAIN_TAKE and running.get(group, 0) > 0:
                what = f"taken while {running[group]} of its trajectories run"
                yield _note(log, row, "group", f"group {group}", what)
            if now in allowed or kind != Kind.TRAJ_START:
                state[group] = then
        if kind == Kind.TRAJ_START or kind in _ENDS:
            running[group] = running.get(group, 0) + (1 if kind == Kind.TRAJ_START else -1)


def _held(log: EventLog) -> Iterator[str]:
    ends = log.of_kind(Kind.TRAJ_END)
    gone = log.entity[log.of_kind(Kind.TRAIN_TAKE, Kind.GROUP_DROP)]
    left = ends[~np.isin(log.entity[ends], gone)]
    if _stopped(log) and len(left):
        what = f"neither taken nor dropped; {len(left)} held after STOP, must be 0"
        yield _note(log, int(left[0]), "held", f"trajectory {log.traj[left[0]]} of group {log.entity[left[0]]}", what)


def _lags(log: EventLog) -> Iterator[str]:
    left, right = lag_sums(log)
    if left != right:
        (start, take), (made, published) = taken(log), versions_at(log)
        passed = np.searchsorted(made, take) - np.searchsorted(published, start)
        row = int(take[np.argmax(log.version[take] - log.version[start] != passed)])
        what = f"lags sum to {left} where {right} were counted at versions; one that differs is taken here"
        yield _note(log, row, "lag", f"group {log.entity[row]}", what)


def _crowds(log: EventLog, opens: Kind, most: Mapping[int, int | None], law: str, whose: str) -> Iterator[str]:
    rows = log.of_kind(opens, *PAIRS[opens])
    for place, limit in most.items():
        here = rows[log.entity[rows] == place]
        steps = np.where(log.kind[here] == opens, 1, -1)
        count = np.cumsum(steps)
        for at in np.flatnonzero((steps > 0) & (count > limit)).tolist() if limit is not None else ():
            yield _note(log, int(here[at]), law, f"{whose} {place}", f"{count[at]} at once, must be at most {limit}")
