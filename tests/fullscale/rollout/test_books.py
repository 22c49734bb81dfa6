"""The books by hand: what starts, what is taken, what is dropped, and what a saved state holds."""

import json

import pytest

from fullscale.rollout.books import PlayersFailed
from fullscale.rollout.ledger import Ticket
from sim.cluster.scheduling import Aimd, Capacity, FixedWidth, MaxStaleness, Order
from tests.fullscale.rollout.driving import books, drive, started


def numbers(tickets):
    return [ticket.number for ticket in tickets]


def finish(of, ticket, oldest=None, newest=None):
    """Complete a ticket; its value says which play it was."""
    oldest = ticket.version if oldest is None else oldest
    return of.complete(ticket, oldest, oldest if newest is None else newest, f"{ticket.number}.{ticket.play}")


def values(batch):
    return None if batch is None else [held.value for held in batch]


# --- taking -----------------------------------------------------------------------------------------------------------


def test_a_batch_is_handed_over_when_it_is_whole_oldest_first():
    of = books()
    a, b = started(of)
    finish(of, b)
    assert of.take() is None
    finish(of, a)
    assert values(of.take()) == ["0.0", "1.0"]
    assert of.take() is None
    counts = of.counts()
    assert counts.pop("taken") == 2
    assert set(counts.values()) == {0}


@pytest.mark.parametrize(("window", "taken"), [(1, None), (2, None), (3, ["1.0", "2.0"]), (None, ["2.0", "3.0"])])
def test_the_window_says_which_complete_ones_may_be_taken(window, taken):
    """0 runs; 3, 2 and 1 are complete, in that order."""
    of = books(Capacity(1), Order(window))
    for ticket in reversed(started(of)[1:]):
        finish(of, ticket)
    assert values(of.take()) == taken


def test_what_is_set_aside_makes_room_in_a_queue_at_once():
    of = books(FixedWidth(2))
    a, _ = started(of)
    finish(of, a)
    assert started(of) == []
    assert of.take() is None
    assert numbers(started(of)) == [2]
    assert of.fates() == {0: "complete", 1: "running", 2: "running"}


def test_a_batch_that_reached_nobody_is_the_next_one_again():
    of = books(Capacity(1))
    for ticket in started(of):
        finish(of, ticket)
    of.put_back(of.take())
    assert of.fates() == dict.fromkeys(range(4), "complete")
    assert [values(of.take()), values(of.take())] == [["0.0", "1.0"], ["2.0", "3.0"]]
    assert of.taken == {0: 0, 1: 0, 2: 1, 3: 1}


def test_groups_count_as_their_rollouts():
    """Eight rollouts a batch of two groups: with half a batch ahead three groups may be in flight."""
    assert numbers(started(books(Capacity(0.5), group=4))) == [0, 1, 2]
    assert numbers(started(books(FixedWidth(11), group=4))) == [0, 1]
    assert numbers(started(books(Capacity(5), group=4, concurrent=2))) == [0, 1]


# --- age --------------------------------------------------------------------------------------------------------------


def aged(drop, version, spans):
    """Books at a version with one complete group for each (oldest, newest)."""
    of = books(Capacity(20), drop=drop, batch=len(spans))
    for ticket, (oldest, newest) in zip(started(of), spans, strict=False):
        finish(of, ticket, oldest, newest)
    of.publish(version)
    return of


@pytest.mark.parametrize(("by", "kept"), [("oldest", [1, 2]), ("newest", [1, 2, 3])])
def test_age_is_that_of_the_oldest_or_of_the_newest_version(by, kept):
    of = aged(MaxStaleness(1, by), 3, [(0, 1), (2, 2), (3, 3), (0, 3)])
    assert sorted(of.ready) == kept


def test_without_a_version_a_group_is_as_old_as_its_start():
    """Not knowing is no lag of 0."""
    of = books(Capacity(20), drop=MaxStaleness(1, running=False))
    first, second = of.start(), of.start()
    of.publish(1)
    third = of.start()
    assert finish(of, first, -1)
    of.publish(2)
    assert not finish(of, second, -1)
    assert finish(of, third, -1)
    assert of.fates()[first.number] == of.fates()[second.number] == "dropped"


def test_what_is_dropped_while_it_runs_comes_back_to_nobody():
    of = books(Capacity(1), drop=MaxStaleness(0, then="requeue"))
    old = started(of)
    assert of.publish(1) == old
    assert of.counts()["abandoned"] == 4
    new = started(of)
    assert [(t.number, t.play, t.position, t.version) for t in new[:5]] == [
        *((n, 1, 4 + n, 1) for n in range(4)),
        (4, 0, 8, 1),
    ]
    assert not finish(of, old[0])
    assert not of.fail(old[1], "given up")
    assert of.counts()["abandoned"] == 2
    for ticket in new[:2]:
        finish(of, ticket)
    assert values(of.take()) == ["0.1", "1.1"]


def test_the_newest_of_what_runs_is_not_known():
    of = books(Capacity(1), drop=MaxStaleness(0, by="newest"))
    first = started(of)[0]
    assert of.publish(3) == []
    assert finish(of, first, 0, 3)


def test_versions_never_fall():
    of = books()
    of.publish(3)
    assert of.publish(3) == []
    with pytest.raises(ValueError, match="version = 2 must be at least 3"):
        of.publish(2)


# --- failures ---------------------------------------------------------------------------------------------------------


def test_one_that_failed_is_replaced_by_a_fresh_one():
    of = books(concurrent=1)
    assert of.fail(of.start(), "RuntimeError: no server")
    finish(of, of.start())
    finish(of, of.start())
    assert values(of.take()) == ["1.0", "2.0"]
    assert (of.fates()[0], of.failed) == ("failed", {0: "RuntimeError: no server"})


def test_failures_in_a_row_stop_all_that_starts_until_somebody_knows():
    of = books(Capacity(9), failures=2)
    first = of.start()
    of.fail(first, "a")
    finish(of, of.start())
    of.fail(of.start(), "b")
    assert of.take() is None  # one was played in between
    of.fail(of.start(), "c")
    assert (of.start(), of.stuck()) == (None, None)
    with pytest.raises(PlayersFailed, match=r"2 groups in a row .* ticket 2: b; ticket 3: c"):
        of.take()
    assert of.take() is None
    assert of.start().number == 4


def test_without_a_limit_failures_are_replaced_for_ever():
    of = books(failures=None)
    for n in range(50):
        assert of.start().number == n
        of.fail(Ticket(n, 0, n, 0), "x")
    assert of.take() is None


# --- an end -----------------------------------------------------------------------------------------------------------


def test_a_batch_that_cannot_come_is_said_to_be_so():
    of = books(tickets=3)
    assert of.stuck() is None  # two may start
    for ticket in started(of):
        finish(of, ticket)
    of.take()
    assert of.take() is None
    assert "with version 0 published Capacity(eta=0.0) lets 0 rollouts start" in of.stuck()
    of.publish(1)
    assert of.stuck() is None
    finish(of, of.start())
    assert of.take() is None
    assert of.stuck().startswith("1 of the 2 groups of a batch are missing and nothing runs: all 3 tickets are spent")


# --- a state ----------------------------------------------------------------------------------------------------------


def eventful():
    """Two taken, one complete, one set aside, one running, one failed, one dropped and to be played again."""
    of = books(Capacity(3), Order(3), MaxStaleness(1, running=False, then="requeue"))
    t = started(of)
    finish(of, t[0])
    finish(of, t[1])
    of.take()
    finish(of, t[2])
    of.fail(t[3], "late")
    of.take()  # sets 2 aside
    of.publish(2)
    finish(of, t[4])  # too old
    finish(of, t[7], 2)
    return of


def test_a_state_goes_through_json_and_plays_again_what_ran_in_its_place():
    of = eventful()
    fates = of.fates()
    assert [fates[n] for n in range(8)] == [*["taken"] * 2, "complete", "failed", "again", *["running"] * 2, "complete"]
    resumed = books(Capacity(3), Order(2), of.drop)
    resumed.load(json.loads(json.dumps(of.state())))
    assert resumed.fates() == fates | {5: "again", 6: "again"}
    tickets = started(resumed)
    assert [(t.number, t.play, t.position) for t in tickets[:4]] == [(5, 0, 5), (6, 0, 6), (4, 1, 8), (8, 0, 9)]
    assert resumed.take() is None  # 7 is third after the head, 5
    finish(resumed, tickets[0])
    assert values(resumed.take()) == ["2.0", "5.0"]
    finish(resumed, tickets[1])
    assert values(resumed.take()) == ["6.0", "7.0"]
    assert resumed.taken == {0: 0, 1: 0, 2: 1, 5: 1, 6: 2, 7: 2}


def test_saved_at_once_again_a_state_is_the_same():
    of = books(Capacity(3), Order(3))
    of.load(eventful().state())
    again = books(Capacity(3), Order(3))
    again.load(of.state())
    assert again.state() == of.state()
    assert of.state()["again"] == [[5, 0, 5], [6, 0, 6], [4, 1, None]]


def test_a_state_that_is_not_whole_is_refused():
    whole = eventful().state()
    for wrong in (
        {name: x for name, x in whole.items() if name != "part"},
        whole | {"running": []},
        whole | {"taken": [*whole["taken"], [2, 1]]},
        whole | {"cursor": 5},
    ):
        with pytest.raises(ValueError, match="no whole state"):
            books().load(wrong)
    used = books()
    used.start()
    with pytest.raises(ValueError, match="1 tickets were given out already"):
        used.load(whole)


# --- arguments --------------------------------------------------------------------------------------------------------


def test_what_could_never_work_is_refused():
    for wrong, words in (
        ({"group": 0}, "group = 0 must be at least 1"),
        ({"failures": 0}, "failures = 0 must be at least 1"),
        ({"admission": FixedWidth(3), "group": 4}, "width = 3 rollouts must be at least a group of 4"),
        ({"admission": FixedWidth(9), "order": Order(3), "group": 4}, "window = 3 groups is above the queue of 2"),
    ):
        with pytest.raises(ValueError, match=words):
            books(**wrong)
    with pytest.raises(TypeError, match="must be a Capacity or a FixedWidth"):
        books(Aimd(4, 8))


def test_a_ticket_is_over_once():
    of = books()
    ticket = of.start()
    finish(of, ticket)
    for again in (lambda: finish(of, ticket), lambda: of.fail(ticket, "x"), lambda: finish(of, Ticket(7, 0, 7, 0))):
        with pytest.raises(ValueError, match="does not run"):
            again()
    with pytest.raises(ValueError, match="oldest = 2 must not be above newest = 1"):
        finish(of, of.start(), 2, 1)
    assert of.fates() == {0: "complete", 1: "running"}


def test_the_clock_of_these_tests():
    """Fast ones take 1, steps 2: without a batch ahead a step begins every 3."""
    of = books()
    assert drive(of, lambda number: 1.0, 3, 2.0) == [0, 1, 2, 3, 4, 5]
    assert of.version == 2
