"""The fitted world: pooling by hand, what a simulated run gives back, and what stays open."""

import numpy as np
import pytest
from scipy.special import logit

from studies.kit.fitting.data import Observed
from studies.kit.fitting.world import EARLY, HELD, LATE, fit_world, pooled
from tests.studies.kit.fitting.runs import LATER, exact_run


def test_pooling_by_hand():
    T = 40
    share = np.linspace(0, 0.39, T)[:, None] * np.ones(2)
    table, steps = pooled(Observed("a", np.arange(T) + 100, share, share, np.full(T, 8)))
    assert steps == (EARLY, LATE)
    np.testing.assert_allclose(table.search_share[:, 0], [share[:EARLY].mean(), share[-LATE:].mean()])
    assert table.checkpoints == ("steps 100-119", "steps 135-139")


def test_rollouts_weigh_in_a_pool():
    share = np.array([0.0, 0.3] * 6)[:, None] * np.ones(2)
    table, steps = pooled(Observed("a", np.arange(12), share, share, np.array([100, 200] * 6)))
    assert steps == (7, 5)
    # the last five: .3 x 3 of 600 rollouts in all and 0 x 2 of 200
    assert table.accuracy[1, 0] == pytest.approx(0.3 * 600 / 800)


def test_an_exact_run_gives_its_world_back():
    found = fit_world(exact_run(np.linspace(-4.14, 0.7, 25)))
    assert found.best.max_residual_points < 0.1
    assert len(found.fits) == found.tried == len(HELD)  # the tables do not tell the hit rates apart
    held = next(f for f in found.fits if f.world.hit_known == 0.8)
    assert held.world.known == pytest.approx(0.21, abs=0.005)
    assert held.world.hit_unknown == pytest.approx(0.385, abs=0.01)
    np.testing.assert_allclose(held.logits[:, 1:], [LATER, LATER], atol=0.1)
    g = 1 / (1 + np.exp(-np.linspace(-4.14, 0.7, 25)))
    assert held.logits[1, 0] == pytest.approx(logit(g[-LATE:].mean()), abs=0.02)


def test_open_quantities_are_shown_with_their_range():
    rows = {name: ends for name, *ends in fit_world(exact_run(np.linspace(-4.14, 0.7, 25))).quantities()}
    assert rows["hit_known"][1:] == [0.15, 0.8]
    best, low, high = rows["a first answer on evidence is right"]
    assert low <= best <= high
    assert high - low < 0.005  # identified, whatever the hit rate
    assert rows["hit_unknown"][2] - rows["hit_unknown"][1] > 0.1
