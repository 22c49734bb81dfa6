import numpy as np
import pytest

from sim.learning import presets
from sim.learning.loop import train
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.theory.fold import Fold
from sim.records.config import difference, from_dict, replace, to_dict

EVERY = [getattr(presets, name) for name in presets.__all__]


@pytest.mark.parametrize("preset", EVERY, ids=lambda p: p.__name__)
def test_a_preset_is_a_complete_config_that_runs(preset):
    config = preset()
    assert from_dict(to_dict(config)) == config
    runs = train(replace(config, {"steps": 2, "prompts": 4}), (0, 1), study="presets")
    assert np.isfinite(runs["train/reward"]).all()


def test_a_variant_changes_what_it_says():
    assert set(difference(presets.null(), presets.drive())) == {
        f"drive.{x}" for x in ("type", "rate", "start", "duration")
    }
    changed = difference(presets.noise(), presets.noise(sd=0.1, private=0.3, noisy=True))
    assert changed == {"noise.sd": (0.5, 0.1), "features.private": (0.0, 0.3), "noise.private": (False, True)}


def gap(config):
    graph = config.graph()
    objective = Objective.of(config.rule, config.group, config.prompts)
    return effective_gap(graph, tables(graph, config.policy().z0), objective, config.features.on[0])


def test_the_drive_is_above_the_critical_one():
    """By the factor its docstring names, with the gap where the fold is: at a share of one half."""
    config = presets.drive()
    middle = replace(config, {"habit": (("start/answer", 0.0), *config.habit[1:])})
    assert config.drive.rate / Fold(config.optimiser.rate, gap(middle)).critical_drive == pytest.approx(1.6, abs=0.05)


def test_in_the_length_window_the_drift_has_the_wrong_sign():
    """A sequence mean pushes towards guessing although searching is worth more."""
    window = presets.length_window()
    assert gap(window) < 0
    without = replace(window, {"rule": presets.null().rule})
    assert gap(without) > 0


def test_verify_begins_rare():
    for p0 in (0.1, 0.001):
        config = presets.verify(p0)
        share = tables(config.graph(), config.policy().z0).probability
        graph = config.graph()
        assert share[graph.contexts.index("fresh"), graph.actions.index("verify")] == pytest.approx(p0)
    assert gap(presets.verify()) < 0  # minus the gradient: it pushes towards verifying


def test_noise_hangs_the_start_on_shared_directions():
    config = presets.noise()
    assert config.noisy().tolist() == [0, 0, 0] + [0.5] * 16
    assert np.all(config.policy().features[0, :3] == 0)  # no private weight
    assert np.linalg.norm(config.policy().features[0, 3:]) == pytest.approx(1)
