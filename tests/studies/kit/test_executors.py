import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from studies.kit.executors import SweepError, Task, inline, processes

TOY = """
import os, time

def double(config, seeds, *, study):
    if config == "bad":
        raise ValueError("no such world")
    if config == "die":
        os._exit(9)
    time.sleep(config if isinstance(config, float) else 0)
    return config, [2 * seed for seed in seeds], study, os.getpid()
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


def test_results_come_in_the_order_of_the_tasks(toy):
    with processes(2) as executor:
        # The first takes longest; its result still comes first.
        results = list(executor(toy.double, tasks(0.5, 0.0, 0.1)))
        again = list(executor(toy.double, tasks(0.0, 0.0)))
    assert [result[:3] for result in results] == [(0.5, [0, 2], "s"), (0.0, [2, 4], "s"), (0.1, [4, 6], "s")]
    assert [result[:3] for result in results] == [result[:3] for result in inline(toy.double, tasks(0.5, 0.0, 0.1))]
    assert os.getpid() not in {result[3] for result in results}
    assert {result[3] for result in again} <= {result[3] for result in results}  # the workers are kept


@pytest.mark.parametrize("executor", [inline, processes(1)])
def test_a_single_process_is_this_one(toy, executor):
    assert next(iter(executor(toy.double, tasks("a"))))[3] == os.getpid()


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
    worker = next(stream)[3]
    started = time.monotonic()
    stream.close()
    assert time.monotonic() - started < 4
    wait_until_gone(worker)


def test_an_interrupt_stops_the_workers_and_is_quiet(tmp_path):
    (tmp_path / "toy_runs.py").write_text(TOY)
    program = """
    import sys, toy_runs
    from studies.kit.executors import Task, processes
    if __name__ == "__main__":
        try:
            for result in processes(2)(toy_runs.double, [Task("p", d, (0,), "s") for d in (0.0, 60.0, 60.0)]):
                print(result[3], flush=True)
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
    time.sleep(0.5)  # the line is out before the program waits for the next result, and only there is it interrupted
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to parent and workers alike
    try:
        _, errors = running.communicate(timeout=20)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 130
    assert "Traceback" not in errors
    wait_until_gone(worker)


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
