"""A pool of tool servers. How an attempt ends is known when it starts, so it is one entry in the calendar.

min(latency, timeout) is drawn at once; a caller that cancels leaves the entry behind, which then finds that nobody waits.
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

__all__ = ["Pool"]

TOOL_ENQUEUE, TOOL_START = int(Kind.TOOL_ENQUEUE), int(Kind.TOOL_START)
TOOL_END, TOOL_TIMEOUT, TOOL_FAIL = int(Kind.TOOL_END), int(Kind.TOOL_TIMEOUT), int(Kind.TOOL_FAIL)
CALLING, SERVED, BACKOFF, OVER = Place.CALLING, Place.SERVED, Place.BACKOFF, Place.OVER


class Pool:
    """One pool."""

    def __init__(self, sim: Simulation, index: int) -> None:
        spec, laws = sim.cluster.tools[index], sim.plan.tool
        self.sim, self.index = sim, index
        self._env, self._log, self._timer, self._on_end = sim.env, sim.log, sim.env.timeout, self._fired
        self._answer = sim.observe
        self._servers = spec.servers if spec.servers is not None else 2**62
        self._scale, self._shape, self._cap = float(laws.scale[index]), int(laws.shape[index]), float(laws.cap[index])
        self._tries, self._shapes = sim.plan.attempts, len(laws.shapes)
        self._timeout = spec.timeout_s if spec.timeout_s is not None else math.inf
        self._retries = spec.retries
        self._wait_s: list[float] = sim.plan.wait_s[index].tolist()
        self._failure = spec.failure
        self._cold, self._warm = spec.cold_start_s, spec.keep_warm_s if spec.keep_warm_s is not None else math.inf
        self._lifo, self._by_group = spec.discipline == "lifo", spec.discipline == "oldest"
        self.busy = 0
        self._queue: deque[Trajectory] = deque()
        self._ordered: list[tuple[int, int, Trajectory]] = []
        self._idle_since: list[float] = []  # servers that have served, the last used on top
        self._t = self.busy_s = 0.0
        self.calls = self.attempts = self.timeouts = self.failures = 0

    def call(self, traj: Trajectory, now: float) -> None:
        """Serve a call, at once or when a server is free."""
        if self.busy < self._servers:
            self.busy_s += self.busy * (now - self._t)
            self._t = now
            self.busy += 1
            self._begin(traj, now)
            return
        traj.place, traj.waits = CALLING, None
        if self._by_group:
            heappush(self._ordered, (traj.group.id, traj.id, traj))
        else:
            self._queue.append(traj)
        if self._log is not None:
            self._log((now, TOOL_ENQUEUE, self.index, traj.id, traj.turn, traj.attempt, 0.0))

    def cancel(self, traj: Trajectory, now: float) -> None:
        """Forget a call; a server that was on it is free at once, and who waits is passed over when its turn comes."""
        traj.waits = None
        if traj.place == SERVED:
            if self._log is not None:
                self._log((now, int(Kind.TOOL_ABORT), self.index, traj.id, traj.turn, traj.attempt, 0.0))
            traj.place = OVER
            self._release(now)

    def _begin(self, traj: Trajectory, now: float) -> None:
        """Put a server on a call, and into the calendar how that ends."""
        luck, attempt = traj.luck, traj.attempt
        if self._shape >= 0:
            draw = luck.latency[(traj.turn * self._tries + attempt) * self._shapes + self._shape]
            took = self._scale * draw * luck.latency_factor
        else:
            took = self._scale * luck.latency_factor
        if took > self._cap:
            took = self._cap
        if self._cold > 0.0:
            idle = self._idle_since
            if not idle or now - idle.pop() > self._warm:
                took += self._cold
        traj.ends = TOOL_END
        if took > self._timeout:
            took, traj.ends = self._timeout, TOOL_TIMEOUT
        elif self._failure > 0.0 and luck.failure[traj.turn * self._tries + attempt] < self._failure:
            traj.ends = TOOL_FAIL
        traj.place = SERVED
        self.attempts += 1
        if self._log is not None:
            self._log((now, TOOL_START, self.index, traj.id, traj.turn, attempt, 0.0))
        traj.tool_s += took
        traj.waits = event = self._timer(took, traj)
        event.callbacks.append(self._on_end)

    def _fired(self, event: Any) -> None:
        traj = event.value
        if traj.waits is not event:
            return  # cancelled
        now, end = self._env.now, traj.ends
        if self._log is not None:
            self._log((now, end, self.index, traj.id, traj.turn, traj.attempt, 0.0))
        self._release(now)
        if end == TOOL_END:
            self.calls += 1
            self._answer(traj, now)
        else:
            self._failed(traj, end, now)

    def _failed(self, traj: Trajectory, end: int, now: float) -> None:
        """Try again after a while, or give up."""
        if end == TOOL_TIMEOUT:
            self.timeouts += 1
        else:
            self.failures += 1
        if traj.attempt >= self._retries:
            self.sim.give_up(traj, now)
            return
        wait = self._wait_s[traj.attempt]
        traj.attempt += 1
        traj.place = BACKOFF
        traj.waits = event = self._timer(wait, traj)
        event.callbacks.append(self._retry)

    def _retry(self, event: Any) -> None:
        traj = event.value
        if traj.waits is not event:
            return
        now = self._env.now
        if self._log is not None:
            self._log((now, int(Kind.TOOL_RETRY), self.index, traj.id, traj.turn, traj.attempt, 0.0))
        self.call(traj, now)

    def _release(self, now: float) -> None:
        """Free a server, or put it on the next call that waits."""
        self.busy_s += self.busy * (now - self._t)
        self._t = now
        if self._cold > 0.0:
            self._idle_since.append(now)
        queue = self._queue
        while queue:
            traj = queue.pop() if self._lifo else queue.popleft()
            if traj.place == CALLING:
                self._begin(traj, now)
                return
        while self._ordered:
            traj = heappop(self._ordered)[-1]
            if traj.place == CALLING:
                self._begin(traj, now)
                return
        self.busy -= 1
