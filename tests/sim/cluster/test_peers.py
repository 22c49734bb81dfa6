"""The peers of the benchmarks simulate the same cluster: else a ratio of times says nothing."""

import numpy as np
import pytest

from sim.cluster.run import run_plan
from tests.sim.cluster.peers.heap_loop import heap_loop
from tests.sim.cluster.peers.idiomatic import Idiomatic
from tests.sim.cluster.peers.setting import agents, drawn, outputs

CASES = {
    "as measured": agents(64, 200),
    "several engines": agents(400, 800),
    "the capacity rule binds": agents(64, 200, eta=0),
}


@pytest.fixture(scope="module", params=CASES.values(), ids=CASES)
def case(request):
    made, draws = drawn(request.param, seed=3)
    return made, draws, run_plan(made, draws, "simpy").books


@pytest.mark.parametrize("race", [True, False], ids=["race", "foreseen"])
def test_idiomatic_model_gives_the_same_outputs(case, race):
    made, draws, books = case
    ours, theirs = outputs(books), Idiomatic(made, draws, race=race).run()
    np.testing.assert_allclose(theirs.end_s, ours.end_s, rtol=1e-9)
    np.testing.assert_array_equal(theirs.start_version, ours.start_version)
    np.testing.assert_array_equal(theirs.take_version, ours.take_version)
    assert theirs.stop_s == pytest.approx(ours.stop_s, rel=1e-9)


def test_heap_loop_gives_the_same_outputs_bit_for_bit(case):
    made, draws, books = case
    ours, theirs = outputs(books), heap_loop(made, draws)
    np.testing.assert_array_equal(theirs.end_s, ours.end_s)
    np.testing.assert_array_equal(theirs.start_version, ours.start_version)
    np.testing.assert_array_equal(theirs.take_version, ours.take_version)
    assert theirs.stop_s == ours.stop_s


def test_everything_that_is_to_be_compared_happens(case):
    """Rollouts end, time out, are taken; without this the comparisons above could be of nothing."""
    made, _, books = case
    assert np.isfinite(outputs(books).end_s).sum() >= made.cluster.steps * made.cluster.learner.batch
    assert books.pools.timeouts.sum() > 0
    assert books.steps.rollouts.sum() > 100
    assert not books.groups.dropped.any()


def least_running(books):
    """The fewest rollouts that run at any instant before the last, once all that happens at it has happened."""
    times, first = np.unique(np.concatenate([books.rollouts.start_s, books.rollouts.end_s]), return_inverse=True)
    change = np.repeat([1, -1], len(books.rollouts))
    return np.cumsum(np.bincount(first, change))[:-1].min() if len(times) > 1 else 0


def test_slots_are_the_limit(case):
    """As measured, less than a group of slots is ever free; a small eta leaves many empty."""
    made, _, books = case
    free = made.cluster.slots - least_running(books)
    assert (free < 8) == (made.cluster.admission.eta > 0)


def test_staleness_is_not_zero_throughout():
    made, draws = drawn(CASES["as measured"], seed=3)
    found = heap_loop(made, draws)
    staleness = (found.take_version - found.start_version)[found.take_version >= 0]
    assert staleness.max() > staleness.min() >= 0
    assert staleness.mean() > 2


def test_lengths_change_and_times_do_not():
    made, draws = drawn(CASES["as measured"])
    more, longer = drawn(agents(64, 200, tokens=30_000.0))
    assert more.tokens.scale[0] == pytest.approx(100 * made.tokens.scale[0])
    np.testing.assert_allclose(heap_loop(more, longer).end_s, heap_loop(made, draws).end_s, rtol=1e-9)


def test_draws_are_made_beforehand_and_are_those_of_the_model():
    _, draws = drawn(CASES["as measured"], seed=3)
    assert draws.block(0) is draws.block(0)
    np.testing.assert_array_equal(draws.block(1).length, super(type(draws), draws).block(1).length)


def test_groups_with_too_few_members_are_dropped_alike():
    made, draws = drawn(agents(64, 200, timeout_s=6.0), seed=3)
    books = run_plan(made, draws, "simpy").books
    assert 0 < books.groups.dropped.mean() < 1
    np.testing.assert_array_equal(heap_loop(made, draws).end_s, outputs(books).end_s)
