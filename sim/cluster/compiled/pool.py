"""A pool of tool servers; see :mod:`sim.cluster.model.pool`."""

from __future__ import annotations

from sim.cluster.compiled import calendar, heap, links
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import What
from sim.cluster.compiled.state import BACKOFF, CALLING, NONE, SERVED, pool_at, real, traj_at, whole
from sim.cluster.events import Kind

__all__ = ["call", "cancel", "fired", "retry"]

TOOL_ENQUEUE, TOOL_START, TOOL_END, TOOL_TIMEOUT, TOOL_FAIL, TOOL_ABORT, TOOL_RETRY = (
    int(kind)
    for kind in (
        Kind.TOOL_ENQUEUE,
        Kind.TOOL_START,
        Kind.TOOL_END,
        Kind.TOOL_TIMEOUT,
        Kind.TOOL_FAIL,
        Kind.TOOL_ABORT,
        Kind.TOOL_RETRY,
    )
)
RETRY = int(What.RETRY)
ANSWERED, GIVEN_UP, TO_RETRY, STALE = 0, 1, 2, 3
"""How :func:`fired` ends."""


@compiled
def call(w: Record, p: Record, t: Record) -> None:
    """Serve a call, at once or when a server is free."""
    if p.busy < p.servers:
        _begin(w, p, t)
        return
    t.place = CALLING
    if p.by_group:
        if p.ordered_n > 2 * w.live + 64:
            _forget(w, p)
        heap.push_number(_ordered(w, p), p.ordered_n, t.id)  # by rollout is by group: they are numbered group by group
        p.ordered_n += 1
    else:
        links.append(w, p, t)
    calendar.log(w, TOOL_ENQUEUE, p.index, t.id, t.turn, t.attempt, 0.0)


@compiled
def cancel(w: Record, t: Record) -> None:
    """Forget a call; a server that was on it is free at once."""
    p = pool_at(w, whole(w.pool_of, t.action).x)
    t.waits = 0
    if t.place == SERVED:
        calendar.log(w, TOOL_ABORT, p.index, t.id, t.turn, t.attempt, 0.0)
        _release(w, p)
    elif not p.by_group:
        links.unlink(w, p, t)


@compiled
def _begin(w: Record, p: Record, t: Record) -> None:
    draws = (t.row * w.turn_limit + t.turn) * w.draw_width
    draw = real(w.draws, draws + w.draw_latency + t.attempt * w.tool_shapes + p.shape).x if p.shape >= 0 else 1.0
    took = p.scale * draw * t.latency_factor
    if took > p.cap:
        took = p.cap
    if p.cold > 0.0:
        if p.idle_n == 0:
            took += p.cold
        else:
            p.idle_n -= 1
            if w.now - real(w.idle, p.index * w.live_cap + p.idle_n).x > p.warm:
                took += p.cold
    end = TOOL_END
    if took > p.timeout:
        took, end = p.timeout, TOOL_TIMEOUT
    elif p.failure > 0.0 and real(w.draws, draws + w.draw_failure + t.attempt).x < p.failure:
        end = TOOL_FAIL
    _occupy(w, p, 1)
    t.place = SERVED
    p.attempts += 1
    calendar.log(w, TOOL_START, p.index, t.id, t.turn, t.attempt, 0.0)
    t.tool_s += took
    t.waits = calendar.after(w, took, end, t.id)


@compiled
def fired(w: Record, t: Record, number: int, end: int) -> int:
    """An attempt ends; return what follows for the rollout."""
    if t.waits != number:
        return STALE
    p = pool_at(w, whole(w.pool_of, t.action).x)
    calendar.log(w, end, p.index, t.id, t.turn, t.attempt, 0.0)
    t.waits = 0
    _release(w, p)
    if end == TOOL_END:
        p.calls += 1
        return ANSWERED
    if end == TOOL_TIMEOUT:
        p.timeouts += 1
    else:
        p.failures += 1
    if t.attempt >= p.retries:
        return GIVEN_UP
    wait_s = real(w.wait_s, p.index * p.tries + t.attempt).x
    t.attempt += 1
    t.place = BACKOFF
    t.waits = calendar.after(w, wait_s, RETRY, t.id)
    return TO_RETRY


@compiled
def retry(w: Record, t: Record, number: int) -> None:
    """The backoff is over: call again."""
    if t.waits != number:
        return
    p = pool_at(w, whole(w.pool_of, t.action).x)
    calendar.log(w, TOOL_RETRY, p.index, t.id, t.turn, t.attempt, 0.0)
    call(w, p, t)


@compiled
def _release(w: Record, p: Record) -> None:
    """Free a server and give it to the next who waits."""
    _occupy(w, p, -1)
    if p.cold > 0.0:
        real(w.idle, p.index * w.live_cap + p.idle_n).x = w.now
        p.idle_n += 1
    if p.by_group:
        while p.ordered_n:
            t = traj_at(w, heap.pop_number(_ordered(w, p), p.ordered_n))
            p.ordered_n -= 1
            if t.place == CALLING:
                _begin(w, p, t)
                return
    elif p.queue_first != NONE:
        t = traj_at(w, p.queue_last if p.lifo else p.queue_first)
        links.unlink(w, p, t)
        _begin(w, p, t)


@compiled
def _occupy(w: Record, p: Record, change: int) -> None:
    p.busy_s += p.busy * (w.now - p.t)
    p.t = w.now
    p.busy += change


@compiled
def _ordered(w: Record, p: Record) -> int:
    """Return the address of the heap of those who wait for a pool that serves the oldest group first."""
    return w.ordered + 8 * p.index * w.ordered_cap


@compiled
def _forget(w: Record, p: Record) -> None:
    """Forget those who wait no longer."""
    ordered, kept = _ordered(w, p), 0
    for i in range(p.ordered_n):
        waiting = whole(ordered, i).x
        if traj_at(w, waiting).place == CALLING:
            heap.push_number(ordered, kept, waiting)
            kept += 1
    p.ordered_n = kept
