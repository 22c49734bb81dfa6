import importlib
import importlib.metadata
import re
import sys
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


@pytest.fixture(autouse=True)
def _nothing_left_imported(tmp_path_factory):
    """Studies that a test has loaded from a folder of its own must not be taken for those of another by the same name."""
    yield
    own = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if (
            name.startswith("study_")
            and name != "study_toy"
            and (getattr(module, "__file__", "") or "").startswith(own)
        ):
            del sys.modules[name]
    sys.path[:] = [entry for entry in sys.path if not entry.startswith(own) or "toys" in entry]


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


FLIPS = """
@claim("it-flips", says="It flips.", kind=rate(), region=above(.3), unit="share of runs", expect={expect!r},
       predicts=Prediction(1.0, source="theory"))
def study_flips(study):
    n = len(study.seeds())
    study.conclude("it-flips", outcomes=np.arange(n) < {count})
"""
SEEDED = """
@claim("seeded", says="It depends.", kind=rate(), region=above(.3), expect="supported")
def study_seeded(study):
    print("seeds", list(study.seeds()))
    study.conclude("seeded", outcomes=np.array([seed < {limit} for seed in study.seeds()]))
"""
LONG = """
@claim("lengthy", says="It takes long.", kind=median(), region=above(1), unit="steps", expect="supported", long=True)
def study_lengthy(study):
    study.conclude("lengthy", values=np.arange(8) + 2.0)
"""


class Project:
    LONG = LONG
    """A study of a long claim that is supported."""

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

    @staticmethod
    def flips(count, expect="supported"):
        """A study in which so many seeds flip; the claim is that more than .3 of them do."""
        return FLIPS.format(count=count, expect=expect)

    @staticmethod
    def seeded(limit):
        """A study in which the seeds below a limit flip."""
        return SEEDED.format(limit=limit)

    @staticmethod
    def row(output, claim):
        """The line of a claim in the findings section, joined with its continuation lines."""
        section = output[output.index("findings, rung") :].splitlines()
        start = next(i for i, line in enumerate(section) if re.match(rf".\s+{claim}\s", line))
        rest = [line for line in section[start + 1 : start + 4] if line.startswith("   ")]
        return " ".join([section[start], *rest])


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
