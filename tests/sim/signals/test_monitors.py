import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.signals.monitors import (
    Cusum,
    Level,
    PageHinkley,
    alarm_time,
    calibrate,
    controls_needed,
    evaluate,
)
from sim.signals.onsets import Direction, change_points, first_passages, halfway

VALUES = st.floats(-10, 10).map(lambda value: round(value, 3))
RUNS = hnp.arrays(np.float64, st.tuples(st.integers(1, 4), st.integers(1, 12)), elements=VALUES)
DIRECTIONS = st.sampled_from(list(Direction))
DETECTORS = st.one_of(
    st.builds(Level, st.integers(1, 9), DIRECTIONS),
    st.builds(Cusum, st.floats(0, 2), st.none(), st.integers(1, 5), DIRECTIONS),
    st.builds(Cusum, st.floats(0, 2), VALUES, st.integers(0, 5), DIRECTIONS),
    st.builds(PageHinkley, st.floats(0, 2), st.integers(0, 5), DIRECTIONS),
)
WATCHED = [Level(3), Cusum(0.5, target=0.0, warmup=0), Cusum(0.5, warmup=20), PageHinkley(0.5, warmup=20)]


def autocorrelated(rng, phi, runs, steps=200):
    """AR(1) noise with variance 1."""
    noise = rng.standard_normal((runs, steps)) * math.sqrt(1 - phi**2)
    noise[:, 0] /= math.sqrt(1 - phi**2)
    for step in range(1, steps):
        noise[:, step] += phi * noise[:, step - 1]
    return noise


# --- detectors --------------------------------------------------------------------------------------------------------


def test_level_by_hand():
    x = [1.0, 3.0, 2.0, 5.0]
    assert Level()(x).tolist() == x
    assert Level(2)(x).tolist() == [-math.inf, 1.0, 2.0, 2.0]
    assert Level(3)(x).tolist() == [-math.inf, -math.inf, 1.0, 2.0]
    assert Level(2, Direction.DOWN)(x).tolist() == [-math.inf, -3.0, -3.0, -5.0]
    assert Level(9)(x).tolist() == [-math.inf] * 4  # longer than the run


def test_cusum_by_hand():
    # Target 1, drift .5: steps -1.5, 1.5, 1.5, -2.5, 0.5.
    x = [0.0, 3.0, 3.0, -1.0, 2.0]
    assert Cusum(0.5, target=1.0, warmup=0)(x).tolist() == [0.0, 1.5, 3.0, 0.5, 1.0]
    # The warm-up's mean is (0 + 3) / 2: steps 1.0, -3.0, 0.0.
    assert Cusum(0.5, warmup=2)(x).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert Cusum(0.5, target=1.0, warmup=0, direction=Direction.DOWN)(x).tolist() == [0.5, 0.0, 0.0, 1.5, 0.0]


def test_page_hinkley_by_hand():
    # Running means 0, 1, 2: deviations 0, 1, 2, drift .5: steps -.5, .5, 1.5.
    assert PageHinkley(0.5)([0.0, 2.0, 4.0]).tolist() == [0.0, 0.5, 2.0]
    assert PageHinkley(0.5, warmup=2)([0.0, 2.0, 4.0]).tolist() == [0.0, 0.0, 1.5]
    assert PageHinkley(0.5, direction=Direction.DOWN)([4.0, 2.0, 0.0]).tolist() == [0.0, 0.5, 2.0]


def recursion(detector, x):
    """The definitions in the docstrings, one step at a time."""
    sign, path, s = int(detector.direction), [], 0.0
    for t, value in enumerate(x):
        if t < detector.warmup:
            path.append(0.0)
            continue
        if isinstance(detector, Cusum):
            target = np.mean(x[: detector.warmup]) if detector.target is None else detector.target
        else:
            target = np.mean(x[: t + 1])
        s = max(0.0, s + sign * (value - target) - detector.drift)
        path.append(s)
    return path


@settings(deadline=None, max_examples=80)
@given(RUNS, DETECTORS)
def test_many_runs_at_once_as_the_definition_says(runs, detector):
    got = detector(runs)
    assert got.shape == runs.shape
    for path, x in zip(got, runs, strict=True):
        if isinstance(detector, Level):
            m, signed = detector.persistence, int(detector.direction) * x
            expected = [min(signed[t - m + 1 : t + 1]) if t >= m - 1 else -math.inf for t in range(len(x))]
        else:
            expected = recursion(detector, x)
        np.testing.assert_allclose(path, expected, atol=1e-9)


@settings(deadline=None, max_examples=60)
@given(RUNS, DETECTORS, st.data())
def test_the_future_does_not_enter(runs, detector, data):
    cut = data.draw(st.integers(1, runs.shape[-1]))
    np.testing.assert_array_equal(detector(runs[..., :cut]), detector(runs)[..., :cut])


@settings(deadline=None, max_examples=60)
@given(RUNS, st.floats(0, 2), VALUES)
def test_neither_detector_with_its_own_mean_sees_an_offset(runs, drift, offset):
    for detector in (Cusum(drift, warmup=2), PageHinkley(drift)):
        np.testing.assert_allclose(detector(runs + offset), detector(runs), atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Level(0), "persistence=0: must be 1 or more"),
        (lambda: Cusum(-0.1), "drift=-0.1: must be 0 or more"),
        (lambda: Cusum(0.1, warmup=0), "warmup=0: must be 1 or more"),
        (lambda: PageHinkley(math.nan), "drift=nan: must be 0 or more"),
        (lambda: Level()([0.0, math.nan]), r"x\[1\] = nan: must be finite"),
        (lambda: Level()(0.0), "x is a single number"),
    ],
)
def test_detectors_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_an_alarm_is_above_the_threshold():
    np.testing.assert_array_equal(alarm_time([[0, 1, 2, 3], [0, 1, 1, 0]], 1), [2, math.nan])
    assert alarm_time([[0, 1, 2, 3]], -1).tolist() == [0]


# --- calibration ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rate", "needed"), [(0.05, 19), (0.01, 99), (0.1, 9), (0.5, 1), (0.03, 33)])
def test_a_rate_needs_so_many_controls(rate, needed):
    assert controls_needed(rate) == needed
    assert math.ceil(round((1 - rate) * (needed + 1), 9)) <= needed
    assert math.ceil(round((1 - rate) * needed, 9)) > needed - 1


def test_the_threshold_is_the_conservative_order_statistic():
    # 39 controls whose largest values are 1 to 39: k = ceil(.95 * 40) = 38, and 2 of 40 are 5 %.
    controls = np.stack([np.zeros(39), np.arange(1, 40)], axis=1)
    monitor = calibrate(Level(), controls, 0.05)
    assert monitor.threshold == 38
    assert monitor.alarms([[0.0, 38.0]]).tolist() != [1.0]
    assert monitor.alarms([[0.0, 38.1]]).tolist() == [1.0]
    assert calibrate(Level(), controls, 0.1).threshold == 36


def test_too_few_controls_are_refused_with_the_number_needed():
    with pytest.raises(ValueError, match=r"50 control runs cannot promise a false-alarm rate of 0.01: 99 are needed"):
        calibrate(Level(), np.zeros((50, 5)), 0.01)
    with pytest.raises(ValueError, match=r"19 control runs .* 20 are needed"):
        calibrate(Level(), np.zeros((19, 5)), 0.05)
    with pytest.raises(ValueError, match=r"false_alarm_rate=5: must be between 0 and 1"):
        calibrate(Level(), np.zeros((50, 5)), 5)
    with pytest.raises(ValueError, match=r"controls has shape \(50,\): must be \[runs, T\]"):
        calibrate(Level(), np.zeros(50), 0.05)


def test_longer_runs_than_the_controls_are_refused():
    monitor = calibrate(Level(), np.zeros((20, 5)), 0.05)
    assert monitor.alarms([0.0, 1.0]) == 1
    with pytest.raises(ValueError, match="runs of 6 steps: the threshold holds up to 5"):
        monitor.alarms(np.zeros(6))


@settings(deadline=None, max_examples=40)
@given(st.integers(20, 60), st.floats(0.02, 0.5), st.integers(0, 2**32 - 1), DETECTORS)
def test_no_more_than_the_share_of_the_controls_themselves_alarms(count, rate, seed, detector):
    needed = max(controls_needed(rate), count)
    controls = np.random.default_rng(seed).standard_t(2, (needed, 12))
    monitor = calibrate(detector, controls, rate)
    alarms = np.sum(~np.isnan(monitor.alarms(controls)))
    assert alarms <= rate * (needed + 1) + 1e-9
    stricter = calibrate(detector, controls, max(rate / 2, 1.001 / (needed + 1)))
    assert stricter.threshold >= monitor.threshold


def test_few_controls_keep_the_promise_on_average():
    # 2,000 times 20 controls and one new run of heavy-tailed, autocorrelated noise: the share of alarms is 1/21 = .048
    # in expectation; three binomial standard errors are .014.
    rng = np.random.default_rng(0)
    draws = np.exp(autocorrelated(rng, 0.8, 2_000 * 21, 30)).reshape(2_000, 21, 30)
    alarms = [not np.isnan(calibrate(Level(2), runs[:20], 0.05).alarms(runs[20])) for runs in draws]
    assert 0.048 - 0.014 <= np.mean(alarms) <= 0.048 + 0.014


@pytest.mark.parametrize("detector", WATCHED, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("phi", [0.5, 0.8, 0.9])
def test_false_alarms_stay_at_the_rate_on_fresh_autocorrelated_controls(detector, phi):
    # R controls set the threshold, N other ones count. The share of alarms has variance about a (1 - a) (1/R + 1/N);
    # at a = 5 % with R = 400 and N = 2,000 three standard errors are .036. At 3 % with R = 1,600 the 5 % itself is
    # (.05 - .03) / sqrt(.03 * .97 * (1/1600 + 1/2000)) = 3.5 standard errors away.
    rng = np.random.default_rng(int(100 * phi))
    fresh = autocorrelated(rng, phi, 2_000)
    usual = calibrate(detector, autocorrelated(rng, phi, 400), 0.05)
    share = np.mean(~np.isnan(usual.alarms(fresh)))
    assert share <= 0.05 + 3 * math.sqrt(0.05 * 0.95 * (1 / 400 + 1 / 2_000))
    assert share >= 0.01  # the detector is awake
    strict = calibrate(detector, autocorrelated(rng, phi, 1_600), 0.03)
    assert np.mean(~np.isnan(strict.alarms(fresh))) <= 0.05


@pytest.mark.parametrize(("phi", "at_least"), [(0.5, 0.7), (0.8, 0.85), (0.9, 0.85)])
def test_white_noise_is_no_control(phi, at_least):
    # The mutation of the test above: the same detector, the same variance, but a threshold set on white noise.
    rng = np.random.default_rng(1)
    detector = Cusum(0.5, target=0.0, warmup=0)
    naive = calibrate(detector, rng.standard_normal((400, 200)), 0.05)
    assert np.mean(~np.isnan(naive.alarms(rng.standard_normal((2_000, 200))))) <= 0.09
    assert np.mean(~np.isnan(naive.alarms(autocorrelated(rng, phi, 2_000)))) >= at_least


# --- a flip -----------------------------------------------------------------------------------------------------------

START, LENGTH, BEFORE, AFTER = 100, 19, 0.98, 0.32


def shares(rng, runs, flip, phi=0.8, noise=0.05):
    """A share that falls from .98 to .32 over 19 steps from step 100, under autocorrelated noise."""
    ramp = np.interp(np.arange(200), [START, START + LENGTH], [BEFORE, AFTER]) if flip else BEFORE
    return ramp + noise * autocorrelated(rng, phi, runs)


@pytest.mark.parametrize("phi", [0.5, 0.8, 0.9])
@pytest.mark.parametrize(
    "detector",
    [
        Cusum(0.05, warmup=40, direction=Direction.DOWN),
        PageHinkley(0.05, warmup=40, direction=Direction.DOWN),
        Level(3, Direction.DOWN),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_ramp_is_found_within_twenty_steps(detector, phi):
    rng = np.random.default_rng(2)
    monitor = calibrate(detector, shares(rng, 200, flip=False, phi=phi), 0.05)
    delay = monitor.alarms(shares(rng, 200, flip=True, phi=phi)) - START
    assert np.mean((delay >= 0) & (delay <= 20)) >= 0.93  # 5 % may have been false alarms before it
    assert np.mean(delay <= 20) == 1.0
    assert np.median(delay) > 0


def test_a_ramp_is_dated_within_twenty_steps_afterwards():
    rng = np.random.default_rng(3)
    for x in shares(rng, 50, flip=True):
        (point,) = change_points(x, count=1)
        assert START < point <= START + 20
    middle = halfway(shares(rng, 50, flip=True), BEFORE, AFTER, persistence=3)
    assert np.all(np.abs(middle - (START + LENGTH / 2)) <= 5)


def test_evaluation_counts_and_leads():
    rng = np.random.default_rng(4)
    detector = Cusum(0.05, warmup=40, direction=Direction.DOWN)
    monitor = calibrate(detector, shares(rng, 100, flip=False), 0.05)
    signal = np.concatenate([shares(rng, 30, flip=True), shares(rng, 5, flip=False)])
    behaviour = np.concatenate([shares(rng, 30, flip=True), shares(rng, 5, flip=False)])  # other rollouts, same flips
    onset = first_passages(behaviour, 0.8, persistence=3, direction=Direction.DOWN)
    half = halfway(behaviour, BEFORE, AFTER, persistence=3)
    got = evaluate(monitor, signal, onset, half, shares(rng, 400, flip=False))
    assert (got.controls, got.runs, got.alarmed) == (400, 30, 30)
    assert 0 < got.false_alarms <= 400 * (0.05 + 3 * math.sqrt(0.05 * 0.95 * (1 / 400 + 1 / 100)))
    assert np.isnan(got.lead_to_onset[30:]).all()
    alarms = monitor.alarms(signal)
    np.testing.assert_array_equal(got.lead_to_onset[:30], onset[:30] - alarms[:30])
    assert np.all(got.lead_to_halfway[:30] > got.lead_to_onset[:30])


def test_a_lead_is_positive_if_the_alarm_came_first():
    controls = np.zeros((20, 10))
    monitor = calibrate(Level(), controls, 0.05)
    runs = np.zeros((3, 10))
    runs[0, 4:] = runs[1, 8:] = 1.0
    got = evaluate(monitor, runs, [6, 6, 6], [7, math.nan, 7], controls + 1e-9 * np.arange(20)[:, None] - 1)
    np.testing.assert_array_equal(got.lead_to_onset, [2, -2, math.nan])
    np.testing.assert_array_equal(got.lead_to_halfway, [3, math.nan, math.nan])
    assert (got.false_alarms, got.controls, got.alarmed, got.runs) == (0, 20, 2, 3)


def test_controls_of_the_calibration_do_not_count_false_alarms():
    rng = np.random.default_rng(6)
    controls = autocorrelated(rng, 0.5, 40, 10)
    monitor = calibrate(Level(), controls[:20], 0.05)
    ask = (monitor, controls[:1], [1.0], [1.0])
    assert evaluate(*ask, controls[20:]).controls == 20
    with pytest.raises(ValueError, match="1 control runs were used in calibration: count false alarms on other ones"):
        evaluate(*ask, controls[19:])
    with pytest.raises(ValueError, match="19 control runs: 20 or more are needed"):
        evaluate(*ask, controls[21:])
    with pytest.raises(ValueError, match=r"half has shape \(2,\): must be \(1,\), one label a run"):
        evaluate(*ask[:3], [1.0, 2.0], controls[20:])
