"""What the command line costs before it does anything, and what pytest costs to list the studies.

CPU time of processes of their own, their children's included, with compiled modules cached as in daily use. The help of
``metastable`` has a limit in seconds; ``python -c "import tyro"`` says how much of it is the library that reads the
arguments. Listing the studies is held against plain pytest, without this project's plugin, in an empty folder. A list of
2,000 runs is held against reading their manifests and nothing else.
"""

import json
import os
import resource
import subprocess
import sys

import numpy as np
import pytest

from sim.records.config import canonical_json
from sim.records.run import run_key
from studies.kit.runs.filters import Filters, select
from studies.kit.runs.listing import against, scan
from tests.conftest import ROOT
from tests.measuring import at_least, cpu_ratio
from tests.studies.kit.runs.stores import THIS, config, record, stored

LIMIT_S = 0.4
TIMES_PLAIN = 2.0
RUNS = 2000
ROUNDS = 5


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    """Environment of a process that keeps compiled modules, apart from the working tree."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(tmp_path_factory.mktemp("compiled"))}


def child_cpu_s(command, folder, environment):
    """CPU time, s, of a process and all it starts, by the operating system's account."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stderr + done.stdout
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def in_turn(commands, environment):
    """CPU times, s, [rounds], of each (command, folder), one of each a round, after one that compiles modules."""
    for command, folder in commands:
        child_cpu_s(command, folder, environment)
    return np.array([[child_cpu_s(*each, environment) for each in commands] for _ in range(ROUNDS)]).T


def bench_help(benchmark, cached):
    commands = [(["-m", "studies.kit.cli", "--help"], ROOT), (["-c", "import tyro"], ROOT)]
    ours, tyro = in_turn(commands, cached)
    seconds = float(np.median(ours))
    benchmark.extra_info.update(
        at_least(1.0, seconds / LIMIT_S, f"a limit of {LIMIT_S} s of CPU", seconds=round(seconds, 3))
        | {"times_import_of_tyro": round(float(np.median(ours / tyro)), 2)}
    )
    benchmark.pedantic(child_cpu_s, args=(*commands[0], cached), rounds=1)


def bench_listing_the_studies(benchmark, cached, tmp_path):
    options = ["--collect-only", "-q", "-p", "no:cacheprovider"]
    plain = ["-m", "pytest", *options, "-p", "no:metastable", "--rootdir", str(tmp_path), str(tmp_path)]
    commands = [(["-m", "pytest", "studies", *options], ROOT), (plain, tmp_path)]
    ours, peer = in_turn(commands, cached)
    ratio = float(np.median(ours / peer))
    benchmark.extra_info.update(
        at_least(1 / TIMES_PLAIN, ratio, "plain pytest in an empty folder", seconds=round(float(np.median(ours)), 3))
    )
    benchmark.pedantic(child_cpu_s, args=(*commands[0], cached), rounds=1)


def bench_listing_runs(benchmark, tmp_path):
    manifests = _many(tmp_path)

    def ours():
        rows = select(scan(tmp_path), Filters(where=("world.known<.5",)))
        return against(rows)

    def peer():
        return [json.loads(path.read_bytes()) for path in manifests]

    assert len(ours()) == RUNS // 2
    ratio, seconds, floor = cpu_ratio(ours, peer)
    benchmark.extra_info.update(
        at_least(None, ratio, f"reading {RUNS} manifests", seconds=round(seconds, 3), floor_s=round(floor, 3))
    )
    benchmark.pedantic(ours, rounds=1)


def _many(root):
    """Copy one run under the keys of many; return the paths of their manifests."""
    template = record(columns={"step": np.arange(200), **{f"x/{i}": np.zeros(200) for i in range(30)}})
    (key,) = stored(root / "template", template)
    files = {path.name: path.read_bytes() for path in (root / "template" / key).iterdir()}
    paths = []
    for seed in range(RUNS):
        made_of = config(known=0.25 if seed % 2 else 0.5, **{f"setting{i}": i for i in range(60)})
        manifest = {**template.manifest, "seed": seed, "config": made_of}
        manifest["key"] = run_key(made_of, "fold", seed, "sim", THIS)
        folder = root / manifest["key"]
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        paths.append(folder / "manifest.json")
        paths[-1].write_text(canonical_json(manifest), encoding="utf-8")
    return paths
