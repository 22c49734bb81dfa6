import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.signals.dwell import escape_rate, kaplan_meier, median_length, spells, time_on_test
from sim.signals.onsets import first_passages

RUNS = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=12), elements=st.floats(0, 1)
)
LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=12)


# --- spells -----------------------------------------------------------------------------------------------------------


def test_spells_worked_by_hand():
    found = spells(
        [
            [0.1, 0.6, 0.4, 0.3, 0.1, 0.1],  # in at 1, kept in by .4 and .3, out at 4
            [0.6, 0.6, 0.1, 0.3, 0.4, 0.5],  # in from the start, out at 2, in again at 5 only
            [0.3, 0.3, 0.3, 0.3, 0.3, 0.3],  # between the levels from the start: outside
        ]
    )
    assert found.run.tolist() == [0, 0, 0, 1, 1, 1, 2]
    assert found.start.tolist() == [0, 1, 4, 0, 2, 5, 0]
    assert found.length.tolist() == [1, 3, 2, 2, 3, 1, 6]
    assert found.inside.tolist() == [False, True, False, True, False, True, False]
    assert found.ended.tolist() == [True, True, False, True, True, False, False]
    assert found.first.start.tolist() == [0, 0, 0]
    inside = found.where(found.inside)
    assert inside.first.start.tolist() == [1, 0]
    assert found.later.start.tolist() == [1, 4, 2, 5]
    assert found.where(np.zeros(7, bool)).first.length.tolist() == []


def test_hysteresis_counts_a_shaky_stay_once():
    shaky = [[0.1, 0.55, 0.45, 0.55, 0.45, 0.55, 0.1]]
    assert spells(shaky).inside.sum() == 1
    assert spells(shaky, leave=0.5).inside.sum() == 3


@given(RUNS)
def test_spells_cover_every_step_once_and_alternate(x):
    found = spells(x)
    for row in range(len(x)):
        mine = found.where(found.run == row)
        assert mine.start[0] == 0
        assert mine.length.sum() == x.shape[1]
        np.testing.assert_array_equal(mine.start[1:], np.cumsum(mine.length)[:-1])
        assert (mine.inside[1:] != mine.inside[:-1]).all()
        assert mine.ended.tolist() == [True] * (len(mine.start) - 1) + [False]
        for start, inside in zip(mine.start[1:], mine.inside[1:], strict=True):
            assert x[row, start] >= 0.5 if inside else x[row, start] < 0.2


@given(RUNS)
def test_the_first_spell_outside_ends_at_the_first_passage(x):
    x[:, 0] = 0.1
    first = spells(x).first
    np.testing.assert_array_equal(np.where(first.ended, first.length, np.nan), first_passages(x, 0.5))


# --- rates and survival -----------------------------------------------------------------------------------------------


def test_a_censored_spell_counts_as_exposure_and_not_as_an_end():
    assert escape_rate([10, 20, 70], [True, True, False]) == pytest.approx(2 / 100)
    assert escape_rate([10, 20, 70], [True, True, True]) == pytest.approx(3 / 100)
    assert np.isnan(escape_rate([], []))


def test_kaplan_meier_by_hand():
    """Ends at 2 (of 5), 4 (of 3: one was censored at 3), 4 + (censored at 4 is still at risk), 6 (of 1)."""
    times, left = kaplan_meier([2, 3, 4, 4, 6], [True, False, True, False, True])
    assert times.tolist() == [2, 4, 6]
    np.testing.assert_allclose(left, [4 / 5, 4 / 5 * 2 / 3, 0])
    assert median_length([2, 3, 4, 4, 6], [True, False, True, False, True]) == 6
    assert median_length([2, 3, 5], [True, True, True]) == 3
    assert median_length([2, 9, 9], [True, False, False]) == np.inf
    assert median_length([1, 2], [True, False]) == 1  # exactly half


@given(LENGTHS)
def test_without_censoring_it_is_the_share_left(pairs):
    lengths = np.array([p[0] for p in pairs])
    times, left = kaplan_meier(lengths, np.ones(len(lengths), bool))
    np.testing.assert_allclose(left, [(lengths > t).mean() for t in times], atol=1e-12)


@given(LENGTHS)
def test_censoring_more_never_lowers_the_survival(pairs):
    lengths, ended = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    ended[0] = True
    everything = kaplan_meier(lengths, np.ones(len(lengths), bool))
    some = kaplan_meier(lengths, ended)
    for t, left in zip(*some, strict=True):
        assert left >= everything[1][np.searchsorted(everything[0], t)] - 1e-12


# --- memory -----------------------------------------------------------------------------------------------------------


def test_time_on_test_by_hand():
    """Lengths 1, 3, 4 ended and 5 censored: T(1) = 4, T(3) = 1 + 9 = 10, T(4) = 1 + 3 + 4 + 4 = 12."""
    np.testing.assert_allclose(time_on_test([1, 3, 5, 4], [True, True, False, True]), [4 / 12, 10 / 12])
    assert len(time_on_test([3, 5], [True, False])) == 0
    assert len(time_on_test([3, 5], [False, False])) == 0


@settings(max_examples=30)
@given(st.floats(0.5, 50), st.integers(0, 10**6))
def test_it_knows_no_unit(scale, seed):
    rng = np.random.default_rng(seed)
    lengths, ended = rng.exponential(size=20), rng.random(20) < 0.7
    np.testing.assert_allclose(time_on_test(scale * lengths, ended), time_on_test(lengths, ended))


@pytest.mark.parametrize(("shape", "low", "high"), [(1.0, 0.47, 0.53), (0.5, 0.2, 0.42), (3.0, 0.6, 0.9)])
def test_memoryless_is_one_half_also_under_censoring(shape, low, high):
    """Weibull lengths of a falling, a constant and a rising rate, cut off where about half are left."""
    lengths = np.random.default_rng(0).weibull(shape, size=4000)
    cut = np.median(lengths)
    assert low < time_on_test(np.minimum(lengths, cut), lengths <= cut).mean() < high
    rate = escape_rate(np.minimum(lengths, cut), lengths <= cut)
    assert rate == pytest.approx(1, rel=0.06) if shape == 1 else abs(rate - 1) > 0.1


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals():
    with pytest.raises(ValueError, match=r"shape \(3,\): must be \[S, T\]"):
        spells([0.1, 0.2, 0.3])
    with pytest.raises(ValueError, match="NaN"):
        spells([[0.1, np.nan]])
    with pytest.raises(ValueError, match=r"leave = 0\.6 is above enter = 0\.5"):
        spells([[0.1, 0.2]], leave=0.6)
    with pytest.raises(ValueError, match="one of each a spell"):
        kaplan_meier([1, 2], [True])
