"""Runs whose groups are played beside the learner: nothing trained twice or lost, nothing left running."""

import os
import signal
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from fullscale.agent.schedules import Asynchronous
from fullscale.agent.setup import Sampler
from fullscale.engine.servers import OwnLlama
from fullscale.rollout.books import PlayersFailed
from fullscale.rollout.conductor import Conductor
from minimodel.agent.optimiser import AdamW
from sim.cluster.scheduling import Capacity, MaxStaleness
from sim.learning.setup import Evaluation
from sim.records.config import ConfigError
from tests.fullscale.agent.small import ASKED, begin, small_world, training
from tests.fullscale.rollout.players import PATIENCE_S

SIZES = {"prompts": 2, "group": 2, "steps": 4, "optimiser": AdamW(1e-3)}


def config(schedule=None, **changes):
    return training(**SIZES | {"schedule": schedule or Asynchronous(admission=Capacity(eta=1.0))} | changes)


@pytest.fixture
def trained(monkeypatch):
    """(number, play) of the tickets of every batch that was taken."""
    found, take = [], Conductor.take

    def taking(self, *given):
        batch = take(self, *given)
        found.append([(ticket.number, ticket.play) for ticket, _ in batch])
        return batch

    monkeypatch.setattr(Conductor, "take", taking)
    return found


@contextmanager
def nothing_left():
    """No thread that plays outlives what is done here."""
    before = set(threading.enumerate())
    yield
    left = [t for t in set(threading.enumerate()) - before if t.is_alive() and t.name.startswith("rollout")]
    assert left == []


def go(c, folder=None, report=None, prepare=None):
    with small_world(), nothing_left():
        run = begin(c, folder)
        if prepare is not None:
            prepare(run)
        return run, run.go(report)


def waiting_for(run, **least):
    """Wait until the books hold at least so many."""
    until = time.monotonic() + PATIENCE_S
    while any(run.collector.conductor.counts()[name] < n for name, n in least.items()):
        assert time.monotonic() < until, run.collector.conductor.counts()
        time.sleep(0.002)


# --- a run ------------------------------------------------------------------------------------------------------------


def test_groups_are_taken_in_order_each_once_and_are_as_old_as_admitted(trained):
    _, columns = go(config(watched=2, evaluation=Evaluation(every=2, prompts=2, group=1)))
    assert trained == [[(2 * u, 0), (2 * u + 1, 0)] for u in range(4)]
    assert columns["staleness/oldest"][0] == columns["staleness/newest"][0] == 0
    assert columns["staleness/oldest"].max() <= 1
    assert (columns["staleness/newest"] <= columns["staleness/token_mean"]).all()
    assert (columns["staleness/token_mean"] <= columns["staleness/oldest"]).all()
    assert (columns["staleness/coverage"] == 1).all()
    assert (columns["mismatch/mean"] < 1e-4).all()
    assert (columns["mismatch/mean"] > 0).all()
    assert (columns["train/arrived_share"] == 1).all()
    assert (np.diff(columns["update/moved"]) != 0).all()
    assert np.isfinite(columns["eval/reward"][[0, 2]]).all()


def test_a_version_old_is_what_waited_for_a_step(trained):
    """The next batch is whole before the learner goes on: it was written by the version before."""
    made = []

    def report(row):
        if row["step"] < 3:
            waiting_for(made[0], complete=2)

    _, columns = go(config(), report=report, prepare=made.append)
    assert columns["staleness/oldest"].tolist() == [0, 1, 1, 1]
    assert columns["staleness/token_mean"].tolist() == [0, 1, 1, 1]
    assert columns["drift/ratio/token/distance"].min() > 0


def test_what_a_ticket_plays_is_named_by_its_number_alone(trained):
    """Whatever was under way when, group 3 of version 0 is group 3."""
    played = []
    for _ in range(2):

        def prepare(run):
            run.keep_version(0)
            waiting_for(run, complete=4)
            played.append([held.value for held in run.collector.conductor._books.ready.values()])
            run.collector.__exit__(None, None, None)

        with small_world():
            prepare(begin(config()))
    for a, b in zip(*played, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.logp, b.logp)
    assert len({x.ids.tobytes() for x in played[0]}) == 4


def test_questions_come_again_in_another_order():
    with small_world():
        collector = begin(config()).collector
    epochs = [[collector._question(9 * e + i).id for i in range(9)] for e in range(3)]
    assert all(sorted(epoch) == sorted(q.id for q in ASKED) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


# --- what is too old --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["discard", "requeue"])
def test_what_is_too_old_is_dropped_and_never_trained(then, trained):
    """Two batches are ready when the learner publishes: the second is a version old then, and one is the bound of none."""
    made = []
    schedule = Asynchronous(admission=Capacity(eta=2.0), drop=MaxStaleness(0, then=then))

    def report(row):
        if row["step"] == 0:
            waiting_for(made[0], complete=2)

    _, columns = go(config(schedule, steps=3), report=report, prepare=made.append)
    assert (columns["staleness/oldest"] == 0).all()
    flat = [number for step in trained for number, _ in step]
    assert len(set(flat)) == len(flat) == 6
    again = [play for step in trained for _, play in step]
    if then == "discard":
        assert again == [0] * 6
        assert flat[2] >= 4  # 2 and 3 waited, and were dropped
    else:
        assert trained[1] == [(2, 1), (3, 1)]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_group_played_again_has_fresh_luck(seed):
    with small_world():
        collector = begin(config(), seed=seed).collector
    once, again = (collector._draws(name).block("token", 2, 3) for name in ("train", "train/1"))
    assert (once != again).all()


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_players_that_fail_again_and_again_end_the_run(caplog):
    def breaking(run):
        def refuse(question):
            raise LookupError(f"no words for {question.id}")

        run.parts.dialogue.prompt = refuse

    with pytest.raises(PlayersFailed, match=r"8 groups in a row could not be played.*LookupError: no words for"):
        go(config(), prepare=breaking)
    assert len(caplog.records) >= 8


def test_a_play_that_fails_is_replaced_by_another(trained, caplog):
    def breaking(run):
        shipped, failing = run.parts.dialogue.prompt, iter([True, False])

        def once(question):
            if next(failing, False):
                raise LookupError("not now")
            return shipped(question)

        run.parts.dialogue.prompt = once

    go(config(steps=2), prepare=breaking)
    assert trained == [[(1, 0), (2, 0)], [(3, 0), (4, 0)]]


def test_an_error_of_the_learner_ends_the_players():
    def failing(run):
        run.learner.step = lambda *given: 1 / 0

    with pytest.raises(ZeroDivisionError):
        go(config(), prepare=failing)


def test_an_interrupt_is_saved_and_ends_the_players(tmp_path, trained):
    c = config(save_every=100)
    with pytest.raises(KeyboardInterrupt):
        go(c, tmp_path, lambda row: row["step"] == 1 and os.kill(os.getpid(), signal.SIGINT))
    go(c, tmp_path)
    assert trained == [[(2 * u, 0), (2 * u + 1, 0)] for u in range(4)]


def test_more_workers_ask_for_a_server():
    with pytest.raises((ConfigError, ValueError), match="server"):
        config(Asynchronous(workers=2))
    assert config(Asynchronous(workers=2), sampler=Sampler(server=OwnLlama())).schedule.workers == 2
    with pytest.raises((ConfigError, ValueError), match="workers = 0 must be at least 1"):
        Asynchronous(workers=0)
