import json
import sys
from pathlib import Path

import pytest
import tyro

from sim.records.store import Store
from studies.kit import runs_cli
from studies.kit.seeds import FRESH_FROM
from studies.kit.words import CommandError
from tests.conftest import ROOT
from tests.studies.kit.runs.stores import OTHER, config, damage, names, record, renew, stored


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A working directory with a store of four runs and a folder of studies that holds one, fold.

    The package's own studies are out of sight: it has a fold too, and while its record is of this code it keeps these runs.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    monkeypatch.setattr(runs_cli, "FOLDER", tmp_path / "package")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study_fold.py").touch()
    made = {
        "a": record(seed=0, recorded_at="2026-03-04T05:06:07+00:00", wall_s=2.5),
        "b": record(seed=1, made_of=config(known=0.35)),
        "old": record(seed=0, code=OTHER),
        "fresh": record(seed=FRESH_FROM),
    }
    stored(tmp_path / "runs" / "store", *made.values())
    return {name: each.key for name, each in made.items()}


def call(*arguments):
    """Call ``metastable runs``, as the command line does."""
    return tyro.cli(runs_cli.runs, args=[str(argument) for argument in arguments], prog="metastable runs")


def test_a_list(project, capsys):
    assert call("list") == 0
    header, *rows, last = capsys.readouterr().out.splitlines()
    assert header.split() == [
        "key",
        "study",
        "rung",
        "seed",
        "steps",
        "code",
        "recorded",
        "wall",
        "s",
        "cpu",
        "s",
        "size",
        "config",
    ]
    assert {row.split()[0] for row in rows} == set(project.values())
    (b,) = [row for row in rows if row.startswith(project["b"])]
    assert b.split()[1:6] == ["fold", "sim", "1", "4", "this"]
    assert b.endswith("  world.known=.35")
    (a,) = [row for row in rows if row.startswith(project["a"])]
    assert "2026-03-04 05:06     2.5      -" in a
    assert last.startswith("4 of 4 runs, ")


def test_filters_options_may_be_repeated_and_keys_follow_them(project, capsys):
    assert call("list", "--seed", 0, "--seed", 1, "--code", "this", "--sort", "seed", "--reverse", "--limit", 1) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].startswith(project["b"])
    assert out[-1].startswith("2 of 4 runs, ")
    assert out[-1].endswith("; 1 not listed (--limit)")


def test_what_cannot_be_read_is_listed_whatever_the_filters(project, capsys):
    damage(Store("runs/store").root, project["a"])
    renew(Store("runs/store").root, project["old"])
    Path("runs/store/.writing-x").mkdir()
    assert call("list", "--seed", 1, "--limit", 0) == 0
    out = capsys.readouterr().out
    assert f"{project['a']}  damaged: cannot be read (JSONDecodeError" in out
    assert f"{project['old']}  newer: schema 2, this program reads up to 1: update it" in out
    assert "1 of 2 runs" in out
    assert "; besides 1 damaged, 1 newer, 1 temporary" in out


def test_json_is_json_and_says_the_same(project, capsys):
    damage(Store("runs/store").root, project["a"])
    assert call("list", "--json") == 0
    items = {item["key"]: item for item in json.loads(capsys.readouterr().out)}
    assert set(items) == set(project.values())
    assert items[project["b"]]["departs"] == {"world.known": 0.35}
    assert (items[project["old"]]["code"], items[project["old"]]["steps"]) == ("other", 4)
    assert (items[project["a"]]["kind"], "study" in items[project["a"]]) == ("damaged", False)


def test_a_baseline(project, capsys):
    assert call("list", "--baseline", project["b"][:10], "--code", "other") == 0
    assert capsys.readouterr().out.splitlines()[1].endswith("world.known=.5")


def test_show(project, capsys):
    assert call("show", project["old"], "--folder", "mine") == 0
    out = capsys.readouterr().out
    assert "with other code" in out
    assert "train/reward" in out
    assert "kept, because" not in out
    assert call("show", project["a"], "--folder", "mine") == 0
    assert "study fold would use it again" in capsys.readouterr().out


def test_compare_draws_where_it_is_told(project, capsys):
    assert call("compare", project["a"], project["old"], "--column", "train/reward") == 0
    out = capsys.readouterr().out
    assert "the same run, made by other code" in out
    assert "equal, bit for bit" in out
    (drawn,) = [name for name in names(".") if name.endswith(".svg")]
    assert drawn == f"compare-{project['a'][:8]}-{project['old'][:8]}.svg"
    assert call("compare", project["a"], project["b"], "--column", "train/reward", "--figure", "f.png") == 0
    assert "wrote f.png" in capsys.readouterr().out


def test_prune_asks_and_takes_only_yes_for_an_answer(project, capsys, monkeypatch):
    answers = iter(["", "n\n", "nonsense\n", "Y\n"])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", lambda: next(answers), raising=False)
    for _ in range(3):
        assert call("prune", "--code", "other", "--folder", "mine") == 1
        assert "Remove 1? [y/N] nothing removed" in capsys.readouterr().out
        assert Store("runs/store").has(project["old"])
    assert call("prune", "--code", "other", "--folder", "mine") == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{project['old']}  fold  0  ")
    assert "1 would go, " in out
    assert "removed 1, " in out
    assert sorted(Store("runs/store").keys()) == sorted(key for name, key in project.items() if name != "old")


def test_prune_without_anybody_to_ask(project):
    with pytest.raises(CommandError, match="nobody is there to be asked: --yes removes without asking"):
        call("prune", "--code", "other", "--folder", "mine")
    assert len(Store("runs/store").keys()) == 4


def test_prune_says_what_stays_and_why(project, capsys):
    assert call("prune", "--every", "--dry-run", "--folder", "mine") == 0
    out = capsys.readouterr().out
    assert "2 would go" in out
    assert "2 stay (2 current)" in out
    assert f"  {project['a']}: study fold would use it again: it was made with this code" in out
    assert len(Store("runs/store").keys()) == 4


def test_prune_of_keys_never_takes_one_that_is_referred_to(project, capsys, tmp_path):
    (tmp_path / "escalations").mkdir()
    (tmp_path / "escalations" / "claim.toml").write_text(project["old"])
    assert call("prune", project["old"], project["fresh"], project["a"][:9], "--yes", "--folder", "mine") == 0
    assert "removed 1, " in capsys.readouterr().out
    assert sorted(Store("runs/store").keys()) == sorted(project[name] for name in ("a", "b", "old"))


def test_what_comes_to_be_referred_to_while_the_question_stands_stays(project, capsys, monkeypatch, tmp_path):
    def answer():
        (tmp_path / "runs" / "sweeps" / "new").mkdir(parents=True)
        (tmp_path / "runs" / "sweeps" / "new" / "sweep.json").write_text(project["old"])
        return "y\n"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", answer, raising=False)
    assert call("prune", project["old"], project["fresh"], "--folder", "mine") == 0
    out = capsys.readouterr().out
    assert "2 would go" in out
    assert "removed 1, " in out
    assert Store("runs/store").has(project["old"])


def test_prune_of_folders_that_are_no_runs(project, capsys):
    root = Store("runs/store").root
    (root / project["old"] / "manifest.json").unlink()
    (root / project["fresh"]).rename(root / f".removing-{project['fresh']}-0")
    (root / ".writing-x").mkdir()
    assert call("prune", "--incomplete", "--temporary", "--yes", "--folder", "mine") == 0
    out = capsys.readouterr().out
    assert "1 stay (1 young)" in out
    assert names(root) == sorted([".writing-x", project["a"], project["b"]])


def test_runs_that_were_read_from_elsewhere_are_not_touched(project, tmp_path):
    stored(tmp_path / "runs" / "read" / "theirs", record(code=OTHER, seed=9))
    assert call("prune", "--every", "--yes", "--folder", "mine", "--study", "fold") == 0
    assert len(Store(tmp_path / "runs" / "read" / "theirs").keys()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prune",), r"prune what\? name keys or a filter"),
        (("prune", "--every", "--keep", "nowhere"), "there is no nowhere"),
        (("prune", "--every", "--folder", "nowhere"), "no folder 'nowhere'"),
        (("list", "--limit", -1), "--limit -1: it takes 0 or more"),
        (("list", "--store", "nowhere"), "no store 'nowhere'"),
        (("list", "--study", "flod"), "no run of study 'flod' here; did you mean 'fold'"),
        (("list", "--baseline", "zzz"), "no run 'zzz'"),
        (("show", "zzz"), "no run 'zzz' among the 4"),
        (("compare", "zzz", "zzz"), "no run 'zzz'"),
    ],
)
def test_what_cannot_be_done_is_said(project, arguments, words):
    with pytest.raises(CommandError, match=words):
        call(*arguments)
    assert len(Store("runs/store").keys()) == 4


def test_what_cannot_be_shown_or_drawn_is_said(project):
    with pytest.raises(CommandError, match=r"--figure f.svg: name the column to draw"):
        call("compare", project["a"], project["b"], "--figure", "f.svg")
    with pytest.raises(CommandError, match="no column 'train/rewrad'"):
        call("compare", project["a"], project["b"], "--column", "train/rewrad")
    with pytest.raises(CommandError, match="should end in"):
        call("compare", project["a"], project["b"], "--column", "train/reward", "--figure", "f.txt")
    root = Store("runs/store").root
    (root / project["a"] / "steps.npz").write_bytes(b"not an archive")
    with pytest.raises(CommandError, match=r"cannot be read .*: move the folder out of the store"):
        call("show", project["a"])
    damage(root, project["b"])
    with pytest.raises(CommandError, match=f"{project['b']} is damaged: cannot be read"):
        call("compare", project["old"], project["b"])


def test_the_commands_on_the_page_are_accepted(project):
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    lines = [line.partition("#")[0].split() for line in page.splitlines() if line.startswith("metastable runs ")]
    assert len(lines) == 4
    assert call(*lines[0][2:]) == 0
    for _, _, *arguments in lines[1:3]:
        with pytest.raises(CommandError, match="no run '3f1c0a' among the 4"):
            call(*arguments)
    assert call(*lines[3][2:], "--dry-run") == 0
