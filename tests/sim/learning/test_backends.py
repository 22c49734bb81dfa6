"""One rule, two array libraries: numpy and torch give the same coefficients, and autograd of the written-out loss agrees."""

import itertools

import numpy as np
import pytest

from sim.learning.credit import GroupCredit
from sim.learning.lookup import Lookup
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import EntropyBonus, KlPerState
from sim.learning.rule import Batch, Rule
from sim.learning.step_credit import returns_to_go
from sim.learning.tabular import draw, gradient, rule_batch
from sim.learning.weights import Unweighted, ppo_clip
from sim.mdp.policy import SoftmaxPolicy
from sim.mdp.sampling import Sampler
from sim.mdp.worlds import PRESETS
from sim.records.rng import BlockStream

torch = pytest.importorskip("torch")

CREDITS = [GroupCredit(std=False), GroupCredit(ddof=1), GroupCredit(ddof=0, epsilon=1e-4)]
WEIGHTS = [Unweighted(), ppo_clip(0.2, 0.2), ppo_clip(0.2, 0.28)]
NORMALISERS = [
    TokenMean(),
    SequenceMean(),
    ConstantLength(6.0),
    BatchMean(),
    *(MicrobatchMean(n) for n in (1, 2, 4, 12)),
]
PENALTIES = [(), (EntropyBonus(0.01),), (KlPerState(0.05),), (EntropyBonus(0.01), KlPerState(0.05))]
COMPOSITIONS = [Rule(c, w, n, p) for c, w, n, p in itertools.product(CREDITS, WEIGHTS, NORMALISERS, PENALTIES)]


def arrays(seed=0, Q=3, G=4, T=6):
    """Reward, mask, behaviour, valid and log-probs now, as numpy: ragged, one rollout excluded, one group degenerate."""
    rng = np.random.default_rng(seed)
    mask = np.arange(T) < rng.integers(1, T + 1, (Q, G, 1))
    valid = np.ones((Q, G), bool)
    reward = rng.normal(size=(Q, G))
    reward[1] = 1.0
    valid[2, 1], reward[2, 1] = False, np.nan
    behaviour = np.log(rng.uniform(0.05, 0.95, (Q, G, T)))
    return reward, mask, behaviour, valid, behaviour + rng.normal(0, 0.25, (Q, G, T))


def as_torch(*found):
    return [torch.from_numpy(np.array(x)) for x in found]


@pytest.mark.parametrize("on_policy", [True, False])
def test_every_composition_agrees(on_policy):
    assert len(COMPOSITIONS) == 288
    reward, mask, behaviour, valid, logp = arrays()
    lengths = np.random.default_rng(2).integers(1, 9, mask.shape).astype(float)
    t_reward, t_mask, t_behaviour, t_valid, t_logp, t_lengths = as_torch(reward, mask, behaviour, valid, logp, lengths)
    here = Batch(reward, mask, behaviour, valid, lengths)
    there = Batch(t_reward, t_mask, t_behaviour, t_valid, t_lengths)
    for rule in COMPOSITIONS:
        prepared = rule.prepare(here), rule.prepare(there)
        a = rule.coefficients(prepared[0], behaviour if on_policy else logp)
        b = rule.coefficients(prepared[1], t_behaviour if on_policy else t_logp)
        assert list(a.scalars) == list(b.scalars)
        for name, g in a.scalars.items():
            assert b.scalars[name].dtype == torch.float64
            assert np.abs(g).max() > 0
            np.testing.assert_allclose(b.scalars[name].numpy(), g, rtol=1e-12, atol=1e-18)
        np.testing.assert_array_equal(prepared[0].advantage.degenerate, prepared[1].advantage.degenerate.numpy())
        if a.weights.binding is not None:
            for flag in ("binding", "outside"):
                np.testing.assert_array_equal(getattr(b.weights, flag).numpy(), getattr(a.weights, flag))


def test_without_exclusions_too():
    reward, mask, behaviour, valid, logp = arrays()
    reward = np.where(valid, reward, 0.0)
    there = as_torch(reward, mask, behaviour, logp)
    for rule in COMPOSITIONS[::7]:
        a = rule.coefficients(rule.prepare(Batch(reward, mask, behaviour)), logp)
        b = rule.coefficients(rule.prepare(Batch(*there[:3])), there[3])
        for name, g in a.scalars.items():
            np.testing.assert_allclose(b.scalars[name].numpy(), g, rtol=1e-12, atol=1e-18)


def test_returns_to_go_agree():
    rng = np.random.default_rng(3)
    reward, mask = rng.normal(size=(4, 9)), rng.random((4, 9)) < 0.6
    t_reward, t_mask = as_torch(reward, mask)
    np.testing.assert_allclose(
        returns_to_go(t_reward, t_mask, 0.9).numpy(), returns_to_go(reward, mask, 0.9), rtol=1e-12
    )


# --- published losses, written out in torch and differentiated --------------------------------------------------------


def token_losses(logp, behaviour, A, low, high):
    """PPO's clipped surrogate per token, to be minimised (arXiv 1707.06347, equation 7)."""
    ratio = torch.exp(logp - behaviour)
    return -torch.minimum(ratio * A, torch.clamp(ratio, 1 - low, 1 + high) * A)


def grpo(reward, logp, behaviour, mask):
    """GRPO (arXiv 2402.03300, equation 3, without its KL): each rollout's own mean, then the mean over rollouts."""
    A = ((reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True))[..., None]
    loss = token_losses(logp, behaviour, A, 0.2, 0.2) * mask
    return (loss.sum(-1) / mask.sum(-1)).mean()


def dapo(reward, logp, behaviour, mask):
    """DAPO (arXiv 2503.14476, equation 8): unequal bounds, one mean over all tokens."""
    A = ((reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True))[..., None]
    return (token_losses(logp, behaviour, A, 0.2, 0.28) * mask).sum() / mask.sum()


def dr_grpo(reward, logp, behaviour, mask):
    """Dr. GRPO (arXiv 2503.20783): no std, and one constant length for all."""
    A = (reward - reward.mean(1, keepdim=True))[..., None]
    return (token_losses(logp, behaviour, A, 0.2, 0.2) * mask).sum() / (reward.numel() * 6.0)


def stock(reward, logp, behaviour, mask):
    """GRPO as stock verl executes it: the mean over micro-batches of two rollouts of each one's token mean."""
    A = ((reward - reward.mean(1, keepdim=True)) / reward.std(1, keepdim=True))[..., None]
    loss = (token_losses(logp, behaviour, A, 0.2, 0.2) * mask).flatten(0, 1)
    parts = [part.sum() / m.sum() for part, m in zip(loss.split(2), mask.flatten(0, 1).split(2), strict=True)]
    return sum(parts) / len(parts)


@pytest.mark.parametrize(
    ("loss", "rule"),
    [
        (grpo, Rule(GroupCredit(), ppo_clip(), SequenceMean())),
        (dapo, Rule(GroupCredit(), ppo_clip(0.2, 0.28), TokenMean())),
        (dr_grpo, Rule(GroupCredit(std=False), ppo_clip(), ConstantLength(6.0))),
        (stock, Rule(GroupCredit(), ppo_clip(), MicrobatchMean(2))),
    ],
)
def test_coefficients_are_minus_the_gradient_of_the_loss(loss, rule):
    reward, mask, behaviour, _, logp = arrays()
    reward = np.random.default_rng(8).normal(size=reward.shape)
    t_reward, t_mask, t_behaviour, t_logp = as_torch(reward, mask, behaviour, logp)
    leaf = t_logp.clone().requires_grad_()
    loss(t_reward, leaf, t_behaviour, t_mask).backward()
    found = rule.coefficients(rule.prepare(Batch(t_reward, t_mask, t_behaviour)), t_logp)
    assert found.weights.binding[t_mask].any()  # some tokens are clipped
    np.testing.assert_allclose(found.scalars["logp"].numpy(), -leaf.grad.numpy(), rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("off_policy", [False, True])
def test_autograd_gives_the_simulators_gradient(off_policy):
    """minus (coefficient x scalar) differentiated through a softmax table: what the other rungs do with our coefficients."""
    graph = PRESETS["read-more"]().graph().compiled()
    D = len(graph.free_names)
    policy = SoftmaxPolicy(graph, np.zeros(D), np.eye(D))
    rng = np.random.default_rng(4)
    z, z_ref = rng.normal(0, 1, (1, D)), rng.normal(0, 1, (1, D))
    z_now = z + rng.normal(0, 0.3, z.shape) if off_policy else z
    behaviour, now, reference = policy.tables(z), policy.tables(z_now), policy.tables(z_ref)
    streams = BlockStream((0,), "backends/question"), BlockStream((0,), "backends/turn")
    sampler = Sampler(graph)
    sample = draw(sampler, behaviour, streams, step=0, prompts=8, group=4)
    lookup = Lookup.of(sample, sampler.decisions)
    batch = rule_batch(sampler, sample, lookup, behaviour, "turn")

    leaf = torch.from_numpy(z_now[0].copy()).requires_grad_()
    logits = torch.full(graph.offered.shape, -torch.inf, dtype=torch.float64)
    logits[np.arange(len(graph.contexts)), graph.reference] = 0.0
    log_p = torch.log_softmax(logits.index_put(tuple(as_torch(graph.free_context, graph.free_action)), leaf), -1)
    # [K, N] of contexts and actions, as [1, Q, G, K]; episodes that are over point at context 0 and are masked
    action = sampler.actions(sample)[:, 0]
    context = np.maximum(graph.context[sampler.nodes(sample)[:-1, 0]], 0)
    context, action = (x.reshape(-1, 1, 4, 8).transpose(1, 3, 2, 0) for x in (context, action))
    offered = torch.from_numpy(graph.offered)
    safe = torch.where(offered, log_p, 0.0)
    p, (log_ref,) = torch.where(offered, log_p.exp(), 0.0), as_torch(reference.log_probability[0])
    scalars = {
        "logp": log_p[context, action],
        "entropy": -(p * safe).sum(-1)[context],
        ("kl", "ref"): (p * (safe - log_ref)).sum(-1)[context],
    }
    rule = Rule(GroupCredit(), ppo_clip(), SequenceMean(), (EntropyBonus(0.1), KlPerState(0.3)))
    t_batch = Batch(*as_torch(batch.reward, batch.mask, batch.behaviour))
    c = rule.coefficients(rule.prepare(t_batch), scalars["logp"].detach())
    assert set(c.scalars) == set(scalars)
    loss = -sum((value * torch.where(t_batch.mask, scalars[name], 0.0)).sum() for name, value in c.scalars.items())
    loss.backward()

    mine = rule.coefficients(rule.prepare(batch), np.where(batch.mask, scalars["logp"].detach().numpy(), 0.0))
    got = gradient(policy, now, reference, lookup, mine)[0]
    assert np.abs(got).max() > 0.01
    np.testing.assert_allclose(got, -leaf.grad.numpy(), rtol=1e-12, atol=1e-16)
