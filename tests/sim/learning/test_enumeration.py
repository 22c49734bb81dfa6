"""The gradient of a batch against the gradient written down: every credit with every normaliser.

The reference is :mod:`tests.sim.learning.definitions`, an enumeration over all ways a batch can come out. Two things are
held against it: what the loop's own pieces sample (``draw``, ``rule_batch``, ``Rule.prepare``, ``Rule.coefficients``,
``gradient``), on batches so small that micro-batches straddle groups, and what ``sim.mdp.theory.drift`` sums, to rounding.
The check must have teeth: the same check with one normaliser swapped for another, or with a leave-one-out baseline, fails.
"""

import itertools
from functools import cache
from typing import ClassVar

import numpy as np
import pytest
from scipy import stats

from sim.learning.credit import Advantage, GroupCredit
from sim.learning.lookup import Lookup
from sim.learning.rule import Rule
from sim.learning.tabular import draw, gradient, rule_batch
from sim.mdp.policy import SoftmaxPolicy
from sim.mdp.sampling import Sampler
from sim.mdp.theory.drift import Objective, expected_gradient
from sim.records.config import config
from sim.records.rng import BlockStream
from tests.sim.learning.definitions import CREDITS, DEFINITIONS, G, Z, enumerated, normalisers, outcomes

BATCHES = {1: 150_000, 2: 90_000}  # enough for 1 % on the noisiest component


# --- the sampled side, by the loop's pieces ---------------------------------------------------------------------------


@config
class Mutated:
    """The mutation: a baseline without the rollout itself, G / (G - 1) times the shipped advantage."""

    inner: GroupCredit
    per: ClassVar[str] = "rollout"

    def __call__(self, batch):
        shipped = self.inner(batch)
        return Advantage(shipped.value * G / (G - 1), shipped.degenerate)


@pytest.fixture(scope="module")
def sampled(tiny):
    """(Q, credit, normaliser, unit) -> the gradient of each of many batches, [batches, 2]."""
    graph = tiny.compiled()
    policy = SoftmaxPolicy(graph, np.array(Z), np.eye(2))

    @cache
    def batch(Q, unit):
        seeds = tuple(range(BATCHES[Q]))
        streams = BlockStream(seeds, f"enumeration {Q}/question"), BlockStream(seeds, f"enumeration {Q}/turn")
        now = policy.tables(np.zeros((len(seeds), 2)))
        sampler = Sampler(graph)
        sample = draw(sampler, now, streams, step=0, prompts=Q, group=G)
        lookup = Lookup.of(sample, sampler.decisions)
        return now, lookup, rule_batch(sampler, sample, lookup, now, unit)

    @cache
    def gradients(Q, credit, normaliser, unit="turn"):
        now, lookup, b = batch(Q, unit)
        rule = Rule(credit=CREDITS.get(credit, credit), normaliser=normalisers(Q)[normaliser][0])
        return gradient(policy, now, now, lookup, rule.coefficients(rule.prepare(b), b.behaviour))

    return gradients


def p_value(samples: np.ndarray, exact: np.ndarray) -> float:
    """Chi-square of the sample mean against `exact` over the components."""
    off = samples.mean(0) - exact
    return float(stats.chi2.sf(off @ np.linalg.solve(np.cov(samples.T) / len(samples), off), len(exact)))


CASES = [(Q, credit, name) for Q in BATCHES for credit in CREDITS for name in normalisers(Q)]


def test_the_enumeration_is_complete():
    for Q in BATCHES:
        p = outcomes(Q).probability
        assert len(p) == 2**Q * 5 ** (Q * G)
        assert p.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize(("Q", "credit", "normaliser"), CASES)
def test_sampled_gradient_is_that_of_the_definition(sampled, Q, credit, normaliser):
    samples, exact = sampled(Q, credit, normaliser), enumerated(Q, credit, normaliser)
    assert np.abs(exact).min() > 0.02  # every component is there to be got wrong
    standard_error = samples.std(0, ddof=1) / np.sqrt(len(samples))
    assert np.all(standard_error <= 0.01 * np.abs(exact))
    assert p_value(samples, exact) > 1e-3


@pytest.mark.parametrize("normaliser", normalisers(2))
def test_lengths_in_tokens(sampled, normaliser):
    samples = sampled(2, "std, ddof 1", normaliser, "token")
    assert p_value(samples, enumerated(2, "std, ddof 1", normaliser, "token")) > 1e-3
    if normaliser not in {"BatchMean", "ConstantLength"}:  # which do not look at lengths
        assert p_value(samples, enumerated(2, "std, ddof 1", normaliser, "turn")) < 1e-3


def same_objective(Q: int, one: str, other: str) -> bool:
    """Whether two names mean one objective at this batch size."""
    size = {"SequenceMean": 1, "MicrobatchMean(1)": 1, "MicrobatchMean(2)": 2, "MicrobatchMean(4)": min(4, Q * G)}
    size |= {"TokenMean": Q * G, "MicrobatchMean(all)": Q * G}
    return one == other or (one in size and size[one] == size.get(other))


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("Q", BATCHES)
def test_the_check_fails_with_another_normaliser(sampled, Q, credit):
    names = list(normalisers(Q))
    swaps = [(a, b) for a, b in itertools.permutations(names, 2) if not same_objective(Q, a, b)]
    assert len(swaps) >= 44
    passed = [(a, b) for a, b in swaps if p_value(sampled(Q, credit, a), enumerated(Q, credit, b)) > 1e-3]
    assert passed == []


@pytest.mark.parametrize("Q", BATCHES)
def test_the_check_fails_with_another_credit(sampled, Q):
    for a, b in itertools.permutations(CREDITS, 2):
        assert p_value(sampled(Q, a, "TokenMean"), enumerated(Q, b, "TokenMean")) < 1e-3


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("Q", BATCHES)
def test_the_check_fails_with_a_leave_one_out_baseline(sampled, Q, credit):
    mutated = sampled(Q, Mutated(CREDITS[credit]), "BatchMean")
    assert p_value(mutated, enumerated(Q, credit, "BatchMean")) < 1e-3
    # ... and the mutation is what it says it is: against its own definition it passes.
    assert p_value(mutated, enumerated(Q, f"{credit}, left out", "BatchMean")) > 1e-3


# --- the sums of the theory -------------------------------------------------------------------------------------------


def summed(tiny, Q, credit, normaliser, unit="turn"):
    objective = Objective(DEFINITIONS[credit][0], normalisers(Q)[normaliser][0], G, Q, unit)
    graph = tiny.compiled()
    return expected_gradient(graph, SoftmaxPolicy(graph, np.array(Z), np.eye(2)).tables(np.zeros(2)), objective)


@pytest.mark.parametrize("credit", DEFINITIONS)
@pytest.mark.parametrize("Q", BATCHES)
def test_the_exact_sums_are_the_definition(tiny, Q, credit):
    for normaliser, unit in itertools.product(normalisers(Q), ("turn", "token")):
        exact = enumerated(Q, credit, normaliser, unit)
        assert np.abs(exact).min() > 1e-3  # every component is there to be got wrong
        np.testing.assert_allclose(summed(tiny, Q, credit, normaliser, unit), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("Q", BATCHES)
def test_no_two_definitions_are_the_same(Q):
    """But for rewards to go without discount, which are rewards minus the group's mean."""
    found = {name: enumerated(Q, name, "TokenMean") for name in DEFINITIONS}
    np.testing.assert_allclose(found["to go"], found["centred"], atol=1e-15)
    for one, other in itertools.combinations(set(found) - {"to go"}, 2):
        assert np.abs(found[one] - found[other]).max() > 1e-4, (one, other)
