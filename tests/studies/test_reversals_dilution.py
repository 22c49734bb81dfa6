"""Each verdict of the study of dilution at the parameter it names as the one that reverses it."""

import numpy as np
import pytest

from sim.learning.loop import train
from studies import study_dilution as study
from studies.kit.slopes import power


def run(tokens, coupling):
    return train(study.at(tokens, coupling), tuple(range(6)), study="reversals")


@pytest.mark.parametrize(("coupling", "slope"), [(study.COUPLING, -0.988), (1.0, 0.0)])
def test_the_clip_fraction_falls_with_length_unless_content_leaves_the_band(coupling, slope):
    found = power({L: study.level(run(L, coupling), "token", study.OUTSIDE) for L in study.ENDS})
    assert found.mean() == pytest.approx(slope, abs=0.05)


def test_the_floor_is_content_s_unless_content_stands_still():
    assert (study.due_to_decisions(run(study.LONG, study.COUPLING)) < 0.1).all()
    np.testing.assert_allclose(study.due_to_decisions(run(study.LONG, 0.0)), 1)


def test_the_decision_itself_is_not_diluted():
    short, long = (run(L, study.COUPLING) for L in study.ENDS)
    for statistic in (study.OUTSIDE, study.DISTANCE):
        found = study.level(short, "turn", statistic)
        assert (found > 0.005).all()
        np.testing.assert_array_equal(found, study.level(long, "turn", statistic))
