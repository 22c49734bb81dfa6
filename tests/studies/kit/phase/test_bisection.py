from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from studies.kit.phase import GridError, bisect
from studies.kit.phase.bisection import bisect_rows


@pytest.fixture
def halve(toys, places):
    return partial(bisect, "toy", "inner.level", folder=toys, seeds=8, **places)


def boundary(sweep, spread):
    """Where the median crosses zero: minus the spread times the median draw."""
    return -sweep("toy", {"inner.level": [0.0], "spread": [spread]}).entries[0].of("is-up").effect


def test_the_bracket_holds_the_boundary(halve, sweep):
    found = halve(-2.0, 3.0, tolerance=0.01)
    assert found.low < boundary(sweep, 0.1) <= found.high
    assert found.high - found.low <= 0.01
    assert found.at_low == "refuted"
    assert found.decided_low < found.low  # near the zero eight seeds settle nothing
    assert found.decided_high > found.high
    assert len(found.probes) == 2 + 9  # both ends, and 5 / 2**9 < .01
    levels = [entry.point["inner.level"] for entry in found.probes]
    assert levels == sorted(levels)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.floats(-3, -1), st.floats(1, 3), st.floats(0.02, 0.5))
def test_it_lands_wherever_it_begins(halve, sweep, low, high, tolerance):
    found = halve(low, high, tolerance=tolerance)
    assert found.low < boundary(sweep, 0.1) <= found.high
    assert found.high - found.low <= tolerance


def test_it_lands_within_a_cell_of_the_grid_s_boundary(halve, sweep):
    cell = 0.25
    swept = sweep("toy", {"inner.level": "-2:3:21"})
    signs = [entry.of("is-up").effect > 0 for entry in swept.entries]
    first = swept.entries[signs.index(True)].point["inner.level"]
    found = halve(-2.0, 3.0, tolerance=cell)
    assert abs(found.middle - (first - cell / 2)) <= cell
    settled = [entry.point["inner.level"] for entry in swept.entries if entry.of("is-up").verdict == "refuted"]
    assert abs(found.decided_low - max(settled)) <= cell


def test_rows_have_boundaries_of_their_own(toys, places, sweep):
    found = bisect_rows(
        "toy", "inner.level", -2.0, 3.0, grid={"spread": (0.1, 1.0)}, tolerance=0.05, folder=toys, seeds=8, **places
    )
    assert [row.fixed for row in found.rows] == [{"spread": 0.1}, {"spread": 1.0}]
    for row in found.rows:
        assert row.low < boundary(sweep, row.fixed["spread"]) <= row.high


def test_whole_numbers_end_as_neighbours(toys, places):
    """A study that is refuted up to 13 and supported from 14 on."""
    (toys / "study_whole.py").write_text("""
import numpy as np
from studies.kit import above, claim, median
from study_toy import Toy, train
@claim("many", says="Many.", kind=median(), region=above(13.5))
def study_whole(study):
    runs = study.sweep({"only": Toy()}, run=train)["only"]
    study.conclude("many", values=np.full(8, runs.config.n) + np.arange(8) / 100)
""")
    found = bisect("whole", "n", 2, 40, folder=toys, seeds=8, **places)
    assert (found.low, found.high) == (found.decided_low, found.decided_high) == (13, 14)
    assert [type(entry.point["n"]) for entry in found.probes] == [int] * len(found.probes)


def test_a_rerun_reads_the_ledger(halve, places, monkeypatch, tmp_path):
    first = halve(-2.0, 3.0)
    monkeypatch.setenv("TOY_CALLS", str(tmp_path / "calls"))
    places["store"].rename(tmp_path / "away")
    assert halve(-2.0, 3.0) == first
    assert not (tmp_path / "calls").exists()


@pytest.mark.parametrize(
    ("low", "high", "more", "words"),
    [
        (1.0, 3.0, {}, r"the ends lie on one side, supported at 1 \(\.99\d \[.*\), supported at 3"),
        (3.0, 1.0, {}, "give the lower end first"),
        (-1.0, 1.0, {"tolerance": 0.0}, "a width above 0"),
        (-1.0, 1.0, {"claim": "is-upp"}, "did you mean 'is-up'"),
    ],
)
def test_a_search_that_cannot_be_made(halve, low, high, more, words):
    with pytest.raises(GridError, match=words):
        halve(low, high, **more)


def test_a_probe_that_fails_ends_the_search_in_its_row_alone(toys, places):
    rows = bisect_rows(
        "toy", "inner.level", -2.0, 3.0, grid={"inner.kind": ("bad", "plain")}, folder=toys, seeds=8, **places
    ).rows
    assert "RuntimeError: no such kind" in rows[0].failed
    assert rows[1].failed == ""
    assert rows[1].low < rows[1].high
    with pytest.raises(GridError, match="takes str: bisection needs a number"):
        bisect("toy", "inner.kind", 0, 1, folder=toys, **places)
