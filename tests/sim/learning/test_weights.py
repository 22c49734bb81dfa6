import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.view import View, log_ratio
from sim.learning.weights import Unweighted, Weight, ppo_clip

LOGP = hnp.arrays(float, (2, 3, 4), elements=st.floats(-8, 0))
SIGNED = hnp.arrays(float, (2, 3, 1), elements=st.floats(-3, 3))
MASK = hnp.arrays(bool, (2, 3, 4))


def clip(ratio, A, low=0.2, high=0.2):
    """The weights of tokens with these ratios and advantages."""
    logp = np.log(np.array(ratio, float)).reshape(1, -1, 1)
    advantage = np.array(A, float).reshape(1, -1, 1)
    return ppo_clip(low, high)(View.of(logp, np.zeros_like(logp), advantage, np.ones(logp.shape, bool)))


@pytest.mark.parametrize(
    ("ratio", "A", "weight", "binding", "outside"),
    [
        (1.0, 1, 1.0, False, False),
        (1.1, 1, 1.1, False, False),
        (1.5, 1, 0.0, True, True),  # A > 0 above: no reason to go further
        (1.5, -1, 1.5, False, True),  # A < 0 above: must come back
        (0.5, 1, 0.5, False, True),  # A > 0 below: must come back
        (0.5, -1, 0.0, True, True),  # A < 0 below: no reason to go further
        (9.0, -1, 9.0, False, True),  # unbounded: this is PPO's known hole
        (1.5, 0, 1.5, False, True),  # no advantage: the weight does not matter, nothing binds
    ],
)
def test_the_table_of_cases(ratio, A, weight, binding, outside):
    found = clip([ratio], [A])
    assert found.value.item() == pytest.approx(weight)
    assert found.unclamped.item() == pytest.approx(ratio)
    assert found.binding.item() is binding
    assert found.outside.item() is outside


def test_unequal_bounds():
    found = clip([1.25, 1.3, 0.85, 0.75], [1, 1, -1, -1], low=0.2, high=0.28)
    assert found.binding.ravel().tolist() == [False, True, False, True]


@given(LOGP, LOGP, SIGNED, MASK, st.floats(0.05, 0.9), st.floats(0.05, 3))
def test_the_weight_is_the_slope_of_the_clipped_objective(logp, behaviour, A, mask, low, high):
    def objective(x):
        rho = np.exp(x - behaviour)
        return np.minimum(rho * A, np.clip(rho, 1 - low, 1 + high) * A)

    found = ppo_clip(low, high)(View.of(logp, behaviour, A, mask))
    rho = np.exp(logp - behaviour)
    kink = (np.abs(rho - 1 + low) < 1e-3) | (np.abs(rho - 1 - high) < 1e-3)
    h = 1e-6
    slope = (objective(logp + h) - objective(logp - h)) / (2 * h)
    keep = mask & ~kink
    np.testing.assert_allclose((found.value * A)[keep], slope[keep], rtol=1e-5, atol=1e-6)


@given(LOGP, SIGNED, MASK)
def test_on_policy_every_weight_is_one(logp, A, mask):
    for weight in (ppo_clip(), Unweighted()):
        for behaviour in (logp, logp.copy()):  # told by identity or found by computing
            found = weight(View.of(logp, behaviour, A, mask))
            assert np.all(np.broadcast_to(found.value, logp.shape) == 1)
            assert found.binding is None or not found.binding.any()
            assert found.outside is None or not found.outside.any()


@given(LOGP, LOGP, SIGNED, MASK)
def test_unweighted_reports_the_ratio_and_does_not_use_it(logp, behaviour, A, mask):
    found = Unweighted()(View.of(logp, behaviour, A, mask))
    assert np.all(np.broadcast_to(found.value, logp.shape) == 1)
    np.testing.assert_allclose(found.unclamped, np.where(mask, np.exp(logp - behaviour), 1.0))


def test_a_masked_entry_is_masked_before_it_is_exponentiated():
    logp, behaviour = np.zeros((1, 1, 2)), np.array([[[0.0, -2000.0]]])
    mask = np.array([[[True, False]]])
    assert log_ratio(logp, behaviour, mask).tolist() == [[[0, 0]]]
    for weight in (ppo_clip(), Unweighted()):
        found = weight(View.of(logp, behaviour, np.ones((1, 1, 1)), mask))
        assert np.isfinite(np.broadcast_to(found.value, mask.shape)).all()
        assert found.unclamped.ravel().tolist() == [1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 0.0}, "low = 0.0"),
        ({"low": 1.0}, r"low = 1.0 must lie in \(0, 1\)"),
        ({"high": 0.0}, "high = 0.0 must be"),
    ],
)
def test_bounds_that_bound_nothing_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ppo_clip(**options)


def test_scopes():
    assert {w.scope for w in (ppo_clip(), Unweighted())} == {"token"}
    assert isinstance(ppo_clip(), Weight)
    assert isinstance(Unweighted(), Weight)
