import json
from pathlib import Path

import pytest

from sim.records.tables import Outcome
from studies.kit.episodes import workflow
from studies.kit.reading.formats import ReadError, open_run
from studies.kit.reading.search_r1 import parted

DATA = Path(__file__).parents[3] / "data" / "reading"
EXPECTED = ["search-answer", "guess", "none-guess", "search+"]


def ways(episodes):
    return [workflow(turn.action for turn in episode.turns) for episode in episodes]


def test_the_log_is_read_without_its_validations_and_other_processes():
    source = open_run(DATA / "search_r1")
    episodes = list(source)
    assert ways(episodes) == EXPECTED
    assert [e.step for e in episodes] == [1, 1, 2, 2]
    assert source.counts["rollouts of validation, left out"] == 2
    assert source.counts["lines"] == source.counts["episodes"] + 2
    assert all(e.reward is None and e.outcome is Outcome.NOT_RECORDED for e in episodes)
    assert {"reward", "accuracy", "KL"} <= source.absent.keys()
    assert episodes[0].extras == {"golden_answers": "['Jane Austen']", "extracted_answer": "Jane Austen"}
    assert episodes[0].turns[0].observed.strip().startswith("<information>Doc 1(Title: Emma)")
    assert "cache is full" not in episodes[0].turns[0].observed
    assert episodes[2].turns[0].observed.startswith("\nMy previous action is invalid.")
    assert not source.problems


def test_lines_are_read_alike_and_have_rewards():
    source = open_run(DATA / "search_r1_lines")
    episodes = list(source)
    assert ways(episodes) == EXPECTED * 2
    assert [e.step for e in episodes] == [1] * 4 + [2] * 4
    assert [e.reward for e in episodes[:4]] == [1.0, 0.0, 1.0, 0.0]
    logged = list(open_run(DATA / "search_r1"))
    assert [e.turns for e in logged] == [e.turns for e in episodes[:4]]
    assert [e.task for e in logged] == [e.task for e in episodes[:4]]
    assert source.counts["replies cut short"] == 2


def test_the_tags_of_the_prompt_are_no_actions():
    prompt = "... inside <answer> and </answer>, <answer> Beijing </answer>. Question: who?\n"
    assert parted(prompt + "<think>") == (prompt, "<think>")
    templated = "<|im_start|>user\nQuestion: who?\n<|im_end|>\n<|im_start|>assistant\n"
    assert parted(templated + "<think>") == (templated, "<think>")
    assert parted("<answer>5</answer>") is None


def test_lines_with_prompt_and_response_and_lines_that_lack_something(tmp_path):
    rows = [
        {"step": 3, "prompt": "p", "response": "<answer>x</answer>", "score": 1},
        {"prompt": "p", "response": "<answer>x</answer>", "score": 1},
        {"step": 3, "sequences_str": "<answer>x</answer>", "score": 1},
        {"step": 3, "prompt": "p", "score": 1},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = open_run(tmp_path)
    assert source.format == "search-r1"
    assert [(e.step, e.task, len(e.turns)) for e in source] == [(3, "p", 1)]
    assert source.counts["damaged"] == 3
    assert [problem.line for problem in source.problems] == [2, 3, 4]


def test_a_log_that_goes_on_after_a_crash_in_the_middle_of_a_rollout_is_read_to_its_end(tmp_path):
    rollout = "Golden answers: ['x']\nSolution string: Question: who?\n<answer>x</answer>\n"
    lines = [
        f"(main_task pid={pid}) {line}\n" for pid in (1, 2) for line in f"epoch 0, step {pid}\n{rollout}".splitlines()
    ]
    (tmp_path / "run.log").write_text("".join(lines))
    assert [e.step for e in open_run(tmp_path / "run.log", format="search-r1")] == [1, 2]


def test_a_rollout_whose_prompt_has_no_end_is_told_of(tmp_path):
    log = tmp_path / "run.log"
    rollout = "-" * 32 + "\nGolden answers: ['x']\nSolution string: <answer>x</answer>\n"
    log.write_text("epoch 0, step 4\n" + rollout * 2)
    source = open_run(log, format="search-r1")
    with pytest.raises(ReadError, match="nothing says where its prompt ends"):
        list(source)
    assert [problem.line for problem in source.problems] == [3, 6]
