"""What happens seldom, as SimPy processes: a controller of the width, arrivals from outside, failures of engines."""

from __future__ import annotations

from collections.abc import Generator
from itertools import count
from typing import TYPE_CHECKING, Any

from sim.cluster.events import Kind
from sim.cluster.model.engine import Engine
from sim.cluster.rules import aimd
from sim.cluster.scheduling import Aimd, Arrivals

if TYPE_CHECKING:
    from sim.cluster.model.simulation import Simulation

__all__ = ["arrivals", "controller", "failures"]


def controller(sim: Simulation, a: Aimd) -> Generator[Any, Any, None]:
    """Set the width of running rollouts, now and then."""
    s, env = sim.scheduler, sim.env
    while True:
        yield env.timeout(a.interval_s)
        now = env.now
        occupancy = max(engine.occupancy(now) for engine in sim.engines)
        width = aimd(s.width, occupancy, s.completed, a.grow, a.trim_at, a.trim, a.hard_at, a.hard, a.least, a.most)
        if width != s.width:
            s.completed = 0
        s.width = width
        if sim.log is not None:
            sim.log((now, int(Kind.CONTROL), -1, -1, -1, sim.published, float(width)))
        s.admit(now)


def arrivals(sim: Simulation, a: Arrivals) -> Generator[Any, Any, None]:
    """Let groups come by themselves until the source is empty."""
    for number in count():
        yield sim.env.timeout(sim.draws.series("arrival", 0, a.interval, number))
        if not sim.scheduler.arrive(sim.env.now):
            return


def failures(sim: Simulation, engine: Engine) -> Generator[Any, Any, None]:
    """Let an engine fail and come back. Who was on it begins the turn again elsewhere."""
    spec, env = sim.cluster.engines.failures, sim.env
    assert spec is not None
    for number in count():
        yield env.timeout(sim.draws.series("up", engine.index, spec.up, number))
        now = env.now
        if sim.log is not None:
            sim.log((now, int(Kind.ENGINE_FAIL), engine.index, -1, -1, -1, 0.0))
        for traj in engine.fail(now):
            sim.move(traj)
            traj.engine.submit(traj, now)
        if engine.draining:
            sim.learner.drained(engine, now)
        yield env.timeout(sim.draws.series("down", engine.index, spec.down, number))
        now = env.now
        engine.down = False
        if not engine.stopped:
            engine.version = sim.published
        if sim.log is not None:
            sim.log((now, int(Kind.ENGINE_UP), engine.index, -1, -1, engine.version, 0.0))
        engine.admit(now)
