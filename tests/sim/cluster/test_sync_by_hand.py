"""Weights on their way to the engines, worked by hand: who writes what under which version, and when all go on."""

import pytest

from sim.cluster.events import Kind
from sim.cluster.scheduling import Capacity, FixedWidth
from tests.sim.cluster.small import chunks_of, played, rows, small, takes

LOADS = (Kind.SYNC_START, Kind.SYNC_END, Kind.VERSION)


def two_at_once(mode, tokens, seconds=1.0, steps=2, **changes):
    """One batch ahead; training takes 2 s, loading 1 s."""
    base = {
        "admission": Capacity(1),
        "steps": steps,
        "learner.base_s": 2.0,
        "sync.mode": mode,
        "sync.seconds": seconds,
    }
    return played(small(base | changes), tokens)


def versions(run):
    return rows(run, Kind.VERSION, show=("t_s", "version"))


# --- the four modes ---------------------------------------------------------------------------------------------------


def test_interrupted_engines_stop_at_once_and_go_on_with_the_new_weights():
    """The first is done at 4 s; version 1 is trained until 6 and loaded until 7. The second has then written 6 of 10."""
    run = two_at_once("interrupt", [4, 10])
    assert chunks_of(run, 1) == [(0, 6, "PAUSE", 0, 6), (7, 11, "END", 1, 4)]
    assert rows(run, *LOADS, show=("t_s", "kind", "entity", "version"))[:3] == [
        (6, "SYNC_START", -1, 1),
        (7, "SYNC_END", -1, 1),
        (7, "VERSION", -1, 1),
    ]
    assert takes(run) == [(4, 0), (11, 1)]
    assert (versions(run), run.books.end_s) == ([(7, 1), (14, 2)], 14)


def test_what_is_interrupted_is_prefilled_again():
    """A third of a token's work for each of 6 tokens: 2 s more."""
    run = two_at_once("interrupt", [4, 10], **{"engines.prefill": 1 / 3})
    (_, _, _, _, first), second = chunks_of(run, 1)
    assert first == pytest.approx(6)
    assert (second[0], second[2:]) == (7, ("END", 1, pytest.approx(4)))
    assert second[1] == pytest.approx(7 + 2 + 4)


def test_blocking_lets_turns_end_and_starts_none():
    """The second writes on until 10; only then are weights loaded, until 11. The third waits for them."""
    run = two_at_once("blocking", [4, 10, 1], steps=3)
    assert chunks_of(run, 1) == [(0, 10, "END", 0, 10)]
    assert rows(run, *LOADS, show=("t_s", "kind"))[:3] == [(6, "SYNC_START"), (11, "SYNC_END"), (11, "VERSION")]
    assert chunks_of(run, 2)[0][::3] == (11, 1)
    assert takes(run)[:2] == [(4, 0), (11, 1)]  # the learner waits for its weights to arrive


def test_blocking_holds_back_who_comes_from_a_tool():
    """A turn of 1 s, a call of none, a turn of 8 s: the second of a pair begins its third turn after the load."""
    cluster = small(
        {"admission": Capacity(1), "steps": 2, "learner.base_s": 2.0, "sync.mode": "blocking", "sync.seconds": 1.0},
        turns=3,
    )
    run = played(cluster, [[1, 1, 2], [1, 6, 8]])
    assert chunks_of(run, 1) == [(0, 1, "END", 0, 1), (1, 7, "END", 0, 6), (8, 16, "END", 1, 8)]
    assert versions(run)[0] == (8, 1)


def test_weights_are_swapped_in_place_under_running_sequences():
    """Nothing stops: 7 tokens under version 0, 3 under version 1, and the learner goes on meanwhile."""
    run = two_at_once("in_place", [4, 10, 1], steps=3, **{"learner.base_s": 4.0, "sync.seconds": 1.5})
    assert chunks_of(run, 1) == [(0, 9.5, "PAUSE", 0, 9.5), (9.5, 10, "END", 1, 0.5)]
    assert rows(run, *LOADS, show=("t_s", "kind"))[:3] == [(8, "SYNC_START"), (9.5, "SYNC_END"), (9.5, "VERSION")]
    assert takes(run)[:2] == [(4, 0), (10, 1)]


def test_a_swap_keeps_what_is_cached():
    """Half a token's work for 6 of prompt: 3 + 10 s in place; interrupted, it is paid again."""
    changes = {"engines.prefill": 0.5, "workload.prompt_tokens": 6.0}
    run = two_at_once("in_place", [1, 10], **changes)
    assert chunks_of(run, 1) == [(0, 7, "PAUSE", 0, 4), (7, 13, "END", 1, 6)]
    run = two_at_once("interrupt", [1, 10], **changes)
    assert chunks_of(run, 1) == [(0, 6, "PAUSE", 0, 3), (7, 7 + 4.5 + 7, "END", 1, 7)]


def test_a_swap_in_the_middle_of_prefilling_loses_none_of_it():
    """Half a token's work for 16 of prompt: 8 s. Each has an engine; the first writes nothing more, the second 2 tokens."""
    changes = {"engines.prefill": 0.5, "workload.prompt_tokens": 16.0, "learner.base_s": 0.0, "engines.count": 2}
    run = two_at_once("in_place", [0, 2, 9, 9], seconds=4.0, steps=3, **changes)
    assert versions(run)[:2] == [(12, 1), (14, 2)]
    assert chunks_of(run, 2)[:2] == [(12, 14, "PAUSE", 1, 0), (14, 12 + 8 + 9, "END", 2, 9)]


def test_an_engine_pulls_by_itself_when_it_has_written_what_it_was_writing():
    """Published at once, at 6 s. Engine 0 is idle and loads until 7; engine 1 writes until 10 and loads until 11."""
    run = two_at_once("pull", [4, 10, 2, 3], steps=4, **{"engines.count": 2})
    found = rows(run, *LOADS, show=("t_s", "kind", "entity", "version"))
    assert found[:2] == [(6, "VERSION", -1, 1), (6, "SYNC_START", 0, 1)]
    assert (7, "SYNC_END", 0, 1) in found
    assert (11, "SYNC_END", 1, 1) in found
    assert chunks_of(run, 1) == [(0, 10, "END", 0, 10)]
    assert chunks_of(run, 2) == [(7, 9, "END", 1, 2)]  # started at 6, on the engine that then loads
    assert takes(run)[:2] == [(4, 0), (9, 2)]


def test_a_pulling_engine_that_is_behind_loads_the_newest():
    """Engine 1 writes until 13, when versions 1 and 2 are there: it loads version 2 and never has version 1."""
    run = two_at_once("pull", [4, 13, 2, 1], steps=3, **{"engines.count": 2})
    assert versions(run)[:2] == [(6, 1), (11, 2)]  # 4 + 2; taken at 7 + 2, + 2
    loads = rows(run, Kind.SYNC_END, show=("t_s", "entity", "version"))
    assert [load for load in loads if load[1] == 1] == [(14, 1, 2)]


# --- beside the modes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["interrupt", "in_place"])
def test_f22_a_version_published_in_the_middle_of_a_request(mode):
    """It starts under version 3 and writes 5 tokens; version 4 is published; it writes 5 more."""
    run = played(small({"admission": Capacity(1), "steps": 5, "sync.mode": mode}), [1, 2, 2, 6, 10, 90])
    assert versions(run) == [(1, 1), (2, 2), (3, 3), (8, 4), (13, 5)]
    assert chunks_of(run, 4) == [(3, 8, "PAUSE", 3, 5), (8, 13, "END", 4, 5)]
    assert (run.books.rollouts.oldest[4], run.books.rollouts.newest[4]) == (3, 4)
    assert run.books.rollouts.token_versions[4] == 5 * 3 + 5 * 4


def test_a_colocated_learner_stops_generation_while_it_trains():
    """4 tokens until the first is done; training until 6, loading until 7; then the other 6."""
    run = two_at_once("interrupt", [4, 10], **{"learner.colocated": True})
    assert chunks_of(run, 1) == [(0, 4, "PAUSE", 0, 4), (7, 13, "END", 1, 6)]


def test_a_step_is_trained_in_parts():
    """Two rollouts a version, one a part: 1 s + .5 s a rollout + .25 s a token, the second part twice as long."""
    changes = {
        "learner.minibatches": 2,
        "learner.base_s": 1.0,
        "learner.per_rollout_s": 0.5,
        "learner.per_token_s": 0.25,
    }
    run = played(small(changes, batch=2), [4, 8], series={("jitter", 0): [1.0, 2.0]})
    found = rows(run, Kind.TRAIN_TAKE, Kind.TRAIN_START, Kind.TRAIN_END, show=("t_s", "kind", "turn"))
    assert found == [
        (4, "TRAIN_TAKE", 0),
        (4, "TRAIN_START", 0),
        (6.5, "TRAIN_END", 0),
        (8, "TRAIN_TAKE", 1),
        (8, "TRAIN_START", 1),
        (8 + 2 * 3.5, "TRAIN_END", 1),
    ]
    step = run.books.steps
    assert [x.tolist() for x in (step.waited_s, step.trained_s, step.rollouts, step.tokens)] == [
        [5.5],
        [9.5],
        [2],
        [12],
    ]


def test_a_width_of_running_rollouts_leaves_the_learner_behind():
    """Two workers of 2 s a rollout, a learner of 5 s a rollout: what it takes grows old."""
    cluster = small({"admission": FixedWidth(2, "running"), "steps": 3, "learner.base_s": 5.0, "sync.mode": "in_place"})
    run = played(cluster, [2] * 40)
    assert takes(run) == [(2, 0), (7, 1), (12, 2)]
    assert run.books.groups.start_version[[0, 1, 2]].tolist() == [0, 0, 0]
    assert run.books.groups.take_version[[0, 1, 2]].tolist() == [0, 1, 2]
