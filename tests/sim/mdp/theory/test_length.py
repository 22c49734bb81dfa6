from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.learning import presets
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean, MicrobatchMean, SequenceMean, TokenMean
from sim.mdp.exact import trajectories
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.theory.length import SEED_A_HABIT, first_order_world, flip_threshold, length_window
from sim.mdp.worlds import seed_a

PURE = (("start/answer", -18.0), ("fresh/answer", 40.0), ("failed/answer", -40.0))
PROTOTYPE = {0.30: 0.15, 0.35: 0.175, 0.40: 0.21, 0.45: 0.24, 0.50: 0.28, 0.60: 0.36}
"""Thresholds by hit rate that a prototype reported, to two or three digits."""


# --- the closed form --------------------------------------------------------------------------------------------------


def test_a_half_by_hand():
    """h = 1/2: b = 3/4; guess p/4 - (1 - p) 5/96, search 1/16 + 1/64 - 3/64: equal at p = 8/29."""
    guess = {p: p / 4 + (1 - p) * (1 / 2 * 1 / 4 / 3 - 1 / 2 * 3 / 4 / 4) for p in (0.0, 8 / 29)}
    assert guess[0.0] == pytest.approx(-5 / 96)
    assert guess[8 / 29] == pytest.approx(1 / 16 + 1 / 64 - 3 / 64)
    assert flip_threshold(0.5) == pytest.approx(8 / 29)


@pytest.mark.parametrize("hit", PROTOTYPE)
def test_it_is_what_a_prototype_reported(hit):
    assert flip_threshold(hit) == pytest.approx(PROTOTYPE[hit], abs=0.005)


@given(st.floats(0.01, 0.99))
def test_it_solves_the_equation_over_all_trajectories(hit):
    world = first_order_world(hit, flip_threshold(hit))
    graph = world.graph().compiled()

    def per_turn(start):
        found = trajectories(graph, tables(graph, np.array([start, 800.0, -800.0])))
        success = 1 - (1 - hit) ** 2
        return sum(graph.share[t.kind] * t.probability * (t.reward - success) / t.turns for t in found)

    assert per_turn(800.0) == pytest.approx(per_turn(-800.0), abs=1e-12)
    assert 0 < flip_threshold(hit) < hit


@pytest.mark.parametrize("hit", [0.0, 1.0, -0.1])
def test_at_the_ends_there_is_nothing_to_learn(hit):
    with pytest.raises(ValueError, match=r"hit = .* must lie in \(0, 1\)"):
        flip_threshold(hit)


# --- any world --------------------------------------------------------------------------------------------------------


@settings(max_examples=5)
@given(st.floats(0.2, 0.8), st.integers(2, 9), st.booleans())
def test_the_window_of_the_first_order_world_is_from_the_threshold_to_the_hit_rate(hit, group, std):
    """Whatever the size of the group and whether its spread divides: every question is solved equally often."""
    objective = Objective(GroupCredit(std=std), SequenceMean(), group)
    low, high = length_window(first_order_world(hit, 0.5), objective, PURE, points=25)
    assert low == pytest.approx(flip_threshold(hit), abs=1e-6)
    assert high == pytest.approx(hit, abs=1e-6)


@pytest.mark.parametrize("normaliser", [BatchMean(), TokenMean()], ids=repr)
def test_without_a_weight_by_own_length_there_is_no_window(normaliser):
    objective = Objective(GroupCredit(std=False), normaliser)
    assert length_window(first_order_world(0.35, 0.5), objective, PURE, points=25) is None


def test_micro_batches_narrow_it():
    world = first_order_world(0.35, 0.5)
    lows = [
        length_window(world, Objective(GroupCredit(std=False), MicrobatchMean(n)), PURE, points=25)[0]
        for n in (1, 2, 4)
    ]
    assert lows[0] == pytest.approx(flip_threshold(0.35), abs=1e-6)
    assert lows[0] + 0.05 < lows[1] < lows[2] < 0.35


def test_at_its_ends_the_gap_changes_sign():
    """Seed A's world at a hit rate of .6 on known questions, with std as in the preset."""
    config = presets.length_window()
    objective, plain = Objective(normaliser=SequenceMean()), Objective(GroupCredit(std=False))
    low, high = length_window(config.world, objective)
    assert (low, high) == pytest.approx((0.302, 0.536), abs=1e-3)
    assert low < config.world.known < high

    def gaps(known):
        graph = replace(config.world, known=known).graph().compiled()
        policy = tables(graph, np.array([z for _, z in SEED_A_HABIT]))
        return effective_gap(graph, policy, objective), effective_gap(graph, policy, plain)

    assert gaps(low + 1e-4)[0] < 0 < gaps(low - 1e-4)[0]
    assert gaps(high - 1e-4)[1] > 0 > gaps(high + 1e-4)[1]


def test_seed_as_own_world_lies_outside():
    low, _ = length_window(seed_a())
    assert low > seed_a().known + 0.2


def test_from_a_habit_of_guessing_there_is_no_window():
    """There searching is the exception. At first order it loses (1 - h)^2 / 4 on known questions, which guessing always
    solves, and gains h (1 - h) (1/2 - 1/12) on the others: guessing holds out above p = 5 h / (3 + 2 h), more than h."""
    guessing = (("start/answer", 18.0), *PURE[1:])
    world, objective = first_order_world(0.35, 0.5), Objective(GroupCredit(std=False), SequenceMean())
    assert length_window(world, habit=guessing) is None

    def gap(known):
        graph = replace(world, known=known).graph().compiled()
        return effective_gap(graph, tables(graph, np.array([z for _, z in guessing])), objective)

    bound = 5 * 0.35 / (3 + 2 * 0.35)
    assert gap(bound - 1e-3) > 0 > gap(bound + 1e-3)
