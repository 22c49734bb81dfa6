import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from sim.learning.loop import train
from sim.learning.presets import null
from sim.learning.rule import Rule
from sim.learning.setup import Drive
from sim.learning.weights import Unweighted, ppo_clip
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.theory.fold import Fold
from sim.mdp.theory.staleness import delayed_course, hopf_lag, most_stable_gain, restoring_slope
from sim.records.config import replace

# --- the linearisation ------------------------------------------------------------------------------------------------


def test_by_hand():
    assert restoring_slope(2.0, 0.5, 0.25) == pytest.approx(0.09375)  # 3/16 x 1/2
    assert hopf_lag(np.pi / 20) == pytest.approx(10)
    assert hopf_lag(0.0) == np.inf
    assert restoring_slope(2.0, 0.5, 0.5) == 0  # at the fold nothing restores


def test_seed_as_bound_is_about_seventeen_steps():
    for part in (0.5, 0.8):
        fold = Fold(2.4, 0.42)
        share = fold.fixed_point(part * fold.critical_drive)
        assert hopf_lag(restoring_slope(2.4, 0.42, share)) == pytest.approx(17.5, abs=0.5)


@given(st.floats(0.3, 4), st.floats(0.1, 1), st.floats(0.02, 0.48))
def test_the_slope_is_the_derivative_of_the_pull(rate, gap, share):
    z, h, fold = logit(share), 1e-5, Fold(rate, gap)
    numeric = (fold.restoring(z + h) - fold.restoring(z - h)) / (2 * h)
    assert restoring_slope(rate, gap, share) == pytest.approx(numeric, rel=1e-5, abs=1e-9)


def roots(a, lag):
    """Roots of x^(k + 1) = x^k - a."""
    return np.abs(np.roots([1.0, -1.0, *[0.0] * (lag - 1), a] if lag else [1.0, a - 1.0]))


@given(st.integers(0, 40))
def test_the_bound_for_steps_is_where_a_root_leaves_the_unit_circle(lag):
    a = most_stable_gain(lag)
    assert roots(a, lag).max() == pytest.approx(1, abs=1e-6)
    assert roots(0.97 * a, lag).max() < 1 < roots(1.03 * a, lag).max()


def test_for_long_lags_both_bounds_agree():
    for lag in (20, 80):
        assert hopf_lag(most_stable_gain(lag)) == pytest.approx(lag + 0.5, rel=1e-3)


# --- the nonlinear course ---------------------------------------------------------------------------------------------

GAP = 0.4
FOLD = Fold(2.4, GAP)


def swing(lag, part=0.5, steps=1500, nudge=-0.1):
    """Extent of the last 300 steps about the fixed point, logits, after a small displacement."""
    drive = part * FOLD.critical_drive
    rest = float(logit(FOLD.fixed_point(drive)))
    course = delayed_course(2.4, GAP, drive, lag, rest + nudge, steps, before=rest)
    return np.abs(course[-300:] - rest).max()


def test_small_displacements_die_out_below_the_bound_and_grow_above():
    k = hopf_lag(restoring_slope(2.4, GAP, FOLD.fixed_point(0.5 * FOLD.critical_drive)))
    assert 17 < k < 20
    assert swing(int(0.8 * k)) < 1e-3 < 0.1 < swing(int(1.2 * k))


def test_beyond_the_linearisation_swings_stay_on_a_cycle_or_run_away():
    assert swing(24) < swing(32) < 5  # a cycle that widens with the lag
    assert swing(32, part=0.8) > 50  # over the unstable fixed point, and away under the drive


def test_without_lag_the_course_is_the_plain_iteration():
    z = delayed_course(2.4, GAP, 0.1, 0, -3.0, 50)
    assert z[0] == -3.0
    assert z[1] == pytest.approx(-3.0 + 0.1 - 2.4 * GAP * expit(-3) * expit(3))
    by_hand = [-3.0]
    for _ in range(50):
        by_hand.append(by_hand[-1] + 0.1 - 2.4 * GAP * expit(by_hand[-1]) * expit(-by_hand[-1]))
    np.testing.assert_allclose(z, by_hand)


def test_the_pull_is_that_of_the_policy_lag_steps_ago():
    """With lag 2 the first three steps see the policy before step 0."""
    z = delayed_course(2.0, 0.5, 0.0, 2, 0.0, 4, before=-1.0)
    pull = expit(-1.0) * expit(1.0)
    assert z[:3] == pytest.approx([0, -pull, -2 * pull])
    assert z[3] - z[2] == pytest.approx(-expit(z[0]) * expit(-z[0]))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"slope = -0.1 must be at least 0"):
        hopf_lag(-0.1)
    with pytest.raises(ValueError, match=r"lag = -1 must be at least 0"):
        most_stable_gain(-1)
    with pytest.raises(ValueError, match=r"lag = 2 and steps = -1"):
        delayed_course(1.0, 1.0, 0.0, 2, 0.0, -1)


# --- the loop ---------------------------------------------------------------------------------------------------------


def late_swing(weight, lag):
    """Standard deviation over time of the share of guessing, from step 150 on, at .8 of the critical drive; [seeds]."""
    config = null()
    graph = config.graph()
    gap = effective_gap(graph, tables(graph, np.array([0.0, 4.85, -4.2])), Objective())
    drive = 0.8 * Fold(2.4, gap).critical_drive
    changed = {
        "drive": Drive(rate=drive, start=0, duration=250),
        "habit": (("start/answer", -1.3), ("fresh/answer", 4.85), ("failed/answer", -4.2)),
        "rule": Rule(weight=weight),
        "lag": lag,
        "steps": 250,
        "prompts": 64,
    }
    runs = train(replace(config, changed), tuple(range(6)), study="staleness")
    return runs["decision/share/start/answer"][:, 150:].std(1)


def test_the_loop_rings_past_the_bound_without_weights_and_not_with_the_ratio():
    """k* is 19 here. The ratio makes the expected update that of the policy now, so nothing is delayed."""
    calm, ringing = (late_swing(Unweighted(), lag) for lag in (6, 30))
    weighted = late_swing(ppo_clip(), 30)
    assert np.median(ringing) > 0.1 > 0.045 > max(calm.max(), weighted.max())
    assert np.median(weighted) > 0.005  # it moves
