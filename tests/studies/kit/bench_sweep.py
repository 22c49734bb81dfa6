"""What a sweep of points costs beside its runs, and what a finished one costs to resume."""

import itertools
import subprocess
import sys
import textwrap
import time

import numpy as np

from sim.learning import loop
from sim.records.run import Runs
from sim.records.store import Store
from studies.kit.phase import sweep_study
from tests.measuring import cpu_seconds

AXES = {"world.known": np.linspace(0.05, 0.65, 12).round(6), "world.hit_known": np.linspace(0.1, 0.9, 15).round(6)}
SEEDS, POINTS, FEW = 8, 180, 30
MOST_S, MOST_A_POINT_S = 1.0, 0.010

RESUMED = """
import sys, time
import studies.kit.cli
from studies.kit.sweep_cli import sweep
from sim.records.fingerprint import code_fingerprint
import sim.learning.loop, sim.records.store, studies.study_length_diagram, studies.kit.phase, studies.kit.phase.output
code_fingerprint("sim")
began = time.process_time()
if len(sys.argv) > 1:
    assert sweep("length_diagram", sys.argv[3:], seeds="8", executor="inline", store=sys.argv[1], ledgers=sys.argv[2]) == 0
sys.stderr.write(str(time.process_time() - began))
"""


def points(n):
    """The first points of the plane, and the grid that has them."""
    rows = n // len(AXES["world.hit_known"]) or 1
    columns = n // rows
    return {"world.known": list(AXES["world.known"][:rows]), "world.hit_known": list(AXES["world.hit_known"][:columns])}


def bench_beside_the_runs(benchmark, tmp_path, monkeypatch):
    """CPU time of a sweep less what training and storing take inside it, for each point."""
    wanted, number, inside = points(FEW), itertools.count(), [0.0]

    def timed(work):
        def measured(*args, **options):
            began = time.process_time()
            try:
                return work(*args, **options)
            finally:
                inside[0] += time.process_time() - began

        return measured

    monkeypatch.setattr(loop, "train", timed(loop.train))
    monkeypatch.setattr(Runs, "records", timed(Runs.records))
    monkeypatch.setattr(Store, "save", timed(Store.save))

    def swept():
        folder = tmp_path / f"swept{next(number)}"
        inside[0] = 0.0
        took = cpu_seconds(
            lambda: sweep_study(
                "length_diagram", wanted, seeds=SEEDS, store=folder, ledgers=folder / "ledgers", watch=lambda _: None
            )
        )
        return took, inside[0]

    swept()
    times = np.array([swept() for _ in range(5)])
    benchmark.pedantic(swept, rounds=1)
    beside = float(np.median(times[:, 0] - times[:, 1])) / FEW
    benchmark.extra_info.update(
        peer="the runs themselves, trained and stored",
        ratio=round(float(np.median(times[:, 0] / times[:, 1])), 3),
        target=f"{MOST_A_POINT_S:g} s a point beside the runs",
        seconds_a_point=round(beside, 5),
        met=beside <= MOST_A_POINT_S,
    )


def bench_resume(benchmark, tmp_path):
    """A finished sweep of 180 points and 1,440 runs, asked for again by another process."""
    wanted = points(POINTS)
    for values in wanted.values():
        assert len(values) > 1
    places = {"store": tmp_path / "store", "ledgers": tmp_path / "ledgers"}
    assert len(sweep_study("length_diagram", wanted, seeds=SEEDS, **places).entries) == POINTS
    options = [f"{path}={','.join(map(repr, map(float, values)))}" for path, values in wanted.items()]
    (tmp_path / "resumed.py").write_text(textwrap.dedent(RESUMED))

    def again():
        command = [sys.executable, str(tmp_path / "resumed.py"), *map(str, places.values()), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stderr)

    again()  # draws the diagram
    seconds = [again() for _ in range(5)]
    benchmark.pedantic(again, rounds=1)
    took = float(np.median(seconds))
    benchmark.extra_info.update(
        peer="a second of CPU time, start-up apart",
        ratio=round(took / MOST_S, 3),
        target=1.0,
        seconds=round(took, 4),
        met=took <= MOST_S,
    )
