"""Faults that other projects shipped, on the path of the language model's agent: engine, rollouts, learner, run.

As in ``tests/test_known_faults.py`` every test calls what is shipped and compares with a value worked out by hand, and the
last test here puts each fault of ``known_fault_mutations_agent.py`` into it and shows that the fault's own test then fails.
"""

import math

import numpy as np
import pytest
import torch

from fullscale.agent import watch
from fullscale.agent.record import to_rollouts
from sim.learning.credit import GroupCredit, LeaveOneOut, NoBaseline
from sim.learning.normalisers import BatchMean, ConstantLength, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState, SampledKl
from sim.learning.rule import Rule
from sim.learning.shaping import KlInReward
from sim.learning.step_credit import RewardToGo
from sim.learning.weights import Bounded, Region, Unweighted, ppo_clip
from tests.fullscale.agent.conftest import single_threaded  # noqa: F401  a fixture of this module as well
from tests.fullscale.agent.small import (
    ASKED,
    Noted,
    batch,
    engine,
    minibatch,
    model,
    moved,
    policy_of,
    relative_gap,
    taught,
    tokenizer,
    update,
)
from tests.fullscale.agent.written import cut, lost, slopes, written
from tests.fullscale.known_fault_mutations_agent import MUTATIONS
from tests.mutations import fails_under

PLAIN = Rule(NoBaseline(), Unweighted(), TokenMean())
SMALL = {"prompts": 2, "group": 2, "steps": 2}


def rows(*lengths):
    """Episodes of a prompt's token and so many that were sampled, each a question of its own."""
    place = np.arange(1 + max(lengths))
    return np.array([[(place > 0) & (place <= n)] for n in lengths])


# --- normalisers ------------------------------------------------------------------------------------------------------


def test_f1_the_update_does_not_depend_on_micro_batching():
    """Tokens worth 1, 1, 1, 1 and one worth 5: 9 / 5, in one piece or two."""
    for micro in (1, 2):
        found, _ = slopes(written(rows(4, 1)), PLAIN, [[1.0], [5.0]], micro=micro)
        assert found.sum() == pytest.approx(1.8)


def test_f2_the_gradient_does_not_scale_with_pieces():
    played = batch(taught(), group=2)
    policy, rule = policy_of(moved(taught(), 0.1)), Rule(GroupCredit(), ppo_clip(), TokenMean(), (EntropyBonus(0.01),))
    given = minibatch(played, rule, np.array([[1.0, 0.0]] * 4))
    once, _ = update(policy, given, rule)
    assert once.norm() > 1e-2
    for micro in (2, 4):
        assert relative_gap(update(policy, given, rule, micro=micro)[0], once) < 1e-6


def test_f3_three_things_are_called_the_grpo_loss():
    """Five tokens worth 2 and one worth 10."""
    for normaliser, value in ((TokenMean(), 3.3333), (SequenceMean(), 6.0), (ConstantLength(7.0), 1.4286)):
        found, _ = slopes(written(rows(5, 1)), Rule(NoBaseline(), Unweighted(), normaliser), [[2.0], [10.0]])
        assert found.sum() == pytest.approx(value, abs=5e-5)


# --- who is compared with whom ----------------------------------------------------------------------------------------


def four(*failed, reward=(1.0, 0.0, 1.0, 0.0)):
    """Four episodes of one question, some of which the infrastructure lost."""
    played = written(np.tile(rows(2), (1, 4, 1)), reward=np.array([reward]))
    return written(played.sampled, **lost(played, *((0, g) for g in failed)))


def advantages(played, credit):
    prepared = cut(played, Rule(credit, Unweighted(), BatchMean())).prepared
    return prepared.advantage.value[0, :, 0].tolist(), prepared.advantage.degenerate.tolist()


def test_f4_a_group_is_a_task_and_not_a_trajectory():
    credit = GroupCredit(std=False)
    assert advantages(four(), credit)[0] == [0.5, -0.5, 0.5, -0.5]
    assert advantages(four(reward=(1.0, 0.0, 0.0, 1.0)), credit)[0] == [0.5, -0.5, -0.5, 0.5]
    assert advantages(four(3), credit)[0] == pytest.approx([1 / 3, -2 / 3, 1 / 3, 0])
    kept = to_rollouts(four(), 0)
    assert kept.groups.task.tolist() == ["q0"]
    assert np.diff(kept.groups.offsets).tolist() == [4]


def test_f13_a_group_of_which_one_reward_is_usable():
    for credit in (GroupCredit(), LeaveOneOut(std=True)):
        for reward in (1.0, 0.3):
            assert advantages(four(1, 2, 3, reward=(reward, 0, 0, 0)), credit) == ([0] * 4, [True])
    assert advantages(four(reward=(1.0, 0.0, 0.0, 0.0)), GroupCredit(ddof=1))[0][0] == pytest.approx(1.5, abs=1e-4)
    assert advantages(four(reward=(1.0, 0.0, 0.0, 0.0)), GroupCredit(ddof=0))[0][0] == pytest.approx(1.732, abs=5e-4)


def test_f14_equal_rewards_have_no_spread():
    """One rollout against seven equal ones, in float32, in which rewards come to the rule."""
    for value in (0.35, 0.4, 0.3):
        played = written(np.tile(rows(2), (1, 8, 1)), reward=np.array([[0.0] + [value] * 7]))
        assert advantages(played, LeaveOneOut(std=True))[0][0] == pytest.approx(-value, rel=1e-5)
        alone_left = written(played.sampled, **lost(played, (0, 0)))
        assert advantages(alone_left, GroupCredit()) == ([0] * 8, [True])


def test_f15_what_is_excluded_is_in_neither_numerator_nor_denominator():
    """Four rows of four tokens worth 1, two of which were lost: 1, not a half."""
    played = written(rows(4, 4, 4, 4), reward=np.ones((4, 1)))
    played = written(played.sampled, **lost(played, (1, 0), (3, 0)))
    for normaliser in (TokenMean(), SequenceMean(), ConstantLength(4.0)):
        found, _ = slopes(played, Rule(NoBaseline(), Unweighted(), normaliser))
        assert found.sum() == pytest.approx(1.0)
        assert (found[[1, 3]] == 0).all()


# --- what is trained on -----------------------------------------------------------------------------------------------


def test_f5_what_the_policy_wrote_is_what_is_trained():
    """[prompt 2, act 3, observation 4, act 2]; and of a batch that was played, what the engine said it sampled."""
    sampled = np.array([[[False] * 2 + [True] * 3 + [False] * 4 + [True] * 2]])
    found, seen = slopes(written(sampled), PLAIN, [[1.0]])
    assert seen.prepared.mask.sum() == 5
    np.testing.assert_allclose(found, sampled / 5)
    assert (found[~sampled] == 0).all()
    noted = Noted(engine(of=taught()))
    played = batch(taught(), playing=noted, group=2)
    assert played.tool_tokens.sum() > 50
    for row, said in enumerate(noted.said[0]):
        q, g = divmod(row, 2)
        for k, turn in enumerate(said.turns):
            wrote = played.ids[q, g][played.sampled[q, g] & (played.turn[q, g] == k)]
            assert wrote.tolist() == list(turn.ids)
    assert np.array_equal(minibatch(played, PLAIN).prepared.mask.numpy(), played.sampled)


def of_two(*sampled):
    """Two episodes with this mask behind a prompt's token."""
    return written([[[False, *sampled]] * 2])


def test_f6_costs_of_what_came_back_reach_nobody():
    """Mask 1 0 0 1, every k1 one, gamma .9: returns -1.9 and -1 against none, so the mean of -.95 is taken off."""
    played = of_two(True, False, False, True)
    reference = torch.from_numpy(played.logp).clone()
    reference[0, 0] -= 1
    rule = Rule(RewardToGo(0.9), Unweighted(), BatchMean(), shaping=(KlInReward(1.0, "k1"),))
    found = cut(played, rule, [[0.0, 0.0]], reference=reference).prepared.advantage.value[0].tolist()
    assert found[0] == pytest.approx([0, -0.95, 0, 0, -0.05], abs=1e-6)
    assert found[1] == pytest.approx([0, 0.95, 0, 0, 0.95], abs=1e-6)


def test_f7_an_observation_does_not_end_the_episode():
    """Reward 1 at the end, mask 1 0 1, gamma .5: returns .5 and 1, less the group's mean of .25."""
    rule = Rule(RewardToGo(0.5), Unweighted(), BatchMean())
    found = cut(of_two(True, False, True), rule, [[1.0, 0.0]]).prepared.advantage.value[0].tolist()
    assert found == [[0, 0.25, 0, 0.75], [0, -0.25, 0, -0.25]]


# --- what is not there ---------------------------------------------------------------------------------------------------


def test_f12_a_masked_entry_cannot_make_a_nan():
    """New log-probs 0 and 0, old ones 0 and -2000, the second masked: slopes 1 and 0; and so whatever is read there."""
    rule = Rule(NoBaseline(), ppo_clip(), TokenMean())
    for wild in (-2000.0, 2000.0, -200.0):
        played = written([[[False, True, False]]], logp=np.array([[[wild, 0.0, wild]]], np.float32))
        found, _ = slopes(played, rule, [[1.0]], logp=np.zeros((1, 1, 3)))
        assert found.tolist() == [[[0, 1, 0]]]
        with_reference = Rule(NoBaseline(), ppo_clip(), TokenMean(), (SampledKl(0.1),))
        found, _ = slopes(
            played, with_reference, [[1.0]], logp=np.zeros((1, 1, 3)), reference=torch.tensor([[[wild, 0.0, -wild]]])
        )
        assert found.tolist() == [[[0, 1, 0]]]


def test_f16_a_batch_of_which_nothing_arrived():
    """No loss, no gradient; what was not measured is absent (NaN), not 0."""
    played = four(0, 1, 2, 3)
    for normaliser in (TokenMean(), SequenceMean(), BatchMean()):
        found, seen = slopes(played, Rule(GroupCredit(), ppo_clip(), normaliser, (EntropyBonus(0.1),)))
        assert not seen.signal
        assert (found == 0).all()
        assert all((c == 0).all() for c in seen.coefficients[0].scalars.values())
        row = watch.updates([(seen, torch.from_numpy(played.decision))], [])
        assert all(math.isnan(value) for value in row.values())
    probe = watch.Probe(played, 4)
    assert all(
        math.isnan(watch.ratios(probe, played.logp)[f"drift/ratio/decision/{x}"]) for x in ("distance", "outside")
    )
    unwritten = watch.Probe(written(np.zeros((1, 2, 3), bool)), 2)
    row = watch.drift(unwritten, {("kl", "ref"): np.zeros((1, 2, 3)), "entropy": np.zeros((1, 2, 3))})
    assert math.isnan(row["drift/kl_token"])
    assert math.isnan(row["entropy/token"])


# --- named quantities -------------------------------------------------------------------------------------------------


def flat():
    """A network to which all tokens are always alike."""
    network = model()
    with torch.no_grad():
        network.lm_head.weight.zero_()
    return network


def test_f17_entropy_is_of_the_distribution_and_of_sampled_tokens_alone():
    """ln V where all tokens are alike, whatever was drawn; and surprisal is another quantity where they are not."""
    V = len(tokenizer())
    played = batch(flat(), group=2, questions=ASKED[:2])
    assert played.entropy[played.sampled] == pytest.approx(math.log(V), abs=1e-4)
    assert (played.entropy[~played.sampled] == 0).all()
    probe = watch.Probe(played, 2)
    scored = probe.scored(policy_of(flat()), wanted := frozenset({"entropy", ("kl", "ref")}), policy_of(flat()))
    shown = [v for k, v in watch.drift(probe, scored).items() if k.startswith("entropy/") and not math.isnan(v)]
    assert len(shown) >= 4
    assert shown == pytest.approx([math.log(V)] * len(shown), abs=1e-4)
    played = batch(taught(), group=2, questions=ASKED[:2])
    probe = watch.Probe(played, 2)
    entropy = probe.scored(policy_of(taught()), wanted, policy_of(taught()))["entropy"]
    np.testing.assert_allclose(entropy, played.entropy, atol=2e-3)
    assert np.abs(played.entropy + played.logp)[played.sampled].mean() > 0.1


def test_f18_each_estimate_regularises_what_its_gradient_says():
    """Three tokens, each drawn once; expectations under pi of each penalty's pull, with respect to the logits."""
    logits, there = np.array([1.0, 0, -1]), np.array([0, 0.5, 0])
    log_pi, log_ref = (x - np.log(np.exp(x).sum()) for x in (logits, there))
    pi, mask = np.exp(log_pi), np.array([[[False, True]] * 3])
    score = np.eye(3) - pi  # d log pi(a) / d logits

    def padded(x):
        return np.stack([np.zeros(3), x], -1)[None].astype(np.float32)

    def pull(estimator, correction="none", mu=pi):
        rule = Rule(NoBaseline(), Unweighted(), BatchMean(), (SampledKl(1.0, estimator, correction),))
        played = written(mask, logp=padded(np.log(mu)))
        found, _ = slopes(played, rule, np.zeros((1, 3)), padded(log_pi), reference=torch.from_numpy(padded(log_ref)))
        return -3 * (mu * found[0, :, 1]) @ score

    exact, backwards, off = [0.3640, -0.2332, -0.1308], [0.3912, -0.2071, -0.1840], np.array([0.2, 0.3, 0.5])
    assert pull("k2") == pytest.approx(exact, abs=5e-5)
    assert pull("k1") == pytest.approx(0, abs=1e-6)
    assert pull("k3") == pytest.approx(backwards, abs=5e-5)
    assert pull("k3", "detached", off) == pytest.approx(backwards, abs=5e-5)
    for estimator in ("k1", "k3"):
        assert pull(estimator, "differentiated", off) == pytest.approx(exact, abs=5e-5)


def test_f18_an_exact_kl_is_differentiated():
    """The gradient of KL(pi || ref) at the states that were visited, through the network."""
    network, other = model(scale=2.0), model(scale=2.0, seed=1)
    ids = np.random.default_rng(0).integers(3, 300, (1, 2, 8))
    played = written(np.tile(np.arange(8) > 2, (1, 2, 1)), ids=ids)
    rule = Rule(GroupCredit(), Unweighted(), TokenMean(), (KlPerState(1.0),))
    found, _ = update(policy_of(network), cut(played, rule, [[0.0, 0.0]]), rule, policy_of(other))
    network.zero_grad()
    now, there = (
        torch.log_softmax(n(input_ids=torch.from_numpy(ids[0])).logits[:, 2:-1], -1) for n in (network, other)
    )
    ((now.exp() * (now - there.detach())).sum(-1).mean()).backward()
    expected = torch.cat([p.grad.flatten() for p in network.parameters()])
    assert expected.norm() > 0.1
    assert relative_gap(found, expected) < 1e-4


def test_f21_a_product_and_a_geometric_mean_are_two_weights_in_log_space():
    """300 tokens of ratio .7: the product is exp(-107), below what float32 holds; the geometric mean is .7."""
    played = written(rows(300))
    bounded = Region(0.5, 2.0, "truncate")
    for level, region, ratio, weight in (
        ("geometric", Region(), 0.7, 0.7),
        ("geometric", bounded, 1.4, 1.4),
        ("sequence", Region(), 0.7, 0.0),
        ("sequence", Region(0.5, 2.0), 0.7, 0.0),
        ("sequence", bounded, 0.7, 0.5),
        ("sequence", bounded, 1.4, 2.0),
    ):
        rule = Rule(NoBaseline(), Bounded(level=level, positive=region), TokenMean())
        found, _ = slopes(played, rule, [[1.0]], played.logp + np.where(played.sampled, math.log(ratio), 0))
        assert np.isfinite(found).all()
        assert found[played.sampled] == pytest.approx(weight / 300, abs=1e-6)


# --- the tests themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mutate"),
    [pytest.param(n, m, marks=[pytest.mark.long] if slow else []) for n, _, m, slow in MUTATIONS],
    ids=[f"{n.split('_')[1]}: {fault}" for n, fault, *_ in MUTATIONS],
)
def test_the_mutation_makes_its_test_fail(name, mutate, request, monkeypatch):
    fails_under(mutate, name, globals(), request, monkeypatch)


def test_every_fault_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == {name for name in globals() if name.startswith("test_f")}
