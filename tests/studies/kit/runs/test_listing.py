import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sim.records.store import Store
from studies.kit.runs.listing import Row, against, commonest, find, plain, scan
from studies.kit.words import CommandError
from tests.studies.kit.runs.stores import OTHER, THIS, config, damage, record, renew, rollouts, stored


def test_a_row_says_what_the_manifest_and_the_provenance_say(tmp_path):
    made = record(seed=7, made_of=config(known=0.35), recorded_at="2026-03-04T05:06:07+02:00", wall_s=1.5, cpu_s=3)
    (key,) = stored(tmp_path, made)
    (row,) = scan(tmp_path)
    assert (row.name, row.kind, row.study, row.manifest["seed"], row.code) == (key, "run", "fold", 7, "this")
    assert row.recorded == datetime(2026, 3, 4, 3, 6, 7, tzinfo=UTC)
    assert (row.seconds("wall_s"), row.seconds("cpu_s"), row.seconds("host")) == (1.5, 3.0, None)
    assert row.size == sum(file.stat().st_size for file in (tmp_path / key).iterdir())
    assert plain(row)["steps"] == 4


def test_other_code_and_a_rung_that_is_not_there_are_said(tmp_path):
    stored(tmp_path, record(code=OTHER), record(seed=1), record(seed=2, rung="nowhere"))
    codes = {row.manifest["seed"]: row.code for row in scan(tmp_path)}
    assert codes == {0: "other", 1: "this", 2: "unknown"}
    assert THIS != OTHER


@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (lambda root, key: damage(root, key), "damaged", "JSONDecodeError"),
        (lambda root, key: damage(root, key, text="[1]"), "damaged", "holds list"),
        (lambda root, key: damage(root, key, text="\0" * 40), "damaged", "cannot be read"),
        (lambda root, key: damage(root, key, text="[" * 100_000), "damaged", "RecursionError"),
        (lambda root, key: damage(root, key, text='{"schema": 1}'), "damaged", "KeyError: 'key'"),
        (lambda root, key: damage(root, key, text='{"schema": "one"}'), "damaged", "schema 'one'"),
        (lambda root, key: (root / key / "manifest.json").write_bytes(b"\xff\xfe"), "damaged", "UnicodeDecodeError"),
        (lambda root, key: damage(root, key, "provenance.json"), "damaged", "cannot be read"),
        (lambda root, key: (root / key / "provenance.json").unlink(), "damaged", "provenance.json"),
        (lambda root, key: (root / key / "steps.npz").unlink(), "damaged", "no steps.npz"),
        (lambda root, key: (root / key / "rollouts.npz").unlink(), "damaged", "no rollouts.npz"),
        (lambda root, key: (root / key).rename(root / ("f" * 16)), "damaged", "it holds the manifest of"),
        (renew, "newer", "schema 2, this program reads up to 1"),
        (lambda root, key: (root / key / "manifest.json").unlink(), "incomplete", "no manifest.json"),
        (lambda root, key: (root / key).rename(root / f".writing-{key}-0"), "temporary", "killed"),
        (lambda root, key: (root / key).rename(root / f".incomplete-{key}-0"), "set aside", "in the way"),
    ],
)
def test_what_is_no_run_any_more_is_still_a_row_that_says_why(tmp_path, spoil, kind, words):
    spoiled, whole = stored(tmp_path, record(rollouts=rollouts()), record(seed=1))
    spoil(tmp_path, spoiled)
    rows = scan(tmp_path)
    assert len(rows) == 2
    (row,) = [row for row in rows if row.name != whole]
    assert row.kind == kind
    assert words in row.problem
    assert row.key in (spoiled, "f" * 16)
    assert not row.is_run
    assert json.loads(json.dumps(plain(row)))["problem"] == row.problem
    if kind in ("damaged", "newer") and not words.startswith(("provenance", "it holds")):
        with pytest.raises(Exception, match=r".+"):
            Store(tmp_path).load(spoiled)


def test_a_folder_that_may_not_be_looked_into_is_a_row(tmp_path, monkeypatch):
    (key,) = stored(tmp_path, record())
    real = os.scandir

    def refuse(path):
        if str(path).endswith(key):
            raise PermissionError("not yours")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    (row,) = scan(tmp_path)
    assert (row.kind, row.size) == ("damaged", 0)
    assert "not yours" in row.problem


def test_what_is_not_of_the_store_is_left_alone(tmp_path):
    (key,) = stored(tmp_path, record())
    (tmp_path / "notes").mkdir()
    (tmp_path / "0123456789abcdef").write_text("a file")
    assert [row.name for row in scan(tmp_path)] == [key]


def test_no_store(tmp_path):
    with pytest.raises(CommandError, match=r"no store .*run a study first"):
        scan(tmp_path / "nothing")


def test_a_run_is_found_by_the_first_digits_that_are_its_own():
    names = [f"{i:02d}{'a' * 14}" for i in (*range(10, 20), 20, 21)]
    rows = [Row(name, Path(name), "run", 0) for name in (*names, f".writing-{names[0]}-x")]
    assert find(rows, names[3]).name == find(rows, "13").name == names[3]
    with pytest.raises(
        CommandError, match=f"'2' begins the keys of 2 runs: {names[10]}, {names[11]}; give more digits"
    ):
        find(rows, "2")
    with pytest.raises(CommandError, match=f"begins the keys of 10 runs: .*{names[7]} and 2 more; give more digits"):
        find(rows, "1")
    for unknown in ("xyz", "", ".writing"):
        with pytest.raises(CommandError, match=f"no run '{unknown}' among the 12 here"):
            find(rows, unknown)


def test_configs_depart_from_the_commonest_of_their_study(tmp_path):
    usual = [record(seed=seed) for seed in range(3)]
    odd = record(seed=9, made_of=config(known=0.35, drive=None))
    elsewhere = record(study="dwell", made_of=config(rate=8.0))
    stored(tmp_path, *usual, odd, elsewhere)
    rows = scan(tmp_path)
    assert commonest(rows) == {("fold", "sim"): config(), ("dwell", "sim"): config(rate=8.0)}
    departs = against(rows)
    assert departs[odd.key] == {"world.known": (0.5, 0.35)}
    assert departs[usual[0].key] == departs[elsewhere.key] == {}
    assert against(rows, config(known=0.35))[elsewhere.key] == {
        "world.known": (0.35, 0.5),
        "optimiser.rate": (2.0, 8.0),
    }


def test_of_two_configs_as_common_the_choice_does_not_depend_on_the_order(tmp_path):
    stored(tmp_path, record(), record(made_of=config(known=0.1)))
    rows = scan(tmp_path)
    assert commonest(rows) == commonest(rows[::-1]) == {("fold", "sim"): config(known=0.1)}
