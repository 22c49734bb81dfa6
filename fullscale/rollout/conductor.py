"""Threads that play groups while the learner updates, and hand them over in batches.

Workers wait at one condition, ask the books for a ticket, play it without the lock, and enter what came of it. The learner's
thread waits at a queue instead, and holds signals back for the moments in which it works on the books: Ctrl-C ends its
waiting, never an entry half made or a lock for ever taken.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from signal import raise_signal
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from fullscale.rollout.books import Books
from fullscale.rollout.ledger import Held, Ticket
from fullscale.rollout.staleness import span
from minimodel.agent.running import stopping_between_steps

__all__ = ["Conductor", "Unwanted", "Versioned"]

_log = logging.getLogger(__name__)

LOOK_UP_S = 0.2
"""Time after which a wait is begun anew: a signal may come in the moment before one begins, and would be seen at its end."""


class Versioned(Protocol):
    """Anything played that says who wrote it, such as :class:`fullscale.agent.rollouts.Played`."""

    @property
    def version(self) -> NDArray[np.int64]:
        """Version that wrote each token; -1 where nobody noted it."""
        ...

    @property
    def sampled(self) -> NDArray[np.bool_]:
        """Where the policy wrote, the same shape."""
        ...


V = TypeVar("V", bound=Versioned)
Waiting = Callable[[dict[str, int]], None]
"""Called with the counts of the books (:meth:`~fullscale.rollout.ledger.Ledger.counts`) whenever they changed."""


class Unwanted(Exception):  # noqa: N818  no error: the play is given up
    """Raised by a player that gives up a ticket which nobody wants any more (:meth:`Conductor.wanted`)."""


class Conductor(Generic[V]):
    """Plays groups in threads of its own, from its construction until it is closed.

    A player that raises, whatever it raises, fails its ticket; the reason is logged and kept in the books.

    Parameters
    ----------
    play
        Plays a group; called in several threads at once if there are several workers. All its luck should come from the
        ticket's number and play, so that it does not matter who plays it, or when.
    books
        What may start and what is taken; from now on nobody else's.
    workers
        Threads: one for an engine in this process, as many as groups may run at once for a server.
    """

    def __init__(self, play: Callable[[Ticket], V], books: Books[V], workers: int) -> None:
        if workers < 1:
            raise ValueError(f"workers = {workers} must be at least 1: nobody would play")
        self._play, self._books = play, books
        self._changed = threading.Condition()
        self._news: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._busy = 0
        self._paused = self._closed = False
        self._broken: BaseException | None = None
        self._threads = [threading.Thread(target=self._work, name=f"rollout-{i}", daemon=True) for i in range(workers)]
        for thread in self._threads:
            thread.start()

    # --- the learner's side -------------------------------------------------------------------------------------------

    def take(self, timeout_s: float | None = None, waiting: Waiting | None = None) -> list[tuple[Ticket, V]]:
        """Wait for the next batch and return it, the groups in the order in which they started.

        A call that ends in any other way, by Ctrl-C as well, has taken nothing: the next one gets what this would have.

        Raises
        ------
        TimeoutError
            When there is none after `timeout_s`; nothing is lost by calling again.
        PlayersFailed
            After as many failures in a row as the books allow.
        RuntimeError
            When the batch can never be whole; the message says why.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while (batch := self._take()) is None:
            if waiting is not None:
                waiting(self.counts())
            self._wait(until, "a batch")
        return batch

    def published(self, version: int) -> list[Ticket]:
        """Note that the engine samples with a version from now on; return the tickets it makes too old while they run."""
        with self._entering():
            dropped = self._books.publish(version)
        self._news.put(None)  # those behind what was dropped may be next
        return dropped

    def pause(self) -> None:
        """Start nothing more until :meth:`resume`; what runs goes on."""
        with self._entering():
            self._paused = True

    def resume(self) -> None:
        """Start again what may start."""
        with self._entering():
            self._paused = False

    def drain(self, timeout_s: float | None = None) -> None:
        """Pause, and wait until nobody plays.

        Raises
        ------
        TimeoutError
            When somebody still does after `timeout_s`; it stays paused.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        self.pause()
        while self._playing():
            self._wait(until, "the end of what runs")

    def state(self) -> dict[str, Any]:
        """Return the state of the books at this moment (:meth:`fullscale.rollout.ledger.Ledger.state`)."""
        with self._entering():
            return self._books.state()

    def counts(self) -> dict[str, int]:
        """Return how many tickets are where at this moment (:meth:`fullscale.rollout.ledger.Ledger.counts`)."""
        with self._entering():
            return self._books.counts()

    def close(self, timeout_s: float | None = None) -> None:
        """Start nothing more, wait for what runs, and end the threads; again does nothing.

        What completes meanwhile is in the books; players that ask are told that they may give up.

        Raises
        ------
        TimeoutError
            When somebody still plays after `timeout_s`. Such a thread ends with its play, or with the process.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._entering():
            self._closed = True
        for thread in self._threads:
            thread.join(None if until is None else max(until - time.monotonic(), 0.0))
        alive = [thread.name for thread in self._threads if thread.is_alive()]
        if alive:
            raise TimeoutError(f"{', '.join(alive)} still play after {timeout_s} s: {self.counts()}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the player's side --------------------------------------------------------------------------------------------

    def wanted(self, ticket: Ticket) -> bool:
        """Return whether a ticket that runs still is to be played; False once it was dropped, or the conductor closes.

        A player may ask now and then, and raise :class:`Unwanted` where it is not. What it returns of a dropped ticket is
        ignored in any case; one that is given up because of the end still counts as under way.
        """
        with self._changed:
            return not self._closed and self._books.running.get(ticket.position) == ticket

    def _work(self) -> None:
        """Play until the conductor is closed."""
        try:
            while (ticket := self._next()) is not None:
                self._enter(ticket)
        except BaseException as error:  # not a player's: this class is at fault, and whoever waits must know
            self._broken = error
            self._tell()

    def _next(self) -> Ticket | None:
        """Wait for a ticket; None when there will be no more."""
        with self._changed:
            while not self._closed:
                ticket = None if self._paused else self._books.start()
                if ticket is not None:
                    self._busy += 1
                    return ticket
                self._changed.wait()
            return None

    def _enter(self, ticket: Ticket) -> None:
        """Play a ticket and enter what came of it."""
        try:
            value = self._play(ticket)
            oldest, newest = span(value.version, value.sampled)
        except BaseException as error:
            if self._end(partial(self._failed, ticket, error)):
                _log.warning("ticket %d failed", ticket.number, exc_info=error)
        else:
            self._end(partial(self._books.complete, ticket, oldest, newest, value))

    def _failed(self, ticket: Ticket, error: BaseException) -> bool:
        """Enter a failure; return whether it counts."""
        dropped = ticket.position in self._books.abandoned
        if isinstance(error, Unwanted) and self._closed and not dropped:
            return False  # still under way, and played again by whoever loads the state
        return self._books.fail(ticket, f"{type(error).__name__}: {error}")

    def _end(self, entry: Callable[[], bool]) -> bool:
        with self._changed:
            self._busy -= 1
            found = entry()
        self._tell()
        return found

    # --- between the two ----------------------------------------------------------------------------------------------

    def _take(self) -> list[tuple[Ticket, V]] | None:
        """Return the next batch if it is whole; put it back where a signal comes before it is out of here."""
        batch: list[Held[V]] | None = None
        try:
            with self._entering():
                batch = self._books.take()
                if batch is None:
                    self._may_wait()
            return None if batch is None else [(held.ticket, held.value) for held in batch]
        except BaseException:
            if batch is not None:
                with self._entering():
                    self._books.put_back(batch)
            raise

    def _may_wait(self) -> None:
        """Raise where waiting for a batch would have no end."""
        if self._broken is not None:
            raise RuntimeError("a thread that plays has broken down") from self._broken
        why = self._books.stuck()
        if (self._paused or self._closed) and not self._busy:
            state = "closed" if self._closed else "paused"
            why = f"nothing is played, and nothing starts as this is {state}: {self._books.counts()}"
        if why is not None:
            raise RuntimeError(f"no batch can come: {why}")

    def _wait(self, until: float | None, what: str) -> None:
        """Wait until something has changed since the last look at the books, or may have."""
        while True:
            left_s = math.inf if until is None else max(until - time.monotonic(), 0.0)
            try:
                self._news.get(timeout=min(left_s, LOOK_UP_S))
            except queue.Empty:
                if left_s > 0:
                    continue
                counts = self.counts()
                raise TimeoutError(f"waited in vain for {what}: {counts}; nothing is lost by waiting again") from None
            while not self._news.empty():  # one look is enough for all that is new
                self._news.get_nowait()
            return

    def _playing(self) -> int:
        with self._entering():
            return self._busy

    @contextmanager
    def _entering(self) -> Iterator[None]:
        """Work on the books from the learner's thread; a signal that comes meanwhile is raised again at the end.

        A second one of the same kind in that moment is not held back.
        """
        asked: Callable[[], int] = int  # 0: none came
        try:
            with stopping_between_steps() as asked, self._changed:
                yield
                self._changed.notify_all()
        finally:
            if number := asked():
                raise_signal(number)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()
        self._news.put(None)
