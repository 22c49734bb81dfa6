from dataclasses import replace as together

import numpy as np
import pytest

from sim.learning.credit import GroupCredit
from sim.learning.normalisers import MicrobatchMean
from sim.learning.optimisers import Adam
from sim.learning.penalties import KlPerState
from sim.learning.rule import Rule
from sim.learning.setup import Content, Drive, Evaluation, Features, GradientNoise, Training
from sim.learning.weights import Unweighted
from sim.mdp.worlds import verify_world
from sim.records.config import ConfigError, canonical_json, difference, from_dict, replace, to_dict

RICH = Training(
    features=Features(("start/answer", "failed/answer"), shared=3, private=0.5),
    rule=Rule(GroupCredit(std=False), Unweighted(), MicrobatchMean(2), (KlPerState(0.1),)),
    optimiser=Adam(0.6),
    noise=GradientNoise(0.5, private=True),
    drive=Drive(0.38),
    content=Content(100, 0.01),
    evaluation=Evaluation(5),
    lag=4,
)


def test_every_logit_has_a_weight_and_some_share():
    policy = RICH.policy()
    assert policy.graph.free_names == ("start/answer", "fresh/answer", "failed/answer")
    third = 1 / np.sqrt(3)
    expected = [[0.5, 0, 0, third, third, third], [0, 1, 0, 0, 0, 0], [0, 0, 0.5, third, third, third]]
    np.testing.assert_allclose(policy.features, expected)
    assert policy.z0.tolist() == [-4.14, 4.85, -4.2]
    assert RICH.loads().tolist() == [1, 0, 1]


def test_noise_falls_where_it_is_asked_to():
    assert RICH.noisy().tolist() == [0.5, 0, 0.5, 0.5, 0.5, 0.5]
    only_shared = replace(RICH, {"noise.private": False})
    assert only_shared.noisy().tolist() == [0, 0, 0, 0.5, 0.5, 0.5]
    assert replace(RICH, {"noise": None}).noisy().tolist() == [0] * 6


def test_without_shared_directions_the_weights_are_the_logits():
    np.testing.assert_array_equal(Training().policy().features, np.eye(3))


def test_a_run_is_written_down_and_built_again():
    assert from_dict(to_dict(RICH)) == RICH
    assert canonical_json(from_dict(to_dict(RICH))) == canonical_json(RICH)
    assert difference(RICH, replace(RICH, {"optimiser.rate": 0.3, "world.known": 0.5})) == {
        "optimiser.rate": (0.6, 0.3),
        "world.known": (0.21, 0.5),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompts": 0}, "prompts = 0 must be at least 1"),
        ({"group": 1}, "group = 1 must be at least 2"),
        ({"steps": -1}, "steps = -1 must be at least 0"),
        ({"inner_updates": 0}, "inner_updates = 0 must be at least 1"),
        ({"lag": -1}, "lag = -1 must be at least 0"),
        ({"on_zero_signal": "stop"}, "on_zero_signal = 'stop' must be one of 'step', 'skip'"),
        ({"length_unit": "word"}, "length_unit = 'word' must be one of 'turn', 'token'"),
        ({"habit": (("start/anwser", 1.0),)}, "'start/anwser' is no free logit .* did you mean start/answer"),
        ({"features": Features(("fresh/serch",))}, "'fresh/serch' is no free logit"),
        ({"features.shared": -1}, "shared = -1 must be at least 0"),
        ({"features.private": 0.0}, "private = 0 with shared = 0 leaves the logits in `on` without a weight"),
        ({"lag": 1.5}, "Training.lag = 1.5"),
        ({"optimiser": "adam"}, "Training.optimiser = 'adam'"),
        ({"rule.normaliser": 3}, "Rule.normaliser = 3"),
    ],
)
def test_refusals_name_the_value_and_the_bound(change, message):
    with pytest.raises(ConfigError, match=message):
        replace(Training(), change)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GradientNoise(-0.1), "sd = -0.1"),
        (lambda: Drive(0.1, start=-1), "start = -1"),
        (lambda: Drive(0.1, duration=-1), "duration = -1"),
        (lambda: Content(tokens=-1), "tokens = -1"),
        (lambda: Content(coupling=-0.5), "coupling = -0.5"),
        (lambda: Evaluation(every=0), "at least 1; got 0, 128, 8"),
        (lambda: Features(private=-1.0, shared=1), "private = -1.0"),
    ],
)
def test_parts_refuse_too(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


def test_another_world_comes_with_its_own_habit():
    verify = {"world": verify_world(), "habit": (("fresh/verify", -4.6),), "features": Features(("fresh/verify",))}
    assert together(Training(), **verify).policy().z0[0] == -4.6
    assert replace(Training(), verify) == together(Training(), **verify)
    with pytest.raises(ConfigError, match="'start/answer' is no free logit of this world"):
        replace(Training(), {"world": verify_world()})
