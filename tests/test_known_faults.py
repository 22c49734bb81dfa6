"""Faults that other projects shipped, each with its right value.

Every test calls the shipped function and compares with a value worked out by hand. ``known_fault_mutations.py`` puts each
fault into the shipped code, and the last test here shows that the fault's own test then fails. The names are those of
the project's list of known faults. Beside these: F5 and F23 on records in ``tests/sim/records/test_rollouts.py`` and
``test_staleness.py``; F8, F22, F24 to F27 and F30 come with tokens, clusters and resumption.
"""

import itertools
import math

import numpy as np
import pytest

from sim.learning import logprobs
from sim.learning.batch_weights import SecondMoment
from sim.learning.credit import GroupCredit, LeaveOneOut
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, SampledKl
from sim.learning.rule import Batch, Rule
from sim.learning.step_credit import returns_to_go
from sim.learning.view import View
from sim.learning.weights import Bounded, Region, Unweighted, ppo_clip
from sim.signals.tokens import clip_fractions, distribution_entropy, masked_mean, mean_surprisal
from tests.known_fault_mutations import MUTATIONS
from tests.mutations import fails_under

Z2 = np.zeros((1, 2))


def ragged(*lengths):
    """A mask [Q = rollouts, 1, T] of rollouts with these lengths, each a group of its own."""
    return (np.arange(max(lengths)) < np.array(lengths)[:, None])[:, None]


def loss(prepared, token_losses):
    """The loss of a micro-batch: each token's loss times its factor."""
    return float((np.where(prepared.mask, token_losses, 0.0) * prepared.factor).sum())


def batch(mask, reward=None, **options):
    mask = np.asarray(mask)
    reward = np.zeros(mask.shape[:-1]) if reward is None else np.asarray(reward, float)
    return Batch(reward, mask, np.zeros(mask.shape), **options)


# --- normalisers ------------------------------------------------------------------------------------------------------


def test_f1_the_update_does_not_depend_on_micro_batching():
    losses = np.array([[1.0, 1, 1, 1], [5.0, 0, 0, 0]])[:, None]
    prepared = Rule(normaliser=TokenMean()).prepare(batch(ragged(4, 1)))
    parts = [loss(prepared.cut("groups", np.array([i])), losses[i : i + 1]) for i in (0, 1)]
    assert sum(parts) == pytest.approx(1.8)


def test_f2_the_gradient_does_not_scale_with_accumulation_steps():
    rng = np.random.default_rng(0)
    b = Batch(rng.normal(size=(4, 2)), np.broadcast_to(ragged(3, 1, 4, 2), (4, 2, 4)), rng.normal(-1, 0.1, (4, 2, 4)))
    jacobian = rng.normal(size=(4, 2, 4, 5))  # d logp / d parameter
    logp = b.behaviour + rng.normal(0, 0.05, (4, 2, 4))

    def parameter_gradient(steps, rule):
        total = np.zeros(5)
        prepared = rule.prepare(b)
        for index in np.split(np.arange(4), steps):
            g = rule.coefficients(prepared.cut("groups", index), logp[index]).scalars["logp"]
            total += np.einsum("qgt,qgtp->p", g, jacobian[index])
        return total

    for normaliser in (TokenMean(), SequenceMean(), ConstantLength(4.0), BatchMean(), MicrobatchMean(3)):
        rule = Rule(normaliser=normaliser)
        once = parameter_gradient(1, rule)
        assert np.abs(once).min() > 1e-3
        for steps in (2, 4):
            np.testing.assert_allclose(parameter_gradient(steps, rule), once, rtol=1e-12)


def test_f3_three_things_are_called_the_grpo_loss():
    """Five tokens of loss 2 and one of loss 10."""
    losses, b = np.array([2.0, 10.0])[:, None, None], batch(ragged(5, 1))
    for normaliser, value in ((TokenMean(), 3.3333), (SequenceMean(), 6.0), (ConstantLength(7.0), 1.4286)):
        assert loss(Rule(normaliser=normaliser).prepare(b), losses) == pytest.approx(value, abs=5e-5)


def test_f15_what_is_excluded_is_in_neither_numerator_nor_denominator():
    mask, valid = np.ones((4, 1, 4), bool), np.array([[True], [True], [False], [False]])
    for normaliser in (TokenMean(), SequenceMean(), ConstantLength(4.0)):
        prepared = Rule(normaliser=normaliser).prepare(batch(mask, valid=valid))
        assert loss(prepared, np.ones(mask.shape)) == pytest.approx(1.0)


def test_f15_kept_weights_are_averaged_over_the_kept():
    ratio = np.exp(np.array([0.1, -1.5, 0.8, -10, 0.3]))
    kept = (ratio >= 0.5) & (ratio <= 2)
    assert masked_mean(ratio, kept) == pytest.approx(1.2275, abs=5e-5)


def test_f16_a_fully_masked_batch_has_no_gradient_and_no_metrics():
    mask = np.zeros((2, 3, 4), bool)
    logp = np.full(mask.shape, -0.5)
    reward = np.arange(6.0).reshape(2, 3)
    for normaliser in (TokenMean(), SequenceMean(), ConstantLength(4.0), BatchMean()):
        rule = Rule(weight=ppo_clip(), normaliser=normaliser, penalties=(EntropyBonus(0.1),))
        prepared = rule.prepare(Batch(reward, mask, logp - 0.1))
        assert loss(prepared, np.ones(mask.shape)) == 0
        c = rule.coefficients(prepared, logp)
        assert all(np.all(g == 0) for g in c.scalars.values())
        assert clip_fractions(c.weights, mask) == (None, None)
    assert masked_mean(logp, mask) is None
    assert mean_surprisal(logp, mask) is None


# --- credit -----------------------------------------------------------------------------------------------------------


def advantages(credit, reward, valid=None):
    """The advantages [..., Q, G] and whether each group is degenerate."""
    found = credit(Batch(np.asarray(reward, float), valid=valid))
    return found.value[..., 0].tolist(), found.degenerate.tolist()


def test_f4_a_group_is_a_task_and_not_a_trajectory():
    reward = np.array([[1.0, 0, 1, 0]])
    assert advantages(GroupCredit(std=False), reward)[0] == [[0.5, -0.5, 0.5, -0.5]]
    assert advantages(GroupCredit(std=False), reward[:, [2, 1, 3, 0]])[0] == [[0.5, -0.5, -0.5, 0.5]]
    # Keyed by trajectory every group is a single one: here that gives no signal, and says so.
    assert advantages(GroupCredit(std=False), reward.T) == ([[0]] * 4, [True] * 4)


def test_f6_costs_are_masked_before_they_are_discounted():
    cost, mask = np.array([-1.0, -1, -1, -1]), np.array([True, False, False, True])
    right = returns_to_go(np.where(mask, cost, 0.0), mask, gamma=0.9)
    assert right[0] == pytest.approx(-1.9)  # no decay through observation tokens


def test_f7_an_observation_does_not_end_the_episode():
    reward, mask = np.array([0.0, 0, 1]), np.array([True, False, True])
    got = returns_to_go(reward, mask, gamma=0.5)
    assert got[mask].tolist() == [0.5, 1.0]


def test_f13_a_group_with_one_usable_reward():
    for credit in (GroupCredit(), LeaveOneOut(std=True)):
        assert advantages(credit, [[1.0]]) == ([[0]], [True])
        one_of_three = advantages(credit, [[1.0, np.nan, np.nan]], np.array([[True, False, False]]))
        assert one_of_three == ([[0, 0, 0]], [True])


def test_f13_degrees_of_freedom_are_stated():
    reward = [[1.0, 0, 0, 0]]
    assert advantages(GroupCredit(ddof=1), reward)[0][0][0] == pytest.approx(1.5)
    assert advantages(GroupCredit(ddof=0), reward)[0][0][0] == pytest.approx(1.732, abs=5e-4)


def test_f14_equal_rewards_have_no_spread():
    """One rollout against seven equal ones: no advantage of thousands, whatever the rounding of their mean."""
    for reward in (0.35, 0.4, 0.3):
        group = [[0.0] + [reward] * 7]
        assert advantages(GroupCredit(), group, np.array([[False] + [True] * 7])) == ([[0] * 8], [True])
        assert advantages(LeaveOneOut(std=True), group)[0][0][0] == pytest.approx(-reward, rel=1e-12)


# --- weights and their reports ----------------------------------------------------------------------------------------


def test_f5_only_sampled_tokens_are_trained():
    """[prompt 2, act 3, observation 4, act 2]."""
    sampled = np.array([[[False] * 2 + [True] * 3 + [False] * 4 + [True] * 2]] * 2).reshape(1, 2, 11)
    rule = Rule(GroupCredit(std=False), Unweighted(), TokenMean())
    b = batch(sampled, reward=[[1.0, 0.0]])
    g = rule.coefficients(rule.prepare(b), b.behaviour).scalars["logp"][0, 0]
    assert sampled[0, 0].sum() == 5
    assert np.all(g[sampled[0, 0]] == 0.5 / 10)
    assert np.all(g[~sampled[0, 0]] == 0)


def test_f12_a_masked_entry_cannot_make_a_nan():
    logp, behaviour = np.zeros((1, 2, 2)), np.array([[[0.0, -2000.0]] * 2])
    mask = np.array([[[True, False]] * 2])
    rule = Rule(GroupCredit(std=False), ppo_clip(), TokenMean())
    c = rule.coefficients(rule.prepare(Batch(np.array([[3.0, -1.0]]), mask, behaviour)), logp)
    assert c.scalars["logp"].tolist() == [[[1.0, 0], [-1.0, 0]]]  # A = 2 over two tokens


def test_f19_two_clip_fractions_both_named():
    logp, A = np.log(np.array([[[1.5, 1.5, 0.5, 0.5]]])), np.array([[[1.0, -1, 1, -1]]])
    mask = np.ones(logp.shape, bool)
    weights = ppo_clip(0.2, 0.2)(View.of(logp, np.zeros_like(logp), A, mask))
    assert weights.binding.ravel().tolist() == [True, False, False, True]
    binding, outside = clip_fractions(weights, mask)
    assert (binding, outside) == (0.5, 1.0)


def test_f20_the_importance_weight_is_not_differentiated():
    """log pi = t = ln 2, log mu = 0, A = 1: the coefficient of grad log pi is the ratio, 2, for every weight that is one."""
    t = math.log(2)
    logp = np.array([[[t]]])
    view = View.of(logp, np.zeros_like(logp), np.ones_like(logp), np.ones(logp.shape, bool))
    ratio = Bounded("now/behaviour", "sequence")
    for weight in (
        ppo_clip(0.5, 9.0),
        ratio,
        Bounded(positive=Region(high=3.0, outside="truncate")),
        SecondMoment(9.0),
    ):
        assert weight(view).value.item() == pytest.approx(2.0)


def test_f21_a_product_and_a_geometric_mean_are_two_weights_in_log_space():
    """300 tokens of ratio .7: the product is exp(-107), the geometric mean .7, nothing is infinite in any mode."""
    logp = np.full((1, 2, 300), math.log(0.7))
    mask, A = np.ones(logp.shape, bool), np.array([[[1.0], [-1.0]]])
    for level, value in (("sequence", 3.4e-47), ("geometric", 0.7)):
        for region in (Region(), Region(0.5, 2.0), Region(0.5, 2.0, "truncate"), Region(high=2.0, outside="truncate")):
            for sign in (1, -1):
                found = Bounded(level=level, positive=region)(View.of(sign * logp, np.zeros_like(logp), A, mask))
                assert found.unclamped == pytest.approx(value**sign, rel=0.02)
                assert np.isfinite(found.value).all()


def test_f18_each_estimate_regularises_what_its_gradient_says():
    """Expectations under pi of each penalty's pull, with respect to the logits; minus, since penalties point downhill."""
    logits, reference = np.array([1.0, 0, -1]), np.array([0, 0.5, 0])
    log_pi, log_ref = (x - np.log(np.exp(x).sum()) for x in (logits, reference))
    pi = np.exp(log_pi)
    score = np.eye(3) - pi  # d log pi(a) / d logits

    def pull(penalty, mu=pi):
        view = View.of(
            log_pi[:, None], np.log(mu)[:, None], np.ones((3, 1)), np.ones((3, 1), bool), reference=log_ref[:, None]
        )
        return -(mu * penalty(view)[:, 0]) @ score

    exact, backward = [0.3640, -0.2332, -0.1308], [0.3912, -0.2071, -0.1840]
    off = np.array([0.2, 0.3, 0.5])
    assert pull(SampledKl(1.0, "k2")) == pytest.approx(exact, abs=5e-5)
    assert pull(SampledKl(1.0, "k1")) == pytest.approx(0, abs=1e-12)
    assert pull(SampledKl(1.0, "k3")) == pytest.approx(backward, abs=5e-5)
    for estimator in ("k1", "k3"):  # times the differentiated ratio, on policy and off
        for mu in (pi, off):
            assert pull(SampledKl(1.0, estimator, "differentiated"), mu) == pytest.approx(exact, abs=5e-5)
    assert pull(SampledKl(1.0, "k3", "detached"), off) == pytest.approx(backward, abs=5e-5)
    assert pull(SampledKl(1.0, "k2", "detached"), off) == pytest.approx(exact, abs=5e-5)


# --- log-probs of both sides of a ratio -------------------------------------------------------------------------------

LOGITS = np.array([[2.0, 1.0, 0.0]])


def test_f9_one_temperature_on_both_sides():
    token = np.array([0])
    hot = logprobs.token_log_probability(LOGITS, token, temperature=0.6)
    assert hot == pytest.approx(-0.2026, abs=5e-5)
    assert logprobs.token_log_probability(LOGITS, token) == pytest.approx(-0.4076, abs=5e-5)
    again = logprobs.token_log_probability(LOGITS / 0.6, token)
    assert np.exp(again - hot) == pytest.approx(1, rel=1e-12)


def test_f10_one_support_on_both_sides():
    token, kept = np.array([0]), logprobs.top_k(LOGITS, 2)
    assert kept.tolist() == [[True, True, False]]
    sampled = logprobs.token_log_probability(LOGITS, token, support=kept)
    learned = logprobs.token_log_probability(LOGITS, token, support=kept)
    assert np.exp(learned - sampled) == pytest.approx(1)
    everything = logprobs.token_log_probability(LOGITS, token)
    assert np.exp(everything - sampled) == pytest.approx(0.90997, abs=5e-6)  # the mass that was kept


def test_f11_a_position_predicts_the_next_token_and_no_other_sequence():
    """A bigram model on two packed sequences agrees with each sequence alone."""
    table = np.random.default_rng(0).normal(size=(5, 5))
    first, second = np.array([1, 3, 0, 2]), np.array([4, 4, 1])
    packed, start = np.concatenate([first, second]), np.zeros(7, bool)
    start[[0, 4]] = True
    found = logprobs.next_token_log_probability(table[packed], packed, start)
    alone = [logprobs.next_token_log_probability(table[s], s, np.arange(len(s)) == 0) for s in (first, second)]
    assert np.abs(found - np.concatenate(alone)).max() < 1e-12
    by_hand = [table[a, b] - np.log(np.exp(table[a]).sum()) for a, b in itertools.pairwise(first)]
    assert found[:4] == pytest.approx([0, *by_hand])
    assert np.abs(np.roll(found, 1) - found).max() > 0.1  # shifted by one it would be seen


def test_f17_entropy_and_surprisal_are_two_quantities():
    logp, mask = np.array([-0.5, -0.5, 1.0, 1.0, 1.0]), np.array([True, True, False, False, False])
    assert mean_surprisal(logp, mask) * mask.sum() == 1.0
    assert distribution_entropy(np.zeros(4)) == pytest.approx(1.3863, abs=5e-5)
    assert distribution_entropy(np.array([10.0, 0, 0, 0])) == pytest.approx(0.00150, abs=5e-6)


# --- the tests themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mutate"),
    [(n, m) for n, _, m in MUTATIONS],
    ids=[f"{n.split('_')[1]}: {fault}" for n, fault, _ in MUTATIONS],
)
def test_the_mutation_makes_its_test_fail(name, mutate, request, monkeypatch):
    fails_under(mutate, name, globals(), request, monkeypatch)


def test_every_fault_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == {name for name in globals() if name.startswith("test_f")}
