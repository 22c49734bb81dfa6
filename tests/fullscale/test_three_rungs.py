"""One batch through three rungs: one set of coefficients; and one gradient, whichever way the head is computed."""

import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from fullscale.agent.handed import Scorable, given
from fullscale.agent.marked import MarkedPolicy
from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.ranks import Ranks, ShardedScorer
from fullscale.agent.rollouts import Played
from fullscale.agent.scoring import ScoringModel
from fullscale.model.tiny import tiny_config, tiny_model
from fullscale.world.questions import Question
from minimodel.agent.collect import Collected
from minimodel.agent.learner import Minibatch, backward, rule_batch
from minimodel.tasks.layout import Layout
from sim.learning import family
from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit, RunningBaseline
from sim.learning.normalisers import SequenceMean
from sim.learning.penalties import EntropyBonus, KlPerState, SampledKl
from sim.learning.rule import Rule
from sim.learning.weights import ppo_clip
from sim.records.tables import Outcome
from tests.fullscale.agent.conftest import single_threaded  # noqa: F401  a fixture of this module as well
from tests.fullscale.agent.small import moved, relative_gap, update

KL = ("kl", "ref")
Q, G, LAYOUT = 4, 3, Layout(thinking=1, turns=3)
T, K = LAYOUT.length(), LAYOUT.turns
RULES = {
    name: rule
    for name, rule in ((name, getattr(family, name)()) for name in family.__all__)
    if "process_reward" not in rule.reads  # judgements of single steps, which episodes of text have not
}


# --- coefficients -----------------------------------------------------------------------------------------------------


class Table:
    """A policy of which every token of a batch is known by its id: scalars are looked up, and are leaves."""

    def __init__(self, values):
        self.values = {name: torch.from_numpy(x.ravel()) for name, x in values.items()}

    def parameters(self):
        return []

    def scalars(self, ids, wanted, reference=None, where=None):
        counted = 1 if where is None else where
        return {name: (self.values[name][ids] * counted).requires_grad_() for name in wanted}


@pytest.fixture(scope="module")
def case():
    """Rewards, masks, log-probs of four policies and of other scalars, all of float64, episodes of 1 to 3 turns."""
    rng = np.random.default_rng(0)
    taken = rng.integers(1, K + 1, (Q, G))
    mask = LAYOUT.sampled(taken)

    def drawn(centre, spread):
        return np.where(mask, rng.normal(centre, spread, mask.shape), 0.0)

    mu = drawn(-1.5, 0.5)
    found = {
        "taken": taken,
        "mask": mask,
        "behaviour": mu,
        "proximal": mu + drawn(0, 0.8),
        "now": mu + drawn(0, 0.8),
        "reference": mu + drawn(0, 0.5),
        "entropy": np.abs(drawn(1, 0.3)),
        "kl": np.abs(drawn(0.1, 0.05)),
        "state": rng.integers(0, 3, (Q, G, K)),
        "latency_s": rng.integers(1, 9, (Q, G, K)) / 4,
    }
    reward = rng.integers(0, 5, (Q, G)) / 4
    reward[0], reward[1, 0] = 1.0, 0.0
    return found | {"reward": reward, "turn": np.broadcast_to(LAYOUT.turn_of, mask.shape).copy()}


def beside(rule, case, made):
    """What a rule reads that rungs are handed rather than make."""
    more = {"proximal": made(case["proximal"])}
    if isinstance(rule.credit, RunningBaseline):
        more["running_reward"] = made(np.array(0.375))
    if "reference" in rule.reads:
        more["reference"] = made(case["reference"])
    if "greedy_reward" in rule.reads:
        more["greedy_reward"] = made(np.array([0.25, 0.5, 0.0, 1.0]))
    return more


def of_the_simulator(rule, case):
    batch = Batch(
        reward=case["reward"],
        mask=case["mask"],
        behaviour=case["behaviour"],
        turn=case["turn"],
        state=np.take_along_axis(case["state"], case["turn"], -1),
        duration_s=case["latency_s"].sum(-1),
        **beside(rule, case, np.asarray),
    )
    return rule.coefficients(rule.prepare(batch), case["now"], {"entropy": case["entropy"], KL: case["kl"]}).scalars


def learnt(rule, case, scorable, made, policy, layout):
    """Coefficients of a learner in float64: rewards come to it in float32, which these are exactly."""
    double = {n: x.double() if torch.is_tensor(x) and x.is_floating_point() else x for n, x in vars(made).items()}
    cut = Minibatch(torch.from_numpy(scorable.ids), torch.from_numpy(scorable.taken), rule.prepare(Batch(**double)))
    (found,) = backward(policy, layout, rule, cut, policy).coefficients
    return {name: value.expand(case["mask"].shape).numpy() for name, value in found.scalars.items()}


def arrays(case):
    """What batches of both rungs have."""
    numbers = np.arange(Q * G * T).reshape(Q, G, T)
    nothing, flags = np.zeros((Q, G, K), np.int64), np.zeros((Q, G, K), np.bool_)
    return {
        "ids": numbers,
        "sampled": case["mask"],
        "logp": case["behaviour"],
        "entropy": case["entropy"],
        "version": np.where(case["mask"], 0, -1),
        "action": nothing,
        "correct": flags,
        "latency_s": case["latency_s"],
        "tool_tokens": nothing,
        "reward": case["reward"],
        "outcome": np.full((Q, G), Outcome.SOLVED),
        "guessed": np.zeros((Q, G), np.bool_),
    }


def of_the_tiny_transformer(rule, case):
    batch = Collected(
        question=np.arange(Q),
        taken=case["taken"],
        node=case["state"],
        context=case["state"],
        decision=np.zeros((Q, G, K, 1)),
        **arrays(case),
    )
    made = rule_batch(batch, case["reward"], rule, LAYOUT, **beside(rule, case, torch.from_numpy))
    policy = Table({"logp": case["now"], "entropy": case["entropy"], KL: case["kl"]})
    return learnt(rule, case, batch, made, policy, LAYOUT)


def of_the_language_model(rule, case, bucket_tokens=4):
    length = np.vectorize(LAYOUT.length)(case["taken"])
    batch = Played(
        questions=tuple(Question(str(q), "?", ("!",)) for q in range(Q)),
        length=length,
        turn=case["turn"],
        segment=np.zeros((Q, G, T), np.int64),
        decision=np.zeros((Q, G, T), np.bool_),
        taken=case["taken"],
        context=case["state"],
        hit=np.zeros((Q, G, K), np.bool_),
        why=np.full((Q, G, K), "stop"),
        reason=np.full((Q, G), ""),
        **arrays(case),
    )
    scorable = Scorable.of(batch, bucket_tokens)
    arrived = np.ones((Q, G), np.bool_)
    made = given(batch, scorable, case["reward"], rule, arrived=arrived, **beside(rule, case, torch.from_numpy))
    policy = MarkedPolicy(
        ShardedScorer(Table({"logp": case["now"], "entropy": case["entropy"], KL: case["kl"]}), Ranks())
    )
    return learnt(rule, case, scorable, made, policy, scorable.layout)


@pytest.mark.parametrize("name", RULES)
def test_three_rungs_have_one_set_of_coefficients(name, case):
    rule = RULES[name]
    expected = of_the_simulator(rule, case)
    for rung in (of_the_tiny_transformer, of_the_language_model):
        found = rung(rule, case)
        assert found.keys() == expected.keys()
        for scalar, value in found.items():
            true = np.broadcast_to(expected[scalar], value.shape)
            assert np.abs(true).max() > 1e-6
            assert np.abs(value - true).max() <= 1e-12 * np.abs(true).max(), (rung.__name__, scalar)
            assert (value[~case["mask"]] == 0).all()


def test_the_batch_exercises_every_rule(case):
    """A guard: ratios leave their bands, groups are mixed and flat, and no two rules agree."""
    found = {name: of_the_simulator(rule, case)["logp"] for name, rule in RULES.items()}
    ratio = np.exp(case["now"] - case["proximal"])[case["mask"]]
    assert 0.1 < ((ratio > 1.2) | (ratio < 0.8)).mean() < 0.9
    names = list(found)
    alike = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if np.allclose(found[a], found[b], rtol=1e-9, atol=0)
    ]
    assert set(alike) <= {
        ("kimi_k2", "kimi_k15"),
        ("icepop", "mis"),
    }  # one objective; and a veto at ratios of 1e-4 alone


# --- gradients --------------------------------------------------------------------------------------------------------

ALL_AT_ONCE = Rule(
    GroupCredit(), ppo_clip(), SequenceMean(), (SampledKl(0.1), EntropyBonus(0.2), KlPerState(0.3))
)  # fmt: skip
TEMPERATURE = 0.8


@pytest.fixture(scope="module")
def text():
    """A batch of random ids, episodes of several lengths and one of two segments, and the networks around it."""
    rng = np.random.default_rng(1)
    shape = (2, 3, 14)
    length = np.array([[14, 9, 12], [7, 14, 10]])
    inside = np.arange(14) < length[..., None]
    sampled = (rng.random(shape) < 0.6) & inside & (np.arange(14) >= 3)
    segment = np.zeros(shape, np.int64)
    segment[1, 1, 8:] = 1
    sampled[1, 1, 8] = False
    network = tiny_model(tiny_config(vocabulary=61, layers=1, width=32), scale=4.0)
    nothing = np.zeros((2, 3, 1), np.int64)
    played = Played(
        questions=tuple(Question(str(q), "?", ("!",)) for q in range(2)),
        ids=np.where(inside, rng.integers(0, 61, shape), 0),
        length=length,
        sampled=sampled,
        logp=np.zeros(shape, np.float32),
        entropy=np.zeros(shape, np.float32),
        version=np.where(sampled, 0, -1),
        turn=np.zeros(shape, np.int64),
        segment=segment,
        decision=np.zeros(shape, np.bool_),
        taken=np.ones((2, 3), np.int64),
        action=nothing,
        context=nothing,
        correct=nothing > 0,
        hit=nothing > 0,
        latency_s=nothing * 0.0,
        tool_tokens=nothing,
        reward=np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 1.0]]),
        outcome=np.full((2, 3), Outcome.SOLVED),
        guessed=np.zeros((2, 3), np.bool_),
        why=np.full((2, 3, 1), "stop"),
        reason=np.full((2, 3), ""),
    )
    mu = np.zeros(shape, np.float32)
    for (q, g, places), now, _, _ in plain(network, played):
        mu[q, g, places] = now.detach().numpy()
    return replace(played, logp=mu), moved(network, 0.2), moved(network, 0.2, seed=2)


def plain(network, played, reference=None):
    """Yield ((q, g, places), log-probs, entropies, KL) of each segment's sampled tokens, logits materialised."""
    found = []
    for q, g in np.ndindex(played.reward.shape):
        for s in range(played.segment[q, g].max() + 1):
            n = np.arange(played.ids.shape[-1]) < played.length[q, g]
            inside = np.flatnonzero((played.segment[q, g] == s) & n)
            ids, where = torch.from_numpy(played.ids[q, g, inside]), torch.from_numpy(played.sampled[q, g, inside])
            now = torch.log_softmax(network(input_ids=ids[None]).logits[0, :-1] / TEMPERATURE, -1)[where[1:]]
            logp = now.gather(1, ids[1:][where[1:]][:, None])[:, 0]
            entropy, kl, there = -(now.exp() * now).sum(-1), torch.zeros(()), torch.zeros(())
            if reference is not None:
                with torch.no_grad():
                    other = torch.log_softmax(reference(input_ids=ids[None]).logits[0, :-1] / TEMPERATURE, -1)
                other = other[where[1:]]
                kl = (now.exp() * (now - other)).sum(-1)
                there = other.gather(1, ids[1:][where[1:]][:, None])[:, 0]
            found.append(((q, g, inside[where.numpy()]), logp, entropy, torch.stack([kl, there])))
    return found


def written_out(network, reference, played):
    """GRPO's surrogate with three penalties, token by token, autograd doing all of it (arXiv 2402.03300, equation 3)."""
    total, episodes = torch.zeros(()), played.reward.size
    for q, g in np.ndindex(played.reward.shape):
        rewards = played.reward[q].tolist()
        A = (rewards[g] - statistics.mean(rewards)) / statistics.stdev(rewards)
        n = int(played.sampled[q, g].sum())
        for (q2, g2, places), now, entropy, (kl, there) in plain(network, played, reference):
            if (q2, g2) == (q, g):
                ratio = torch.exp(now - torch.from_numpy(played.logp[q, g, places]))
                surrogate = torch.minimum(ratio * A, ratio.clamp(0.8, 1.2) * A)
                k3 = torch.exp(there - now) - (there - now) - 1
                total = total + (surrogate - 0.1 * k3 + 0.2 * entropy - 0.3 * kl).sum() / n / episodes
    return -total


@pytest.fixture(scope="module")
def naive(text):
    played, network, reference = text
    network.zero_grad()
    written_out(network, reference, played).backward()
    found = torch.cat([p.grad.flatten() for p in network.parameters()])
    network.zero_grad()
    return found


@pytest.mark.parametrize(
    ("backend", "keep", "bucket_tokens"), [("chunked", 0.0, 5), ("chunked", 1.0, 64), ("triton", 0.0, 64)]
)
def test_every_head_gives_the_gradient_of_the_loss_written_out(backend, keep, bucket_tokens, text, naive):
    played, network, reference = text
    policies = [
        MarkedPolicy(ShardedScorer(LanguagePolicy(ScoringModel(n, backend, keep=keep), TEMPERATURE), Ranks()))
        for n in (network, reference)
    ]
    scorable = Scorable.of(played, bucket_tokens)
    with torch.no_grad():
        flat = torch.from_numpy(scorable.ids.reshape(6, -1))
        there = policies[1].scalars(flat, {"logp"})["logp"].view(2, 3, -1)
    arrived = np.ones((2, 3), np.bool_)
    made = given(played, scorable, played.reward, ALL_AT_ONCE, arrived=arrived, reference=there)
    cut = Minibatch.of(ALL_AT_ONCE, scorable, made, slice(None))
    found, seen = update(policies[0], cut, ALL_AT_ONCE, policies[1])
    assert naive.norm() > 1e-2
    assert relative_gap(found, naive) < 1e-5
    assert seen.coefficients[0].weights.binding.any()
