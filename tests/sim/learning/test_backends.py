"""One rule, two array libraries: numpy and torch give the same coefficients, through autograd the simulator's gradient.

That these are the gradients of the published losses is in ``test_published_losses.py``.
"""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sim.learning.batch_weights import BatchNormalised, SecondMoment
from sim.learning.credit import GroupCredit, LeaveOneOut, LogPartition, NoBaseline
from sim.learning.lookup import Lookup
from sim.learning.normalisers import BatchMean, ConstantLength, MicrobatchMean, SequenceMean, TokenMean
from sim.learning.penalties import (
    EntropyBonus,
    KlPerState,
    KlToGo,
    LikelihoodFloor,
    SampledKl,
    SquaredLogRatio,
)
from sim.learning.rule import Batch, Rule
from sim.learning.shaping import Efficiency, KlInReward, LengthReward, Overlong, Process
from sim.learning.step_credit import RewardToGo, StateGroups, returns_to_go
from sim.learning.tabular import draw, gradient, rule_batch
from sim.learning.weights import Bounded, Product, Region, Unweighted, ppo_clip
from sim.mdp.policy import SoftmaxPolicy
from sim.mdp.sampling import Sampler
from sim.mdp.worlds import PRESETS
from sim.records.rng import BlockStream

torch = pytest.importorskip("torch")

from tests.sim.learning.softmax_table import one_thread  # noqa: E402, F401

CREDITS = [
    GroupCredit(std=False),
    GroupCredit(ddof=1),
    GroupCredit(ddof=0, epsilon=1e-4),
    LeaveOneOut(),
    LeaveOneOut(std=True),
    LogPartition(0.5),
    NoBaseline(),
    RewardToGo(0.9),
    StateGroups(),
]
KAPPA = "proximal/behaviour"
WEIGHTS = [
    Unweighted(),
    ppo_clip(0.2, 0.2),
    ppo_clip(0.2, 0.28, dual=3.0),
    *(
        Bounded("now/behaviour", level, Region(0.7, 1.4))
        for level in ("token", "turn", "sequence", "geometric", "least")
    ),
    Bounded(positive=Region(high=1.2, outside="truncate"), negative=Region(low=0.8)),
    Product(
        (Bounded(KAPPA, positive=Region(0.8, 1.2)), Bounded(KAPPA, "least", Region(0.4), inside="one"), ppo_clip())
    ),
    BatchNormalised(ppo_clip()),
    SecondMoment(0.02),
    SecondMoment(0.02, KAPPA, "all"),
]
NORMALISERS = [
    TokenMean(),
    SequenceMean(),
    ConstantLength(6.0),
    BatchMean(),
    *(MicrobatchMean(n) for n in (1, 2, 4, 12)),
]
PENALTIES = [
    (),
    (EntropyBonus(0.01), KlPerState(0.05)),
    (KlToGo(0.05), LikelihoodFloor()),
    *((SampledKl(0.1, k, c),) for k in ("k1", "k2", "k3") for c in ("none", "detached", "differentiated")),
    *((SquaredLogRatio(0.1, level),) for level in ("token", "sequence")),
]
SHAPING = [(), (LengthReward(), Overlong(5, 3)), (Process(), Efficiency()), (KlInReward(0.1),)]
COMPOSITIONS = [
    Rule(c, w, NORMALISERS[i % len(NORMALISERS)], PENALTIES[i % len(PENALTIES)], SHAPING[i % 3 if i % 5 else 3])
    for i, (c, w) in enumerate(itertools.product(CREDITS, WEIGHTS))
]
"""Every pair of a credit and a weight, with the other parts taken in turn."""


def arrays(seed=0, Q=3, G=4, T=6):
    """A batch and log-probs and KLs now, in numpy: ragged, one rollout excluded, one group of equal rewards."""
    rng = np.random.default_rng(seed)
    mask = np.arange(T) < rng.integers(1, T + 1, (Q, G, 1))
    valid = np.ones((Q, G), bool)
    reward = rng.normal(size=(Q, G))
    reward[1] = 1.0
    valid[2, 1], reward[2, 1] = False, np.nan
    behaviour = np.log(rng.uniform(0.05, 0.95, (Q, G, T)))
    proximal, now, reference = (behaviour + rng.normal(0, sd, (Q, G, T)) for sd in (0.15, 0.25, 0.5))
    batch = Batch(
        reward,
        mask,
        behaviour,
        valid,
        lengths=rng.integers(1, 9, mask.shape).astype(float),
        proximal=proximal,
        reference=reference,
        turn=np.broadcast_to(np.arange(T) // 2, mask.shape),
        state=np.broadcast_to(np.arange(T) // 2 % 2, mask.shape),
        process_reward=rng.normal(size=mask.shape),
        duration_s=rng.lognormal(size=(Q, G)),
    )
    return batch, now, {("kl", "ref"): rng.uniform(0, 1, mask.shape)}


def as_torch(*found):
    return [torch.from_numpy(np.array(x)) for x in found]


def in_torch(batch):
    return replace(batch, **{name: as_torch(x)[0] for name, x in vars(batch).items() if x is not None})


@pytest.mark.parametrize("engines", ["one, on policy", "one", "two"])
@pytest.mark.parametrize("excluded", [True, False])
def test_every_composition_agrees(engines, excluded):
    assert len(COMPOSITIONS) == len(CREDITS) * len(WEIGHTS) == 117
    batch, now, values = arrays()
    if not excluded:
        batch = replace(batch, valid=None, reward=np.where(batch.valid, batch.reward, 0.0))
    if engines != "two":
        batch = replace(batch, proximal=None)
    there = in_torch(batch)
    if engines == "one, on policy":
        now, now_there = batch.behaviour, there.behaviour
    else:
        (now_there,) = as_torch(now)
    values_there = {name: as_torch(x)[0] for name, x in values.items()}
    silent = 0
    for rule in COMPOSITIONS:
        prepared = rule.prepare(batch), rule.prepare(there)
        a = rule.coefficients(prepared[0], now, values)
        b = rule.coefficients(prepared[1], now_there, values_there)
        assert list(a.scalars) == list(b.scalars)
        silent += not np.abs(a.scalars["logp"]).max() > 0
        for name, g in a.scalars.items():
            assert b.scalars[name].dtype == torch.float64
            np.testing.assert_allclose(b.scalars[name].numpy(), g, rtol=1e-12, atol=1e-17)
        np.testing.assert_array_equal(prepared[0].advantage.degenerate, prepared[1].advantage.degenerate.numpy())
        if a.weights.binding is not None:
            for flag in ("binding", "outside"):
                np.testing.assert_array_equal(getattr(b.weights, flag).numpy(), getattr(a.weights, flag))
    assert silent == 0


def test_returns_to_go_agree():
    rng = np.random.default_rng(3)
    reward, mask = rng.normal(size=(4, 9)), rng.random((4, 9)) < 0.6
    t_reward, t_mask = as_torch(reward, mask)
    np.testing.assert_allclose(
        returns_to_go(t_reward, t_mask, 0.9).numpy(), returns_to_go(reward, mask, 0.9), rtol=1e-12
    )


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
