import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.learning.normalisers import MicrobatchMean, SequenceMean
from sim.learning.presets import length_window, null
from sim.learning.setup import GradientNoise
from studies.kit.phase.axes import MOST_POINTS, Axis, axis, check_keys, points, split
from studies.kit.phase.places import GridError, has, locate

BASE = length_window()


def values(path, text, config=BASE):
    return axis(locate(config, path), text).values


@pytest.mark.parametrize(
    ("path", "text", "found"),
    [
        ("world.known", "0.1,0.3", (0.1, 0.3)),
        ("world.known", "0,1", (0.0, 1.0)),
        ("world.known", "0.1:0.3:3", (0.1, 0.2, 0.3)),
        ("optimiser.rate", "0.1:10:3:log", (0.1, 1.0, 10.0)),
        ("group", "2:8:4", (2, 4, 6, 8)),
        ("group", "2:32:5:log", (2, 4, 8, 16, 32)),
        ("world.may_guess", "true,False", (True, False)),
        ("on_zero_signal", "step,skip", ("step", "skip")),
        ("keep_rollouts", "none,3", (None, 3)),
        ("rule.normaliser", "SequenceMean(), MicrobatchMean(8)", (SequenceMean(), MicrobatchMean(8))),
        ("noise", "none,GradientNoise(sd=0.5, private=True)", (None, GradientNoise(0.5, private=True))),
    ],
)
def test_values_have_the_type_of_the_field(path, text, found):
    assert values(path, text) == found
    assert [type(value) for value in values(path, text)] == [type(value) for value in found]


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.integers(2, 40))
def test_a_range_has_its_ends_and_even_steps(low, width, n):
    high = low + width
    found = values("optimiser.rate", f"{low!r}:{high!r}:{n}")
    assert len(found) == n
    assert (found[0], found[-1]) == pytest.approx((low, high), abs=1e-8)
    steps = [b - a for a, b in pairwise(found)]
    assert steps == pytest.approx([width / (n - 1)] * (n - 1), abs=1e-7)


@given(st.floats(1e-6, 1e3), st.floats(1.01, 1e6), st.integers(2, 30))
def test_a_log_range_has_even_ratios(low, factor, n):
    found = values("optimiser.rate", f"{low!r}:{low * factor!r}:{n}:log")
    ratios = [math.log(b / a) for a, b in pairwise(found)]
    assert ratios == pytest.approx([math.log(factor) / (n - 1)] * (n - 1), abs=1e-9)


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("world.knwn", "1", "World has no field 'knwn'; did you mean 'known'"),
        ("known", "1", r"did you mean 'world\.known'"),
        ("drive.rate", "1", "drive is None and has no field 'rate'"),
        ("world.known", "low", r"world\.known = 'low': World\.known takes float"),
        ("group", "2.5", r"group = 2\.5: Training\.group takes int"),
        ("group", "true", "Training.group takes int"),
        ("group", "2:9:3", r"5\.5 is no whole number"),
        ("world.known", "0.1,,0.3", "empty value"),
        ("world.known", "0.1,0.10", "0.1 stands there twice"),
        ("world.known", "0.3:0.1:5", "LOW lies below HIGH"),
        ("world.known", "0.1:0.3:1", "N is 2 or more"),
        ("world.known", "0.1:0.3:5:lin", "LOW:HIGH:N:log"),
        ("world.known", "0:0.3:5:log", "LOW lies above 0"),
        ("world.known", "inf", "takes float"),
        ("world.known", "1e999", "finite numbers only"),
        ("world.known", "0.1:0.3:200000", "200,000 values"),
        ("rule.normaliser", "SequenseMean()", "no SequenseMean to put here; did you mean 'SequenceMean'"),
        ("rule.normaliser", "MicrobatchMean('x')", "MicrobatchMean"),
        ("rule.normaliser", "__import__('os').system('true')", "takes Normaliser"),
        ("rule.normaliser", "SequenceMean", "takes Normaliser"),
    ],
)
def test_what_cannot_be_varied_is_said(path, text, words):
    with pytest.raises(GridError, match=words):
        values(path, text)


def test_values_from_python_are_checked_too():
    import numpy as np

    assert axis(locate(BASE, "world.known"), np.array([0.1, 0.2])).values == (0.1, 0.2)
    assert type(axis(locate(BASE, "group"), np.arange(2, 4)).values[0]) is int
    with pytest.raises(GridError, match="takes float"):
        axis(locate(BASE, "world.known"), ["0.1"])
    with pytest.raises(GridError, match="no values"):
        axis(locate(BASE, "world.known"), [])


def test_keys_that_contradict_each_other():
    check_keys(["world.known", "world.hit_known", "worldly"])
    with pytest.raises(GridError, match="twice"):
        check_keys(["world.known", "group", "world.known"])
    with pytest.raises(GridError, match=r"'world' and 'world\.known' contradict"):
        check_keys(["world.known", "world"])


@pytest.mark.parametrize("text", ["", "world.known", "=1", "world.known=", "world..known=1"])
def test_a_key_without_values_is_refused(text):
    with pytest.raises(GridError, match="KEY=A,B,C"):
        split(text)


def test_the_last_key_runs_fastest_and_a_large_grid_is_refused():
    grid = (Axis("a", (1, 2)), Axis("b", (3, 4, 5)))
    assert [tuple(point.values()) for point in points(grid)] == [(1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    wide = tuple(range(1000))
    with pytest.raises(GridError, match=f"1000 x 1000 = 1,000,000 points; the most is {MOST_POINTS:,}"):
        list(points((Axis("a", wide), Axis("b", wide))))


def test_a_path_leads_into_a_config_or_not():
    assert has(BASE, "world.known")
    assert not has(BASE, "drive.rate")
    assert not has({"world": 1}, "world")
    assert locate(null(), "world.known").value == null().world.known
