"""What a rollout costs as clusters grow and as turns get longer, and what it costs to record the log.

The cost is CPU time over turns written, in rollouts of eight turns; numbers are drawn beforehand. Longer turns are written
by engines as much faster, so that the same happens at the same times: an engine that stepped through tokens would take a
hundred times as long.
"""

from functools import partial

import numpy as np
import pytest
import simpy

from sim.cluster.run import run_plan
from tests.measuring import cpu_in_turn, cpu_ratio
from tests.sim.cluster.peers.compiled import compiled_or_skip
from tests.sim.cluster.peers.setting import agents, drawn

SLOTS = (100, 300, 1000, 3000, 10_000)
TOKENS = (300.0, 3000.0, 30_000.0)
both = pytest.mark.parametrize("engine", ["simpy", "compiled"])


def store_growth(benchmark, engine, clusters, sizes, most, peer, rounds, **more):
    """Measure, fit cost ~ size^x, and store x beside the ratio of the last size to the first."""
    turns = {}

    def simulated(size, plan):
        turns[size] = int(run_plan(*plan, engine).books.rollouts.turns.sum())

    works = {size: partial(simulated, size, drawn(cluster)) for size, cluster in zip(sizes, clusters, strict=True)}
    seconds = cpu_in_turn(works, rounds)
    cost = np.array([8e6 * np.median(seconds[size]) / turns[size] for size in sizes])
    exponent = float(np.polyfit(np.log(sizes), np.log(cost), 1)[0])
    span = sizes[-1] / sizes[0]
    benchmark.extra_info |= {
        "peer": peer, "ratio": round(float(cost[-1] / cost[0]), 3), "target": round(span**most, 3),
        "met": exponent <= most, "exponent": round(exponent, 3), "target_exponent": most,
        "cpu_us_per_rollout": {str(size): round(float(us), 2) for size, us in zip(sizes, cost, strict=True)},
    } | more  # fmt: skip
    benchmark.pedantic(works[sizes[0]], rounds=1)


@both
def bench_growth_in_slots(benchmark, engine):
    if engine == "compiled":
        compiled_or_skip()
    least, rounds = (1500, 2) if engine == "simpy" else (30_000, 5)  # compiled, fewer are over too soon for a clock
    clusters = [agents(slots, max(least, slots // 2)) for slots in SLOTS]
    store_growth(benchmark, engine, clusters, SLOTS, 0.4, f"{engine} engine, 100 slots", rounds)


class Counting(simpy.Environment):
    """An environment that counts what enters its calendar."""

    entries = 0

    def schedule(self, *args, **kwargs):
        Counting.entries += 1
        super().schedule(*args, **kwargs)


@both
def bench_growth_in_tokens(benchmark, engine, monkeypatch):
    if engine == "compiled":
        compiled_or_skip()
    rollouts = 1500 if engine == "simpy" else 30_000
    clusters = [agents(256, rollouts, tokens=tokens) for tokens in TOKENS]
    with monkeypatch.context() as patch:
        patch.setattr(simpy, "Environment", Counting)
        per_turn = []
        for tokens in TOKENS:
            Counting.entries = 0
            books = run_plan(*drawn(agents(256, 1500, tokens=tokens)), "simpy").books
            per_turn.append(round(Counting.entries / int(books.rollouts.turns.sum()), 2))
    events = {"calendar_entries_per_turn": per_turn, "target_entries_per_turn": 2.5}
    store_growth(benchmark, engine, clusters, TOKENS, 0.05, f"{engine} engine, 300 tokens a turn", 7, **events)


@both
def bench_recording(benchmark, engine):
    """With the log, made into columns, and without."""
    if engine == "compiled":
        compiled_or_skip()
    made, draws = drawn(agents(256, 2000 if engine == "simpy" else 30_000))
    with_log = partial(run_plan, made, draws, engine, record=True)
    rows = len(with_log().log)
    ratio, cpu, peer = cpu_ratio(with_log, partial(run_plan, made, draws, engine), rounds=7)
    benchmark.extra_info |= {
        "peer": f"{engine} engine without a log", "ratio": round(ratio, 3), "target": 1.1, "met": ratio <= 1.1,
        "rows": rows, "cpu_us_per_row": round(1e6 * (cpu - peer) / rows, 3),
    }  # fmt: skip
    benchmark.pedantic(with_log, rounds=1)
