import itertools
import sys
import textwrap
from functools import partial

import pytest

from studies.kit.phase import sweep_study

TOY = """
import os
import time
from pathlib import Path

import numpy as np

from sim.records.config import config, replace
from sim.records.fingerprint import code_fingerprint
from sim.records.rng import normals
from sim.records.run import Runs
from studies.kit import above, claim, median, rate

@config
class Slow:
    seconds: float = 0.0

@config
class Inner:
    level: float = 1.0
    kind: str = "plain"

@config
class Toy:
    inner: Inner = Inner()
    n: int = 4
    on: bool = False
    extra: Inner | Slow | None = None
    spread: float = 0.1

def train(config, seeds, *, study):
    if config.inner.kind == "bad":
        raise RuntimeError("no such kind")
    if config.inner.kind == "die":
        os.kill(os.getpid(), 9)
    if isinstance(config.extra, Slow):
        time.sleep(config.extra.seconds)
    if "TOY_CALLS" in os.environ:
        with open(os.environ["TOY_CALLS"], "a") as file:
            file.write(f"{config.inner.level} {seeds}\\n")
    noise = np.stack([normals(seed, f"{study}/noise", 0, (5,)) for seed in seeds])
    steps = np.tile(np.arange(5), (len(seeds), 1))
    x = config.inner.level + config.spread * noise
    return Runs(config, seeds, study, "sim", code_fingerprint("sim"), {"step": steps, "x": x})

def boundary(config):
    return config.inner.level

@claim("is-up", says="It is up.", kind=median(), region=above(0), unit="height")
def study_toy(study):
    runs = study.sweep({"only": Toy()}, run=train)["only"]
    study.conclude("is-up", values=runs["x"][:, -1])
    study.figure("is-up", lambda: 1 / 0)

@claim("differs", says="It differs.", kind=median(), region=above(0))
@claim("moves", says="It moves.", kind=rate(), region=above(0.5))
def study_pair(study):
    arms = {"low": Toy(n=4), "high": Toy(n=8, extra=Inner(2.0))}
    runs = study.sweep(arms, run=train)
    study.conclude("differs", values=runs["high"]["x"][:, -1] + 0 * runs["low"]["x"][:, -1])
    study.conclude("moves", outcomes=runs["high"]["x"][:, -1] > 0)

@claim("twice", says="It sweeps twice.", kind=median(), region=above(0))
def study_twice(study):
    first = study.sweep({"one": Toy()}, run=train)["one"]
    again = replace(Toy(), {"spread": 0.2}) if first["x"].mean() > 0 else Toy()
    second = study.sweep({"two": again}, run=train)["two"]
    study.conclude("twice", values=second["x"][:, -1])

@claim("never-sweeps", says="It computes.", kind=median(), region=above(0))
def study_exact(study):
    study.conclude("never-sweeps", values=np.arange(8.0))

@claim("breaks", says="It breaks.", kind=median(), region=above(0))
def study_breaks(study):
    runs = study.sweep({"only": Toy()}, run=train)["only"]
    study.conclude("breaks", values=1 / runs["x"][:, -1] if runs.config.n < 6 else undefined)
"""


@pytest.fixture(scope="session")
def toys(tmp_path_factory):
    """A folder with a file of small studies, which other processes can import too."""
    folder = tmp_path_factory.mktemp("toys")
    (folder / "study_toy.py").write_text(textwrap.dedent(TOY))
    yield folder
    sys.modules.pop("study_toy", None)
    if str(folder) in sys.path:
        sys.path.remove(str(folder))


@pytest.fixture
def places(tmp_path):
    """Folders for runs and ledgers."""
    return {"store": tmp_path / "store", "ledgers": tmp_path / "sweeps"}


@pytest.fixture
def sweep(toys, places):
    """``sweep_study`` on the small studies, with eight seeds."""
    return partial(sweep_study, folder=toys, seeds=8, **places)


@pytest.fixture
def contents():
    """What a store holds, bit for bit: name to manifest and columns."""

    def read(folder):
        from sim.records.store import Store

        store = Store(folder)
        records = map(store.load, store.keys())
        return {record.key: (record.manifest_bytes(), record.steps.digest()) for record in records}

    return read


@pytest.fixture
def ledgered():
    """What ledgers hold, by file."""

    def read(folder):
        paths = itertools.chain(folder.glob("*/points/*.json"), folder.glob("*/sweep.json"))
        return {str(path.relative_to(folder)): path.read_text() for path in paths}

    return read


@pytest.fixture
def everywhere(tmp_path, contents, ledgered):
    """``everywhere(study, grid)`` sweeps here, in processes and as local jobs, and returns a sweep and the runs stored.

    Whoever makes them, runs, ledgers and entries must be the same. The store of the sweep here is ``inline/store``.
    """
    from studies.kit.executors import inline, processes
    from studies.kit.slurm import slurm

    def run(study, grid, jobs=1, **more):
        found = {}
        with processes(2) as both:
            for name in ("inline", "processes", "local"):
                places = {"store": tmp_path / name / "store", "ledgers": tmp_path / name / "sweeps"}
                job = slurm(places["store"], tmp_path / name / "jobs", cluster="local", jobs=jobs)
                executor = {"inline": inline, "processes": both, "local": job}[name]
                swept = sweep_study(study, grid, seeds=8, executor=executor, **places, **more)
                assert not swept.failed, name
                found[name] = contents(places["store"]), ledgered(places["ledgers"]), swept.entries
        assert found["processes"] == found["inline"]
        assert found["local"] == found["inline"]
        return swept, found["inline"][0]

    return run
