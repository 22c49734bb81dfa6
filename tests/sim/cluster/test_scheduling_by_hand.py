"""What starts, what is taken, what is dropped, worked by hand."""

import pytest

from sim.cluster.events import DropReason, Kind
from sim.cluster.scheduling import Aimd, Arrivals, Capacity, FixedWidth, MaxStaleness, Order, Rounds
from tests.sim.cluster.small import GIVEN, a_tool, chunks_of, played, rows, small, takes


def starts(run):
    """When which prompt was played, for which time: (t, prompt, play)."""
    return [(t, prompt, play) for t, prompt, play in rows(run, Kind.GROUP_ADMIT, show=("t_s", "value", "turn"))]


def drops(run):
    return rows(run, Kind.GROUP_DROP, show=("t_s", "entity", "value"))


# --- admission --------------------------------------------------------------------------------------------------------


def test_capacity_starts_one_batch_more_with_every_version():
    """Two a batch, one batch ahead: 4 at once, 2 more when version 1 is there, however long the others take."""
    run = played(small({"admission": Capacity(1), "steps": 2, "sync.mode": "in_place"}, batch=2), [3, 9, 4, 9, 1, 9])
    assert [t for t, *_ in starts(run)] == [0, 0, 0, 0, 4, 4]
    assert takes(run) == [(3, 0), (4, 2), (5, 4), (9, 1)]


def test_a_share_of_a_batch_may_be_ahead():
    """verl's threshold: 4 a batch and half a batch ahead make 6 at version 0."""
    run = played(small({"admission": Capacity(0.5)}, batch=4), [9] * 8)
    assert sum(t == 0 for t, *_ in starts(run)) == 6


@pytest.mark.parametrize(("of", "fourth"), [("running", 2), ("unconsumed", 6)])
def test_a_width_counts_those_running_or_those_not_taken(of, fourth):
    """Two at once. The third starts at 1 s, when the first is done and taken, and is done at 2 s; the learner, which trains
    for 5 s, takes it at 6 s."""
    changes = {"admission": FixedWidth(2, of), "steps": 2, "learner.base_s": 5.0, "sync.mode": "in_place"}
    run = played(small(changes), [1, 9, 1, 9])
    assert [t for t, *_ in starts(run)][:4] == [0, 0, 1, fourth]


def test_slots_bound_whatever_the_rule_allows():
    run = played(small({"admission": Capacity(3), "slots": 2}, batch=3), [2, 3, 4])
    assert [t for t, *_ in starts(run)] == [0, 0, 2]


def test_arrivals_come_when_they_come():
    run = played(small({"admission": Arrivals(GIVEN)}, batch=3), [1, 1, 1], series={("arrival", 0): [1, 0, 5]})
    assert [t for t, *_ in starts(run)] == [1, 1, 6]
    assert run.books.end_s == 7


def test_a_controller_grows_by_the_rollouts_that_completed():
    """Rollouts of 1 s, a decision every 1.5 s, a width of 2 that grows by half, to 4 at most. By 1.5 s 2 have completed;
    with 3 at once 2 more complete at 2 s and one at 2.5 s."""
    a = Aimd(start=2, most=4, interval_s=1.5, grow=1.5)
    cluster = small({"admission": a, "engines.kv_tokens": 1e6, "horizon_s": 7.0, "steps": 99, "workload.prompts": 99})
    found = rows(played(cluster, [1]), Kind.CONTROL, show=("t_s", "value"))
    assert found == [(1.5, 3), (3.0, 4), (4.5, 4), (6.0, 4)]


def test_a_controller_backs_off_by_memory():
    """8 rollouts of 10 + t tokens in 100: 88 at 1 s, above .8: int(.9 x 8) = 7. 96 at 2 s, above .9: int(.5 x 7) = 3."""
    a = Aimd(start=8, most=8, interval_s=1.0)
    changes = {"admission": a, "engines.kv_tokens": 100.0, "engines.watermark": 1.0, "workload.prompt_tokens": 10.0}
    run = played(small(changes | {"horizon_s": 2.5}, batch=8, most=50), [50] * 8)
    assert rows(run, Kind.CONTROL, show=("t_s", "value")) == [(1, 7), (2, 3)]


def test_the_first_members_to_complete_count_and_the_others_are_cancelled():
    run = played(small({"workload.extra": 1, "workload.group": 2}, batch=2), [5, 3, 4])
    assert rows(run, Kind.TRAJ_END, Kind.TRAJ_ABORT) == [(3, "TRAJ_END", 1), (4, "TRAJ_END", 2), (4, "TRAJ_ABORT", 0)]
    assert chunks_of(run, 0) == [(0, 4, "ABORT", 0, 4)]
    assert run.books.rollouts.aborted.tolist() == [True, False, False]
    assert run.books.steps.tokens.tolist() == [7]


def test_a_finite_source_is_played_once_through():
    run = played(small({"admission": Capacity(9), "steps": 3}), [1, 2, 3])
    assert [prompt for _, prompt, _ in starts(run)] == [0, 1, 2]
    assert drops(run) == []


def test_the_horizon_stops_a_run_in_the_middle():
    run = played(small({"horizon_s": 5.0, "tools": a_tool()}, batch=2, turns=2), [[1, 9], [9, 1]], tools=[[[1]]])
    stop = rows(run, Kind.STOP, Kind.GEN_ABORT, Kind.TRAJ_ABORT, Kind.GROUP_DROP)
    assert stop == [
        (5, "STOP", -1),
        (5, "GEN_ABORT", 0),
        (5, "TRAJ_ABORT", 0),
        (5, "GEN_ABORT", 1),
        (5, "TRAJ_ABORT", 1),
        (5, "GROUP_DROP", -1),
        (5, "GROUP_DROP", -1),
    ]
    assert run.books.end_s == 5
    assert [v for *_, v in drops(run)] == [DropReason.STOPPED] * 2
    assert not run.books.groups.dropped.any()  # not by the schedule


# --- order ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "found"),
    [
        (Order(1), [(10, 0), (10, 1), (10, 2)]),
        (Order(2), [(5, 1), (10, 0), (10, 2)]),
        (Order(3), [(3, 2), (5, 1), (10, 0)]),
        (Order(None), [(3, 2), (5, 1), (10, 0)]),
    ],
)
def test_the_window_says_who_may_overtake(order, found):
    """Done at 10, 5, 3 and 20 s. The head is 0 until 10 s: with a window of 2 group 1 may be taken before, 2 may not."""
    cluster = small({"admission": Capacity(3), "steps": 3, "order": order, "sync.mode": "in_place"})
    assert takes(played(cluster, [10, 5, 3, 20, 90, 90])) == found


def test_within_the_window_the_oldest_is_taken_first_and_without_one_the_first_to_complete():
    """Groups 2 and 1 are done at 3 and 5 s, while the learner trains on group 0 until 6 s."""
    for order, second in ((Order(3), 1), (Order(None), 2)):
        changes = {"admission": Capacity(2), "steps": 2, "order": order, "learner.base_s": 5.0, "sync.mode": "in_place"}
        assert takes(played(small(changes), [1, 5, 3, 90, 90])) == [(1, 0), (6, second)]


# --- drops ------------------------------------------------------------------------------------------------------------


def dropping(tokens, again=None, mode="in_place", **options):
    drop = MaxStaleness(**{"bound": 0} | options)
    changes = {"admission": Capacity(1), "steps": 2, "drop": drop, "sync.mode": mode, "sync.seconds": 1.0}
    return played(small(changes), tokens, again=again)


def test_a_running_group_that_becomes_too_old_is_dropped_at_once():
    """Version 1 is trained at 4 s and published at 5: the second, begun under version 0, is dropped with its 5 tokens."""
    run = dropping([4, 10, 2, 3])
    assert drops(run)[0] == (5, 1, DropReason.OLD)
    assert chunks_of(run, 1)[-1][1:3] == (5, "ABORT")
    assert run.books.groups.dropped.tolist()[:2] == [False, True]
    assert takes(run) == [(4, 0), (7, 2)]
    assert [prompt for _, prompt, _ in starts(run)] == [0, 1, 2, 3]


def test_a_dropped_prompt_may_be_played_again_with_fresh_luck():
    """Before any other: its second play takes 6 s, from 5 s on."""
    run = dropping([4, 10, 8, 9], again={(1, 1): [[6]]}, then="requeue")
    assert starts(run)[:4] == [(0, 0, 0), (0, 1, 0), (5, 1, 1), (5, 2, 0)]
    assert takes(run) == [(4, 0), (11, 2)]
    assert run.books.groups.prompt[2] == 1


def test_by_the_newest_version_what_still_runs_is_current():
    """The second is written under both versions: its oldest is too old, its newest is not."""
    run = dropping([4, 10, 90], by="newest")
    assert drops(run)[0][2] == DropReason.STOPPED
    assert takes(run) == [(4, 0), (10, 1)]


def test_those_running_may_be_let_run_and_are_dropped_when_they_are_complete():
    run = dropping([4, 10, 20, 20], running=False)
    assert drops(run)[0] == (10, 1, DropReason.OLD)


def test_a_complete_group_that_becomes_too_old_waiting_is_dropped():
    """Both are done at 4 s; the learner takes the first. When version 1 is there the second is one behind."""
    run = dropping([4, 4, 2, 9], by="newest", mode="blocking")
    assert drops(run)[0] == (5, 1, DropReason.OLD)
    assert takes(run) == [(4, 0), (7, 2)]


# --- rounds -----------------------------------------------------------------------------------------------------------


def in_rounds(tokens, again=None, steps=2, batch=1, changes=None, **options):
    base = {"admission": Rounds(**options), "steps": steps, "learner.base_s": 2.0}
    return played(small(base | (changes or {}), batch=batch), tokens, again=again)


def test_a_round_waits_for_the_one_before_to_be_trained_on():
    run = in_rounds([4, 6, 1, 1], batch=2)
    assert [t for t, *_ in starts(run)] == [0, 0, 8, 8]
    assert [t for t, _ in takes(run)] == [4, 6, 9, 9]


def test_one_step_off_generates_while_the_batch_before_is_trained_on():
    """The second round starts when the first is complete, at 6 s, and the third when that is, at 7, and version 1 is
    there, at 8."""
    run = in_rounds([4, 6, 1, 1, 5, 5], batch=2, steps=3, ahead=1)
    assert [t for t, *_ in starts(run)][:6] == [0, 0, 6, 6, 8, 8]
    assert run.books.groups.start_version.tolist()[:6] == [0, 0, 0, 0, 1, 1]
    assert run.books.groups.take_version.tolist()[:6] == [0, 0, 1, 1, 2, 2]


def test_late_groups_are_cancelled():
    """Twice as many are launched as are needed. At 3 s the first is done; 2 s of training; two other prompts."""
    run = in_rounds([3, 5, 1, 9], over=1.0, late="cancel")
    assert starts(run) == [(0, 0, 0), (0, 1, 0), (5, 2, 0), (5, 3, 0)]
    assert drops(run) == [(3, 1, DropReason.LATE), (6, 3, DropReason.LATE)]


def test_late_groups_are_played_again():
    run = in_rounds([3, 5, 9], again={(1, 1): [[2]], (2, 1): [[1]]}, over=1.0, late="requeue")
    assert starts(run)[:4] == [(0, 0, 0), (0, 1, 0), (5, 1, 1), (5, 2, 0)]
    assert takes(run) == [(3, 0), (7, 2)]


def test_late_groups_are_held_and_go_on_in_the_next_round():
    """The second has written 3 of 5 tokens. From 5 s on it writes the other 2, under version 1."""
    run = in_rounds([3, 5, 9], over=1.0, late="resume")
    assert rows(run, Kind.GROUP_HOLD, Kind.GROUP_RESUME, show=("t_s", "kind", "entity"))[:2] == [
        (3, "GROUP_HOLD", 1),
        (5, "GROUP_RESUME", 1),
    ]
    assert chunks_of(run, 1) == [(0, 3, "PAUSE", 0, 3), (5, 7, "END", 1, 2)]
    assert starts(run)[:3] == [(0, 0, 0), (0, 1, 0), (5, 2, 0)]
    assert takes(run) == [(3, 0), (7, 1)]


def test_the_tail_waits_for_a_round_of_its_own():
    """Two needed, three launched: prompt 2 waits for another, 5, and they make the third round alone."""
    run = in_rounds(
        [3, 4, 9, 1, 2, 9],
        again={(2, 1): [[7]], (5, 1): [[8]]},
        steps=3,
        batch=2,
        changes={"learner.base_s": 0.0},
        over=0.5,
        late="tail",
    )
    assert starts(run) == [*[(0, i, 0) for i in range(3)], *[(4, i, 0) for i in (3, 4, 5)], (6, 2, 1), (6, 5, 1)]
    assert takes(run)[-2:] == [(13, 6), (14, 7)]


def test_a_rollout_writes_no_more_than_its_cap_in_a_round():
    """5 tokens a round: 3 is complete, 8 goes on in the next round, which needs no more than what is complete."""
    changes = {"learner.whatever_is_complete": True}
    run = in_rounds([3, 8, 4, 4], batch=2, changes=changes, token_cap=5.0)
    assert chunks_of(run, 1) == [(0, 5, "PAUSE", 0, 5), (7, 10, "END", 1, 3)]
    assert run.books.steps.rollouts.tolist() == [1, 2]
    assert takes(run) == [(5, 0), (11, 1), (11, 2)] or takes(run) == [(5, 0), (11, 2), (11, 1)]
