import importlib
import importlib.metadata
import textwrap
from dataclasses import replace

import pytest

from studies.kit.finding import Finding

# pytester restores sys.modules after an inner session, and numpy and its kin cannot be imported twice: load them first.
for module in (
    "matplotlib.backends.backend_svg",
    "scipy.optimize",
    "sim.learning.loop",
    "sim.records.store",
    "studies.kit.report",
    "studies.kit.sweep",
    "xml.etree.ElementTree",
):
    importlib.import_module(module)

HEADER = """
import numpy as np
import pytest
from studies.kit import *
from studies.kit import figures
"""


@pytest.fixture
def project(pytester):
    """A folder of studies: ``project.write(name=source)`` and ``project.run(*options)``, one run being one session."""
    return Project(pytester)


class Project:
    def __init__(self, pytester):
        self.pytester = pytester
        self.folder = pytester.path
        self.records = pytester.path / "records"

    def write(self, **studies):
        for name, source in studies.items():
            text = HEADER + textwrap.dedent(source)
            (self.folder / f"study_{name}.py").write_text(text, encoding="utf-8")

    def run(self, *options):
        installed = importlib.metadata.entry_points(group="pytest11", name="metastable")
        plugin = () if installed else ("-p", "studies.kit.plugin")
        # The inner session must not see a cache or a benchmark of the outer one.
        return self.pytester.runpytest_inprocess(*plugin, "-p", "no:cacheprovider", "--processes=1", *options)

    def output(self, *options):
        return self.run(*options).stdout.str()


@pytest.fixture(scope="session")
def finding():
    """A finding worked by hand: 64 seeds, none flipped."""

    def make(**changes):
        return replace(_FINDING, **changes)

    return make


_FINDING = Finding(
    claim="never-flips",
    says="Tabular GRPO never flips.",
    study="never_flips",
    rung="sim",
    verdict="supported",
    status="on record",
    fails=False,
    reason="",
    kind="rate",
    measured="share of seeds, exact (Clopper-Pearson) limits",
    effect=0.0,
    low=0.0,
    high=0.056,
    how="Clopper-Pearson",
    unit="share of runs",
    n=64,
    base=0,
    seeds=64,
    p=0.0024,
    q=None,
    more_seeds=None,
    region="< .1",
    region_low=None,
    region_high=0.1,
    predicted=0.0,
    predicted_low=None,
    predicted_high=None,
    prediction_source="T2",
    agrees=True,
    expect="supported",
    source="seed A / H1",
    reverses="drive.rate",
    rungs=("sim",),
    detail=(("count", "0/64"),),
    controls=(),
    fingerprint="f" * 64,
    study_fingerprint="s" * 16,
    rerun="pytest studies -k never-flips",
)
