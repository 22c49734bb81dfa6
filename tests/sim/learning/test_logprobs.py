import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.logprobs import interpolated_proximal, next_token_log_probability, token_log_probability, top_k, top_p

LOGITS = hnp.arrays(float, (3, 5), elements=st.floats(-20, 20).map(lambda x: round(x, 3)))


@given(LOGITS, st.floats(0.05, 10), st.integers(1, 5))
def test_probabilities_over_the_support_sum_to_one(logits, temperature, k):
    kept = top_k(logits, k)
    every = np.stack(
        [token_log_probability(logits, np.full(3, v), temperature=temperature, support=kept) for v in range(5)], -1
    )
    assert np.exp(every).sum(-1) == pytest.approx(1)
    assert np.isneginf(every[~kept]).all()


@given(LOGITS, st.floats(0.05, 1))
def test_a_nucleus_is_the_smallest_set_that_holds_its_mass(logits, p):
    kept = top_p(logits, p)
    mass = np.exp(logits - logits.max(-1, keepdims=True))
    mass /= mass.sum(-1, keepdims=True)
    held = np.where(kept, mass, 0)
    assert (held.sum(-1) >= p - 1e-9).all()
    least = np.where(kept, mass, np.inf).min(-1, keepdims=True)
    assert (np.where(mass > least, mass, 0).sum(-1) < p + 1e-9).all()  # without its last member it would not


def test_a_shift_of_the_logits_changes_nothing():
    logits, token = np.array([[300.0, 299, 298]]), np.array([1])
    assert token_log_probability(logits, token) == pytest.approx(token_log_probability(logits - 300, token))
    assert token_log_probability(logits, token) == pytest.approx(-1.4076, abs=5e-5)


def test_torch_agrees():
    torch = pytest.importorskip("torch")
    logits = np.random.default_rng(0).normal(size=(2, 6, 5))
    token = np.random.default_rng(1).integers(0, 5, (2, 6))
    start = np.arange(6) % 3 == 0
    start = np.broadcast_to(start, (2, 6)).copy()
    here = next_token_log_probability(logits, token, start, temperature=0.7, support=top_p(logits, 0.9))
    t = [torch.from_numpy(x) for x in (logits, token, start)]
    there = next_token_log_probability(*t, temperature=0.7, support=top_p(t[0], 0.9))
    assert np.isfinite(here).any()
    np.testing.assert_allclose(there.numpy(), here, rtol=1e-12)
    assert top_k(t[0], 2).sum() == 2 * 12


def test_refusals():
    with pytest.raises(ValueError, match="temperature = 0 must be positive"):
        token_log_probability(np.zeros((1, 2)), np.array([0]), temperature=0)
    with pytest.raises(ValueError, match=r"k = 3 must lie in 1 .. 2"):
        top_k(np.zeros((1, 2)), 3)
    with pytest.raises(ValueError, match=r"p = 0 must lie in \(0, 1\]"):
        top_p(np.zeros((1, 2)), 0)
    with pytest.raises(ValueError, match="nothing precedes the first token"):
        next_token_log_probability(np.zeros((3, 2)), np.zeros(3, int), np.zeros(3, bool))


def test_a_proximal_policy_between_two_versions():
    now, behaviour = np.array([-1.5, -2.0, -0.5]), np.array([-1.0, -1.0, -1.0])
    found = interpolated_proximal(now, behaviour, (np.array([2.0, 4.0, 0.0]), 4.0, 6.0))
    assert found == pytest.approx([-1.25, -1.0, -1.0 + 0.5 * 2 / 3])
    assert interpolated_proximal(now, behaviour, (5.0, 5.0, 5.0)) == pytest.approx(now)
    with pytest.raises(ValueError, match="must rise from sampler to proximal policy to learner"):
        interpolated_proximal(now, behaviour, (3.0, 2.0, 5.0))
