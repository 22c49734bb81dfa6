"""Threads that play: what the learner gets, what it is told, and what a signal, a failure or an end leaves behind."""

import logging
import os
import signal
import threading

import numpy as np
import pytest

from fullscale.rollout.books import PlayersFailed
from fullscale.rollout.conductor import Conductor, Unwanted
from minimodel.agent.running import stopping_between_steps
from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Order
from tests.fullscale.rollout.driving import books
from tests.fullscale.rollout.players import PATIENCE_S, Player, conducting, until


def numbers(batch):
    return [ticket.number for ticket, _ in batch]


def all_at_once(**options):
    """A player whose plays end as soon as they begin."""
    player = Player(**options)
    player.end_all()
    return player


# --- batches ----------------------------------------------------------------------------------------------------------


def test_the_learner_gets_batch_after_batch_in_order():
    with conducting(all_at_once(), books()) as conductor:
        for step in range(5):
            batch = conductor.take(PATIENCE_S)
            assert numbers(batch) == [2 * step, 2 * step + 1]
            assert [played.said for _, played in batch] == numbers(batch)
            assert {ticket.version for ticket, _ in batch} == {step}
            assert conductor.published(step + 1) == []
        assert conductor.counts()["taken"] == 10


def test_it_waits_for_who_is_late_and_is_told_what_is_there():
    player, seen = Player(), []

    def waiting(counts):
        seen.append(counts["complete"])
        player.end(1 - counts["complete"])  # 1 first, then 0

    with conducting(player, books()) as conductor:
        assert numbers(conductor.take(PATIENCE_S, waiting)) == [0, 1]
    assert set(seen) >= {0, 1}


def test_one_worker_plays_one_after_the_other():
    player = Player()
    with conducting(player, books(Capacity(4)), workers=1) as conductor:
        for number in range(3):
            assert len(player.has_begun(number + 1)) == number + 1
            player.end(number)
        player.end(3)
        assert numbers(conductor.take(PATIENCE_S)) == [0, 1]
    assert [ticket.number for ticket in player.begun] == list(range(len(player.begun)))


def test_versions_are_read_from_what_was_played():
    """By token: 3 is dropped as its first tokens are two versions old, though it ends with a new one."""
    player = Player(versions={0: [0, 0, 1], 1: [2, 1], 2: [-1, 2, 2], 3: [0, 2]})
    drop = MaxStaleness(1, running=False)
    with conducting(player, books(Capacity(3), drop=drop), workers=4) as conductor:
        player.has_begun(4)
        player.end(0)
        until(conductor, complete=1)
        conductor.published(2)
        assert conductor.counts()["dropped"] == 1
        player.end(1, 2, 3)
        assert numbers(conductor.take(PATIENCE_S)) == [1, 2]
        until(conductor, dropped=2)
        assert conductor.state()["dropped"] == [[0, 2], [3, 2]]


# --- dropped while they run -------------------------------------------------------------------------------------------


def test_who_plays_what_is_too_old_may_give_up_and_is_ignored_if_not():
    player = Player()
    drop = MaxStaleness(0, then="requeue")
    with conducting(player, books(drop=drop), workers=2) as conductor:
        old = player.has_begun(2)
        assert all(map(conductor.wanted, old))
        player.raising = {0: Unwanted()}
        assert conductor.published(1) == old
        assert not any(map(conductor.wanted, old))
        assert conductor.counts()["abandoned"] == 2
        player.end(0)  # gives up
        until(conductor, abandoned=1)
        player.end(1)  # plays to the end
        batch = conductor.take(PATIENCE_S)
        assert [(ticket.number, ticket.play, ticket.version) for ticket, _ in batch] == [(0, 1, 1), (1, 1, 1)]
        assert conductor.counts()["failed"] == 0
        assert conductor.counts()["plays_dropped"] == 2


# --- what cannot come -------------------------------------------------------------------------------------------------


def test_who_takes_again_before_publishing_is_told():
    with conducting(all_at_once(), books()) as conductor:
        conductor.take(PATIENCE_S)
        with pytest.raises(RuntimeError, match=r"no batch can come: 2 of the 2 groups .* with version 0 published"):
            conductor.take(PATIENCE_S)
        conductor.published(1)
        assert numbers(conductor.take(PATIENCE_S)) == [2, 3]


def test_the_last_tickets_end_a_run():
    with conducting(all_at_once(), books(Capacity(9), tickets=3)) as conductor:
        conductor.take(PATIENCE_S)
        with pytest.raises(RuntimeError, match=r"1 of the 2 .* all 3 tickets are spent"):
            conductor.take(PATIENCE_S)


def test_failures_in_a_row_are_raised_with_their_reasons_and_logged(caplog):
    player = all_at_once(raising={n: ConnectionError(f"refused {n}") for n in range(3)})
    with caplog.at_level(logging.WARNING), conducting(player, books(failures=3), workers=1) as conductor:
        with pytest.raises(PlayersFailed, match=r"3 groups in a row .* ticket 2: ConnectionError: refused 2"):
            conductor.take(PATIENCE_S)
        assert numbers(conductor.take(PATIENCE_S)) == [3, 4]  # the server is back
    assert [record.getMessage() for record in caplog.records] == [f"ticket {n} failed" for n in range(3)]
    assert "refused 1" in caplog.text


def test_what_was_played_must_say_who_wrote_it():
    with Conductor(lambda ticket: "no versions", books(failures=1), 1) as conductor:
        with pytest.raises(PlayersFailed, match="AttributeError: 'str' object has no attribute 'version'"):
            conductor.take(PATIENCE_S)
        conductor.pause()


def test_a_thread_that_breaks_down_is_no_silence(monkeypatch):
    of = books()

    def broken(*_):
        raise ArithmeticError("a fault of ours")

    monkeypatch.setattr(of, "complete", broken)
    with conducting(all_at_once(), of, workers=1) as conductor:
        with pytest.raises(RuntimeError, match="a thread that plays has broken down") as raised:
            conductor.take(PATIENCE_S)
        assert isinstance(raised.value.__cause__, ArithmeticError)


# --- signals ----------------------------------------------------------------------------------------------------------


def test_ctrl_c_while_waiting_takes_nothing():
    player = Player()
    with conducting(player, books(), workers=2) as conductor:
        at_the_wait = threading.Event()

        def interrupt():
            assert at_the_wait.wait(PATIENCE_S)
            os.kill(os.getpid(), signal.SIGINT)

        sender = threading.Thread(target=interrupt)
        sender.start()
        player.end(0)
        until(conductor, complete=1)
        with pytest.raises(KeyboardInterrupt):
            conductor.take(PATIENCE_S, lambda counts: at_the_wait.set())
        sender.join()
        player.end(1)
        assert numbers(conductor.take(PATIENCE_S)) == [0, 1]


def interrupted_at(of, name, monkeypatch):
    """Let Ctrl-C come in the middle of a method of books, once."""
    shipped, left = getattr(of, name), [signal.SIGINT]

    def during(*given):
        found = shipped(*given)
        if left and found is not None:
            signal.raise_signal(left.pop())
        return found

    monkeypatch.setattr(of, name, during)


def test_ctrl_c_in_the_middle_of_taking_puts_the_batch_back(monkeypatch):
    of = books()
    interrupted_at(of, "take", monkeypatch)
    with conducting(all_at_once(), of) as conductor:
        with pytest.raises(KeyboardInterrupt):
            conductor.take(PATIENCE_S)
        assert conductor.counts()["complete"] == 2
        assert numbers(conductor.take(PATIENCE_S)) == [0, 1]


def test_ctrl_c_in_the_middle_of_publishing_comes_after_it(monkeypatch):
    of = books(drop=MaxStaleness(0))
    interrupted_at(of, "publish", monkeypatch)
    player = Player()
    with conducting(player, of, workers=2) as conductor:
        player.has_begun(2)
        with pytest.raises(KeyboardInterrupt):
            conductor.published(1)
        assert conductor.state()["version"] == 1
        assert conductor.counts()["dropped"] == 2


def test_a_run_that_stops_between_steps_is_not_torn_from_a_batch(monkeypatch):
    of = books()
    interrupted_at(of, "take", monkeypatch)
    with conducting(all_at_once(), of) as conductor, stopping_between_steps() as asked:
        assert numbers(conductor.take(PATIENCE_S)) == [0, 1]
        assert asked() == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


# --- pauses, states, ends ---------------------------------------------------------------------------------------------


def test_drained_nothing_runs_and_nothing_starts():
    player = Player()
    with conducting(player, books(FixedWidth(3)), workers=3) as conductor:
        player.has_begun(3)
        with pytest.raises(TimeoutError, match="waited in vain for the end of what runs"):
            conductor.drain(0.0)
        player.end_all()
        conductor.drain(PATIENCE_S)
        assert conductor.counts()["running"] == 0
        assert numbers(conductor.take(PATIENCE_S)) == [0, 1]
        with pytest.raises(
            RuntimeError, match="no batch can come: nothing is played, and nothing starts as this is paused"
        ):
            conductor.take(PATIENCE_S)
        conductor.resume()
        assert numbers(conductor.take(PATIENCE_S)) == [2, 3]


def test_every_state_of_a_busy_run_is_whole():
    """Eight workers, thirty steps, a state before and after each take: whatever it catches, all tickets are in it."""
    drop = MaxStaleness(0, then="requeue")
    caught = set()
    with conducting(all_at_once(), books(Capacity(2), Order(None), drop, batch=3)) as conductor:
        for step in range(30):
            for _ in range(2):
                fresh = books(Capacity(2), Order(None), drop, batch=3)
                fresh.load(conductor.state())
                caught |= set(fresh.fates().values())
            conductor.take(PATIENCE_S)
            conductor.published(step + 1)
        taken = conductor.state()["taken"]
    assert len({number for number, _ in taken}) == len(taken) == 90
    assert caught > {"taken"}


def test_a_run_goes_on_from_a_state_taken_while_it_plays():
    """0 is complete, 1 and 2 play; elsewhere 1 and 2 are played again and 0 is not."""
    player = Player()
    with conducting(player, books(Capacity(0.5)), workers=3) as conductor:
        player.has_begun(3)
        player.end(0)
        until(conductor, complete=1)
        state = conductor.state()
    resumed, again = books(Capacity(0.5)), all_at_once()
    resumed.load(state)
    with conducting(again, resumed, workers=1) as conductor:
        assert numbers(conductor.take(PATIENCE_S)) == [0, 1]
        until(conductor, complete=1)
    assert [(ticket.number, ticket.play) for ticket in again.begun] == [(1, 0), (2, 0)]


def test_an_end_waits_for_who_plays_and_keeps_what_they_bring():
    player = Player()
    with conducting(player, books(), workers=2) as conductor:
        begun = player.has_begun(2)
        with pytest.raises(TimeoutError, match=r"rollout-0, rollout-1 still play after 0\.0 s: .*'running': 2"):
            conductor.close(0.0)
        assert not any(map(conductor.wanted, begun))
        player.raising = {1: Unwanted()}
        player.end_all()
        conductor.close(PATIENCE_S)
        conductor.close()
        counts = conductor.counts()
        assert (counts["complete"], counts["running"], counts["failed"]) == (1, 1, 0)  # who gave up is under way
        with pytest.raises(
            RuntimeError, match="no batch can come: nothing is played, and nothing starts as this is closed"
        ):
            conductor.take(0.0)


def test_it_closes_by_itself_and_needs_somebody_to_play():
    with Conductor(all_at_once(), books(), 2) as conductor:
        conductor.take(PATIENCE_S)
        threads = conductor._threads
    assert not any(thread.is_alive() for thread in threads)
    assert [thread.name for thread in threads] == ["rollout-0", "rollout-1"]
    assert all(thread.daemon for thread in threads)
    with pytest.raises(ValueError, match="workers = 0 must be at least 1"):
        Conductor(np.zeros, books(), 0)
