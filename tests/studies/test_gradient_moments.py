"""Exact moments of a batch gradient: against every batch written out, and against the theory of the mean alone."""

import itertools

import numpy as np
import pytest

from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit, LeaveOneOut, NoBaseline
from sim.learning.weights import Bounded, Unweighted, ppo_clip
from sim.mdp.exact import expected_return, policy_gradient
from sim.mdp.policy import tables
from studies.gradient_moments import moments, paths

NOW, OLD = np.array([0.3, -0.8]), np.array([-0.4, -0.2])


@pytest.fixture
def graph(make_tiny):
    return make_tiny(limit_reward=0.0).compiled()


def written_out(graph, credit, weight_of, now, old, group, questions):
    """Mean and variance from all ways one question's group can come out; scores by finite differences of log pi."""
    ways = paths(graph)
    chance = ways.probability(old)

    def log_pi(z):
        return ways.log_probability(tables(graph, z))  # [M, T]

    z = NOW
    step = 1e-6
    slope = np.stack([(log_pi(z + e) - log_pi(z - e)) / (2 * step) for e in step * np.eye(2)], -1)  # [M, T, D]
    ratio = np.exp(ways.log_probability(now) - ways.log_probability(old))
    first, second = np.zeros(2), 0.0
    for kind, share in enumerate(graph.share):
        members = np.flatnonzero(ways.kind == kind)
        for rows in itertools.product(members, repeat=group):
            rows = list(rows)
            a = credit(Batch(ways.reward[rows][None])).value[0, :, 0]
            w = np.stack([weight_of(ratio[m], ways.mask[m], a[i]) for i, m in enumerate(rows)])
            g = np.einsum("i,it,itd->d", a, w * ways.mask[rows], slope[rows]) / group
            p = share * chance[rows].prod()
            first, second = first + p * g, second + p * (g @ g)
    return first, (second - first @ first) / questions


def clip(ratio, mask, a):
    return np.where((ratio > 1.2) if a > 0 else (ratio < 0.8), 0.0, ratio)


def sequence(ratio, mask, a):
    return np.full(ratio.shape, ratio[mask].prod())


@pytest.mark.parametrize("group", [2, 3])
@pytest.mark.parametrize("credit", [NoBaseline(), GroupCredit(std=False), GroupCredit(), LeaveOneOut()])
@pytest.mark.parametrize(
    ("weight", "by_hand"),
    [(Unweighted(), lambda r, m, a: np.ones(r.shape)), (ppo_clip(), clip), (Bounded(level="sequence"), sequence)],
)
def test_the_moments_are_those_of_every_batch_written_out(graph, credit, weight, by_hand, group):
    now, old = tables(graph, NOW), tables(graph, OLD)
    mean, variance = written_out(graph, credit, by_hand, now, old, group, questions=5)
    found = moments(graph, paths(graph), credit, weight, now, old, questions=5, group=group)
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    assert found.variance == pytest.approx(variance, rel=1e-6)
    assert np.abs(mean).max() > 0.005


def test_sequence_ratios_are_unbiased_off_policy_and_nothing_is_lost_on_policy(graph):
    now, old = tables(graph, NOW), tables(graph, OLD)
    exact = policy_gradient(graph, now)
    for weight, behaviour in ((Bounded("now/behaviour", level="sequence"), old), (Unweighted(), None)):
        found = moments(graph, paths(graph), LeaveOneOut(), weight, now, behaviour, questions=1, group=4)
        np.testing.assert_allclose(found.mean, exact, atol=1e-12)
    biased = moments(graph, paths(graph), LeaveOneOut(), Unweighted(), now, old, questions=1, group=4)
    assert np.abs(biased.mean - exact).max() > 0.01


def test_paths_carry_the_return(graph):
    ways, policy = paths(graph), tables(graph, NOW)
    p = graph.share[ways.kind] * ways.probability(policy)
    assert p.sum() == pytest.approx(1)
    assert p @ ways.reward == pytest.approx(expected_return(graph, policy))


def test_the_variance_falls_with_the_questions(graph):
    policy = tables(graph, NOW)
    one, many = (
        moments(graph, paths(graph), GroupCredit(), Unweighted(), policy, questions=Q, group=4).variance
        for Q in (1, 10)
    )
    assert one == pytest.approx(10 * many)
    assert many > 0


def test_other_rewards_are_refused(tiny):
    graph = tiny.compiled()
    with pytest.raises(ValueError, match="0 or 1; got -1"):
        moments(graph, paths(graph), NoBaseline(), Unweighted(), tables(graph, NOW), questions=1, group=2)
