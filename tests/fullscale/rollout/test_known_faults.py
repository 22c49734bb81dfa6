"""Known faults of asynchronous systems, each with its right value; see ``tests/test_known_faults.py``.

``known_fault_mutations.py`` puts each into the shipped code, and the last test here shows that its test then fails.
"""

import json

import numpy as np
import pytest

from fullscale.rollout.staleness import span, staleness
from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Order
from sim.records.rng import uniforms
from tests.fullscale.rollout.driving import books, drive, started
from tests.fullscale.rollout.known_fault_mutations import MUTATIONS
from tests.fullscale.rollout.players import PATIENCE_S, Player, conducting, until
from tests.mutations import fails_under

# --- versions ---------------------------------------------------------------------------------------------------------

THIRDS = np.repeat([3, 4, 5], [10, 30, 60])


def test_f23_staleness_is_judged_by_token():
    found = staleness(THIRDS, np.ones(100, np.bool_), 6)
    assert list(found.values()) == [3, 1, 1.5, 1]


def test_f23_a_version_that_nobody_noted_is_no_lag_of_zero():
    unknown = np.where(THIRDS == 3, -1, THIRDS)
    found = staleness(unknown, np.ones(100, np.bool_), 6)
    assert list(found.values()) == [2, 1, pytest.approx(6 - (30 * 4 + 60 * 5) / 90), 0.9]


def test_f23_a_group_without_a_version_is_as_old_as_its_start():
    of = books(drop=MaxStaleness(0, running=False))
    ticket = of.start()
    of.publish(1)
    assert not of.complete(ticket, *span(np.full(4, -1), np.ones(4, np.bool_)), None)
    assert of.fates() == {0: "dropped"}


# --- what is trained --------------------------------------------------------------------------------------------------


def half_of_them_slow(admission, order, drop=None):
    """Steps of 2 s on two groups; even tickets take one step, odd ones live through three versions."""
    of = books(admission, order, drop)
    trained = drive(of, lambda number: 8.5 if number % 2 else 2.0, 20, 2.0)
    return of, np.mean(np.array(trained) % 2), of.survivorship(lambda number: number % 2, ("fast", "slow"))


def test_f24_admission_control_trains_slow_prompts_as_often_as_fast_ones():
    of, share, report = half_of_them_slow(Capacity(2), Order(1))
    assert share == 0.5
    assert of.plays_dropped == 0
    assert [(row.name, row.trained, row.ratio) for row in report] == [("fast", 20, 1), ("slow", 20, 1)]


def test_f24_a_discard_that_was_chosen_reports_what_it_costs():
    for then in ("discard", "requeue"):
        drop = MaxStaleness(2, then=then)
        of, share, (fast, slow) = half_of_them_slow(FixedWidth(40, "running"), Order(None), drop)
        assert share == 0
        assert (slow.trained, slow.ratio) == (0, 0)
        assert slow.started > 30
        assert fast.ratio > 1.9
        assert of.plays_dropped >= slow.started


# --- what may start ---------------------------------------------------------------------------------------------------


def test_f25_the_rule_of_capacity():
    def allowed(eta, taken=0, running=0):
        of = books(Capacity(eta), batch=8)
        tickets = [of.start() for _ in range(taken + running)]
        assert None not in tickets
        for ticket in tickets[:taken]:
            of.complete(ticket, 0, 0, None)
        if taken:
            of.take()
            of.publish(1)
        return of.allowed()

    assert [allowed(0), allowed(0, running=8), allowed(0, taken=8), allowed(2)] == [8, 0, 8, 24]


def test_f25_the_quota_is_asked_for_again_whatever_happens():
    """Five run, six with the one complete fill the queue: a take, a drop, a failure each let one more start."""
    of = books(FixedWidth(6), Order(None), MaxStaleness(1, running=False), batch=1)
    t = started(of)
    of.complete(t[0], 0, 0, None)
    assert (len(t), started(of)) == (6, [])
    of.take()
    assert [x.number for x in started(of)] == [6]
    of.fail(t[1], "x")
    assert [x.number for x in started(of)] == [7]
    of.complete(t[2], 0, 0, None)
    assert started(of) == []
    of.publish(2)
    assert [x.number for x in started(of)] == [8]
    of.complete(t[3], 0, 0, None)  # too old when it ends
    assert [x.number for x in started(of)] == [9]


# --- what is waited for -----------------------------------------------------------------------------------------------


def test_f26_a_wait_that_timed_out_eats_nothing():
    """The learner waits in vain, before and after the first of A, B and C has ended; it gets A and B, and C stays."""
    player = Player()
    with conducting(player, books(Capacity(1))) as conductor:
        for complete in (0, 1):
            player.end(*range(complete))
            until(conductor, complete=complete)
            with pytest.raises(TimeoutError, match=f"waited in vain for a batch: .*'complete': {complete}"):
                conductor.take(timeout_s=0.0)
        player.end(1, 2)
        until(conductor, running=1)
        assert [ticket.number for ticket, _ in conductor.take(PATIENCE_S)] == [0, 1]
        assert conductor.counts()["complete"] == 1


def test_f27_a_slot_is_free_again_when_its_player_raises():
    player = Player(raising={0: RuntimeError("no server"), 1: SystemExit(3)})
    with conducting(player, books(concurrent=1), workers=1) as conductor:
        player.end(0)
        player.has_begun(1)
        conductor.drain(PATIENCE_S)
        assert conductor.counts()["running"] == 0
        conductor.resume()
        player.end_all()
        assert [ticket.number for ticket, _ in conductor.take(PATIENCE_S)] == [2, 3]
        assert conductor.state()["failed"] == [[0, "RuntimeError: no server"], [1, "SystemExit: 3"]]


# --- randomness and going on ------------------------------------------------------------------------------------------


def luck(ticket):
    return uniforms(5, f"rollout/{ticket.play}", ticket.number, (8,))


def test_f28_neither_order_nor_number_of_workers_changes_a_sample():
    found = []
    for ends, workers in (([0, 1, 2, 3], 1), ([3, 1, 0, 2], 4)):
        player = Player(says=lambda ticket: luck(ticket))
        with conducting(player, books(order=Order(None), batch=4), workers) as conductor:
            for complete, number in enumerate(ends, 1):
                player.end(number)
                until(conductor, complete=complete)
            found.append([played.said for _, played in conductor.take(PATIENCE_S)])
    np.testing.assert_array_equal(found[0], found[1])
    assert len(np.unique(found[0])) == 32


def test_f30_what_was_under_way_at_a_save_is_trained_once():
    """Tickets 0..7, two a step, four at once; saved in the second step, with 4 complete, and gone on with elsewhere."""
    under_way, trained = [], []

    def play(of, *ends):
        under_way.extend(started(of))
        for ticket in [t for t in under_way if t.number in ends]:
            of.complete(ticket, of.version, of.version, luck(ticket).tolist())
            under_way.remove(ticket)

    def step(of):
        trained.extend((held.ticket.number, held.value) for held in of.take() or ())
        of.publish(of.version + 1)

    of = books(Capacity(1), Order(None), concurrent=4, tickets=8)
    play(of, 3, 1)  # 0 and 2 are the long ones
    step(of)
    play(of, 4)
    state = json.loads(json.dumps(of.state()))
    assert (state["cursor"], [row[0] for row in state["running"]]) == (6, [0, 2, 5])
    resumed = books(Capacity(1), Order(None), concurrent=4, tickets=8)
    resumed.load(state)
    under_way.clear()
    for ends in ((0,), (5, 2), (6, 7)):
        play(resumed, *ends)
        step(resumed)
    assert sorted(number for number, _ in trained) == list(range(8))
    assert all(said == uniforms(5, "rollout/0", number, (8,)).tolist() for number, said in trained)
    assert resumed.counts()["taken"] == 8


# --- the tests themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mutate"),
    [(n, m) for n, _, m in MUTATIONS],
    ids=[f"{n.split('_')[1]}: {fault}" for n, fault, _ in MUTATIONS],
)
def test_the_mutation_makes_its_test_fail(name, mutate, request, monkeypatch):
    fails_under(mutate, name, globals(), request, monkeypatch)


def test_every_fault_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == {name for name in globals() if name.startswith("test_f")}
