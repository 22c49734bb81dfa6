import io
import json
from pathlib import Path

import numpy as np
import pytest

from studies.kit import cli
from studies.kit.read_cli import read
from studies.kit.reading.keeping import is_kept, load

DATA = Path(__file__).parents[2] / "data" / "reading"


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Run the command in a folder of its own; return its status, what it said, and what it complained of."""
    monkeypatch.setitem(cli.COMMANDS, "read", read)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = cli.main(["read", *map(str, arguments)])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def rollout(rng, step, task, guess):
    """A line of verl's: an answer at once, or a search before it, which helps."""
    guesses = rng.random() < guess
    looked = "" if guesses else "<search>the capital</search>\n<information>Paris</information>\n"
    score = float(rng.random() < (0.3 if guesses else 0.8))
    return {"input": f"question {task}", "output": f"{looked}<answer>Paris</answer>", "score": score, "step": step}


def verl(folder, seed=0, steps=40, rollouts=32, flip=None):
    """A run of so many steps that comes to guess at ``flip``; a share of guesses wanders about a tenth before."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    for step in range(1, steps + 1):
        guess = 0.1 if flip is None else 0.1 + 0.8 / (1 + np.exp(-(step - flip) / 1.5))
        lines = [rollout(rng, step, i // 8, guess) for i in range(rollouts)]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_flip_is_read_found_kept_and_shown(call, tmp_path):
    run = verl(tmp_path / "dump" / "flip", flip=24)
    status, out, err = call(run)
    assert (status, err) == (0, "")
    assert out.startswith("flip: verl, 1,280 rollouts in 40 steps (1 to 40), 32 a step\n")
    (half,) = [line for line in out.splitlines() if "half-way at step" in line]
    assert 22 <= int(half.split("step ")[1].split(",")[0]) <= 26
    assert "answer first" in out
    assert "uncalibrated" in out
    assert "alarms (" not in out
    assert out.endswith("page    runs/read/flip/index.html\nrecord  runs/read/flip\n")
    kept = load(tmp_path / "runs" / "read" / "flip")
    assert kept.steps["behaviour/answer_share/turn0"][-5:].mean() > 0.75
    assert len(kept.episodes) == 1280
    assert (tmp_path / "runs" / "read" / "flip" / "report.txt").read_text() in out
    assert (
        json.loads((tmp_path / "runs/read/flip/manifest.json").read_text())["config"]["files"][9]["name"] == "10.jsonl"
    )


def test_alarms_are_calibrated_on_control_runs(call, tmp_path):
    run = verl(tmp_path / "flip", flip=24, rollouts=16)
    quiet = [verl(tmp_path / "controls" / str(seed), seed=seed, rollouts=16) for seed in range(1, 21)]
    assert call(quiet[0], "--out", tmp_path / "kept")[0] == 0  # a control may be one that was read before
    status, out, _ = call(run, "--controls", tmp_path / "kept", *quiet[1:])
    assert status == 0
    assert "alarms (cusum), thresholds from 20 control runs, steps 1 to 40" in out
    (alarm,) = [line for line in out.splitlines() if line.startswith("  answer first  step")]
    assert 20 <= int(alarm.split()[3].rstrip(",")) <= 27
    _, out, _ = call(run, "--controls", *quiet[:3], "--detector", "level")
    assert "3 control runs can promise a false-alarm rate of 0.25 at the best" in out


def test_a_second_run_stands_beside_the_first(call, tmp_path):
    run, other = verl(tmp_path / "flip", flip=24), verl(tmp_path / "plain", seed=5)
    status, out, _ = call(run, "--against", other, "--name", "with a push", "--keep", "100", "--out", tmp_path / "both")
    assert status == 0
    assert "against plain: verl" in out
    assert "no transition found, looking back over 40 steps" in out
    page = (tmp_path / "both" / "index.html").read_text()
    assert '"with a push"' in page
    assert '"plain"' in page
    assert "100 of 1,280 rollouts are kept" in out
    assert len(load(tmp_path / "both").episodes) == 100


def test_what_was_read_before_is_told_from_the_record(call, tmp_path):
    run = verl(tmp_path / "flip", flip=24)
    _, first, _ = call(run)
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    status, again, _ = call("runs/read/flip")
    assert status == 0
    assert again.splitlines()[:-1] == first.splitlines()[:-2]
    assert again.splitlines()[-1].startswith("read from the record in runs/read/flip: nothing was written")
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == before


def test_a_record_of_a_run_that_was_stopped_gets_its_page(call, tmp_path):
    call(verl(tmp_path / "flip", steps=14))
    page = tmp_path / "runs" / "read" / "flip" / "index.html"
    page.unlink()
    status, out, _ = call("runs/read/flip")
    assert status == 0
    assert out.splitlines()[-1] == "page    runs/read/flip/index.html"
    assert "guess" in page.read_text(encoding="utf-8")


def test_damage_does_not_pass_in_silence(call, tmp_path):
    run = verl(tmp_path / "flip", steps=14)
    with (run / "3.jsonl").open("a") as file:
        file.write('{"input": "q"}\n{"input": \x1b[31m')
    status, out, _ = call(run)
    assert status == 0
    assert "3.jsonl, line 33:" in out.replace("\n    ", " ")
    assert "3.jsonl, line 34: cut off" in out.replace("\n    ", " ")
    assert "2 problems in reading" in out.splitlines()[-3]
    assert "\x1b" not in out
    page = (tmp_path / "runs" / "read" / "flip" / "index.html").read_text(encoding="utf-8")
    assert '["2 problems in reading",["' in page  # folded: a hundred of them would hide the run


@pytest.mark.parametrize("run", ["prime_rl", "search_r1", "search_r1_lines", "trl/search", "trl/tools", "verl"])
def test_every_fixture_is_read_in_one_command(call, tmp_path, run):
    status, out, _ = call(DATA / run)
    folder = Path(run).name
    assert status == 0
    assert "not there" in out
    assert is_kept(tmp_path / "runs" / "read" / folder)
    assert (tmp_path / "runs" / "read" / folder / "index.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "there is no nowhere"),
        (("run", "--keep", -1), "--keep -1 must be 0 or more"),
        (("run", "--rate", 1.5), "--rate 1.5 must lie between 0 and 1"),
        (("run", "--format", "jsonl"), "holds no episode"),
        (("run", "--out", "mine"), "mine holds something else than a reading"),
        (("run", "--controls", "run", "nowhere"), "there is no nowhere"),
        (("empty",), "empty"),
    ],
)
def test_what_cannot_be_done_is_told_and_nothing_is_written(call, tmp_path, arguments, words):
    verl(tmp_path / "run", steps=2)
    (tmp_path / "empty").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    status, out, err = call(*arguments)
    assert status == 2
    assert words in err
    assert out == ""
    assert not (tmp_path / "runs").exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_what_was_found_is_told_even_where_it_cannot_be_written(call, tmp_path, monkeypatch):
    from studies.kit.reading import keeping

    def full(*_):
        raise OSError(28, "No space left on device", "disk")

    monkeypatch.setattr(keeping, "_write_words", full)
    status, out, err = call(verl(tmp_path / "flip", flip=24))
    assert (status, err) == (2, "metastable: disk: No space left on device\n")
    assert "half-way at step" in out


def test_a_reader_that_stops_early_is_no_error(call, tmp_path, monkeypatch):
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    run = verl(tmp_path / "flip", steps=3)
    monkeypatch.setattr("sys.stdout", Closed())
    with pytest.raises(BrokenPipeError):  # which `cli.main` takes for what it is
        read(run)
    assert is_kept(tmp_path / "runs" / "read" / "flip")


def test_a_step_split_over_files_in_any_order_gives_the_same_table(call, tmp_path):
    rng = np.random.default_rng(2)
    lines = [rollout(rng, step, i // 8, 0.4) for step in range(3) for i in range(32)]
    plain = [
        {"step": x["step"], "task": x["input"], "completion": x["output"], "reward": x["score"] / 3} for x in lines
    ]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    (whole / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in plain))
    for name, some in (("b", plain[::-2]), ("a", plain[-2::-2])):
        (parts / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in some))
    for folder in (whole, parts):
        assert call(folder, "--solved-at", 0.3, "--keep", 20)[0] == 0
    one, other = load(tmp_path / "runs/read/whole"), load(tmp_path / "runs/read/parts")
    assert one.steps.equals(other.steps)
    assert one.steps["behaviour/solved_share"].min() > 0.3
    assert one.episodes == other.episodes
    assert len(one.episodes) == 20
