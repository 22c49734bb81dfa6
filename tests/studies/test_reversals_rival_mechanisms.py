"""Rival mechanisms, grid, way back, speed limit: their predictions worked out again, and where verdicts turn round."""

import numpy as np
import pytest
from scipy.optimize import brentq

pytest.importorskip("torch")

from minimodel.agent.schedule import Lag
from minimodel.agent.setup import Drive
from minimodel.agent.train import train
from minimodel.forecast import drawn_gap
from sim.learning.normalisers import BatchMean, TokenMean
from sim.learning.weights import ppo_clip, truncated
from sim.records.config import replace
from studies import study_clip_speed_limit as clip
from studies import study_length_grid as grid
from studies import study_recovery as recovery
from studies import study_rival_mechanisms as rivals
from studies.lost_rollouts import critical_loss, gap

GUESS, VERIFY = grid.GUESS, clip.VERIFY


def test_the_grid_has_far_worlds_on_both_sides_and_near_ones_between():
    gaps = {label: drawn_gap(config, 0) for label, config in grid.arms().items()}
    for row in ("h", "a_K"):
        along = [gaps[label] for label in grid.worlds() if label.startswith(row)]
        assert along == sorted(along)  # the better the retriever, the more it pushes back
        assert along[0] < -grid.NEAR < grid.NEAR < along[-1]
    assert sum(abs(gaps[label]) < grid.NEAR for label in grid.worlds()) == 4
    assert all(gap > 0 for label, gap in gaps.items() if label not in grid.worlds())


def test_seeds_differ_in_their_facts_and_not_in_what_is_enumerated():
    for label in ("h = 0.35", "a_K = 0.13"):
        config = grid.arms()[label]
        assert np.ptp([drawn_gap(config, seed) for seed in range(3)]) < 1e-9


def at_share(config, share):
    return drawn_gap(replace(config, {"start.script.guess": share}), 0)


def test_the_way_back_ends_where_the_gap_vanishes():
    same = recovery.arms()[recovery.SAME]
    assert brentq(lambda share: at_share(same, share), 0.1, 0.95) == pytest.approx(recovery.ZERO, abs=0.005)
    assert at_share(same, 0.97) == pytest.approx(0.041, abs=0.001)


@pytest.mark.parametrize(("label", "at_the_end"), [(recovery.MEAN, 0.013), (recovery.FOUND, 0.11)])
def test_after_either_change_the_gap_is_positive_at_every_share(label, at_the_end):
    before = recovery.arms()[label]
    (change,) = before.changes
    then = {"rule": change.rule or before.rule, "task.world": change.world or before.task.world}
    after = replace(before, {"changes": ()} | then)
    gaps = [at_share(after, share) for share in (0.06, 0.3, 0.5, 0.7, 0.9, 0.97)]
    assert min(gaps) > 0
    assert gaps[-1] == pytest.approx(at_the_end, abs=0.002)


def test_the_speed_limit_by_hand():
    assert clip.limit(0.2) == pytest.approx(126.0, abs=0.1)  # 4.595 x 5 / .1823
    share = np.full((1, 30), 0.01)
    odds = np.log(share / (1 - share)) + 0.05 * np.arange(30)
    assert clip.fastest(1 / (1 + np.exp(-odds))) == pytest.approx([0.05])


def test_growth_that_is_nearly_done_is_not_counted():
    odds = np.concatenate([np.full(15, -4.0), np.full(15, 3.0)])[None]  # .95 after a jump
    assert clip.fastest(1 / (1 + np.exp(-odds))) == pytest.approx([0.0])


def test_what_is_lost_reduces_to_the_enumerated_gap_where_nothing_is():
    config = replace(rivals.arms()[f"lost {rivals.FEW}"], {"rule.normaliser": BatchMean()})
    whole = replace(config, {"schedule": Lag(0)})
    assert gap(config, 0.0) == pytest.approx(drawn_gap(whole, 0), rel=1e-4)  # there never is 1e-6


def test_the_critical_loss_rises_with_what_the_retriever_finds():
    base = rivals.arms()[f"lost {rivals.LOST}"]
    found = [critical_loss(replace(base, grid.worlds()[f"a_K = {a}"])) for a in (0.13, 0.25, 0.5, 0.8)]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(0.72, abs=0.005)
    assert critical_loss(base) == pytest.approx(0.25, abs=0.005)
    assert gap(base, rivals.FEW) > 0.05
    assert gap(base, rivals.LOST) < -0.05


@pytest.mark.long
def test_with_a_good_retriever_from_the_first_step_nothing_flips(tmp_path):
    """Reverses the length window, in the studies of the grid and of the way back: the hit rate on known questions."""
    config = replace(recovery.arms()[recovery.SAME], {"steps": 45, "evaluation": None})
    runs = train(replace(config, {"task.world.hit_known": 0.9}), (0, 1, 2), study="reversal", folder=tmp_path)
    assert (runs[GUESS].max(1) < 0.5).all()


@pytest.mark.long
def test_a_push_that_is_too_weak_to_carry_the_decision_across_does_not(tmp_path):
    """Reverses `a-fast-push-flips-under-a-token-mean`: one logit in place of six."""
    config = replace(rivals.arms()["push, fast"], {"steps": 30, "drive": Drive(rate=0.1, start=5, duration=10)})
    assert config.rule.normaliser == TokenMean()
    runs = train(config, (0, 1), study="reversal", folder=tmp_path)
    assert (runs[GUESS].max(1) < 0.5).all()


@pytest.mark.long
def test_under_a_lag_the_weight_decides_whether_verify_comes_soon(tmp_path):
    """Reverses `the-clip-delays-what-emerges-under-a-lag`: truncated ratios in place of a clip of .1."""
    base = replace(clip.arms()["clip 0.1"], {"steps": 45})
    assert base.rule.weight == ppo_clip(0.1, 0.1)
    clipped = train(base, (0, 1), study="reversal", folder=tmp_path)
    free = train(replace(base, {"rule.weight": truncated(5.0)}), (0, 1), study="reversal", folder=tmp_path)
    assert (clipped[VERIFY][:, -1] < 0.5).all()
    assert (free[VERIFY][:, -1] > 0.5).all()
