import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.tables import Outcome
from studies.kit.episodes import workflow
from studies.kit.reading.formats import open_run
from studies.kit.reading.tagged import CHAT_NOTE

DATA = Path(__file__).parents[3] / "data" / "reading" / "verl"


def row(**fields):
    return {"input": "q", "output": "<answer>x</answer>", "gts": None, "score": 1.0, "step": 1, **fields}


def run(path, *rows, **options):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    source = open_run(path, format="verl", **options)
    return source, list(source)


def test_the_fixture_is_read_as_it_was_made():
    source = open_run(DATA)
    episodes = list(source)
    assert [(e.step, workflow(t.action for t in e.turns), e.reward, e.outcome.name) for e in episodes] == [
        (9, "search-answer", 1.0, "SOLVED"),
        (9, "guess", -1.0, "WRONG"),
        (9, "search-verify-answer", 1.0, "SOLVED"),
        (9, "none", -1.0, "WRONG"),
        (10, "search-verify-answer", 1.0, "SOLVED"),
        (10, "none", -1.0, "WRONG"),
    ]
    assert episodes[0].task == episodes[1].task == episodes[4].task != episodes[2].task
    assert "Jane Austen" in episodes[0].turns[0].observed
    assert episodes[0].turns[1].generated == "Jane Austen"
    assert episodes[0].extras == {"gts": "Jane Austen", "acc": 1.0, "pred": "Jane Austen"}
    assert source.notes == [CHAT_NOTE, "solved is what the reward function returned as acc, not the score"]
    assert {"KL", "log-probabilities", "entropy"} <= source.absent.keys()
    assert source.counts["cut short"] == 2
    assert not source.problems


def test_every_byte_of_a_rollout_is_shown():
    for path in sorted(DATA.iterdir()):
        outputs = [json.loads(line)["output"] for line in path.read_text().splitlines()]
        shown = ["".join(t.generated + t.observed for t in e.turns) for e in open_run(path)]
        assert sorted(map(len, shown)) == sorted(map(len, outputs))
        assert shown[:4] == outputs[:4] or path.stem == "10"


def test_the_name_of_the_file_is_the_step_and_a_line_that_disagrees_is_told_of_once(tmp_path):
    source, episodes = run(tmp_path / "7.jsonl", row(step=8), row(step=8), row(step=7))
    assert [e.step for e in episodes] == [7, 7, 7]
    assert [(p.line, p.what) for p in source.problems] == [(1, "the line says step 8: the file's name is believed")]
    source, episodes = run(tmp_path / "all.jsonl", row(step=8), row(step=9), row(step=None))
    assert [e.step for e in episodes] == [8, 9]
    assert source.problems[0].what.startswith("no step")


def test_a_score_that_is_no_number_is_a_problem_and_the_rollout_is_kept(tmp_path):
    path = tmp_path / "1.jsonl"
    path.write_text(
        '{"input": "q", "output": "x", "score": NaN, "step": 1}\n{"input": "q", "output": "x", "step": 1}\n'
    )
    source = open_run(path, format="verl")
    episodes = list(source)
    assert [(e.reward, e.outcome) for e in episodes] == [(None, Outcome.NOT_RECORDED)] * 2
    assert [p.what for p in source.problems] == ["the reward is no finite number"]
    assert source.counts["episodes without a reward"] == 2


def test_solved_at_overrules_what_the_reward_function_returned(tmp_path):
    rows = [row(score=0.5, acc=False), row(score=0.4, acc=True)]
    _, episodes = run(tmp_path / "1.jsonl", *rows, solved_at=0.5)
    assert [e.outcome for e in episodes] == [Outcome.SOLVED, Outcome.WRONG]
    _, episodes = run(tmp_path / "1.jsonl", *rows)
    assert [e.outcome for e in episodes] == [Outcome.WRONG, Outcome.SOLVED]
    _, episodes = run(tmp_path / "1.jsonl", row(score=0.5, acc=0.5))
    assert episodes[0].outcome is Outcome.NOT_RECORDED


def test_unknown_tools_are_counted_and_kept(tmp_path):
    source, episodes = run(tmp_path / "1.jsonl", row(output="<verify>x</verify><answer>y</answer>"), tools=["search"])
    assert [t.action for t in episodes[0].turns] == ["verify", "answer"]
    assert source.counts["unknown tool: verify"] == 1


@given(st.lists(st.sampled_from(["good", "cut", "list", "text"]), min_size=1, max_size=12), st.booleans())
def test_episodes_and_damaged_lines_are_all_lines(tmp_path_factory, kinds, ended):
    path = tmp_path_factory.mktemp("verl") / "1.jsonl"
    good = json.dumps(row())
    lines = {"good": good, "cut": good[: len(good) // 2], "list": "[1]", "text": '{"input": 3, "output": "x"}'}
    path.write_text("\n".join(["{", *(lines[kind] for kind in kinds), good]) + "\n" * ended)
    source = open_run(path, format="verl")
    assert len(list(source)) == kinds.count("good") + 1
    assert source.counts["episodes"] + source.counts["damaged"] == source.counts["lines"] == len(kinds) + 2


def test_lines_of_one_prompt_are_a_group_wherever_they_stand(tmp_path):
    _, episodes = run(tmp_path / "1.jsonl", row(), row(input="p"), row())
    assert [e.task for e in episodes] == ["q", "p", "q"]
    assert [e.prompt for e in episodes] == ["q", "p", "q"]


@pytest.mark.parametrize("name", ["12.jsonl", "step_12.jsonl", "global_step_12.jsonl"])
def test_names_with_steps(tmp_path, name):
    _, episodes = run(tmp_path / name, row(step=12))
    assert episodes[0].step == 12
