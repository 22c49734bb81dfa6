"""The overshoot study at the parameters it names as those that reverse its verdicts."""

import numpy as np
import pytest

from sim.learning.loop import train
from sim.learning.optimisers import Sgd
from studies import study_overshoot as study
from studies.kit.kinds import median
from studies.kit.regions import above, below, within
from studies.kit.verdict import judge


def slopes(configs, ends, seeds=6):
    runs = [train(config, tuple(range(seeds)), study="reversals") for config in configs.values()]
    return study.slopes([study.returns(r, end) for r, end in zip(runs, ends, strict=True)])


def verdict(values, region):
    return judge(median().estimate(values=values), region).verdict


@pytest.fixture(scope="module")
def started():
    """Slopes of an Adam that starts far out."""
    return slopes(study.starts(study.ADAM), (0, 0, 0))


def test_adam_that_starts_there_does_not_return_exponentially_late_and_sgd_does(started):
    sgd = slopes(study.starts(Sgd(12.0)), (0, 0, 0))
    assert verdict(started, within(0.7, 1.1)) == "refuted"
    assert verdict(sgd, below(0.4)) == "refuted"


def test_a_push_that_jumps_leaves_nothing_to_remember(started):
    jumped = slopes(study.pushes(study.ADAM, {(8.1, 1): 110, (9.1, 1): 150, (10.1, 1): 300}), (1, 1, 1))
    assert verdict(jumped - started, above(0.1)) == "refuted"


def test_the_expected_course_of_adam_is_that_of_the_runs():
    gap, (z, steps) = study.expected_returns(study.ADAM, study.ADAM_PUSHES)
    assert 0.35 < gap < 0.45
    for config, (_, n), far, late in zip(
        study.pushes(study.ADAM, study.ADAM_PUSHES).values(), study.ADAM_PUSHES, z, steps, strict=True
    ):
        reached, took = study.returns(train(config, tuple(range(6)), study="reversals"), n)
        assert abs(np.median(reached) - far) < 0.15
        assert abs(np.median(took) / late - 1) < 0.15
