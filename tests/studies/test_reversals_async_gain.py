"""The verdicts on asynchrony come out otherwise where the study says they do."""

import numpy as np
import pytest

from sim.cluster.run import simulate
from sim.records.config import replace
from studies import anchors
from studies import study_async_gain as study

SEEDS = (100,)


def rates(cluster, shares, skip=study.SKIP):
    made = study.arms(cluster, shares)
    return {
        eta: np.array(
            [
                anchors.rate(simulate(c, s, engine="simpy").books.steps.ended_s[None], skip if eta else 0)[0]
                for s in SEEDS
            ]
        )
        for eta, c in made.items()
    }


def test_equal_lengths_leave_little_to_gain_at_any_split():
    for generate in study.GRID:
        found = rates(study.half_size(sigma=0.0), {2: generate / 8}, skip=2)
        assert (found[2] < 1.5 * found[0]).all()
        assert found[2] == pytest.approx(found[0] * study.bound(0.0, 2, generate), rel=0.1)


def test_the_lengths_of_the_study_gain_more_than_half():
    found = rates(study.half_size(), {1: 3 / 8, 2: 2 / 8})
    assert (found[2] > 1.5 * found[0]).all()
    assert (found[2] > 1.2 * found[1]).all()


def test_where_generation_is_the_slower_four_batches_gain_over_two():
    found = rates(study.half_size(train=0.02), {2: 6 / 8, 4: 6 / 8})
    assert (found[4] > 1.1 * found[2]).all()


def test_the_bound_is_flat_where_the_learner_is_the_slower():
    assert study.bound(0.6, 2, 2) == pytest.approx(study.bound(0.6, 4, 2)) == pytest.approx(2.0)
    assert study.bound(0.6, 4, 6, train=0.02) > 1.1 * study.bound(0.6, 2, 6, train=0.02)


def test_training_takes_its_share_of_synchronous_generation():
    cluster = replace(study.arms(study.half_size())[0], {"steps": 4})
    steps = simulate(cluster, 100, engine="simpy").books.steps
    assert steps.trained_s.mean() == pytest.approx(study.TRAIN * study.generation_s(0.6), rel=0.1)
    assert steps.waited_s.mean() == pytest.approx(study.generation_s(0.6), rel=0.2)
