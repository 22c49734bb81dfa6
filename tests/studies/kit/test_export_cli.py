import json
import sys
from pathlib import Path

import pytest
import tyro
from pyarrow import parquet as pq

from sim.records.store import Store
from studies.kit.export.folder import MARKER
from studies.kit.export_cli import export
from studies.kit.words import CommandError
from tests.conftest import ROOT
from tests.studies.kit.runs.stores import OTHER, config, damage, names, record, renew, stored


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Keys of a store of three runs in the working directory, by what is special about them."""
    monkeypatch.chdir(tmp_path)
    made = [record(), record(seed=1, made_of=config(known=0.35)), record("dwell", code=OTHER)]
    return dict(zip(("plain", "known", "old"), stored(tmp_path / "runs" / "store", *made), strict=True))


def call(*arguments):
    return tyro.cli(export, args=[str(argument) for argument in arguments], prog="metastable export")


def exported(out="out"):
    return pq.read_table(f"{out}/runs.parquet")["run"].to_pylist()


def test_all_of_a_store(keys, capsys):
    assert call("--to", "parquet", "--out", "out") == 0
    assert capsys.readouterr().out == "3 runs to out\n"
    assert exported() == sorted(keys.values())
    marker = json.loads(Path("out", MARKER).read_text())
    assert marker["runs"] == sorted(keys.values())
    assert (marker["format"], marker["left_out"]) == ("parquet", {})


def test_by_key_and_by_filter(keys):
    assert call(keys["old"][:9], keys["plain"], "--to", "parquet", "--out", "out") == 0
    assert exported() == sorted([keys["old"], keys["plain"]])
    assert call("--to", "parquet", "--out", "out", "--where", "world.known=.35") == 0
    assert exported() == [keys["known"]]
    assert call(keys["old"], keys["plain"], "--study", "dwell", "--to", "parquet", "--out", "out") == 0
    assert exported() == [keys["old"]]


def test_to_tensorboard(keys, capsys):
    assert call("--to", "tensorboard", "--out", "out", "--study", "fold") == 0
    assert names("out/fold/sim") == sorted([f"seed0-{keys['plain']}", f"seed1-{keys['known']}"])
    assert capsys.readouterr().err == ""


def test_a_run_that_cannot_be_read_is_left_out_and_said_or_refused_where_it_was_named(keys, capsys):
    root = Store("runs/store").root
    damage(root, keys["plain"])
    renew(root, keys["old"])
    assert call("--to", "parquet", "--out", "out") == 1
    assert exported() == [keys["known"]]
    told = capsys.readouterr().err
    assert f"left out {keys['plain']}: damaged, cannot be read" in told
    assert f"left out {keys['old']}: newer, schema 2" in told
    assert set(json.loads(Path("out", MARKER).read_text())["left_out"]) == {keys["plain"], keys["old"]}
    with pytest.raises(CommandError, match="is newer: schema 2"):
        call(keys["old"], "--to", "parquet", "--out", "named")
    assert not Path("named").exists()


def test_damage_that_only_reading_shows_stops_the_export_and_leaves_nothing(keys):
    (Store("runs/store").root / keys["plain"] / "steps.npz").write_bytes(b"")
    for to in ("parquet", "tensorboard"):
        with pytest.raises(CommandError, match=f"{keys['plain']} cannot be read .*; nothing was exported"):
            call("--to", to, "--out", "out")
    assert names(".") == ["runs"]


def test_what_others_made_is_not_replaced(keys):
    Path("out").mkdir()
    Path("out/thesis").touch()
    with pytest.raises(CommandError, match="out is there and was not made by an export: name another with --out"):
        call("--to", "parquet", "--out", "out")
    assert names("out") == ["thesis"]


@pytest.mark.parametrize(
    ("to", "module", "words"),
    [
        ("parquet", "pyarrow", r'Parquet needs pyarrow, which is not installed: pip install "metastable\[parquet\]"'),
        (
            "tensorboard",
            "tensorboard.compat.proto",
            r"needs tensorboard, which is not installed: .*metastable\[tensorboard\]",
        ),
    ],
)
def test_without_the_extra(keys, monkeypatch, to, module, words):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CommandError, match=words):
        call("--to", to, "--out", "out")
    assert names(".") == ["runs"]


def test_nothing_to_export(keys):
    with pytest.raises(CommandError, match="none of the 3 runs is meant"):
        call("--to", "parquet", "--out", "out", "--seed", 77)
    with pytest.raises(CommandError, match="no store 'nowhere'"):
        call("--to", "parquet", "--out", "out", "--store", "nowhere")


def test_the_example_on_the_page_runs(keys, capsys):
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    assert call("--to", "parquet", "--out", "fold", "--study", "fold") == 0
    capsys.readouterr()
    exec(page.split("```python\n")[1].split("```")[0], {})
    found = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert found == {keys["plain"]: f"0.5 {0.1 * 3}", keys["known"]: f"0.35 {0.1 * 3 + 1}"}
