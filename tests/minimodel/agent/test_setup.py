from dataclasses import replace as with_fields

import pytest

from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import Sgd
from minimodel.agent.schedule import Completion, InFlight
from minimodel.agent.setup import Change, Drive, Evaluation, Training
from sim.learning.family import cispo, grpo, minimax_forge
from sim.learning.rule import Rule
from sim.learning.step_credit import RewardToGo
from sim.mdp.worlds import ReadMore, Verify, verify_world
from sim.records.config import ConfigError, canonical_json, from_dict, replace, to_dict
from tests.minimodel.agent.small import SIZE, TASK, WORLD


def small(**more):
    return Training(**({"task": TASK, "size": SIZE, "prompts": 12, "group": 4, "evaluation": None} | more))


def test_a_config_goes_to_a_dictionary_and_back():
    c = small(
        rule=grpo(),
        optimiser=Sgd(0.1),
        schedule=InFlight(2),
        monitor=EvidenceFirst(ends=True),
        drive=Drive(0.1),
        changes=(Change(3, world=with_fields(WORLD, hit_unknown=0.2)), Change(5, rule=cispo())),
        evaluation=None,
        keep_rollouts=4,
    )
    assert from_dict(to_dict(c)) == c
    assert canonical_json(to_dict(c)) == canonical_json(to_dict(from_dict(to_dict(c))))
    assert replace(c, {"task.world.hit_unknown": 0.9}).task.world.hit_unknown == 0.9


def test_worlds_and_rules_change_when_they_are_said_to():
    worse, better = (with_fields(WORLD, hit_unknown=h) for h in (0.2, 0.8))
    c = small(rule=grpo(), changes=(Change(2, world=worse), Change(4, rule=cispo()), Change(6, world=better)))
    assert [c.world_at(u) for u in (0, 1, 2, 5, 6, 99)] == [WORLD, WORLD, worse, worse, better, better]
    assert [c.rule_at(u) for u in (0, 3, 4, 9)] == [grpo(), grpo(), cispo(), cispo()]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"prompts": 0}, "prompts = 0 must be at least 1"),
        ({"group": 1}, "group = 1 must be at least 2"),
        ({"steps": -1}, "steps = -1 must be at least 0"),
        ({"watched": 5}, "watched = 5 of a group of 4"),
        ({"minibatches": 5, "micro": 3}, "12 questions do not fill 5 minibatches of 3 pieces"),
        ({"temperature": 0.0}, "temperature = 0.0 must be positive"),
        ({"precision": "float16"}, "precision = 'float16' must be one of 'float32', 'bfloat16'"),
        ({"proximal": "learned"}, "proximal = 'learned' must be one of 'sampler', 'learner'"),
        ({"decode": "c"}, "decode = 'c' must be one of 'compiled', 'torch'"),
        ({"on_zero_signal": "stop"}, "on_zero_signal = 'stop' must be one of 'step', 'skip'"),
        ({"keep_rollouts": 100}, "keep_rollouts = 100 must be a step of the run, 0 to 99"),
        ({"rule": minimax_forge()}, "reads 'process_reward'"),
        ({"changes": (Change(3, rule=minimax_forge()),)}, "reads 'process_reward'"),
        ({"changes": (Change(3, rule=grpo()), Change(1, rule=cispo()))}, r"changes at steps \[3, 1\]; give them in order"),
        ({"changes": (Change(100, rule=cispo()),)}, "a change at step 100 of a run of 100 steps never comes"),
        ({"changes": (Change(1, world=with_fields(WORLD, stale=0.5)),)}, "at step 1 alters stale"),
        ({"evaluation": Evaluation(prompts=7)}, "evaluation.prompts = 7 of 6 questions held out"),
        ({"prompts": 19}, "prompts = 19 of 18 questions that are not held out"),
        ({"task": with_fields(TASK, world=verify_world()), "drive": Drive(0.1)}, "this world does not offer"),
        ({"schedule": Completion(0.5, over="all"), "rule": Rule(RewardToGo())}, "use over='arrived'"),
        ({"changes": (Change(1, world=with_fields(WORLD, turns=5, known=0.1)),)}, "at step 1 alters known, turns"),
        ({"changes": (Change(1, world=with_fields(WORLD, verify=Verify())),)}, "alters verify"),
        ({"changes": (Change(1, world=with_fields(WORLD, read_more=ReadMore())),)}, "alters read_more"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused(bad, message):
    with pytest.raises(ConfigError, match=message):
        small(**bad)


def test_parts_check_themselves():
    for wrong, message in (
        (lambda: Change(0), "a change of nothing"),
        (lambda: Change(-1, rule=grpo()), "step = -1 must be at least 0"),
        (lambda: Drive(1.0, start=-1), "start = -1 and duration = 40 must be at least 0"),
        (lambda: Evaluation(every=0), "must be at least 1; got 0, 128, 8"),
        (lambda: Completion(-0.1), r"must lie in \[0, 1\)"),
    ):
        with pytest.raises(ConfigError, match=message):
            wrong()
    with pytest.raises(ConfigError, match="promts"):
        small(promts=3)
