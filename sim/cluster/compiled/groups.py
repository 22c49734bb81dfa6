"""What becomes of groups: complete, dropped, too old, taken, held; see :mod:`sim.cluster.model.scheduler`."""

from __future__ import annotations

from sim.cluster import rules
from sim.cluster.compiled import calendar, heap, links, rollouts
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import Late, What
from sim.cluster.compiled.state import DROPPED, NONE, READY, RUNNING, TAKEN, group_at, prompt, traj_at, whole
from sim.cluster.events import DropReason, Kind

__all__ = ["close", "offer", "over", "sweep"]

GROUP_READY, GROUP_HOLD, GROUP_DROP, TRAIN_TAKE = (
    int(kind) for kind in (Kind.GROUP_READY, Kind.GROUP_HOLD, Kind.GROUP_DROP, Kind.TRAIN_TAKE)
)
OLD, LATE, INVALID = int(DropReason.OLD), int(DropReason.LATE), int(DropReason.INVALID)
REQUEUE, RESUME, TAIL = int(Late.REQUEUE), int(Late.RESUME), int(Late.TAIL)
WAKE = int(What.LEARNER)

may_take, too_old = compiled(rules.may_take), compiled(rules.too_old)


# --- dropping -----------------------------------------------------------------------------------------------------------


@compiled
def _abort(w: Record, g: Record) -> None:
    """Abort the members of a group that are not over."""
    first, end = g.id * w.members, (g.id + 1) * w.members
    if not g.held:
        w.running -= rollouts.alive(w, first, end, False)
    rollouts.abort(w, first, end)


@compiled
def _discard(w: Record, g: Record, why: int, again: int) -> None:
    """Drop a group, running or complete; `again` plays its prompt once more."""
    if g.fate == RUNNING:
        _abort(w, g)
        w.incomplete -= 1
        if g.in_round and w.open and why != LATE:
            w.to_launch += 1  # another takes its place in the round
    else:
        w.accepted -= 1
        w.buffered -= 1
    if g.held:
        links.let_go(w, g)
    g.fate = DROPPED
    w.unconsumed -= 1
    calendar.log(w, GROUP_DROP, g.id, -1, -1, w.published, float(why))
    if again:
        played = prompt(w.again, w.again_n)
        played.prompt, played.play = g.prompt, g.play + 1
        w.again_n += 1


@compiled
def _old(w: Record, g: Record) -> bool:
    if not w.drop:
        return False
    oldest, newest = -1, -1
    for i in range(g.id * w.members, (g.id + 1) * w.members):
        t = traj_at(w, i)
        if t.oldest >= 0:
            if oldest < 0 or t.oldest < oldest:
                oldest = t.oldest
            if t.newest > newest:
                newest = t.newest
    return oldest >= 0 and too_old(w.published, oldest, newest, w.bound, w.by_newest != 0)


@compiled
def sweep(w: Record) -> None:
    """Drop what a newly published version has made too old."""
    if not w.drop:
        return
    for i in range(w.head, w.group_n):
        g = group_at(w, i)
        if (g.fate == READY or (w.drop_running and g.fate == RUNNING)) and _old(w, g):
            _discard(w, g, OLD, w.requeue)
    offer(w)


# --- rounds end ---------------------------------------------------------------------------------------------------------


@compiled
def close(w: Record) -> None:
    """End a round: deal with the late groups, and hand over."""
    w.open = w.to_launch = 0
    for i in range(w.head, w.group_n):
        g = group_at(w, i)
        if g.fate != RUNNING or g.held:
            continue
        g.in_round = 0
        if w.late == RESUME:
            _hold(w, g)
            continue
        _discard(w, g, LATE, w.late == REQUEUE)
        if w.late == TAIL:
            played = prompt(w.tail, w.tail_n)
            played.prompt, played.play = g.prompt, g.play + 1
            w.tail_n += 1
    if w.whatever:
        if w.buffered == 0:
            w.settled += 1  # nothing to train on: the next round may start
        else:
            offer(w)


@compiled
def _hold(w: Record, g: Record) -> None:
    first, end = g.id * w.members, (g.id + 1) * w.members
    links.hold_last(w, g)
    w.running -= rollouts.alive(w, first, end, False)
    calendar.log(w, GROUP_HOLD, g.id, -1, -1, w.published, 0.0)
    rollouts.hold(w, first, end)


@compiled
def _count(w: Record, g: Record) -> None:
    """Count a complete group for the round it belongs to, or for the next one."""
    if w.whatever:
        return
    if not (w.open and g.in_round):
        w.surplus += 1
        return
    w.to_complete -= 1
    if w.to_complete == 0:
        close(w)


# --- completion ---------------------------------------------------------------------------------------------------------


@compiled
def over(w: Record, group: int, valid: int) -> None:
    """Count a member of a group that has ended by itself. The kernel then admits."""
    g = group_at(w, group)
    if not g.held:
        w.running -= 1
    w.completed += 1
    g.done += 1
    g.valid += valid
    if g.done == w.group:
        _complete(w, g)
    w.admitting = 1


@compiled
def _complete(w: Record, g: Record) -> None:
    """Put a complete group into the buffer, or drop it."""
    if w.members > w.group:
        _abort(w, g)
    if g.held:
        links.let_go(w, g)
    if g.valid <= w.least_valid:
        _discard(w, g, INVALID, 0)
    elif _old(w, g):
        _discard(w, g, OLD, w.requeue)
    else:
        w.incomplete -= 1
        w.accepted += 1
        w.buffered += 1
        g.fate, g.ready_s = READY, w.now
        calendar.log(w, GROUP_READY, g.id, -1, -1, w.published, float(g.valid))
        if w.by_completion:
            whole(w.complete, w.complete_n).x = g.id
            w.complete_n += 1
        else:
            heap.push_number(w.ready, w.ready_n, g.id)
            w.ready_n += 1
        if w.rounds:
            _count(w, g)
    offer(w)


# --- taking -------------------------------------------------------------------------------------------------------------


@compiled
def _take(w: Record) -> int:
    """Return the group to be taken now; -1 if none may be."""
    while w.head < w.group_n and group_at(w, w.head).fate >= TAKEN:
        w.head += 1
    if w.by_completion:
        while w.complete_first < w.complete_n and group_at(w, whole(w.complete, w.complete_first).x).fate != READY:
            w.complete_first += 1
        if w.complete_first == w.complete_n:
            return NONE
        group = whole(w.complete, w.complete_first).x
        w.complete_first += 1
    else:
        while w.ready_n and group_at(w, whole(w.ready, 0).x).fate != READY:
            heap.pop_number(w.ready, w.ready_n)
            w.ready_n -= 1
        if w.ready_n == 0 or not may_take(whole(w.ready, 0).x, w.head, w.window):
            return NONE
        group = heap.pop_number(w.ready, w.ready_n)
        w.ready_n -= 1
    group_at(w, group).fate = TAKEN
    w.unconsumed -= 1
    w.buffered -= 1
    return group


@compiled
def offer(w: Record) -> None:
    """Let the learner take what may be taken, if it is waiting for it."""
    if not w.collecting:
        return
    if w.whatever:
        if w.open or w.buffered == 0:
            return
        w.need = w.buffered
    while w.taken_n - w.part_first < w.need:
        group = _take(w)
        if group < 0:
            return
        group_at(w, group).take_version = w.version
        whole(w.taken, w.taken_n).x = group
        w.taken_n += 1
        calendar.log(w, TRAIN_TAKE, group, -1, w.part, w.version, float(w.version))
    w.collecting = 0
    if w.wake:
        calendar.after(w, 0.0, WAKE, 0)
