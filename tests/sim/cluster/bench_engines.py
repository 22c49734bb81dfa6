"""Both engines against other ways to simulate the same cluster: SimPy as it is usually written, and a bare heap.

All of them give the same outputs from the same numbers, which are drawn beforehand (see :mod:`.peers.setting`); books and
outputs are made within the time. The peers know that no policy changes, no memory is full and nobody retries; the engines
do not. CPU times are measured in turn.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import simpy

from sim.cluster.run import run_plan
from tests.measuring import F64, at_least, cpu_in_turn
from tests.sim.cluster.peers.compiled import compiled_or_skip, why_not
from tests.sim.cluster.peers.heap_loop import heap_loop
from tests.sim.cluster.peers.idiomatic import Idiomatic
from tests.sim.cluster.peers.setting import agents, drawn, outputs

SLOTS, ROLLOUTS, ROUNDS, AGAIN = 1000, 3000, 3, 10
"""AGAIN: how often the compiled engine runs while others run once, so that its time can be measured."""
SIMPY = f"SimPy {simpy.__version__}, processes, Resource and AnyOf"
HEAP = "heapq of Python, a bare loop with virtual time"


@dataclass(frozen=True)
class Measured:
    """What was measured in turn."""

    works: dict[str, Callable[[], object]]
    """What ran, by name."""
    seconds: dict[str, F64]
    """CPU times of one run, s, [rounds]."""
    rollouts: float
    """Rollouts of a run, in full lengths."""

    def store(self, benchmark, name, against, peer, target):
        ratio = float(np.median(self.seconds[name] / self.seconds[against]))
        us = {key: round(1e6 * float(np.median(self.seconds[key])) / self.rollouts, 2) for key in (name, against)}
        foreseen = float(np.median(self.seconds["foreseen"] / self.seconds[name]))
        benchmark.extra_info |= at_least(
            target, ratio, peer, cpu_us_per_rollout=us[name], peer_cpu_us_per_rollout=us[against], slots=SLOTS,
            times_as_fast_as_simpy_without_anyof=round(foreseen, 2),
        )  # fmt: skip
        benchmark.pedantic(self.works[name], rounds=1)


@pytest.fixture(scope="module")
def measured():
    made, draws = drawn(agents(SLOTS, ROLLOUTS))
    works: dict[str, Callable[[], object]] = {
        "simpy": lambda: outputs(run_plan(made, draws, "simpy").books),
        "idiomatic": lambda: Idiomatic(made, draws).run(),
        "foreseen": lambda: Idiomatic(made, draws, race=False).run(),
        "heap": lambda: heap_loop(made, draws),
    }
    ours = works["simpy"]()
    for name in ("idiomatic", "foreseen", "heap"):
        np.testing.assert_allclose(works[name]().end_s, ours.end_s, rtol=1e-9)
    if not why_not():
        books = run_plan(made, draws, "compiled").books
        np.testing.assert_array_equal(outputs(books).end_s, ours.end_s)
        works["compiled"] = lambda: [outputs(run_plan(made, draws, "compiled").books) for _ in range(AGAIN)]
    seconds = cpu_in_turn(works, ROUNDS)
    if "compiled" in seconds:
        seconds["compiled"] /= AGAIN
    turns = run_plan(made, draws, "simpy").books.rollouts.turns.sum()
    return Measured(works, seconds, float(turns) / made.graph.turns)


def bench_simpy_model(benchmark, measured):
    """The model of record: callbacks on SimPy's calendar instead of processes."""
    measured.store(benchmark, "simpy", "idiomatic", SIMPY, 5.0)


def bench_compiled(benchmark, measured):
    compiled_or_skip()
    measured.store(benchmark, "compiled", "idiomatic", SIMPY, 150.0)


def bench_compiled_against_a_heap(benchmark, measured):
    compiled_or_skip()
    measured.store(benchmark, "compiled", "heap", HEAP, 10.0)


def bench_heap(benchmark, measured):
    """How far the peers are apart; no target."""
    measured.store(benchmark, "heap", "idiomatic", SIMPY, None)
