import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.budgets import dynamic_filter, no_signal_probability, uniform_budget

REWARDS = hnp.arrays(float, (7, 4), elements=st.sampled_from((0.0, 1.0)))


@given(st.integers(1, 50), st.integers(0, 300))
def test_a_uniform_budget_is_spent_and_even(questions, extra):
    found = uniform_budget(2 * questions + extra, questions)
    assert found.sum() == 2 * questions + extra
    assert np.ptp(found) <= 1
    assert found.min() >= 2


def test_too_small_a_budget_is_refused():
    with pytest.raises(ValueError, match="9 rollouts for 5 questions; a group needs at least 2"):
        uniform_budget(9, 5)


def test_the_filter_by_hand():
    reward = np.array([[0.0, 0, 0], [1, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 1]])
    assert dynamic_filter(reward).tolist() == [False, True, False, True, True]
    assert dynamic_filter(reward, wanted=2).tolist() == [False, True, False, True, False]
    valid = np.ones(reward.shape, bool)
    valid[1, 1] = False  # what is left of the second group agrees
    assert dynamic_filter(reward, valid).tolist() == [False, False, False, True, True]
    with pytest.raises(ValueError, match="wanted = 0 groups"):
        dynamic_filter(reward, wanted=0)


@given(REWARDS, st.integers(1, 7))
def test_kept_groups_are_mixed_and_no_more_than_wanted(reward, wanted):
    keep = dynamic_filter(reward, wanted=wanted)
    mixed = (reward.max(-1) > reward.min(-1)).sum()
    assert keep.sum() == min(mixed, wanted)
    assert (reward[keep].max(-1) > reward[keep].min(-1)).all()


def test_the_chance_of_no_signal_by_hand_and_by_counting():
    assert no_signal_probability(0.3, 8) == pytest.approx(0.7**8 + 0.3**8)
    rates, expected = np.array([0.01, 0.05, 0.1, 0.9]), [0.923, 0.663, 0.430, 0.430]
    assert no_signal_probability(rates, 8) == pytest.approx(expected, abs=1e-3)
    reward = (np.random.default_rng(0).random((20000, 4)) < 0.3).astype(float)
    assert 1 - dynamic_filter(reward).mean() == pytest.approx(float(no_signal_probability(0.3, 4)), abs=0.01)
    with pytest.raises(ValueError, match=r"success = 1.2 must lie in \[0, 1\]"):
        no_signal_probability(1.2, 4)
