import importlib.metadata
import os
import shutil
import subprocess
import sys

import pytest

from sim.mdp.worlds import PRESETS
from studies.kit import cli
from studies.kit.records import record

STUDY = """
import numpy as np
from studies.kit import above, claim, rate

@claim("it-flips", says="It flips.", kind=rate(), region=above(.3), expect="{expect}", seeds=16)
@claim("it-flips-late", says="It flips late.", kind=rate(), region=above(.3), rungs=("minimodel",))
def study_flips(study):
    study.conclude("it-flips", outcomes=np.ones(16, bool))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/study_flips.py").write_text(STUDY.format(expect="supported"))
    return tmp_path / "mine"


def call(*arguments):
    with pytest.raises(SystemExit) as stopped:
        raise SystemExit(cli.main([str(argument) for argument in arguments]))
    return stopped.value.code


def test_list(folder, capsys):
    assert call("list", "--folder", folder) == 0
    out = capsys.readouterr().out
    assert "it-flips  (supported, 16 seeds, sim)\n    It flips." in out
    assert "it-flips-late  (new, 8 seeds, minimodel)" in out
    assert call("list", "--folder", folder, "--rung", "minimodel") == 0
    assert "1 claim in" in capsys.readouterr().out


def test_list_names_a_study_that_cannot_be_imported(folder, capsys):
    (folder / "study_bad.py").write_text("import nothing_of_the_kind")
    assert call("list", "--folder", folder) == 2
    assert "study_bad.py cannot be imported" in capsys.readouterr().err


def test_show(folder, finding, capsys):
    assert call("show", "it-flips", "--folder", folder) == 0
    out = capsys.readouterr().out
    for words in ("It flips.", "not on record", "> .3", "nothing", "supported", "metastable run it-flips --record"):
        assert words in out
    record(folder / "records", finding(claim="it-flips"), "abc123")
    assert call("show", "it-flips", "--folder", folder) == 0
    out = capsys.readouterr().out
    for words in ("sim: supported", "0 [0, .056] share of runs, n=64", "agrees (T2)", "abc123", "not yet run on fresh"):
        assert words in out


@pytest.mark.parametrize("command", ["show", "run"])
def test_an_unknown_claim_is_met_with_the_near_ones(folder, capsys, command):
    assert call(command, "it-flits", "--folder", folder) == 2
    assert "did you mean 'it-flips'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [("list",), ("show", "it-flips"), ("run", "it-flips")])
def test_a_folder_that_is_not_there_is_named(command, tmp_path, capsys):
    assert call(*command, "--folder", tmp_path / "nope") == 2
    assert "nope'" in capsys.readouterr().err


def test_a_claim_is_not_run_at_a_rung_where_it_is_not_made(folder, capsys):
    assert call("run", "it-flips", "--rung", "minimodel", "--folder", folder) == 2
    assert "'it-flips' is not made at minimodel; rungs: sim" in capsys.readouterr().err


def test_a_reader_that_stops_early_is_no_error(folder):
    command = [sys.executable, "-m", "studies.kit.cli", "list", "--folder", str(folder)]
    reading, writing = os.pipe()
    os.close(reading)  # nobody reads: the first flush breaks
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(
            command, env={"PYTHONPATH": str(cli.FOLDER.parent)}, stdout=out, stderr=subprocess.PIPE, check=False
        )
    assert (done.returncode, done.stderr) == (141, b"")


def run(folder, *arguments):
    installed = importlib.metadata.entry_points(group="pytest11", name="metastable")
    plugin = {} if installed else {"PYTEST_ADDOPTS": "-p studies.kit.plugin"}
    root = str(cli.FOLDER.parent)
    command = [sys.executable, "-m", "studies.kit.cli", "run", "--folder", str(folder), *arguments]
    env = {"PATH": "", "PYTHONPATH": root, **plugin}
    return subprocess.run(command, env=env, cwd=folder.parent, capture_output=True, text=True, check=False)


def test_run_gives_the_exit_status_of_pytest(folder):
    shutil.copy(folder / "study_flips.py", folder / "study_others.py")
    others = (folder / "study_others.py").read_text().replace("it-flips", "others")
    (folder / "study_others.py").write_text(others.replace("study_flips", "study_others"))
    done = run(folder, "it-flips")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 deselected" in done.stdout
    assert "1 supported" in done.stdout
    (folder / "study_flips.py").write_text(STUDY.format(expect="refuted"))
    assert run(folder, "it-flips").returncode == 1


def test_draw(capsys):
    assert call("draw", "seed-a") == 0
    assert "search" in capsys.readouterr().out
    assert call("draw", "seed-b") == 2
    assert "did you mean 'seed-a'" in capsys.readouterr().err


@pytest.mark.parametrize("command", [[], ["run"], ["draw"], ["list"], ["show"]])
def test_help_explains(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([*command, "--help"])
    assert stopped.value.code == 0
    assert "metastable" in capsys.readouterr().out


def test_help_names_claims_and_every_world(capsys):
    for command, words in (("run", ["CLAIM"]), ("show", ["CLAIM"]), ("draw", ["WORLD", *PRESETS])):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        out = capsys.readouterr().out
        assert all(word in out for word in words)


def test_help_is_quick(fresh_python):
    loaded = fresh_python("import studies.kit.cli, sys; print(*sys.modules)").split()
    assert {"numpy", "scipy", "matplotlib", "torch", "pytest", "sim"}.isdisjoint(loaded)


def test_the_way_to_a_record_names_the_folder(tmp_path, capsys):
    (tmp_path / "study_mine.py").write_text(
        'from studies.kit import above, claim, rate\n\n@claim("mine", says="Mine.", kind=rate(), region=above(0))\n'
        "def study_mine(study): ...\n"
    )
    assert call("show", "mine", "--folder", tmp_path) == 0
    assert (
        f"metastable run mine --record --folder {tmp_path}  (once the claim states expect=)" in capsys.readouterr().out
    )
