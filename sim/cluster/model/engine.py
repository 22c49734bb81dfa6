"""A generation engine with continuous batching: processor sharing in virtual time, with one timer.

With n active sequences each decodes at 1 / (a + b n) tokens/s, so V(t), the tokens that a sequence active since the engine
was last idle would have decoded, has dV/dt = 1 / (a + b n). A sequence that starts at V with w tokens of work leaves at
V + w whatever happens meanwhile: the sequences stand in one heap by that number, and only the first needs a timer. A timer
may fire early (sequences joined since it was set); then it is set again. It is replaced only when it would fire late.

KV memory grows by n tokens per unit of V; when it is full the newest sequence is preempted, keeps its tokens, and prefills
again. Nobody is admitted beside others above the watermark, and nobody at all until somebody leaves.
"""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from sim.cluster.events import Kind
from sim.cluster.model.state import Place, Trajectory

if TYPE_CHECKING:
    from sim.cluster.model.simulation import Simulation

__all__ = ["Engine"]

GEN_START, GEN_END, GEN_PAUSE = int(Kind.GEN_START), int(Kind.GEN_END), int(Kind.GEN_PAUSE)
QUEUED, WRITING, WRITTEN = Place.QUEUED, Place.WRITING, Place.WRITTEN


class Engine:
    """One engine."""

    def __init__(self, sim: Simulation, index: int) -> None:
        spec = sim.cluster.engines
        self.sim, self.index = sim, index
        self._log, self._timeout, self._on_timer = sim.log, sim.env.timeout, self._fired
        self._decide, self._next_serial, self._cap = sim.decide, sim.serial, sim.token_cap
        self._base, self._each = spec.base_s, spec.per_sequence_s
        self._most = spec.max_sequences if spec.max_sequences is not None else 2**62
        self._kv = spec.kv_tokens if spec.kv_tokens is not None else math.inf
        self._limited = spec.kv_tokens is not None
        self._admit_below = spec.watermark * self._kv if self._limited else math.inf
        self._prefill, self._cache = spec.prefill, spec.prefix_cache
        self.n, self.version, self.epoch = 0, 0, 0
        self.assigned = 0
        self.stopped = self.draining = self.down = False
        self._v, self._t, self._step_s = 0.0, 0.0, spec.base_s
        self._kv_offset = 0.0  # KV tokens in use are offset + n V
        self._heap: list[tuple[float, int, Trajectory]] = []
        self._batch: list[tuple[int, Trajectory]] = []  # in order of admission; entries of those who left stay a while
        self.queue: deque[tuple[int, Trajectory]] = deque()
        self._armed, self._token = math.inf, 0
        self._made = 0.0  # tokens of the chunk that ends now
        self._unsettled = False
        self.busy_s = self.sequence_s = 0.0

    # --- in and out -------------------------------------------------------------------------------------------------

    def submit(self, traj: Trajectory, now: float) -> None:
        """Take a turn to be written, at once or behind those who wait."""
        traj.place = QUEUED
        if not self.queue and self._may_admit(traj, now):
            if now > self._t:
                self._advance(now)
            self._start(traj, now)
            self._arm(now)
        else:
            traj.ticket = self.sim.ticket()
            self.queue.append((traj.ticket, traj))

    def admit(self, now: float) -> None:
        """Let in who waits, as far as there is room."""
        queue = self.queue
        if now > self._t:
            self._advance(now)
        while queue:
            ticket, traj = queue[0]
            if traj.ticket != ticket:
                queue.popleft()
            elif self._may_admit(traj, now):
                queue.popleft()
                self._start(traj, now)
            else:
                break
        self._arm(now)

    def remove(self, traj: Trajectory, now: float, kind: Kind) -> None:
        """Take a sequence out of the batch (its tokens are lost if `kind` says so) or out of the queue.

        Who may come in instead is decided by :meth:`settle`, once all that leave at this instant have left.
        """
        if traj.place == WRITING:
            self._advance(now)
            self._stop(traj, now, kind)
            self._emptied()
        traj.ticket = 0
        self._unsettled = True

    def settle(self, now: float) -> None:
        """Let in who may take the places of those removed."""
        if self._unsettled:
            self._unsettled = False
            self.admit(now)
            if self.draining and not self.n:
                self.sim.learner.drained(self, now)

    def pause_all(self, now: float) -> None:
        """Stop every sequence; they stand first in the queue, in the order in which they were admitted."""
        self._advance(now)
        stopped = []
        for traj in self._active():
            self._stop(traj, now, Kind.GEN_PAUSE)
            traj.place, traj.ticket = QUEUED, self.sim.ticket()
            stopped.append((traj.ticket, traj))
        self.queue.extendleft(reversed(stopped))
        self._emptied()

    def swap(self, version: int, now: float) -> None:
        """Change the weights under the running sequences: each chunk ends here and another begins."""
        self._advance(now)
        self.version = version
        for traj in self._active():
            work = self._v - traj.chunk_v
            self._account(traj, now, GEN_PAUSE)
            traj.chunk -= self._made
            traj.chunk_prefill = max(traj.chunk_prefill - work, 0.0)
            traj.chunk_v = self._v
            self._stamp(traj, now)

    def load(self, version: int, now: float) -> None:
        """Begin anew with other weights: what was cached is void."""
        self.version = version
        self.epoch += 1
        self.stopped = self.draining = False
        self.admit(now)

    def fail(self, now: float) -> list[Trajectory]:
        """Go down; return who was here, those in the batch first. What their current chunk wrote is lost."""
        self._advance(now)
        self.down = True
        victims = self._active()
        for traj in victims:
            self._stop(traj, now, Kind.GEN_ABORT)
        victims += [traj for ticket, traj in self.queue if traj.ticket == ticket]
        self.queue.clear()
        self._emptied()
        self.epoch += 1
        return victims

    # --- the batch --------------------------------------------------------------------------------------------------

    def occupancy(self, now: float) -> float:
        """Return the share of KV memory in use."""
        self._advance(now)
        return (self._kv_offset + self.n * self._v) / self._kv

    def _may_admit(self, traj: Trajectory, now: float) -> bool:
        if self.stopped or self.draining or self.down or self.n >= self._most:
            return False
        if self._limited and self.n > 0:
            self._advance(now)
            return self._kv_offset + self.n * self._v + (traj.context + traj.written) <= self._admit_below
        return True

    def _start(self, traj: Trajectory, now: float) -> None:
        if traj.remaining < 0:
            self._decide(traj, self.version)
        held = traj.context + traj.written
        work = traj.remaining
        if self._cap is not None and work > self._cap - traj.round_tokens:
            work = self._cap - traj.round_tokens
        v = self._v
        if self._prefill > 0.0:
            cached = 0.0
            if self._cache and traj.cache_engine == self.index and traj.cache_epoch == self.epoch:
                cached = traj.cached
            traj.chunk_prefill = self._prefill * (held - cached)
        traj.chunk, traj.chunk_v, traj.place, traj.ticket = work, v, WRITING, 0
        traj.job = serial = self._next_serial()
        heappush(self._heap, (v + (traj.chunk_prefill + work), serial, traj))
        self._batch.append((serial, traj))
        if self._limited:
            traj.kv = held - traj.chunk_prefill - v
            self._kv_offset += traj.kv
        self.n += 1
        self._step_s = self._base + self._each * self.n
        self._stamp(traj, now)

    def _stamp(self, traj: Trajectory, now: float) -> None:
        """Begin a chunk under the version that now writes."""
        version = self.version
        traj.version = version
        if traj.oldest < 0:
            traj.oldest = version
        traj.newest = version
        if self._log is not None:
            self._log((now, GEN_START, self.index, traj.id, traj.turn, version, traj.context + traj.written))

    def _advance(self, now: float) -> None:
        if now > self._t:
            if self.n:
                elapsed = now - self._t
                self._v += elapsed / self._step_s
                self.busy_s += elapsed
                self.sequence_s += elapsed * self.n
            self._t = now

    def _arm(self, now: float) -> None:
        if not self.n:
            return
        heap = self._heap
        while heap[0][2].job != heap[0][1]:
            heappop(heap)
        target = heap[0][0]
        if self._limited and self.n > 1:
            full = (self._kv - self._kv_offset) / self.n
            if full < target:
                target = full
        delay = (target - self._v) * self._step_s
        if delay < 0.0:
            delay = 0.0
        at = now + delay
        if at < self._armed:
            self._armed = at
            self._token += 1
            event = self._timeout(delay, self._token)
            event.callbacks.append(self._on_timer)

    def _fired(self, event: Any) -> None:
        if event.value != self._token:
            return
        self._armed = math.inf
        now = self.sim.env.now
        if now > self._t:
            self._advance(now)
        heap, done = self._heap, []
        while heap:
            at, serial, traj = heap[0]
            if traj.job != serial:
                heappop(heap)
                continue
            if now + (at - self._v) * self._step_s > now:
                break
            heappop(heap)
            self._leave(traj)
            self._finish(traj, now)
            done.append(traj)
        if not done:
            self._too_early(now)
            return
        if not self.n or len(self._batch) > 2 * self.n + 64:
            self._emptied()
        if self.queue:
            self.admit(now)
        else:
            self._arm(now)
        for traj in done:
            if traj.place != WRITTEN:
                continue  # aborted at this very instant, by what another of them has completed
            if traj.remaining > 0.0:
                self.sim.park(traj, now)
            else:
                self.sim.written(traj, now)
        if self.draining and not self.n:
            self.sim.learner.drained(self, now)

    def _too_early(self, now: float) -> None:
        """Nobody is done: the memory is full, or others have joined since the timer was set."""
        if self._limited and self.n > 1:
            full = (self._kv - self._kv_offset) / self.n
            if now + (full - self._v) * self._step_s <= now:
                self._preempt(now)
        self._arm(now)

    def _finish(self, traj: Trajectory, now: float) -> None:
        """End a chunk that has written all it was to write."""
        traj.place = WRITTEN
        self._made = traj.chunk
        self._book(traj, now, GEN_END if traj.chunk == traj.remaining else GEN_PAUSE)
        traj.cached, traj.cache_engine, traj.cache_epoch = traj.context + traj.written, self.index, self.epoch

    def _preempt(self, now: float) -> None:
        batch = self._batch
        while batch[-1][1].job != batch[-1][0]:
            batch.pop()
        _, traj = batch.pop()
        self._stop(traj, now, Kind.GEN_PREEMPT)
        traj.cache_engine = -1
        traj.place, traj.ticket = QUEUED, self.sim.ticket()
        self.queue.appendleft((traj.ticket, traj))

    def _stop(self, traj: Trajectory, now: float, kind: Kind) -> None:
        """End a chunk before its time."""
        self._account(traj, now, int(kind), lost=kind == Kind.GEN_ABORT)
        traj.cached, traj.cache_engine, traj.cache_epoch = traj.context + traj.written, self.index, self.epoch
        self._leave(traj)

    def _account(self, traj: Trajectory, now: float, kind: int, lost: bool = False) -> None:
        made = self._v - traj.chunk_v - traj.chunk_prefill
        if made < 0.0:
            made = 0.0
        if made > traj.chunk:
            made = traj.chunk
        self._made = made
        self._book(traj, now, kind, lost)

    def _book(self, traj: Trajectory, now: float, kind: int, lost: bool = False) -> None:
        made = self._made
        if not lost:
            traj.remaining -= made
            traj.written += made
            traj.round_tokens += made
            traj.tokens += made
            traj.token_versions += made * traj.version
        if self._log is not None:
            self._log((now, kind, self.index, traj.id, traj.turn, traj.version, made))

    def _leave(self, traj: Trajectory) -> None:
        traj.job = 0
        self.n -= 1
        self._step_s = self._base + self._each * self.n
        if self._limited:
            self._kv_offset -= traj.kv

    def _emptied(self) -> None:
        """Count virtual time from 0 again when nobody is left; forget those who left now and then."""
        if not self.n:
            self._v = self._kv_offset = 0.0
            self._heap.clear()
            self._batch.clear()
        elif len(self._batch) > 2 * self.n + 64:
            self._batch = [(serial, traj) for serial, traj in self._batch if traj.job == serial]

    def _active(self) -> list[Trajectory]:
        return [traj for serial, traj in self._batch if traj.job == serial]
