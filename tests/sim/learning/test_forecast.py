import numpy as np
import pytest
from scipy.special import expit

from sim.learning.credit import GreedyBaseline, RunningBaseline
from sim.learning.family import grpo
from sim.learning.forecast import forecast
from sim.learning.loop import train
from sim.learning.normalisers import MicrobatchMean, TokenMean
from sim.learning.optimisers import Adam, Natural, Sgd
from sim.learning.penalties import EntropyBonus, KlPerState
from sim.learning.presets import drive, length_window, noise, null, verify
from sim.learning.rule import Rule
from sim.learning.setup import Drive
from sim.learning.shaping import LengthReward
from sim.learning.step_credit import RewardToGo, StateGroups
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.theory.fold import Fold
from sim.mdp.theory.length import length_window as window_of
from sim.records.config import replace
from sim.signals.onsets import first_passages

SEEDS = tuple(range(16))


def sampled(config, logit):
    """The share before each step, [seeds, T]."""
    return train(config, SEEDS, study="forecast")[f"decision/share/{logit}"]


def steps_to_half(share):
    """Median over the seeds; all of them get there."""
    found = first_passages(share, 0.5)
    assert np.isfinite(found).all()
    return float(np.median(found))


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_two_steps_of_sgd_by_hand():
    config = replace(null(), {"steps": 3, "drive": Drive(rate=0.5, start=1, duration=1)})
    found = forecast(config)
    graph, z = config.graph(), config.policy().z0
    p = expit(z[0])
    assert found.gap == pytest.approx(effective_gap(graph, tables(graph, z), Objective()))
    assert found.logits[0] == pytest.approx(z)
    assert found.logits[1, 0] == pytest.approx(z[0] - 2.4 * found.gap * p * (1 - p))
    p = expit(found.logits[1, 0])
    gap = effective_gap(graph, tables(graph, found.logits[1]), Objective())
    assert found.logits[2, 0] == pytest.approx(found.logits[1, 0] - 2.4 * gap * p * (1 - p) + 0.5)
    assert found.share == pytest.approx(expit(found.logits[:, 0]))
    assert (found.direction, found.will_flip) == (-1, False)
    assert np.isnan([found.steps_to_half, found.width]).all()


def test_the_natural_gradient_at_a_constant_gap_is_a_logistic():
    """The reject branch held still: dz = rate x gap, so the share is logistic, half after -z0 / (rate x gap)."""
    config = replace(verify(0.05), {"habit": (("fresh/verify", -3.0), ("rejected/answer", -40.0))})
    found = forecast(config)
    assert found.direction == 1
    assert found.steps_to_half == pytest.approx(3.0 / (0.3 * -found.gap), abs=1)
    assert found.width == pytest.approx(2 * np.log(9) / (0.3 * -found.gap), abs=2)


def test_adams_first_step_is_short_where_the_batch_is_noisy():
    """rate x mean / sqrt(mean^2 + variance); without a variance to hand the step has full size, and says so."""
    config = replace(verify(), {"optimiser": Adam(0.1), "steps": 2})
    short, full = (forecast(c) for c in (config, replace(config, {"rule.normaliser": TokenMean()})))
    step, whole = (f.logits[1, 0] - f.logits[0, 0] for f in (short, full))
    assert 0.01 < step < 0.09
    assert whole == pytest.approx(0.1, rel=1e-3)
    assert "variance of a batch's gradient, and its root" in short.assumptions[1]
    assert "variance of a batch's gradient is left out" in full.assumptions[1]


def test_another_logit_and_a_downward_flip():
    config = replace(null(), {"habit": (("start/answer", 1.0), ("fresh/answer", 4.85), ("failed/answer", -4.2))})
    found = forecast(replace(config, {"steps": 60}))
    assert found.will_flip
    assert found.share[0] > 0.5 > found.share[-1]
    assert found.share[int(found.steps_to_half)] <= 0.5 < found.share[int(found.steps_to_half) - 1]
    assert forecast(replace(config, {"steps": 3}), "failed/answer").logit == "failed/answer"
    with pytest.raises(ValueError, match="did you mean failed/answer"):
        forecast(config, "failed/anwser")


# --- against training runs --------------------------------------------------------------------------------------------


def test_nothing_happens_in_the_null():
    config = replace(null(), {"steps": 150})
    found = forecast(config)
    assert (found.direction, found.will_flip) == (-1, False)
    runs = sampled(config, found.logit)
    assert runs.max() < 0.05
    assert found.share[-1] == pytest.approx(runs[:, -1].mean(), rel=0.02)
    assert found.share[-1] < 0.6 * found.share[0]  # it moved


RUNS = {
    "drive": (replace(drive(), {"steps": 65}), 1),
    "drive, Adam": (replace(drive(), {"steps": 60, "optimiser": Adam(0.05)}), 1),
    "verify, natural, .1": (replace(verify(0.1), {"steps": 80}), 2),
    "verify, natural, .01": (replace(verify(0.01), {"steps": 130}), 4),
    "verify, Adam": (replace(verify(0.01), {"steps": 80, "optimiser": Adam(0.1)}), 1),
    "verify, SGD, std": (replace(verify(0.1), {"steps": 60, "optimiser": Sgd(4.0), "rule": Rule()}), 1),
    "token mean": (replace(verify(0.1), {"steps": 60, "optimiser": Sgd(6.0), "rule": Rule(normaliser=TokenMean())}), 1),
    "greedy": (replace(verify(0.1), {"steps": 60, "optimiser": Sgd(4.0), "rule": Rule(GreedyBaseline())}), 1),
    "running": (replace(verify(0.1), {"steps": 60, "optimiser": Sgd(4.0), "rule": Rule(RunningBaseline())}), 1),
    "to go": (replace(verify(0.1), {"steps": 80, "optimiser": Sgd(4.0), "rule": Rule(RewardToGo(0.9))}), 2),
    "KL": (replace(verify(0.1), {"steps": 100, "rule.penalties": (KlPerState(0.05),)}), 2),
    "GRPO": (replace(verify(0.1), {"steps": 60, "optimiser": Sgd(8.0), "rule": grpo()}), 1),
    "entropy": (replace(verify(0.1), {"steps": 80, "rule.penalties": (EntropyBonus(0.05),)}), 2),
}
"""A run, and by how many steps the median time to a half may be off."""


@pytest.mark.parametrize("name", RUNS)
def test_when_it_flips(name):
    config, off = RUNS[name]
    found = forecast(config)
    runs = sampled(config, found.logit)
    assert found.will_flip
    assert found.steps_to_half == pytest.approx(steps_to_half(runs), abs=off)
    assert found.share[-1] == pytest.approx(runs[:, -1].mean(), abs=0.02)
    assert np.abs(found.share - runs.mean(0)).max() < 0.06
    assert 10 < found.steps_to_half < config.steps - 10


def test_adam_without_the_variance_is_early():
    config = replace(verify(0.1), {"steps": 100, "prompts": 64, "optimiser": Adam(0.05)})
    config = replace(config, {"rule": Rule(normaliser=MicrobatchMean(4))})
    found, seen = forecast(config), steps_to_half(sampled(config, "fresh/verify"))
    assert 0.9 * seen < found.steps_to_half < seen


def test_what_the_mean_leaves_out_is_the_spread_of_a_rare_behaviour():
    """At one verify call a batch the median is still within a tenth, but single runs are early and late by much more."""
    config = replace(verify(0.001), {"steps": 260})
    found, runs = forecast(config), sampled(config, "fresh/verify")
    assert found.steps_to_half == pytest.approx(steps_to_half(runs), rel=0.1)
    often = sampled(replace(verify(0.1), {"steps": 80}), "fresh/verify")
    rare_spread, spread = (np.ptp(first_passages(x, 0.5)) for x in (runs, often))
    assert rare_spread > 30
    assert spread < 15


def test_a_discounted_step_credit_turns_against_verifying():
    """Divided by their spread, returns that differ by their discount alone count as much as right and wrong."""
    config = replace(verify(0.1), {"steps": 50, "optimiser": Sgd(4.0), "rule": Rule(StateGroups())})
    found = forecast(config)
    runs = sampled(config, found.logit)
    assert found.direction == -1
    assert found.share[-1] == pytest.approx(runs[:, -1].mean(), abs=0.02)
    assert found.share[-1] < 0.6 * found.share[0]
    plain = forecast(replace(config, {"rule": Rule(StateGroups(gamma=1.0))}))
    assert plain.direction == 1


def test_the_length_window_drifts_to_a_mixture():
    """Inside the window it rises and comes to rest below a half; outside it does not rise."""
    config = replace(length_window(), {"steps": 200, "prompts": 256})
    found = forecast(config)
    runs = sampled(config, found.logit)
    assert (found.direction, found.will_flip) == (1, False)
    assert found.share[-1] == pytest.approx(0.33, abs=0.01)
    assert runs[:, -1].mean() == pytest.approx(found.share[-1], abs=0.06)
    low, _ = window_of(config.world, Objective.of(config.rule))
    known = {side: replace(config, {"world.known": low + side, "steps": 1}) for side in (-0.02, 0.02)}
    assert [forecast(c).direction for c in known.values()] == [-1, 1]


def test_the_fold_is_where_the_forecast_begins_to_flip():
    config = replace(drive(), {"drive.duration": 400, "drive.start": 0, "steps": 400})
    gap = forecast(replace(config, {"steps": 1})).gap
    critical = Fold(config.optimiser.rate, gap).critical_drive
    found = {f: forecast(replace(config, {"drive.rate": f * critical})).will_flip for f in (0.85, 1.1)}
    assert found == {0.85: False, 1.1: True}


def test_a_learner_that_does_not_move():
    found = forecast(replace(verify(), {"optimiser": Sgd(0.0), "steps": 5}))
    assert found.direction == 1  # it would
    assert np.ptp(found.share) == 0
    assert not found.will_flip


# --- what it refuses --------------------------------------------------------------------------------------------------


class Still:
    needs_fisher = False

    def step(self, state, gradient, active, fisher):
        return 0 * gradient, state


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(null(), {"lag": 2}), "lag = 2"),
        (replace(null(), {"inner_updates": 4}), "inner_updates = 4"),
        (replace(null(), {"mismatch": 0.1}), r"mismatch = 0\.1"),
        (noise(), r"noise = GradientNoise\(sd=0\.5"),
        (replace(null(), {"optimiser": Still()}), "Still: the mean step is known for Sgd, Natural and Adam"),
        (replace(null(), {"rule.shaping": (LengthReward(),)}), "LengthReward: there is no exact sum"),
    ],
)
def test_what_the_mean_field_does_not_cover(config, message):
    with pytest.raises(ValueError, match=message):
        forecast(config)


def test_noise_of_size_0_is_none():
    found = forecast(replace(noise(0.0), {"steps": 3, "optimiser": Natural(0.1), "features.private": 1.0}))
    assert found.logits[2, 0] < found.logits[0, 0]
