import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from studies.kit.sweep_cli import sweep
from studies.kit.words import CommandError

TOY = """
import time
import numpy as np
from sim.records.config import config
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs
from studies.kit import above, claim, median

@config
class Toy:
    level: float = 1.0
    kind: str = "plain"
    pause: float = 0.0

def train(config, seeds, *, study):
    time.sleep(config.pause)
    if config.kind == "bad":
        raise RuntimeError("no such kind")
    level = np.array([[config.level + 0.01 * (seed % 7)] * 3 for seed in seeds])
    steps = np.tile(np.arange(3), (len(seeds), 1))
    return Runs(config, seeds, study, "sim", code_fingerprint("sim"), {"step": steps, "level": level})

@claim("is-high", says="It is high.", kind=median(), region=above(2.5))
def study_NAME(study):
    runs = study.sweep({"only": Toy()}, run=train)["only"]
    study.conclude("is-high", values=runs["level"][:, -1])
"""
NUMBERS = itertools.count()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of one study, which is also where the command runs."""
    monkeypatch.chdir(tmp_path)
    name = f"cli{next(NUMBERS)}"  # modules of one name cannot be told apart
    (tmp_path / f"study_{name}.py").write_text(textwrap.dedent(TOY).replace("NAME", name))
    yield tmp_path
    sys.modules.pop(f"study_{name}", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


def call(folder, *grid, **options):
    options = {"executor": "inline", "folder": folder, **options}
    return sweep("is-high", grid, **options)


def test_a_sweep_says_what_came_out_and_where_it_lies(folder, capsys):
    assert call(folder, "level=1:4:4") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].endswith(": 4 points")
    assert out[1] == "  is-high: 2 supported, 2 refuted"
    assert [Path(line.strip()).name for line in out[2:]] == ["table.csv", "diagram.svg", "diagram.png"]
    assert all(Path(line.strip()).is_file() for line in out[2:])
    assert call(folder, "level=1:4:4") == 0
    assert capsys.readouterr().out.splitlines()[0].endswith(": 4 points, 4 of them known before")


def test_points_that_failed_are_told_and_change_the_status(folder, capsys):
    assert call(folder, "kind=plain,bad", "level=1,4") == 1
    out = capsys.readouterr().out
    assert "is-high: 1 supported, 1 refuted\n" in out
    assert "failed  kind=bad, level=1: point 'kind=bad, level=1: only', seeds 0 to 7: RuntimeError: no such kind" in out
    assert "--retry-failed tries them again" in out


def test_bisection_says_between_what(folder, capsys):
    assert call(folder, bisect="level=0:4:0.1", seeds="8") == 0
    out = capsys.readouterr().out
    assert "is-high along level" in out
    assert "changes between 2.438 and 2.5, refuted below; settled from 2.438 down and 3 up (8 points)" in out
    assert call(folder, "kind=plain,bad", bisect="level=0:4") == 1
    out = capsys.readouterr().out
    assert "kind=plain: changes between" in out
    assert "kind=bad: no boundary. kind=bad, level=0: point" in out


@pytest.mark.parametrize(
    ("grid", "options", "words"),
    [
        ((), {}, "the grid is empty"),
        (("level",), {}, "give KEY=A,B,C"),
        (("level=1", "level=2"), {}, "stands in the grid twice"),
        (("level=1",), {"bisect": "level=0:4"}, "'level' is both bisected and in the grid"),
        (("levle=1",), {}, "did you mean 'level'"),
        ((), {"bisect": "level=1"}, "give KEY=LOW:HIGH"),
        ((), {"bisect": "level=3:4"}, "lie on one side"),
        (("level=1",), {"slurm": ("time=3",)}, "without --executor slurm"),
        (("level=1",), {"processes": 2}, "goes with --executor processes"),
        (("level=1",), {"executor": "processes", "processes": 0}, "it takes 1 or more"),
        (("level=1",), {"claim": "is-hi"}, "did you mean 'is-high'"),
        (
            ("level=1",),
            {"executor": "slurm", "slurm": ("cluster=local", "partiton=x")},
            "did you mean 'slurm_partition'",
        ),
    ],
)
def test_what_cannot_be_done_is_said(folder, grid, options, words, capsys):
    if options.get("bisect") == "level=3:4":  # a row without a boundary is a result, not a refusal
        assert call(folder, *grid, **options) == 1
        assert words in capsys.readouterr().out
        return
    with pytest.raises(CommandError, match=words):
        call(folder, *grid, **options)


def test_a_store_that_cannot_be_written_is_named(folder):
    (folder / "file").write_text("")
    with pytest.raises(CommandError, match="nothing can be written to file/store: Not a directory"):
        call(folder, "level=1", store=Path("file/store"))


PROGRAM = """
import signal, sys
from pathlib import Path
from studies.kit.sweep_cli import sweep
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs, and what they start, ignore it
    sys.exit(sweep("is-high", ("level=1:80:80", "pause=0.1"), executor=sys.argv[1], folder=Path(sys.argv[2])))
"""


@pytest.mark.parametrize("executor", ["inline", pytest.param("processes", marks=pytest.mark.long)])
def test_an_interrupt_ends_it_cleanly_and_it_goes_on(folder, executor):
    (folder / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(folder / "program.py"), executor, str(folder)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    running = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    points = folder / "runs" / "sweeps"
    until = time.monotonic() + 60
    while len(list(points.glob("*/points/*.json"))) < 1 and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does
    out, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert errors.splitlines()[-1] == "metastable: stopped. What is done is kept; the same command goes on from there"
    assert "Traceback" not in errors
    assert out == ""
    known = {path.name: path.stat().st_mtime_ns for path in points.glob("*/points/*.json")}
    assert 1 <= len(known) < 80
    if executor == "inline":
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
        assert done.splitlines()[0].endswith(f": 80 points, {len(known)} of them known before")
        after = {path.name: path.stat().st_mtime_ns for path in points.glob("*/points/*.json")}
        assert len(after) == 80
        assert known.items() <= after.items()
