from dataclasses import replace

import numpy as np
import pytest

from sim.records.steps import StepTable
from sim.signals.onsets import Direction
from studies.kit.reading.alarms import DETECTORS, SIGNALS, TwoSided, alarms
from studies.kit.reading.fold import Reading

FIRST = "behaviour/answer_share/turn0"


def reading(share, name="run", steps=None, **columns):
    share = np.asarray(share, float)
    at = np.arange(len(share)) if steps is None else np.asarray(steps)
    table = StepTable({"step": at, "train/rollouts": np.full(len(share), 100), FIRST: share, **columns})
    return Reading(name, "by hand", table, ("search", "answer"), ())


def quiet(seed, steps=60, r=0.7):
    rng = np.random.default_rng(seed)
    x = np.zeros(steps + 100)
    for t in range(1, len(x)):
        x[t] = r * x[t - 1] + rng.normal(0, 0.02)
    return 0.1 + x[100:]


CONTROLS = [reading(quiet(seed), f"control {seed}") for seed in range(20)]


@pytest.mark.parametrize("detector", DETECTORS)
@pytest.mark.parametrize("sign", [1, -1])
def test_a_flip_alarms_either_way_and_an_ordinary_run_does_not(detector, sign):
    way = sign * 0.7 * (np.arange(60) >= 35)
    (alarm,) = alarms(reading(quiet(99) + way), CONTROLS, detector=detector).alarms
    assert alarm.signal == FIRST
    assert 35 <= alarm.step <= 38
    assert alarm.largest > alarm.threshold
    assert alarms(reading(quiet(99)), CONTROLS, detector=detector).alarms[0].step is None


@pytest.mark.parametrize("detector", DETECTORS)
def test_false_alarms_are_as_rare_as_promised(detector):
    """Over draws of the controls, the mean rate is at most the one that was asked for."""
    fired = 0
    for draw in range(40):
        controls = [reading(quiet(1000 * draw + seed)) for seed in range(1, 21)]
        fired += sum(
            alarms(reading(quiet(1000 * draw + fresh)), controls, detector=detector).alarms[0].step is not None
            for fresh in (500, 501, 502)
        )
    assert fired / 120 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 40)


def test_too_few_controls_set_no_alarm_and_say_what_they_could_promise():
    found = alarms(reading(quiet(99)), CONTROLS[:9])
    assert found.alarms == ()
    assert "9 control runs can promise a false-alarm rate of 0.1 at the best" in found.refused
    assert "20 are needed for 0.05, and 20 for any: give more" in found.refused
    assert "--rate" not in found.refused
    assert "1 control run can" in alarms(reading(quiet(99)), CONTROLS[:1]).refused
    assert "0 control runs can promise nothing" in alarms(reading(quiet(99)), [reading(quiet(99))]).refused
    strict = alarms(reading(quiet(99)), CONTROLS, rate=0.01).refused
    assert "99 are needed for 0.01" in strict
    assert alarms(reading(quiet(99)), CONTROLS, rate=float(strict.split()[-1])).alarms  # the rate it offers will do


def test_the_run_itself_and_repeated_controls_do_not_count():
    run = reading(quiet(99), "run")
    found = alarms(run, [*CONTROLS[:18], CONTROLS[0], replace(run, name="copy")])
    assert found.controls == 18
    assert found.refused
    assert [note for note in found.notes if "control 0 is left out" in note]
    assert [note for note in found.notes if "copy is left out" in note]


def test_a_longer_run_is_watched_as_far_as_its_controls_go():
    late = reading(np.concatenate([quiet(99), np.full(20, 0.9)]))
    found = alarms(late, CONTROLS)
    assert found.alarms[0].step is None  # what happens after step 59 nobody watches
    assert found.steps == tuple(range(60))
    assert found.notes == ("steps after 59, where the shortest control ends, are not watched",)


def test_steps_that_a_control_lacks_are_not_watched():
    gappy = reading(quiet(7)[::2], "gappy", steps=np.arange(0, 60, 2))
    run = reading(quiet(99) + 0.7 * (np.arange(60) >= 35))
    found = alarms(run, [*CONTROLS[:19], gappy])
    assert found.steps == tuple(range(0, 60, 2))
    assert 36 <= found.alarms[0].step <= 40
    assert "29 of 59 steps are not watched" in found.notes[1]
    apart = [replace(each, steps=reading(quiet(i), steps=np.arange(60) + 55).steps) for i, each in enumerate(CONTROLS)]
    assert "share 5 steps" in alarms(run, apart).refused


def test_a_signal_with_gaps_is_not_watched_and_said_so():
    hole = quiet(3)
    hole[20] = np.nan
    found = alarms(reading(quiet(99)), [*CONTROLS[:19], reading(hole)])
    assert found.alarms == ()
    assert f"{FIRST} is not watched: 1 of 21 runs lack it or have gaps in it" in found.notes
    assert "no signal" in found.refused


def test_two_signals_that_say_the_same_are_one():
    twice = [reading(quiet(seed), **{"behaviour/no_search_share": quiet(seed)}) for seed in range(21)]
    assert [each.signal for each in alarms(twice[20], twice[:20]).alarms] == [FIRST]
    other = [reading(quiet(seed), **{"train/turns": quiet(seed + 50)}) for seed in range(21)]
    assert [each.signal for each in alarms(other[20], other[:20]).alarms] == [FIRST, "train/turns"]
    assert {FIRST, "train/turns"} <= set(SIGNALS)


def test_two_sides_are_the_larger_of_two_paths():
    both = TwoSided(lambda x: np.asarray(x), lambda x: -np.asarray(x))
    assert both([1.0, -3.0]).tolist() == [1.0, 3.0]
    assert int(Direction.UP) == -int(Direction.DOWN)


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"rate": 1.0}, {"detector": "none"}])
def test_rates_and_detectors_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        alarms(reading(quiet(99)), CONTROLS, **wrong)
