import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from sim.learning.batch import Batch
from sim.learning.credit import (
    GreedyBaseline,
    GroupCredit,
    LeaveOneOut,
    LogPartition,
    NoBaseline,
    RunningBaseline,
)
from sim.learning.family import dapo
from sim.learning.lookup import Lookup
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import KlPerState, KlToGo, SampledKl
from sim.learning.rule import Rule
from sim.learning.shaping import LengthReward
from sim.learning.step_credit import RewardToGo, StateGroups
from sim.learning.tabular import draw, gradient, rule_batch
from sim.learning.weights import Bounded, Region
from sim.mdp.exact import expected_return, policy_gradient, trajectories
from sim.mdp.policy import SoftmaxPolicy, free_logits, tables
from sim.mdp.sampling import Sampler
from sim.mdp.theory.drift import Objective, effective_gap, expected_advantage, expected_gradient
from sim.mdp.worlds import PRESETS, seed_a
from sim.records.rng import BlockStream

GROUP_CREDITS = st.builds(GroupCredit, std=st.booleans(), ddof=st.sampled_from((0, 1)))
REWARD_CREDITS = st.one_of(GROUP_CREDITS, st.builds(LeaveOneOut, std=st.booleans()), st.just(LogPartition(0.5)))
OBJECTIVES = st.builds(
    Objective,
    credit=REWARD_CREDITS,
    normaliser=st.sampled_from((BatchMean(), ConstantLength(2.0), SequenceMean(), MicrobatchMean(3), TokenMean())),
    group=st.integers(2, 6),
    prompts=st.integers(1, 4),
)


# --- expected advantages ----------------------------------------------------------------------------------------------


@given(st.integers(2, 7), st.floats(0, 1), REWARD_CREDITS)
def test_expected_advantage_over_all_outcomes_of_the_others(G, p, credit):
    for reward in (0, 1):
        total = 0.0
        for others in itertools.product((0, 1), repeat=G - 1):
            chance = np.prod([p if r else 1 - p for r in others])
            total += chance * credit(Batch(np.array([[reward, *others]], float))).value[0, 0, 0]
        assert expected_advantage(reward, p, Objective(credit, group=G)) == pytest.approx(total, rel=1e-9, abs=1e-12)


@given(st.integers(2, 12), st.floats(0, 1))
def test_without_std_the_expected_advantage_is_one_minus_one_over_g_times_the_surprise(G, p):
    for reward in (0, 1):
        objective = Objective(GroupCredit(std=False), group=G)
        assert expected_advantage(reward, p, objective) == pytest.approx((1 - 1 / G) * (reward - p))


# --- identities -------------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.data(), st.integers(2, 9))
def test_without_std_and_length_it_is_the_policy_gradient_times_one_minus_one_over_g(graphs, data, G):
    graph = data.draw(graphs).compiled()
    D = len(graph.free_names)
    policy = tables(graph, np.array(data.draw(st.lists(st.floats(-4, 4), min_size=D, max_size=D))))
    exact = policy_gradient(graph, policy)
    found = expected_gradient(graph, policy, Objective(GroupCredit(std=False), group=G))
    np.testing.assert_allclose(found, (1 - 1 / G) * exact, atol=1e-12)
    for credit in (LeaveOneOut(), NoBaseline(), RunningBaseline(), GreedyBaseline()):  # no bias, whatever the baseline
        np.testing.assert_allclose(expected_gradient(graph, policy, Objective(credit, group=G)), exact, atol=1e-12)


@settings(max_examples=20)
@given(st.data(), st.integers(2, 5), st.integers(1, 4))
def test_micro_batches_of_one_and_of_all(binary_graphs, data, G, Q):
    graph = data.draw(binary_graphs).compiled()
    D = len(graph.free_names)
    policy = tables(graph, np.array(data.draw(st.lists(st.floats(-4, 4), min_size=D, max_size=D))))

    def found(normaliser):
        return expected_gradient(graph, policy, Objective(normaliser=normaliser, group=G, prompts=Q))

    np.testing.assert_allclose(found(MicrobatchMean(1)), found(SequenceMean()), atol=1e-12)
    np.testing.assert_allclose(found(MicrobatchMean(Q * G)), found(TokenMean()), atol=1e-12)
    np.testing.assert_allclose(found(MicrobatchMean(10 * Q * G)), found(TokenMean()), atol=1e-12)
    np.testing.assert_allclose(found(ConstantLength(4.0)), found(BatchMean()) / 4, atol=1e-15)


def test_a_token_mean_of_many_groups_is_a_batch_mean_over_the_mean_length():
    """The total length of many groups hardly varies: the gradient is that of a constant length, but for terms in 1 / Q."""
    graph = seed_a().graph().compiled()
    policy = tables(graph, np.array([-1.0, 2.0, -1.0]))
    plain = expected_gradient(graph, policy, Objective())
    turns = sum(graph.share[t.kind] * t.probability * t.turns for t in trajectories(graph, policy))

    def off(prompts):
        found = expected_gradient(graph, policy, Objective(normaliser=TokenMean(), prompts=prompts))
        return np.abs(found * turns / plain - 1).max()

    assert off(1) > 0.05
    assert off(512) < 1e-3
    assert off(64) / off(512) == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize(
    ("credit", "normaliser"),
    [
        (GroupCredit(std=False), BatchMean()),
        (GroupCredit(), SequenceMean()),
        (GroupCredit(ddof=0), TokenMean()),
        (LeaveOneOut(std=True), MicrobatchMean(6)),
        (StateGroups(), BatchMean()),
        (RewardToGo(0.5), MicrobatchMean(2)),
    ],
    ids=repr,
)
def test_the_loop_samples_it(credit, normaliser):
    """Seed A's world near the middle: the mean sampled gradient over 6,000 batches is the expected one."""
    graph = seed_a().graph().compiled()
    policy = SoftmaxPolicy(
        graph, free_logits(graph, start__answer=-0.5, fresh__answer=2.0, failed__answer=-1.0), np.eye(3)
    )
    seeds = tuple(range(6000))
    now = policy.tables(np.zeros((len(seeds), 3)))
    streams = BlockStream(seeds, "theory/question"), BlockStream(seeds, "theory/turn")
    sampler = Sampler(graph)
    sample = draw(sampler, now, streams, step=0, prompts=4, group=4)
    lookup = Lookup.of(sample, sampler.decisions)
    rule = Rule(credit, normaliser=normaliser)
    batch = rule_batch(sampler, sample, lookup, now, "turn", reads=rule.reads)
    found = gradient(policy, now, now, lookup, rule.coefficients(rule.prepare(batch), batch.behaviour))

    def p_value(objective):
        off = found.mean(0) - expected_gradient(graph, policy.tables(np.zeros(3)), objective)
        return stats.chi2.sf(off @ np.linalg.solve(np.cov(found.T) / len(found), off), 3)

    objective = Objective(credit, normaliser, group=4, prompts=4)
    assert p_value(objective) > 1e-3
    other = BatchMean() if isinstance(normaliser, SequenceMean) else SequenceMean()
    assert p_value(replace(objective, normaliser=other)) < 1e-6  # the check can tell objectives apart
    assert p_value(replace(objective, credit=NoBaseline())) < 1e-3
    if not isinstance(credit, LeaveOneOut | RewardToGo):  # the first hardly feels the size of the group
        assert p_value(replace(objective, group=3)) < 1e-3


# --- the effective gap ------------------------------------------------------------------------------------------------


@given(st.sampled_from(["seed-a", "seed-a-final"]), st.integers(2, 9), *[st.floats(-4, 4)] * 3)
def test_the_gap_is_the_difference_of_values_times_one_minus_one_over_g(name, G, start, fresh, failed):
    graph = PRESETS[name]().graph().compiled()
    others = {"fresh__answer": fresh} | ({"failed__answer": failed} if name == "seed-a" else {})

    def policy(start):
        return tables(graph, free_logits(graph, start__answer=start, **others))

    gap = effective_gap(graph, policy(start), Objective(GroupCredit(std=False), group=G))
    search, guess = (expected_return(graph, policy(z)) for z in (-800.0, 800.0))
    assert gap == pytest.approx((1 - 1 / G) * (search - guess), abs=1e-10)


@settings(max_examples=30)
@given(OBJECTIVES, st.floats(-6, 6))
def test_the_gap_is_minus_the_gradient_over_its_variance(objective, start):
    graph = seed_a().graph().compiled()
    policy = tables(graph, free_logits(graph, start__answer=start, fresh__answer=2.0))
    gap, p = effective_gap(graph, policy, objective), expit(start)
    assert -gap * p * (1 - p) == pytest.approx(expected_gradient(graph, policy, objective)[0])


def test_seed_as_gap_with_and_without_std():
    """Where nearly all rollouts search, std multiplies the gap by 2.2 to 2.6; by length it shrinks but keeps its sign."""
    graph = seed_a().graph().compiled()
    policy = tables(graph, free_logits(graph, start__answer=-4.14, fresh__answer=4.85, failed__answer=-4.2))
    plain, std, short, both = (
        effective_gap(graph, policy, Objective(GroupCredit(std=std), normaliser))
        for normaliser in (BatchMean(), SequenceMean())
        for std in (False, True)
    )
    assert plain == pytest.approx(0.1903, abs=5e-4)
    assert 2.2 < std / plain < 2.6
    assert 0 < short < both < plain


def test_an_unknown_logit_names_its_neighbours():
    graph = seed_a().graph().compiled()
    with pytest.raises(ValueError, match="start/answer"):
        effective_gap(graph, tables(graph, np.zeros(3)), Objective(), logit="start/anwser")


# --- what is taken from a rule ----------------------------------------------------------------------------------------


class OfTheBatch:
    scalar, scope = "logp", "batch"

    def __call__(self, view):
        return view.advantage


class OfTheValue(OfTheBatch):
    scalar, scope = "value", "token"


def test_the_objective_of_a_rule():
    assert Objective.of(Rule()) == Objective()
    found = Objective.of(dapo(), group=16, prompts=32, unit="token")
    assert found == Objective(GroupCredit(), TokenMean(), 16, 32, "token", shaping=dapo().shaping)
    assert Objective.of(Rule(penalties=(KlPerState(0.1),))).penalties == (KlPerState(0.1),)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Rule(shaping=(LengthReward(),)), "LengthReward: there is no exact sum"),
        (Rule(penalties=(OfTheBatch(),)), "OfTheBatch looks at a whole batch: there is no exact sum"),
        (Rule(weight=Bounded(positive=Region(low=1.5), inside="one")), r"Bounded gives \[0\.\] on policy"),
    ],
)
def test_rules_that_are_more_than_an_objective(rule, message):
    with pytest.raises(ValueError, match=message):
        Objective.of(rule)


def test_what_has_no_sum_is_named(tiny):
    graph = tiny.compiled()
    policy = tables(graph, np.zeros(2))

    class Bold(NoBaseline):
        reads = ("duration_s",)

    class Odd:
        def __call__(self, lengths):
            return lengths

    with pytest.raises(ValueError, match="Odd: there is no exact sum for this normaliser"):
        expected_gradient(graph, policy, Objective(normaliser=Odd()))
    with pytest.raises(ValueError, match="Bold reads 'duration_s'"):
        expected_gradient(graph, policy, Objective(credit=Bold()))
    for penalty, message in (
        (KlPerState(0.1), r"KlPerState acts on \('kl', 'ref'\); .* reference="),
        (SampledKl(0.1), r"needs Batch\(reference="),
        (KlToGo(0.1), "KlToGo needs the exact KL"),
        (OfTheValue(), "OfTheValue acts on 'value'"),
    ):
        with pytest.raises(ValueError, match=message):
            expected_gradient(graph, policy, Objective(penalties=(penalty,)))
    read_more = PRESETS["read-more"]().graph().compiled()
    with pytest.raises(ValueError, match=r"21 classes in 888030 ways; at most 200000 .* smaller group"):
        expected_gradient(read_more, tables(read_more, np.zeros(6)), Objective(credit=StateGroups()))
    with pytest.raises(ValueError, match="group = 1 must be at least 2"):
        Objective(group=1)
