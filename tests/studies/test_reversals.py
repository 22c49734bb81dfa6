"""Every verdict can come out otherwise: each study at the parameter it names as the one that reverses it.

Small versions of the studies' own settings, with the studies' own measures.
"""

import numpy as np
import pytest

from sim.learning.credit import GroupCredit
from sim.learning.normalisers import MicrobatchMean, TokenMean
from sim.learning.optimisers import Sgd
from sim.learning.presets import drive, length_window, noise, null, verify
from sim.learning.rule import Rule
from sim.mdp.calibration import fit, simulate
from sim.mdp.policy import tables
from sim.mdp.published import SEED_A
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.theory.fold import Fold
from sim.mdp.worlds import seed_a
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies import study_kl_lead, study_length_window, study_noise_and_clean_weights, study_verify_persists
from studies.kit.intervals import order_statistic
from studies.kit.kinds import rank, rate_difference

GUESS = "decision/share/start/answer"


def run(config, seeds=8, first=0, study="reversals"):
    from sim.learning.loop import train

    return train(config, tuple(range(first, first + seeds)), study=study)


def flips(runs, column=GUESS):
    return np.isfinite(first_passages(runs[column], 0.5))


def test_a_drive_flips_above_the_fold_and_not_below():
    gap = effective_gap(null().graph(), tables(null().graph(), null().policy().z0), Objective())
    fold = Fold(2.4, gap).critical_drive
    for factor, flipped in ((0.6, 0), (1.6, 8)):
        config = replace(drive(), {"drive.rate": factor * fold, "drive.duration": 60, "steps": 80})
        assert flips(run(config)).sum() == flipped


def test_noise_below_the_threshold_flips_nothing_even_through_a_noisy_private_weight():
    assert flips(run(replace(noise(0.03, private=0.1, noisy=True), {"steps": 300}))).sum() == 0
    assert flips(run(replace(noise(1.0, private=0.1, noisy=True), {"steps": 600}), seeds=16)).sum() >= 3


def test_without_noise_on_the_private_weight_the_arms_do_not_differ():
    calm = flips(run(replace(noise(0.3, private=0.1), {"steps": 300})))
    found = rate_difference().estimate(treated=calm, control=calm)
    assert found.reason == "the arms did not differ"


def test_the_first_passage_prediction_knows_its_threshold():
    config = noise(0.3)
    gap = effective_gap(config.graph(), tables(config.graph(), config.policy().z0), Objective())
    low, high = (study_noise_and_clean_weights.predicted_flips(s, gap, config) for s in (0.05, 0.5))
    assert low < 0.01
    assert high > 0.3


def test_the_length_window_closes_outside_and_with_another_normaliser():
    base = replace(length_window(), {"steps": 250})
    assert np.median(run(base)[GUESS][:, -1]) > study_length_window.DRIFTED
    for change in ({"world": seed_a()}, {"rule.normaliser": TokenMean()}, {"rule.normaliser": MicrobatchMean(2)}):
        assert np.median(run(replace(base, change))[GUESS][:, -1]) < 0.05


def test_trajectory_kl_leads_only_where_the_push_alone_moves_content():
    def lead(pair, coupling):
        runs, controls = run(pair[0], 16), run(pair[1], 100, first=1000)
        guess = study_kl_lead._watch(runs, controls, lambda r: r[GUESS])[0]
        return np.median(
            guess - study_kl_lead._watch(runs, controls, lambda r: study_kl_lead._trajectory_kl(r, coupling))[0]
        )

    alone, learning = study_kl_lead.pushed_only(), study_kl_lead.arms()
    assert lead(alone, 0.0) < 0 < lead(alone, 0.01)
    assert lead(learning, 0.01) < 0


def test_only_the_verifier_that_pays_persists():
    end = {
        label: run(config)[study_verify_persists.GUESS if label == "guess" else study_verify_persists.VERIFY][:, -1]
        for label, config in study_verify_persists.displaced().items()
    }
    assert (end["verify"] > 0.9).all()
    assert (end["guess"] < 0.1).all()
    assert not (end["harmful verify"] > 0.9).any()
    np.testing.assert_allclose(end["verify, no learning"], 1 / (1 + np.exp(-1)))


def test_a_longer_push_breaks_the_schedule_of_the_return():
    config = replace(drive(), {"drive.duration": 30, "steps": 120})
    assert np.abs(study_verify_persists._lateness(run(config), config)).max() < 4
    config = replace(drive(), {"drive.duration": 45, "steps": 400})  # so far out that it does not come back
    assert np.isnan(study_verify_persists._lateness(run(config), config)).all()


def test_sgd_waits_for_verify_where_the_natural_gradient_does_not():
    natural = replace(verify(), {"steps": 140})
    assert flips(run(natural), study_verify_persists.VERIFY).all()
    assert not flips(run(replace(natural, {"optimiser": Sgd(1.5)})), study_verify_persists.VERIFY).any()


def test_reward_tells_policies_of_unequal_value():
    still = replace(null(), {"optimiser": Sgd(0.0), "steps": 6})
    worse = replace(still, {"habit": (("start/answer", 0.74), ("fresh/answer", 4.85), ("failed/answer", -2.7))})
    good, bad = run(still)["train/reward"].ravel(), run(worse, first=100)["train/reward"].ravel()
    assert rank().estimate(positive=good, negative=bad).effect > 0.9


def test_a_table_that_keeps_its_first_decision_shows_no_flip():
    best = fit(SEED_A, starts=2)
    kept = best.logits.copy()
    kept[1, 0] = kept[0, 0]
    from dataclasses import replace as with_

    table = simulate(with_(best, logits=kept), (0,), stream="reversals")[0]
    again = fit(table, near=best)
    assert abs(again.policies[1, 0] - again.policies[0, 0]) < 0.1


def test_few_questions_do_not_recover_what_many_do():
    best = fit(SEED_A, starts=2)
    tables_ = simulate(best, tuple(range(20)), stream="reversals", prompts=4)
    errors = [fit(t, near=best).first_answer_accuracy - best.first_answer_accuracy for t in tables_]
    low, high = order_statistic(np.array(errors), 0.05)
    assert not (low > -0.04 and high < 0.04)


def test_the_hit_rate_on_known_matters_once_the_others_are_held():
    best = fit(SEED_A, starts=2)
    held = {"hit_known": 0.15, "hit_unknown": best.world.hit_unknown, "icc": best.world.icc, "known": best.world.known}
    assert fit(SEED_A, fixed=held, starts=2).rms_points > best.rms_points + 0.05


@pytest.mark.parametrize("std", [True, False])
def test_a_learner_of_rate_zero_stays(std):
    config = replace(null(), {"optimiser": Sgd(0.0), "rule": Rule(credit=GroupCredit(std=std)), "steps": 5})
    assert np.ptp(run(config)[GUESS], axis=1).max() == 0
