"""Queues of rollouts, linked through the rollouts: of an engine or a pool (any record with queue_first, queue_last)."""

from __future__ import annotations

from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.state import NONE, group_at, traj_at

__all__ = ["append", "append_left", "hold_last", "let_go", "unlink"]


@compiled
def append(w: Record, owner: Record, t: Record) -> None:
    """Put a rollout last."""
    last = owner.queue_last
    t.prev, t.next = last, NONE
    owner.queue_last = t.id
    if last == NONE:
        owner.queue_first = t.id
    else:
        traj_at(w, last).next = t.id


@compiled
def append_left(w: Record, owner: Record, t: Record) -> None:
    """Put a rollout first."""
    first = owner.queue_first
    t.prev, t.next = NONE, first
    owner.queue_first = t.id
    if first == NONE:
        owner.queue_last = t.id
    else:
        traj_at(w, first).prev = t.id


@compiled
def unlink(w: Record, owner: Record, t: Record) -> None:
    """Take a rollout out, wherever it stands."""
    before, behind = t.prev, t.next
    if before == NONE:
        owner.queue_first = behind
    else:
        traj_at(w, before).next = behind
    if behind == NONE:
        owner.queue_last = before
    else:
        traj_at(w, behind).prev = before


@compiled
def hold_last(w: Record, g: Record) -> None:
    """Put a group last among those held."""
    last = w.held_last
    g.held, g.prev, g.next = 1, last, NONE
    w.held_last = g.id
    if last == NONE:
        w.held_first = g.id
    else:
        group_at(w, last).next = g.id


@compiled
def let_go(w: Record, g: Record) -> None:
    """Take a group out of those held."""
    g.held = 0
    if g.prev == NONE:
        w.held_first = g.next
    else:
        group_at(w, g.prev).next = g.next
    if g.next == NONE:
        w.held_last = g.prev
    else:
        group_at(w, g.next).prev = g.prev
