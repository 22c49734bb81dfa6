"""The learner: a process that collects, trains, and sees to it that the engines get what it made."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sim.cluster.events import Kind
from sim.cluster.model.engine import Engine
from sim.cluster.model.state import Group

if TYPE_CHECKING:
    from sim.cluster.model.simulation import Simulation

__all__ = ["Learner", "StepTimes"]


@dataclass
class StepTimes:
    """What one version took; see :class:`sim.cluster.books.StepBooks`."""

    asked_s: float
    started_s: float = float("nan")
    waited_s: float = 0.0
    trained_s: float = 0.0
    ended_s: float = float("nan")
    published_s: float = float("nan")
    rollouts: int = 0
    tokens: float = 0.0
    groups: list[Group] = field(default_factory=list)


class Learner:
    """The learner, and the weights on their way to the engines."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.spec, self.sync = sim, sim.cluster.learner, sim.cluster.sync
        self.version = 0
        self.steps: list[StepTimes] = []
        self.collecting = False
        self._need, self._part = 0, 0
        self._taken: list[Group] = []
        self._wake: Any = None
        self._draining = False  # all engines, before a blocking load

    # --- collecting -------------------------------------------------------------------------------------------------

    def offer(self, now: float) -> None:
        """Take what may be taken, if the learner is waiting for it."""
        if not self.collecting:
            return
        sim = self.sim
        scheduler = sim.scheduler
        if self.spec.whatever_is_complete:
            if scheduler.open or scheduler.buffered == 0:
                return
            self._need = scheduler.buffered
        while len(self._taken) < self._need:
            group = scheduler.take()
            if group is None:
                return
            group.take_version = self.version
            self._taken.append(group)
            if sim.log is not None:
                sim.log((now, int(Kind.TRAIN_TAKE), group.id, -1, self._part, self.version, float(self.version)))
        self.collecting = False
        if self._wake is not None:
            self._wake.succeed()

    def _collect(self, part: int) -> Generator[Any, Any, None]:
        sim = self.sim
        self._part, self._need = part, sim.scheduler.needed // self.spec.minibatches
        self._taken, self._wake, self.collecting = [], None, True
        self.offer(sim.env.now)
        sim.scheduler.admit(sim.env.now)
        if self.collecting:
            self._wake = sim.env.event()
            yield self._wake

    # --- training ---------------------------------------------------------------------------------------------------

    def run(self) -> Generator[Any, Any, None]:
        """Make the versions of the run, one after the other."""
        sim, spec, env = self.sim, self.spec, self.sim.env
        for step in range(sim.cluster.steps):
            times = StepTimes(env.now)
            self.steps.append(times)
            for part in range(spec.minibatches):
                asked = env.now
                yield from self._collect(part)
                now = env.now
                times.waited_s += now - asked
                if part == 0:
                    times.started_s = now
                if spec.colocated:
                    for engine in sim.engines:
                        engine.pause_all(now)
                        engine.stopped = True
                rollouts, tokens = 0, 0.0
                for group in self._taken:
                    for traj in group.members:
                        if traj.valid and not traj.cancelled:
                            rollouts += 1
                            tokens += traj.tokens
                times.groups += self._taken
                times.rollouts += rollouts
                times.tokens += tokens
                took = spec.base_s + spec.per_rollout_s * rollouts + spec.per_token_s * tokens
                took *= sim.draws.series("jitter", 0, spec.jitter, step * spec.minibatches + part)
                if sim.log is not None:
                    sim.log((now, int(Kind.TRAIN_START), step, -1, part, self.version, tokens))
                yield env.timeout(took)
                times.trained_s += took
                if sim.log is not None:
                    sim.log((env.now, int(Kind.TRAIN_END), step, -1, part, self.version, 0.0))
            times.ended_s = env.now
            sim.learn(times.groups, self.version)
            self.version += 1
            yield from self._send()
            if sim.on_version is not None:
                sim.on_version(self.version)
        sim.stop()

    # --- weights on their way ---------------------------------------------------------------------------------------

    def _send(self) -> Generator[Any, Any, None]:
        """Bring the new weights to the engines; returns when the learner may go on."""
        sim, mode, version = self.sim, self.sync.mode, self.version
        now = sim.env.now
        if mode == "pull":
            self._publish(version, now)
            sim.scheduler.sweep(now)
            for engine in sim.engines:
                self._request(engine, now)
            sim.scheduler.admit(now)
            return
        if sim.log is not None:
            sim.log((now, int(Kind.SYNC_START), -1, -1, -1, version, 0.0))
        if mode == "in_place":
            sim.after(self.sync.seconds, self._swapped, version)
            return
        if mode == "blocking":
            for engine in sim.engines:
                engine.draining = True
            if any(engine.n for engine in sim.engines):
                self._draining, self._wake = True, sim.env.event()
                yield self._wake
        now = sim.env.now
        for engine in sim.engines:
            engine.pause_all(now)
            engine.stopped = True
        yield sim.env.timeout(self.sync.seconds)
        now = sim.env.now
        if sim.log is not None:
            sim.log((now, int(Kind.SYNC_END), -1, -1, -1, version, 0.0))
        self._publish(version, now)
        sim.scheduler.sweep(now)
        for engine in sim.engines:
            engine.load(version, now)
        sim.scheduler.admit(now)

    def _publish(self, version: int, now: float) -> None:
        sim = self.sim
        sim.published = version
        sim.scheduler.settled += 1
        self.steps[version - 1].published_s = now
        if sim.log is not None:
            sim.log((now, int(Kind.VERSION), -1, -1, -1, version, 0.0))

    def _swapped(self, event: Any) -> None:
        sim, version = self.sim, event.value
        now = sim.env.now
        if sim.log is not None:
            sim.log((now, int(Kind.SYNC_END), -1, -1, -1, version, 0.0))
        self._publish(version, now)
        for engine in sim.engines:
            engine.swap(version, now)
        sim.scheduler.sweep(now)
        sim.scheduler.admit(now)

    def _request(self, engine: Engine, now: float) -> None:
        """Tell an engine that loads by itself that there is something newer."""
        if engine.draining or engine.stopped:
            return  # it is at it already, and looks again when done
        if self.sim.log is not None:
            self.sim.log((now, int(Kind.SYNC_START), engine.index, -1, -1, self.sim.published, 0.0))
        engine.draining = True
        if not engine.n:
            self.drained(engine, now)

    def drained(self, engine: Engine, now: float) -> None:
        """An engine that was told to drain is idle."""
        if self.sync.mode == "pull":
            engine.draining, engine.stopped = False, True
            self.sim.after(self.sync.seconds, self._loaded, (engine, self.sim.published))
        elif self._draining and not any(e.n for e in self.sim.engines):
            self._draining = False
            self._wake.succeed()

    def _loaded(self, event: Any) -> None:
        engine, version = event.value
        sim = self.sim
        now = sim.env.now
        if sim.log is not None:
            sim.log((now, int(Kind.SYNC_END), engine.index, -1, -1, version, 0.0))
        engine.load(version, now)
        if sim.published > version:
            self._request(engine, now)
