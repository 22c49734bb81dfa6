"""An engine whose memory is limited, whose prefill costs time, or whose rollouts have a token budget.

KV memory grows by n tokens per unit of virtual time; when it is full the newest sequence is preempted, keeps its tokens, and
prefills again. Nobody is admitted beside others above the watermark, and nobody at all until somebody leaves.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from sim.cluster.events import Kind
from sim.cluster.model.engine import GEN_END, GEN_PAUSE, QUEUED, WRITING, WRITTEN, Engine
from sim.cluster.model.state import Trajectory

if TYPE_CHECKING:
    from sim.cluster.model.simulation import Simulation

__all__ = ["MemoryEngine", "engine_of"]


def engine_of(sim: Simulation, index: int) -> Engine:
    """Return engine `index`, of the plainest kind that has what the cluster asks for."""
    spec = sim.cluster.engines
    plain = spec.kv_tokens is None and spec.prefill == 0 and sim.token_cap is None
    return Engine(sim, index) if plain else MemoryEngine(sim, index)


class MemoryEngine(Engine):
    """One engine."""

    def __init__(self, sim: Simulation, index: int) -> None:
        super().__init__(sim, index)
        spec = sim.cluster.engines
        self._limited = spec.kv_tokens is not None
        self._kv = spec.kv_tokens if spec.kv_tokens is not None else math.inf
        self._admit_below = spec.watermark * self._kv if self._limited else math.inf
        self._prefill, self._cache, self._cap = spec.prefill, spec.prefix_cache, sim.token_cap
        self._kv_offset = 0.0  # KV tokens in use are offset + n V

    def occupancy(self, now: float) -> float:
        """Return the share of KV memory in use."""
        self._advance(now)
        return (self._kv_offset + self.n * self._v) / self._kv

    def _may_admit(self, traj: Trajectory, now: float) -> bool:
        if not super()._may_admit(traj, now):
            return False
        if self._limited and self.n > 0:
            self._advance(now)
            return self._kv_offset + self.n * self._v + (traj.context + traj.written) <= self._admit_below
        return True

    def _start(self, traj: Trajectory, now: float) -> None:
        if traj.remaining < 0:
            self._decide(traj, self.version)
        held = traj.context + traj.written
        work, v = traj.remaining, self._v
        if self._cap is not None and work > self._cap - traj.round_tokens:
            work = self._cap - traj.round_tokens
        cached = 0.0
        if self._cache and traj.cache_engine == self.index and traj.cache_epoch == self.epoch:
            cached = traj.cached
        traj.chunk, traj.chunk_v, traj.chunk_prefill = work, v, self._prefill * (held - cached)
        traj.place, traj.job = WRITING, self._next_serial()
        heappush(self._heap, (v + (traj.chunk_prefill + work), traj.job, traj))
        if self._limited:
            traj.kv = held - traj.chunk_prefill - v
            self._kv_offset += traj.kv
        self.n += 1
        self._step_s = self._base + self._each * self.n
        self._stamp(traj, now)

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
        delay = max((target - self._v) * self._step_s, 0.0)
        if now + delay < self._armed:
            self._armed = now + delay
            self._timer = self._timeout(delay)
            self._timer.callbacks.append(self._on_timer)

    def _too_early(self, now: float) -> None:
        if self._limited and self.n > 1:
            full = (self._kv - self._kv_offset) / self.n
            if now + (full - self._v) * self._step_s <= now:
                self._preempt(now)
        self._arm(now)

    def _preempt(self, now: float) -> None:
        """Take the memory of the newest sequence; it is the first to be let in again."""
        _, traj = max((serial, traj) for _, serial, traj in self._heap if traj.job == serial)
        self._stop(traj, now, Kind.GEN_PREEMPT)
        traj.cache_engine = -1
        traj.place, traj.ticket = QUEUED, self.sim.ticket()
        self.queue.appendleft((traj.ticket, traj))

    def _finish(self, traj: Trajectory, now: float) -> None:
        made, traj.place = traj.chunk, WRITTEN
        self._book(traj, made, now, GEN_END if made == traj.remaining else GEN_PAUSE)
        self._remember(traj)

    def _stop(self, traj: Trajectory, now: float, kind: Kind) -> None:
        super()._stop(traj, now, kind)
        self._remember(traj)

    def _remember(self, traj: Trajectory) -> None:
        """Keep what the sequence has in the prefix cache."""
        traj.cached, traj.cache_engine, traj.cache_epoch = traj.context + traj.written, self.index, self.epoch

    def _leave(self, traj: Trajectory) -> None:
        super()._leave(traj)
        if self._limited:
            self._kv_offset -= traj.kv

    def _emptied(self) -> None:
        super()._emptied()
        if not self.n:
            self._kv_offset = 0.0
