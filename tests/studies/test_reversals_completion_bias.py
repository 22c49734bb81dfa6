"""Completion bias: its sums worked out again, and where its verdicts come out otherwise, by its own measures."""

import numpy as np
import pytest
from scipy.special import expit

from sim.cluster.learning import train
from sim.cluster.run import simulate
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.worlds import seed_a
from sim.records.config import replace
from studies import study_completion_bias as study
from studies.arrivals import LATER, critical_loss, gap, gap_by_rule, kept


def moved(config, seeds=(0, 1)):
    """Mean change of the log-odds of guessing in 20 steps on batches of 16 questions."""
    few = replace(
        config, {"training.prompts": 16, "cluster.learner.batch": 128, "training.steps": 20, "cluster.steps": 20}
    )
    logit = train(few, seeds, study="reversals", engine="simpy")[study.LOGIT]
    return float((logit[:, -1] - logit[:, 0]).mean())


def test_the_sign_turns_with_the_loss_and_with_the_search():
    assert moved(study.run_of(study.LOST)) > 0.4
    assert moved(study.run_of(study.FEW)) < -0.2
    assert moved(study.run_of(study.LOST, hit=study.RELIABLE)) < 0.2
    assert moved(study.run_of(study.LOST, retries=7)) < -0.2


@pytest.mark.parametrize("z", [-4.14, -2.0, 0.5])
def test_without_loss_the_gap_is_that_of_the_plain_objective(z):
    graph = study.world().graph().compiled()
    policy = tables(graph, free_logits(graph, (("start/answer", z), *LATER)))
    assert gap(study.world(), z, 0.0) == pytest.approx(effective_gap(graph, policy, Objective()), rel=1e-9)


@pytest.mark.parametrize("lost", [0.2, 0.7])
def test_the_gap_is_that_of_drawn_groups(lost):
    z, groups, rng = -1.0, 60_000, np.random.default_rng(1)
    ways, p, _, _ = kept(study.world(), z, 0.0)
    searches = ((ways.actions == ways.graph.actions.index("search")) & ways.running).sum(-1)
    push, arrived = np.zeros(groups), 0
    kinds = rng.choice(len(ways.graph.share), groups, p=ways.graph.share)
    for h in range(len(ways.graph.share)):
        mine, here = np.flatnonzero(ways.kind == h), kinds == h
        way = rng.choice(mine, (here.sum(), 8), p=p[mine] / p[mine].sum())
        there = rng.random(way.shape) < (1 - lost) ** searches[way]
        reward = np.where(there, ways.reward[way], np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            count = there.sum(1, keepdims=True)
            centre = np.where(there, reward, 0).sum(1, keepdims=True) / count
            spread = np.sqrt((np.where(there, reward - centre, 0) ** 2).sum(1, keepdims=True) / (count - 1))
            advantage = np.where(there & (spread > 0), (reward - centre) / spread, 0.0)
        guessed = ways.actions[way, 0] == ways.graph.actions.index("answer")
        push[here] = (advantage * (guessed - expit(z))).sum(1)
        arrived += there.sum()
    unit = -groups / arrived / (expit(z) * expit(-z))
    assert gap(study.world(), z, lost) == pytest.approx(
        push.mean() * unit, abs=4 * push.std() * abs(unit) / groups**0.5
    )
    assert abs(gap(study.world(), z, lost)) > 0.05


def test_the_critical_loss_rises_with_what_a_search_finds_and_with_guessing():
    worlds = [study.world(hit) for hit in (study.RARE, 0.6, study.RELIABLE)]
    at_start = [critical_loss(world, study.START) for world in worlds]
    assert at_start == pytest.approx([0.339, 0.589, 0.828], abs=0.001)
    assert critical_loss(worlds[0], 0.0) == pytest.approx(0.373, abs=0.001)
    assert critical_loss(replace(seed_a(), {"hit_known": 0.8}), -4.14) == pytest.approx(0.887, abs=0.001)
    assert study.FEW < min(at_start[0], 0.33) < 0.38 < study.LOST < at_start[2]


def test_the_prediction_is_the_path():
    rises = study.path(study.LOST, study.STEPS)
    assert rises[study.EARLY] - study.START == pytest.approx(1.82, abs=0.01)
    assert rises[-1] > 1.0  # past one half
    assert study.path(study.FEW, study.STEPS)[-1] < -3.0


def test_first_arrivals_push_back_and_cancelled_groups_do_while_guessing_is_rare():
    world = study.world()
    assert min(gap_by_rule(world, z, extra=e) for e in (8, 24) for z in (-1.0, 0.0, 1.0)) > 0.1
    assert gap_by_rule(world, -4.14, extra=24) < -0.15  # which is why guessing may grow to a share of a tenth
    assert gap_by_rule(world, -2.0, over=1.0) > 0.15
    assert gap_by_rule(world, 1.0, over=1.0) < -0.04
    assert gap_by_rule(world, -2.0) == pytest.approx(gap(world, -2.0, 0.0), abs=0.025)


def test_the_cluster_loses_what_the_sums_say():
    cluster = replace(study.run_of(study.LOST).cluster, {"learner.batch": 800, "steps": 2})
    r = simulate(cluster, engine="simpy").books.rollouts
    searches = (r.action == cluster.workload.task.graph().compiled().actions.index("search")).sum(1)
    _, p, _, _ = kept(study.world(), study.START, study.LOST)
    over = ~r.aborted
    assert r.valid[over].mean() == pytest.approx(p.sum(), abs=0.03)
    for n, share in ((1, 0.3), (2, 0.3)):  # of those that got as far as their n-th search, 3 in 10 survive it
        made = over & (searches >= n)
        assert 1 - (~r.valid & (searches == n))[made].mean() == pytest.approx(share, abs=0.06)
