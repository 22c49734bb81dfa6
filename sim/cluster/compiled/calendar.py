"""The calendar and the log. Entries stand in a binary heap by (time, sequence of scheduling); delays go in, never times."""

from __future__ import annotations

from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import Reason
from sim.cluster.compiled.state import byte, event, int32, real, short

__all__ = ["WHATS", "after", "full", "log", "pop"]

WHATS = 32
"""More than there are kinds of entry: an entry holds kind + WHATS x number in one integer, as small ones are moved fast."""
GO_ON, LOG_FULL, CALENDAR_FULL = int(Reason.GO_ON), int(Reason.LOG_FULL), int(Reason.CALENDAR_FULL)


@compiled
def full(w: Record) -> int:
    """Return whether a handler may begin, as a :class:`Reason`.

    No part of a handler logs more than 8 rows for each rollout alive or complete, nor schedules more than 4 entries for each
    (it may be submitted, and its engine and a server go on without it), and those of a group and of each engine besides.
    """
    if w.record and w.log_n + 8 * (w.live + w.buffered) + w.room > w.log_cap:
        return LOG_FULL
    if w.calendar_n + 4 * w.live + w.room > w.calendar_cap:
        return CALENDAR_FULL
    return GO_ON


@compiled
def log(w: Record, kind: int, entity: int, traj: int, turn: int, version: int, value: float) -> None:
    """Append a row to the log, if one is kept; see :class:`sim.cluster.events.Event`."""
    if w.record:
        n = w.log_n
        if n < w.log_cap:
            real(w.log_t, n).x = w.now
            byte(w.log_kind, n).x = kind
            int32(w.log_entity, n).x = entity
            int32(w.log_traj, n).x = traj
            short(w.log_turn, n).x = turn
            int32(w.log_version, n).x = version
            real(w.log_value, n).x = value
        w.log_n = n + 1


@compiled
def after(w: Record, delay_s: float, what: int, who: int) -> int:
    """Enter what is to happen after a delay, and to whom; return the entry's number, by which it is known again."""
    t = w.now + delay_s
    sequence = w.sequence + 1
    w.sequence = sequence
    hole = w.calendar_n
    w.calendar_n = hole + 1
    while hole > 0:
        parent = (hole - 1) >> 1
        above = event(w.calendar, parent)
        if above.t <= t:  # it was scheduled before
            break
        _move(above, event(w.calendar, hole))
        hole = parent
    entry = event(w.calendar, hole)
    entry.t, entry.sequence, entry.happens = t, sequence, what + WHATS * who
    return sequence


@compiled
def pop(w: Record) -> None:
    """Forget the first entry: the hole sinks to the bottom, each time to the earlier child; there the last entry rises."""
    n = w.calendar_n - 1
    w.calendar_n = n
    heap = w.calendar
    last = event(heap, n)
    hole, child = 0, 1
    while child < n:
        first = event(heap, child)
        if child + 1 < n:
            second = event(heap, child + 1)
            # without a branch, as nobody can guess which it is
            child += (second.t < first.t) | ((second.t == first.t) & (second.sequence < first.sequence))
            first = event(heap, child)
        _move(first, event(heap, hole))
        hole, child = child, 2 * child + 1
    while hole > 0:
        parent = (hole - 1) >> 1
        above = event(heap, parent)
        if above.t < last.t or (above.t == last.t and above.sequence < last.sequence):
            break
        _move(above, event(heap, hole))
        hole = parent
    _move(last, event(heap, hole))


@compiled
def _move(source: Record, target: Record) -> None:
    target.t, target.sequence, target.happens = source.t, source.sequence, source.happens
