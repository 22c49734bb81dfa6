"""A generation engine with continuous batching: processor sharing in virtual time, with one timer.

With n active sequences each decodes at 1 / (a + b n) tokens/s, so V(t), the tokens that a sequence active since the engine
was last idle would have decoded, has dV/dt = 1 / (a + b n). A sequence that starts at V with w tokens of work leaves at
V + w whatever happens meanwhile: the sequences stand in one heap by that number, and only the first needs a timer. A timer
may fire early (sequences joined since it was set); then it is set again. It is replaced only when it would fire late.

What this costs per turn is what a simulation costs, so the common path is written out; memory, prefill and token caps are
in :mod:`sim.cluster.model.memory`.
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
    """One engine, with memory for everybody and prefill that costs nothing."""

    def __init__(self, sim: Simulation, index: int) -> None:
        spec = sim.cluster.engines
        self.sim, self.index = sim, index
        self._env, self._log, self._timeout, self._on_timer = sim.env, sim.log, sim.env.timeout, self._fired
        self._decide, self._written, self._next_serial = sim.decide, sim.written, sim.serial
        self._base, self._each = spec.base_s, spec.per_sequence_s
        self._most = spec.max_sequences if spec.max_sequences is not None else 2**62
        self.n, self.version, self.epoch = 0, 0, 0
        self.assigned = 0
        self.stopped = self.draining = self.down = False
        self._v, self._t, self._step_s = 0.0, 0.0, spec.base_s
        self._heap: list[tuple[float, int, Trajectory]] = []  # entries of those who left stay until they come up
        self.queue: deque[tuple[int, Trajectory]] = deque()
        self._armed = math.inf
        self._timer: Any = None
        self._unsettled = False
        self.busy_s = self.sequence_s = 0.0

    # --- in and out -------------------------------------------------------------------------------------------------

    def submit(self, traj: Trajectory, now: float) -> None:
        """Take a turn to be written, at once or behind those who wait."""
        if not self.queue and self._may_admit(traj, now):
            if now > self._t:
                self._advance(now)
            self._start(traj, now)
            self._arm(now)
        else:
            traj.place, traj.ticket = QUEUED, self.sim.ticket()
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
                traj.ticket = 0
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
        for traj in self.active():
            self._stop(traj, now, Kind.GEN_PAUSE)
            traj.place, traj.ticket = QUEUED, self.sim.ticket()
            stopped.append((traj.ticket, traj))
        self.queue.extendleft(reversed(stopped))
        self._emptied()

    def swap(self, version: int, now: float) -> None:
        """Change the weights under the running sequences: each chunk ends here and another begins."""
        self._advance(now)
        self.version = version
        for traj in self.active():
            work = self._v - traj.chunk_v
            made = self._made(traj)
            self._book(traj, made, now, GEN_PAUSE)
            traj.chunk -= made
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
        victims = self.active()
        for traj in victims:
            self._stop(traj, now, Kind.GEN_ABORT)
        victims += [traj for ticket, traj in self.queue if traj.ticket == ticket]
        self.queue.clear()
        self._emptied()
        self.epoch += 1
        return victims

    def active(self) -> list[Trajectory]:
        """Return the batch, in the order in which it was admitted."""
        return [traj for _, traj in sorted((serial, traj) for _, serial, traj in self._heap if traj.job == serial)]

    def occupancy(self, now: float) -> float:
        """Return the share of KV memory in use: there is enough of it."""
        return 0.0

    # --- the batch --------------------------------------------------------------------------------------------------

    def _may_admit(self, traj: Trajectory, now: float) -> bool:
        return self.n < self._most and not (self.stopped or self.draining or self.down)

    def _start(self, traj: Trajectory, now: float) -> None:
        v = self._v
        if traj.remaining < 0:
            self._decide(traj, self.version)
        traj.chunk = work = traj.remaining
        traj.chunk_v, traj.place = v, WRITING
        traj.job = serial = self._next_serial()
        heappush(self._heap, (v + work, serial, traj))
        self.n = n = self.n + 1
        self._step_s = self._base + self._each * n
        self._stamp(traj, now)

    def _stamp(self, traj: Trajectory, now: float) -> None:
        """Begin a chunk under the version that now writes."""
        version = self.version
        traj.version = traj.newest = version
        if traj.oldest < 0:
            traj.oldest = version
        if self._log is not None:
            self._log((now, GEN_START, self.index, traj.id, traj.turn, version, traj.context + traj.written))

    def _advance(self, now: float) -> None:
        if now > self._t:
            n = self.n
            if n:
                elapsed = now - self._t
                self._v += elapsed / self._step_s
                self.busy_s += elapsed
                self.sequence_s += elapsed * n
            self._t = now

    def _arm(self, now: float) -> None:
        """See to it that the timer fires when the first sequence is done, or before."""
        if not self.n:
            return
        heap = self._heap
        target, serial, traj = heap[0]
        while traj.job != serial:
            heappop(heap)
            target, serial, traj = heap[0]
        delay = (target - self._v) * self._step_s
        if delay < 0.0:
            delay = 0.0
        at = now + delay
        if at < self._armed:
            self._armed = at
            self._timer = event = self._timeout(delay)
            event.callbacks.append(self._on_timer)

    def _fired(self, event: Any) -> None:
        if event is not self._timer:
            return
        self._armed, now = math.inf, self._env.now
        if now > self._t:
            self._advance(now)
        heap, v, done = self._heap, self._v, []
        while heap:
            at, serial, traj = heap[0]
            if traj.job == serial:
                if now + (at - v) * self._step_s > now:
                    break
                self._leave(traj)
                self._finish(traj, now)
                done.append(traj)
            heappop(heap)
        if not done:
            self._too_early(now)
            return
        if not self.n:
            self._emptied()
        if self.queue:
            self.admit(now)
        else:
            self._arm(now)
        written = self._written
        for traj in done:
            if traj.place == WRITTEN:  # else it was aborted at this very instant, by what another of them has completed
                written(traj, now)
        if self.draining and not self.n:
            self.sim.learner.drained(self, now)

    def _too_early(self, now: float) -> None:
        """Nobody is done: others have joined since the timer was set."""
        self._arm(now)

    def _finish(self, traj: Trajectory, now: float) -> None:
        """End a chunk that has written all it was to write."""
        made, traj.place = traj.chunk, WRITTEN
        traj.remaining -= made
        traj.written += made
        traj.tokens += made
        traj.token_versions += made * traj.version
        if self._log is not None:
            self._log((now, GEN_END, self.index, traj.id, traj.turn, traj.version, made))

    def _stop(self, traj: Trajectory, now: float, kind: Kind) -> None:
        """End a chunk before its time."""
        self._book(traj, self._made(traj), now, int(kind), lost=kind == Kind.GEN_ABORT)
        self._leave(traj)

    def _made(self, traj: Trajectory) -> float:
        """Return the tokens that an active sequence has written in this chunk."""
        made = self._v - traj.chunk_v - traj.chunk_prefill
        return 0.0 if made < 0.0 else min(made, traj.chunk)

    def _book(self, traj: Trajectory, made: float, now: float, kind: int, lost: bool = False) -> None:
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
        self.n = n = self.n - 1
        self._step_s = self._base + self._each * n

    def _emptied(self) -> None:
        """Count virtual time from 0 again when nobody is left."""
        if not self.n:
            self._v = 0.0
            self._heap.clear()
