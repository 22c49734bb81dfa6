import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from sim.mdp.theory.lag import lagged_pull

LOGITS = st.floats(-5, 5)


def flat(reward, success):
    """An advantage that depends on the own reward alone: +1 or -1."""
    return 2.0 * reward - 1


def spread(reward, success):
    """Without std and self: reward minus what others get."""
    return reward - success


SHARE, GUESS, SEARCH = np.array([0.3, 0.7]), np.array([0.9, 0.1]), np.array([0.8, 0.5])


@given(LOGITS)
def test_without_lag_it_is_the_gap_times_g_one_minus_g(z):
    for clip in (0.2, None):
        pull = lagged_pull(SHARE, GUESS, SEARCH, spread, clip)
        gap = (SHARE * (SEARCH - GUESS)).sum()  # baselines cancel
        found = pull(np.array([z]), np.array([z]))[0]
        assert found == pytest.approx(-gap * expit(z) * expit(-z), abs=1e-12)
        assert found < 0


@given(LOGITS, LOGITS)
def test_without_clip_and_with_a_baseline_of_no_kind_the_ratio_undoes_the_lag(z, behaviour):
    pull = lagged_pull(SHARE, GUESS, SEARCH, flat, None)
    here, there = np.array([z]), np.array([behaviour])
    assert pull(here, there)[0] == pytest.approx(pull(here, here)[0])


def test_the_clip_by_hand():
    """z' = 0, z = 1: ratios 2 g = 1.462 and .538. Guess with reward 1 and search with reward 0 are dropped.

    What is left of one kind: guess lost (1 - .4) x -1 pushes down, search won .9 x +1 pushes down: -(.6 + .9) g (1 - g).
    """
    pull = lagged_pull(np.array([1.0]), np.array([0.4]), np.array([0.9]), flat)
    g = expit(1)
    assert pull(np.array([1.0]), np.array([0.0]))[0] == pytest.approx(-1.5 * g * (1 - g))
    # the other way round: guess lost and search won are dropped, and what is left pushes up
    assert pull(np.array([-1.0]), np.array([0.0]))[0] == pytest.approx(0.5 * g * (1 - g))
    # within the band nothing is
    near = pull(np.array([0.1]), np.array([0.0]))[0]
    assert near == pytest.approx(-(0.8 + 0.2) * expit(0.1) * expit(-0.1))  # (-1 + 2 x .4) - (-1 + 2 x .9) = -1


@given(LOGITS, LOGITS)
def test_the_clip_is_a_drag(z, behaviour):
    """It never pushes further from the policy that sampled than the unclipped pull does."""
    here, there = np.array([z]), np.array([behaviour])
    clipped, free = (lagged_pull(SHARE, GUESS, SEARCH, spread, clip)(here, there)[0] for clip in (0.2, None))
    assert (clipped - free) * np.sign(z - behaviour) <= 1e-12
