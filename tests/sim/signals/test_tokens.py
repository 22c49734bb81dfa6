import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.view import View
from sim.learning.weights import Unweighted, ppo_clip
from sim.signals.tokens import clip_fractions, distribution_entropy, masked_mean, mean_surprisal

VALUES = hnp.arrays(float, (2, 3, 4), elements=st.floats(-10, 10))
MASK = hnp.arrays(bool, (2, 3, 4))
LOGITS = hnp.arrays(float, (3, 5), elements=st.floats(-50, 50))


def test_a_mean_over_what_is_masked_in():
    assert masked_mean(np.array([1.0, 2.0, np.nan]), np.array([True, True, False])) == 1.5
    assert masked_mean(np.array([1.0, 2.0]), np.array([False, False])) is None


def test_a_mask_is_spread_over_the_values():
    assert masked_mean(np.array([[1.0, 2.0], [3.0, 8.0]]), np.array([[True], [False]])) == 1.5
    assert masked_mean(np.array([[1.0, 2.0], [3.0, 8.0]]), np.array([False, True])) == 5.0


@given(VALUES, MASK)
def test_the_mean_is_that_of_the_kept_values(values, mask):
    found = masked_mean(np.where(mask, values, np.inf), mask)
    if mask.any():
        assert found == pytest.approx(values[mask].mean(), abs=1e-12)
    else:
        assert found is None


def test_surprisal_is_of_what_was_sampled():
    assert mean_surprisal(np.array([-0.5, -1.5, 7.0]), np.array([True, True, False])) == 1.0
    assert mean_surprisal(np.zeros(2), np.zeros(2, bool)) is None


@pytest.mark.parametrize(
    ("logits", "nats"),
    [
        ([0, 0, 0, 0], 1.3863),
        ([10, 0, 0, 0], 0.00150),
        ([np.log(3), 0], 0.5623),
        ([800, -800], 0.0),
        ([-800, -801], 0.5822),
    ],
)
def test_entropy_of_a_distribution_by_hand(logits, nats):
    assert distribution_entropy(np.array(logits, float)) == pytest.approx(nats, abs=5e-5)


@given(LOGITS, st.floats(-100, 100))
def test_entropy_lies_in_range_and_ignores_a_shift(logits, shift):
    found = distribution_entropy(logits)
    assert np.all(found >= -1e-12)
    assert np.all(found <= np.log(5) + 1e-12)
    np.testing.assert_allclose(distribution_entropy(logits + shift), found, atol=1e-9)


@given(hnp.arrays(float, 5, elements=st.floats(-3, 3)))
def test_the_mean_surprisal_of_many_samples_estimates_the_entropy(logits):
    """Exactly: surprisals weighted by how often each id is sampled."""
    p = np.exp(logits) / np.exp(logits).sum()
    assert (p * -np.log(p)).sum() == pytest.approx(float(distribution_entropy(logits)), abs=1e-12)
    counts = np.round(p * 1000).astype(int)
    sampled = np.repeat(np.log(p), counts)
    assert mean_surprisal(sampled, np.ones(sampled.shape, bool)) == pytest.approx(
        float(distribution_entropy(logits)), abs=0.05
    )


def fractions(ratio, A, mask, low=0.2, high=0.2):
    logp = np.log(np.array(ratio, float)).reshape(1, 1, -1)
    mask = np.array(mask, bool).reshape(1, 1, -1)
    A = np.array(A, float).reshape(1, 1, -1)
    return clip_fractions(ppo_clip(low, high)(View.of(logp, np.zeros_like(logp), A, mask)), mask)


def test_two_clip_fractions():
    assert fractions([1.5, 1.5, 1.0, 0.5], [1, -1, 1, -1], [1, 1, 1, 1]) == (0.5, 0.75)
    assert fractions([1.5, 1.5, 1.0, 0.5], [1, -1, 1, -1], [1, 1, 0, 0]) == (0.5, 1.0)  # of the kept tokens
    assert fractions([1.5], [1], [0]) == (None, None)


def test_a_rule_without_a_bound_has_no_clip_fraction():
    logp = np.log(np.full((1, 1, 2), 0.5))
    mask = np.ones((1, 1, 2), bool)
    assert clip_fractions(Unweighted()(View.of(logp, logp - 1, np.ones((1, 1, 1)), mask)), mask) == (None, None)


@given(VALUES, MASK, hnp.arrays(float, (2, 3, 1), elements=st.floats(-2, 2)))
def test_a_binding_clip_is_outside(log_ratio, mask, A):
    assume(mask.any())
    binding, outside = clip_fractions(ppo_clip()(View.of(log_ratio / 10, np.zeros_like(log_ratio), A, mask)), mask)
    assert 0 <= binding <= outside <= 1


def test_torch_agrees():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    values, mask = rng.normal(size=(3, 4)), rng.random((3, 4)) < 0.5
    t_values, t_mask = torch.from_numpy(values), torch.from_numpy(mask)
    assert masked_mean(t_values, t_mask) == pytest.approx(masked_mean(values, mask), rel=1e-12)
    assert mean_surprisal(t_values, t_mask) == pytest.approx(mean_surprisal(values, mask), rel=1e-12)
    np.testing.assert_allclose(distribution_entropy(t_values).numpy(), distribution_entropy(values), rtol=1e-12)
    logp, A = torch.from_numpy(rng.normal(0, 0.5, (2, 3, 4))), torch.from_numpy(rng.normal(size=(2, 3, 1)))
    m = torch.ones((2, 3, 4), dtype=torch.bool)
    here = clip_fractions(ppo_clip()(View.of(logp.numpy(), np.zeros((2, 3, 4)), A.numpy(), m.numpy())), m.numpy())
    assert clip_fractions(ppo_clip()(View.of(logp, torch.zeros_like(logp), A, m)), m) == pytest.approx(here)
