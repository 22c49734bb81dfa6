import re

import numpy as np
import pytest

from studies.kit import above, below, bootstrap, claim, mean, median, rank, rate, rate_difference, time, trend, within
from studies.kit.samples import DataError
from studies.kit.seeds import parse
from studies.kit.sequences import rate_ends
from studies.kit.until import BLOCK, FIRST, Looks, following, has_sequence, sequential
from studies.kit.verdict import judge

OUTCOMES = """
@claim("{id}", says="It happens.", kind=rate(), region=above({bound}), expect="supported")
def study_{name}(study):
    seeds = study.seeds()
    print("{id} looks at", len(seeds), "from", seeds.start)
    study.conclude("{id}", outcomes=np.arange(len(seeds)) % {every} != 0)
"""


def happens(name="happens", bound=0.5, every=4):
    """A study in which all but one in so many seeds have the outcome."""
    return OUTCOMES.format(id=name, name=name, bound=bound, every=every)


def looks(output, name="happens"):
    return [int(n) for n in re.findall(rf"{name} looks at (\d+) from", output)]


# A session ------------------------------------------------------------------------------------------------------------


def test_seeds_are_added_until_the_claim_is_decided(project):
    project.write(happens=happens())
    output = project.output("--seeds", "until-decided", "-s", "-k", "happens")
    assert looks(output) == [8, 16, 24, 32, 40]  # of 30 in 40 the least share not refuted is .51
    row = project.row(output, "happens")
    assert row.startswith("S  happens")
    assert "[.512, .921]" in row
    base = int(re.search(r"again with --seeds until-decided:256:(\d+)", output).group(1))
    assert base >= 1_000_000
    again = project.output("--seeds", f"until-decided:256:{base}", "-s")
    assert f"looks at 40 from {base}" in again
    page = (project.folder / "runs/report/index.html").read_text()
    assert "decided at 40 of at most 256 seeds; looks at 8, 16, 24, 32, 40" in page
    assert "beta-binomial confidence sequence" in page


def test_at_the_cap_it_is_undecided_and_says_so(project):
    project.write(happens=happens())
    output = project.output("--seeds", "until-decided:30", "-s")
    assert looks(output) == [8, 16, 24, 30]
    assert project.row(output, "happens").startswith("?  happens")
    page = (project.folder / "runs/report/index.html").read_text()
    assert "not decided at 30 of at most 30 seeds" in page


def test_what_was_decided_first_stands_and_k_says_who_decides(project):
    both = """
@claim("often", says="A.", kind=rate(), region=above(.3), expect="supported")
@claim("hardly", says="B.", kind=rate(), region=above(.8), expect="supported")
def study_both(study):
    n = len(study.seeds())
    print("both looks at", n, "from", 0)
    study.conclude("often", outcomes=np.arange(n) % 8 != 0)
    study.conclude("hardly", outcomes=np.arange(n) % 8 != 0)
"""
    project.write(both=both)
    output = project.output("--seeds", "until-decided:64", "-s")
    assert looks(output, "both") == [8, 16, 24, 32, 40, 48, 56, 64]
    assert " 8 " in project.row(output, "often")
    assert " 64 " in project.row(output, "hardly")
    assert looks(project.output("--seeds", "until-decided:64", "-s", "-k", "often"), "both") == [8]


def test_only_new_seeds_are_trained(project):
    project.write(
        trains="""
from sim.learning.presets import null
from sim.records.config import replace

@claim("trains", says="A.", kind=median(), region=within(.015, .02), expect="supported")
def study_trains(study):
    runs = study.sweep({"null": replace(null(), {"steps": 2})})["null"]
    study.conclude("trains", values=runs["decision/share/start/answer"][:, -1] + 1e-6 * np.arange(len(study.seeds())))
"""
    )
    output = project.output("--seeds", "until-decided:16:1000000")
    assert "1 claim: 1 supported" in output or "undecided" in output
    store = project.folder / "runs/store"
    n = int(re.search(r"\s(8|16)\s", project.row(output, "trains")).group(1))
    assert len(list(store.iterdir())) == n
    seeds = {path.name: path.stat().st_mtime_ns for path in store.iterdir()}
    project.run("--seeds", "until-decided:16:1000000")
    assert {path.name: path.stat().st_mtime_ns for path in store.iterdir()} == seeds


@pytest.mark.parametrize("workers", [(), pytest.param(("-n", "2"), marks=pytest.mark.long)])
def test_a_kind_without_a_sequence_is_refused_by_name_where_it_is_asked_for(project, workers):
    project.write(
        area="""
@claim("area", says="A.", kind=rank(), region=above(.5), expect="supported")
@claim("share", says="B.", kind=rate(), region=above(.5), expect="supported")
def study_area(study):
    n = len(study.seeds())
    study.conclude("area", positive=np.arange(n) + 2.5, negative=np.arange(n))
    study.conclude("share", outcomes=np.ones(n, bool))
"""
    )
    output = project.output("--seeds", "until-decided:64", *workers)
    assert "rank has no confidence sequence: --seeds fresh" in project.row(output, "area")
    assert project.row(output, "share").startswith("S  share")
    refused = project.run("--seeds", "until-decided:64", "-k", "area", *workers)
    assert refused.ret == 1
    assert "area: there is no confidence sequence for kind=rank" in refused.stdout.str()


def test_a_control_is_judged_by_its_sequence_too(project):
    project.write(
        held="""
@claim("held", says="A.", kind=rate(), region=above(.5), expect="supported")
def study_held(study):
    n = len(study.seeds())
    print("held looks at", n, "from", 0)
    study.conclude("held", outcomes=np.ones(n, bool))
    study.control("held", "seldom", region=below(.45), outcomes=np.arange(n) % 8 == 1)
"""
    )
    output = project.output("--seeds", "until-decided:64", "-s")
    assert looks(output, "held") == [8, 16, 24]  # the claim alone would stop at 8; 3 of 24: at most .44
    assert project.row(output, "held").startswith("S  held")


def test_a_record_has_a_fixed_number_of_seeds(project):
    project.write(happens=happens())
    result = project.run("--seeds", "until-decided", "--record")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*a record and the fresh seeds it held on have a fixed number*"])
    assert not project.records.exists()


# The parts ------------------------------------------------------------------------------------------------------------

EIGHT = np.arange(8) < 8


@pytest.mark.parametrize(
    ("kind", "data", "ends"),
    [
        (rate(), {"outcomes": EIGHT}, (0.5258, 1.0)),
        (rate_difference(), {"treated": EIGHT, "control": ~EIGHT}, (0.0515, 1.0)),
        (trend(), {"arms": {1: ~EIGHT, 2: EIGHT[::-1], 3: EIGHT}}, (0.0515, 1.0)),
        (median(), {"values": np.arange(8.0) + 1}, (1.0, 8.0)),
        (time(), {"times": np.array([3.0, np.nan, 5, 6, 7, 8, 9, 10]), "censored_at": 20}, (3.0, np.inf)),
        (time(), {"times": np.full(8, np.nan), "censored_at": 20}, (20.0, np.inf)),
        (mean(symmetric=True), {"differences": np.arange(8.0)}, (-0.1814, 7.1814)),
        (
            mean(scale="log"),
            {"treated": np.exp(np.arange(8.0)), "control": np.ones(8)},
            (np.exp(-0.1814), np.exp(7.1814)),
        ),
    ],
)
def test_each_kind_has_its_sequence(kind, data, ends):
    fixed = kind.estimate(**data)
    made = sequential(kind, data, fixed)
    assert made.effect == fixed.effect
    assert made.interval(0.05) == pytest.approx(ends, rel=0.002)
    assert "confidence sequence" in made.how
    assert not any(name.endswith(" p") for name in made.detail)
    assert made.p is None  # that of a fixed number of seeds does not hold at every look
    # Holding at every look costs: nowhere is it shorter than the interval that holds at one.
    low, high = fixed.interval(0.05)
    assert made.interval(0.05)[0] <= low + 1e-9
    assert made.interval(0.05)[1] >= high - 1e-9
    # Nested in alpha, as verdicts need.
    assert made.interval(0.5)[0] >= made.interval(0.05)[0]
    assert judge(made, above(-1.0)).verdict in ("supported", "undecided")


def test_kinds_without_one():
    assert not any(has_sequence(kind) for kind in (rank(), bootstrap()))
    data = {"value": 0.5, "replicates": np.linspace(0, 1, 200)}
    made = sequential(bootstrap(), data, bootstrap().estimate(**data))
    assert judge(made, within(-1, 2)).verdict == "no verdict"
    assert "bootstrap has no confidence sequence" in made.reason


def test_seeds_that_share_a_cluster_are_refused():
    data = {"values": np.arange(12.0), "clusters": [seed // 2 for seed in range(12)]}
    with pytest.raises(DataError, match="share clusters"):
        sequential(median(), data, median().estimate(**data))
    alone = {**data, "clusters": list(range(12))}
    assert sequential(median(), alone, median().estimate(**alone)).interval(0.05) == (1.0, 10.0)


def test_an_undecided_rate_says_what_it_would_take():
    data = {"outcomes": np.arange(16) % 4 != 0}
    judged = judge(sequential(rate(), data, rate().estimate(**data)), above(0.5))
    assert judged.verdict == "undecided"
    n = 16 + judged.more
    assert rate_ends(0.75 * n, n)[0] > 0.5 >= rate_ends(0.75 * (n - 1), n - 1)[0]


@pytest.mark.parametrize("rung", list(BLOCK))
def test_the_schedule_ends_at_the_cap(rung):
    seen = [FIRST]
    while seen[-1] < 200:
        seen.append(following(seen[-1], rung, 200))
    steps = np.diff(seen)
    assert seen[-1] == 200
    assert (steps[:-1] >= BLOCK[rung]).all()
    assert (np.diff(steps[:-1]) >= 0).all()
    assert len(seen) < 40


def test_looks_need_a_cap():
    made = claim("a", says="A.", kind=rate(), region=below(0.5)).args[0]
    with pytest.raises(ValueError, match="no cap"):
        Looks(parse("fresh"), "sim", [made], ())
