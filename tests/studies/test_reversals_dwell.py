"""The verdicts on dwell times come out otherwise where the study says they do, by its own measures."""

import numpy as np
from scipy.special import expit

from sim.learning.loop import train
from sim.learning.presets import noise
from sim.records.config import replace
from studies import study_dwell as study

SMALL = {"prompts": 8}


def run(config, seeds, **changes):
    return train(replace(config, SMALL | changes), tuple(range(seeds)), study="reversals", block=seeds)


def test_a_drive_below_the_fold_makes_a_well():
    free, held = (run(config, 28)[study.LOGIT] for config in (study.noisy(), study.well()))
    assert study._spread(free) > 0.65
    assert study._spread(held, study.PAST) < 0.65
    assert np.ptp(held[:, -1]) > 1  # it is noise that the well holds, not stillness


def test_with_short_steps_escapes_have_only_begun():
    small_steps = replace(study.noisy(6.0, rate=0.15), {"steps": 400})
    assert study._place(expit(study.predicted(small_steps))) > 0.6
    assert study._place(expit(study.predicted(study.noisy()))) < 0.4
    assert study._place(run(small_steps, 96)[study.GUESS]) > 0.5


def test_the_rate_is_wrong_beside_a_noise_free_weight():
    protected = run(noise(0.5, private=0.1), 32, steps=300)[study.GUESS]
    foreseen = study.rate(expit(study.predicted(replace(study.noisy(), {"steps": 300}))))
    assert foreseen > 1e-3
    assert study.rate(protected) < foreseen / 2


def test_without_the_first_moment_stays_are_less_than_half_as_long():
    short = run(study.noisy(b1=0.0), 96, steps=250)[study.GUESS]
    assert (short >= 0.5).any(1).sum() > 10
    assert study.stay(short) < study.stay(expit(study.predicted(study.noisy()))) / 2


def test_the_prediction_for_the_well_is_the_chains():
    """Two ways to the same number: walks of the reduced model, and the solved chain on a grid."""
    from sim.mdp.theory.escape import survival

    config = study.well()
    past = float(np.log(study.PAST / (1 - study.PAST)))
    up = study.theory(config, np.linspace(-12, past, 601))
    left = survival(up, study.WELL, study.STEPS - 1)[-1]
    walked = (study.predicted(config) < past).all(1).mean()
    assert 0.3 < left < 0.8
    assert abs(walked - left) < 4 * np.sqrt(left * (1 - left) / 4096)
