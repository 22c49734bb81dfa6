"""Bounded staleness: its mean paths worked out again, and where its verdicts come out otherwise, by its own measures."""

import numpy as np
import pytest

from sim.cluster.learning import train
from sim.cluster.scheduling import greedy
from sim.mdp.theory.drift import Objective, effective_gap
from sim.records.config import replace
from studies import study_bounded_staleness as study


def steps_to_half(eta, steps, **changes):
    config = study.scheduled(study.pushed(study.FAST, steps, **changes), eta)
    return study.passage(train(config, (0, 1, 2), study="reversals", engine="simpy"))


def test_the_clip_makes_the_delay():
    prompt = steps_to_half(0, study.SHORT)
    assert prompt.max() < study.SHORT
    ratio = [
        np.exp(np.log(steps_to_half(study.ETA, study.STEPS, weight=weight) / prompt).mean())
        for weight in (None, study.NO_CLIP)
    ]
    assert ratio[0] > 1.25 > ratio[1]


def test_the_paths_foresee_the_passages():
    fast, free = study.pushed(study.FAST, 60), study.pushed(study.FAST, 60, weight=study.NO_CLIP)
    crossed = [int(np.argmax(study.path(c, lag) > 0)) for c, lag in ((fast, 0), (fast, study.ETA), (free, study.ETA))]
    assert crossed == [17, 29, 19]
    assert max(study.path(study.pushed(study.SLOW, 200), lag).max() for lag in (0, study.ETA)) < -0.8


def test_the_slow_push_is_below_the_critical_one_and_the_fast_above():
    config = study.pushed(study.SLOW, 1)
    policy = replace(config, {"habit": (("start/answer", 0.0), *config.habit[1:])}).policy()
    gap = effective_gap(config.graph(), policy.tables(np.zeros(policy.features.shape[1])), Objective())
    critical = config.optimiser.rate * gap / 4
    assert study.SLOW < 0.9 * critical < critical < study.FAST


def test_in_order_of_completion_the_mean_lag_is_lower():
    held = study.scheduled(study.pushed(study.SLOW, 30, questions=2), study.ETA)
    lags = [
        train(replace(held, {"cluster.order": order}), (0,), study="reversals", engine="simpy")[study.LAG].mean()
        for order in (held.cluster.order, greedy())
    ]
    assert lags[0] == pytest.approx(study.capacity_mean(study.ETA, 30), abs=1e-9)
    assert lags[1] < lags[0] - 1e-3


def test_a_dose_raises_flips_in_the_calculation_and_a_lag_does_not():
    quiet, loud = (study.predicted_flips(study.noisy(sd), walks=512) for sd in study.DOSES)
    assert loud > quiet + 0.3
    still, late = (study.predicted_flips(replace(study.noisy(), {"lag": lag})) for lag in (0, study.ETA))
    assert late - still == pytest.approx(-0.04, abs=0.01)
