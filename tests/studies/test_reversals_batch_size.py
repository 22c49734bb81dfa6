"""The verdicts on batch size come out otherwise where the study says they do, by its own measures."""

import numpy as np
import pytest

from sim.learning.loop import train
from sim.signals.onsets import first_passages
from studies import study_batch_size as study
from studies.kit.kinds import trend


def flips(config, seeds=48):
    runs = train(config, tuple(range(seeds)), study="reversals", block=seeds)
    return np.isfinite(first_passages(runs[study.GUESS], 0.5))


def test_flips_fall_with_the_noise_and_not_with_the_batch():
    few = flips(study.batch(2))
    assert few.sum() > 8
    held, scaled = flips(study.batch(32, 0.8)), flips(study.batch(32))
    assert trend().estimate(arms={2: few, 32: held}).effect > -0.1
    assert trend().estimate(arms={2: few, 32: scaled}).effect < -0.1


def test_the_noise_falls_as_the_root_of_the_batch():
    assert [study.batch(Q).noise.sd for Q in study.BATCHES] == pytest.approx([0.8, 0.4, 0.2])
    assert study.batch(32, 0.8).noise.sd == 0.8
    assert study.batch(8).prompts == 8


def test_the_prediction_sees_the_noise_only():
    loud, same, quiet = (study.predicted_flips(c) for c in (study.batch(2), study.batch(32, 0.8), study.batch(32)))
    assert loud == same > quiet + 0.2
