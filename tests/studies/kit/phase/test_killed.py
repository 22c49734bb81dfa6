"""Sweeps killed at random moments: what was finished stays, the rest is made, and nothing is taken for what it is not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import json, os, random, signal, sys, time
from pathlib import Path

from sim.records.fingerprint import code_fingerprint
from sim.records.store import Store
from studies.kit.phase import sweep_study
from studies.kit.phase.target import find

toys, root, kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
GRID = {"inner.level": "-2:3:6", "inner.kind": ("plain", "bad")}
code_fingerprint("sim")  # done before the forks, so that they begin with what is to be disturbed
find("toy", "sim", toys)

def sweep(folder):
    sweep_study("toy", GRID, folder=toys, seeds=8, store=folder / "store", ledgers=folder / "sweeps")

def forked(folder):
    child = os.fork()
    if child == 0:
        try:
            sweep(folder)
            os._exit(0)
        except BaseException as error:
            print(error, file=sys.stderr)
            os._exit(1)
    return child

def runs(folder):
    store = Store(folder / "store")
    return {key: (store.load(key).manifest_bytes().hex(), store.load(key).steps.digest()) for key in store.keys()}

def stamps(folder):
    return {str(p): p.stat().st_mtime_ns for p in (folder / "store").glob("[0-9a-f]*/manifest.json")}

def ledger(folder):
    found = {}
    for path in (folder / "sweeps").glob("*/points/*.json"):
        body = json.loads(path.read_text())
        if "failure" in body:
            body["failure"].pop("trace")
        found[path.name] = body
    return found

began = time.monotonic()
assert os.waitpid(forked(root / "whole"), 0)[1] == 0
took = time.monotonic() - began
whole, done = runs(root / "whole"), ledger(root / "whole")
random.seed(0)
seen = []
for number in range(kills):
    folder = root / str(number)
    child = forked(folder)
    time.sleep(random.uniform(0.0, 1.1) * took)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    left, marks, told = runs(folder), stamps(folder), ledger(folder)
    assert os.waitpid(forked(folder), 0)[1] == 0
    after = stamps(folder)
    seen.append({
        "stored": len(left),
        "true": all(whole.get(key) == value for key, value in left.items()),
        "told": len(told),
        "told_true": all(done.get(key) == value for key, value in told.items()),
        "kept": all(after[path] == mark for path, mark in marks.items()),
        "complete": runs(folder) == whole and ledger(folder) == done,
    })
print(json.dumps({"runs": len(whole), "points": len(done), "seen": seen}))
"""


def killed(toys, folder, times):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(toys), str(folder), str(times)],
        cwd=Path.cwd(),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("times", [5, pytest.param(50, marks=pytest.mark.long)])
def test_a_sweep_killed_at_random_moments_is_completed(toys, tmp_path, times):
    found = killed(toys, tmp_path, times)
    assert (found["runs"], found["points"]) == (48, 12)  # half of the points fail
    assert len(found["seen"]) == times
    for name in ("true", "told_true", "kept", "complete"):
        assert [each[name] for each in found["seen"]] == [True] * times
    # The moments are spread over the sweep: some runs were there, and seldom all.
    stored = [each["stored"] for each in found["seen"]]
    assert 0 < sum(stored) < 48 * times
    assert len(set(stored)) > times / 5
