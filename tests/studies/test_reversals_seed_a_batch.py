"""What decides whether seed A's second column is reached: the world's push, and where it vanishes."""

import numpy as np
import pytest

pytest.importorskip("torch")

from minimodel.agent.train import train
from minimodel.forecast import drawn_gap
from minimodel.tasks.task import played_world
from sim.mdp.calibration import TableFit, model_table, simulate
from sim.mdp.published import SEED_A
from sim.records.config import replace
from studies import study_seed_a_batch as study

ARMS = study.arms()
FOUND = {"task.world.hit_known": 0.5, "task.world.hit_unknown": 0.462}  # the same accuracy of a first answer
EASY = replace(ARMS[study.SHORT], FOUND)
"""What is known is found as well: the push points back to searching."""


@pytest.mark.parametrize(("label", "share"), [(study.FAR, 0.60), (study.SHORT, 0.28)])
def test_the_push_vanishes_where_the_study_says(label, share):
    assert study.at_rest(ARMS[label]) == pytest.approx(share, abs=0.02)
    assert drawn_gap(ARMS[label], 0) < -0.05


def test_the_push_points_back_where_what_is_known_is_found():
    assert drawn_gap(EASY, 0) > 0.05
    with pytest.raises(ValueError, match="must point towards guessing"):
        study.at_rest(EASY)


def test_near_is_what_95_of_100_sampled_batches_are_of_both_published_columns():
    world = played_world(ARMS[study.SHORT].task)
    logits = np.array([[np.log(share / (1 - share)), 9, -9] for share in (0.0157, 0.66)])
    model = model_table(world, logits, SEED_A.checkpoints, world)
    tables = simulate(TableFit(SEED_A, world, logits, model, 0, 0, 0), tuple(range(1000)), stream="near")
    batches = 100 * np.array([np.stack([t.accuracy, t.search_share], 1) for t in tables])  # [S, checkpoints, 2, K]
    most = np.quantile(study.distance(batches, study.PUBLISHED), 0.95, axis=0)
    assert most == pytest.approx([4.8, 4.4], abs=0.4)
    assert most.max() < study.NEAR + 0.2


@pytest.mark.long
def test_nothing_flips_where_the_push_points_back(tmp_path):
    config = replace(EASY, {"start.steps": 300, "start.batch": 32, "steps": 18})
    runs = train(config, (0,), study="reversal", folder=tmp_path)
    assert runs[study.GUESS].max() < 0.1
    assert study.distance(study.batches(runs), study.PUBLISHED[1]).min() > 5 * study.NEAR
