"""The exact sums against every batch there is, put through the rule: three rewards, states that are visited again."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
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
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState, KlToGo, LikelihoodFloor, SampledKl, SquaredLogRatio
from sim.learning.rule import Rule
from sim.learning.shaping import Overlong
from sim.learning.step_credit import RewardToGo, StateGroups
from sim.learning.tabular import greedy
from sim.mdp.exact import trajectories
from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, expected_gradient


def retries(turns: int) -> ToolGraph:
    """One state that a rollout may come back to: try (right, or try again) or wait; a rollout out of turns earns .25."""
    tries = Action("try", (Outcome("right", (0.3, 0.7)), Outcome("here", (0.6, 0.1)), Outcome("wrong", (0.1, 0.2))), 2)
    return ToolGraph(
        name="retries",
        kinds=(("hard", 0.4), ("easy", 0.6)),
        initial=("here", "here"),
        states=(State("here", "here", (tries, Action("wait", (Outcome("here", 1.0),), 3))),),
        terminals=(Terminal("right", 1.0, solved=True), Terminal("wrong", 0.0)),
        actions=("try", "wait"),
        turn_limit=turns,
        turn_limit_reward=0.25,
    )


def padded(rows, K, dtype):
    found = np.zeros((len(rows), K), dtype)
    for row, values in zip(found, rows, strict=True):
        row[: len(values)] = values
    return found


@cache
def every_batch(turns, Q, G):
    """Log-odds, P [B], the batch, its lengths in tokens and whether each turn waits, [B, Q, G, K]."""
    graph, z, K = retries(turns).compiled(), np.array([0.4]), turns
    policy = tables(graph, z)
    found = trajectories(graph, policy)
    of_kind = [[i for i, t in enumerate(found) if t.kind == h] for h in range(len(graph.share))]
    picks = []
    for kinds in itertools.product(range(len(graph.share)), repeat=Q):
        rows = itertools.product(*(itertools.product(of_kind[h], repeat=G) for h in kinds))
        picks.append(np.array(list(rows)).reshape(-1, Q, G))
    pick = np.concatenate(picks)
    kind = np.array([t.kind for t in found])
    chance = graph.share[kind[pick[..., 0]]].prod(-1) * np.array([t.probability for t in found])[pick].prod((1, 2))
    nodes, actions = (padded([getattr(t, n)[: t.turns] for t in found], K, int) for n in ("nodes", "actions"))
    mask = np.arange(K) < np.array([t.turns for t in found])[:, None]
    logp = np.where(mask, policy.log_probability[graph.context[nodes], actions], 0.0)
    best = trajectories(graph, greedy(policy))
    batch = Batch(
        np.array([t.reward for t in found])[pick],
        mask[pick],
        logp[pick],
        reference=np.where(mask, -np.log(2), 0.0)[pick],
        turn=np.broadcast_to(np.arange(K), (*pick.shape, K)),
        state=nodes[pick],
        greedy_reward=value(best)[kind[pick[..., 0]]],
    )
    tokens = graph.generated[nodes, actions].astype(float)[pick]
    return graph, z, chance, batch, tokens, (actions == graph.free_action[0])[pick]


def value(found):
    """Expected reward of both kinds."""
    return np.array([sum(t.probability * t.reward for t in found if t.kind == h) for h in range(2)])


def by_brute_force(rule, turns, Q, G, unit):
    """The mean over all batches of sum of coefficient x score, with the rule's coefficients; there is one free logit.

    Entropy and KL move it by their slopes, taken as difference quotients.
    """
    _, z, chance, batch, tokens, waits = every_batch(turns, Q, G)
    batch = replace(batch, lengths=tokens if unit == "token" else None)
    mean = chance @ rule.shaped(batch).reward.mean((1, 2))
    batch = replace(batch, running_reward=np.full(len(chance), mean))
    values = {("kl", "ref"): np.full(batch.mask.shape, kl_to_even(z[0]))}
    scalars = rule.coefficients(rule.prepare(batch), batch.behaviour, values).scalars
    slopes = {
        "logp": waits - expit(z[0]),
        "entropy": derivative(entropy, z[0]),
        ("kl", "ref"): derivative(kl_to_even, z[0]),
    }
    return sum(chance @ (c * slopes[name]).sum((1, 2, 3)) for name, c in scalars.items())


def summed(rule, turns, Q, G, unit):
    graph, z, *_ = every_batch(turns, Q, G)
    return expected_gradient(graph, tables(graph, z), Objective.of(rule, G, Q, unit), tables(graph, np.zeros(1)))[0]


def entropy(z):
    p = expit(z)
    return -p * np.log(p) - (1 - p) * np.log(1 - p)


def kl_to_even(z):
    return np.log(2) - entropy(z)


def derivative(f, z, h=1e-5):
    return (f(z + h) - f(z - h)) / (2 * h)


CREDITS = [
    GroupCredit(),
    GroupCredit(ddof=0, epsilon=0.1),
    LeaveOneOut(),
    LeaveOneOut(std=True),
    NoBaseline(),
    RunningBaseline(),
    GreedyBaseline(),
    LogPartition(0.3),
    RewardToGo(0.8),
    StateGroups(gamma=0.8),
    StateGroups(GroupCredit(std=False), 0.5, 1.0, std=False),
    StateGroups(gamma=0.7, ddof=0),
]


@pytest.mark.parametrize("credit", CREDITS, ids=repr)
@pytest.mark.parametrize(("turns", "Q", "G"), [(3, 1, 3), (2, 2, 2)])
def test_it_is_the_mean_over_all_batches_of_what_the_rule_makes_of_them(credit, turns, Q, G):
    """Also where a rollout comes back to a state, and with three rewards."""
    for normaliser, unit in (
        (BatchMean(), "turn"),
        (ConstantLength(3.0), "token"),
        (SequenceMean(), "token"),
        (TokenMean(), "token"),
        (MicrobatchMean(2), "turn"),
        (MicrobatchMean(3), "token"),
    ):
        rule = Rule(credit, normaliser=normaliser)
        exact = by_brute_force(rule, turns, Q, G, unit)
        assert summed(rule, turns, Q, G, unit) == pytest.approx(exact, rel=0, abs=1e-12)
        assert abs(exact) > 1e-3


TERMS = [
    Overlong(6, 4),
    EntropyBonus(0.3),
    EntropyBonus(-0.3),
    KlPerState(0.3),
    KlToGo(3.0),
    SampledKl(0.3),
    SampledKl(0.3, "k2"),
    SampledKl(0.3, "k3", "differentiated"),
    SquaredLogRatio(0.3, "sequence", "now/reference"),
]


@pytest.mark.parametrize("term", TERMS, ids=repr)
@pytest.mark.parametrize("normaliser", [BatchMean(), SequenceMean(), TokenMean(), MicrobatchMean(4)], ids=repr)
def test_penalties_and_shaping_over_all_batches(term, normaliser):
    field = "shaping" if isinstance(term, Overlong) else "penalties"
    for credit in (GroupCredit(), RunningBaseline(), GreedyBaseline()):
        rule = Rule(credit, normaliser=normaliser, **{field: (term,)})
        found = summed(rule, 2, 1, 3, "token")
        assert found == pytest.approx(by_brute_force(rule, 2, 1, 3, "token"), abs=1e-10)
        assert abs(found - summed(replace(rule, **{field: ()}), 2, 1, 3, "token")) > 1e-3


def test_what_compares_with_the_policy_that_sampled_is_0():
    for penalty in (SquaredLogRatio(0.3), LikelihoodFloor(0.3)):
        rule = Rule(penalties=(penalty,))
        assert (
            summed(rule, 2, 1, 3, "turn")
            == summed(Rule(), 2, 1, 3, "turn")
            == pytest.approx(by_brute_force(rule, 2, 1, 3, "turn"), abs=1e-12)
        )
