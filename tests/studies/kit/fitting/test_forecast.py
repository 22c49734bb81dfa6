"""The next steps: closed forms of simple chains, intervals of what is counted, and scores by hand."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom

from sim.records.rng import BlockStream
from studies.kit.fitting.data import FitError
from studies.kit.fitting.filtering import filtered
from studies.kit.fitting.forecast import INTERVALS, LEVELS, _evenly, _fan, forecast, log_score, paths
from studies.kit.fitting.rank import rank
from tests.studies.kit.fitting.runs import motion, run_of


def foreseen(chain, counts, rollouts=10_000, horizon=8, draws=6000):
    return paths(filtered(chain, run_of(counts, rollouts), 2), horizon, draws, BlockStream((0,), "test/paths"))


def test_paths_begin_as_uncertain_as_the_run_leaves_them():
    found = filtered(motion(sd=0.1), run_of([10, 12, 9], 40), 2)
    z = paths(found, 1, 6000, BlockStream((0,), "test/paths"))[:, 0]
    assert found.state.zz.item() > 0.02
    assert z.mean() == pytest.approx(found.state.z.item(), abs=0.02)
    assert z.var() == pytest.approx(found.state.zz.item() + 0.1**2, rel=0.1)


def test_a_walk_spreads_with_the_root_of_time():
    z = foreseen(motion(sd=0.3), [5000, 5000, 5000])
    first = z[:, 0].var()
    np.testing.assert_allclose(z.var(0) - first, 0.3**2 * np.arange(8), rtol=0.12, atol=0.005)
    assert abs(z.mean()) < 0.03


def test_a_push_that_lasts_is_a_line():
    start = np.rint(10_000 * expit(-2 + 0.25 * np.arange(6)))
    z = foreseen(motion(sd=1e-3, push=0.25), start)
    np.testing.assert_allclose(z.mean(0), -2 + 0.25 * np.arange(6, 14), atol=0.03)


def test_a_push_that_may_end_slows_down_on_average():
    start = np.rint(10_000 * expit(-4 + 0.5 * np.maximum(np.arange(14) - 4, 0)))
    z = foreseen(motion(sd=0.02, push=0.5, switch=(0.05, 0.1)), start)
    gained = z.mean(0) - (-4 + 0.5 * 9)
    expected = 0.5 * np.cumsum(0.9 ** np.arange(1, 9))
    np.testing.assert_allclose(gained, expected, rtol=0.1)


def test_memory_carries_on():
    start = np.rint(10_000 * expit(-3 + 0.15 * np.arange(14)))
    z = foreseen(motion(sd=0.5, memory=0.9), start)
    gained = z.mean(0) + 3 - 0.15 * 13
    assert 0.05 < gained[0] < 0.2  # it was moving, and goes on a while
    assert gained[-1] < 8 * 0.15 * 0.8


def test_the_interval_of_a_count_is_binomial_where_the_share_is_known():
    fan = _fan("a", np.full((40_000, 1), -1.0), 200, 0)
    for i, coverage in enumerate(INTERVALS):
        ends = binom.ppf([(1 - coverage) / 2, (1 + coverage) / 2], 200, expit(-1.0)) / 200
        np.testing.assert_allclose(fan.counted[0, i], ends, atol=0.0051)
    np.testing.assert_allclose(fan.share, expit(-1.0))
    assert fan.median[0] == pytest.approx(expit(-1.0))


def test_a_log_score_by_hand():
    share = np.array([[0.2, 0.4], [0.5, 0.5]])
    found = log_score(share, np.array([3, 5]), np.array([10, 10]))
    expected = np.log([(binom.pmf(3, 10, 0.2) + binom.pmf(3, 10, 0.4)) / 2, binom.pmf(5, 10, 0.5)])
    np.testing.assert_allclose(found, expected)


def test_a_log_score_at_a_share_that_was_rounded_to_an_end_is_a_number():
    ends = np.array([[0.0, 0.5], [1.0, 0.5], [0.0, 0.0]])
    found = log_score(ends, np.array([0, 10, 1]), np.array([10, 10, 10]))
    by_hand = [(1 + 0.5**10) / 2, (1 + 0.5**10) / 2, 10 * 1e-9]
    np.testing.assert_allclose(found, np.log(by_hand), atol=1e-7)


def test_rows_are_taken_evenly():
    assert _evenly(10, 5).tolist() == [1, 3, 5, 7, 9]
    assert _evenly(10, 10).tolist() == list(range(10))


def test_the_forecast_of_a_ranking():
    ranking = rank(run_of(np.rint(1000 * expit(-4 + 0.1 * np.arange(24))), 1000))
    found = forecast(ranking, 6, draws=400)
    assert found.steps.tolist() == list(range(24, 30))
    assert found.rollouts == 1000
    assert found.together.share.shape == (6, len(LEVELS))
    assert (np.diff(found.together.share, axis=1) >= 0).all()
    line = next(fan for fan in found.each if fan.name == "straight line")
    np.testing.assert_allclose(line.median, expit(-4 + 0.1 * np.arange(24, 30)), atol=0.02)
    again = forecast(ranking, 6, draws=400)
    np.testing.assert_array_equal(found.together.counted, again.together.counted)
    with pytest.raises(FitError, match="horizon = 0"):
        forecast(ranking, 0)
