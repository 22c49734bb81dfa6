"""A policy that learns on the cluster's clock makes the updates of the plain loop, on what the cluster gives it."""

from dataclasses import replace as changed
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

from sim.cluster.draws import Draws
from sim.cluster.learning import ClusterTraining, _Learner, train, train_one
from sim.cluster.plan import plan
from sim.cluster.run import run_plan
from sim.cluster.scheduling import Capacity, Rounds, greedy
from sim.cluster.spec import Cluster, Engines, Learner, ToolPool
from sim.cluster.workload import Workload
from sim.learning import loop
from sim.learning.lookup import Lookup
from sim.learning.optimisers import Sgd
from sim.learning.rule import Rule
from sim.learning.setup import Training
from sim.learning.tabular import rule_batch
from sim.learning.weights import Bounded
from sim.mdp.latency import Exponential
from sim.mdp.policy import tables
from sim.mdp.worlds import seed_a
from sim.records.config import replace

LOGIT, DECISIONS = "policy/logit/start/answer", ("start/answer", "fresh/answer", "failed/answer")
UNBOUND = Rule(weight=Bounded())  # the ratio as it is


def training(**changes):
    habit = (("start/answer", -1.0), ("fresh/answer", 1.5), ("failed/answer", -1.0))
    base = Training(world=seed_a(), habit=habit, optimiser=Sgd(3.0), prompts=4, group=4, steps=4)
    return replace(base, changes)


def on_cluster(training, admission=Rounds(), **changes):  # noqa: B008  frozen
    cluster = Cluster(
        workload=Workload(task=training.world, habit=training.habit, group=training.group),
        engines=Engines(count=2, base_s=0.001),
        tools=(ToolPool("search", ("search",), Exponential(1.0)),),
        admission=admission,
        order=greedy(),
        learner=Learner(batch=training.prompts * training.group, base_s=1.0),
        steps=training.steps,
    )
    return ClusterTraining(training, replace(cluster, changes))


class Watched:
    """A learner whose batches are kept: groups, weights before and after, policies of every version."""

    def __init__(self, config, seed=0):
        self.learner = _Learner(config, seed, "test")
        self.batches = []
        made = plan(config.cluster)
        made = changed(made, initial=self.learner.thresholds())
        self.run = run_plan(made, Draws(made, seed, "test"), "simpy", learn=self.learn)

    def learn(self, groups, version):
        block = self.learner.block
        before, state = block.w.copy(), block.state
        made = self.learner.learn(groups, version)
        self.batches.append(
            SimpleNamespace(groups=list(groups), version=version, w=before, state=state, after=block.w.copy())
        )
        return made


def rollouts(groups):
    """The rollouts of a batch as the learner is to see them, group by group in the order of their start."""
    return [[t for t in g.members if not t.cancelled] for g in sorted(groups, key=lambda g: g.id)]


def surrogate(batch, learner, w):
    """1 / N sum over rollouts that count, and their turns, of pi_w(a) / mu_v(a) x A, decision by decision."""
    graph, now = learner.graph, learner.block.policy.tables(w).probability[0]
    total, count = 0.0, 0
    for group in rollouts(batch.groups):
        counted = [t for t in group if t.valid]
        rewards = np.array([t.reward for t in counted])
        spread = rewards.std(ddof=1) if len(rewards) > 1 else 0.0
        count += len(counted)
        for t, reward in zip(counted, rewards, strict=True):
            advantage = (reward - rewards.mean()) / spread if spread > 0 else 0.0
            for node, action, version in zip(t.nodes, t.actions, t.versions, strict=True):
                context = graph.context[node]
                total += advantage * now[context, action] / learner.engines[version].probability[0][context, action]
    return total / count


def slopes(batch, learner):
    """Central differences of the surrogate at the weights before the update, [P]."""
    found, h = np.zeros(batch.w.shape[1]), 1e-5
    for i in range(len(found)):
        step = h * np.eye(len(found))[i]
        found[i] = (surrogate(batch, learner, batch.w + step) - surrogate(batch, learner, batch.w - step)) / (2 * h)
    return found


@cache
def mixed():
    """Rollouts of up to four turns under a version a second, swapped in place, up to three batches behind."""
    return Watched(on_cluster(training(rule=UNBOUND, steps=8), Capacity(3), **{"sync.mode": "in_place"}))


@cache
def failing():
    """Four searches in ten fail for good."""
    changes = {
        "tools": (ToolPool("search", ("search",), Exponential(1.0), failure=0.4),),
        "workload.least_valid": 0.0,
    }
    return Watched(on_cluster(training(rule=UNBOUND, steps=6), **changes))


@pytest.mark.parametrize("ahead", [0, 1])
def test_rollouts_of_one_version_are_learnt_from_as_in_the_plain_loop(ahead):
    # With a round ahead, training is so slow that the round is over before the next version is there.
    config = on_cluster(training(), Rounds(ahead=ahead), **{"learner.base_s": 1000.0 if ahead else 1.0})
    watched = Watched(config)
    learner, lags = watched.learner, []
    for batch in watched.batches:
        written = {v for group in rollouts(batch.groups) for t in group for v in t.versions}
        assert len(written) == 1
        (version,) = written
        lags.append(batch.version - version)
        sample = learner._sample(batch.groups)[0]
        block = loop.Block(config.training, (0,), "test")
        block.w, block.state = batch.w.copy(), batch.state
        lookup, now, stale = Lookup.of(sample, block.decisions), block.policy.tables(batch.w), learner.engines[version]
        seen = rule_batch(block.sampler, sample, lookup, stale, reference=learner.reference)
        block.update(seen, stale, now, learner.reference, lookup, batch.version)
        assert np.abs(block.w - batch.w).max() > 1e-3
        np.testing.assert_allclose(batch.after, block.w, rtol=0, atol=1e-12)
    assert lags == ([0, 0, 0, 0] if ahead == 0 else [0, 1, 1, 1])


def test_each_decision_is_weighed_by_the_version_that_took_it():
    learner = _Learner(on_cluster(training()), 0, "test")
    graph, third = learner.graph, np.log(1 / 3)
    learner.engines = [tables(graph, np.array([z])) for z in ([third, 0.0, 0.0], [0.0, np.log(9.0), 0.0])]
    start, fresh, won = 0, 1, graph.states
    search, answer = graph.actions.index("search"), graph.actions.index("answer")
    rows = [
        ([start, fresh], [search, answer], [0, 1]),  # the new version came while the search ran
        ([start, fresh], [search, answer], [0, 0]),
        ([start], [answer], [1]),
        ([start], [answer], [0]),
    ]
    members = [
        SimpleNamespace(
            nodes=n, actions=a, versions=v, node=won, reward=1.0, valid=True, cancelled=False, start_s=0.0, end_s=1.0,
            luck=SimpleNamespace(kind=0),
        )
        for n, a, v in rows
    ]  # fmt: skip
    groups = [SimpleNamespace(id=0, members=members)]
    sample, _, written_by, _ = learner._sample(groups)
    behaviour = learner._behaviour(sample, written_by)[:, 0]  # [K, G]
    by_hand = [[0.75, 0.75, 0.5, 0.25], [0.9, 0.5, 1.0, 1.0]]
    np.testing.assert_allclose(behaviour[:2], np.log(by_hand), atol=1e-12)
    np.testing.assert_allclose(behaviour[2:], 0.0, atol=0)


def test_rollouts_of_several_versions_move_the_weights_along_the_surrogate():
    watched = mixed()
    several = [len(set(t.versions)) > 1 for b in watched.batches for g in rollouts(b.groups) for t in g]
    assert sum(several) > 20
    for batch in watched.batches:
        dw = (batch.after - batch.w)[0] / 3.0  # SGD at a rate of 3
        assert np.abs(dw).max() > 1e-3
        np.testing.assert_allclose(dw, slopes(batch, watched.learner), atol=1e-8)


def test_rollouts_whose_tools_failed_leave_the_statistics_of_their_group():
    watched = failing()
    members = [t for b in watched.batches for g in rollouts(b.groups) for t in g]
    failed = [t for t in members if not t.valid]
    assert 0.2 < len(failed) / len(members) < 0.8
    assert all(np.isnan(t.reward) for t in failed)
    for batch in watched.batches:
        dw = (batch.after - batch.w)[0] / 3.0
        np.testing.assert_allclose(dw, slopes(batch, watched.learner), atol=1e-8)
    assert max(np.abs(b.after - b.w).max() for b in watched.batches) > 1e-3


def test_without_lag_it_learns_like_the_plain_loop():
    plain, seeds = training(prompts=8, group=8, steps=10), tuple(range(16))
    here = train(on_cluster(plain), seeds, study="test", engine="simpy")
    there = loop.train(plain, seeds, study="test")
    for name in (f"policy/logit/{d}" for d in DECISIONS):
        moved = [r[name][:, -1] - r[name][:, 0] for r in (here, there)]
        gap = moved[0] - moved[1]
        assert abs(moved[1].mean()) > 5 * moved[1].std(ddof=1) / len(seeds) ** 0.5
        assert abs(gap.mean()) < 3 * gap.std(ddof=1) / len(seeds) ** 0.5
        assert gap.std(ddof=1) / len(seeds) ** 0.5 < 0.15
    shares = [r["behaviour/search_share/turn0"].mean() for r in (here, there)]
    assert shares[0] == pytest.approx(shares[1], abs=0.03)


def test_the_lag_is_what_the_schedule_makes_it():
    lag = train(
        on_cluster(training(), Rounds(ahead=1), **{"sync.mode": "blocking"}), (0, 1), study="test", engine="simpy"
    )
    assert lag["cluster/lag_start"].tolist() == [[0, 1, 1, 1]] * 2


@pytest.mark.parametrize("admission", [Rounds(), Capacity(3)])
@pytest.mark.parametrize("failure", [0.0, 0.4])
def test_both_engines_learn_the_same(admission, failure):
    pytest.importorskip("numba")
    pool = ToolPool("search", ("search",), Exponential(1.0), failure=failure)
    config = on_cluster(training(), admission, **{"tools": (pool,), "sync.mode": "in_place"})
    runs = [train_one(config, 3, study="test", engine=engine) for engine in ("simpy", "compiled")]
    assert runs[0][0].books == runs[1][0].books
    for name, values in runs[0][1].items():
        np.testing.assert_array_equal(values, runs[1][1][name], err_msg=name)
    assert np.ptp(runs[0][1][LOGIT]) > 1e-3


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("cluster.workload.task", replace(seed_a(), {"known": 0.3}), "training.world"),
        ("cluster.workload.habit", (("start/answer", -3.0),), "training.habit"),
        ("cluster.workload.group", 2, "training.group = 4"),
        ("cluster.learner.batch", 32, "cluster.learner.batch = 32 and training.prompts x group = 16 must be the same"),
        ("cluster.steps", 5, "cluster.steps = 5 and training.steps = 4 must be the same"),
        ("training.lag", 2, "training.lag = 2 must be 0: on a cluster the schedule makes the lag"),
        ("cluster.learner.whatever_is_complete", True, "batches of unequal size"),
        ("training.keep_rollouts", 1, "keep the event log instead"),
    ],
)
def test_configs_that_contradict_each_other_are_refused(where, value, says):
    with pytest.raises(ValueError, match=says.replace(".", r"\.")):
        replace(on_cluster(training()), {where: value})
