import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from sim.learning.loop import train
from sim.learning.presets import null
from sim.records.config import replace
from studies.kit.executors import SweepError, Task, inline, processes
from studies.kit.guard import Failure, Guarded

TOY = """
import os, time

def double(config, seeds, *, study):
    if config == "bad":
        raise ValueError("no such world")
    if config == "die":
        os._exit(9)
    if isinstance(config, str) and os.sep in config:
        while not os.path.exists(config):
            time.sleep(.02)
    time.sleep(config if isinstance(config, float) else 0)
    return config, [2 * seed for seed in seeds], study, os.getpid()

def stepping(config, seeds, *, study, progress):
    for step in range(1, 5):
        progress(step, 4)
        time.sleep(config)
    return double(0.0, seeds, study=study)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A module that spawned processes can import too."""
    (tmp_path / "toy_runs.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    import toy_runs  # type: ignore[import-not-found]

    yield toy_runs
    sys.modules.pop("toy_runs")


def tasks(*configs):
    return [Task(str(config), config, (index, index + 1), "s") for index, config in enumerate(configs)]


def test_results_come_with_their_numbers_as_they_are_done(toy, tmp_path):
    gate, results = tmp_path / "gate", {}
    with processes(2) as executor:
        for number, result in executor(toy.double, tasks(str(gate), 0.0, 0.1)):
            results[number] = result
            if len(results) == 2:
                gate.touch()  # the first task waits for this, and holds no other back
        again = dict(executor(toy.double, tasks(0.0, 0.0)))
    assert list(results) == [1, 2, 0]
    assert [results[n][1:3] for n in range(3)] == [([0, 2], "s"), ([2, 4], "s"), ([4, 6], "s")]
    assert [result[1] for _, result in inline(toy.double, tasks(0.5, 0.0, 0.1))] == [[0, 2], [2, 4], [4, 6]]
    assert os.getpid() not in {result[3] for result in results.values()}
    assert {result[3] for result in again.values()} <= {result[3] for result in results.values()}  # workers are kept


@pytest.mark.parametrize("executor", [inline, processes(1)])
def test_a_single_process_is_this_one(toy, executor):
    number, result = next(iter(executor(toy.double, tasks("a"))))
    assert (number, result[3]) == (0, os.getpid())


def test_a_run_says_how_far_it_is(toy):
    seen = []
    assert len(list(inline(toy.stepping, tasks(0.0, 0.0), lambda *line: seen.append(line)))) == 2
    steps = [(0, 0), (1, 4), (2, 4), (3, 4), (4, 4)]
    assert seen == [(number, *at) for number in (0, 1) for at in steps]
    seen.clear()
    list(inline(toy.double, tasks("a", "b"), lambda *line: seen.append(line)))
    assert seen == [(0, 0, 0), (1, 0, 0)]  # a run that does not take progress= is at work and no more is known


def test_workers_say_how_far_they_are(toy):
    seen = []
    with processes(2) as executor:
        list(executor(toy.double, tasks(0.0, 0.0, 0.0), lambda *line: seen.append(line)))
        seen.clear()
        results = dict(executor(toy.stepping, tasks(0.6, 0.6), lambda *line: seen.append(line)))
    assert sorted(results) == [0, 1]
    # What stood there from the sweep before is not taken for this one.
    assert {steps for _, step, steps in seen if step} == {4}
    for number in (0, 1):
        mine = [step for which, step, _ in seen if which == number]
        assert mine == sorted(mine)
        assert len(set(mine)) >= 3
    assert {number for number, _, _ in seen} == {0, 1}


def test_what_came_out_well_is_given_before_another_task_fails(toy):
    kept = []
    with pytest.raises(SweepError, match="point 'bad'"):  # noqa: PT012
        for number, _ in processes(2)(toy.double, tasks(0.0, 2.0, "bad")):
            kept.append(number)
    assert 0 in kept


def test_an_error_names_the_point_and_the_seeds(toy):
    for executor in (inline, processes(2)):
        with pytest.raises(SweepError, match=r"point 'bad', seeds 1 to 2: ValueError: no such world"):
            list(executor(toy.double, tasks("a", "bad", "b")))


def test_a_process_that_dies_is_named(toy):
    with pytest.raises(SweepError, match=r"point '(a|die)', seeds .*a worker process died"):
        list(processes(2)(toy.double, tasks("a", "die")))


def test_a_consumer_that_stops_leaves_no_process_behind(toy):
    executor = processes(2)
    stream = executor(toy.double, tasks(0.0, 5.0, 5.0, 5.0))
    worker = next(stream)[1][3]
    started = time.monotonic()
    stream.close()
    assert time.monotonic() - started < 4
    wait_until_gone(worker)


def test_an_interrupt_stops_the_workers_and_is_quiet(tmp_path):
    (tmp_path / "toy_runs.py").write_text(TOY)
    program = """
    import signal, sys, toy_runs
    from studies.kit.executors import Task, processes
    if __name__ == "__main__":
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
        try:
            for result in processes(2)(toy_runs.double, [Task("p", d, (0,), "s") for d in (0.0, 60.0, 60.0)]):
                print(result[1][3], flush=True)
        except KeyboardInterrupt:
            sys.exit(130)
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    running = subprocess.Popen(
        [sys.executable, str(script)],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    worker = int(running.stdout.readline())
    time.sleep(2.0)  # the line is out before the program waits for the next result, and only there is it interrupted
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to parent and workers alike
    try:
        _, errors = running.communicate(timeout=40)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130
    assert "Traceback" not in errors
    wait_until_gone(worker)


def test_workers_end_when_their_parent_is_killed(tmp_path):
    (tmp_path / "toy_runs.py").write_text(TOY)
    program = """
    import toy_runs
    from studies.kit.executors import Task, processes
    if __name__ == "__main__":
        for result in processes(2)(toy_runs.double, [Task("p", d, (0,), "s") for d in (0.0, 60.0, 60.0)]):
            print(result[1][3], flush=True)
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path.cwd())])}
    running = subprocess.Popen(
        [sys.executable, str(tmp_path / "program.py")], env=env, stdout=subprocess.PIPE, text=True
    )
    with running:
        worker = int(running.stdout.readline())
        running.kill()  # it cannot say goodbye
    wait_until_gone(worker)


def test_guarded_tasks_outlive_a_process_that_dies(toy):
    """One of five dies: the others come, also the one that was at work beside it, and numbers are those of the whole."""
    seen = []
    with processes(2) as executor:
        found = list(executor(Guarded(toy.double), tasks(0.0, "die", 0.5, "bad", 0.0), lambda *line: seen.append(line)))
        again = dict(executor(Guarded(toy.double), tasks("die")))  # a single one too is not done here
    results = dict(found)
    assert len(found) == 5
    assert [results[n][1] for n in (0, 2, 4)] == [[0, 2], [4, 6], [8, 10]]
    assert results[1] == again[0] == Failure("its worker process died (out of memory, or killed)", accident=True)
    assert results[3].error == "ValueError: no such world"
    assert "toy_runs.py" in results[3].trace
    assert not results[3].accident
    assert {number for number, _, _ in seen} <= set(range(5))


def test_a_guard_passes_progress_on_and_tells_accidents_from_errors(toy):
    seen = []
    assert len(list(inline(Guarded(toy.stepping), tasks(0.0), lambda *line: seen.append(line)))) == 1
    assert seen[-1] == (0, 4, 4)
    assert [Failure.of(error).accident for error in (OSError(28, "full"), MemoryError(), ValueError())] == [
        True,
        True,
        False,
    ]


def wait_until_gone(pid):
    for _ in range(100):
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            if state == "Z":  # gone, and only its parent has yet to take note
                return
        except OSError:
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} is still there")


def test_no_process_is_refused():
    with pytest.raises(ValueError, match=r"processes\(0\)"):
        processes(0)


def test_of_runs_it_is_noted_where_they_were_made_and_each_one_s_part_of_the_time():
    def slow(config, seeds, study):
        until = time.process_time() + 0.9
        while time.process_time() < until:
            pass
        return train(config, seeds, study=study)

    config = replace(null(), {"steps": 1, "prompts": 4})
    ((_, runs),) = inline(slow, [Task("p", config, (0, 1, 2), "s")])
    found = [record.provenance for record in runs.records()]
    assert found[0] == found[1] == found[2]
    assert 0.3 <= found[0]["cpu_s"] < 0.9  # a third of what three seeds took together
    assert found[0]["wall_s"] >= 0.3
    assert found[0]["seeds_together"] == 3
    assert found[0]["versions"]["numpy"] == np.__version__
    alone = train(config, (1,), study="s")
    assert alone.records()[0].manifest_bytes() == runs.records()[1].manifest_bytes()
