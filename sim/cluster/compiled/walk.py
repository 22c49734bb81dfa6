"""A rollout's walk on the tool graph; see :mod:`sim.cluster.model.simulation`. Where that admits, the kernel is told to."""

from __future__ import annotations

from sim.cluster.compiled import calendar, groups, pool, rollouts
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.state import HELD, OVER, group_at, pool_at, real, traj_at, whole
from sim.cluster.events import Kind

__all__ = ["answered", "written"]

TRAJ_END = int(Kind.TRAJ_END)
NAN = float("nan")


@compiled
def written(w: Record, t: Record) -> None:
    """A turn is written, or its part that this round allows: call the tool, or go on."""
    if t.remaining > 0.0:
        _park(w, t)
        return
    t.context += t.written
    t.written, t.remaining = 0.0, -1.0
    p = whole(w.pool_of, t.action).x
    if p < 0:
        _observe(w, t)
    else:
        pool.call(w, pool_at(w, p), t)


@compiled
def answered(w: Record, traj: int, number: int, end: int) -> None:
    """A tool attempt has ended."""
    t = traj_at(w, traj)
    how = pool.fired(w, t, number, end)
    if how == pool.ANSWERED:
        _observe(w, t)
    elif how == pool.GIVEN_UP:
        t.turn += 1
        _end(w, t, NAN, 0)


@compiled
def _observe(w: Record, t: Record) -> None:
    """What an action brought is there: the next turn, or the end."""
    u = real(w.draws, (t.row * w.turn_limit + t.turn) * w.draw_width + 1).x
    at = ((t.kind * w.nodes + t.node) * w.actions + t.action) * w.outcomes
    outcome = 0
    while u >= real(w.outcome, at + outcome).x:
        outcome += 1
    at = (t.node * w.actions + t.action) * w.outcomes + outcome
    t.context += real(w.observed, at).x
    node = whole(w.target, at).x
    t.node = node
    t.turn += 1
    t.attempt = 0
    if node >= w.states or t.turn == w.turn_limit:
        _end(w, t, real(w.reward, node).x, 1)
    elif group_at(w, t.group).held:
        t.place = HELD
    elif rollouts.to_park(w, t):
        _park(w, t)
    else:
        rollouts.begin_turn(w, t)


@compiled
def _end(w: Record, t: Record, reward: float, valid: int) -> None:
    t.place, t.end_s, t.reward, t.valid = OVER, w.now, reward, valid
    rollouts.gone(w, t)
    calendar.log(w, TRAJ_END, t.group, t.id, t.turn, w.published, reward)
    groups.over(w, t.group, valid)


@compiled
def _park(w: Record, t: Record) -> None:
    """Hold a rollout that has written its share of this round."""
    t.place = HELD
    w.running -= 1
    w.admitting = 1
