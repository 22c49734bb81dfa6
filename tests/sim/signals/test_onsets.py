import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.signals.onsets import (
    Direction,
    Onset,
    change_points,
    first_passage,
    first_passages,
    halfway,
    least_squares,
)

VALUES = st.floats(-10, 10).map(lambda value: round(value, 3))
SERIES = st.lists(VALUES, min_size=6, max_size=11)
RUNS = hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=6), elements=VALUES)


def all_segmentations(length, count, min_size):
    for points in itertools.combinations(range(min_size, length - min_size + 1), count):
        if all(b - a >= min_size for a, b in itertools.pairwise((0, *points, length))):
            yield points


def autocorrelated(rng, phi, runs, steps):
    """AR(1) noise with variance 1."""
    noise = rng.standard_normal((runs, steps)) * math.sqrt(1 - phi**2)
    noise[:, 0] /= math.sqrt(1 - phi**2)
    for step in range(1, steps):
        noise[:, step] += phi * noise[:, step - 1]
    return noise


# --- change points ----------------------------------------------------------------------------------------------------


def test_shifts_worked_by_hand():
    x = [0, 0, 0, 5, 5, 5, 1, 1]
    assert change_points(x, count=0) == ()
    assert change_points(x, count=2) == (3, 6)
    # One change: at 3 the error is 0 + (75 + 2 - 17 * 17 / 5) = 19.2; at 6 it is 37.5 + 0.
    assert change_points(x, count=1) == (3,)
    assert least_squares(x, (3,)) == pytest.approx(19.2)
    assert least_squares(x, (6,)) == pytest.approx(37.5)
    assert least_squares(x, (3, 6)) == 0


def test_the_penalty_is_the_gain_a_change_must_bring():
    # Without a change the error is 77 - 17 * 17 / 8 = 40.875; the first change brings 21.675, the second 19.2.
    x = [0, 0, 0, 5, 5, 5, 1, 1]
    assert least_squares(x, ()) == pytest.approx(40.875)
    assert change_points(x, penalty=19.1) == (3, 6)
    assert change_points(x, penalty=19.3) == (3,)
    assert change_points(x, penalty=21.6) == (3,)
    assert change_points(x, penalty=21.7) == ()
    assert change_points([0, 0, 0, 5, 5, 5], penalty=37.4) == (3,)
    assert change_points([0, 0, 0, 5, 5, 5], penalty=37.6) == ()


def test_segments_are_no_shorter_than_asked():
    x = [0, 0, 0, 0, 0, 9]
    assert change_points(x, count=1, min_size=1) == (5,)
    assert change_points(x, count=1, min_size=2) == (4,)
    assert change_points(x, count=1, min_size=3) == (3,)


@settings(deadline=None, max_examples=60)
@given(SERIES, st.integers(0, 2), st.integers(1, 2))
def test_no_segmentation_has_a_smaller_error(x, count, min_size):
    got = change_points(x, count=count, min_size=min_size)
    assert len(got) == count
    least = min(least_squares(x, points) for points in all_segmentations(len(x), count, min_size))
    assert least_squares(x, got) == pytest.approx(least, abs=1e-9)


@settings(deadline=None, max_examples=30)
@given(SERIES, st.floats(0, 50), st.integers(1, 3))
def test_no_segmentation_has_a_smaller_penalised_error(x, penalty, min_size):
    def cost(points):
        return least_squares(x, points) + penalty * len(points)

    got = change_points(x, penalty=penalty, min_size=min_size)
    every = (p for n in range(len(x) // min_size) for p in all_segmentations(len(x), n, min_size))
    assert cost(got) == pytest.approx(min(map(cost, every)), abs=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32 - 1), st.floats(-1e6, 1e6), st.floats(0.01, 100))
def test_neither_offset_nor_unit_moves_a_change(seed, offset, unit):
    x = np.random.default_rng(seed).standard_normal(40) + np.repeat([0.0, 3.0, 1.0], [15, 10, 15])
    base = change_points(x, count=2)
    assert change_points(offset + unit * x, count=2) == base
    assert change_points(x[::-1], count=2) == tuple(40 - point for point in reversed(base))
    assert change_points(unit * x, penalty=unit**2 * 5.0) == change_points(x, penalty=5.0)


@pytest.mark.parametrize("seed", range(6))
def test_ruptures_agrees(seed):
    ruptures = pytest.importorskip("ruptures")
    rng = np.random.default_rng(seed)
    x = np.repeat(rng.normal(0, 2, 4), [30, 22, 41, 27]) + autocorrelated(rng, 0.5, 1, 120)[0]
    for count, min_size in ((1, 2), (3, 2), (3, 7)):
        theirs = ruptures.Dynp(model="l2", min_size=min_size, jump=1).fit(x).predict(n_bkps=count)
        assert change_points(x, count=count, min_size=min_size) == tuple(theirs[:-1])
    for penalty in (2.0, 12.0, 40.0):
        theirs = ruptures.Pelt(model="l2", min_size=2, jump=1).fit(x).predict(pen=penalty)
        assert change_points(x, penalty=penalty) == tuple(theirs[:-1])


def test_a_flip_and_its_return_are_found():
    # A share of .9 that falls to .2 at step 278 and comes back at 338, under autocorrelated noise.
    rng = np.random.default_rng(5)
    x = np.repeat([0.9, 0.2, 0.9], [278, 60, 162]) + 0.05 * autocorrelated(rng, 0.8, 1, 500)[0]
    penalty = 2 * x[:200].var() * math.log(500) * (1 + 0.8) / (1 - 0.8)
    assert change_points(x, penalty=penalty) == (278, 338)
    # Mutation: the penalty for white noise of that variance finds changes that are none.
    assert len(change_points(x, penalty=2 * x[:200].var() * math.log(500))) > 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "count=None, penalty=None: give one of the two"),
        ({"count": 1, "penalty": 1.0}, "give one of the two"),
        ({"count": -1}, "count=-1: must be 0 or more"),
        ({"count": 3}, "6 values: 3 changes with min_size=2 need 8 or more"),
        ({"penalty": -1.0}, "penalty=-1.0: must be 0 or more"),
        ({"penalty": math.nan}, "penalty=nan: must be 0 or more"),
        ({"count": 1, "min_size": 0}, "min_size=0"),
    ],
)
def test_questions_without_an_answer_are_refused(arguments, message):
    assert change_points(range(6), count=1) == (3,)
    with pytest.raises(ValueError, match=message):
        change_points(range(6), **arguments)


def test_gaps_and_blocks_are_refused():
    with pytest.raises(ValueError, match=r"x\[1\] = nan: must be finite"):
        change_points([0.0, math.nan, 1.0, 1.0], count=1)
    with pytest.raises(ValueError, match=r"x has shape \(2, 3\): must be \[T\]"):
        change_points(np.zeros((2, 3)), count=1)


# --- first passages ---------------------------------------------------------------------------------------------------


def test_a_passage_must_persist():
    x = [0.0, 0.6, 0.1, 0.7, 0.8, 0.9, 0.2]
    assert first_passage(x, 0.5) == Onset(1, 1)
    assert first_passage(x, 0.5, persistence=2) == Onset(3, 3)
    assert first_passage(x, 0.5, persistence=3) == Onset(3, 3)
    assert first_passage(x, 0.5, persistence=4) == Onset(None, 4)
    assert first_passage(x, 0.9) == Onset(5, 5)  # at the level is beyond it


def test_a_passage_may_fall():
    x = [0.98, 0.9, 0.4, 0.3, 0.5]
    assert first_passage(x, 0.5, direction=Direction.DOWN).step == 2
    assert first_passage(x, 0.5, persistence=3, direction=Direction.DOWN).step == 2
    assert first_passage(x, 0.2, direction=Direction.DOWN) == Onset(None, 5)


def test_what_the_run_did_not_live_to_see_is_censored():
    # The last value is beyond the level; with a persistence of 3 an onset may yet lie at places 3 and 4.
    got = first_passage([0, 0, 0, 0, 1], 0.5, persistence=3)
    assert got == Onset(None, 3)
    assert math.isnan(got.time)
    assert Onset(2, 2).time == 2.0
    assert first_passage([1.0], 0.5, persistence=3) == Onset(None, 0)


def test_a_gap_breaks_a_passage():
    assert first_passage([1, math.nan, 1, 1], 0.5, persistence=2).step == 2


@settings(deadline=None, max_examples=80)
@given(RUNS, VALUES, st.integers(1, 4), st.sampled_from(list(Direction)))
def test_many_runs_at_once_as_one_by_one(runs, level, persistence, direction):
    got = first_passages(runs, level, persistence, direction)
    assert got.shape == runs.shape[:-1]
    for where in np.ndindex(got.shape):
        beyond = [direction * value >= direction * level for value in runs[where]]
        begins = [t for t in range(len(beyond) - persistence + 1) if all(beyond[t : t + persistence])]
        single = first_passage(runs[where], level, persistence, direction)
        assert single.step == (begins[0] if begins else None)
        np.testing.assert_equal(got[where], single.time)
        assert not any(t < single.censored_at for t in begins)


@settings(deadline=None, max_examples=60)
@given(RUNS, VALUES, st.floats(0, 5), st.integers(1, 3))
def test_a_higher_bar_is_passed_no_earlier(runs, level, higher, persistence):
    base = np.nan_to_num(first_passages(runs, level, persistence), nan=np.inf)
    assert np.all(np.nan_to_num(first_passages(runs, level + higher, persistence), nan=np.inf) >= base)
    assert np.all(np.nan_to_num(first_passages(runs, level, persistence + 1), nan=np.inf) >= base)
    np.testing.assert_array_equal(
        first_passages(-runs, -level, persistence, Direction.DOWN), first_passages(runs, level, persistence)
    )


def test_each_run_may_have_its_own_level():
    got = first_passages([[0, 1, 2], [0, 1, 2], [0, 1, 2]], level=[1, 2, 3])
    np.testing.assert_array_equal(got, [1, 2, math.nan])


def test_a_persistence_of_nothing_is_refused():
    with pytest.raises(ValueError, match="persistence=0: must be 1 step or more"):
        first_passage([1, 2], 1, persistence=0)
    with pytest.raises(ValueError, match="is not a valid Direction"):
        first_passage([1, 2], 1, direction=0)
    with pytest.raises(ValueError, match=r"x has shape \(1, 2\): must be \[T\]; for many runs use first_passages"):
        first_passage([[1, 2]], 1)


# --- half-way ---------------------------------------------------------------------------------------------------------


def test_half_way_down_and_up():
    down = [0.98, 0.9, 0.7, 0.65, 0.5, 0.32]
    assert halfway(down, 0.98, 0.32) == 3  # half-way is .65
    assert halfway(-np.array(down), -0.98, -0.32) == 3
    np.testing.assert_array_equal(halfway([down, down[::-1]], [0.98, 0.32], [0.32, 0.98]), [3, 2])
    assert math.isnan(halfway(down[:3], 0.98, 0.32))
    assert halfway([0.9, 0.6, 0.9, 0.6, 0.6], 0.98, 0.32, persistence=2) == 3


def test_half_way_to_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"before = after = 0\.5: there is no way to go"):
        halfway([[1.0], [0.5]], [1.0, 0.5], [0.0, 0.5])


@settings(deadline=None, max_examples=60)
@given(RUNS, VALUES, VALUES.filter(lambda value: abs(value) > 0.01), st.integers(1, 3))
def test_half_way_is_the_passage_of_the_middle(runs, before, way, persistence):
    direction = Direction.UP if way > 0 else Direction.DOWN
    expected = first_passages(runs, (before + before + way) / 2, persistence, direction)
    np.testing.assert_array_equal(halfway(runs, before, before + way, persistence), expected)
