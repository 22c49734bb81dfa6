"""The family as a whole: every rule can be written down and read again, refuses what it cannot use, and says its source."""

import inspect

import numpy as np
import pytest

from sim.learning import family
from sim.learning.batch import Batch
from sim.records.config import from_dict, to_dict

RULES = [getattr(family, name) for name in family.__all__]


@pytest.mark.parametrize("make", RULES, ids=family.__all__)
def test_a_rule_is_a_config(make):
    rule = make()
    assert from_dict(to_dict(rule)) == rule
    assert hash(rule) == hash(make())


@pytest.mark.parametrize("make", RULES, ids=family.__all__)
def test_a_rule_takes_no_more_than_a_screen(make):
    assert len(inspect.getsource(make).splitlines()) <= 20


@pytest.mark.parametrize("make", RULES, ids=family.__all__)
def test_what_a_rule_reads_it_asks_for_by_name(make):
    rule, logp = make(), np.zeros((1, 2, 3))
    bare = Batch(np.array([[0.0, 1.0]]), np.ones(logp.shape, bool), logp)
    if rule.reads - {"kl"}:
        with pytest.raises(ValueError, match=rf"this rule reads '({'|'.join(rule.reads)})'.*; supply Batch\("):
            rule.prepare(bare)
    else:
        assert np.abs(rule.coefficients(rule.prepare(bare), logp).scalars["logp"]).max() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: family.kimi_k25(low=0.1), "low = 0.1 and high = 0.5 are bounds on log rho and must enclose 0"),
        (lambda: family.icepop(beta=1.0), "beta = 1.0 must be above 1"),
        (lambda: family.grpo(low=1.5), "low = 1.5 must lie in"),
        (lambda: family.tis(cap=-1.0), "a region from 0.0 to -1.0 is empty"),
        (lambda: family.kimi_k15_tilt(tau=0.0), "tau = 0.0 must be positive"),
    ],
)
def test_settings_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_topr_is_its_published_loss():
    """-sg(w) A log pi(y), w = 1 for A > 0 and the sequence's ratio, at most 1, else (arXiv 2503.14286)."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    mask = torch.from_numpy(np.arange(5) < rng.integers(1, 6, (3, 4, 1)))
    behaviour = torch.from_numpy(np.log(rng.uniform(0.1, 0.9, (3, 4, 5))))
    logp = (behaviour + torch.from_numpy(rng.normal(0, 0.4, (3, 4, 5)))).requires_grad_()
    reward = torch.from_numpy(rng.normal(size=(3, 4)))
    A = reward - reward.mean(1, keepdim=True)
    log_pi = (logp * mask).sum(-1)
    w = torch.where(A > 0, 1.0, torch.exp(log_pi - (behaviour * mask).sum(-1)).clamp(max=1.0)).detach()
    assert 0.1 < w.min() < 0.9
    (-(w * A * log_pi).sum() / 12).backward()
    rule = family.topr()
    found = rule.coefficients(rule.prepare(Batch(reward, mask, behaviour)), logp.detach()).scalars["logp"]
    np.testing.assert_allclose(found.numpy(), -logp.grad.numpy(), rtol=1e-12, atol=1e-18)
