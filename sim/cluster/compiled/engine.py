"""An engine's doings: turns come in, are written, paused, preempted; weights are loaded, it fails and is back."""

from __future__ import annotations

from sim.cluster.compiled import batch, calendar, heap, links
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import SyncMode, Then, What
from sim.cluster.compiled.state import NONE, QUEUED, WRITING, engine_at, int32, traj_at, whole
from sim.cluster.events import Kind

__all__ = [
    "admit", "assign", "drained", "fail", "fired", "load", "occupancy", "pause_all", "remove", "settle", "submit", "swap",
    "unassign", "up",
]  # fmt: skip

GEN_PAUSE, GEN_PREEMPT, GEN_ABORT = int(Kind.GEN_PAUSE), int(Kind.GEN_PREEMPT), int(Kind.GEN_ABORT)
LOADED, WAKE = int(What.LOADED), int(What.LEARNER)
PULL, WRITTEN_NEXT = int(SyncMode.PULL), int(Then.WRITTEN)
DOWN = 2**40  # an engine that is down comes after any that is not, however many rollouts it has


@compiled
def assign(w: Record, t: Record) -> None:
    """Choose the engine with the fewest rollouts; one that is down only where all are."""
    best, fewest = 0, whole(w.load, 0).x
    for i in range(1, w.engine_n):
        load = whole(w.load, i).x
        if load < fewest:
            best, fewest = i, load
    whole(w.load, best).x = fewest + 1
    t.engine = best


@compiled
def unassign(w: Record, t: Record) -> None:
    """Count a rollout no longer among those of its engine."""
    whole(w.load, t.engine).x -= 1


@compiled
def _may_admit(w: Record, e: Record, t: Record) -> bool:
    if e.stopped or e.draining or e.down or e.n >= w.most:
        return False
    if w.kv_limited and e.n > 0:
        batch.advance(w, e)
        return e.kv_offset + e.n * e.v + (t.context + t.written) <= w.admit_below
    return True


@compiled
def submit(w: Record, t: Record) -> None:
    """Give a turn to be written to its engine, at once or behind those who wait."""
    e = engine_at(w, t.engine)
    t.place = QUEUED
    if e.queue_first == NONE and _may_admit(w, e, t):
        batch.advance(w, e)
        batch.start(w, e, t)
        batch.arm(w, e)
    else:
        links.append(w, e, t)


@compiled
def admit(w: Record, e: Record) -> None:
    """Let in who waits, as far as there is room."""
    batch.advance(w, e)
    while e.queue_first != NONE:
        t = traj_at(w, e.queue_first)
        if not _may_admit(w, e, t):
            break
        links.unlink(w, e, t)
        batch.start(w, e, t)
    batch.arm(w, e)


@compiled
def remove(w: Record, t: Record, kind: int) -> None:
    """Take a sequence out of the batch or out of the queue; who may come in instead is decided by :func:`settle`."""
    e = engine_at(w, t.engine)
    if t.place == WRITING:
        batch.advance(w, e)
        batch.stop(w, e, t, kind)
        batch.emptied(e)
    else:
        links.unlink(w, e, t)
    if not e.unsettled:
        e.unsettled = 1
        w.unsettled += 1


@compiled
def settle(w: Record) -> None:
    """Let in who may take the places of those removed."""
    if w.unsettled == 0:
        return
    w.unsettled = 0
    for i in range(w.engine_n):
        e = engine_at(w, i)
        if e.unsettled:
            e.unsettled = 0
            admit(w, e)
            if e.draining and not e.n:
                drained(w, e)


@compiled
def drained(w: Record, e: Record) -> None:
    """An engine that was told to drain is idle."""
    if w.sync_mode == PULL:
        e.draining, e.stopped = 0, 1
        e.loading = w.published
        calendar.after(w, w.sync_s, LOADED, e.index)
    elif w.draining and not any_active(w):
        w.draining = 0
        calendar.after(w, 0.0, WAKE, 0)


@compiled
def any_active(w: Record) -> bool:
    """Return whether any engine writes."""
    n = 0
    for i in range(w.engine_n):
        n += engine_at(w, i).n
    return n > 0


@compiled
def pause_all(w: Record, e: Record) -> None:
    """Stop every sequence; they stand first in the queue, in the order in which they were admitted."""
    batch.advance(w, e)
    n = batch.active(w, e)
    for i in range(n):
        t = traj_at(w, int32(w.scratch, i).x)
        batch.stop(w, e, t, GEN_PAUSE)
        t.place = QUEUED
    for i in range(n - 1, -1, -1):
        links.append_left(w, e, traj_at(w, int32(w.scratch, i).x))
    batch.emptied(e)


@compiled
def swap(w: Record, e: Record, version: int) -> None:
    """Change the weights under the running sequences: each chunk ends here and another begins."""
    batch.advance(w, e)
    e.version = version
    for i in range(batch.active(w, e)):
        t = traj_at(w, int32(w.scratch, i).x)
        work = e.v - t.chunk_v
        t.chunk -= batch.made_of(w, e, t, GEN_PAUSE)
        left = t.chunk_prefill - work
        t.chunk_prefill = 0.0 if left < 0.0 else left
        t.chunk_v = e.v
        batch.stamp(w, e, t)


@compiled
def load(w: Record, e: Record, version: int) -> None:
    """Begin anew with other weights: what was cached is void."""
    e.version = version
    e.epoch += 1
    e.stopped = e.draining = 0
    admit(w, e)


@compiled
def fail(w: Record, e: Record) -> None:
    """Go down; those who were here go elsewhere, those in the batch first. What their current chunk wrote is lost."""
    batch.advance(w, e)
    e.down = 1
    whole(w.load, e.index).x += DOWN
    n = batch.active(w, e)
    for i in range(n):
        batch.stop(w, e, traj_at(w, int32(w.scratch, i).x), GEN_ABORT)
    i = e.queue_first
    while i != NONE:
        int32(w.scratch, n).x = i
        n += 1
        i = traj_at(w, i).next
    e.queue_first = e.queue_last = NONE
    batch.emptied(e)
    e.epoch += 1
    for i in range(n):
        t = traj_at(w, int32(w.scratch, i).x)
        unassign(w, t)
        assign(w, t)
        submit(w, t)


@compiled
def up(w: Record, e: Record) -> None:
    """Be no longer down."""
    e.down = 0
    whole(w.load, e.index).x -= DOWN


@compiled
def occupancy(w: Record, e: Record) -> float:
    """Return the share of KV memory in use."""
    batch.advance(w, e)
    return (e.kv_offset + e.n * e.v) / w.kv


@compiled
def fired(w: Record, e: Record, timer: int) -> None:
    """The timer has fired: end the chunks that are written. What follows them is left to the kernel, one by one."""
    if timer != e.timer:
        return
    e.armed = float("inf")
    batch.advance(w, e)
    first = heap.first_finish(w, e)
    done = 0
    while e.heap_n:
        t = traj_at(w, first.traj)
        if t.job != first.serial:
            heap.pop_finish(w, e)
            continue
        if w.now + (first.at - e.v) * e.step_s > w.now:
            break
        heap.pop_finish(w, e)
        batch.leave(w, e, t)
        batch.ended(w, e, t)
        int32(w.done, done).x = t.id
        done += 1
    if done:
        batch.emptied(e)
        admit(w, e)
        w.done_i, w.done_n, w.who, w.then = 0, done, e.index, WRITTEN_NEXT
        return
    if w.kv_limited and e.n > 1:
        full = (w.kv - e.kv_offset) / e.n
        if w.now + (full - e.v) * e.step_s <= w.now:
            _preempt(w, e)
    batch.arm(w, e)


@compiled
def _preempt(w: Record, e: Record) -> None:
    t = traj_at(w, batch.newest(w, e))
    batch.stop(w, e, t, GEN_PREEMPT)
    t.cache_engine = -1
    t.place = QUEUED
    links.append_left(w, e, t)
