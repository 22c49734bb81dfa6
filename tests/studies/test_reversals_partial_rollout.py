"""Each verdict of the study of partial rollout at the parameter it names, and its calculation against drawn lengths."""

import math

import numpy as np
import pytest

from sim.records.config import replace
from studies import study_partial_rollout as study

SEEDS = (0, 1)


def results(config, seeds=SEEDS):
    return {
        name: float(x.mean()) for name, x in study.results(study.recorded(config, seeds, study="reversals")).items()
    }


def test_without_spread_no_cap_changes_anything():
    """All are done at once, and no version is made in the rounds between."""
    one = {"step": 1.0, "use": 1.0, "old": 0.0, "fresh": 1.0}
    for cap in (math.inf, 2.0, 0.5):
        assert results(study.partial(1, cap, sigma=0.0), SEEDS[:1]) == pytest.approx(one)


def test_a_cap_moves_time_one_way_and_age_the_other():
    short, long = results(study.partial(1, 1.0)), results(study.partial(1, 4.0))
    assert short["step"] < 0.3 * long["step"]
    assert short["old"] > long["old"] + 0.3
    assert results(study.partial(study.GROUP, 4.0))["old"] > long["old"] + 0.15


def test_a_learner_that_takes_time_breaks_the_calculation():
    slow = results(replace(study.partial(1, 2.0), {"learner.base_s": 2.0}))
    assert slow["step"] == pytest.approx(4.0)
    assert slow["use"] < study.calculated(1, 2.0)["use"] - 0.2


def test_fresh_tokens_peak_at_two_not_at_the_ends():
    fresh = {cap: study.calculated(1, cap)["fresh"] for cap in study.CAPS}
    assert max(fresh, key=fresh.get) == 2.0
    assert min(fresh, key=fresh.get) == math.inf
    assert fresh[2.0] / fresh[1.0] == pytest.approx(1.31, abs=0.01)
    assert fresh[2.0] / fresh[4.0] < 1.1


@pytest.mark.parametrize(
    ("cap", "step", "use", "old"),
    [(math.inf, 11.7, 0.14, 0.0), (8.0, 7.7, 0.21, 0.11), (4.0, 4.0, 0.37, 0.28), (2.0, 2.0, 0.58, 0.5),
     (1.0, 1.0, 0.76, 0.71)],
)  # fmt: skip
def test_the_calculation_is_that_of_the_docstring(cap, step, use, old):
    found = study.calculated(1, cap)
    assert found["step"] == pytest.approx(step, abs=0.05)
    assert found["use"] == pytest.approx(use, abs=0.005)
    assert found["old"] == pytest.approx(old, abs=0.005)


@pytest.mark.parametrize("cap", [1.0, 4.0])
def test_the_old_share_of_groups_is_that_of_drawn_lengths(cap):
    """Groups of 8 drawn at random; a token is old with 1 - quiet^m, m rounds before its group's last."""
    length = np.exp(np.random.default_rng(0).standard_normal((50_000, study.GROUP)))
    last = np.ceil(length / cap).max(1)
    quiet = (1 - 1 / last.mean()) ** (study.BATCH // study.GROUP - 1)
    old = 0.0
    for k in range(1, int(last.max())):  # written in round k, m = last - k rounds before the end
        written = np.clip(length - (k - 1) * cap, 0, cap).sum(1)
        old += (written * np.where(last > k, 1 - quiet ** np.maximum(last - k, 0), 0)).sum()
    assert study.calculated(study.GROUP, cap)["old"] == pytest.approx(old / length.sum(), abs=0.005)


def test_a_group_of_one_has_the_old_share_of_renewal():
    """c E[R - 1] / E[L], but for the rounds in which nobody of 64 is done."""
    rounds = np.ceil(np.exp(study.SCORES) / 2.0)
    assert study.calculated(1, 2.0)["old"] == pytest.approx(
        2.0 * (study.MASS @ (rounds - 1)) / (study.MASS @ np.exp(study.SCORES)), abs=1e-9
    )
