import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.tables import Outcome
from studies.kit.episodes import to_rollouts
from studies.kit.reading import tokens
from studies.kit.reading.formats import ReadError, Source, open_run
from studies.kit.reading.tagged import Cutter

BASE = {"step": 1, "task": "t"}
IDS = {
    "ids": [1, 2, 3, 4, 5, 6],
    "sampled": [0, 0, 1, 1, 0, 1],
    "logp": [None, None, -0.1, -0.2, None, -0.3],
    "logp_reference": [0, 0, -0.4, -0.5, 0, -0.6],
    "versions": [None, None, 4, 4, None, 5],
}


def run(tmp_path, *rows, **options):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({**BASE, **row}) + "\n" for row in rows))
    source = open_run(path, format="jsonl", **options)
    return source, list(source)


def fault(tmp_path, **row):
    source, _ = run(tmp_path, row, {"completion": "x"})
    assert source.counts["damaged"] == 1
    return source.problems[0].what


def test_text_is_cut_and_other_fields_are_kept(tmp_path):
    row = {"prompt": "Who?", "completion": "<search>q</search><information>D</information><answer>x</answer>"}
    source, (episode,) = run(
        tmp_path, {**row, "reward": 1, "difficulty": 0.3, "role": "helper", "outcome": "turn_limit"}
    )
    assert [t.action for t in episode.turns] == ["search", "answer"]
    assert (episode.step, episode.task, episode.prompt, episode.role) == (1, "t", "Who?", "helper")
    assert (episode.reward, episode.outcome, episode.extras) == (1.0, Outcome.TURN_LIMIT, {"difficulty": 0.3})
    assert source.absent.keys() == {"log-probabilities", "KL", "entropy", "staleness", "tokens"}
    assert source.format == open_run(tmp_path).format


def test_turns_are_taken_as_they_are(tmp_path):
    turns = [
        {"action": "Search", "generated": "q", "observed": "D", "generated_tokens": 3, "logp": -0.5, "entropy": 0.2},
        {"generated": "<answer>x</answer>", "context": "after a hit", "logp": -0.1, "logp_reference": -0.3},
    ]
    source, (episode,) = run(tmp_path, {"turns": turns, "reward": 0.0, "version_oldest": 3, "version_newest": 4})
    first, second = episode.turns
    assert (first.action, first.generated, first.observed, first.generated_tokens) == ("search", "q", "D", 3)
    assert (first.logp, first.logp_reference, first.entropy) == (-0.5, None, 0.2)
    assert (second.action, second.context, second.logp_reference) == ("answer", "after a hit", -0.3)
    assert source.absent.keys() == {"tokens"}
    assert (episode.version_oldest, episode.version_newest, episode.take_version) == (3, 4, None)


def test_ids_and_masks_fill_the_tokens_of_turns(tmp_path):
    pieces = ["Who", "? ", "<search>", "q</search>", " D ", "<answer>x</answer>"]
    source, (episode,) = run(tmp_path, {**IDS, "pieces": pieces, "reward": 1})
    first, second = episode.turns
    assert (first.action, second.action) == ("search", "answer")
    assert (first.generated, first.observed, second.observed) == ("<search>q</search>", " D ", "")
    assert (first.generated_tokens, first.observed_tokens, second.generated_tokens) == (2, 1, 1)
    assert first.tokens.id.tolist() == [1, 2, 3, 4, 5]
    assert first.tokens.train.tolist() == [False, False, True, True, False]
    assert first.tokens.version.tolist() == [-1, -1, 4, 4, -1]
    assert np.isnan(first.tokens.logp_reference).tolist() == [True, True, False, False, True]
    assert first.logp is None  # which token decides is not known from ids
    assert (episode.version_oldest, episode.version_newest) == (4, 5)
    assert source.absent.keys() == {"entropy"}
    rollouts = to_rollouts([episode], ("search", "answer"))
    assert rollouts.tokens.id.tolist() == IDS["ids"]
    assert rollouts.turns.generated.tolist() == [2, 1]


def test_ids_without_texts_name_no_action_unless_turns_do(tmp_path):
    source, (episode,) = run(tmp_path, IDS)
    assert [t.action for t in episode.turns] == ["none", "none"]
    assert source.absent["words"] == "no line has text"
    _, (episode,) = run(tmp_path, {**IDS, "turns": [{"action": "search"}, {"action": "answer"}]})
    assert [(t.action, t.generated_tokens) for t in episode.turns] == [("search", 2), ("answer", 1)]
    assert episode.turns[1].tokens.id.tolist() == [6]


def test_a_run_of_sampled_tokens_with_two_actions_is_two_turns(tmp_path):
    pieces = ["p", "<search>", "a</sea", "rch><ver", "ify>b</verify>", " D"]
    row = {"ids": [1, 2, 3, 4, 5, 6], "sampled": [0, 1, 1, 1, 1, 0], "pieces": pieces}
    _, (episode,) = run(tmp_path, row)
    assert [(t.action, t.generated_tokens, t.observed_tokens) for t in episode.turns] == [
        ("search", 3, 0),
        ("verify", 1, 1),
    ]
    assert "".join(piece for t in episode.turns for piece in t.pieces) == "".join(pieces)


def test_failure_truncation_and_outcome_are_believed(tmp_path):
    rows = [{"failed": True, "reward": 0.0}, {"truncated": True, "reward": 0.0}, {"outcome": "solved"}, {"reward": 0.4}]
    source, episodes = run(tmp_path, *({"completion": "x", **row} for row in rows))
    expected = [Outcome.INFRASTRUCTURE_FAILURE, Outcome.TRUNCATED, Outcome.NOT_RECORDED, Outcome.NOT_RECORDED]
    assert [e.outcome for e in episodes] == expected
    assert [e.reward for e in episodes] == [None, 0.0, None, 0.4]
    assert "accuracy" in source.absent
    assert source.counts["outcomes without a reward, not kept"] == 1


def test_a_reward_larger_than_any_float_is_a_problem(tmp_path):
    source, (episode,) = run(tmp_path, {"completion": "x", "reward": 10**400})
    assert (episode.reward, source.counts["rewards that are no finite number"]) == (None, 1)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"compeltion": "x"}, "no completion, turns or ids; 'compeltion': did you mean 'completion'"),
        ({"completion": "x", "step": -1}, "step is -1: it must be a whole number of 0 or more"),
        ({"completion": "x", "step": None}, "no step"),
        ({"completion": "x", "task": None}, "no task or prompt"),
        ({"completion": "x", "task": [1]}, "task must be a number or text"),
        ({"completion": 3}, "completion must be text, not int"),
        ({"completion": "x", "outcome": "sloved"}, "outcome 'sloved': did you mean 'solved'?"),
        ({"turns": ["x"]}, "a turn is an object, not str"),
        ({"turns": [{"acton": "x"}]}, "a turn has no 'acton': did you mean 'action'"),
        ({"turns": [{"action": "x", "logp": 0.5}]}, "logp is 0.5: it must be 0 or less, in nats"),
        ({"turns": [{"action": "x", "entropy": -0.5}]}, "entropy is -0.5: it must be 0 or more, in nats"),
        ({"turns": [{"action": "x", "generated_tokens": 1.5}]}, "generated_tokens is 1.5"),
        ({"ids": [1, 2]}, "ids without sampled"),
        ({**IDS, "sampled": [1]}, "sampled has 1 values for 6 ids"),
        ({**IDS, "sampled": [0, 0, 2, 1, 0, 1]}, "sampled holds what is no flag"),
        ({**IDS, "train": [1, 0, 0, 0, 0, 0]}, "train is set for token 0, which was not sampled"),
        ({**IDS, "logp": [0, 0, 0.3, 0, 0, 0]}, "logp is 0.3: a log-probability is 0 or less"),
        ({**IDS, "sampled": [0] * 6}, "none of the ids was sampled"),
        ({**IDS, "pieces": ["a"]}, "pieces must be 6 texts"),
        ({**IDS, "turns": [{"action": "a"}]}, "1 turns for 2 runs of sampled tokens"),
        ({**IDS, "versions": [0, 0, 5, 5, 0, 5], "take_version": 4}, "versions [5, 5, 4] fall"),
        ({"completion": "x", "version_oldest": 1}, "version_oldest and version_newest come together"),
        ({"completion": "x", "step": 2**63}, "it must be a whole number of 0 or more, below 2**63"),
        ({"turns": [{"action": "x", "observed_tokens": 2**63}]}, "whole number of 0 or more, below 2**63"),
        ({"turns": [{"action": "x", "logp": -(10**400)}]}, "int too large to convert to float"),
    ],
)
def test_what_a_line_must_be(tmp_path, row, words):
    assert words in fault(tmp_path, **row)


def test_a_file_of_an_unknown_layout_names_the_fields_that_are_needed(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"Step": 1, "questoin": "x"}\n')
    with pytest.raises(ReadError, match="no step and no task or prompt and no completion, turns or ids"):
        list(open_run(tmp_path / "a.jsonl", format="jsonl"))


def test_interleaved_steps_are_fine(tmp_path):
    _, episodes = run(tmp_path, *({"completion": "x", "step": step} for step in (2, 1, 2)))
    assert [e.step for e in episodes] == [2, 1, 2]


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.data())
def test_tokens_of_turns_joined_are_the_sequence(sampled, data):
    pieces = data.draw(st.lists(st.text("ab<search></", max_size=9), min_size=len(sampled), max_size=len(sampled)))
    sequence = tokens.table(list(range(len(sampled))), sampled, {})
    cut = Cutter(Source("jsonl", []))
    for texts in (None, pieces):
        turns = list(tokens.turns(sequence, texts, cut))
        if not any(sampled):
            assert turns == []
            continue
        assert [each for turn in turns for each in turn.tokens.id.tolist()] == list(range(len(sampled)))
        assert sum(turn.generated_tokens for turn in turns) == sum(sampled)
        start = sampled.index(True)
        assert sum(turn.observed_tokens for turn in turns) == len(sampled) - start - sum(sampled)
        if texts is not None:
            assert "".join(turn.generated + turn.observed for turn in turns) == "".join(texts[start:])


def test_entropy_is_the_mean_over_the_first_tokens_or_absent():
    assert tokens.first_mean([1.0] * 16 + [99.0]) == 1.0
    assert tokens.first_mean([0.5, 1.5]) == 1.0
    assert tokens.first_mean([0.5, None]) is None
    assert tokens.first_mean([0.5, math.nan]) is None
    assert tokens.first_mean([]) is None
