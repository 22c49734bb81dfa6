"""What learning in the loop adds to a simulation: the same schedule with a policy that is updated at every version.

The peer is the same cluster with a policy that stays, on the same engine; what is added is the learner's update, the look-up
of the log-probs of every decision under the version that took it, and the signals. No target: the rate is reported.
"""

import numpy as np
import pytest

from sim.cluster.learning import ClusterTraining, train_one
from sim.cluster.presets import areal, base
from sim.cluster.run import simulate
from sim.cluster.workload import Workload
from sim.learning.presets import null
from sim.records.config import replace
from tests.measuring import at_least, cpu_ratio
from tests.sim.cluster.peers.compiled import compiled_or_skip

STEPS, PROMPTS = 40, 128


@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def bench_learning(benchmark, engine):
    """Seed A's world, 128 questions x 8 rollouts a version, AReaL's rule at eta = 2."""
    if engine == "compiled":
        compiled_or_skip()
    training = replace(null(), {"prompts": PROMPTS, "steps": STEPS})
    work = Workload(task=training.world, habit=training.habit, group=training.group)
    batch = PROMPTS * training.group
    cluster = replace(areal(base(), eta=2), {"workload": work, "learner.batch": batch, "steps": STEPS})
    config = ClusterTraining(training, cluster)

    def learning():
        return train_one(config, 0, study="bench", engine=engine)

    def still():
        return simulate(cluster, 0, study="bench", engine=engine)

    started = len(learning()[0].books.rollouts)
    ratio, ours, _ = cpu_ratio(learning, still, rounds=3)
    rates = {"rollouts_per_s": round(started / ours), "cpu_us_per_rollout": round(1e6 * ours / started, 1)}
    benchmark.extra_info |= at_least(None, ratio, "the same schedule without learning", engine=engine, **rates)
    benchmark.pedantic(learning, rounds=1)
    assert np.isfinite(ratio)
