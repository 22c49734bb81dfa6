import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.special import expit, logit

from sim.mdp.theory.fold import Fold, recovery_steps

# --- fold -------------------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 5), st.floats(0.05, 1), st.floats(0, 1))
def test_at_the_fixed_point_drive_and_drift_cancel(rate, gap, part):
    fold = Fold(rate, gap)
    drive = part * fold.critical_drive
    g = fold.fixed_point(drive)
    assert rate * gap * g * (1 - g) == pytest.approx(drive, abs=1e-12)
    assert 0 <= g <= 0.5
    if 0.01 < part < 0.99:  # the stable one: a little more guessing is pushed back
        assert drive - rate * gap * (g + 1e-3) * (1 - g - 1e-3) < 0


def test_the_fold_by_hand():
    fold = Fold(2.0, 0.5)
    assert fold.critical_drive == 0.25
    assert [fold.fixed_point(v) for v in (0.0, 0.1875, 0.25)] == pytest.approx([0, 0.25, 0.5])
    with pytest.raises(ValueError, match=r"drive 0.3 is above v_c = 0.25"):
        fold.fixed_point(0.3)
    with pytest.raises(ValueError, match=r"drive 0.25 is not above v_c = 0.25"):
        fold.passage_steps(0.25, -4.0)


@given(st.floats(1.05, 6), st.floats(-8, -1), st.floats(-0.5, 3))
def test_passage_under_a_drive_is_that_of_the_differential_equation(times_critical, start, end):
    fold = Fold(2.4, 0.2)
    drive = times_critical * fold.critical_drive
    reached = lambda t, z: z[0] - end  # noqa: E731
    reached.terminal = True
    solved = solve_ivp(
        lambda t, z: drive - fold.rate * fold.gap * expit(z) * expit(-z), (0, 1e5), [start],
        events=reached, rtol=1e-9, atol=1e-9,
    )  # fmt: skip
    assert fold.passage_steps(drive, start, end) == pytest.approx(solved.t_events[0][0], rel=1e-5)


def test_passage_under_a_strong_drive_is_distance_over_speed():
    fold = Fold(2.4, 0.2)
    for drive in (1e3, 1e5):
        assert fold.passage_steps(drive, -4.14) == pytest.approx(4.14 / drive, rel=fold.critical_drive * 4 / drive)


def test_passage_near_the_fold_slows_as_the_root_of_the_distance():
    """Close to the fold T ~ pi / sqrt(curvature x (v - v_c)): four times closer, twice as long."""
    fold = Fold(2.4, 0.2)
    near, nearer = (fold.passage_steps(fold.critical_drive * (1 + e), -30.0, 30.0) for e in (4e-4, 1e-4))
    assert nearer / near == pytest.approx(2, rel=0.1)


def test_the_bottleneck_by_hand():
    """v_c = 1/4 and v = 1/4 + 1/100: 2 pi / sqrt(1/400) = 40 pi; a passage through it all tends to that."""
    fold = Fold(2.0, 0.5)
    assert fold.bottleneck_steps(0.26) == pytest.approx(40 * np.pi)
    near = fold.critical_drive * (1 + 1e-5)
    assert fold.passage_steps(near, -20.0, 20.0) == pytest.approx(fold.bottleneck_steps(near), rel=0.02)
    assert fold.passage_steps(near, -20.0, 0.0) == pytest.approx(fold.bottleneck_steps(near) / 2, rel=0.02)
    with pytest.raises(ValueError, match=r"drive 0.25 is not above v_c = 0.25: there is no passage"):
        fold.bottleneck_steps(0.25)


# --- a gap that changes with the share --------------------------------------------------------------------------------


def shrinking(z):
    """From .5 where nearly all search to .3 where nearly all guess."""
    return 0.5 - 0.2 * expit(z)


@given(st.floats(0.1, 5), st.floats(0.05, 1), st.floats(0.02, 0.98))
def test_a_constant_function_is_the_constant(rate, gap, part):
    number, function = Fold(rate, gap), Fold(rate, lambda z: gap)
    drive = part * number.critical_drive
    assert function.critical_drive == pytest.approx(number.critical_drive, rel=1e-6)
    assert function.critical_point == pytest.approx(0, abs=1e-3)
    assert function.fixed_point(drive) == pytest.approx(number.fixed_point(drive), rel=1e-6)
    over = (1 + part) * number.critical_drive
    assert function.passage_steps(over, -4.0, 1.0) == pytest.approx(number.passage_steps(over, -4.0, 1.0), rel=1e-5)
    assert function.bottleneck_steps(over) == pytest.approx(number.bottleneck_steps(over), rel=1e-3)
    assert recovery_steps(rate, lambda z: gap, 3.0) == pytest.approx(recovery_steps(rate, gap, 3.0))


def test_a_gap_that_shrinks_moves_the_fold_towards_search():
    fold, held = Fold(2.0, shrinking), Fold(2.0, shrinking(0.0))
    g = (1.4 - np.sqrt(1.96 - 1.2)) / 1.2  # d/dg of (.5 - .2 g) g (1 - g) is .5 - 1.4 g + .6 g^2
    assert expit(fold.critical_point) == pytest.approx(g, abs=1e-4)
    assert fold.critical_drive == pytest.approx(2 * (0.5 - 0.2 * g) * g * (1 - g))
    assert fold.critical_drive > held.critical_drive
    assert fold.fixed_point(0.1) < held.fixed_point(0.1)
    z = logit(fold.fixed_point(0.1))
    assert fold.restoring(z) == pytest.approx(0.1)
    assert fold.restoring(z + 0.01) > 0.1  # the stable one
    assert fold.fixed_point(0.0) == 0


@given(st.floats(1.05, 4), st.floats(-6, -1), st.floats(-0.5, 3))
def test_passage_and_recovery_follow_the_differential_equation(times_critical, start, end):
    fold = Fold(2.4, shrinking)
    drive = times_critical * fold.critical_drive
    reached = lambda t, z: z[0] - end  # noqa: E731
    reached.terminal = True
    there = solve_ivp(
        lambda t, z: drive - fold.restoring(z[0]), (0, 1e5), [start], events=reached, rtol=1e-9, atol=1e-9
    )
    assert fold.passage_steps(drive, start, end) == pytest.approx(there.t_events[0][0], rel=1e-5)
    back = lambda t, z: z[0] - start  # noqa: E731
    back.terminal = True
    return_ = solve_ivp(lambda t, z: -fold.restoring(z[0]), (0, 1e7), [end], events=back, rtol=1e-9, atol=1e-9)
    assert recovery_steps(2.4, shrinking, end, start) == pytest.approx(return_.t_events[0][0], rel=1e-5)


def test_no_way_back_where_the_gap_turns():
    with pytest.raises(ValueError, match=r"the gap falls to -0.3 on the way from 3.0 to -1.0: z does not come back"):
        recovery_steps(1.0, lambda z: -0.1 * z, 3.0, -1.0)


# --- recovery ---------------------------------------------------------------------------------------------------------


@given(st.floats(0.3, 5), st.floats(0.05, 1), st.floats(-1, 6), st.floats(-6, -1.2))
def test_recovery_is_that_of_the_differential_equation(rate, gap, start, end):
    reached = lambda t, z: z[0] - end  # noqa: E731
    reached.terminal = True
    solved = solve_ivp(
        lambda t, z: -rate * gap * expit(z) * expit(-z), (0, 1e7), [start], events=reached, rtol=1e-9, atol=1e-9
    )
    assert recovery_steps(rate, gap, start, end) == pytest.approx(solved.t_events[0][0], rel=1e-5)


def test_recovery_by_hand():
    # to g = .2: z = -ln 4, where z + sinh z = -1.3863 - 1.875
    assert recovery_steps(2.0, 0.5, 0.0) == pytest.approx(2 * (np.log(4) + 1.875))
    assert recovery_steps(2.0, 0.5, 0.0, logit(0.2)) == recovery_steps(2.0, 0.5, 0.0)
    assert recovery_steps(2.0, 0.5, 6.0) > 2.5 * recovery_steps(2.0, 0.5, 5.0)  # exponential in the overshoot
    with pytest.raises(ValueError, match=r"end 1.0 must lie below start 0.0"):
        recovery_steps(1.0, 1.0, 0.0, 1.0)
