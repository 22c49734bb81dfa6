"""The fold study at the parameters it names as those that reverse its verdicts."""

import numpy as np

from sim.learning.loop import train
from sim.learning.optimisers import Adam
from sim.learning.presets import null
from sim.records.config import replace
from studies import study_fold as study
from studies.kit.kinds import mean, median, rate
from studies.kit.regions import above, below, within
from studies.kit.verdict import judge

FOLD, EXACT = study.folds(null())


def run(config, seeds=6):
    return train(config, tuple(range(seeds)), study="reversals")


def test_under_adam_guessing_does_not_rest_where_the_fold_says():
    runs = run(replace(study.pushed(0.8, FOLD), {"optimiser": Adam(0.6)}))
    away = np.abs(runs[study.GUESS][:, 70:].mean(1) - FOLD.fixed_point(0.8 * FOLD.critical_drive))
    assert judge(median().estimate(values=away), below(0.05)).verdict == "refuted"
    assert (runs[study.GUESS][:, -1] < 0.05).all()  # a push of .19 a step moves nothing against a pull of .6


def test_under_adam_passage_is_earlier_than_the_integral():
    config = replace(study.pushed(1.1, FOLD), {"optimiser": Adam(0.1)})
    steps = study.passages(run(config))
    integral = EXACT.passage_steps(1.1 * FOLD.critical_drive, study.start(config))
    found = mean(scale="log").estimate(treated=steps, control=np.full(len(steps), integral))
    assert judge(found, within(0.8, 1.2)).verdict == "refuted"


def test_without_a_pull_passage_does_not_slow_at_the_fold():
    steps = {x: study.passages(run(study.pushed(x, FOLD, rate=0.0))) for x in study.ABOVE}
    assert judge(median().estimate(values=study.slowing(steps)), below(-0.4)).verdict == "refuted"


def test_below_the_fold_nothing_passes_and_above_it_all_do():
    for times, region in ((0.9, below(0.5)), (1.5, above(0.5))):
        passed = np.isfinite(study.passages(run(study.pushed(times, FOLD))))
        assert judge(rate().estimate(outcomes=passed), region).verdict == "supported"
        assert passed.all() == (times > 1)


def test_the_gap_is_the_exact_one_between_the_points_it_is_fitted_on():
    from sim.mdp.policy import free_logits, tables
    from sim.mdp.theory.drift import Objective, effective_gap

    graph = null().graph()
    for z in (-5.0, -1.3, 0.4, 3.0):
        policy = tables(graph, free_logits(graph, null().habit, start__answer=z))
        assert abs(EXACT.gap(z) - effective_gap(graph, policy, Objective())) < 1e-6
