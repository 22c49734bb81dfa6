"""Starts with their ends, counts, and lanes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.events import PAIRS, EventLog, Kind
from sim.cluster.spans import Names, Spans, buffered, count, lanes, queued, spans, window
from tests.sim.cluster.legal_logs import LEGAL_LOGS, STORY, story


def pairs(of):
    return list(zip(of.start.tolist(), of.end.tolist(), strict=True))


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_starts_and_ends_of_the_story():
    log = story()
    assert pairs(spans(log, Kind.TRAJ_START)) == [(1, 22), (3, 15), (19, 33), (31, 39)]
    assert pairs(spans(log, Kind.GEN_START)) == [(2, 5), (4, 7), (17, 21), (20, 26), (28, 32), (34, 38)]
    assert pairs(spans(log, Kind.TOOL_START)) == [(6, 9), (10, 13), (14, 16)]
    assert pairs(queued(log)) == [(8, 10), (12, 14)]
    assert pairs(buffered(log)) == [(23, 29)]
    assert pairs(spans(log, Kind.TRAIN_START)) == [(30, 35)]
    assert pairs(spans(log, Kind.SYNC_START).at(0)) == [(25, 27)]
    assert pairs(spans(log, Kind.SYNC_START).at(-1)) == []


def test_what_is_open_ends_with_the_log():
    of = spans(EventLog.of(STORY[:27]), Kind.TRAJ_START)
    assert pairs(of) == [(1, 22), (3, 15), (19, -1)]
    assert of.end_s.tolist() == [7.0, 5.0, 7.5]


def test_within_leaves_what_only_touches():
    of = spans(story(), Kind.GEN_START)
    assert pairs(of.within(3.0, 7.0)) == [(17, 21), (20, 26)]
    assert pairs(of.within(7.5, 8.0)) == []


def test_counts_change_at_starts_and_ends():
    rows, number = count(spans(story(), Kind.GEN_START))
    assert rows.tolist() == [2, 4, 5, 7, 17, 20, 21, 26, 28, 32, 34, 38]
    assert number.tolist() == [1, 2, 1, 0, 1, 2, 1, 0, 1, 0, 1, 0]


def test_the_lowest_free_lane_is_taken():
    log = EventLog.of([(float(i), Kind.STOP, 0, 0, 0, 0, 0.0) for i in range(8)])
    of = Spans(log, np.array([0, 1, 3, 5]), np.array([2, 6, -1, 7]))
    assert lanes(of).tolist() == [0, 1, 0, 2]


def test_loads_that_overlap_end_in_turn():
    kinds = (Kind.SYNC_START, Kind.SYNC_START, Kind.SYNC_END, Kind.SYNC_END, Kind.SYNC_START)
    log = EventLog.of([(float(i), kind, -1, -1, -1, 1, 0.0) for i, kind in enumerate(kinds)])
    assert pairs(spans(log, Kind.SYNC_START)) == [(0, 2), (1, 3), (4, -1)]


def test_an_empty_window_is_refused():
    assert window(story(), None, None) == (0.0, 10.0)
    assert window(story(), 2, None) == (2.0, 10.0)
    with pytest.raises(ValueError, match="window from 12 s to 10 s is empty: give start_s below end_s"):
        window(story(), 12, None)


def test_names_are_given_or_numbered():
    names = Names(engines=("left",), pools=())
    assert (names.engine(0), names.engine(1), names.pool(2)) == ("left", "engine 1", "pool 2")


# --- properties -------------------------------------------------------------------------------------------------------


@given(log=LEGAL_LOGS, kind=st.sampled_from([Kind.TRAJ_START, Kind.GEN_START, Kind.TOOL_START]))
def test_every_start_has_the_end_that_follows(log, kind):
    of = spans(log, kind)
    assert of.start.tolist() == log.of_kind(kind).tolist()
    assert np.all(np.isin(log.kind[of.end], PAIRS[kind]))
    assert np.all(of.end > of.start)
    assert np.all(log.traj[of.end] == log.traj[of.start])


@given(log=LEGAL_LOGS, kind=st.sampled_from([Kind.TRAJ_START, Kind.GEN_START, Kind.TOOL_START]))
def test_lanes_are_as_few_as_are_open_at_once_and_nothing_in_one_overlaps(log, kind):
    of = spans(log, kind)
    lane = lanes(of)
    assert lane.max(initial=-1) + 1 == count(of)[1].max(initial=0)
    for number in set(lane.tolist()):
        mine = of.of(lane == number)
        assert np.all(mine.end[:-1] < mine.start[1:])
