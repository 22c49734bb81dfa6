import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records.nested import Segment, Trajectory
from sim.records.nested import Turn as Kept
from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome, Reason, RecordError, Tokens
from studies.kit.episodes import (
    ANSWER,
    NO_ACTION,
    Episode,
    Turn,
    from_rollouts,
    to_rollouts,
    workflow,
)

WORDS = {1: "Who", 2: "?", 3: "<search>", 4: "x", 5: "doc", 6: "<answer>", 7: "y"}


def tokens(ids, sampled):
    sampled = np.array(sampled, bool)
    return Tokens(id=np.array(ids), sampled=sampled, train=sampled)


def episode(*actions, **fields):
    turns = tuple(Turn(action) for action in actions)
    return Episode(**{"step": 3, "task": "q", "turns": turns, "reward": 1.0, "outcome": Outcome.SOLVED, **fields})


@pytest.mark.parametrize(
    ("actions", "name"),
    [
        ([], "nothing"),
        (["answer"], "guess"),
        (["search", "answer"], "search-answer"),
        (["answer", "search", "answer"], "guess-search-answer"),
        (["none", "answer", "answer", "search", "search", "answer"], "none-guess+-search+-answer"),
        (["search", "verify", "answer", "answer"], "search-verify-answer+"),
    ],
)
def test_a_workflow_is_named_by_what_was_done_in_order(actions, name):
    assert workflow(actions) == name


def test_a_turn_without_action_is_no_evidence():
    assert workflow([NO_ACTION, ANSWER]) == "none-guess"


def test_an_episode_is_solved_by_its_last_answer_if_at_all():
    assert episode("answer", "search", "answer", "search").solved_at == 2
    assert episode("search").solved_at is None  # solved, it is said, but nothing says by which turn
    assert episode("answer", outcome=Outcome.WRONG).solved_at is None
    assert episode("answer", outcome=Outcome.NOT_RECORDED).solved_at is None


def test_codes_are_places_among_the_names_and_no_action_has_none():
    batch = [episode("verify", "answer"), episode("none", "search", task="r")]
    names = ("search", "verify", "answer")
    record = to_rollouts(batch, names)
    assert record.turns.action.tolist() == [1, 2, -1, 0]
    with pytest.raises(ValueError, match=r"action 'verify' is not among search, answer: give it a code"):
        to_rollouts(batch, ("search", "answer"))


def test_what_is_absent_stays_absent_in_the_record():
    record = to_rollouts([episode("answer", reward=None, outcome=Outcome.NOT_RECORDED)], (ANSWER,))
    assert math.isnan(record.trajectories.reward[0])
    assert math.isnan(record.turns.logp_behaviour[0])
    assert record.segments.version_oldest.tolist() == [-1]
    assert record.tokens is None
    back = next(from_rollouts(record, 3, (ANSWER,)))
    assert (back.reward, back.version_oldest, back.turns[0].logp, back.turns[0].entropy) == (None, None, None, None)


def test_a_reward_may_be_missing_only_where_nothing_says_how_it_ended():
    with pytest.raises(RecordError, match=r"reward\[0\] = nan.*infrastructure failure, or not recorded"):
        to_rollouts([episode("answer", reward=None)], (ANSWER,))


def test_words_are_those_of_the_tokens_and_the_prompt_stands_apart():
    record = to_rollouts(
        [
            episode(
                "search",
                "answer",
                turns=(
                    Turn("search", tokens=tokens([1, 2, 3, 4, 5], [0, 0, 1, 1, 0]), generated_tokens=2),
                    Turn("answer", tokens=tokens([6, 7], [1, 1]), generated_tokens=2),
                ),
            )
        ],
        ("search", "answer"),
    )
    found = next(from_rollouts(record, 3, ("search", "answer"), piece=WORDS.__getitem__))
    assert found.prompt == "Who?"
    assert [(t.generated, t.observed) for t in found.turns] == [("<search>x", "doc"), ("<answer>y", "")]
    assert found.turns[0].pieces == ("Who", "?", "<search>", "x", "doc")
    bare = next(from_rollouts(record, 3, ("search", "answer")))
    assert (bare.prompt, bare.turns[0].generated, bare.turns[0].pieces) == ("", "", ())
    assert bare.turns[0].tokens == found.turns[0].tokens


def test_turns_of_all_segments_come_in_order_and_versions_span_them():
    tree = Trajectory(
        task=0,
        reward=0.0,
        outcome=Outcome.TRUNCATED,
        segments=(
            Segment((Kept(0, 0), Kept(0, 1)), version_oldest=4, version_newest=5, take_version=7),
            Segment((Kept(1, 2),), parent=0, reason=Reason.RESUME, version_oldest=6, version_newest=6, take_version=7),
        ),
    )
    found = next(from_rollouts(Rollouts.from_trajectories([tree]), 9, ("search", "answer")))
    assert [turn.action for turn in found.turns] == ["search", "search", "answer"]
    assert (found.version_oldest, found.version_newest, found.take_version, found.step) == (4, 6, 7, 9)


numbers = st.none() | st.floats(-5, 0)
turns = st.builds(
    Turn,
    action=st.sampled_from(["search", "verify", ANSWER, NO_ACTION]),
    generated_tokens=st.integers(0, 9),
    observed_tokens=st.integers(0, 9),
    logp=numbers,
    logp_reference=numbers,
    entropy=st.none() | st.floats(0, 3),
)
batches = st.lists(
    st.builds(
        Episode,
        step=st.just(2),
        task=st.sampled_from(["a", "b", "c"]),
        turns=st.lists(turns, max_size=4).map(tuple),
        reward=st.floats(-1, 1),
        outcome=st.sampled_from(list(Outcome)),
    ),
    min_size=1,
    max_size=8,
)


@settings(deadline=None)
@given(batches)
def test_all_but_the_words_survives_the_record(batch):
    names = ("search", "verify", ANSWER)
    back = list(from_rollouts(to_rollouts(batch, names), 2, names))
    assert back == sorted(batch, key=lambda each: each.task)  # stable, as groups are


def test_an_episode_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        episode("answer").reward = 0.0
