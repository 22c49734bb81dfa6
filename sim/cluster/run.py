"""Run a cluster: ``simulate`` one seed, ``replicate`` many."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sim.cluster.books import Books, books_of
from sim.cluster.draws import Draws
from sim.cluster.events import EventLog
from sim.cluster.plan import Plan, plan
from sim.cluster.spec import Cluster

if TYPE_CHECKING:
    from sim.cluster.model.simulation import Process

__all__ = ["ClusterRun", "EngineName", "compiled_is_there", "replicate", "run_plan", "simulate"]

EngineName = Literal["auto", "simpy", "compiled"]
Learn = Callable[[Any, int], Any]


@dataclass(frozen=True)
class ClusterRun:
    """One run of a cluster."""

    cluster: Cluster
    """What was simulated."""
    seed: int
    """Its seed."""
    study: str
    """Namespace of its random streams."""
    engine: str
    """Who simulated it: ``"simpy"`` or ``"compiled"``; they agree event by event."""
    books: Books
    """Rollouts, groups, versions, engines, pools."""
    log: EventLog | None
    """Every event, where recorded."""


def compiled_is_there() -> bool:
    """Return whether numba, which the compiled engine needs, is installed (extra ``fast``)."""
    return importlib.util.find_spec("numba") is not None


def simulate(
    cluster: Cluster,
    seed: int = 0,
    *,
    study: str = "cluster",
    engine: EngineName = "auto",
    record: bool = False,
    processes: Iterable[Process] = (),
    on_version: Callable[[int], None] | None = None,
) -> ClusterRun:
    """Simulate a cluster until it has made its versions, or to its horizon.

    Parameters
    ----------
    cluster
        What to simulate.
    seed
        Names the draws, with `study`. Runs of one seed are paired: a rollout has the same luck in each.
    study
        Namespace of the random streams.
    engine
        ``"simpy"``, the model of record; ``"compiled"``, the same model compiled by numba; ``"auto"`` takes the second where
        it is installed and can do what is asked.
    record
        Whether to keep the event log.
    processes
        SimPy processes of your own, generators of (environment, simulation); only the model of record has them.
    on_version
        Called with every version made, for a progress bar.

    Raises
    ------
    Deadlock
        When nothing is left to happen before the end; the message names who waits.
    ValueError
        When the compiled engine is asked for what it does not have; the message names it.
    """
    made = plan(cluster)
    draws = Draws(made, seed, study)
    return run_plan(made, draws, engine, record=record, processes=tuple(processes), on_version=on_version)


def run_plan(
    made: Plan,
    draws: Draws,
    engine: EngineName = "auto",
    *,
    record: bool = False,
    learn: Learn | None = None,
    processes: tuple[Process, ...] = (),
    on_version: Callable[[int], None] | None = None,
) -> ClusterRun:
    """Simulate a plan; :func:`simulate` with what a learner needs beside it.

    `learn` is called with the groups of a batch (:class:`sim.cluster.model.state.Group`, or alike) and the version that
    trains on them, and returns the action thresholds of the next one, [C, A].
    """
    if engine not in ("auto", "simpy", "compiled"):
        raise ValueError(f"engine = {engine!r} must be 'auto', 'simpy' or 'compiled'")
    if engine == "compiled" and not compiled_is_there():
        raise ValueError("the compiled engine needs numba, which is not installed: pip install 'metastable[fast]'")
    if engine == "compiled" and processes:
        raise ValueError(
            f"the compiled engine has no user processes, and {len(processes)} were given: use engine='simpy'"
        )
    identity = (made.cluster, draws.seed, draws.study)
    if engine == "compiled" or (engine == "auto" and not processes and compiled_is_there()):
        from sim.cluster.compiled.driver import run_compiled

        return ClusterRun(*identity, "compiled", *run_compiled(made, draws, record, learn, on_version))
    from sim.cluster.model.simulation import Simulation

    sim = Simulation(made, draws, record=record, learn=learn, processes=processes, on_version=on_version)
    sim.run()
    return ClusterRun(*identity, "simpy", books_of(sim), EventLog.flat(sim.written_log) if record else None)


def replicate(
    cluster: Cluster,
    seeds: Iterable[int],
    *,
    study: str = "cluster",
    engine: EngineName = "auto",
    record: bool = False,
    on_version: Callable[[int], None] | None = None,
) -> Iterator[ClusterRun]:
    """Simulate one run per seed, one after the other; arguments are those of :func:`simulate`."""
    for seed in seeds:
        yield simulate(cluster, seed, study=study, engine=engine, record=record, on_version=on_version)
