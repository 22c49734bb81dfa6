"""What a study pays for: 200 replicas of 256 slots and 30 versions, drawing included, beside a loop of SimPy timeouts.

The loop is the least that a simulation on SimPy can do: one process, one timeout after the other.
"""

import numpy as np
import simpy

from sim.cluster.draws import BLOCK, Draws
from sim.cluster.plan import plan
from sim.cluster.run import replicate, run_plan, simulate
from sim.records.config import replace
from tests.measuring import at_least, cpu_in_turn, cpu_seconds
from tests.sim.cluster.bench_growth import Counting
from tests.sim.cluster.peers.compiled import compiled_or_skip
from tests.sim.cluster.peers.setting import agents, drawn

REPLICAS, LOOP = 200, 300_000
CLUSTER = replace(agents(256, 0), {"steps": 30, "learner.batch": 64, "admission.eta": 16})


def timeouts() -> None:
    def process(env):
        for _ in range(LOOP):
            yield env.timeout(1.0)

    env = simpy.Environment()
    env.process(process(env))
    env.run()


def entries_of_a_run(monkeypatch) -> float:
    """Calendar entries of the model of record over a few seeds."""
    with monkeypatch.context() as patch:
        patch.setattr(simpy, "Environment", Counting)
        Counting.entries = 0
        for seed in range(3):
            run_plan(*drawn(CLUSTER, seed), "simpy")
    return Counting.entries / 3


def bench_replicas(benchmark, monkeypatch):
    compiled_or_skip()
    rollouts, prompts = 0, 0

    def ours():
        nonlocal rollouts, prompts
        rollouts = prompts = 0
        for run in replicate(CLUSTER, range(REPLICAS), engine="compiled"):
            rollouts += int(run.books.steps.rollouts.sum())
            prompts = max(prompts, len(run.books.groups))

    def draws_alone():
        made = plan(CLUSTER)
        for seed in range(REPLICAS):
            draws = Draws(made, seed, "bench")
            for block in range(-(-prompts // BLOCK)):
                draws.block(block)

    simulate(CLUSTER, engine="compiled")  # compiles
    times = {name: np.median(seconds) for name, seconds in cpu_in_turn({"ours": ours, "loop": timeouts}, 3).items()}
    cpu, draws, loop = float(times["ours"]), cpu_seconds(draws_alone), LOOP / float(times["loop"])
    entries = REPLICAS * entries_of_a_run(monkeypatch)
    ratio = loop * cpu / entries
    benchmark.extra_info |= at_least(
        6.0, ratio, f"SimPy {simpy.__version__}, a process of timeouts: time per event", replicas=REPLICAS,
        cpu_s=round(cpu, 2), draws_alone_cpu_s=round(draws, 2), rollouts=rollouts, rollouts_per_s=round(rollouts / cpu),
        events_per_s=round(entries / cpu), peer_events_per_s=round(loop),
        times_as_fast_but_for_draws=round(entries / (cpu - draws) / loop, 2),
    )  # fmt: skip
    benchmark.pedantic(lambda: simulate(CLUSTER, engine="compiled"), rounds=1)
