"""Players of no model, who end when they are told to, and a conductor that leaves no thread behind."""

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from fullscale.rollout.conductor import Conductor

__all__ = ["PATIENCE_S", "Player", "Said", "conducting", "until"]

PATIENCE_S = 10.0
"""How long a test waits for what is about to happen before it fails."""


@dataclass(frozen=True, eq=False)
class Said:
    """What a player says: a token of each of some versions."""

    said: Any
    version: np.ndarray
    sampled: np.ndarray


class Player:
    """Plays a ticket until its number is told to end.

    `raising` has what is raised instead of an answer when a number is played first, `versions` who wrote it (else the
    version published when the ticket started), `says` what is said of a ticket (else its number).
    """

    def __init__(self, raising=None, versions=None, says=lambda ticket: ticket.number):
        self.raising, self.versions, self.says = raising or {}, versions or {}, says
        self.changed, self.ended, self.begun, self.everybody = threading.Condition(), set(), [], False

    def __call__(self, ticket):
        with self.changed:
            self.begun.append(ticket)
            self.changed.notify_all()
            assert self.changed.wait_for(lambda: self.everybody or ticket.number in self.ended, PATIENCE_S)
        if ticket.play == 0 and ticket.number in self.raising:
            raise self.raising[ticket.number]
        version = np.array(self.versions.get(ticket.number, [ticket.version]))
        return Said(self.says(ticket), version, np.ones(len(version), np.bool_))

    def end(self, *numbers):
        with self.changed:
            self.ended.update(numbers)
            self.changed.notify_all()

    def end_all(self):
        with self.changed:
            self.everybody = True
            self.changed.notify_all()

    def has_begun(self, count):
        """Wait until so many plays have begun; return their tickets by number."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, PATIENCE_S)
            return sorted(self.begun, key=lambda ticket: ticket.position)


def until(conductor, **counts):
    """Wait until so many tickets are there."""
    end = time.monotonic() + PATIENCE_S
    while (found := conductor.counts()) | counts != found:
        assert time.monotonic() < end, f"{found} never had {counts}"
        time.sleep(0.001)


@contextmanager
def conducting(player, books, workers=8):
    """Conduct a player; when the test is over all that play end, and no thread is left."""
    before = set(threading.enumerate())
    conductor = Conductor(player, books, workers)
    try:
        yield conductor
    finally:
        player.end_all()
        conductor.close(PATIENCE_S)
    assert set(threading.enumerate()) <= before
