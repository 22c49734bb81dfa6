from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.runs.filters import Condition, Filters, cutoff, ordered, select
from studies.kit.runs.listing import Row
from studies.kit.words import CommandError
from tests.studies.kit.runs.stores import config

NOW = datetime(2026, 3, 10, tzinfo=UTC)


def row(name="a", study="fold", rung="sim", seed=0, made_of=None, code="this", steps=4, size=10, **provenance):
    made_of = config() if made_of is None else made_of
    manifest = {"study": study, "rung": rung, "seed": seed, "config": made_of, "rows": steps}
    return Row(name, None, "run", size, "", manifest, provenance, code)


ROWS = [
    row("a", recorded_at="2026-03-09T00:00:00+00:00", wall_s=3.0),
    row("b", "dwell", seed=1, code="other", made_of=config(known=0.35, rate=8.0), recorded_at="2026-03-01T00:00:00"),
    row("c", rung="minimodel", seed=1, made_of={**config(), "drive": None, "keep": True}, steps=9, size=99, wall_s=1),
    Row("d", None, "damaged", 5, "spoiled"),
]


def names(**filters):
    return "".join(each.name for each in select(ROWS, Filters(**filters), NOW))


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, "abc"),
        ({"study": ("fold",)}, "ac"),
        ({"study": ("fold", "dwell")}, "abc"),
        ({"rung": ("minimodel",)}, "c"),
        ({"seed": (1,)}, "bc"),
        ({"seed": (1, 0)}, "abc"),
        ({"seed": (5,)}, ""),
        ({"code": "other"}, "b"),
        ({"study": ("fold",), "seed": (1,)}, "c"),
        ({"where": ("world.known=.35",)}, "b"),
        ({"where": ("world.known=0.5",)}, "ac"),
        ({"where": ("world.known!=0.5",)}, "b"),
        ({"where": ("world.known<.5",)}, "b"),
        ({"where": ("world.known<=.5",)}, "abc"),
        ({"where": ("world.known>=.5",)}, "ac"),
        ({"where": ("optimiser.rate > 2",)}, "b"),
        ({"where": ("optimiser.rate=8",)}, "b"),
        ({"where": ("optimiser.rate=8", "world.known=.5")}, ""),
        ({"where": ("optimiser.type=Sgd",)}, "abc"),
        ({"where": ("optimiser.type=sim.learning.optimisers.Sgd",)}, "abc"),
        ({"where": ("drive=null",)}, "c"),
        ({"where": ("keep=true",)}, "c"),
        ({"where": ("keep=1",)}, ""),
        ({"where": ("keep>0",)}, ""),
        ({"newer": "2d"}, "a"),
        ({"older": "2d"}, "b"),
        ({"older": "2026-03-09"}, "b"),
        ({"newer": "2026-03-09"}, "a"),
    ],
)
def test_filters_by_hand(filters, expected):
    assert names(**filters) == expected


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ({"study": ("fodl",)}, "no run of study 'fodl' here; did you mean 'fold'"),
        ({"rung": ("mini",)}, "no run of rung 'mini' here; did you mean 'minimodel'"),
        ({"where": ("world.knwon=1",)}, "no run has a setting 'world.knwon'; did you mean 'world.known'"),
        ({"where": ("world=1",)}, "no run has a setting 'world'; did you mean 'world.known'"),
        ({"where": ("world.known",)}, "give PATH=VALUE"),
        ({"where": ("=1",)}, "give PATH=VALUE"),
        ({"where": ("world.known<much",)}, "< compares numbers, not 'much'"),
        ({"newer": "yesterday"}, "--newer yesterday: give an age such as 7d"),
        ({"older": "999999999999w"}, "--older 999999999999w: give an age"),
    ],
)
def test_what_no_run_has_is_an_error_with_near_misses(filters, words):
    with pytest.raises(CommandError, match=words.replace("?", r"\?")):
        names(**filters)


def test_a_text_that_looks_like_a_number_is_found_as_it_is_written():
    assert Condition.parse("world.name=3").holds("3")
    assert not Condition.parse("world.name=3").holds("3.0")
    assert Condition.parse("a=x=y").holds("x=y")


@given(st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_comparisons_are_those_of_numbers(leaf, value):
    holds = {op: Condition.parse(f"x{op}{value!r}").holds(leaf) for op in ("=", "!=", "<", "<=", ">", ">=")}
    assert holds["="] == (leaf == value) != holds["!="]
    assert holds["<"] == (leaf < value) == (not holds[">="])
    assert holds[">"] == (leaf > value) == (not holds["<="])


@given(st.integers(0, 10**6), st.sampled_from("smhdw"))
def test_ages_count_back(count, unit):
    length = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}[unit]
    try:
        expected = NOW - timedelta(**{length: count})
    except OverflowError:
        with pytest.raises(CommandError):
            cutoff("--newer", f"{count}{unit}", NOW)
    else:
        assert cutoff("--newer", f"{count}{unit}", NOW) == expected


@pytest.mark.parametrize(
    ("by", "reverse", "expected"),
    [
        ("study", False, "bca"),
        ("key", True, "cba"),
        ("size", True, "cab"),
        ("steps", True, "cab"),
        ("recorded", False, "bac"),
        ("recorded", True, "abc"),
        ("wall", False, "cab"),
        ("wall", True, "acb"),
    ],
)
def test_order(by, reverse, expected):
    assert "".join(each.name for each in ordered(ROWS[:3], by, reverse)) == expected
