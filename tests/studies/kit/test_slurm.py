"""Jobs: on submitit's own executors, and on a real Slurm of one node."""

import gc
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("submitit")

from sim.records.store import Store
from studies.kit import slurm as module
from studies.kit.executors import SweepError, Task
from studies.kit.guard import Failure, Guarded
from studies.kit.phase.places import GridError
from studies.kit.slurm import parse, slurm
from studies.kit.sweep import sweep

TOY = """
import os, time
import numpy as np
from sim.records.fingerprint import code_fingerprint
from sim.records.rng import normals
from sim.records.run import Runs

def train(config, seeds, *, study):
    if config["level"] == "bad":
        raise RuntimeError("no such level")
    if config["level"] == "time is up":  # as submitit's handler of its signal does
        from submitit.core.utils import UncompletedJobError
        raise UncompletedJobError("timed-out")
    if config["level"] == "die":
        os.kill(os.getpid(), 9)
    time.sleep(config.get("sleep", 0.0))
    noise = np.stack([normals(seed, f"{study}/noise", 0, (5,)) for seed in seeds])
    steps = np.tile(np.arange(5), (len(seeds), 1))
    return Runs(config, seeds, study, "sim", code_fingerprint("sim"), {"step": steps, "x": config["level"] + noise})
"""
POINTS = {"low": {"level": 0.0}, "high": {"level": 3.0}}


# Submitit's debug jobs leave the files of their logs open; they are collected before the test ends.
leaky = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A module that jobs can import too."""
    (tmp_path / "toy_jobs.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    import toy_jobs  # type: ignore[import-not-found]

    yield toy_jobs
    sys.modules.pop("toy_jobs")


@pytest.fixture
def jobs(tmp_path):
    return partial(slurm, tmp_path / "store", tmp_path / "jobs")


def tasks(*levels, **more):
    return [Task(str(level), {"level": level, **more}, (0, 1), "s") for level in levels]


@leaky
def test_a_sweep_s_runs_come_back_through_the_store(toy, jobs, tmp_path):
    executor = jobs(cluster="debug")
    there = sweep(toy.train, POINTS, range(4), study="s", block=2, executor=executor)
    here = sweep(toy.train, POINTS, range(4), study="s")
    assert all(there[label].equals(here[label]) for label in POINTS)
    assert len(Store(tmp_path / "store").keys()) == 8  # though the sweep was given no store
    gc.collect()


def test_a_task_that_fails_or_dies_is_a_failure_and_the_others_go_on(toy, jobs, tmp_path):
    """Three jobs of two tasks: one whose first task raises, one whose second kills its process, one that is well."""
    executor = jobs(cluster="local", jobs=3)
    found = dict(executor(Guarded(toy.train), tasks("bad", 1.0, 2.0, "die", 3.0, 4.0)))
    assert sorted(found) == list(range(6))
    assert isinstance(found[0], Failure)
    assert found[0].error == "RuntimeError: no such level"
    assert "toy_jobs.py" in found[0].trace
    assert isinstance(found[3], Failure)
    assert found[3].accident
    assert "ended without a result" in found[3].error
    assert Path(found[3].log).parent.parent.parent == tmp_path / "jobs"
    for number, level in ((1, 1.0), (2, 2.0), (4, 3.0), (5, 4.0)):
        assert found[number].equals(toy.train({"level": level}, (0, 1), study="s"))


def test_a_job_out_of_time_is_no_error_of_the_run_and_loses_what_it_had_left(toy, jobs):
    found = dict(jobs(cluster="local", jobs=1)(Guarded(toy.train), tasks(1.0, "time is up", 2.0)))
    assert found[0].equals(toy.train({"level": 1.0}, (0, 1), study="s"))
    for number in (1, 2):
        assert isinstance(found[number], Failure)
        assert found[number].accident
        assert "UncompletedJobError: timed-out" in found[number].error
        assert Path(found[number].log).is_file()


def test_jobs_of_this_machine_are_not_ended_after_two_minutes(jobs):
    assert jobs(cluster="local").executor._executor.parameters["timeout_min"] == 7 * 24 * 60
    assert jobs(cluster="local", timeout_min=3).executor._executor.parameters["timeout_min"] == 3


@leaky
def test_without_a_guard_a_failure_ends_the_sweep(toy, jobs):
    with pytest.raises(SweepError, match=r"point 'bad', seeds 0 to 1: RuntimeError: no such level"):
        list(jobs(cluster="debug")(toy.train, tasks("bad", 1.0)))
    gc.collect()


def test_no_tasks_need_no_jobs(toy, jobs, tmp_path):
    assert list(jobs(cluster="debug")(toy.train, [])) == []


def test_tasks_are_divided_evenly_and_in_order():
    for n in (1, 2, 7, 50, 101):
        for most in (1, 3, 50):
            shares = module._shared(n, most)
            assert [number for share in shares for number in share] == list(range(n))
            assert len(shares) <= most
            assert all(len(share) == len(shares[0]) for share in shares[:-1])
            assert 0 < len(shares[-1]) <= len(shares[0])


def test_options_are_read_and_strange_ones_refused(jobs):
    read = parse(["partition=short,time=60,mem=4.5", "cpus=2,jobs=9,qos=low,array_parallelism=3,cluster=local"])
    assert read == {
        "slurm_partition": "short",
        "timeout_min": 60,
        "mem_gb": 4.5,
        "cpus_per_task": 2,
        "jobs": 9,
        "slurm_qos": "low",
        "slurm_array_parallelism": 3,
        "cluster": "local",
    }
    for option, words in (("partition", "give NAME=VALUE"), ("time=long", "timeout_min takes a number")):
        with pytest.raises(GridError, match=words):
            parse([option])
    with pytest.raises(GridError, match=r"Unknown argument 'partiton'.*did you mean 'slurm_partition'"):
        jobs(cluster="local", **parse(["partiton=short"]))
    with pytest.raises(GridError, match="doesn't know any executor named nowhere"):
        jobs(cluster="nowhere")
    with pytest.raises(GridError, match="jobs=0"):
        jobs(cluster="local", jobs=0)


@pytest.mark.long
def test_an_interrupt_takes_the_jobs_with_it(toy, jobs):
    stream = jobs(cluster="local", jobs=2)(Guarded(toy.train), tasks(1.0, 2.0, 3.0, 4.0, sleep=1.5))
    next(stream)
    pids = {job._process.pid for job in stream.gi_frame.f_locals["submitted"]}
    stream.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# A real Slurm ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
import toy_jobs
from studies.kit.executors import Task
from studies.kit.guard import Failure, Guarded
from studies.kit.slurm import slurm

root, jobs = Path(sys.argv[1]), int(sys.argv[2])
levels = [eval(word) for word in sys.argv[3:]]
executor = slurm(root / "store", root / "jobs", jobs=jobs, slurm_partition="short", timeout_min=10)
tasks = [Task(str(level), {"level": level, "sleep": 0.5}, (0, 1), "s") for level in levels]
for number, result in executor(Guarded(toy_jobs.train), tasks):
    print(number, result.error if isinstance(result, Failure) else "ok", flush=True)
"""


@pytest.fixture
def node(tmp_path_factory):
    """A Slurm of one node; skipped, with the reason, where there can be none."""
    sys.path.insert(0, str(Path(__file__).parent))
    try:
        import one_node
    finally:
        sys.path.pop(0)
    why = one_node.reason()
    if why:
        pytest.skip(why)
    with one_node.one_node(tmp_path_factory.mktemp("node")) as environment:
        yield environment


@pytest.mark.long
def test_on_a_real_slurm(toy, node, tmp_path):
    """An array of three jobs; then one whose task dies, and one that is cancelled while it runs."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**node, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}

    def run(*arguments):
        return subprocess.Popen(
            [sys.executable, str(program), str(tmp_path), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    out, errors = run("3", "1.0", "2.0", "3.0", "'bad'", "5.0").communicate(timeout=300)
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    assert lines == {"0": "ok", "1": "ok", "2": "ok", "3": "RuntimeError: no such level", "4": "ok"}, errors
    store = Store(tmp_path / "store")
    mine = toy.train({"level": 1.0, "sleep": 0.5}, (0, 1), study="s").records()
    assert all(store.load(record.key).equals(record) for record in mine)

    out, errors = run("2", "6.0", "7.0", "'die'", "8.0").communicate(timeout=300)
    lines = dict(line.split(" ", 1) for line in out.splitlines())
    assert (lines["0"], lines["1"]) == ("ok", "ok"), errors
    assert "ended without a result" in lines["2"]
    assert "ended without a result" in lines["3"]

    going = run("1", *[str(100.0 + n) for n in range(120)])
    assert going.stdout.readline() == "0 ok\n"
    going.send_signal(signal.SIGINT)
    going.communicate(timeout=300)
    for _ in range(60):  # submitit's jobs take no notice of the first signal, and are killed a moment later
        left = subprocess.run(["squeue", "--noheader"], env=node, capture_output=True, text=True, check=True).stdout
        if not left.strip():
            break
        time.sleep(1)
    assert left.strip() == ""
