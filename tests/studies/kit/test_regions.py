import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit import above, below, within

FINITE = st.floats(-100, 100)
REGIONS = st.one_of(
    FINITE.map(above), FINITE.map(below), st.tuples(FINITE, FINITE).map(sorted).map(lambda ends: within(*ends))
)


@pytest.mark.parametrize(
    ("region", "low", "high", "inside", "outside"),
    [
        (above(2), 2.0, 3.0, False, False),  # open: an interval that starts at 2 holds 2, which is not above 2
        (above(2), 2.1, 3.0, True, False),
        (above(2), 1.0, 2.0, False, True),  # but 2 itself belongs to the complement
        (below(0.1), 0.0, 0.0566, True, False),
        (below(0.1), 0.1, 0.3, False, True),
        (below(0.1), 0.05, 0.1, False, False),
        (within(-1, 1), -1.0, 1.0, True, False),  # closed
        (within(-1, 1), 1.0, 2.0, False, False),  # 1 is inside, so this straddles
        (within(-1, 1), 1.0001, 2.0, False, True),
        (within(-1, 1), -2.0, 2.0, False, False),  # outside at both ends is not outside
        (above(100), 148.0, math.inf, True, False),
        (below(100), 148.0, math.inf, False, True),
        (within(0, 100), 148.0, math.inf, False, True),
    ],
)
def test_ends_are_exact(region, low, high, inside, outside):
    assert region.contains(low, high) is inside
    assert region.excludes(low, high) is outside


@given(REGIONS, FINITE)
def test_a_point_is_inside_or_outside_and_never_both(region, point):
    assert region.contains(point, point) != region.excludes(point, point)


@given(REGIONS, st.tuples(FINITE, FINITE).map(sorted), st.floats(0, 1))
def test_what_holds_of_an_interval_holds_of_every_point_in_it(region, ends, share):
    low, high = ends
    point = min(high, max(low, low + share * (high - low)))
    if region.contains(low, high):
        assert region.contains(point, point)
    if region.excludes(low, high):
        assert region.excludes(point, point)


@given(FINITE, FINITE)
def test_above_and_below_leave_only_the_bound(bound, point):
    both_out = above(bound).excludes(point, point) and below(bound).excludes(point, point)
    assert both_out == (point == bound)


@pytest.mark.parametrize("make", [lambda: within(1, -1), lambda: above(math.nan), lambda: below(math.inf)])
def test_an_empty_or_endless_region_is_refused(make):
    with pytest.raises(ValueError, match=r"empty|finite"):
        make()


def test_a_region_takes_numbers():
    with pytest.raises(TypeError, match="'2'"):
        above("2")


def test_words():
    assert [above(0.5).words, below(-2).words, within(0, 0.07).words] == ["> .5", "< -2", "0 to .07"]
    assert within(15, 15).words == "= 15"
    assert within(0, 1).boundaries == (0.0, 1.0)
    assert above(0.5).boundaries == (0.5,)
