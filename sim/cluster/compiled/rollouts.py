"""Interventions: rollouts of a group (numbers first .. end - 1) are held, resumed, aborted."""

from __future__ import annotations

from sim.cluster.compiled import calendar, engine, pool
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.state import (
    BACKOFF,
    CALLING,
    HELD,
    OVER,
    QUEUED,
    SERVED,
    WRITING,
    WRITTEN,
    engine_at,
    shelf,
    traj_at,
)
from sim.cluster.events import Kind

__all__ = ["abort", "alive", "begin_turn", "gone", "hold", "resume", "to_park"]

GEN_PAUSE, GEN_ABORT, TRAJ_ABORT = int(Kind.GEN_PAUSE), int(Kind.GEN_ABORT), int(Kind.TRAJ_ABORT)


@compiled
def alive(w: Record, first: int, end: int, held_too: bool) -> int:
    """Return how many are not over, those that are held counted or not."""
    n = 0
    for i in range(first, end):
        place = traj_at(w, i).place
        n += place != OVER and (held_too or place != HELD)
    return n


@compiled
def gone(w: Record, t: Record) -> None:
    """Count a rollout as over: its engine has one fewer, and its draws will not be asked for again."""
    engine.unassign(w, t)
    shelf(w.shelves, t.shelf).live -= 1
    w.live -= 1


@compiled
def to_park(w: Record, t: Record) -> bool:
    """Return whether a rollout has written its share of this round."""
    return w.capped and t.round_tokens >= w.chunk_cap


@compiled
def begin_turn(w: Record, t: Record) -> None:
    """Submit the next turn, on another engine if its own is down."""
    if engine_at(w, t.engine).down:
        engine.unassign(w, t)
        engine.assign(w, t)
    engine.submit(w, t)


@compiled
def hold(w: Record, first: int, end: int) -> None:
    """Stop rollouts at their next turn, or in the middle of the one they write; tools go on."""
    for place in (QUEUED, WRITING):
        for i in range(first, end):
            t = traj_at(w, i)
            if t.place == place:
                engine.remove(w, t, GEN_PAUSE)
                t.place = HELD
    engine.settle(w)


@compiled
def resume(w: Record, first: int, end: int) -> None:
    """Let held rollouts go on, in a new round, of which they have written nothing."""
    for i in range(first, end):
        t = traj_at(w, i)
        if t.place != OVER:
            t.round_tokens = 0.0
    for i in range(first, end):
        t = traj_at(w, i)
        if t.place == HELD:
            begin_turn(w, t)


@compiled
def abort(w: Record, first: int, end: int) -> None:
    """Abort rollouts: those that only wait first, so that nobody takes a place that is freed at the same instant."""
    for busy in (False, True):
        for i in range(first, end):
            t = traj_at(w, i)
            place = t.place
            if place == OVER or (place in (WRITING, SERVED)) != busy:
                continue
            if place in (QUEUED, WRITING):
                engine.remove(w, t, GEN_ABORT)
            elif place in (CALLING, SERVED):
                pool.cancel(w, t)
            if place in (WRITTEN, CALLING, SERVED, BACKOFF) and t.remaining <= 0.0:
                t.turn += 1  # this turn is written
            t.waits = 0
            t.place, t.end_s, t.cancelled = OVER, w.now, 1
            gone(w, t)
            calendar.log(w, TRAJ_ABORT, t.group, t.id, t.turn, w.published, 0.0)
    engine.settle(w)
