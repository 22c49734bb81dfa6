import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.runs.words import amount, columns, departures, sparkline, value


def test_sizes():
    assert [amount(size) for size in (1, 1000, 1_500_000, 10**13)] == ["1 B", "1 kB", "1.5 MB", "10 TB"]


@pytest.mark.parametrize(
    ("leaf", "path", "text"),
    [
        (1e-06, "rate", "1e-06"),
        (-0.25, "rate", "-.25"),
        (0.0, "rate", "0.0"),
        (False, "watch", "false"),
        ("a.b.C", "name", "a.b.C"),
        ("a.b.C", "world.type", "C"),
    ],
)
def test_values(leaf, path, text):
    assert value(leaf, path) == text


def test_many_departures_are_cut():
    found = {f"k{i}": (0, i) for i in range(6)}
    assert departures(found) == "k0=0 k1=1 k2=2 k3=3 (+2 more)"


def test_a_curve_of_more_steps_than_places_is_averaged():
    assert sparkline(np.repeat([0.0, 1.0], 50), width=2) == "▁█"
    assert sparkline([-math.inf, 0.0, 2.0, math.inf]) == " ▁█ "
    assert sparkline([]) == ""


def test_rounding_is_not_drawn_as_a_curve():
    assert sparkline([30.0, 30.0 + 1e-11]) == "▁▁"
    assert sparkline([0.0, 1e-25]) == "▁█"


@given(st.lists(st.floats(width=64), min_size=1, max_size=60))
def test_a_curve_has_a_character_a_place_and_its_ends(values):
    drawn = sparkline(values)
    assert len(drawn) == min(24, len(values))
    if (
        len(values) <= 24
        and all(map(math.isfinite, values))
        and max(values) - min(values) > 1e-6 * max(map(abs, values))
    ):
        assert drawn[int(np.argmax(values))] == "█"
        assert drawn[int(np.argmin(values))] == "▁"


def test_columns():
    assert columns([["a", "1"], ["bbb", "22"]], right=(1,)) == ["a     1", "bbb  22"]
    assert columns([]) == []
