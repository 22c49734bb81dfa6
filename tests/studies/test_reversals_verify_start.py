"""The verdicts on the wait for verify turn round at the optimiser, the rarity and the teaching of the start."""

import numpy as np
import pytest

pytest.importorskip("torch")

from minimodel.agent.train import train
from minimodel.forecast import drawn_gap
from sim.mdp.theory.waiting import adam, adam_in_noise, adam_steps, sgd
from sim.records.config import replace
from studies import study_verify_start as study
from studies.kit.slopes import power

ARMS = study.arms()
ADVANTAGE = 0.87  # mean size of a group's standardised advantage where half of eight succeed


def test_plain_gradients_are_beyond_the_region_and_adam_is_inside():
    slopes = {
        name: power({p: [law.wait(p)] for p in study.P0})[0]
        for name, law in (("sgd", sgd(1, 1)), ("noise", adam_in_noise(1, 1)), ("clear", adam(1)))
    }
    assert slopes["sgd"] == pytest.approx(-0.93, abs=0.01)
    assert slopes["sgd"] < -0.74 < slopes["noise"] < slopes["clear"]


@pytest.mark.parametrize(("turns", "slope"), [(2, -0.45), (3, -0.40)])
def test_the_predicted_slope_follows_from_the_gap_and_the_size_of_an_update(turns, slope):
    gap = -drawn_gap(ARMS[study.GOOD], 0, "fresh/verify")
    noise = gap * np.sqrt(128) / (2 * ADVANTAGE / turns)
    waits = {p: [adam_steps(1.0, noise, np.log(p / (1 - p)))] for p in study.P0}
    assert power(waits)[0] == pytest.approx(slope, abs=0.02)


def test_a_constant_speed_allows_the_ratio_at_the_end_of_the_region():
    assert adam(1.0).ratio(0.003) == pytest.approx(1.32, abs=0.01)
    assert adam(1.0).ratio(0.1) == pytest.approx(0.5)


@pytest.mark.long
def test_a_start_that_was_taught_half_as_long_is_good_enough(tmp_path):
    """Reverses `verify-does-not-emerge-from-the-poorest-start`: at 150 updates of teaching instead of 100 it does."""
    config = replace(ARMS[study.POOREST], {"start.steps": 150, "steps": 60})
    runs = train(config, (0, 1), study="reversal", folder=tmp_path)
    assert (runs[study.VERIFY].max(1) > 0.5).all()
