import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.fingerprint import code_fingerprint
from sim.records.rng import normals
from sim.records.run import Runs
from sim.records.store import Store
from studies.kit.executors import SweepError, inline, processes
from studies.kit.sweep import sweep

TOY = """
import numpy as np
from sim.records.fingerprint import code_fingerprint
from sim.records.rng import normals
from sim.records.run import Runs

def train(config, seeds, *, study):
    noise = np.stack([normals(seed, f"{study}/noise", 0, (5,)) for seed in seeds])
    steps = np.tile(np.arange(5), (len(seeds), 1))
    return Runs(config, seeds, study, "sim", code_fingerprint("sim"), {"step": steps, "x": config["level"] + noise})
"""
POINTS = {"low": {"level": 0.0}, "high": {"level": 3.0}}


def train(config, seeds, *, study):
    noise = np.stack([normals(seed, f"{study}/noise", 0, (5,)) for seed in seeds])
    steps = np.tile(np.arange(5), (len(seeds), 1))
    return Runs(config, seeds, study, "sim", code_fingerprint("sim"), {"step": steps, "x": config["level"] + noise})


def counting(calls):
    def run(config, seeds, *, study):
        calls.append((config["level"], tuple(seeds)))
        return train(config, seeds, study=study)

    return run


@given(st.integers(1, 12), st.integers(1, 5))
def test_the_same_bits_in_any_blocks(n, block):
    whole = {label: train(config, tuple(range(n)), study="s") for label, config in POINTS.items()}
    found = sweep(train, POINTS, range(n), study="s", block=block)
    assert list(found) == ["low", "high"]
    for label, runs in found.items():
        assert runs.seeds == tuple(range(n))
        assert runs.equals(whole[label])


def test_the_same_bits_in_other_processes(tmp_path, monkeypatch):
    (tmp_path / "toy_sweep.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    import toy_sweep  # type: ignore[import-not-found]

    with processes(2) as executor:
        there = sweep(toy_sweep.train, POINTS, range(6), study="s", block=2, executor=executor)
    here = sweep(train, POINTS, range(6), study="s")
    assert all(there[label].equals(here[label]) for label in POINTS)
    sys.modules.pop("toy_sweep")


def test_blocks_hold_what_is_missing_and_the_store_the_rest(tmp_path):
    calls, store = [], Store(tmp_path)
    run = counting(calls)
    first = sweep(run, {"low": POINTS["low"]}, [0, 1, 2, 5], study="s", store=store, block=2)
    assert calls == [(0.0, (0, 1)), (0.0, (2, 5))]
    calls.clear()
    second = sweep(run, POINTS, range(6), study="s", store=store, block=4)
    assert calls == [(0.0, (3, 4)), (3.0, (0, 1, 2, 3)), (3.0, (4, 5))]
    assert second["low"].select([0, 1, 2, 5]).equals(first["low"])
    calls.clear()
    third = sweep(run, POINTS, [5, 0, 3], study="s", store=store)
    assert calls == []
    assert third["high"].equals(second["high"].select([5, 0, 3]))  # in the order asked for
    sweep(run, POINTS, [0], study="another study", store=store)
    assert calls == [(0.0, (0,)), (3.0, (0,))]  # streams are its own, and so are its runs


def test_a_sweep_that_fails_keeps_what_was_done(tmp_path):
    calls, store = [], Store(tmp_path)

    def fails(config, seeds, *, study):
        if config["level"] and 2 in seeds:
            raise RuntimeError("diverged")
        return counting(calls)(config, seeds, study=study)

    with pytest.raises(SweepError, match=r"point 'high', seeds 2 to 3: RuntimeError: diverged"):
        sweep(fails, POINTS, range(6), study="s", store=store, block=2)
    calls.clear()
    sweep(counting(calls), POINTS, range(6), study="s", store=store, block=2)
    assert calls == [(3.0, (2, 3)), (3.0, (4, 5))]


def test_one_config_under_two_labels_is_run_once():
    calls = []
    found = sweep(counting(calls), {"a": {"level": 1.0}, "b": {"level": 1.0}}, range(2), study="s")
    assert calls == [(1.0, (0, 1))]
    assert found["a"].equals(found["b"])


def test_progress_counts_runs(tmp_path):
    seen, store = [], Store(tmp_path)
    sweep(train, {"low": POINTS["low"]}, range(2), study="s", store=store)
    sweep(train, POINTS, range(4), study="s", store=store, block=2, progress=seen.append)
    assert seen.pop() is None
    assert list(dict.fromkeys((status.point, status.done, status.total) for status in seen)) == [
        ("low", 2, 8),
        ("low", 4, 8),
        ("high", 4, 8),
        ("high", 6, 8),
        ("high", 8, 8),
    ]
    sweep(train, POINTS, range(4), study="s", store=store, progress=seen.append)
    assert seen[-1].done == 8  # all is in the store: nothing more was shown


def test_a_run_that_takes_progress_is_given_it():
    def steps(config, seeds, *, study, progress):
        progress(3, 4)
        return train(config, seeds, study=study)

    seen = []
    found = sweep(steps, {"low": POINTS["low"]}, [5], study="s", block=1, progress=seen.append)
    assert [(status.point, status.step, status.steps) for status in seen[:-1]] == [
        ("low, seed 5", 0, 0),
        ("low, seed 5", 0, 0),
        ("low, seed 5", 3, 4),
        ("low, seed 5", 0, 0),
    ]
    assert found["low"].equals(sweep(train, {"low": POINTS["low"]}, [5], study="s")["low"])


def test_above_the_first_rung_a_run_is_stored_as_soon_as_it_is_done(tmp_path):
    store = Store(tmp_path)

    def fails(config, seeds, *, study):
        if seeds[0] == 2:
            raise RuntimeError("diverged")
        return replace(train(config, seeds, study=study), rung="minimodel", fingerprint=code_fingerprint("minimodel"))

    with pytest.raises(SweepError, match="point 'low', seed 2: RuntimeError: diverged"):
        sweep(fails, POINTS, range(6), study="s", rung="minimodel", store=store)
    assert len(store.keys()) == 2


def test_a_run_that_is_not_the_one_asked_for_is_caught():
    def other_study(config, seeds, *, study):
        return train(config, seeds, study="mine")

    def other_code(config, seeds, *, study):
        return replace(train(config, seeds, study=study), fingerprint="0" * 64)

    def other_seeds(config, seeds, *, study):
        return train(config, [seed + 1 for seed in seeds], study=study)

    for run, message in ((other_study, "another study"), (other_code, "code changed"), (other_seeds, "another seed")):
        with pytest.raises(SweepError, match=f"point 'low', seed 0: .*{message}"):
            sweep(run, POINTS, [0], study="s")


@pytest.mark.parametrize(
    ("points", "seeds", "block", "message"),
    [
        ({}, [0], 8, "no points"),
        (POINTS, [], 8, "one or more"),
        (POINTS, [1, 1], 8, "each once"),
        (POINTS, [0], 0, "block"),
    ],
)
def test_an_empty_sweep_is_refused(points, seeds, block, message):
    with pytest.raises(ValueError, match=message):
        sweep(train, points, seeds, study="s", block=block, executor=inline)


def test_the_simulator_trains_by_default():
    # A config that is none of its own reaches the simulator's loop, which cannot train it.
    with pytest.raises(SweepError, match=r"point 'odd', seed 0: AttributeError"):
        sweep(None, {"odd": {"not": "a training"}}, [0], study="s")


def test_the_second_rung_trains_with_its_own_loop(monkeypatch):
    loop, calls = types.ModuleType("minimodel.agent.train"), []
    loop.train = lambda config, seeds, *, study, progress=None: calls.append((config, seeds, progress)) or 1 / 0
    monkeypatch.setitem(sys.modules, "minimodel.agent.train", loop)
    with pytest.raises(SweepError, match="ZeroDivisionError"):
        sweep(None, {"a": {"x": 1}}, range(2), study="s", rung="minimodel", progress=lambda status: None)
    [(config, seeds, progress)] = calls
    assert (config, seeds) == ({"x": 1}, (0,))
    assert progress is not None


def test_a_rung_without_a_loop_asks_for_one():
    with pytest.raises(ValueError, match=r"'gpu' has no training loop.*run="):
        sweep(None, {"a": {"x": 1}}, range(2), study="s", rung="gpu", block=1)
