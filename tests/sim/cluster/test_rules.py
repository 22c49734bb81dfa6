"""The rules of scheduling: values worked by hand, and what holds of all."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.rules import (
    GREEDY,
    aimd,
    capacity,
    fixed_width,
    may_start_round,
    may_take,
    round_launches,
    too_old,
)
from sim.cluster.scheduling import Order, fifo, greedy
from sim.cluster.theory.lag import windowed_lag

FEW = st.integers(0, 200)


# --- by hand ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "accepted", "running", "eta", "concurrency", "allowed"),
    [
        (0, 0, 0, 0, 100, 8),
        (0, 0, 8, 0, 100, 0),  # all run
        (0, 3, 5, 0, 100, 0),  # some are complete: nothing is free before the version
        (1, 8, 0, 0, 100, 8),
        (1, 8, 3, 0, 100, 5),
        (0, 0, 0, 2, 100, 24),
        (3, 24, 0, 2, 100, 24),
        (3, 24, 20, 2, 100, 4),
        (0, 0, 0, 2, 10, 10),  # slots
        (0, 0, 7, 2, 10, 3),
        (0, 0, 0, 0.5, 100, 12),  # half a batch
        (0, 0, 0, 0.3, 100, 10),  # 10.4: whole rollouts
        (0, 20, 5, 0, 100, 0),  # never below 0
    ],
)
def test_capacity(version, accepted, running, eta, concurrency, allowed):
    assert capacity(version, accepted, running, eta, 8, concurrency) == allowed


def test_fixed_width():
    assert [fixed_width(8, held, 100, 0) for held in (0, 5, 8, 9)] == [8, 3, 0, 0]
    assert fixed_width(8, 0, 6, 4) == 2


@pytest.mark.parametrize(
    ("started", "settled", "ahead", "is_open", "may"),
    [
        (0, 0, 0, False, True),
        (1, 0, 0, True, False),
        (1, 0, 0, False, False),  # complete, not yet trained on
        (1, 1, 0, False, True),
        (1, 0, 1, False, True),  # one step off
        (2, 0, 1, False, False),
        (2, 1, 1, False, True),
        (5, 2, 3, True, False),
    ],
)
def test_may_start_round(started, settled, ahead, is_open, may):
    assert may_start_round(started, settled, ahead, is_open) is may


def test_round_launches():
    assert [round_launches(8, over) for over in (0.0, 0.1, 0.125, 0.5, 1.0)] == [8, 9, 9, 12, 16]
    assert round_launches(0, 0.5) == 0


def test_may_take():
    assert [may_take(group, 4, 1) for group in (4, 5)] == [True, False]
    assert [may_take(group, 4, 3) for group in (4, 6, 7)] == [True, True, False]
    assert may_take(10**9, 0, GREEDY)
    assert (fifo().reach, Order(3).reach, greedy().reach) == (1, 3, GREEDY)


def test_too_old():
    assert [too_old(6, 3, 5, bound, by_newest=False) for bound in (2, 3)] == [True, False]
    assert [too_old(6, 3, 5, bound, by_newest=True) for bound in (0, 1)] == [True, False]


@pytest.mark.parametrize(
    ("width", "occupancy", "completed", "following"),
    [
        (100, 0.5, 99, 100),  # a whole width has not come round yet
        (100, 0.5, 100, 125),
        (100, 0.8, 100, 125),  # at the mark, not above it
        (100, 0.81, 100, 90),
        (100, 0.9, 0, 90),
        (100, 0.95, 100, 50),
        (2, 0.5, 2, 3),  # int(2.5) is no growth
        (390, 0.5, 400, 400),  # the most
        (4, 0.95, 0, 4),  # the least
    ],
)
def test_aimd(width, occupancy, completed, following):
    assert (
        aimd(width, occupancy, completed, 1.25, 0.8, 0.9, 0.9, 0.5, least=4 if width == 4 else 1, most=400) == following
    )


# --- what holds of all ------------------------------------------------------------------------------------------------


@given(FEW, FEW, FEW, st.integers(0, 5), st.integers(1, 20), FEW)
def test_capacity_is_never_exceeded(version, accepted, running, eta, batch, concurrency):
    allowed = capacity(version, accepted, running, eta, batch, concurrency)
    assert allowed >= 0
    if allowed:
        assert running + allowed <= concurrency
        assert accepted + running + allowed <= (eta + version + 1) * batch
        assert running + allowed == concurrency or accepted + running + allowed == (eta + version + 1) * batch


@given(FEW, FEW, FEW, st.integers(0, 5), st.integers(1, 20))
def test_a_version_frees_one_batch_and_completion_frees_none(version, accepted, running, eta, batch):
    now = capacity(version, accepted, running, eta, batch, 10**6)
    assert capacity(version + 1, accepted + batch, running, eta, batch, 10**6) == now
    assert capacity(version, accepted + 1, running, eta, batch, 10**6) == max(now - 1, 0)
    if running:
        assert capacity(version, accepted + 1, running - 1, eta, batch, 10**6) == now
    assert capacity(version, accepted, running, eta + 1, batch, 10**6) >= now


@given(st.integers(1, 100), FEW, FEW, FEW)
def test_a_width_is_never_exceeded(width, held, concurrency, running):
    allowed = fixed_width(width, held, concurrency, running)
    assert allowed >= 0
    assert allowed == 0 or (held + allowed <= width and running + allowed <= concurrency)


@given(st.integers(0, 10**6), st.floats(0, 5))
def test_as_many_are_launched_as_the_share_says_and_no_more(needed, over):
    launched = round_launches(needed, over)
    assert needed <= launched
    assert launched - 1 < needed * (1 + over) <= launched
    assert launched == math.ceil(needed * (1.0 + over))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(2, 12), st.integers(1, 8))
def test_a_window_bounds_how_many_overtake(choices, held, window):
    """Of `held` groups one that may be taken is, and another starts: none waits for more than N + W - 2 takes."""
    groups, taken_before, waited = list(range(held)), dict.fromkeys(range(held), 0), []
    for takes, choice in enumerate(choices):
        allowed = [group for group in groups if may_take(group, min(groups), window)]
        assert min(groups) in allowed  # the head may always be taken
        group = allowed[int(choice * (len(allowed) - 1))]
        groups.remove(group)
        waited.append(takes - taken_before[group])
        groups.append(held + takes)
        taken_before[held + takes] = takes + 1
    assert max(waited) <= windowed_lag(held, window)


@given(FEW, FEW, FEW, FEW)
def test_age_by_the_newest_is_never_above_that_by_the_oldest(version, oldest, more, bound):
    newest = oldest + more
    assert not (too_old(version, oldest, newest, bound, True) and not too_old(version, oldest, newest, bound, False))
    assert too_old(version, oldest, newest, bound, False) == (version > oldest + bound)


@given(st.integers(1, 500), st.floats(0, 1), FEW)
def test_a_controller_stays_within_its_bounds_and_moves_the_right_way(width, occupancy, completed):
    following = aimd(width, occupancy, completed, 1.25, 0.8, 0.9, 0.9, 0.5, 1, 500)
    assert 1 <= following <= 500
    if occupancy > 0.8:
        assert following <= width
        assert occupancy <= 0.9 or following <= max(width / 2, 1)
    else:
        assert following >= width
        assert (following > width) == (completed >= width and width < 500)
