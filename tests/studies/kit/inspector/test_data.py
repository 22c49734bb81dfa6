import math

import numpy as np
import pytest

from sim.records.tables import Outcome
from studies.kit.episodes import Episode, Turn, from_rollouts, to_rollouts
from studies.kit.inspector.data import Inspected, from_episodes, workflow_of


def short(step, actions, reward=1.0):
    outcome = Outcome.SOLVED if reward else Outcome.WRONG
    return Episode(step, 7, tuple(Turn(action, "a", "b", 1, 1) for action in actions), reward, outcome)


def test_shares_are_counted_by_step_and_stacked_by_size():
    batch = [
        short(3, ["answer"]),
        short(3, ["search", "answer"]),
        short(8, ["search", "answer"], 0.0),
        short(8, ["search", "search", "answer"]),
        short(8, ["search", "answer"]),
        short(8, ["search", "answer"]),
    ]
    run = from_episodes("r", batch, ("search", "answer"))
    assert run.steps == (3, 8)
    assert run.rollouts == (2, 4)
    assert run.workflows == ("search-answer", "guess", "search+-answer")
    np.testing.assert_array_equal(run.shares, [[0.5, 0.5, 0.0], [0.75, 0.0, 0.25]])
    np.testing.assert_array_equal(run.columns["train/reward"], [1.0, 0.75])
    np.testing.assert_array_equal(run.columns["train/turns"], [1.5, 2.25])


def test_what_no_rollout_has_is_said(sample):
    run = from_episodes(
        "r", [Episode(0, 0, (Turn("answer"),), None, Outcome.NOT_RECORDED)], ("answer",), absent={"x": "y"}
    )
    assert set(run.absent) == {
        "words", "tokens", "log-probabilities", "KL to the reference", "entropy", "policy versions", "reward", "x",
    }  # fmt: skip
    assert math.isnan(run.columns["train/reward"][0])
    assert sample.absent == {}


def test_a_record_gives_the_run_it_was_made_from(sample):
    steps = {step: [each for each in sample.episodes if each.step == step] for step in sample.steps}
    batches = [(step, to_rollouts(episodes, sample.actions)) for step, episodes in steps.items()]
    text = {100: "look", 101: " up", 102: " it", 103: "!"}
    read = [e for step, kept in batches for e in from_rollouts(kept, step, sample.actions, piece=text.__getitem__)]
    run = from_episodes("again", read, sample.actions)
    assert run.workflows == sample.workflows
    np.testing.assert_array_equal(run.shares, sample.shares)
    assert run.episodes[0].turns[0].pieces == ("look", " up", " it", "!")
    assert [workflow_of(each) for each in run.episodes] == [workflow_of(each) for each in sample.episodes]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": (2, 1)}, "ascend"),
        ({"shares": np.ones((2, 2))}, r"shape \(2, 2\): must be \(2, 1\)"),
        ({"rollouts": (1,)}, "rollouts has 1 entries: must be 2"),
        ({"columns": {"train/x": np.ones(3)}}, "train/x has 3 entries"),
        ({"episodes": [short(9, ["answer"])]}, "of step 9"),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes, message):
    fits = {
        "name": "r", "actions": ("answer",), "steps": (1, 2), "rollouts": (1, 1), "workflows": ("guess",),
        "shares": np.ones((2, 1)), "columns": {}, "episodes": [],
    }  # fmt: skip
    Inspected(**fits)
    with pytest.raises(ValueError, match=message):
        Inspected(**{**fits, **changes})
