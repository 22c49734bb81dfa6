"""The order of rivals: by hand where it is a rule, and on a run whose mechanism is known."""

import math

import numpy as np
import pytest

from studies.kit.fitting.data import FitError
from studies.kit.fitting.filtering import filtered
from studies.kit.fitting.mechanisms import Mechanism
from studies.kit.fitting.rank import BLOCK, TIE_NATS, _spread, _summary, rank, standing
from studies.kit.fitting.trials import trials
from tests.studies.kit.fitting.runs import run_of


@pytest.fixture(scope="module")
def pushed():
    (trial,) = trials("push", 1, first=41, study="test/rank")
    return trial


@pytest.fixture(scope="module")
def ranking(pushed):
    return rank(pushed.seen)


def test_a_push_is_found_and_its_size_with_it(ranking):
    first = ranking.rows[0]
    assert first.name == "push"
    assert ranking.tied == (first,)
    assert ranking.informative
    mean, low, high = first.setting["push"]
    assert low <= 0.38 <= high  # the preset's logits a step
    assert low <= mean <= high
    assert first.weight > 0.8


def test_scores_add_up(ranking):
    weights = [row.weight for row in ranking.rows]
    assert sum(weights) == pytest.approx(1)
    for row in ranking.rows:
        assert row.behind == pytest.approx(ranking.rows[0].score - row.score)
        assert row.weight == pytest.approx(ranking.rows[0].weight * np.exp(-row.behind))  # the warm-up does not count
        if row.filtered is not None:
            assert row.score == pytest.approx(row.filtered.score[ranking.warm :].sum())
            assert row.filtered.weight.sum() == pytest.approx(1)
    assert ranking.scored == len(ranking.observed) - ranking.warm
    assert all(row.weight == 0 for row in ranking.yardsticks)


def test_what_is_scored_is_predicted_from_what_came_before(pushed, ranking):
    """Later counts change no earlier score (the world is held)."""
    row = ranking.rows[0]
    cut = pushed.seen.between(None, int(pushed.seen.steps[-6]))
    again = filtered(row.mechanism.motion, cut, ranking.warm)
    np.testing.assert_allclose(again.score, row.filtered.score[: len(cut)], rtol=1e-12)


def test_the_larger_rival_stands_behind_its_special_case_unless_it_predicts_better():
    small, large = (Mechanism(name, "", None, (), contains=c) for name, c in (("small", ""), ("large", "small")))
    for ahead, first in (
        (0.5, "small"),
        (TIE_NATS - 0.01, "small"),
        (TIE_NATS, "large"),
        (9.0, "large"),
        (-1.0, "small"),
    ):
        scores = {"small": -100.0, "large": -100.0 + ahead}
        assert max((small, large), key=lambda m: standing(m, scores)).name == first
    assert standing(large, {"small": -math.inf, "large": -3.0}) == -3.0


def test_the_spread_of_a_difference_by_hand():
    difference = np.repeat([1.0, 3.0, 1.0, 3.0], BLOCK)  # sums of 5 and 15
    assert _spread(difference) == pytest.approx(math.sqrt(4) * np.std([5, 15, 5, 15], ddof=1))
    assert _spread(np.concatenate([[50.0], difference])) == _spread(
        difference
    )  # what does not fill a block is left out
    assert _spread(np.ones(4 * BLOCK - 1)) is None


def test_a_summary_by_hand():
    mean, low, high = _summary(np.array([3.0, 1.0, 2.0]), np.array([0.02, 0.9, 0.08]))
    assert (mean, low, high) == (pytest.approx(1.12), 1.0, 2.0)


def test_a_run_that_stands_still_is_uninformative():
    found = rank(run_of(np.full(30, 20) + np.tile([0, 2, -2], 10), 1000))
    assert not found.informative
    assert abs(found.yardsticks[0].behind) < 10


def test_too_few_steps_are_refused():
    with pytest.raises(FitError, match="8 steps to fit; 12"):
        rank(run_of([1] * 8))
    with pytest.raises(FitError, match="warm-up of 20"):
        rank(run_of([1] * 20), warm=20)
