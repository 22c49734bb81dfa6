import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.theory.cycle import asynchronous_gain_bound, synchronous_step_s
from sim.cluster.theory.order import exponential_mean_max

TIMES = st.floats(0.1, 100)


def test_by_hand():
    """Three exponential trajectories of 6 s: the longest takes 11 s."""
    assert synchronous_step_s(exponential_mean_max(6.0, 3), 4.0, 0.5) == pytest.approx(15.5)
    assert asynchronous_gain_bound(60.0, 40.0, 50.0, 80.0) == pytest.approx(1.25)
    assert asynchronous_gain_bound(60.0, 40.0, 50.0, 40.0) == pytest.approx(2)


@given(TIMES, TIMES, st.floats(0.01, 0.99))
def test_perfect_scaling_leaves_nothing_to_gain(generate, train, part):
    assert asynchronous_gain_bound(generate, train, generate / part, train / (1 - part)) <= 1 + 1e-12
    best = generate / (generate + train)
    assert asynchronous_gain_bound(generate, train, generate / best, train / (1 - best)) == pytest.approx(1)


@given(TIMES, TIMES, TIMES, TIMES)
def test_the_slower_side_decides(generate, train, one, other):
    found = asynchronous_gain_bound(generate, train, one, other)
    assert found * max(one, other) == pytest.approx(synchronous_step_s(generate, train))
    assert found == asynchronous_gain_bound(generate, train, max(one, other), max(one, other))


def test_refusals():
    with pytest.raises(ValueError, match=r"train_split_s = 0.0 must be a finite number above 0"):
        asynchronous_gain_bound(1.0, 1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match=r"longest_s = nan"):
        synchronous_step_s(float("nan"), 1.0)
