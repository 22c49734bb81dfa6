"""The verdicts on staleness come out otherwise where the study says they do, by its own measures."""

import numpy as np
import pytest

from sim.learning.loop import train
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies import study_staleness as study
from studies.kit.kinds import trend


def flips(config, seeds=32):
    runs = train(replace(config, {"prompts": 8}), tuple(range(seeds)), study="reversals", block=seeds)
    return np.isfinite(first_passages(runs[study.GUESS], 0.5))


def test_a_dose_raises_flips_where_a_lag_does_not():
    def rise(arms):
        return trend().estimate(arms=arms).effect

    still = flips(study.noisy())
    assert still.any()
    assert rise({s: flips(study.noisy(s)) for s in (0.1, 1.0)}) > 0.1
    assert rise({0: still, 16: flips(study.noisy(lag=16))}) < 0.1


def test_the_calculation_knows_lag_clip_and_dose():
    none, lag, free, loud = (
        study.predicted_flips(config)
        for config in (study.noisy(), study.noisy(lag=16), study.noisy(lag=16, weight=study.NO_CLIP), study.noisy(1.0))
    )
    assert lag < free - 0.02 < none
    assert none < loud - 0.05
    assert study.predicted_flips(study.noisy(0.1)) < 0.02


@pytest.mark.parametrize("z", [-4.14, -1.0, 2.0])
def test_without_lag_its_pull_is_the_exact_one(z):
    config = study.noisy()
    graph, others = config.graph(), config.policy().z0[1:]
    policy = tables(graph, np.array([z, *others]))
    share = policy.probability[graph.free_context[0], graph.free_action[0]]
    exact = -effective_gap(graph, policy, Objective()) * share * (1 - share)
    assert study.mean_pull(config)(np.array([z]), np.array([z]))[0] == pytest.approx(exact, rel=1e-3)
