import math

import numpy as np
import pytest
import torch

from minimodel.agent import watch
from minimodel.agent.learner import Forward, Minibatch, backward, minibatches, rule_batch
from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit, NoBaseline
from sim.learning.normalisers import TokenMean
from sim.learning.penalties import EntropyBonus
from sim.learning.rule import Rule
from sim.learning.weights import Product, Unweighted, ppo_clip, truncated
from tests.minimodel.agent.small import TASK, environment_of, play, policy_of

LAYOUT, T, K = TASK.layout, TASK.layout.length(), TASK.layout.turns
ENVIRONMENT = environment_of(TASK)
S, A = (ENVIRONMENT.graph.actions.index(name) for name in ("search", "answer"))
START, FRESH, FAILED = (ENVIRONMENT.graph.contexts.index(name) for name in ("start", "fresh", "failed"))


# --- updates ----------------------------------------------------------------------------------------------------------


def forward_of(ratio, reward, rule, pieces=1):
    """A Forward whose tokens [Q, 1, T] have these ratios to the policy that sampled, made in so many pieces."""
    logp = torch.tensor(ratio).log()[:, None]
    behaviour = torch.zeros_like(logp)
    prepared = rule.prepare(Batch(torch.tensor(reward)[:, None], torch.ones_like(logp, dtype=torch.bool), behaviour))
    made = [
        rule.coefficients(prepared if pieces == 1 else prepared.cut("groups", part), logp[part])
        for part in minibatches(len(logp), pieces)
    ]
    return Forward(prepared, logp, tuple(made), torch.ones(len(logp), 1, dtype=torch.bool), True)


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_two_clip_fractions_by_hand(pieces):
    rule = Rule(NoBaseline(), ppo_clip(), TokenMean())
    ratio, reward = [[1.5, 1.0], [1.5, 1.0], [0.5, 1.0], [0.5, 1.1]], [1.0, -1.0, 1.0, -1.0]
    decision = torch.tensor([True, False])
    found = watch.updates([forward_of(ratio, reward, rule, pieces)], [2.0], decision)
    assert found["update/clip/binding"] == 2 / 8
    assert found["update/clip/outside"] == 4 / 8
    assert found["update/clip/decision"] == 1
    assert found["update/ratio/distance"] == pytest.approx((0.5 * 4 + 0.1) / 8)
    assert found["update/logp_positive"] == pytest.approx((math.log(1.5) + math.log(0.5)) / 4)
    assert found["update/gradient_norm"] == 2


def test_updates_are_means_over_updates():
    rule, decision = Rule(NoBaseline(), ppo_clip(), TokenMean()), torch.tensor([True])
    first = forward_of([[1.5], [1.0]], [1.0, 1.0], rule)
    second = forward_of([[1.0], [1.0]], [1.0, 1.0], rule)
    found = watch.updates([first, second], [1.0, 3.0], decision)
    assert found["update/clip/binding"] == 0.25
    assert found["update/gradient_norm"] == 2


@pytest.mark.parametrize("pieces", [1, 2])
def test_a_bound_that_nothing_can_meet_is_met_nowhere(pieces):
    """One engine: proximal and behaviour are one policy, and its ratio is a 1 of no size."""
    for weight in (truncated(2.0, "proximal/behaviour"), Product((truncated(2.0, "proximal/behaviour"), Unweighted()))):
        rule = Rule(NoBaseline(), weight, TokenMean())
        found = watch.updates([forward_of([[1.5]] * 4, [1.0] * 4, rule, pieces)], [1.0], torch.tensor([True]))
        assert found["update/clip/binding"] == found["update/clip/outside"] == 0
        assert found["update/ratio/distance"] == pytest.approx(0.5)


def test_a_rule_without_bounds_has_no_clip_fraction():
    found = watch.updates(
        [forward_of([[1.5]], [1.0], Rule(NoBaseline(), Unweighted(), TokenMean()))], [], torch.ones(1) > 0
    )
    assert math.isnan(found["update/clip/binding"])
    assert math.isnan(found["update/clip/outside"])
    assert math.isnan(found["update/gradient_norm"])
    assert found["update/ratio/distance"] == pytest.approx(0.5)


def test_nothing_there_is_nan_and_not_zero():
    """A batch of which nothing arrived: no column of the updates has a value, and no gradient is left behind."""
    policy, batch = policy_of(), play(policy_of(), questions=4)
    rule = Rule(GroupCredit(), ppo_clip(), TokenMean(), (EntropyBonus(0.1),))
    nothing = np.zeros(batch.reward.shape, bool)
    for over in ("all", "arrived"):
        given = rule_batch(batch, batch.reward, rule, LAYOUT, arrived=nothing, over=over)
        seen = backward(policy, LAYOUT, rule, Minibatch.of(rule, batch, given, slice(0, 4)))
        assert not seen.signal
        assert all(p.grad is None for p in policy.parameters())
        row = watch.updates([seen], [], torch.ones(T, dtype=torch.bool))
        assert all(math.isnan(value) for value in row.values())
