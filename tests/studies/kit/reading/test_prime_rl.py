import importlib.metadata
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sim.records.tables import Outcome
from studies.kit.episodes import to_rollouts, workflow
from studies.kit.reading.formats import ReadError, Source, open_run
from studies.kit.reading.messages import message_turns
from studies.kit.reading.tagged import Cutter

DATA = Path(__file__).parents[3] / "data" / "reading"
RUN = DATA / "prime_rl"
TRACES = RUN / "rollouts" / "step_9" / "train" / "all" / "traces.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def read():
    source = open_run(RUN)
    return source, list(source)


def test_the_records_of_verifiers_are_read_as_they_were_made(read):
    source, episodes = read
    found = [(e.step, e.task, workflow(t.action for t in e.turns), e.reward, e.outcome.name) for e in episodes]
    assert found == [
        (9, "trivia-1", "search+-answer", 1.0, "SOLVED"),
        (9, "trivia-1", "guess", 0.0, "WRONG"),
        (9, "trivia-2", "search-verify-answer", 1.0, "SOLVED"),
        (9, "trivia-2", "search-answer", None, "INFRASTRUCTURE_FAILURE"),
        (9, "trivia-3", "nothing", None, "INFRASTRUCTURE_FAILURE"),
        (10, "trivia-1", "search-answer+", 0.0, "WRONG"),
        (10, "trivia-2", "none", 0.0, "TRUNCATED"),
        (10, "trivia-2", "search", 0.0, "TURN_LIMIT"),
        (10, "trivia-3", "search-answer", 1.0, "SOLVED"),
    ]
    assert not source.problems
    assert source.counts["files not read: train/effective"] == 1
    assert source.counts["episodes that failed before a trace"] == 1
    assert source.counts["traces of agents that are not trained"] == 1
    assert source.counts["traces with several branches"] == 1
    assert source.absent == {}
    assert any(note.startswith("not read: token exports") for note in source.notes)


def test_failures_keep_their_error_and_prompt(read):
    _, episodes = read
    failed, untried = episodes[3:5]
    assert failed.extras["error"] == "ProviderError: upstream went away"
    assert untried.extras["error"] == "EnvError: no agent was run"
    assert (untried.turns, untried.prompt) == ((), "Who wrote book 3 ?")


def test_ids_masks_and_log_probs_are_those_of_the_nodes(read):
    _, episodes = read
    nodes = lines(TRACES)[0]["traces"][0]["nodes"]
    rollouts = to_rollouts(episodes[:1], ("search", "answer"))
    assert rollouts.tokens.id.tolist() == [each for node in nodes for each in node["token_ids"]]
    assert rollouts.tokens.sampled.tolist() == [each for node in nodes for each in node["mask"]]
    given = [value for node in nodes for value in node["logprobs"]]
    assert len(given) == 29
    np.testing.assert_array_equal(rollouts.tokens.logp_behaviour[rollouts.tokens.sampled], given)
    assert set(rollouts.tokens.logp_reference[rollouts.tokens.sampled]) == {-0.5}
    assert np.isnan(rollouts.tokens.logp_behaviour[~rollouts.tokens.sampled]).all()
    first = episodes[0].turns[0]
    assert (first.generated_tokens, first.entropy) == (12, 0.75)
    assert (episodes[0].version_oldest, episodes[0].version_newest) == (7, 8)
    assert episodes[0].extras["advantage"] == 1.0


def test_results_go_to_the_calls_that_they_name(read):
    _, episodes = read
    search, verify, answer = episodes[2].turns
    assert (search.observed, verify.observed, answer.observed) == ("result 0", "result 1", "")
    assert search.generated.startswith("Both at once .<tool_call>")
    assert len(search.tokens) > 0
    assert len(verify.tokens) == 0


def test_rewards_are_summed_with_their_weights(read):
    _, episodes = read
    assert episodes[0].extras["reward/brief"] == 0.5  # of weight 0
    assert episodes[0].reward == 1.0


def test_a_step_of_whole_episodes_goes_into_the_record(read):
    _, episodes = read
    rollouts = to_rollouts(episodes[:5], ("search", "verify", "answer"))
    assert len(rollouts) == 5
    assert rollouts.trajectories.outcome.tolist().count(Outcome.INFRASTRUCTURE_FAILURE) == 2


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("rollouts", 9),
        ("rollouts/step_9", 5),
        ("rollouts/step_10/train", 4),
        ("rollouts/step_10/train/effective", 1),
        ("rollouts/step_10/train/effective/traces.jsonl", 1),
    ],
)
def test_any_folder_on_the_way_down_may_be_named(path, expected):
    episodes = list(open_run(RUN / path))
    assert len(episodes) == expected
    assert {e.step for e in episodes} <= {9, 10}


def test_training_is_read_rather_than_evaluation(tmp_path):
    for kind in ("train", "eval"):
        shutil.copytree(TRACES.parent, tmp_path / "rollouts" / "step_3" / kind / "all")
    (tmp_path / "rollouts" / "step_3" / "eval" / "all" / "traces.jsonl").rename(tmp_path / "moved.jsonl")
    source = open_run(tmp_path / "rollouts")
    assert len(list(source)) == 5
    (tmp_path / "moved.jsonl").rename(tmp_path / "rollouts" / "step_3" / "eval" / "all" / "traces.jsonl")
    source = open_run(tmp_path / "rollouts")
    assert [path.parts[-3] for path in source.paths] == ["train"]
    list(source)
    assert source.counts["files not read: eval/all"] == 1
    shutil.rmtree(tmp_path / "rollouts" / "step_3" / "train")
    assert [path.parts[-3] for path in open_run(tmp_path / "rollouts").paths] == ["eval"]


def test_without_a_step_in_the_path_the_record_says_it_and_else_nothing_does(tmp_path):
    path = tmp_path / "traces.jsonl"
    shutil.copy(TRACES, path)
    assert {e.step for e in open_run(path)} == {9}
    rows = [{**row, "run": None} for row in lines(TRACES)]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    source = open_run(path)
    assert {e.step for e in source} == {0}
    assert {"steps", "staleness"} <= source.absent.keys()
    path.write_text("\n".join(json.dumps(row["traces"][0]) for row in rows if row["traces"]) + "\n")
    assert len(list(open_run(path))) == 4  # traces without an episode around them


@pytest.mark.parametrize("step", [2.5, -1, "3"])
def test_a_step_that_is_none_is_damage(tmp_path, step):
    path = tmp_path / "traces.jsonl"
    good = lines(TRACES)[0]
    bad = {**good, "run": {**good["run"], "work": {**good["run"]["work"], "step": step}}}
    path.write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
    source = open_run(path)
    assert {e.step for e in source} == {9}
    assert source.counts["damaged"] == 1


def test_a_metric_without_a_value_is_kept_as_text(tmp_path):
    path = tmp_path / "traces.jsonl"
    good = lines(TRACES)[0]
    good["traces"][0]["metrics"] = {"f1": float("nan")}
    path.write_text(json.dumps(good) + "\n")
    assert next(iter(open_run(path))).extras["metric/f1"] == "nan"


def test_a_record_of_another_shape_is_damage_and_no_crash(tmp_path):
    path = tmp_path / "traces.jsonl"
    good, *_ = lines(TRACES)
    bad = [json.loads(json.dumps(good)) for _ in range(6)]
    bad[0]["traces"][0]["nodes"][2]["parent"] = 7
    bad[1]["traces"][0]["nodes"][2]["logprobs"] = [-0.1]
    bad[2]["traces"][0]["nodes"][2]["message"] = None
    bad[3]["traces"] = [None]
    bad[4]["traces"][0]["rewards"] = {"correct": "high"}
    bad[5] = {"task": {}, "other": 1}
    path.write_text("\n".join(map(json.dumps, [good, *bad])) + "\n")
    source = open_run(path)
    assert len(list(source)) == 1
    assert source.counts["damaged"] == len(source.problems) == 6
    assert "has parent 7" in source.problems[0].what
    assert "no episode or trace" in source.problems[5].what


def test_token_exports_are_read_where_their_step_is_whole():
    source = open_run(RUN / "token_exports")
    episodes = list(source)
    assert [e.step for e in episodes] == [9, 9]
    assert source.counts["files not read: not STABLE"] == 1
    assert "STABLE" in source.problems[0].what
    first = episodes[0].turns[0]
    assert first.tokens.id.tolist() == [5, 6, 7, 8, 9]
    assert (first.generated_tokens, first.observed_tokens, first.entropy) == (2, 1, 0.375)
    np.testing.assert_array_equal(first.tokens.logp_behaviour[2:4], [-0.1, -0.2])
    np.testing.assert_array_equal(first.tokens.logp_proximal[2:4], [-0.1, -0.25])
    assert episodes[0].outcome is Outcome.NOT_RECORDED
    assert {"reward", "words", "KL", "groups"} <= source.absent.keys()
    assert len(episodes) == len({e.task for e in episodes})


def test_a_newer_schema_of_token_exports_is_not_read_as_the_old_one(tmp_path):
    folder = tmp_path / "token_exports" / "step_1"
    folder.mkdir(parents=True)
    (folder / "STABLE").touch()
    row = {**lines(RUN / "token_exports" / "step_9" / "rank_0.jsonl")[0], "schema_version": 2}
    (folder / "rank_0.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ReadError, match="schema 2: this program reads schema 1"):
        list(open_run(tmp_path))


def test_messages_of_openais_shape_are_understood():
    cut = Cutter(Source("trl", []))
    call = {"id": "a", "type": "function", "function": {"name": "Search", "arguments": {"q": 1}}}
    (turn,) = message_turns(
        cut, {"content": None, "tool_calls": [call]}, [{"role": "tool", "content": [{"text": "D"}]}]
    )
    assert (turn.action, turn.observed) == ("search", "D")
    assert turn.generated == '<tool_call>{"name": "Search", "arguments": {"q": 1}}</tool_call>'
    assert [t.action for t in message_turns(cut, {"content": "<search>q</search>"}, [])] == ["search"]
    assert [t.action for t in message_turns(cut, {"content": "hm"}, [{"role": "user", "content": "again"}])] == ["none"]
    assert [t.action for t in message_turns(cut, {"content": ""}, [])] == ["answer"]


def test_the_package_makes_the_same_files_today(tmp_path):
    try:
        version = importlib.metadata.version("verifiers")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("verifiers is not installed (pip install verifiers==0.4.0): its records are as they were made once")
    subprocess.run([sys.executable, DATA / "make_prime_rl.py", tmp_path], check=True, capture_output=True)
    for path in sorted(RUN.rglob("*.jsonl")):
        made = (tmp_path / path.relative_to(RUN)).read_text()
        if version == "0.4.0":
            assert made == path.read_text()
    assert len(list(open_run(tmp_path))) == 9
