"""Engines and tool pools worked by hand: exact times, in the order in which they happen."""

import math

import pytest

from sim.cluster.events import DropReason, Kind
from sim.cluster.scheduling import Arrivals, Capacity
from sim.cluster.spec import Failures
from tests.sim.cluster.small import GIVEN, a_tool, chunks_of, played, rows, small


def ends(run):
    return rows(run, Kind.TRAJ_END, show=("t_s", "traj"))


# --- engines ----------------------------------------------------------------------------------------------------------


def test_two_sequences_share_an_engine_from_the_arrival_of_the_second():
    """.5 s + .5 s a sequence for a token. The first writes 5 alone; then both take 1.5 s a token, for 4 tokens; the last
    token of the first takes 1 s again."""
    cluster = small({"engines.base_s": 0.5, "engines.per_sequence_s": 0.5, "admission": Arrivals(GIVEN)}, batch=2)
    run = played(cluster, [10, 4], series={("arrival", 0): [0.0, 5.0]})
    assert chunks_of(run, 0) == [(0, 12, "END", 0, 10)]
    assert chunks_of(run, 1) == [(5, 11, "END", 0, 4)]
    assert run.books.engines.busy_s.tolist() == [12]
    assert run.books.engines.sequence_s.tolist() == [5 + 2 * 6 + 1]
    assert run.books.end_s == 12


def test_three_sequences_leave_one_by_one():
    """A token takes n s: 3 tokens of each 9 s, one more of two 2 s, one more of one 1 s."""
    run = played(small({"engines.base_s": 0.0, "engines.per_sequence_s": 1.0}, batch=3), [5, 3, 4])
    assert ends(run) == [(9, 1), (11, 2), (12, 0)]


def test_sequences_of_equal_length_leave_in_the_order_in_which_they_came():
    run = played(small(batch=3), [2, 3, 2])
    assert ends(run) == [(2, 0), (2, 2), (3, 1)]


def test_a_rollout_is_written_by_the_engine_with_the_fewest():
    run = played(small({"engines.count": 2}, batch=4), [3, 1, 1, 1])
    assert rows(run, Kind.GEN_START, show=("t_s", "entity", "traj")) == [(0, 0, 0), (0, 1, 1), (0, 0, 2), (0, 1, 3)]


def test_an_engine_writes_no_more_sequences_at_once_than_it_may():
    run = played(small({"engines.max_sequences": 1}, batch=3), [2, 3, 1])
    assert rows(run, Kind.GEN_START, Kind.GEN_END) == [
        (0, "GEN_START", 0),
        (2, "GEN_END", 0),
        (2, "GEN_START", 1),
        (5, "GEN_END", 1),
        (5, "GEN_START", 2),
        (6, "GEN_END", 2),
    ]


def in_memory_of_20(**options):
    """Two rollouts of 10 tokens after a prompt of 4."""
    changes = {"kv_tokens": 20.0, "watermark": 1.0} | options
    cluster = small({f"engines.{k}": v for k, v in changes.items()} | {"workload.prompt_tokens": 4.0}, 2, most=10)
    return played(cluster, [10, 10])


def test_the_newest_is_preempted_when_memory_is_full_and_keeps_its_tokens():
    """Twice 4 + t tokens fill 20 at t = 6. The second goes on when the first is done."""
    run = in_memory_of_20()
    assert chunks_of(run, 0) == [(0, 10, "END", 0, 10)]
    assert chunks_of(run, 1) == [(0, 6, "PREEMPT", 0, 6), (10, 14, "END", 0, 4)]
    assert rows(run, Kind.GEN_START, show=("t_s", "traj", "value")) == [(0, 0, 4), (0, 1, 4), (10, 1, 4 + 6)]


def test_what_was_preempted_is_prefilled_again():
    """Half a token's work for a token of context: 2 s at first, so memory is full at 8 s; then (4 + 6) / 2 = 5 s."""
    run = in_memory_of_20(prefill=0.5)
    assert chunks_of(run, 0) == [(0, 12, "END", 0, 10)]
    assert chunks_of(run, 1) == [(0, 8, "PREEMPT", 0, 6), (12, 21, "END", 0, 4)]


def test_nobody_comes_in_above_the_watermark():
    """Of 20 tokens 6 may be taken by who comes in beside others: the second would make it 8. Alone it may have all."""
    run = in_memory_of_20(watermark=0.3)
    assert chunks_of(run, 1) == [(10, 20, "END", 0, 10)]
    assert chunks_of(in_memory_of_20(watermark=0.4), 1)[0] == (0, 6, "PREEMPT", 0, 6)  # 8 of 20


@pytest.mark.parametrize(("cache", "prefilled"), [(True, 3), (False, 6.5)])
def test_a_turn_prefills_what_is_new_or_everything(cache, prefilled):
    """Half a token's work a token: 4 tokens of prompt take 2 s, then 3 are written, 5 s. The tool takes 2 s, and returns
    6 tokens. With a cache the second turn prefills 6 tokens, 3 s, and writes 3; without one it prefills 13, 6.5 s."""
    cluster = small(
        {
            "engines.prefill": 0.5,
            "engines.prefix_cache": cache,
            "workload.prompt_tokens": 4.0,
            "workload.task.observed": 6,
            "tools": a_tool(),
        },
        turns=2,
    )
    run = played(cluster, [[3, 3]], tools=[[[2]]])
    assert ends(run) == [(5 + 2 + prefilled + 3, 0)]
    assert rows(run, Kind.GEN_START, show=("t_s", "turn", "value")) == [(0, 0, 4), (7, 1, 13)]


def failing(engines, **changes):
    return small({"engines.count": engines, "engines.failures": Failures(GIVEN, GIVEN)} | changes)


def test_a_turn_begins_again_when_its_engine_is_back():
    run = played(failing(1), [10], series={("up", 0): [4, 100], ("down", 0): [3]})
    assert chunks_of(run, 0) == [(0, 4, "ABORT", 0, 4), (7, 17, "END", 0, 10)]
    found = rows(run, Kind.ENGINE_FAIL, Kind.ENGINE_UP, show=("t_s", "kind", "entity"))
    assert found == [(4, "ENGINE_FAIL", 0), (7, "ENGINE_UP", 0)]
    assert run.books.rollouts.tokens.tolist() == [10]  # what was lost does not count


def test_a_turn_begins_again_at_once_on_another_engine():
    run = played(failing(2), [10], series={("up", 0): [4, 100], ("down", 0): [3], ("up", 1): [100]})
    assert chunks_of(run, 0) == [(0, 4, "ABORT", 0, 4), (4, 14, "END", 0, 10)]
    assert rows(run, Kind.GEN_START, show=("t_s", "entity")) == [(0, 0), (4, 1)]


def test_an_engine_that_is_back_has_the_weights_published_meanwhile():
    """Engine 0 fails at 4 s and is back at 11; version 1 is published at 6, when the second rollout is done."""
    cluster = failing(2, admission=Capacity(1), steps=2)
    run = played(cluster, [10, 6, 20], series={("up", 0): [4, 100], ("down", 0): [7], ("up", 1): [100]})
    assert rows(run, Kind.ENGINE_UP, show=("t_s", "entity", "version")) == [(11, 0, 1)]
    assert chunks_of(run, 0) == [(0, 4, "ABORT", 0, 4), (4, 6, "PAUSE", 0, 2), (6, 14, "END", 1, 8)]


# --- tool pools -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("discipline", "order"), [("fifo", [0, 2, 3, 1]), ("lifo", [0, 1, 3, 2]), ("oldest", [0, 1, 2, 3])]
)
def test_who_waits_for_a_server_is_served_in_the_order_of_the_pool(discipline, order):
    """They call at 1, 4, 2, 3 s; a call takes 10 s."""
    cluster = small({"tools": a_tool(servers=1, discipline=discipline)}, batch=4, turns=2)
    run = played(cluster, [[1, 1], [4, 1], [2, 1], [3, 1]], tools=[[[10]]])
    assert rows(run, Kind.TOOL_START, show=("t_s", "traj")) == [(1 + 10 * i, traj) for i, traj in enumerate(order)]
    assert rows(run, Kind.TOOL_ENQUEUE, show=("t_s", "traj")) == [(2, 2), (3, 3), (4, 1)]
    assert run.books.pools.busy_s.tolist() == [40]


def calling(tools, given, tokens=(1, 1)):
    """One rollout that writes these tokens, with a call after each turn but the last."""
    return played(small({"tools": tools}, turns=len(tokens)), [tokens], **given)


def test_a_late_attempt_is_cut_and_retried_after_a_growing_wait():
    """5 and 4 s are cut at 3 s; the waits are 1 and 2 s; the third attempt takes 2 s."""
    run = calling(a_tool(timeout_s=3.0, retries=2, backoff_s=1.0), {"tools": [[[5, 4, 2]]]})
    tool = (Kind.TOOL_START, Kind.TOOL_TIMEOUT, Kind.TOOL_RETRY, Kind.TOOL_END)
    assert rows(run, *tool, show=("t_s", "kind", "version")) == [
        (1, "TOOL_START", 0),
        (4, "TOOL_TIMEOUT", 0),
        (5, "TOOL_RETRY", 1),
        (5, "TOOL_START", 1),
        (8, "TOOL_TIMEOUT", 1),
        (10, "TOOL_RETRY", 2),
        (10, "TOOL_START", 2),
        (12, "TOOL_END", 2),
    ]
    assert run.books.rollouts.tool_s.tolist() == [3 + 3 + 2]
    pools = run.books.pools
    assert [x.tolist() for x in (pools.attempts, pools.timeouts, pools.answered)] == [[3], [2], [1]]


def test_an_attempt_of_just_the_timeout_is_in_time():
    run = calling(a_tool(timeout_s=3.0), {"tools": [[[3]]]})
    assert rows(run, Kind.TOOL_END, Kind.TOOL_TIMEOUT) == [(4, "TOOL_END", 0)]


def test_an_attempt_fails_by_its_own_luck_when_it_would_have_ended():
    given = {"tools": [[[2, 2]]], "failures": [[[0.2, 0.4]]]}
    run = calling(a_tool(failure=0.3, retries=1), given)
    found = rows(run, Kind.TOOL_FAIL, Kind.TOOL_RETRY, Kind.TOOL_END)
    assert found == [(3, "TOOL_FAIL", 0), (3, "TOOL_RETRY", 0), (5, "TOOL_END", 0)]


@pytest.mark.parametrize(("least", "kept"), [(0.4, True), (0.5, False)])
def test_a_tool_that_fails_for_good_ends_the_rollout_which_does_not_count(least, kept):
    """One of two members is left: more than .4 of them, not more than .5."""
    changes = {"workload.group": 2, "workload.least_valid": least, "horizon_s": 9.0}
    cluster = small(changes | {"tools": a_tool(timeout_s=3.0)}, batch=2, turns=2)
    run = played(cluster, [[1, 1], [1, 1]], tools=[[[9]], [[2]]])
    first = rows(run, Kind.TRAJ_END, show=("t_s", "traj", "turn", "value"))
    assert first[0][:3] == (4, 0, 1)
    assert math.isnan(first[0][3])
    assert first[1][:3] == (4, 1, 2)
    assert rows(run, Kind.GROUP_READY, show=("t_s", "value")) == ([(4, 1)] if kept else [])
    dropped = [] if kept else [(4, 0, DropReason.INVALID)]
    assert rows(run, Kind.GROUP_DROP, show=("t_s", "entity", "value")) == dropped
    assert run.books.steps.rollouts.tolist() == [int(kept)]


def test_a_server_is_cold_at_first_and_after_resting_too_long():
    """A call takes 1 s, and 2 s more on a server that never served, or rested more than 5 s: 3 s not, 6 s yes."""
    run = calling(a_tool(cold_start_s=2.0, keep_warm_s=5.0), {"tools": [[[1], [1], [1]]]}, (1, 3, 6, 1))
    assert rows(run, Kind.TOOL_START, Kind.TOOL_END) == [
        (1, "TOOL_START", 0),
        (4, "TOOL_END", 0),
        (7, "TOOL_START", 0),
        (8, "TOOL_END", 0),
        (14, "TOOL_START", 0),
        (17, "TOOL_END", 0),
    ]


def test_a_server_stays_warm_for_ever_where_nothing_is_said():
    run = calling(a_tool(cold_start_s=2.0), {"tools": [[[1], [1]]]}, (1, 100, 1))
    assert rows(run, Kind.TOOL_END, show=("t_s",)) == [(4,), (105,)]
