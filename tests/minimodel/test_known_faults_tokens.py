"""Faults that other projects shipped, on the path of the tiny transformer: tokens, engines, a learner with autograd.

As in ``test_known_faults.py`` every test calls what is shipped and compares with a value worked out by hand, and the last
test here puts each fault of ``known_fault_mutations_tokens.py`` into it and shows that the fault's own test then fails.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from minimodel.agent import watch
from minimodel.agent.collect import Draws, collect
from minimodel.agent.engine import LocalEngine
from minimodel.agent.learner import Minibatch, backward, rule_batch
from minimodel.agent.policy import TinyPolicy
from minimodel.model.transformer import Size, Transformer
from minimodel.tasks.layout import PROMPT, Layout
from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit, NoBaseline
from sim.learning.normalisers import BatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState, SampledKl
from sim.learning.rule import Rule
from sim.learning.shaping import KlInReward
from sim.learning.step_credit import RewardToGo
from sim.learning.weights import Bounded, Region, Unweighted, ppo_clip
from tests.minimodel.agent.small import (
    TASK,
    clear,
    environment_of,
    facts_of,
    gradient,
    learners_logp,
    moved,
    play,
    policy_of,
    relative_gap,
)
from tests.minimodel.known_fault_mutations_tokens import MUTATIONS
from tests.mutations import fails_under

LAYOUT, ENVIRONMENT, V, K = TASK.layout, environment_of(TASK), TASK.vocabulary.size, TASK.layout.turns
CLIPPED = Rule(GroupCredit(), ppo_clip(), TokenMean())
PLAIN = Rule(NoBaseline(), Unweighted(), TokenMean())


def minibatch(batch, rule, reward=None, **more):
    given = rule_batch(batch, batch.reward if reward is None else reward, rule, LAYOUT, **more)
    return Minibatch.of(rule, batch, given, slice(None))


def update(policy, batch, rule, reward=None, micro=1, **more):
    """Gradient of one update on a whole batch, and what it saw."""
    clear(policy)
    seen = backward(policy, LAYOUT, rule, minibatch(batch, rule, reward, **more), None, micro)
    return gradient(policy.parameters()), seen


class Fixed(torch.nn.Module):
    """A network with the same logits everywhere."""

    def __init__(self, logits):
        super().__init__()
        self.logits = torch.tensor(logits)

    def forward(self, ids):
        return self.logits.expand(*ids.shape, -1)

    def start(self, batch):
        return self

    def keep(self, rows):
        pass

    def extend(self, ids, cache):
        return self.logits.expand(len(ids), -1)


# --- what is trained on -----------------------------------------------------------------------------------------------


def test_f2_the_gradient_does_not_scale_with_pieces():
    policy, batch = moved(policy_of(), 0.1), play(policy_of())
    rule = Rule(GroupCredit(), ppo_clip(), TokenMean(), (EntropyBonus(0.01),))
    once, _ = update(policy, batch, rule)
    assert once.norm() > 1e-2
    for micro in (2, 4):
        assert relative_gap(update(policy, batch, rule, micro=micro)[0], once) < 1e-6


class Leaves:
    """A policy whose log-probs are 0, and leaves: what each token's derivative is."""

    def __init__(self):
        self.found = []

    def scalars(self, ids, wanted, reference=None):
        self.found.append(torch.zeros(ids.shape, requires_grad=True))
        return dict.fromkeys(wanted, self.found[-1])


def test_f5_only_what_was_sampled_is_trained():
    """Prompt 4; then by turns 4 that were sampled and 2 that came back: of one, two, three turns 4, 8, 12 are trained."""
    batch, policy = play(policy_of(), group=8), Leaves()
    backward(policy, LAYOUT, PLAIN, minibatch(batch, PLAIN, np.ones_like(batch.reward)))
    tokens = (batch.taken * 4).sum()
    assert batch.sampled.sum() == tokens
    assert len(policy.found) == 3
    for turns, leaf in enumerate(policy.found, 1):
        by_hand = ([0.0] * 4 + ([1.0] * 4 + [0.0] * 2) * turns)[:-2]
        assert sum(by_hand) == 4 * turns
        assert len(leaf) == (batch.taken == turns).sum()
        for row in leaf.grad:
            assert (-row * tokens).tolist() == pytest.approx(by_hand)
            assert (row[torch.tensor(by_hand) == 0] == 0).all()


def test_f6_costs_of_what_came_back_reach_nobody():
    """k1 in the reward, with rewards to go at gamma .9: sampled tokens alone cost, and only they discount."""
    policy, reference = policy_of(), moved(policy_of(), 0.3)
    batch = play(policy, questions=3)
    there = learners_logp(reference, batch)
    rule = Rule(RewardToGo(0.9), Unweighted(), BatchMean(), shaping=(KlInReward(1.0, "k1"),))
    found = minibatch(batch, rule, reference=torch.from_numpy(there)).prepared.advantage.value.numpy()
    for q in range(3):
        returns = []
        for g in range(4):
            at = [t for t in range(4, 4 + 6 * batch.taken[q, g]) if (t - 4) % 6 < 4]
            rewards = (there - batch.logp)[q, g, at].astype(float)
            rewards[-1] += batch.reward[q, g]
            returns.append([sum(0.9**j * r for j, r in enumerate(rewards[i:])) for i in range(len(at))])
        mean = np.mean([r[0] for r in returns])
        for g in range(4):
            expected = np.zeros(LAYOUT.length())
            expected[[t for t in range(4, 4 + 6 * batch.taken[q, g]) if (t - 4) % 6 < 4]] = np.array(returns[g]) - mean
            np.testing.assert_allclose(found[q, g], expected, rtol=1e-4, atol=1e-5)
    assert np.abs(there - batch.logp)[batch.sampled].mean() > 0.01
    assert np.abs(there - batch.logp)[~batch.sampled].mean() > 1  # a mask that leaks would show


def test_f8_what_was_sampled_is_what_is_read_and_trained_on():
    """Ids are carried: each turn reads an exact prefix of what the next one reads, and the learner is given the same."""
    wrote, heard = [], []

    class Listening(LocalEngine):
        def open(self, prompts):
            talk = super().open(prompts)
            write = talk.write

            def listen(*given):
                heard.append(talk.ids.numpy().copy())
                wrote.append(write(*given))
                return wrote[-1]

            talk.write = listen
            return talk

    engine, policy = Listening(), policy_of()
    publish = lambda v: engine.publish(v, policy)  # noqa: E731  as short as it is
    turns = np.zeros((6, 4, K), int)
    batch = collect(engine, ENVIRONMENT, facts_of(TASK).train[:6], 4, turns, publish, Draws(0, "f8"), 0)
    ids, alive = batch.ids.reshape(24, -1), np.arange(24)
    for k, (read, turn) in enumerate(zip(heard, wrote, strict=True)):
        alive = alive[batch.taken.ravel()[alive] > k]
        at = PROMPT + k * LAYOUT.turn
        assert np.array_equal(read, ids[alive, :at])
        assert np.array_equal(turn.ids, ids[alive, at : at + LAYOUT.written])
    assert np.array_equal(minibatch(batch, CLIPPED).ids, batch.ids)
    assert len(np.unique(batch.ids[..., PROMPT])) > 1  # fillers, which a careless encoding would make one
    assert np.abs(learners_logp(policy, batch) - batch.logp)[batch.sampled].max() < 1e-5


# --- both sides of a ratio --------------------------------------------------------------------------------------------


def test_f9_one_temperature_on_both_sides():
    batch, policy = play(policy_of(temperature=0.6), questions=6), policy_of(temperature=0.6)
    assert np.abs(np.expm1(learners_logp(policy, batch) - batch.logp))[batch.sampled].max() < 1e-5
    assert np.abs(learners_logp(policy_of(), batch) - batch.logp)[batch.sampled].max() > 0.1


def test_f11_a_position_predicts_the_next_token():
    """Same weights, episodes of several lengths: every ratio is 1. Rolled by one, none would be."""
    policy = policy_of()
    batch = play(policy, group=8)
    sampled, mu = torch.from_numpy(batch.sampled), torch.from_numpy(batch.logp)
    assert len(np.unique(batch.taken)) == 3
    _, seen = update(policy, batch, Rule(GroupCredit(), ppo_clip(), TokenMean(), (EntropyBonus(0.01),)))
    assert (seen.logp - mu)[sampled].abs().max() < 1e-5
    assert (seen.logp.roll(1, -1) - mu)[sampled].abs().max() > 1


def test_f12_a_masked_entry_cannot_make_a_nan():
    """Whatever stands at tokens that came back, in any of the three log-probs: one gradient, and finite."""
    policy, batch = moved(policy_of(), 0.1), play(policy_of(), questions=6)
    rule = Rule(GroupCredit(), ppo_clip(), TokenMean(), (SampledKl(0.1),))
    reference = learners_logp(policy_of(), batch)
    found = []
    for wild in (0.0, -2000.0, 2000.0):
        logp, ref = (np.where(batch.sampled, x, np.float32(wild)) for x in (batch.logp, reference))
        found.append(update(policy, replace(batch, logp=logp), rule, reference=torch.from_numpy(ref))[0])
        assert torch.isfinite(found[-1]).all()
        assert torch.equal(found[-1], found[0])
    assert found[0].norm() > 1e-2


def test_f16_a_batch_of_which_nothing_arrived():
    """No loss, no gradient, no parameter that moves; what was not measured is absent (NaN), not 0."""
    policy, batch = policy_of(), play(policy_of(), questions=6)
    nothing = np.zeros(batch.reward.shape, bool)
    for normaliser in (TokenMean(), SequenceMean(), BatchMean()):
        rule = Rule(GroupCredit(), ppo_clip(), normaliser, (EntropyBonus(0.1),))
        for over in ("all", "arrived"):
            found, seen = update(policy, batch, rule, arrived=nothing, over=over)
            assert not seen.signal
            assert (found == 0).all()
            coefficients = seen.coefficients[0].scalars
            assert all((c == 0).all() for c in coefficients.values())
            row = watch.updates([seen], [], torch.ones(LAYOUT.length(), dtype=torch.bool))
            assert all(math.isnan(value) for value in row.values())
    first_turns = replace(batch, taken=np.ones_like(batch.taken), sampled=LAYOUT.sampled(np.ones_like(batch.taken)))
    shares = watch.decisions(first_turns, ENVIRONMENT, batch.decision, ~nothing)
    assert shares["decision/share/start/search"] > 0
    assert math.isnan(shares["decision/share/fresh/search"])
    probe = watch.Probe(first_turns, ENVIRONMENT, 2)
    row = watch.drift(probe, *[probe.log_probs(policy)] * 2)
    assert row["entropy/decision/turn0"] > 0
    assert math.isnan(row["entropy/decision/turn1"])


# --- named quantities -------------------------------------------------------------------------------------------------


def test_f17_entropy_is_of_the_distribution_and_of_sampled_tokens_alone():
    """Four equal words ln 4; one of odds e^10 to three others .00150; and pads are in no mean."""
    for logits, entropy in (([0.0] * 4, 1.3863), ([10.0, 0, 0, 0], 0.00150)):
        policy, engine = TinyPolicy(Fixed(logits)), LocalEngine(compiled=False)
        engine.publish(0, policy)
        wrote = engine.open(np.zeros((3, 4), np.int64)).write(2, np.full((2, 3), 1 - 2**-20, np.float32), (0, ()))
        assert wrote.entropy == pytest.approx(entropy, abs=5e-5 if entropy > 1 else 5e-6)
        scalars = policy.scalars(torch.from_numpy(wrote.ids), {"entropy", "logp"})
        assert scalars["entropy"][:, 1] == pytest.approx(entropy, abs=5e-5 if entropy > 1 else 5e-6)
        assert (wrote.ids == 3).all()
        assert wrote.logp == pytest.approx(math.log(1 / 4) if entropy > 1 else -10, abs=1e-3)
    batch = play(policy_of(), group=8)
    probe = watch.Probe(batch, ENVIRONMENT, 8)
    row = watch.drift(probe, *[probe.log_probs(TinyPolicy(Fixed([0.0] * V)))] * 2)
    shown = {name: value for name, value in row.items() if name.startswith("entropy/") and not math.isnan(value)}
    assert len(shown) >= 3 * 3
    assert list(shown.values()) == pytest.approx([math.log(V)] * len(shown))


def test_f18_each_estimate_regularises_what_its_gradient_says():
    """One token's every value once, sampled uniformly: expectations under mu are plain means, and exact.

    The gradient of KL(pi || ref) through the network: that of k2 with the ratio detached, of k1 and k3 with the ratio
    differentiated, and of the exact KL; k3 with a detached ratio gives that of KL(ref || pi), and k1 none at all.
    """
    policy, reference = moved(policy_of(), 0.5, seed=3), moved(policy_of(), 0.5, seed=4)
    ids = torch.zeros(1, V, LAYOUT.length(1), dtype=torch.int64)
    ids[..., :PROMPT] = torch.from_numpy(ENVIRONMENT.prompts(facts_of(TASK).train[:1]))
    ids[0, :, PROMPT] = torch.arange(V)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    mask[..., PROMPT] = True

    def pull(penalty):
        rule = Rule(GroupCredit(), Unweighted(), BatchMean(), (penalty,))
        with torch.no_grad():
            ref = reference.scalars(ids[0], {"logp"})["logp"][None]
        prepared = rule.prepare(Batch(torch.zeros(1, V), mask, torch.full(ids.shape, -math.log(V)), reference=ref))
        taken = torch.ones(1, V, dtype=torch.int64)
        backward(clear(policy), LAYOUT, rule, Minibatch(ids, taken, prepared), reference)
        return gradient(policy.parameters())

    def gradient_of(kl):
        pi, ref = (p.log_probs(ids[0, :1])[0, PROMPT - 1] for p in (clear(policy), reference))
        kl(pi, ref.detach()).backward()
        return gradient(policy.parameters())

    forward = gradient_of(lambda pi, ref: (pi.exp() * (pi - ref)).sum())
    backwards = gradient_of(lambda pi, ref: (ref.exp() * (ref - pi)).sum())
    assert relative_gap(backwards, forward) > 0.1
    assert relative_gap(pull(KlPerState(1.0)), forward) < 1e-4
    assert relative_gap(pull(SampledKl(1.0, "k2", "detached")), forward) < 1e-4
    for estimator in ("k1", "k3"):
        assert relative_gap(pull(SampledKl(1.0, estimator, "differentiated")), forward) < 1e-4
    assert relative_gap(pull(SampledKl(1.0, "k3", "detached")), backwards) < 1e-4
    assert pull(SampledKl(1.0, "k1", "detached")).norm() < 1e-4 * forward.norm()


def of_ratio(policy, batch, ratio):
    """The batch as an engine would have sampled it of which the policy is now `ratio` [Q, G] times as sure."""
    logp = learners_logp(policy, batch) - np.log(ratio)[..., None]
    return replace(batch, logp=np.where(batch.sampled, logp, 0).astype(np.float32))


def test_f19_two_clip_fractions_both_named():
    """Ratios 1.5, 1.5, .5, .5 with advantages 1, -1, 1, -1: half of the tokens bind, all of them lie outside."""
    policy = policy_of()
    batch = play(policy, questions=2, group=2)
    batch = replace(
        batch, taken=np.full((2, 2), 3), sampled=LAYOUT.sampled(np.full((2, 2), 3))
    )  # as long as each other
    ratio, reward = np.array([[1.5, 1.5], [0.5, 0.5]]), np.array([[1.0, -1.0], [1.0, -1.0]])
    decision = torch.zeros(LAYOUT.length(), dtype=torch.bool)
    decision[LAYOUT.decisions] = True
    for micro in (1, 2):
        rule = Rule(NoBaseline(), ppo_clip(), TokenMean())
        _, seen = update(policy, of_ratio(policy, batch, ratio), rule, reward, micro)
        row = watch.updates([seen], [1.0], decision)
        assert (row["update/clip/binding"], row["update/clip/outside"]) == (0.5, 1.0)
        assert row["update/clip/decision"] == 1.0
        assert row["update/ratio/distance"] == pytest.approx(0.5, rel=1e-4)


def test_f20_the_importance_weight_is_not_differentiated():
    """Ratio 2 and A = 1 everywhere: twice the plain gradient, not 2 + 2 ln 2 times it."""
    policy, rule = policy_of(), Rule(NoBaseline(), ppo_clip(0.5, 9.0), TokenMean())
    batch = play(policy, questions=4)
    ones = np.ones_like(batch.reward)
    plain, _ = update(policy, batch, PLAIN, ones)
    twice, _ = update(policy, of_ratio(policy, batch, 2 * ones), rule, ones)
    assert plain.norm() > 1e-2
    assert relative_gap(twice, 2 * plain) < 1e-5


LONG = Layout(thinking=16, turns=16)  # 16 x 19 = 304 sampled tokens


def test_f21_a_product_and_a_geometric_mean_are_two_weights_in_log_space():
    """304 tokens of ratio .7: the product is exp(-108), below what float32 holds; the geometric mean is .7."""
    generator = torch.Generator().manual_seed(0)
    policy = TinyPolicy(Transformer(Size(width=8, layers=1, heads=1), 20, LONG.length(), generator=generator))
    ids = torch.randint(0, 20, (1, 2, LONG.length()), generator=generator)
    taken, mask = torch.full((1, 2), 16), torch.from_numpy(LONG.sampled(np.full((1, 2), 16)))
    assert mask.sum() == 2 * 304
    with torch.no_grad():
        logp = policy.scalars(ids[0], {"logp"})["logp"][None]

    def learnt(weight, ratio):
        rule = Rule(NoBaseline(), weight, TokenMean())
        prepared = rule.prepare(Batch(torch.ones(1, 2), mask, logp - math.log(ratio)))
        seen = backward(clear(policy), LONG, rule, Minibatch(ids, taken, prepared))
        assert all(torch.isfinite(c).all() for c in seen.coefficients[0].scalars.values())
        return gradient(policy.parameters())

    plain = learnt(Unweighted(), 1.0)
    assert plain.norm() > 1e-3
    bounded = Region(0.5, 2.0, "truncate")
    for level, region, ratio, weight in (
        ("geometric", Region(), 0.7, 0.7),
        ("geometric", bounded, 0.7, 0.7),
        ("geometric", Region(), 1.4, 1.4),
        ("sequence", Region(), 0.7, 0.0),
        ("sequence", Region(0.5, 2.0), 0.7, 0.0),
        ("sequence", bounded, 0.7, 0.5),
        ("sequence", bounded, 1.4, 2.0),
    ):
        gap = learnt(Bounded(level=level, positive=region), ratio) - weight * plain
        assert torch.isfinite(gap).all()
        assert gap.norm() < 1e-4 * plain.norm()


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
