"""The study of waiting times at the parameters it names as those that reverse its verdicts."""

import numpy as np
import pytest

from sim.learning.loop import train
from studies import study_waiting_time as study
from studies.kit.kinds import mean, median
from studies.kit.regions import above, within
from studies.kit.slopes import power
from studies.kit.verdict import judge


def waits(name, shares):
    arms = study.arms(name)
    return {p0: study.wait(train(arms[p0], tuple(range(6)), study="reversals")) for p0 in shares}


@pytest.mark.parametrize(
    ("name", "region"), [("natural", (-1.1, -0.8)), ("Adam", (-1.1, -0.8)), ("SGD", (-0.45, -0.1))]
)
def test_each_optimiser_refutes_the_law_of_the_other_class(name, region):
    slopes = power(waits(name, (0.1, 0.01)))
    assert judge(median().estimate(values=slopes), within(*region)).verdict == "refuted"


def test_from_one_use_in_ten_the_ratio_tells_nothing():
    ratio = {}
    for name in study.OPTIMISERS:
        runs = train(study.arms(name, steps=150)[0.1], tuple(range(6)), study="reversals")
        # the start is at 10 %, give or take a step
        ratio[name] = study.wait(runs) / study.first_passages(runs[study.VERIFY], 0.9)
    found = mean(scale="log").estimate(treated=ratio["SGD"], control=np.maximum(ratio["natural"], ratio["Adam"]))
    assert judge(found, above(2)).verdict == "refuted"


def test_the_gap_is_that_of_verifying():
    """(1 - 1/G) of .182, in favour of verifying."""
    assert study.gap(study.arms("SGD")[0.01]) == pytest.approx(0.875 * 0.1816, abs=5e-4)
