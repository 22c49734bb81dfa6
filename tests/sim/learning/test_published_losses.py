"""Every member of the family against the loss its paper prints, differentiated by autograd.

The losses are written out in ``published_losses.py`` and ``published_corrections.py``, from the formulas. A rule's
coefficients must be minus the gradient of the loss with respect to the log-probs of the sampled tokens, and, put on the
scalars of a softmax table, its gradient with respect to the logits: off policy, on policy, and after a step.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from sim.learning import family
from sim.learning.penalties import EntropyBonus, KlPerState
from sim.learning.rule import Rule
from sim.learning.shaping import Overlong
from tests.sim.learning.softmax_table import (  # noqa: F401
    as_float32,
    as_numpy,
    gradient,
    groups,
    make,
    one_thread,
    surrogate,
)

torch = pytest.importorskip("torch")

from tests.sim.learning import published_corrections, published_losses  # noqa: E402  after the check for torch

printed = SimpleNamespace(**vars(published_losses) | vars(published_corrections))

VARIANTS = {name: (getattr(family, name)(), getattr(printed, name, None)) for name in family.__all__} | {
    "grpo, its paper's KL": (family.grpo(kl=0.04), partial(printed.grpo, beta=0.04)),
    "dapo, short limit": (family.dapo(overlong=Overlong(5, 3)), partial(printed.dapo, limit=5, buffer=3)),
    "gspo, wide": (family.gspo(0.2, 0.25), partial(printed.gspo, low=0.2, high=0.25)),
    "cispo, narrow": (family.cispo(0.28), partial(printed.cispo, high=0.28)),
    "search_r1, micro-batches of 3": (
        family.search_r1(3, kl=0.1, entropy=0.2),
        partial(printed.search_r1, size=3, beta=0.1, bonus=0.2),
    ),
    "decoupled_ppo, capped": (family.decoupled_ppo(cap=1.2), partial(printed.decoupled_ppo, cap=1.2)),
    "mis, sequence": (family.mis(level="sequence"), partial(printed.mis, level="sequence")),
    "mis, geometric": (family.mis(level="geometric"), partial(printed.mis, level="geometric")),
    "mis, vetoed": (family.mis(veto=0.55), partial(printed.mis, veto=0.55)),
    "m2po, tight": (family.m2po(0.01), partial(printed.m2po, threshold=0.01)),
    "llds, strong": (
        family.llds(2.0, kl=0.1, entropy=0.2),
        partial(printed.llds, strength=2.0, beta=0.1, bonus=0.2),
    ),
    "opsm, lenient": (family.opsm(delta=0.15), partial(printed.opsm, delta=0.15)),
    "kimi_k15_tilt, warm": (family.kimi_k15_tilt(1.0), partial(printed.kimi_k15_tilt, tau=1.0)),
    "kimi_k25, narrow": (
        family.kimi_k25(-0.2, 0.3, tau=0.5),
        partial(printed.kimi_k25, low=-0.2, high=0.3, tau=0.5),
    ),
}
UNBOUNDED = {
    "reinforce",
    "reinforce_running",
    "rloo",
    "remax",
    "kimi_k15",
    "kimi_k15_tilt",
    "kimi_k2",
    "kimi_k15_tilt, warm",
}

every_rule = pytest.mark.parametrize("name", VARIANTS)


def off_policy(case, seed=1, spread=0.45):
    """Logits of a policy that is neither the sampler's nor the learner's of before."""
    return case.old + torch.from_numpy(np.random.default_rng(seed).normal(0, spread, case.old.shape))


def loss(published, case, theta):
    """The published loss as a function of the logits."""
    now = case.scalars(theta)
    return published(groups(case, now["logp"], now["entropy"]), case)


def test_the_whole_family_is_here():
    assert set(family.__all__) <= set(VARIANTS)
    missing = [name for name, (_, loss) in VARIANTS.items() if loss is None]
    assert missing == [], "write the published loss under the rule's name in published_losses.py"
    assert len(family.__all__) >= 25


@every_rule
@pytest.mark.parametrize("seed", [0, 3])
def test_coefficients_are_minus_the_slope_in_the_log_probs(name, seed):
    rule, published = VARIANTS[name]
    case = make(seed)
    theta = off_policy(case)
    logp, entropy = case.logp(theta).requires_grad_(), case.scalars(theta)["entropy"].requires_grad_()
    published(groups(case, logp, entropy), case).backward()
    found = rule.coefficients(rule.prepare(case.batch), logp.detach())
    slopes = {"logp": logp.grad, "entropy": entropy.grad}
    assert set(found.scalars) == {scalar for scalar, slope in slopes.items() if slope is not None}
    for scalar, c in found.scalars.items():
        assert c.abs().max() > 1e-5
        np.testing.assert_allclose(c.numpy(), -slopes[scalar].numpy(), rtol=1e-12, atol=1e-16)
    usable = case.batch.mask & case.batch.valid[..., None]
    assert not found.scalars["logp"][~usable].any()
    if name not in UNBOUNDED:
        unclamped = torch.broadcast_to(found.weights.unclamped, usable.shape)
        value = torch.broadcast_to(found.weights.value, usable.shape)
        assert (found.weights.binding & usable).any() == (unclamped != value)[usable].any()


def test_most_bounds_bind_somewhere():
    """The comparison above would be idle if no ratio ever left its region."""
    case = make(0)
    usable = case.batch.mask & case.batch.valid[..., None]
    free = []
    for name, (rule, _) in VARIANTS.items():
        w = rule.coefficients(rule.prepare(case.batch), case.logp(off_policy(case))).weights
        if w.binding is None or not (w.binding & usable).any():
            free.append(name)
    assert set(free) == UNBOUNDED | {"cispo", "minimax_forge"}  # a ratio above 5 would be needed


@every_rule
def test_the_gradient_in_the_logits_and_after_an_inner_update(name):
    rule, published = VARIANTS[name]
    case = make(2, Q=3, T=6)
    prepared = rule.prepare(case.batch)
    theta = case.old.clone()
    sizes = []
    for _ in ("on policy", "after an update"):
        theta = theta.detach().requires_grad_()
        scalars = case.scalars(theta)
        coefficients = rule.coefficients(prepared, scalars["logp"].detach()).scalars
        ours, theirs = gradient(surrogate(coefficients, scalars), theta), gradient(loss(published, case, theta), theta)
        sizes.append(float(theirs.abs().max()))
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-11, atol=1e-14 * max(1.0, sizes[-1]))
        moved = (scalars["logp"].detach() - case.batch.proximal)[case.batch.mask]
        theta = theta - 0.4 * theirs / theirs.abs().max()
    assert sizes[0] > 1e-3
    assert sizes[1] > 1e-3 or name == "gspo"  # with bounds of 3e-4 one step clips every sequence
    assert moved.abs().max() > 0.2


@every_rule
def test_one_engine_is_the_case_of_equal_log_probs(name):
    """Where two policies are one array, ratios are skipped; the result is as if they had been computed."""
    rule, _ = VARIANTS[name]
    case = make(0)
    b = case.batch
    logp = case.logp(off_policy(case))
    for now, one, two in [
        (logp, replace(b, proximal=None), replace(b, proximal=b.behaviour.clone())),
        (b.behaviour, replace(b, proximal=None), replace(b, proximal=b.behaviour.clone())),
    ]:
        short = rule.coefficients(rule.prepare(one), now).scalars
        long = rule.coefficients(rule.prepare(two), now.clone()).scalars
        for scalar, c in short.items():
            assert c.abs().max() > 0
            np.testing.assert_allclose(c.numpy(), long[scalar].numpy(), rtol=1e-12, atol=1e-16)


@every_rule
def test_numpy_and_torch_agree(name):
    rule, _ = VARIANTS[name]
    case = make(0)
    logp = case.logp(off_policy(case))
    here = rule.coefficients(rule.prepare(as_numpy(case.batch)), logp.numpy())
    there = rule.coefficients(rule.prepare(case.batch), logp)
    single = rule.coefficients(rule.prepare(as_float32(case.batch)), logp.float())
    assert list(here.scalars) == list(there.scalars)
    for scalar, c in here.scalars.items():
        assert there.scalars[scalar].dtype == torch.float64
        assert single.scalars[scalar].dtype == torch.float32
        assert np.abs(c).max() > 1e-5
        np.testing.assert_allclose(there.scalars[scalar].numpy(), c, rtol=1e-12, atol=1e-16)
        np.testing.assert_allclose(single.scalars[scalar].numpy(), c, rtol=1e-5, atol=1e-5 * np.abs(c).max())
    for flag in ("binding", "outside"):
        if getattr(here.weights, flag) is not None:
            np.testing.assert_array_equal(getattr(there.weights, flag).numpy(), getattr(here.weights, flag))


def test_exact_scalars_in_the_logits():
    """Entropy and exact KL are differentiated through the table, at every usable token."""
    case = make(4)
    theta = off_policy(case).requires_grad_()
    rule = Rule(penalties=(EntropyBonus(0.3), KlPerState(0.7)))
    now = case.scalars(theta)
    coefficients = rule.coefficients(rule.prepare(case.batch), now["logp"].detach()).scalars
    ours = gradient(surrogate(coefficients, now), theta)

    log_p = torch.log_softmax(theta, -1)
    log_ref = torch.log_softmax(case.reference, -1)
    usable = case.batch.mask & case.batch.valid[..., None]
    rows = [c for c, used in zip(case.context.flatten(), usable.flatten(), strict=True) if used]
    terms = [(log_p[c].exp() * (-0.3 * log_p[c] - 0.7 * (log_p[c] - log_ref[c]))).sum() for c in rows]
    policy = printed.rollout_mean(
        printed.clipped(printed.ratio(o), A).sum() for o, A in printed.each(groups(case, case.logp(theta)))
    )
    theirs = gradient(policy - sum(terms) / 15, theta)  # 15 usable rollouts
    assert theirs.abs().max() > 0.1
    np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-11, atol=1e-14)
