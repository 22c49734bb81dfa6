import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from minimodel.agent.learner import Minibatch, backward, minibatches, rule_batch, score
from sim.learning import family
from sim.learning.batch_weights import BatchNormalised, SecondMoment
from sim.learning.credit import GroupCredit, NoBaseline
from sim.learning.normalisers import BatchMean, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState, KlToGo, SquaredLogRatio
from sim.learning.rule import Rule
from sim.learning.weights import Bounded, Region, Unweighted, ppo_clip, truncated
from tests.minimodel.agent.small import TASK, clear, gradient, moved, play, policy_of, relative_gap

LAYOUT = TASK.layout
Q, G = 12, 4


@pytest.fixture(scope="module")
def batch():
    return play(policy_of(), step=1)


@pytest.fixture
def ahead():
    """The learner, some updates after the policy that sampled."""
    return moved(policy_of(), 0.1)


@pytest.fixture(scope="module")
def reference():
    return moved(policy_of(), 0.1, seed=2)


def reference_logp(batch, reference):
    ids, taken = torch.from_numpy(batch.ids), torch.from_numpy(batch.taken)
    with torch.no_grad():
        return score(reference, LAYOUT, ids, taken, frozenset({"logp"})).whole("logp", torch.zeros(ids.shape))


def given(batch, rule, **more):
    return rule_batch(batch, batch.reward, rule, LAYOUT, **more)


def learn(policy, batch, rule, reference=None, micro=1, part=slice(None), **more):
    """One update's gradient, and what it saw."""
    clear(policy)
    if "reference" in rule.reads:
        more["reference"] = reference_logp(batch, reference)
    minibatch = Minibatch.of(rule, batch, given(batch, rule, **more), part)
    seen = backward(policy, LAYOUT, rule, minibatch, reference, micro)
    return gradient(policy.parameters()), seen


# --- scoring ----------------------------------------------------------------------------------------------------------


def test_buckets_are_the_padded_forward(batch, ahead, reference):
    ids, taken = torch.from_numpy(batch.ids), torch.from_numpy(batch.taken)
    wanted = frozenset({"logp", "entropy", ("kl", "ref")})
    scored = score(ahead, LAYOUT, ids, taken, wanted, reference)
    assert len(scored.buckets) == 3
    assert [scalars["logp"].shape[1] for _, scalars in scored.buckets] == [LAYOUT.length(n) for n in (1, 2, 3)]
    whole = ahead.scalars(ids.reshape(Q * G, -1), wanted, reference)
    sampled = torch.from_numpy(batch.sampled)
    weight = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) * sampled
    for name in wanted:
        padded = whole[name].detach().reshape(ids.shape)
        found = scored.whole(name, torch.full(ids.shape, 7.0))
        assert (found - padded)[sampled].abs().max() < 1e-5
        assert padded[sampled].abs().mean() > 1e-3
        beyond = torch.arange(ids.shape[-1]) >= torch.tensor([LAYOUT.length(n) for n in taken.flatten()])[:, None]
        assert (found.reshape(Q * G, -1)[beyond] == 7).all()
        clear(ahead)
        (weight.reshape(Q * G, -1) * whole[name]).sum().backward(retain_graph=True)
        expected = gradient(ahead.parameters())
        clear(ahead)
        scored.dot({name: weight}).backward(retain_graph=True)
        assert relative_gap(gradient(ahead.parameters()), expected) < 1e-6


def test_only_what_is_needed_is_scored(batch, ahead):
    ids, taken = torch.from_numpy(batch.ids), torch.from_numpy(batch.taken)
    needed = torch.zeros(Q, G, dtype=torch.bool)
    needed[3, 1] = needed[5, 2] = True
    fill = torch.full(ids.shape, 7.0)
    found = score(ahead, LAYOUT, ids, taken, frozenset({"logp"}), None, needed).whole("logp", fill)
    everything = score(ahead, LAYOUT, ids, taken, frozenset({"logp"})).whole("logp", fill)
    assert (found[~needed] == 7).all()
    assert torch.allclose(found[needed], everything[needed], atol=1e-5)
    none = score(ahead, LAYOUT, ids, taken, frozenset({"logp"}), None, needed & False)
    assert none.buckets == ()
    assert none.dot({"logp": fill}).item() == 0


def test_minibatches_are_even_and_leave_nothing_out():
    assert [list(range(9)[part]) for part in minibatches(9, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]
    for questions, count in itertools.product(range(1, 20), range(1, 6)):
        parts = list(minibatches(questions, count))
        sizes = [part.stop - part.start for part in parts]
        assert len(parts) == count
        assert [q for part in parts for q in range(questions)[part]] == list(range(questions))
        assert max(sizes) - min(sizes) <= 1


# --- one gradient -----------------------------------------------------------------------------------------------------

PENALISED = (EntropyBonus(0.01),)
RULES = {
    "grpo": family.grpo(kl=0.01),
    "grpo, no KL": family.grpo(kl=0.0),
    "token mean": Rule(GroupCredit(), ppo_clip(), TokenMean(), PENALISED),
    "micro-batch mean": Rule(GroupCredit(), ppo_clip(), MicrobatchMean(3), PENALISED),
    "gspo": family.gspo(0.05, 0.05),
    "by turn": Rule(weight=Bounded(level="turn", positive=Region(low=0.7, high=1.3))),
    "llds": family.llds(),
    "gigpo": family.gigpo(),
    "minimax, no process": Rule(family.minimax_forge().credit, truncated(5.0), TokenMean()),
    "kimi": family.kimi_k15(),
    "KL to go": Rule(GroupCredit(), ppo_clip(), BatchMean(), (KlPerState(0.01), KlToGo(0.01))),
    "square of the sequence": Rule(penalties=(SquaredLogRatio(0.2),)),
    "m2po": family.m2po(1e-3),
    "m2po of all": Rule(GroupCredit(), SecondMoment(1e-3, of="all"), TokenMean()),
    "normalised": Rule(GroupCredit(), BatchNormalised(truncated(1.2)), SequenceMean()),
    "normalised and penalised": Rule(GroupCredit(), BatchNormalised(truncated(1.2)), SequenceMean(), PENALISED),
    "mis": family.mis(),
    "engine alone": Rule(GroupCredit(), truncated(2.0, "proximal/behaviour"), TokenMean()),
}
SCOPES = {
    "gspo": "sequence", "by turn": "turn", "llds": "turn", "kimi": "sequence", "KL to go": "sequence",
    "square of the sequence": "sequence", "m2po": "batch", "m2po of all": "batch", "normalised": "batch",
    "normalised and penalised": "batch", "mis": "sequence",
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_micro_batches_add_up_to_one_gradient(name, batch, ahead, reference):
    rule = RULES[name]
    assert rule.scope == SCOPES.get(name, "token")
    whole, seen = learn(ahead, batch, rule, reference)
    assert whole.norm() > 1e-3
    for micro in (2, 4):
        parts, pieces = learn(ahead, batch, rule, reference, micro)
        assert relative_gap(parts, whole) < 1e-6
        assert torch.allclose(pieces.logp, seen.logp, atol=1e-5)


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if not rule.penalties])
def test_what_is_not_scored_has_no_gradient(name, batch, ahead, reference, monkeypatch):
    rule = RULES[name]
    found, _ = learn(ahead, batch, rule, reference)
    monkeypatch.setattr(Minibatch, "needed", lambda self, rule: torch.ones(self.taken.shape, dtype=torch.bool))
    everything, _ = learn(ahead, batch, rule, reference)
    assert relative_gap(found, everything) < 1e-6


def test_episodes_of_a_silent_group_are_not_scored_where_nothing_else_acts(batch, ahead, reference):
    _, bare = learn(ahead, batch, family.grpo(kl=0.0))
    silent = bare.prepared.advantage.degenerate
    assert 0 < silent.sum() < Q
    assert torch.equal(bare.scored, ~silent[:, None].expand(Q, G))
    assert torch.equal(bare.logp[silent], torch.from_numpy(batch.logp)[silent])  # as it was sampled
    _, penalised = learn(ahead, batch, family.grpo(kl=0.01), reference)
    assert penalised.scored.all()


def test_a_minibatch_has_its_own_normaliser(batch, ahead):
    """Half the questions as an update of their own: twice what the whole update gives them in a mean over rollouts."""
    rule = Rule(GroupCredit(), Unweighted(), BatchMean())
    whole, _ = learn(ahead, batch, rule)
    halves = [learn(ahead, batch, rule, part=part)[0] for part in minibatches(Q, 2)]
    assert relative_gap(sum(halves) / 2, whole) < 1e-6
    assert relative_gap(halves[0], halves[1]) > 0.1


def test_a_batch_without_signal_moves_nothing(batch, ahead):
    silent = replace(batch, reward=np.ones_like(batch.reward))
    found, seen = learn(ahead, silent, family.grpo(kl=0.0))
    assert found.norm() == 0
    assert not seen.signal
    assert not seen.scored.any()
    bonus, seen = learn(ahead, silent, Rule(penalties=(EntropyBonus(0.1),)))
    assert seen.signal
    assert bonus.norm() > 0


# --- old log-probs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_on_policy_every_ratio_is_one(temperature):
    policy = policy_of(temperature=temperature)
    batch = play(policy)
    for rule in (RULES["token mean"], RULES["grpo, no KL"]):
        _, seen = learn(policy, batch, rule)
        ratio = (seen.logp - torch.from_numpy(batch.logp))[torch.from_numpy(batch.sampled)].exp()
        assert (ratio - 1).abs().max() <= 1e-5


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("name", ["grpo, no KL", "token mean", "normalised"])
def test_recomputed_log_probs_give_ratios_of_exactly_one(name, micro, batch, ahead):
    """Before anything moved: bits, not roundings."""
    rule = RULES[name]
    minibatch = Minibatch.of(rule, batch, given(batch, rule), slice(0, Q))
    again = minibatch.recomputed(ahead, rule, LAYOUT, micro)
    seen = backward(ahead, LAYOUT, rule, again, None, micro)
    mask = again.prepared.mask & seen.scored[..., None]
    assert torch.equal(seen.logp[mask], again.prepared.proximal[mask])
    assert (seen.logp - again.prepared.behaviour)[mask].abs().mean() > 1e-2  # the sampler was another policy
    unscored = ~seen.scored
    assert torch.equal(again.prepared.proximal[unscored], again.prepared.behaviour[unscored])


def test_recomputing_carries_no_gradient(batch, ahead):
    rule = RULES["token mean"]
    again = Minibatch.of(rule, batch, given(batch, rule), slice(0, Q)).recomputed(ahead, rule, LAYOUT)
    assert not again.prepared.proximal.requires_grad
    assert gradient(ahead.parameters()).norm() == 0


# --- what a rule is given ---------------------------------------------------------------------------------------------


def test_a_rule_is_given_what_it_reads_and_no_more(batch):
    plain = given(batch, Rule())
    assert (plain.turn, plain.state, plain.duration_s, plain.valid) == (None, None, None, None)
    found = given(batch, family.gigpo(kl=0.0))
    turn = np.broadcast_to(LAYOUT.turn_of, batch.ids.shape)
    assert np.array_equal(found.turn, turn)
    for q, g, t in ((0, 0, 5), (3, 1, 12), (7, 2, 18)):
        assert found.state[q, g, t] == batch.node[q, g, turn[q, g, t]]
    forge = given(batch, family.minimax_forge())
    np.testing.assert_allclose(forge.duration_s, batch.latency_s.sum(-1), rtol=1e-6)
    for b in (plain, found, forge):
        assert np.array_equal(b.mask, batch.sampled)
        assert np.array_equal(b.behaviour, batch.logp)


def test_baselines_over_all_and_over_what_arrived():
    """Rewards 1, 0, 0, 0 of one question, and the last two lost: means of 1/4 and of 1/2."""
    small = play(policy_of(), questions=1)
    reward, arrived = np.array([[1.0, 0, 0, 0]]), np.array([[True, True, False, False]])
    rule = Rule(GroupCredit(std=False), Unweighted(), BatchMean())
    for over, expected in (("all", [0.75, -0.25, -0.25, -0.25]), ("arrived", [0.5, -0.5, 0, 0])):
        prepared = rule.prepare(rule_batch(small, reward, rule, LAYOUT, arrived=arrived, over=over))
        assert prepared.advantage.value[0, :, 0].tolist() == expected
        assert np.array_equal(prepared.mask, small.sampled & arrived[..., None])
        per_rollout = prepared.signal.sum(-1) / torch.from_numpy(small.sampled.sum(-1))
        kept = np.array(expected) * arrived[0] / 2  # two rollouts are there, in numerator and denominator
        np.testing.assert_allclose(per_rollout[0], kept, rtol=1e-6)


def test_what_did_not_arrive_has_no_gradient(batch, ahead):
    rule = Rule(NoBaseline(), Unweighted(), SequenceMean())
    arrived = np.zeros((Q, G), bool)
    arrived[:, 0] = True
    first = ("ids", "sampled", "logp", "taken", "reward", "node", "latency_s")
    lone = replace(batch, **{name: getattr(batch, name)[:, :1] for name in first})
    expected, _ = learn(ahead, lone, rule)
    for over in ("all", "arrived"):
        found, _ = learn(ahead, batch, rule, arrived=arrived, over=over)
        assert relative_gap(found, expected) < 1e-6
