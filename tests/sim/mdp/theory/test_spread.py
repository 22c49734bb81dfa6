"""Exact moments of a batch gradient: against every batch written out, on policy and off, and against the mean alone."""

import itertools

import numpy as np
import pytest

from sim.learning import family
from sim.learning.batch import Batch
from sim.learning.batch_weights import SecondMoment
from sim.learning.credit import GreedyBaseline, GroupCredit, LeaveOneOut, NoBaseline
from sim.learning.normalisers import BatchMean, ConstantLength, SequenceMean, TokenMean
from sim.learning.step_credit import RewardToGo
from sim.learning.weights import Bounded, Unweighted, ppo_clip
from sim.mdp.exact import policy_gradient
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, expected_gradient
from sim.mdp.theory.spread import gradient_covariance, gradient_moments
from sim.mdp.theory.ways import ways_of
from sim.mdp.worlds import seed_a
from tests.sim.learning.definitions import DEFINITIONS, G, Z, advantages, normalisers, outcomes

NOW, OLD = np.array([0.3, -0.8]), np.array([-0.4, -0.2])

# --- on policy --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("credit", ["centred", "std, ddof 1", "leave one out, std", "no baseline", "log partition"])
@pytest.mark.parametrize("normaliser", ["BatchMean", "SequenceMean", "ConstantLength"])
@pytest.mark.parametrize(("Q", "unit"), [(1, "token"), (2, "turn")])
def test_over_all_batches(tiny, credit, normaliser, Q, unit):
    graph, x = tiny.compiled(), outcomes(Q)
    shipped, definition = normalisers(Q)[normaliser]
    terms = (advantages(Q, credit)[..., None] * x.score).sum(2)
    per_batch = definition(terms, x.tokens if unit == "token" else x.turns)
    centred = per_batch - x.probability @ per_batch
    exact = np.einsum("m,md,me->de", x.probability, centred, centred)
    found = gradient_covariance(
        graph, tables(graph, np.array(Z)), Objective(DEFINITIONS[credit][0], shipped, G, Q, unit)
    )
    np.testing.assert_allclose(found, exact, atol=1e-12)
    assert np.abs(exact).min() > 1e-5


def test_it_shrinks_with_the_number_of_questions(tiny):
    graph = tiny.compiled()
    policy = tables(graph, np.array(Z))
    one, many = (gradient_covariance(graph, policy, Objective(prompts=Q)) for Q in (1, 64))
    np.testing.assert_allclose(many, one / 64)
    assert np.linalg.eigvalsh(one).min() > 0


def test_what_has_no_sum_is_named(tiny):
    graph = tiny.compiled()
    policy = tables(graph, np.zeros(2))
    for credit in (RewardToGo(), GreedyBaseline()):
        with pytest.raises(ValueError, match=f"{type(credit).__name__}: the covariance is known for"):
            gradient_covariance(graph, policy, Objective(credit))
    with pytest.raises(ValueError, match="TokenMean: the covariance is known for BatchMean"):
        gradient_covariance(graph, policy, Objective(normaliser=TokenMean()))
    for fine in (
        Objective(LeaveOneOut()),
        Objective(NoBaseline(), SequenceMean()),
        Objective(normaliser=ConstantLength(2)),
    ):
        assert gradient_covariance(graph, policy, fine).shape == (2, 2)


@pytest.mark.parametrize("credit", [NoBaseline(), GroupCredit(std=False), GroupCredit(), LeaveOneOut()])
@pytest.mark.parametrize("normaliser", [BatchMean(), SequenceMean()])
def test_the_mean_is_the_expected_gradient(credit, normaliser):
    graph = seed_a().graph().compiled()
    policy, objective = tables(graph, np.array([-1.0, 1.0, -1.0])), Objective(credit, normaliser, prompts=4)
    found = gradient_moments(graph, policy, objective).mean
    np.testing.assert_allclose(found, expected_gradient(graph, policy, objective), atol=1e-12)
    assert np.abs(found).max() > 0.005


# --- off policy -------------------------------------------------------------------------------------------------------


def written_out(graph, credit, weight_of, old, group, questions, per_turn):
    """Mean and covariance from all ways one question's group can come out; scores by finite differences of log pi."""
    ways = ways_of(graph)
    chance = ways.probability(tables(graph, old))

    def log_pi(z):
        return ways.along(tables(graph, z).log_probability)  # [M, T]

    step = 1e-6
    slope = np.stack([(log_pi(NOW + e) - log_pi(NOW - e)) / (2 * step) for e in step * np.eye(2)], -1)  # [M, T, D]
    ratio = np.exp(log_pi(NOW) - log_pi(old))
    first, second = np.zeros(2), np.zeros((2, 2))
    for kind, share in enumerate(graph.share):
        for drawn in itertools.product(np.flatnonzero(ways.kind == kind), repeat=group):
            rows = list(drawn)
            a = credit(Batch(ways.reward[rows][None])).value[0, :, 0]
            w = np.stack([weight_of(ratio[m], ways.running[m], a[i]) for i, m in enumerate(rows)])
            if per_turn:
                w = w / ways.turns[rows][:, None]
            g = np.einsum("i,it,itd->d", a, w * ways.running[rows], slope[rows]) / group
            p = share * chance[rows].prod()
            first, second = first + p * g, second + p * np.outer(g, g)
    return first, (second - np.outer(first, first)) / questions


def clip(ratio, running, a):
    return np.where((ratio > 1.2) if a > 0 else (ratio < 0.8), 0.0, ratio)


def sequence(ratio, running, a):
    return np.full(ratio.shape, ratio[running].prod())


@pytest.mark.parametrize("limit_reward", [0.0, -1.0])  # of three rewards the middle one has an advantage of either sign
@pytest.mark.parametrize(("group", "normaliser"), [(2, SequenceMean()), (3, BatchMean())])
@pytest.mark.parametrize("credit", [NoBaseline(), GroupCredit(std=False), GroupCredit(), LeaveOneOut()])
@pytest.mark.parametrize(
    ("weight", "by_hand"),
    [
        (Unweighted(), lambda ratio, running, a: np.ones(ratio.shape)),
        (ppo_clip(), clip),
        (Bounded(level="sequence"), sequence),
    ],
)
def test_the_moments_are_those_of_every_batch_written_out(
    make_tiny, credit, weight, by_hand, group, normaliser, limit_reward
):
    graph = make_tiny(limit_reward=limit_reward).compiled()
    mean, covariance = written_out(graph, credit, by_hand, OLD, group, 5, isinstance(normaliser, SequenceMean))
    objective = Objective(credit, normaliser, group, prompts=5)
    found = gradient_moments(graph, tables(graph, NOW), objective, weight, tables(graph, OLD))
    np.testing.assert_allclose(found.mean, mean, atol=1e-8)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-6, atol=1e-9)
    assert np.abs(mean).max() > 0.005
    assert found.variance == np.trace(found.covariance) > 0.0002


@pytest.mark.parametrize("weight", [Unweighted(), ppo_clip(), family.tis().weight, Bounded(level="sequence")])
def test_weights_are_1_where_another_table_says_the_same(weight):
    graph = seed_a().graph().compiled()
    z = np.array([-1.0, 1.0, -1.0])
    now, same, again = (tables(graph, z) for _ in range(3))
    for credit in (NoBaseline(), GroupCredit()):
        objective = Objective(credit, prompts=32)
        found = gradient_moments(graph, now, objective, weight, same, again)
        expected = np.trace(gradient_covariance(graph, now, objective))
        assert found.variance == pytest.approx(expected, rel=1e-10)
        assert expected > 0.0005


def test_sequence_ratios_are_unbiased_off_policy_and_nothing_is_lost_on_policy(tiny):
    graph, objective = tiny.compiled(), Objective(LeaveOneOut(), group=4, prompts=1)
    now, old = tables(graph, NOW), tables(graph, OLD)
    exact = policy_gradient(graph, now)
    for weight, behaviour in ((Bounded("now/behaviour", level="sequence"), old), (Unweighted(), None)):
        found = gradient_moments(graph, now, objective, weight, behaviour)
        np.testing.assert_allclose(found.mean, exact, atol=1e-12)
    biased = gradient_moments(graph, now, objective, behaviour=old)
    assert np.abs(biased.mean - exact).max() > 0.01


def test_the_recent_policy_is_the_one_that_samples_unless_given(tiny):
    graph, objective = tiny.compiled(), Objective(group=4)
    now, old, recent = (tables(graph, z) for z in (NOW, OLD, OLD / 2))
    clipped = [
        gradient_moments(graph, now, objective, ppo_clip(), old, proximal).mean for proximal in (None, old, recent)
    ]
    np.testing.assert_array_equal(clipped[0], clipped[1])
    assert np.abs(clipped[0] - clipped[2]).max() > 0.005


def test_a_weight_that_looks_at_the_batch_is_refused(tiny):
    graph = tiny.compiled()
    with pytest.raises(ValueError, match="SecondMoment looks at a whole batch"):
        gradient_moments(graph, tables(graph, NOW), Objective(), SecondMoment(), tables(graph, OLD))
