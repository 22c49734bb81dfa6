import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.nested import Segment, Trajectory, Turn
from sim.records.npz import read_npz
from sim.records.rollouts import Outcome, Padded, RecordError, Rollouts
from sim.records.tables import as_column, parents

NAN = math.nan


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"groups__offsets": [0, 2, 4]}, r"groups.offsets\[2\] = 4: must be 3 at the end, the number of trajectories"),
        ({"groups__offsets": [1, 2, 3]}, r"groups.offsets\[0\] = 1: must be 0 at the start"),
        ({"groups__offsets": [0, 3, 3]}, r"groups.offsets\[2\] = 3: must be more than .*leave out"),
        ({"segments__offsets": [0, 3, 2, 5, 5]}, r"segments.offsets\[2\] = 2: must be no less than"),
        ({"groups__task": [7, 7]}, r"groups.task\[1\] = 7 with role 'main': must not repeat"),
        ({"groups__offsets": [0, 3]}, r"groups.offsets has shape \(2,\): must be \(3,\)"),
        ({"trajectories__outcome": [0, 2, 6]}, r"outcome\[2\] = 6: must be one of 0 solved, 1 wrong, 2 turn limit"),
        ({"trajectories__reward": [NAN, 0, NAN]}, r"reward\[0\] = nan: must be a number; .*infrastructure failure"),
        ({"trajectories__reward": [1, math.inf, 0]}, r"reward\[1\] = inf: must be finite"),
        ({"trajectories__end": [9, 8, 0.5]}, r"trajectories.end\[2\] = 0.5: must be no earlier than its start"),
        ({"segments__parent": [-1, 1, -1, -1]}, r"segments.parent\[1\] = 1: must be -1 or the row of an earlier"),
        ({"segments__parent": [-1, 0, 1, -1]}, r"segments.parent\[2\] = 1: must be in the same trajectory"),
        ({"segments__parent": [-1, -1, -1, -1]}, r"segments.parent\[1\] = -1: must be a segment, as the reason"),
        ({"segments__reason": [0, 9, 0, 0]}, r"segments.reason\[1\] = 9: must be one of 0 start, 1 compaction"),
        ({"segments__version_newest": [2, 5, 3, -1]}, r"version_newest\[0\] = 2: must be no less than version_oldest"),
        ({"segments__version_newest": [3, 5, 3, 4]}, r"version_newest\[3\] = 4: must be noted where version_oldest is"),
        ({"segments__take_version": [6, 4, 6, -1]}, r"take_version\[1\] = 4: must be no less than version_newest"),
        ({"segments__end": [-1, 9, 8, NAN]}, r"segments.end\[0\] = -1.0: must be no earlier than its start"),
        ({"segments__take_time": [10, 8, 10, NAN]}, r"take_time\[1\] = 8.0: must be no earlier than its end"),
        ({"pauses__end": [3.5, 4]}, r"pauses.start\[1\] = 3.0: must be no earlier than the end of the pause before"),
        ({"pauses__end": [2, 4.5]}, r"pauses.end\[1\] = 4.5: must be inside its segment"),
        ({"pauses__start": [2.5, 3]}, r"pauses.end\[0\] = 2.0: must be no earlier than its start"),
        ({"turns__index": [0, 0, 2, 0, 1]}, r"turns.index\[1\] = 0: must be above the turn before it"),
        ({"turns__index": [-1, 1, 2, 0, 1]}, r"turns.index\[0\] = -1: must be 0 or more"),
        ({"turns__generated": [1, 1, -2, 1, 1]}, r"turns.generated\[2\] = -2: must be 0 or more"),
        ({"turns__logp_behaviour": [-1, 0.2, -1, -1, -1]}, r"turns.logp_behaviour\[1\] = 0.2: must be 0 or less"),
        ({"turns__entropy": [1, 1, 1, -1, 1]}, r"turns.entropy\[3\] = -1.0: must be 0 or more"),
        ({"turns__action": [0.0, 0, 1, 0, 1]}, "turns.action is an array of float64: it must be of kind integer"),
        ({"turns__offsets": [0, 0, 0, 0, 0, 9]}, r"turns.offsets\[5\] = 9: must be 0 at the end, the number of tokens"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes, message, small):
    assert len(small()) == 3
    with pytest.raises(RecordError, match=message):
        small(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": [-1, 4, -1, -1, -1] + [-1] * 6}, r"tokens.version\[1\] = 4: must be -1, as it was not sampled"),
        ({"version": [-1, -1, -2, -1, -1] + [-1] * 6}, r"tokens.version\[2\] = -2: must be -1 or more"),
        ({"logp_behaviour": [0.0] * 2 + [1.0] + [0.0] * 8}, r"tokens.logp_behaviour\[2\] = 1.0: must be 0 or less"),
        ({"sampled": [True] * 11}, r"turns.generated\[0\] = 3: must be the number of its sampled tokens"),
    ],
)
def test_tokens_that_contradict_their_turns_are_refused(changes, message, prompted):
    record = Rollouts.from_trajectories([prompted()])
    columns = {name: np.array(values) for name, values in changes.items()}
    with pytest.raises(RecordError, match=message):
        dataclasses.replace(record, tokens=dataclasses.replace(record.tokens, **columns))


def test_a_token_outside_its_segments_versions_is_refused(spans):
    def made(newest):
        segment = Segment(
            (Turn(0, 0, generated=2, tokens=spans((0, 2, 0), 5)),), version_oldest=3, version_newest=newest
        )
        return Rollouts.from_trajectories([Trajectory("q", (segment,), 0.0, Outcome.WRONG)])

    assert made(5).tokens.version.tolist() == [5, 5]
    with pytest.raises(RecordError, match=r"tokens.version\[0\] = 5: must be within its segment's versions"):
        made(4)


def test_tokens_for_some_turns_only_are_refused(small, prompted):
    bare = dataclasses.replace(prompted(), segments=(Segment((Turn(0, 0),)),))
    with pytest.raises(RecordError, match="2 of 3 turns have tokens"):
        Rollouts.from_trajectories([prompted(), bare])
    with pytest.raises(RecordError, match="the record has no tokens"):
        small().padded_tokens()


def test_masks_with_holes_are_refused():
    ones = np.ones((1, 2, 2))
    solved = {"reward": np.ones((1, 2)), "outcome": np.zeros((1, 2), dtype=int), "action": ones.astype(int)}
    with pytest.raises(RecordError, match=r"mask\[0, 1, 0\] is False before a True"):
        Padded(mask=np.array([[[True, True], [False, True]]]), **solved)
    with pytest.raises(RecordError, match="mask marks turns of a trajectory that is not present"):
        Padded(mask=ones.astype(bool), present=np.array([[True, False]]), **solved)
    with pytest.raises(RecordError, match=r"mask is float64 of shape \(1, 2, 2\): it must be bool"):
        Padded(mask=ones, **solved)
    with pytest.raises(RecordError, match=r"context has shape \(1, 2\): it must be \(1, 2, 2\)"):
        Padded(mask=ones.astype(bool), context=np.ones((1, 2)), **solved)


def test_a_record_of_a_newer_program_is_refused(tmp_path, small):
    path = tmp_path / "rollouts.npz"
    arrays = {**read_npz(small().to_bytes()), "schema": np.array(99)}
    np.savez(path, **arrays)
    with pytest.raises(RecordError, match="has schema 99: this program reads 1"):
        Rollouts.load(path)


def test_a_row_that_is_not_there_is_named(small):
    with pytest.raises(IndexError, match="trajectory 3: the record has rows 0 to 2"):
        small().trajectory(3)


@given(st.lists(st.integers(0, 4), max_size=8))
def test_parents_are_the_inverse_of_offsets(counts):
    got = parents(np.cumsum([0, *counts]))
    assert np.bincount(got, minlength=len(counts)).tolist() == counts if counts else len(got) == 0
    assert got.tolist() == sorted(got.tolist())


def test_columns_are_not_converted_silently():
    assert as_column("a", [1, 2], "number").dtype == np.float64
    assert as_column("a", ["x", "long"], "id").dtype == np.dtype("<U4")
    for values, kind in (([1.0], "integer"), ([1], "flag"), ([True], "integer"), (["1"], "number"), ([1], "text")):
        with pytest.raises(RecordError, match=f"a is an array of .*: it must be of kind {kind}"):
            as_column("a", values, kind)
