"""Mean and noise of one update: agreement with the theory, with the loop, and with known critical losses."""

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit

from sim.learning import presets
from sim.learning.loop import Block as Plain
from sim.learning.optimisers import Sgd
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.drift import Objective, gap_along
from sim.mdp.theory.spread import gradient_covariance
from sim.mdp.worlds import SEED_A_HABIT, seed_a
from sim.records.config import replace
from studies.kit.fitting.fields import GRID, losing, plain, weighted
from studies.kit.fitting.trials import LOST, TRUE, _configs, _Lossy

WORLD = seed_a()


def at(values, z):
    return float(np.interp(z, GRID, values))


def test_the_plain_mean_is_minus_the_gap():
    field = plain(WORLD, SEED_A_HABIT, 1024)
    graph = WORLD.graph().compiled()
    gap = gap_along(graph, free_logits(graph, SEED_A_HABIT), GRID[15:30:5], Objective())
    np.testing.assert_allclose(field.mean[15:30:5], -gap * expit(GRID[15:30:5]) * expit(-GRID[15:30:5]), rtol=1e-10)
    assert field.mean[27] < -0.05
    assert not field.towards_guessing(-9, 6)


def test_noise_between_the_points_where_it_is_exact():
    field, graph = plain(WORLD, SEED_A_HABIT, 1024), WORLD.graph().compiled()
    for i in (17, 22, 28, 33):
        z = free_logits(graph, SEED_A_HABIT)
        z[graph.free_names.index("start/answer")] = GRID[i]
        exact = np.sqrt(gradient_covariance(graph, tables(graph, z), Objective(prompts=128)).diagonal())
        assert field.sd[i] == pytest.approx(exact[0], rel=0.03)
    few = plain(WORLD, SEED_A_HABIT, 256)
    np.testing.assert_allclose(few.sd, 2 * field.sd, rtol=1e-9)  # a quarter of the rollouts


def test_losing_nothing_is_the_plain_field():
    (none,) = losing(WORLD, SEED_A_HABIT, (0.0,), 1024)
    every = plain(WORLD, SEED_A_HABIT, 1024)
    for name in ("mean", "sd", "later", "later_sd"):
        np.testing.assert_allclose(getattr(none, name), getattr(every, name), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(("hit", "critical"), [(0.6, 0.53), (0.8, 0.67), (0.95, 0.85)])
def test_the_push_turns_at_the_known_losses(hit, critical):
    world = replace(WORLD, {"hit_known": hit})

    def push(lost):
        return at(losing(world, SEED_A_HABIT, (lost,), 1024)[0].mean, -4.14)

    assert brentq(push, 0.2, 0.97, xtol=1e-3) == pytest.approx(critical, abs=0.04)


def test_a_sequence_mean_teaches_guessing_in_its_window_only():
    inside = presets.length_window().world
    assert weighted(inside, SEED_A_HABIT, 1024).towards_guessing(-4, -1)
    assert not weighted(WORLD, SEED_A_HABIT, 1024).towards_guessing(-4, -1)


@pytest.mark.parametrize("truth", ["restoring", "length weight", "lost rollouts"])
def test_the_loop_moves_as_the_field_says(truth):
    """One update of 400 seeds: mean and spread of all three log-odds."""
    assert truth in TRUE
    habit = (("start/answer", -1.5), ("fresh/answer", 2.0), ("failed/answer", -2.0))
    config = replace(_configs()[truth], {"habit": habit, "steps": 2, "prompts": 32, "optimiser": Sgd(1.0)})
    block = _Lossy if truth == "lost rollouts" else Plain
    run = block(config, tuple(range(400)), "fields").run()
    if truth == "lost rollouts":
        (field,) = losing(config.world, habit, (LOST,), 256)
    else:
        field = (weighted if truth == "length weight" else plain)(config.world, habit, 256)
    expected = [(at(field.mean, -1.5), at(field.sd, -1.5))]
    slope = [expit(u) * expit(-u) for _, u in habit[1:]]
    expected += [
        (at(field.later[:, i], -1.5) * slope[i], at(field.later_sd[:, i], -1.5) * slope[i] ** 0.5) for i in (0, 1)
    ]
    for name, (mean, sd) in zip(("start", "fresh", "failed"), expected, strict=True):
        z = run[f"policy/logit/{name}/answer"]
        moved = z[:, 1] - z[:, 0]
        assert moved.mean() == pytest.approx(mean, abs=4 * moved.std() / 20)
        assert moved.std() == pytest.approx(sd, rel=0.3 if truth == "lost rollouts" else 0.15)
