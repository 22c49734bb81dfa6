"""An engine's batch: virtual time, chunks that begin and end, and the one timer; see :mod:`sim.cluster.model.engine`."""

from __future__ import annotations

from sim.cluster.compiled import calendar, heap
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import What
from sim.cluster.compiled.state import WRITING, WRITTEN, int32, member, real, traj_at, turn, whole
from sim.cluster.events import Kind

__all__ = ["active", "advance", "arm", "emptied", "ended", "leave", "made_of", "newest", "stamp", "start", "stop"]

GEN_START, GEN_END, GEN_PAUSE, GEN_ABORT = (
    int(kind) for kind in (Kind.GEN_START, Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_ABORT)
)
TIMER = int(What.TIMER)


@compiled
def advance(w: Record, e: Record) -> None:
    """Bring virtual time up to now."""
    if w.now > e.t:
        if e.n:
            elapsed = w.now - e.t
            e.v += elapsed / e.step_s
            e.busy_s += elapsed
            e.sequence_s += elapsed * e.n
        e.t = w.now


@compiled
def decide(w: Record, t: Record, version: int) -> None:
    """Choose the action of a turn under a version, and how many tokens it writes."""
    draws = (t.row * w.turn_limit + t.turn) * w.draw_width
    node = t.node
    u = real(w.draws, draws).x
    thresholds = (whole(w.policy, version).x * w.contexts + whole(w.context, node).x) * w.actions
    action = 0
    while u >= real(w.thresholds, thresholds + action).x:
        action += 1
    row = node * w.actions + action
    shape = whole(w.token_shape, row).x
    draw = real(w.draws, draws + 2 + shape).x if shape >= 0 else 1.0
    tokens = real(w.token_scale, row).x * draw * t.length_factor
    cap = real(w.token_cap, row).x
    t.remaining = cap if tokens > cap else tokens
    t.action = action
    chosen = turn(w.turns, t.id * w.turn_limit + t.turn)
    chosen.node, chosen.action, chosen.version = node, action, version


@compiled
def start(w: Record, e: Record, t: Record) -> None:
    """Take a rollout into the batch."""
    if t.remaining < 0:
        decide(w, t, e.version)
    held = t.context + t.written
    work = t.remaining
    if w.capped and work > w.chunk_cap - t.round_tokens:
        work = w.chunk_cap - t.round_tokens
    cached = 0.0
    if w.cache and t.cache_engine == e.index and t.cache_epoch == e.epoch:
        cached = t.cached
    v = e.v
    t.chunk, t.chunk_v, t.chunk_prefill = work, v, w.prefill * (held - cached)
    t.place = WRITING
    serial = w.serial + 1
    w.serial = serial
    t.job = serial
    heap.push_finish(w, e, v + (t.chunk_prefill + work), serial, t.id)
    if e.batch_n > 2 * e.n + 64:
        _forget(w, e)
    entry = member(w.batch, e.index * w.row_cap + e.batch_n)
    entry.serial, entry.traj = serial, t.id
    e.batch_n += 1
    if w.kv_limited:
        t.kv = held - t.chunk_prefill - v
        e.kv_offset += t.kv
    e.n += 1
    e.step_s = w.base_s + w.each_s * e.n
    stamp(w, e, t)


@compiled
def stamp(w: Record, e: Record, t: Record) -> None:
    """Begin a chunk under the version that now writes."""
    version = e.version
    t.version = version
    if t.oldest < 0:
        t.oldest = version
    t.newest = version
    calendar.log(w, GEN_START, e.index, t.id, t.turn, version, t.context + t.written)


@compiled
def arm(w: Record, e: Record) -> None:
    """Set the timer, if it would fire too late."""
    if not e.n:
        return
    first = heap.first_finish(w, e)
    while traj_at(w, first.traj).job != first.serial:
        heap.pop_finish(w, e)
    target = first.at
    if w.kv_limited and e.n > 1:
        full = (w.kv - e.kv_offset) / e.n
        if full < target:
            target = full
    delay = (target - e.v) * e.step_s
    if delay < 0.0:
        delay = 0.0
    if w.now + delay < e.armed:
        e.armed = w.now + delay
        e.timer = calendar.after(w, delay, TIMER, e.index)


@compiled
def ended(w: Record, e: Record, t: Record) -> None:
    """End a chunk that has written all it was to write."""
    t.place = WRITTEN
    _book(w, e, t, GEN_END if t.chunk == t.remaining else GEN_PAUSE, t.chunk)
    t.cached, t.cache_engine, t.cache_epoch = t.context + t.written, e.index, e.epoch


@compiled
def stop(w: Record, e: Record, t: Record, kind: int) -> None:
    """End a chunk before its time."""
    made_of(w, e, t, kind)
    t.cached, t.cache_engine, t.cache_epoch = t.context + t.written, e.index, e.epoch
    leave(w, e, t)


@compiled
def made_of(w: Record, e: Record, t: Record, kind: int) -> float:
    """Book what a chunk has written so far, and return it."""
    made = e.v - t.chunk_v - t.chunk_prefill
    if made < 0.0:
        made = 0.0
    if made > t.chunk:
        made = t.chunk
    _book(w, e, t, kind, made)
    return made


@compiled
def _book(w: Record, e: Record, t: Record, kind: int, made: float) -> None:
    if kind != GEN_ABORT:
        t.remaining -= made
        t.written += made
        t.round_tokens += made
        t.tokens += made
        t.token_versions += made * t.version
    calendar.log(w, kind, e.index, t.id, t.turn, t.version, made)


@compiled
def leave(w: Record, e: Record, t: Record) -> None:
    """Take a rollout out of the batch."""
    t.job = 0
    e.n -= 1
    e.step_s = w.base_s + w.each_s * e.n
    if w.kv_limited:
        e.kv_offset -= t.kv


@compiled
def emptied(e: Record) -> None:
    """Count virtual time from 0 again when nobody is left."""
    if not e.n:
        e.v = e.kv_offset = 0.0
        e.heap_n = e.batch_n = 0


@compiled
def _forget(w: Record, e: Record) -> None:
    """Forget those who left the batch."""
    row, kept = e.index * w.row_cap, 0
    for i in range(e.batch_n):
        entry = member(w.batch, row + i)
        if traj_at(w, entry.traj).job == entry.serial:
            to = member(w.batch, row + kept)
            to.serial, to.traj = entry.serial, entry.traj
            kept += 1
    e.batch_n = kept


@compiled
def active(w: Record, e: Record) -> int:
    """Write those in the batch into the scratch table, in order of admission; return how many."""
    row, n = e.index * w.row_cap, 0
    for i in range(e.batch_n):
        entry = member(w.batch, row + i)
        if traj_at(w, entry.traj).job == entry.serial:
            int32(w.scratch, n).x = entry.traj
            n += 1
    return n


@compiled
def newest(w: Record, e: Record) -> int:
    """Take the newest of the batch out of its order; return who it is."""
    row = e.index * w.row_cap
    last = member(w.batch, row + e.batch_n - 1)
    while traj_at(w, last.traj).job != last.serial:
        e.batch_n -= 1
        last = member(w.batch, row + e.batch_n - 1)
    e.batch_n -= 1
    return last.traj
