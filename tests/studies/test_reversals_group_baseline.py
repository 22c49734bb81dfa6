"""The verdicts of the group-baseline study at the parameters it names as those that reverse them."""

import numpy as np
import pytest

from sim.learning.credit import GroupCredit, NoBaseline
from sim.learning.loop import train
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective
from sim.mdp.theory.spread import gradient_moments
from sim.records.config import replace
from studies import study_group_baseline as study

ALONE, GROUPED = NoBaseline(), GroupCredit(std=False)


def both(make, seeds=16, **changes):
    """Runs of both arms."""
    return (
        train(replace(make(credit), changes), tuple(range(seeds)), study="reversals") for credit in (ALONE, GROUPED)
    )


def test_where_few_questions_are_solved_a_group_does_not_reduce_the_noise():
    world, logits = study.idle_world(ALONE, study.HARD).world, (0.0, 30.0)
    graph = world.graph().compiled()
    policy = tables(graph, np.array(logits))
    exact = [gradient_moments(graph, policy, Objective(c, group=8, prompts=32)).variance for c in (ALONE, GROUPED)]
    sampled = [
        study.gradients(c, range(8), "reversals", world, logits).var(0, ddof=1).sum(-1).mean() for c in (ALONE, GROUPED)
    ]
    np.testing.assert_allclose(sampled, exact, rtol=0.15)
    scale = (7 / 8) ** 2
    assert sampled[0] / (sampled[1] / scale) < 1.2  # the study's region begins at 1.5
    assert exact[0] / (exact[1] / scale) == pytest.approx(0.96, abs=0.01)


def test_in_groups_of_two_half_the_gradient_is_gone():
    exact = study.exact_gradient()
    along = [
        study.gradients(c, range(8), "reversals", group=2, batches=60).mean((0, 1)) @ exact / (exact @ exact)
        for c in (ALONE, GROUPED)
    ]
    assert along[0] - along[1] > 0.35
    assert along[1] == pytest.approx(0.5, abs=0.1)


def test_an_idle_decision_of_hard_questions_stays_without_groups():
    alone, grouped = both(lambda credit: study.idle_world(credit, study.HARD))
    apart = [np.abs(r[study.IDLE][:, -1] - 0.5) > 0.4 for r in (alone, grouped)]
    assert apart[0].sum() <= 1
    assert apart[1].sum() <= 1
    assert np.ptp(alone[study.IDLE]) > 0.05  # it learned


def test_small_steps_on_large_batches_lose_no_rare_action():
    alone, grouped = both(study.rare_action, **{"optimiser.rate": 0.3, "prompts": 32, "steps": 60})
    for runs in (alone, grouped):
        assert not (runs[study.VERIFY][:, -1] < study.LOST).any()
        assert np.median(runs[study.VERIFY][:, -1]) > 0.1
