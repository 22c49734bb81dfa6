import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sim
from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Outcome, Rollouts
from sim.records.run import RunRecord, StepTable
from sim.records.store import Store, StoreError

CONFIG = {"type": "toy", "rate": 0.5}
ROOT = Path(sim.__file__).parents[1]


def record(seed=0, fingerprint="f0", config=CONFIG, provenance=None, rollouts=None, rows=5):
    steps = StepTable({"step": np.arange(rows), "reward/mean": seed + np.arange(rows) / 10})
    return RunRecord.create(config, "toy", seed, "sim", fingerprint, steps, provenance, rollouts)


def attempts():
    return Rollouts.from_trajectories([Trajectory("q", (Segment((Turn(1, 0),)),), 1.0, Outcome.SOLVED)])


# --- saving and loading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rollouts", [None, attempts()])
def test_what_is_saved_is_what_is_loaded(tmp_path, rollouts):
    store, saved = Store(tmp_path / "store"), record(3, provenance={"wall_s": 1.5}, rollouts=rollouts)
    assert store.save(saved)
    loaded = store.load(saved.key)
    assert loaded.equals(saved)
    assert loaded.steps["reward/mean"].tolist() == [3.0, 3.1, 3.2, 3.3, 3.4]
    assert loaded.rollouts == rollouts
    assert loaded.provenance["wall_s"] == 1.5
    assert loaded.provenance["recorded_at"].startswith("20")


def test_the_folder_is_as_documented(tmp_path):
    store, saved = Store(tmp_path), record(rollouts=attempts())
    store.save(saved)
    assert [path.name for path in tmp_path.iterdir()] == [saved.key]
    names = sorted(path.name for path in (tmp_path / saved.key).iterdir())
    assert names == ["manifest.json", "provenance.json", "rollouts.npz", "steps.npz"]
    assert (tmp_path / saved.key / "manifest.json").read_bytes() == saved.manifest_bytes()


def test_saving_again_changes_nothing(tmp_path):
    store = Store(tmp_path)
    assert store.save(record(provenance={"wall_s": 1.0}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    assert len(before) == 3
    assert not store.save(record(provenance={"wall_s": 2.0}))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.*")} == before


def test_an_empty_store_needs_no_folder(tmp_path):
    store = Store(tmp_path / "nowhere")
    assert store.keys() == []
    assert store.missing(["a", "b"]) == ["a", "b"]
    assert store.find(CONFIG, "toy", 0, "sim", "f0") == []
    assert store.sweep_temporary() == 0
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(KeyError, match="no run 'a' among the 0 in"):
        store.load("a")


@settings(deadline=None, max_examples=20)
@given(st.sets(st.integers(0, 12), max_size=6), st.sets(st.integers(0, 12), max_size=6))
def test_the_store_is_a_set_of_runs(tmp_path_factory, first, second):
    store = Store(tmp_path_factory.mktemp("store"))
    written = [store.save(record(seed)) for seed in [*first, *second]]
    assert sum(written) == len(first | second)
    assert store.keys() == sorted(record(seed).key for seed in first | second)
    wanted = [record(seed).key for seed in range(13)]
    assert store.missing(wanted) == [record(seed).key for seed in range(13) if seed not in first | second]
    assert {store.load(key).seed for key in wanted if store.has(key)} == first | second


# --- code -------------------------------------------------------------------------------------------------------------


def test_a_run_by_other_code_is_shown_but_not_reused(tmp_path):
    store = Store(tmp_path)
    old = record(0, "old", provenance={"recorded_at": "2020-01-01T00:00:00+00:00"})
    older = record(0, "older", provenance={"recorded_at": "2019-01-01T00:00:00+00:00"})
    for each in (older, old, record(1, "old"), record(0, "old", {**CONFIG, "rate": 0.25})):
        store.save(each)
    assert store.missing([record(0, "now").key]) == [record(0, "now").key]
    found = store.find(CONFIG, "toy", 0, "sim", "now")
    assert [(each.key, each.note) for each in found] == [
        (old.key, "recorded with other code"),
        (older.key, "recorded with other code"),
    ]
    now = record(0, "now", provenance={"recorded_at": "2018-01-01T00:00:00+00:00"})
    assert store.save(now)
    found = store.find(CONFIG, "toy", 0, "sim", "now")
    assert [each.key for each in found] == [now.key, old.key, older.key]
    assert found[0].note == "recorded with this code"
    assert found[1].manifest["fingerprint"] == "old"
    assert store.load(found[1].key).equals(old)


def test_finding_asks_for_the_code_that_runs_now(tmp_path):
    from sim.records.fingerprint import code_fingerprint

    store = Store(tmp_path)
    store.save(record(0, code_fingerprint("sim")))
    store.save(record(0, "other"))
    assert [each.same_code for each in store.find(CONFIG, "toy", 0, "sim")] == [True, False]


# --- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("steps.npz", b"not an archive"),
        ("steps.npz", None),
        ("steps.npz", b""),
        ("manifest.json", b"{"),
        ("manifest.json", b"[]"),
        ("manifest.json", b'{"schema": 1}'),
        ("provenance.json", None),
        ("rollouts.npz", None),
    ],
)
def test_a_damaged_folder_is_named_with_the_way_out(tmp_path, name, content):
    store, saved = Store(tmp_path), record(rollouts=attempts())
    store.save(saved)
    path = tmp_path / saved.key / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=rf"{saved.key} cannot be read.*move the folder out of the store"):
        store.load(saved.key)


def test_other_contents_than_the_manifest_says_are_refused(tmp_path):
    store, saved = Store(tmp_path), record(0)
    store.save(saved)
    record(1).steps.save(tmp_path / saved.key / "steps.npz")
    with pytest.raises(StoreError, match="does not agree with its manifest in steps"):
        store.load(saved.key)
    (tmp_path / saved.key).rename(tmp_path / ("0" * 16))
    with pytest.raises(StoreError, match="0000 does not agree with its manifest in key, steps"):
        store.load("0" * 16)


def test_an_edited_manifest_is_refused(tmp_path):
    store, saved = Store(tmp_path), record(0)
    store.save(saved)
    path = tmp_path / saved.key / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "config": {**CONFIG, "rate": 0.75}}))
    with pytest.raises(StoreError, match="does not agree with its manifest in key"):
        store.load(saved.key)


def test_a_newer_schema_is_refused(tmp_path):
    store, saved = Store(tmp_path), record(0)
    store.save(saved)
    path = tmp_path / saved.key / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(StoreError, match="has schema 99"):
        store.load(saved.key)


def test_a_folder_without_manifest_is_absent_and_not_lost(tmp_path):
    store, saved = Store(tmp_path), record(0)
    (tmp_path / saved.key).mkdir()
    (tmp_path / saved.key / "steps.npz").write_bytes(b"half")
    assert not store.has(saved.key)
    assert store.keys() == []
    assert store.save(saved)
    assert store.load(saved.key).equals(saved)
    aside = [path for path in tmp_path.iterdir() if path.name.startswith(".incomplete-")]
    assert [(path / "steps.npz").read_bytes() for path in aside] == [b"half"]


def test_temporary_folders_are_swept_once_they_are_old(tmp_path):
    store = Store(tmp_path)
    store.save(record(0))
    left = tmp_path / ".writing-0000-dead"
    left.mkdir()
    (left / "steps.npz").write_bytes(b"half")
    assert store.keys() == [record(0).key]
    assert store.sweep_temporary() == 0
    os.utime(left, (time.time() - 90_000,) * 2)
    assert store.sweep_temporary() == 1
    assert [path.name for path in tmp_path.iterdir()] == [record(0).key]


def test_a_failed_write_leaves_nothing(tmp_path):
    bad = record(0, provenance={"wall_s": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        Store(tmp_path).save(bad)
    assert list(tmp_path.iterdir()) == []


# --- several writers --------------------------------------------------------------------------------------------------


def test_of_many_writers_of_one_run_one_wins_and_all_go_on(tmp_path):
    store, saved, barrier, won = Store(tmp_path), record(0, rows=20_000), threading.Barrier(8), []

    def write():
        barrier.wait()
        won.append(store.save(saved))

    threads = [threading.Thread(target=write) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 7 + [True]
    assert [path.name for path in tmp_path.iterdir()] == [saved.key]
    assert store.load(saved.key).equals(saved)


WRITER = """
import sys
import numpy as np
from sim.records.run import RunRecord, StepTable
from sim.records.store import Store
store = Store(sys.argv[1])
print("ready", flush=True)
for seed in range(int(sys.argv[2])):
    values = np.random.default_rng(seed).random((8, 2000))
    steps = StepTable({"step": np.arange(2000), **{f"c{i}": v for i, v in enumerate(values)}})
    store.save(RunRecord.create({"type": "toy"}, "kill", seed, "sim", "f0", steps))
"""
SEEDS = 60


def _python(program, *arguments):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)


def _kill_and_resume(root, kills, rng):
    """Kill a sweep at random points, each time checking what is visible; then let it finish."""
    store, visible, interrupted = Store(root), set(), 0
    for _ in range(kills):
        with _python(WRITER, root, SEEDS) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            target = len(visible) + rng.randrange(8)
            while len(store.keys()) < target and writer.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, 0.01))
            writer.send_signal(signal.SIGKILL)
            interrupted += writer.wait() == -signal.SIGKILL
        keys = store.keys()
        assert visible <= set(keys)  # nothing is lost
        assert [store.load(key).key for key in keys] == keys  # nothing is half there
        visible = set(keys)
    with _python(WRITER, root, SEEDS) as writer:
        assert writer.wait() == 0
    keys = store.keys()
    assert sorted(store.load(key).seed for key in keys) == list(range(SEEDS))
    store.sweep_temporary(older_than_s=0.0)
    assert sorted(path.name for path in Path(root).iterdir()) == keys
    return interrupted


def test_a_killed_sweep_resumes(tmp_path):
    assert _kill_and_resume(tmp_path, kills=3, rng=random.Random(0)) >= 1


@pytest.mark.long
def test_a_sweep_killed_twenty_times_resumes(tmp_path):
    interrupted = sum(_kill_and_resume(tmp_path / str(n), kills=5, rng=random.Random(n)) for n in range(4))
    assert interrupted >= 10


DIES = """
import os, signal, sys
from pathlib import Path
import numpy as np
from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Outcome, Rollouts
from sim.records.run import RunRecord, StepTable
from sim.records.store import Store
write_bytes = Path.write_bytes

def half(path, content):
    if path.name == sys.argv[2]:
        write_bytes(path, content[: len(content) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return write_bytes(path, content)

Path.write_bytes = half
steps = StepTable({"step": np.arange(5), "reward/mean": np.arange(5) / 10})
rollouts = Rollouts.from_trajectories([Trajectory("q", (Segment((Turn(1, 0),)),), 1.0, Outcome.SOLVED)])
config = {"type": "toy", "rate": 0.5}
Store(sys.argv[1]).save(RunRecord.create(config, "toy", 0, "sim", "f0", steps, rollouts=rollouts))
"""


@pytest.mark.parametrize("name", ["steps.npz", "rollouts.npz", "manifest.json"])
def test_a_writer_killed_in_the_middle_of_a_file_leaves_no_visible_run(tmp_path, name):
    # Mutation: writing into the final folder shows a run without steps (or with half of them) under its own name.
    with _python(DIES, tmp_path, name) as writer:
        assert writer.wait() == -signal.SIGKILL
    store = Store(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert store.keys() == []
    assert store.save(record(0, rollouts=attempts()))
    assert store.sweep_temporary(older_than_s=0.0) == 1
    assert store.load(record(0, rollouts=attempts()).key).rollouts == attempts()
