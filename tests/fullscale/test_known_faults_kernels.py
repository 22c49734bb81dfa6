"""Known faults of log-probs and what is made of them, through the head's kernels, each with its mutations.

The same faults in the update rule are in ``tests/test_known_faults.py``. Here the log-prob is the learner's, from hidden
states, and stands against the sampler's, from logits (`sim.learning.logprobs`).
"""

import math

import numpy as np
import pytest
import torch

from fullscale.kernels import Coefficients, Head, head_loss, linear_logprob, scatter
from sim.learning.logprobs import next_token_log_probability, token_log_probability, top_k
from tests.fullscale.kernels.small import unwritten_is_nan
from tests.fullscale.known_fault_mutations_kernels import MUTATIONS
from tests.mutations import fails_under

RAMP = [2.0, 1.0, 0.0]
SOFT = {"strict": False}  # a vocabulary of three columns: what counts here are values and not bits


def head_of(logits, dtype=torch.float64):
    """A head whose logits are these, [n, V]: hidden states are the rows of the identity."""
    z = torch.as_tensor(logits, dtype=dtype)
    return Head(torch.eye(len(z), dtype=dtype).requires_grad_(), z.T.contiguous().requires_grad_())


def learner(logits, token, **options):
    head = head_of(logits)
    return linear_logprob(head.hidden.detach(), head.weight.detach(), torch.as_tensor(token), **SOFT | options)


def sampler(logits, token, **options):
    return token_log_probability(np.asarray(logits, float), np.asarray(token), **options)


# --- two sides of a ratio ---------------------------------------------------------------------------------------------


def test_f9_one_temperature_on_both_sides():
    found = learner([RAMP, RAMP], [0, 0], temperature=torch.tensor([0.6, 1.0], dtype=torch.float64)).logp.tolist()
    assert found == pytest.approx([-0.2026, -0.4076], abs=5e-5)
    behaviour = [float(sampler([RAMP], [0], temperature=T)[0]) for T in (0.6, 1.0)]
    assert np.exp(np.array(found) - behaviour) == pytest.approx(1, abs=1e-12)
    assert float(learner([RAMP], [0], temperature=0.6).logp) == pytest.approx(behaviour[0], abs=1e-12)


def test_f9_the_gradient_is_at_that_temperature():
    """d log p_0 / d logits = (1 - p_0, -p_1, -p_2) / T."""
    p = torch.tensor(RAMP, dtype=torch.float64).div(0.6).softmax(0)
    by_hand = (torch.eye(3, dtype=torch.float64)[0] - p) / 0.6
    head = head_of([RAMP])
    linear_logprob(head.hidden, head.weight, torch.tensor([0]), temperature=0.6, **SOFT).logp.sum().backward()
    assert head.weight.grad[:, 0].tolist() == pytest.approx(by_hand.tolist(), abs=1e-12)
    again = head_of([RAMP])
    one = head_loss(
        again.hidden,
        again.weight,
        torch.tensor([0]),
        lambda s: Coefficients(torch.ones_like(s.logp)),
        temperature=0.6,
        **SOFT,
    )
    one.loss.backward()
    assert again.weight.grad[:, 0].tolist() == pytest.approx(by_hand.tolist(), abs=1e-12)


def test_f10_one_support_on_both_sides():
    """The kernel's support is the vocabulary; a sampler that keeps two of three tokens is off by the mass it kept."""
    found = float(learner([RAMP], [0]).logp)
    assert found == pytest.approx(float(sampler([RAMP], [0])[0]), abs=1e-12)
    kept = float(sampler([RAMP], [0], support=top_k(np.array([RAMP]), 2))[0])
    assert math.exp(found - kept) == pytest.approx(0.90997, abs=5e-6)


def test_f10_the_support_is_the_whole_of_a_large_vocabulary_and_no_more():
    """5,003 columns are cut into strips that tiles do not fill; far below 0, a logit of 0 from beyond would be seen."""
    z = np.random.default_rng(0).normal(-6, 1, (4, 5003))
    for token in (0, 625, 2501, 5002):
        found = learner(z, [token] * 4).logp.numpy()
        assert found == pytest.approx(sampler(z, [token] * 4), abs=1e-11)


def test_f11_a_position_scores_its_own_target():
    """Nothing is shifted inside: hidden states at i with the token at i + 1, as the caller lays them."""
    rng = np.random.default_rng(0)
    states, weight = rng.normal(size=(20, 8)), rng.normal(size=(11, 8)) * 2
    first, second = rng.integers(11, size=12), rng.integers(11, size=8)
    token = np.concatenate([first, second])
    start = np.isin(np.arange(20), [0, 12])
    behaviour = next_token_log_probability(states @ weight.T, token, start)
    rows = torch.tensor([i for i in reversed(range(19)) if not start[i + 1]])  # positions that predict; in any order
    h, w = (torch.tensor(x, dtype=torch.float32) for x in (states, weight))

    def log_ratio(targets):
        found = linear_logprob(h, w, torch.tensor(targets), rows=rows, **SOFT).logp
        return scatter(found, rows + 1, 20).numpy() - behaviour

    assert np.abs(behaviour[~start]).mean() > 1
    assert np.abs(log_ratio(np.roll(token, -1))).max() < 1e-5
    assert np.abs(log_ratio(token)).max() > 0.1  # rolled by one it would be seen


# --- masks ------------------------------------------------------------------------------------------------------------


def test_f12_a_masked_ratio_that_overflows_leaves_no_nan():
    """New log-probs against old ones 0 and 200 below: exp(200) is no single-precision number."""
    head = head_of([[0.0, 0.0], [3.0, 0.0]], torch.float32)
    rows, size = torch.tensor([0]), 2
    old = torch.tensor([math.log(0.5), math.log(0.5) - 200])
    out = linear_logprob(head.hidden, head.weight, torch.tensor([0, -100]), rows=rows, **SOFT)
    out.logp.retain_grad()
    (out.logp - old[rows]).exp().sum().backward()
    assert scatter(out.logp.grad, rows, size).tolist() == [1, 0]
    assert head.weight.grad.tolist() == [[0.5, 0], [-0.5, 0]]
    assert head.hidden.grad.tolist() == [[0, 1.5], [0, 0]]


def test_f12_what_masked_rows_hold_is_multiplied_by_nothing():
    z = torch.tensor([RAMP, RAMP, RAMP, RAMP])
    rows, weight = torch.tensor([2, 0]), z.T.contiguous()
    clean = torch.eye(4)
    spoilt, T = clean.clone(), torch.ones(4)
    spoilt[1], spoilt[3], T[1], T[3] = torch.nan, torch.inf, 0.0, torch.nan
    targets = torch.tensor([0, -100, 1, 10**9])

    def gradients(x, temperature, targets):
        h, w = x.clone().requires_grad_(), weight.clone().requires_grad_()
        options = {"temperature": temperature, "rows": rows, "need_entropy": True} | SOFT
        head_loss(h, w, targets, lambda s: Coefficients(torch.ones(2), torch.ones(2)), **options).loss.backward()
        out = linear_logprob(h, w, targets, **options)
        (out.logp + out.entropy).sum().backward()
        return h.grad, w.grad

    found = gradients(spoilt, T, targets)
    alone = gradients(clean, torch.ones(4), targets.clamp(0, 2))
    assert torch.equal(found[0], alone[0])
    assert torch.equal(found[1], alone[1])
    assert not found[0][[1, 3]].any()
    assert alone[0][[0, 2]].abs().sum(1).min() > 1e-3


def test_f12_a_row_without_coefficient_is_multiplied_by_nothing():
    """A ratio that was clipped: its hidden states may have overflowed, and 0 * nan is nan."""
    x = torch.eye(2)
    x[1] = torch.inf
    h, w = x.requires_grad_(), torch.tensor([RAMP, RAMP]).T.contiguous().requires_grad_()
    coefficient = torch.tensor([1.0, 0.0])
    out = linear_logprob(h, w, torch.tensor([0, 0]), need_entropy=True, **SOFT)
    torch.autograd.backward((out.logp, out.entropy), (coefficient, coefficient))
    assert h.grad[1].tolist() == [0, 0]
    assert w.grad.isfinite().all()
    assert w.grad[:, 0].abs().min() > 0.01


def test_f16_a_fully_masked_batch_has_no_loss_and_no_gradient():
    nobody = torch.zeros(0, dtype=torch.int64)

    def mean(s):
        assert len(s.logp) > 0, "the mean of nothing is asked for"
        return Coefficients(torch.full_like(s.logp, 1 / len(s.logp)))

    with unwritten_is_nan():
        for backend in ("chunked", "reference"):
            head = head_of([RAMP, RAMP], torch.float32)
            given = {"rows": nobody, "need_entropy": True, "backend": backend} | SOFT
            out = linear_logprob(head.hidden, head.weight, torch.tensor([0, 1]), **given)
            assert out.logp.shape == out.entropy.shape == out.lse.shape == (0,)
            loss = -out.logp.sum() + out.entropy.sum()
            loss.backward()
            assert float(loss.detach()) == 0
            assert not head.hidden.grad.any()
            assert not head.weight.grad.any()
            assert scatter(out.logp, nobody, 2).tolist() == [0, 0]

            head = head_of([RAMP, RAMP], torch.float32)
            made = head_loss(head.hidden, head.weight, torch.tensor([0, 1]), mean, **given)
            made.loss.backward()
            assert float(made.loss.detach()) == 0
            assert made.scalars.logp.shape == (0,)
            assert not head.hidden.grad.any()
            assert not head.weight.grad.any()


def test_f16_rows_of_which_none_has_a_coefficient_leave_no_gradient():
    with unwritten_is_nan():
        head = head_of([RAMP, RAMP], torch.float32)
        (0 * linear_logprob(head.hidden, head.weight, torch.tensor([0, 1]), **SOFT).logp).sum().backward()
        assert not head.hidden.grad.any()
        assert not head.weight.grad.any()
        head = head_of([RAMP, RAMP], torch.float32)
        zero = head_loss(head.hidden, head.weight, torch.tensor([0, 1]), lambda s: Coefficients(torch.zeros(2)), **SOFT)
        zero.loss.backward()
        assert float(zero.loss.detach()) == 0
        assert not head.hidden.grad.any()
        assert not head.weight.grad.any()


# --- entropy ----------------------------------------------------------------------------------------------------------


def test_f17_entropy_of_a_distribution_by_hand():
    flat, peaked = learner([[0.0, 0, 0, 0], [10.0, 0, 0, 0]], [0, 0], need_entropy=True).entropy.tolist()
    assert flat == pytest.approx(1.3863, abs=5e-5)
    assert peaked == pytest.approx(0.00150, abs=5e-6)
    spread = learner([[math.log(1), math.log(2), math.log(5)] * 1000], [0], need_entropy=True).entropy
    assert float(spread) == pytest.approx(math.log(8000) - (2 * math.log(2) + 5 * math.log(5)) / 8, abs=1e-12)


def test_f17_surprisal_is_another_quantity_and_pads_are_in_neither():
    """Two tokens of probability e^-.5 and three pads: surprisals sum to 1, entropies to twice that of (.61, .39)."""
    p = math.exp(-0.5)
    z = [[math.log(p), math.log(1 - p)]] * 2 + [[0.0, 0.0]] * 3
    out = learner(z, [0] * 5, rows=torch.tensor([0, 1]), need_entropy=True)
    assert float(-out.logp.sum()) == pytest.approx(1.0)
    assert float(out.entropy.sum()) == pytest.approx(2 * (p / 2 - (1 - p) * math.log(1 - p)))


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
