import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.reading.fold import fold
from studies.kit.reading.transitions import (
    FEWEST,
    LEAST,
    RAMP,
    is_share,
    noise,
    shifts,
    signals,
    transitions,
)
from tests.studies.kit.reading.hand import Stream, episode


def autoregression(rng, steps, r, sd=1.0):
    x = np.zeros(steps + 200)
    for t in range(1, len(x)):
        x[t] = r * x[t - 1] + np.sqrt(1 - r * r) * rng.normal()
    return sd * x[200:]


def found(x, step=None, rollouts=None):
    return shifts("x", np.arange(len(x)) if step is None else step, x, rollouts)


# --- one series -------------------------------------------------------------------------------------------------------


def test_a_step_by_hand():
    x = np.array([0.1, 0.2] * 10 + [0.8, 0.9] * 10)
    (shift,) = found(x, rollouts=np.full(40, 1000))
    assert (shift.step, shift.last, shift.first) == (20, 19, 20)
    assert (shift.before, shift.after) == (pytest.approx(0.15), pytest.approx(0.85))
    assert shift.size == pytest.approx(0.7)


def test_a_ramp_is_one_shift_with_a_beginning_a_middle_and_an_end():
    rng = np.random.default_rng(0)
    x = 0.05 + 0.9 * np.clip((np.arange(100) - 50) / 20, 0, 1) + rng.normal(0, 0.01, 100)
    (shift,) = found(x, rollouts=np.full(100, 1024))
    assert shift.step == pytest.approx(60, abs=1)
    assert 50 <= shift.last < shift.step < shift.first <= 71
    assert (shift.before, shift.after) == (pytest.approx(0.05, abs=0.03), pytest.approx(0.95, abs=0.03))


def test_there_and_back_are_two():
    x = np.concatenate([np.full(30, 0.1), np.full(30, 0.7), np.full(30, 0.1)]) + np.tile([0.01, -0.01], 45)
    there, back = found(x, rollouts=np.full(90, 256))
    assert (there.step, back.step) == (30, 60)
    assert there.size == pytest.approx(-back.size)


def test_levels_are_of_the_steps_nearby_so_that_slow_growth_is_no_shift():
    slow = np.linspace(0.2, 0.6, 400) + np.tile([0.01, -0.01], 200)
    assert found(slow, rollouts=np.full(400, 512)) == ()
    (sudden,) = found(slow + 0.3 * (np.arange(400) >= 200), rollouts=np.full(400, 512))
    assert sudden.step == 200
    assert sudden.size == pytest.approx(0.3 + 0.4 * RAMP / 400, abs=0.01)


def test_a_gap_is_where_the_change_may_lie():
    x = np.concatenate([np.full(20, 0.1), np.full(20, 0.9)]) + np.tile([0.01, -0.01], 20)
    x[15:25] = np.nan
    (shift,) = found(x, step=np.arange(40) * 5, rollouts=np.full(40, 256))
    assert (shift.last, shift.first) == (70, 125)


def test_too_short_constant_or_empty_series_have_none():
    assert found(np.tile([0.0, 1.0], FEWEST)[: FEWEST - 1]) == ()
    assert found(np.full(50, 0.3)) == ()
    assert found(np.full(50, np.nan)) == ()


def test_a_rare_event_is_no_shift():
    x = np.zeros(100)
    x[[7, 41, 42, 90]] = 1 / 256
    assert found(x, rollouts=np.full(100, 256)) == ()


@given(st.integers(0, 2**32 - 1), st.sampled_from([8, 64, 512]), st.sampled_from([0.02, 0.3, 0.5]))
def test_counting_alone_hardly_ever_shows_one(seed, rollouts, share):
    rng = np.random.default_rng(seed)
    x = rng.binomial(rollouts, share, 100) / rollouts
    assert len(found(x, rollouts=np.full(100, rollouts))) <= 1
    mirrored = found(1 - x, rollouts=np.full(100, rollouts))
    assert [each.step for each in mirrored] == [each.step for each in found(x, rollouts=np.full(100, rollouts))]


@pytest.mark.parametrize("r", [0.0, 0.5, 0.8, 0.9])
def test_series_without_a_change_seldom_show_one(r):
    rng = np.random.default_rng(int(10 * r))
    said = sum(bool(found(autoregression(rng, 100, r))) for _ in range(120))
    assert said / 120 <= 1 / 14 + 3 * np.sqrt(1 / 14 * 13 / 14 / 120)


def test_a_share_that_wanders_far_and_slowly_shows_changes_where_there_is_none():
    """What docs/reading.md warns of: a move of a quarter for ten steps is told however it came about."""
    rng = np.random.default_rng(9)

    def said(r, sd, runs=60):
        shares = (np.clip(0.5 + autoregression(rng, 100, r, sd), 0, 1) for _ in range(runs))
        every = np.full(100, 256)
        return sum(bool(found(rng.binomial(256, share) / 256, rollouts=every)) for share in shares) / runs

    assert said(0.8, 0.02) < 0.2
    assert said(0.5, 0.1) < 0.2
    assert said(0.9, 0.05) > 0.3


@pytest.mark.parametrize("width", [1, 10, 20])
@pytest.mark.parametrize(("low", "high"), [(0.04, 0.95), (0.05, 0.3)])
def test_a_flip_in_a_wandering_share_is_found_where_it_is(low, high, width):
    rng = np.random.default_rng(width)
    for _ in range(20):
        wander = autoregression(rng, 60, 0.6, sd=0.02)
        share = np.clip(wander + low + (high - low) * np.clip((np.arange(60) - (36 - width / 2)) / width, 0, 1), 0, 1)
        told = found(rng.binomial(256, share) / 256, rollouts=np.full(60, 256))
        assert len(told) == 1
        assert abs(told[0].step - 36) <= 3 + width / 5
        assert (high - low) / 2 <= told[0].size <= high - low + 0.09


@given(st.floats(-5, 5), st.sampled_from([0.25, 2.0, 64.0]))
def test_units_do_not_matter(offset, scale):
    x = np.random.default_rng(4).normal(size=60) * 0.1 + 3 * (np.arange(60) >= 30)
    (one,), (other,) = found(x), found(offset + scale * x)
    assert (one.step, one.last, one.first) == (other.step, other.last, other.first)
    assert other.size == pytest.approx(scale * one.size)


def test_a_series_that_stands_still_but_for_a_step_has_that_step():
    (shift,) = found(np.repeat([2.0, 1.2], 20))
    assert (shift.step, shift.before, shift.after) == (20, 2.0, 1.2)


def test_noise_knows_its_variance_and_memory_and_a_jump_does_not_spoil_it():
    x = autoregression(np.random.default_rng(2), 4000, 0.6, sd=3.0)
    for series in (x, x + 100 * (np.arange(4000) > 2000)):
        known = noise(series)
        assert known.variance == pytest.approx(9, rel=0.15)
        assert known.autocorrelation == pytest.approx(0.6, abs=0.06)


# --- a run ------------------------------------------------------------------------------------------------------------


def flipping(steps=40, flip=20, rollouts=40):
    """Searches first until a step, and answers at once from then on."""
    for step in range(steps):
        for i in range(rollouts):
            usual = i % 10 != step % 10
            searches = usual == (step < flip)
            yield episode("search answer" if searches else "answer", step=step, task=i // 4, reward=float(i % 3 > 0))


def test_the_signals_of_one_flip_are_one_transition():
    reading = fold(Stream(flipping()), 0)
    (transition,) = transitions(reading)
    assert transition.step == 20
    assert transition.main.signal == "behaviour/answer_share/turn0"
    assert (transition.main.before, transition.main.after) == (pytest.approx(0.1), pytest.approx(0.9))
    told = {shift.signal: shift for shift in transition.shifts}
    assert told["behaviour/search_share/turn0"].size == pytest.approx(-0.8)
    assert told["behaviour/workflow_share/guess"].size == pytest.approx(0.8)
    assert told["train/turns"].size == pytest.approx(-0.8)
    assert "train/reward" not in told


def test_signals_are_those_that_the_run_has():
    reading = fold(Stream(flipping(3)), 0)
    watched = signals(reading)
    assert {"behaviour/answer_share/turn0", "behaviour/search_share/turn1", "train/reward"} <= {*watched}
    assert set(watched) <= set(reading.steps.names)
    assert len(watched) == len(set(watched))


def test_what_is_a_share():
    shares = ("behaviour/search_share/turn1", "behaviour/solved_share", "behaviour/workflow_share/guess")
    assert all(map(is_share, shares))
    assert not any(map(is_share, ("train/turns", "train/reward", "behaviour/effective_workflows")))
    assert 0 < LEAST < 0.25
