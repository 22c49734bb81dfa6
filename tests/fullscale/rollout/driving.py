"""Books without threads: a short way to write them, a clock of events to drive them, and a simulated run to replay."""

from heapq import heappop, heappush
from itertools import count

import numpy as np

from fullscale.rollout.books import Books
from sim.cluster.events import Kind
from sim.cluster.scheduling import Capacity, Order

__all__ = ["books", "drive", "recorded", "replay", "started"]


def books(admission=None, order=None, drop=None, **sizes):
    """Books of single rollouts, two a step, many at once, unless told otherwise."""
    sizes = {"group": 1, "batch": 2, "concurrent": 100} | sizes
    return Books(Capacity(0) if admission is None else admission, order or Order(1), drop, **sizes)


def started(of):
    """All tickets that may start now."""
    return list(iter(of.start, None))


def drive(of, duration_s, steps, step_s):
    """Play and train on a clock without threads, and return the numbers trained.

    Ticket n takes `duration_s(n)`, a step `step_s`, at whose end a version is published. At one instant what ends is entered
    in the order in which it began.
    """
    calendar, serial, trained, collecting, now = [], count().__next__, [], True, 0.0

    def advance():
        nonlocal collecting
        if collecting and (batch := of.take()) is not None:
            trained.extend(held.ticket.number for held in batch)
            collecting = False
            heappush(calendar, (now + step_s, serial(), None))
        for ticket in started(of):
            heappush(calendar, (now + duration_s(ticket.number), serial(), ticket))

    advance()
    while len(trained) < steps * of.batch:
        now, _, ticket = heappop(calendar)
        if ticket is None:
            of.publish(of.version + 1)
            collecting = True
        else:
            of.complete(ticket, ticket.version, of.version, ticket.number)
        advance()
    return trained


def replay(run, of):
    """Give books what a simulated run's players and learner did, when they did it; return (admissions, takes).

    An admission is (t, prompt, play, position, version), a take (step, positions).
    """
    rollouts, log, tickets, ended, admitted, taken = run.books.rollouts, run.log, {}, {}, [], []
    collecting, group = False, run.cluster.workload.group

    def advance(t_s):
        nonlocal collecting
        if collecting and (batch := of.take()) is not None:
            taken.append((len(taken), [held.ticket.position for held in batch]))
            collecting = False
        for ticket in started(of):
            tickets[ticket.position] = ticket
            admitted.append((t_s, ticket.number, ticket.play, ticket.position, ticket.version))

    advance(0.0)
    collecting = True  # the simulator admits first, and then its learner begins to ask
    advance(0.0)
    asks_after = Kind.TRAIN_END if run.cluster.sync.mode == "in_place" else Kind.VERSION
    for event in log:
        if event.kind == Kind.STOP:
            break
        if event.kind == Kind.TRAJ_END:
            ended[event.entity] = ended.get(event.entity, 0) + 1
            if ended[event.entity] == group:
                mine = rollouts.group == event.entity
                oldest, newest = rollouts.oldest[mine], rollouts.newest[mine]
                of.complete(tickets[event.entity], int(oldest.min()), int(newest.max()), event.entity)
                advance(event.t_s)
        elif event.kind == Kind.VERSION:
            of.publish(event.version)
            advance(event.t_s)
        if event.kind == asks_after and len(taken) < run.cluster.steps:
            collecting = True
            advance(event.t_s)
    return admitted, taken


def recorded(run):
    """What the simulator did, in the form of :func:`replay`."""
    log, g = run.log, run.books.groups
    admitted = [
        (event.t_s, int(g.prompt[event.entity]), int(g.play[event.entity]), event.entity, event.version)
        for event in log
        if event.kind == Kind.GROUP_ADMIT
    ]
    steps = range(run.cluster.steps)
    taken = [(step, np.flatnonzero(g.taken & (g.take_version == step)).tolist()) for step in steps]
    return admitted, taken
