import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.records.nested import Segment, Trajectory, Turn, describe, group_rows
from sim.records.rollouts import Outcome, RecordError, Rollouts


def test_a_trajectory_as_text(small):
    names = {0: "search", 1: "answer"}
    assert describe(small(), 0, action=names.__getitem__).splitlines() == [
        "task 7 (main), trajectory 0: solved, reward 1, 3 turns, 0.0 to 9.0 s",
        "  segment 0: main, start, versions 3 to 3, 0.0 to 4.0 s",
        "  turn 0    context 0           search     generated 10    observed 7      logp -0.100",
        "  turn 1    context 1           search     generated 20    observed 7      logp -0.200",
        "  segment 1: main, compaction of segment 0, versions 4 to 5, 5.0 to 9.0 s",
        "  turn 2    context 2           answer     generated 5     observed 0      logp -0.300",
    ]
    assert (
        describe(small(), 2) == "task 3 (main), trajectory 2: infrastructure failure, reward nan, 0 turns, 1.0 to 2.0 s"
    )


def test_names_from_outside_cannot_steer_the_terminal():
    bad = Trajectory("q\x1b[2J\n", (Segment((Turn(0, 0),)),), 1.0, Outcome.SOLVED)
    text = describe(Rollouts.from_trajectories([bad]), 0)
    assert "\x1b" not in text
    assert r"q\x1b[2J\n" in text
    assert len(text.splitlines()) == 2


def test_one_task_in_two_roles_is_two_groups():
    keys, place = group_rows([(1, "main"), (1, "searcher"), (0, "main"), (1, "main")])
    assert keys == [(0, "main"), (1, "main"), (1, "searcher")]
    assert place.tolist() == [1, 2, 0, 1]
    with pytest.raises(RecordError, match="some tasks are integers and others texts"):
        group_rows([(1, "main"), ("1", "main")])


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["main", "searcher"])), min_size=1), st.data())
def test_rows_may_come_in_any_order(keys, data):
    order = data.draw(st.permutations(range(len(keys))))
    known, place = group_rows(keys)
    assert [known[each] for each in place] == keys
    assert len(known) == len(set(keys))
    again, moved = group_rows([keys[row] for row in order])
    assert again == known
    assert moved.tolist() == place[order].tolist()
