import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from studies.kit.phase.ledger import LedgerError

GRID = {"inner.level": (-1.0, 0.0, 1.0, 2.0), "spread": "0.1,0.3"}


def test_damaged_files_of_a_ledger_are_set_aside_and_made_again(sweep, ledgered, places):
    first = sweep("toy", GRID)
    before = ledgered(places["ledgers"])
    points = sorted((first.folder / "points").iterdir())
    points[0].write_text("{")
    points[1].write_text('{"schema": 1, "concluded": [{"claim": "is-up"}]}')
    (first.folder / "sweep.json").write_text("")
    again = sweep("toy", GRID)
    assert again.entries == first.entries
    assert again.fresh == 2
    assert len(again.notes) == 3
    assert all("it is kept as" in note for note in again.notes)
    assert ledgered(places["ledgers"]) == before
    assert len(list(first.folder.rglob("*.damaged-*"))) == 3


def test_a_ledger_of_a_newer_program_is_left_alone(sweep):
    folder = sweep("toy", GRID).folder
    path = next((folder / "points").iterdir())
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), "schema": 2}))
    with pytest.raises(LedgerError, match="has schema 2, this program reads up to 1: update it"):
        sweep("toy", GRID)
    path.write_text(text)
    assert sweep("toy", GRID).fresh == 0


def test_other_seeds_and_other_code_have_ledgers_of_their_own(sweep, monkeypatch):
    import studies.kit.phase.sweeps as module

    folders = {sweep("toy", GRID).folder, sweep("toy", GRID, seeds=10).folder, sweep("toy", GRID, arms="some").folder}
    monkeypatch.setattr(module, "code_fingerprint", lambda rung: "other")
    folders.add(sweep("toy", GRID).folder)
    assert len(folders) == 4


# Two at once ----------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from studies.kit.phase import sweep_study
if __name__ == "__main__":
    toys, store, ledgers = sys.argv[1:]
    print("ready", flush=True)
    sys.stdin.readline()
    swept = sweep_study("toy", {"inner.level": "-3:3:25"}, folder=__import__("pathlib").Path(toys), seeds=8,
                        store=store, ledgers=ledgers)
    print(len(swept.entries), len(swept.failed), flush=True)
"""


def test_two_sweeps_at_once_on_one_store(sweep, toys, tmp_path, places, contents, ledgered):
    there = {"store": tmp_path / "both" / "store", "ledgers": tmp_path / "both" / "sweeps"}
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, str(tmp_path / "program.py"), str(toys), *map(str, there.values())]
    env = {**os.environ, "PYTHONPATH": str(Path.cwd())}
    running = [
        subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for each in running:
        assert each.stdout.readline() == "ready\n"
    began = time.monotonic()
    for each in running:
        each.stdin.write("\n")
        each.stdin.flush()
    outputs = [each.communicate(timeout=60)[0] for each in running]
    assert outputs == ["25 0\n"] * 2, time.monotonic() - began
    alone = sweep("toy", {"inner.level": "-3:3:25"})
    assert contents(there["store"]) == contents(places["store"])
    assert ledgered(there["ledgers"]) == ledgered(places["ledgers"])
    assert len(alone.entries) == 25
