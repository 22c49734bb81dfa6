import gzip
import json
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from sim.records.tables import Outcome
from studies.kit.episodes import ANSWER, to_rollouts
from studies.kit.reading import rewards
from studies.kit.reading.formats import FORMATS, Problem, ReadError, Source, clip, open_run

DATA = Path(__file__).parents[3] / "data" / "reading"
VERL = {"input": "q", "output": "<answer>x</answer>", "gts": "x", "score": 1.0}
OURS = {"step": 1, "task": "t", "completion": "<answer>x</answer>", "reward": 1}


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("verl", "verl"),
        ("verl/9.jsonl", "verl"),
        ("prime_rl", "prime-rl"),
        ("prime_rl/rollouts/step_9/train/all/traces.jsonl", "prime-rl"),
        ("prime_rl/token_exports", "prime-rl"),
        ("prime_rl/token_exports/step_9/rank_0.jsonl", "prime-rl"),
        ("search_r1", "search-r1"),
        ("search_r1/nq-search-r1-ppo.log", "search-r1"),
        ("search_r1_lines", "search-r1"),
    ],
)
def test_each_layout_is_recognised_as_file_and_as_folder(path, expected):
    source = open_run(DATA / path)
    assert source.format == expected
    assert source.bytes_total > 0
    assert sum(1 for _ in source) == source.counts["episodes"] > 0
    assert source.bytes_read == source.bytes_total


def test_every_format_says_its_layout():
    assert list(FORMATS) == ["verl", "trl", "prime-rl", "search-r1", "jsonl"]
    with pytest.raises(ReadError) as error:
        open_run(Path(__file__).parent)
    assert all(f"{name}: " in str(error.value) for name in FORMATS)


def test_steps_come_by_number_and_not_by_name(tmp_path):
    for step in (10, 9, 100):
        write(tmp_path / f"{step}.jsonl", VERL)
    assert [episode.step for episode in open_run(tmp_path)] == [9, 10, 100]


@pytest.mark.parametrize(("row", "name"), [(VERL, "1.jsonl"), (OURS, "a.jsonl")])
def test_a_compressed_copy_beside_a_file_is_not_counted_again(tmp_path, row, name):
    path = write(tmp_path / name, row)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    source = open_run(tmp_path)
    assert len(list(source)) == 1
    assert any(f"compressed copies: {name}.gz" in note for note in source.notes)
    path.unlink()
    assert len(list(open_run(tmp_path))) == 1


def test_mixed_formats_are_named_and_the_option_decides(tmp_path):
    write(tmp_path / "1.jsonl", VERL)
    write(tmp_path / "mine.jsonl", OURS)
    with pytest.raises(ReadError, match=r"holds verl and jsonl: .* --format verl or --format jsonl"):
        open_run(tmp_path)
    source = open_run(tmp_path, format="verl")
    assert [episode.step for episode in source] == [1]
    assert source.notes == ["not read, as they are no verl or compressed copies: mine.jsonl"]
    source = open_run(tmp_path, format="jsonl")
    assert [episode.task for episode in source] == ["t"]
    assert source.counts["damaged"] == 1  # verl's line


def test_mixed_lines_in_a_file_are_told_of(tmp_path):
    path = write(tmp_path / "1.jsonl", VERL, OURS, VERL)
    source = open_run(path)
    assert len(list(source)) == 2
    assert source.counts["damaged"] == 1
    assert str(source.problems[0]).startswith(f"{path}, line 2: no text under input and output, which verl writes: {{")


def test_what_cannot_be_opened_says_why(tmp_path):
    write(tmp_path / "rollouts" / "1.jsonl", VERL)
    with pytest.raises(ReadError, match=r"there is no .*rollout: did you mean 'rollouts'"):
        open_run(tmp_path / "rollout")
    with pytest.raises(ReadError, match="no format 'ver': did you mean 'verl'"):
        open_run(tmp_path, format="ver")
    with pytest.raises(ReadError, match="--solved-at nan is no reward"):
        open_run(tmp_path / "rollouts", solved_at=float("nan"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ReadError, match="is empty: name the folder"):
        open_run(tmp_path / "empty")
    (tmp_path / "none.jsonl").touch()
    with pytest.raises(ReadError, match=r"none.jsonl is empty: no rollout was written"):
        open_run(tmp_path / "none.jsonl", format="verl")
    with pytest.raises(
        ReadError, match=r"holds no file of verl \(files \{step\}.jsonl.*\): it holds empty, none.jsonl"
    ):
        open_run(tmp_path, format="verl")
    write(tmp_path / "odd.jsonl", {"foo": 1, "bar": 2})
    with pytest.raises(
        ReadError, match=r"odd.jsonl has no layout that is known: its first record has the fields foo, bar"
    ):
        open_run(tmp_path / "odd.jsonl")
    with pytest.raises(ReadError, match=r"none.jsonl has no layout that is known: it is empty"):
        open_run(tmp_path / "none.jsonl")
    with pytest.raises(
        ReadError, match=r"odd.txt has no layout that is known: its first record has the fields foo, bar"
    ):
        open_run((tmp_path / "odd.jsonl").rename(tmp_path / "odd.txt"))
    (tmp_path / "notes.txt").write_text("words\n")
    with pytest.raises(ReadError, match=r"known: its first lines hold no JSON object. Known are verl"):
        open_run(tmp_path / "notes.txt")


def test_a_file_that_goes_away_or_cannot_be_read_is_no_crash(tmp_path):
    path = write(tmp_path / "1.jsonl", VERL)
    source = open_run(path)
    path.unlink()
    with pytest.raises(ReadError, match=r"1.jsonl cannot be read: No such file"):
        list(source)


def test_an_empty_step_among_others_is_told_of(tmp_path):
    write(tmp_path / "1.jsonl", VERL)
    (tmp_path / "2.jsonl").touch()
    source = open_run(tmp_path)
    assert len(list(source)) == 1
    assert [problem.what for problem in source.problems] == ["the file is empty"]


def test_a_pickle_is_refused_with_the_way_out(tmp_path):
    (tmp_path / "rollout_1.pt").write_bytes(pickle.dumps({"rollout_id": 1, "samples": []}))
    with pytest.raises(ReadError, match=r"is a pickle: .* weights_only=True"):
        open_run(tmp_path)
    with zipfile.ZipFile(tmp_path / "new.pt", "w") as archive:
        archive.writestr("archive/data.pkl", b"")
    with pytest.raises(ReadError, match=r"new.pt is a pickle"):
        open_run(tmp_path / "new.pt", format="jsonl")


def test_a_source_is_read_once(tmp_path):
    source = open_run(write(tmp_path / "1.jsonl", VERL))
    assert len(list(source)) == 1
    with pytest.raises(ReadError, match="was read already"):
        list(source)


def test_a_file_without_any_episode_is_an_error_that_shows_the_first_problem(tmp_path):
    path = tmp_path / "1.jsonl"
    path.write_text("{broken\n" * 3)
    source = open_run(path, format="verl")
    with pytest.raises(ReadError, match=r"holds no episode \(3 lines read\); .*1.jsonl, line 1: no JSON"):
        list(source)


def test_the_account_of_problems_and_names_is_bounded():
    source = Source("verl", [])
    for k in range(1000):
        source.damaged(Path("x"), k, "bad")
        source.count(f"unknown tool: {k}")
    assert len(source.problems) == 100
    assert source.counts["problems"] == source.counts["damaged"] == 1000
    assert len(source.counts) <= 201
    assert sum(source.counts.values()) == 3000


def test_what_is_shown_of_a_file_is_escaped():
    assert clip("a\tb\x1b[2Jé\ud800") == r"a\tb\x1b[2J\xe9\ud800"
    assert str(Problem("f", None, "bad")) == "f: bad"


@pytest.mark.parametrize(
    ("value", "solved_at", "truncated", "expected"),
    [
        (1.0, None, False, Outcome.SOLVED),
        (0.0, None, False, Outcome.WRONG),
        (0.7, None, False, Outcome.NOT_RECORDED),
        (0.7, 0.7, False, Outcome.SOLVED),
        (0.6, 0.7, False, Outcome.WRONG),
        (1.0, None, True, Outcome.TRUNCATED),
        (None, None, True, Outcome.NOT_RECORDED),
        (None, 0.5, False, Outcome.NOT_RECORDED),
    ],
)
def test_solved_is_said_and_never_guessed(value, solved_at, truncated, expected):
    source = Source("verl", [], solved_at=solved_at)
    assert rewards.outcome(source, value, truncated=truncated) is expected
    assert ("accuracy" in source.absent) == (value == 0.7 and solved_at is None)


def test_other_rewards_are_counted_with_the_way_out():
    source = Source("verl", [])
    for value in (0.1, 1.0, -1.0):
        rewards.outcome(source, value)
    assert source.absent["accuracy"].startswith("2 rewards are neither 0 nor 1: name the reward")
    for value in (float("nan"), float("inf"), "1", [1]):
        assert rewards.reward(source, Path("f"), 3, value) is None
    assert source.counts["rewards that are no finite number"] == 4
    assert rewards.reward(source, Path("f"), 3, True) == 1.0


def test_episodes_of_a_step_go_into_the_record():
    episodes = list(open_run(DATA / "verl" / "9.jsonl"))
    rollouts = to_rollouts(episodes, ("search", "verify", ANSWER))
    assert len(rollouts) == 4
    assert len(rollouts.groups.task) == 2
    assert rollouts.turns.action.tolist() == [0, 2, 2, 0, 1, 2, -1]


BIG = {
    **VERL,
    "step": 1,
    "output": "<search>q</search><information>" + "doc " * 2000 + "</information><answer>x</answer>",
}


def fill(path, bytes_):
    line = (json.dumps(BIG) + "\n").encode()
    number = bytes_ // len(line)
    with path.open("wb") as stream:
        for _ in range(number // 1000):
            stream.write(line * 1000)
        stream.write(line * (number % 1000))
    return number


def test_memory_does_not_grow_with_the_file(tmp_path):
    number = fill(tmp_path / "1.jsonl", 20 * 2**20)
    tracemalloc.start()
    try:
        assert sum(1 for _ in open_run(tmp_path)) == number > 2000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


PEAK = """
import resource, sys
from pathlib import Path
from studies.kit.reading.formats import open_run
print(sum(1 for _ in open_run(Path(sys.argv[1]))), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak(path):
    """Return (episodes, peak memory in MB) of reading in an interpreter of its own."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
    episodes, kilobytes = map(int, done.stdout.split())
    return episodes, kilobytes / (1024 if sys.platform != "darwin" else 1024**2)


@pytest.mark.long
def test_a_gigabyte_takes_no_more_memory_than_ten_megabytes(tmp_path):
    found = {}
    for name, size in (("small", 10 * 2**20), ("large", 2**30)):
        path = tmp_path / name / "1.jsonl"
        path.parent.mkdir()
        number = fill(path, size)
        found[name] = peak(path)
        assert found[name][0] == number
    assert found["large"][1] < found["small"][1] + 100
    sys.stdout.write(f"peak memory: {found['small'][1]:.0f} MB at 10 MB, {found['large'][1]:.0f} MB at 1 GB\n")


def test_compressed_runs_are_recognised_and_read(tmp_path):
    with gzip.open(tmp_path / "3.jsonl.gz", "wt") as stream:
        stream.write(json.dumps(VERL) + "\n")
    source = open_run(tmp_path)
    assert [episode.step for episode in source] == [3]
    assert source.bytes_read == source.bytes_total
