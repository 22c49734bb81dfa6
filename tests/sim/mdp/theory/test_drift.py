import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit
from sim.learning.lookup import Lookup
from sim.learning.normalisers import BatchMean, SequenceMean
from sim.learning.rule import Rule
from sim.learning.tabular import draw, gradient, rule_batch
from sim.mdp.exact import expected_return, policy_gradient
from sim.mdp.policy import SoftmaxPolicy, free_logits, tables
from sim.mdp.sampling import Sampler
from sim.mdp.theory.drift import Objective, effective_gap, expected_advantage, expected_gradient
from sim.mdp.worlds import PRESETS, seed_a
from sim.records.rng import BlockStream

OBJECTIVES = st.builds(
    Objective, group=st.integers(2, 9), std=st.booleans(), ddof=st.sampled_from((0, 1)), by_length=st.booleans()
)


# --- expected advantages ----------------------------------------------------------------------------------------------


@given(st.integers(2, 8), st.floats(0, 1), st.booleans(), st.sampled_from((0, 1)))
def test_expected_advantage_over_all_outcomes_of_the_others(G, p, std, ddof):
    credit = GroupCredit(std=std, ddof=ddof)
    for reward in (0, 1):
        total = 0.0
        for others in itertools.product((0, 1), repeat=G - 1):
            chance = np.prod([p if r else 1 - p for r in others])
            total += chance * credit(Batch(np.array([[reward, *others]], float))).value[0, 0, 0]
        objective = Objective(G, std, ddof)
        assert expected_advantage(reward, p, objective) == pytest.approx(total, rel=1e-9, abs=1e-12)


@given(st.integers(2, 12), st.floats(0, 1))
def test_without_std_the_expected_advantage_is_one_minus_one_over_g_times_the_surprise(G, p):
    for reward in (0, 1):
        assert expected_advantage(reward, p, Objective(G, std=False)) == pytest.approx((1 - 1 / G) * (reward - p))


# --- expected gradients -----------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(st.data(), st.integers(2, 9))
def test_without_std_and_length_it_is_the_policy_gradient_times_one_minus_one_over_g(binary_graphs, data, G):
    graph = data.draw(binary_graphs).compiled()
    D = len(graph.free_names)
    policy = tables(graph, np.array(data.draw(st.lists(st.floats(-4, 4), min_size=D, max_size=D))))
    found = expected_gradient(graph, policy, Objective(G, std=False))
    np.testing.assert_allclose(found, (1 - 1 / G) * policy_gradient(graph, policy), atol=1e-12)


@pytest.mark.parametrize("by_length", [False, True])
@pytest.mark.parametrize(("std", "ddof"), [(False, 1), (True, 1), (True, 0)])
def test_the_loop_samples_it(std, ddof, by_length):
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
    batch = rule_batch(sampler, sample, lookup, now, "turn")
    rule = Rule(GroupCredit(std=std, ddof=ddof), normaliser=SequenceMean() if by_length else BatchMean())
    found = gradient(policy, now, now, lookup, rule.coefficients(rule.prepare(batch), batch.behaviour))

    def p_value(objective):
        exact = expected_gradient(graph, policy.tables(np.zeros(3)), objective)
        off = found.mean(0) - exact
        return stats.chi2.sf(off @ np.linalg.solve(np.cov(found.T) / len(found), off), 3)

    objective = Objective(4, std, ddof, by_length)
    assert p_value(objective) > 1e-3
    assert p_value(replace(objective, by_length=not by_length)) < 1e-6  # the check can tell objectives apart
    assert p_value(replace(objective, std=not std)) < 1e-6
    assert p_value(replace(objective, group=3)) < 1e-3


def test_rewards_other_than_0_and_1_are_refused(tiny):
    with pytest.raises(ValueError, match=r"rewards must be 0 or 1 .*; got -1"):
        expected_gradient(tiny.compiled(), tables(tiny.compiled(), np.zeros(2)), Objective())


# --- the effective gap ------------------------------------------------------------------------------------------------


@given(st.sampled_from(["seed-a", "seed-a-final"]), st.integers(2, 9), *[st.floats(-4, 4)] * 3)
def test_the_gap_is_the_difference_of_values_times_one_minus_one_over_g(name, G, start, fresh, failed):
    graph = PRESETS[name]().graph().compiled()
    others = {"fresh__answer": fresh} | ({"failed__answer": failed} if name == "seed-a" else {})

    def policy(start):
        return tables(graph, free_logits(graph, start__answer=start, **others))

    gap = effective_gap(graph, policy(start), Objective(G, std=False))
    search, guess = (expected_return(graph, policy(z)) for z in (-800.0, 800.0))
    assert gap == pytest.approx((1 - 1 / G) * (search - guess), abs=1e-10)


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
        effective_gap(graph, policy, Objective(8, std, 1, length)) for length in (False, True) for std in (False, True)
    )
    assert plain == pytest.approx(0.1903, abs=5e-4)
    assert 2.2 < std / plain < 2.6
    assert 0 < short < both < plain


def test_an_unknown_logit_names_its_neighbours():
    graph = seed_a().graph().compiled()
    with pytest.raises(ValueError, match="start/answer"):
        effective_gap(graph, tables(graph, np.zeros(3)), Objective(), logit="start/anwser")
