"""Coefficients through autograd against losses written out in plain torch, on one batch of the tiny transformer.

The losses here go episode by episode over the padded batch, take every log-probability from one forward of the bare network,
and leave clips, minima and ratios to autograd. Nothing in them comes from the update rule.
"""

import statistics

import numpy as np
import pytest
import torch

from minimodel.agent.learner import Minibatch, backward, rule_batch, score
from sim.learning import family
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState, SampledKl
from sim.learning.rule import Rule
from sim.learning.weights import ppo_clip
from tests.minimodel.agent.small import TASK, clear, gradient, moved, play, policy_of, relative_gap

LAYOUT = TASK.layout


class Episode:
    """One episode's sampled tokens: log-probs now, as sampled and of the reference; whole distributions now and there."""

    def __init__(self, where, logp, mu, ref, ids):
        self.now_all, self.ref_all = logp[where[1:]], ref[where[1:]]  # [n, V]; entry i predicts token i + 1
        chosen = ids[1:][where[1:]]
        self.now = self.now_all.gather(1, chosen[:, None])[:, 0]
        self.ref = self.ref_all.gather(1, chosen[:, None])[:, 0]
        self.mu = mu[where]

    @property
    def ratio(self):
        return torch.exp(self.now - self.mu)


def groups(policy, reference, batch):
    """Episodes, each with its advantage relative to its question's others."""
    Q, G, T = batch.ids.shape
    ids = torch.from_numpy(batch.ids)
    logp = torch.log_softmax(policy.model(ids.reshape(Q * G, T))[:, :-1] / policy.temperature, -1).unflatten(0, (Q, G))
    with torch.no_grad():
        ref = torch.log_softmax(reference.model(ids.reshape(Q * G, T))[:, :-1] / reference.temperature, -1)
        ref = ref.unflatten(0, (Q, G))
    for q in range(Q):
        rewards = batch.reward[q].tolist()
        spread = statistics.stdev(rewards)
        for g, reward in enumerate(rewards):
            A = (reward - sum(rewards) / len(rewards)) / spread if spread else 0.0
            where, mu = torch.from_numpy(batch.sampled[q, g]), torch.from_numpy(batch.logp[q, g])
            yield Episode(where, logp[q, g], mu, ref[q, g], ids[q, g]), A


def clipped(o, A, low=0.2, high=0.2):
    """PPO's surrogate (arXiv 1707.06347, equation 7)."""
    return torch.minimum(o.ratio * A, o.ratio.clamp(1 - low, 1 + high) * A)


def k3(o):
    return torch.exp(o.ref - o.now) - (o.ref - o.now) - 1


def entropy(o):
    return -(o.now_all.exp() * o.now_all).sum(-1)


def exact_kl(o):
    return (o.now_all.exp() * (o.now_all - o.ref_all)).sum(-1)


def sequence_mean(terms):
    terms = [t.mean() for t in terms]
    return -sum(terms) / len(terms)


def token_mean(terms):
    terms = list(terms)
    return -sum(t.sum() for t in terms) / sum(len(t) for t in terms)


CLIP = ppo_clip()
LOSSES = {
    "grpo": (family.grpo(kl=0.0), lambda all_: sequence_mean(clipped(o, A) for o, A in all_)),
    "cispo": (
        family.cispo(high=0.3),
        lambda all_: token_mean(o.ratio.clamp(max=1.3).detach() * A * o.now for o, A in all_),
    ),
    "dapo": (family.dapo(overlong=None), lambda all_: token_mean(clipped(o, A, 0.2, 0.28) for o, A in all_)),
    "sampled KL": (family.grpo(kl=0.3), lambda all_: sequence_mean(clipped(o, A) - 0.3 * k3(o) for o, A in all_)),
    "sampled KL, k2": (
        Rule(GroupCredit(), CLIP, SequenceMean(), (SampledKl(0.3, "k2"),)),
        lambda all_: sequence_mean(clipped(o, A) - 0.3 * (o.now - o.ref) ** 2 / 2 for o, A in all_),
    ),
    "entropy bonus": (
        Rule(GroupCredit(), CLIP, TokenMean(), (EntropyBonus(0.3),)),
        lambda all_: token_mean(clipped(o, A) + 0.3 * entropy(o) for o, A in all_),
    ),
    "exact KL": (
        Rule(GroupCredit(), CLIP, SequenceMean(), (KlPerState(0.3),)),
        lambda all_: sequence_mean(clipped(o, A) - 0.3 * exact_kl(o) for o, A in all_),
    ),
    "all at once": (
        Rule(GroupCredit(), CLIP, SequenceMean(), (SampledKl(0.1), EntropyBonus(0.2), KlPerState(0.3))),
        lambda all_: sequence_mean(clipped(o, A) - 0.1 * k3(o) + 0.2 * entropy(o) - 0.3 * exact_kl(o) for o, A in all_),
    ),
    "gspo": (
        family.gspo(0.05, 0.05),
        lambda all_: sequence_mean(
            torch.minimum(s * A, s.clamp(0.95, 1.05) * A) for o, A in all_ for s in [torch.exp((o.now - o.mu).mean())]
        ),
    ),
}


@pytest.fixture(scope="module")
def case():
    """One batch, a learner that has moved on, a reference; clips bind in both directions."""
    policy = policy_of(temperature=0.8)
    return play(policy, step=1, questions=10), moved(policy, 0.15), moved(policy, 0.1, seed=2)


@pytest.fixture(scope="module")
def written_out(case):
    """The gradient of each loss."""
    batch, policy, reference = case
    found = {}
    for name, (_, loss) in LOSSES.items():
        clear(policy)
        loss(list(groups(policy, reference, batch))).backward()
        found[name] = gradient(policy.parameters())
    return found


@pytest.mark.parametrize("name", LOSSES)
def test_coefficients_give_the_gradient_of_the_loss(name, case, written_out):
    batch, policy, reference = case
    rule, expected = LOSSES[name][0], written_out[name]
    more = {}
    if "reference" in rule.reads:
        ids, taken = torch.from_numpy(batch.ids), torch.from_numpy(batch.taken)
        with torch.no_grad():
            scored = score(reference, LAYOUT, ids, taken, frozenset({"logp"}))
        more["reference"] = scored.whole("logp", torch.zeros(ids.shape))
    clear(policy)
    minibatch = Minibatch.of(rule, batch, rule_batch(batch, batch.reward, rule, LAYOUT, **more), slice(0, 10))
    seen = backward(policy, LAYOUT, rule, minibatch, reference)
    assert expected.norm() > 1e-2
    assert relative_gap(gradient(policy.parameters()), expected) < 1e-6
    if seen.coefficients[0].weights.binding is not None:
        binding = seen.coefficients[0].weights.binding.expand(batch.ids.shape)[torch.from_numpy(batch.sampled)]
        assert 0 < binding.double().mean() < 0.5


def test_the_losses_differ(written_out):
    """A guard: no two of them have one gradient on this batch."""
    gaps = np.array([[relative_gap(a, b) for a in written_out.values()] for b in written_out.values()])
    assert gaps[~np.eye(len(gaps), dtype=bool)].min() > 1e-2
