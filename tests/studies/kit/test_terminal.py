import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.terminal import Line, line, lines


def laid_out(*findings, width=120):
    return [text for text, _ in lines([line(found) for found in findings], width)]


def test_columns_by_hand(finding):
    out = laid_out(finding(q=0.0094), finding(claim="other", predicted=None, p=0.5, q=0.5, status="new"))
    assert out == [
        "   claim        predicted  effect [95 %]              region  n   p      q      status",
        "S  never-flips  0          0 [0, .056] share of runs  < .1    64  .0024  .0094  on record",
        "S  other        -          0 [0, .056] share of runs  < .1    64  .5     .5     new",
    ]


def test_a_long_unit_goes_below(finding):
    out = laid_out(finding(unit="share of seeds that flip in any of the four recipes of this study"), finding())
    assert out[1:] == [
        "S  never-flips  0          0 [0, .056]    < .1    64  .0024  -  on record",
        "     share of seeds that flip in any of the four recipes of this study",
        "S  never-flips  0          0 [0, .056]    < .1    64  .0024  -  on record",
        "     share of runs",
    ]


def test_a_long_status_goes_below(finding):
    found = finding(
        verdict="no verdict", status="weakened", reason="positive control did not come out as said: " + "x" * 60
    )
    out = laid_out(found)
    assert out[1].startswith("-  never-flips")
    assert "weakened, positive control" in out[2]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"verdict": "undecided", "more_seeds": 24}, "on record, 24 more seeds"),
        ({"verdict": "undecided", "more_seeds": None}, "no number of more seeds"),
        ({"predicted_low": 0.0, "predicted_high": 0.1}, "0 (0 to .1)"),
        ({"p": None}, "-  -"),
        ({"effect": None, "low": None, "high": None}, "-"),
        ({"effect": math.inf, "low": 120.0, "high": math.inf}, "beyond the run [120, beyond the run]"),
    ],
)
def test_words(finding, changes, words):
    assert words in " ".join(laid_out(finding(**changes)))


WORD = st.text("abcdefgh", min_size=1, max_size=30)


@given(st.lists(st.tuples(WORD, WORD, st.lists(WORD, max_size=30)), min_size=1, max_size=5), st.integers(100, 160))
def test_lines_keep_to_the_width(finding, rows, width):
    made = [Line(line(finding(claim=claim)).cells, unit, " ".join(status), "supported") for claim, unit, status in rows]
    out = lines(made, width)
    assert all(len(text) <= width for text, _ in out)
    assert [verdict for _, verdict in out].count("supported") == len(rows)
