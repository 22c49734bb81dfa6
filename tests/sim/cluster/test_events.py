"""The event log: rows in, columns out, the same bytes on disk."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.events import PAIRS, Event, EventLog, Kind
from sim.records.npz import npz_bytes
from tests.sim.cluster.legal_logs import LEGAL_LOGS, STORY, story

THREE = [
    (0.0, Kind.TRAJ_START, 3, 0, 1, 2, 0.0),
    (1.5, Kind.TRAJ_END, 3, 0, 1, 2, math.nan),
    (1.5, Kind.STOP, -1, -1, -1, -1, 0.0),
]


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_rows_become_columns_and_rows_again():
    log = EventLog.of(THREE)
    assert len(log) == 3
    assert log.t_s.tolist() == [0.0, 1.5, 1.5]
    assert (log.entity.tolist(), log.traj.tolist(), log.version.tolist()) == ([3, 3, -1], [0, 0, -1], [2, 2, -1])
    first, second, _ = log
    assert first == Event(*THREE[0])
    assert second.kind == Kind.TRAJ_END
    assert math.isnan(second.value)


def test_a_row_takes_31_bytes_and_every_kind_fits():
    assert sum(getattr(EventLog.of(THREE), name).itemsize for name in Event._fields) == 31
    assert len(EventLog.of([(0.0, kind, 0, 0, 0, 0, 0.0) for kind in Kind]).of_kind(Kind.STOP)) == 1


def test_equality_is_of_every_column_and_holds_for_nan():
    log = EventLog.of(THREE)
    assert log == EventLog.of(THREE)
    for column in range(7):
        row = list(THREE[1])
        row[column] = 7
        assert log != EventLog.of([THREE[0], tuple(row), THREE[2]])
    assert log != EventLog.of(THREE[:2])
    assert log != THREE
    with pytest.raises(TypeError, match="unhashable"):
        hash(log)


def test_between_takes_the_start_and_leaves_the_end():
    log = story()
    assert log.between(3.0, 4.5).t_s.tolist() == [3.0, 3.0, 4.0, 4.0]
    assert log.between(2.0, 2.0).t_s.tolist() == []
    assert log.between(0.0, math.inf) == log


def test_rows_of_some_kinds_in_order():
    log = story()
    assert log.of_kind(Kind.VERSION, Kind.STOP).tolist() == [24, 36, 37]
    assert log.rows(log.of_kind(Kind.VERSION)).version.tolist() == [1, 2]
    assert log.of_kind(Kind.CONTROL).tolist() == []


def test_each_end_ends_one_kind_of_start():
    ends = [kind for closes in PAIRS.values() for kind in closes]
    assert len(ends) == len(set(ends)) == 12
    assert not set(ends) & set(PAIRS)


def test_a_file_that_is_no_log_is_refused(tmp_path):
    (tmp_path / "steps.npz").write_bytes(npz_bytes({"t_s": np.zeros(2), "kind": np.zeros(2)}))
    with pytest.raises(ValueError, match=r"steps\.npz is no event log: it has no column 'entity'"):
        EventLog.load(tmp_path / "steps.npz")


def test_an_empty_log_has_columns_of_the_right_types(tmp_path):
    empty = EventLog.of([])
    assert len(empty) == 0
    assert [getattr(empty, name).dtype for name in Event._fields] == [
        getattr(story(), name).dtype for name in Event._fields
    ]
    empty.save(tmp_path / "empty.npz")
    assert EventLog.load(tmp_path / "empty.npz") == empty


# --- properties -------------------------------------------------------------------------------------------------------


def test_a_column_of_another_type_is_refused(tmp_path):
    log = EventLog.of([(0.5, 3, 0, 1, 2, 3, 10.0)])
    arrays = {name: getattr(log, name) for name in ("t_s", "entity", "traj", "turn", "version", "value")}
    (tmp_path / "steps.npz").write_bytes(npz_bytes(arrays | {"kind": np.zeros(1)}))
    with pytest.raises(ValueError, match="column 'kind' is float64 where uint8 is due"):
        EventLog.load(tmp_path / "steps.npz")


@given(log=LEGAL_LOGS)
def test_what_is_saved_is_loaded_and_has_the_same_bytes(log, tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    log.save(folder / "a.npz")
    loaded = EventLog.load(folder / "a.npz")
    assert loaded == log
    loaded.save(folder / "b.npz")
    assert (folder / "a.npz").read_bytes() == (folder / "b.npz").read_bytes()


@given(log=LEGAL_LOGS, cuts=st.lists(st.floats(0, 60), max_size=4))
def test_windows_side_by_side_are_the_whole(log, cuts):
    edges = [0.0, *sorted(cuts), math.inf]
    pieces = [log.between(a, b) for a, b in itertools.pairwise(edges)]
    assert EventLog.of([event for piece in pieces for event in piece]) == log
    assert sum(map(len, pieces)) == len(log) > 0


def test_iteration_gives_back_the_rows():
    assert list(story()) == [Event(*row) for row in STORY]
