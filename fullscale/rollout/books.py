"""What may start, what is taken and what is dropped, in a run whose groups are played while the learner updates.

Decided by the cluster simulator's own functions (:mod:`sim.cluster.rules`) under its own configs, so that a schedule does
here what it did there. Nothing here knows of a thread, a clock or a model. The rule of admission is asked anew at every
:meth:`Books.start`: who plays asks again whenever something was taken, completed, dropped, failed or published.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TypeVar

from fullscale.rollout.ledger import Held, Ledger, Ticket
from sim.cluster import rules
from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Order

__all__ = ["Books", "PlayersFailed"]

V = TypeVar("V")


class PlayersFailed(RuntimeError):  # noqa: N818  the state is the error
    """So many groups in a row could not be played that it is no accident; the message has the reasons."""


class Books(Ledger[V]):
    """The books of one run.

    Parameters
    ----------
    admission
        What may start.
    order
        Which complete groups may be taken.
    drop
        What is dropped for being too old; None for nothing.
    group
        Rollouts of a group: admission counts rollouts.
    batch
        Groups of a step.
    concurrent
        Groups that may run at once, whatever the rule of admission says.
    tickets
        Tickets in all; None for no end.
    failures
        Failures in a row after which nothing starts and :meth:`take` raises. Until then, and always with None, a fresh
        ticket takes the place of one that failed.

    Raises
    ------
    TypeError
        For a rule of admission that needs a simulator: a controller of KV memory, arrivals, rounds.
    ValueError
        For sizes below 1, a width in which no group could start, and a window wider than its queue.
    """

    def __init__(
        self,
        admission: Capacity | FixedWidth,
        order: Order,
        drop: MaxStaleness | None = None,
        *,
        group: int,
        batch: int,
        concurrent: int,
        tickets: int | None = None,
        failures: int | None = 8,
    ) -> None:
        super().__init__()
        if not isinstance(admission, Capacity | FixedWidth):
            raise TypeError(f"admission = {admission!r} must be a Capacity or a FixedWidth")
        sizes = {"group": group, "batch": batch, "concurrent": concurrent, "tickets": tickets, "failures": failures}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} = {value} must be at least 1")
        if isinstance(admission, FixedWidth):
            _check_width(admission, order, group)
        self.admission, self.order, self.drop = admission, order, drop
        self.group, self.batch, self.concurrent = group, batch, concurrent
        self.tickets, self.failures = tickets, failures
        self.failures_in_a_row = 0

    # --- starting -----------------------------------------------------------------------------------------------------

    def start(self) -> Ticket | None:
        """Return a ticket that may start now, one to be played again before a fresh one; None where none may."""
        if not self.may_start():
            return None
        if self.again:
            number, play, kept = self.again.popleft()
        else:
            number, play, kept = self.cursor, 0, None
            self.cursor += 1
        position = self.positions if kept is None else kept
        self.positions = max(self.positions, position + 1)
        ticket = Ticket(number, play, position, self.version)
        self.running[position] = ticket
        return ticket

    def may_start(self) -> bool:
        """Return whether a group may start: the rule of admission allows all its rollouts, and there is a ticket."""
        return self._left() and not self._failing() and self.allowed() >= self.group

    def allowed(self) -> int:
        """Return how many rollouts the rule of admission lets start now.

        Groups set aside for the batch under way are accepted, and no longer held.
        """
        running, most, rule = len(self.running) * self.group, self.concurrent * self.group, self.admission
        if isinstance(rule, Capacity):
            accepted = (len(self.ready) + len(self.part) + len(self.taken)) * self.group
            return rules.capacity(self.version, accepted, running, rule.eta, self.batch * self.group, most)
        held = running if rule.of == "running" else running + len(self.ready) * self.group
        return rules.fixed_width(rule.width, held, most, running)

    # --- what becomes of it -------------------------------------------------------------------------------------------

    def complete(self, ticket: Ticket, oldest: int, newest: int, value: V) -> bool:
        """Note that a group is complete; return whether it is kept: False where it is too old, or was dropped before.

        Where nobody noted a version (-1) the group is judged by the one that was published when it started: not knowing is
        no lag of 0.

        Raises
        ------
        ValueError
            For a ticket that does not run, and for an oldest version above the newest.
        """
        if oldest > newest:
            raise ValueError(f"oldest = {oldest} must not be above newest = {newest}, of {ticket}")
        if not self._over(ticket):
            return False
        self.failures_in_a_row = 0
        held = Held(ticket, oldest, newest, value)
        if self._old(held):
            self._discard(ticket)
            return False
        self.ready[ticket.position] = held
        return True

    def fail(self, ticket: Ticket, reason: str) -> bool:
        """Note that a group could not be played; return whether that counts: False where it was dropped before.

        Raises
        ------
        ValueError
            For a ticket that does not run.
        """
        if not self._over(ticket):
            return False
        self.failed[ticket.number] = reason
        self.failures_in_a_row += 1
        return True

    def publish(self, version: int) -> list[Ticket]:
        """Note that the engine has a version, drop what is too old by now, and return those dropped while they ran.

        Of one that runs the oldest version is taken to be the one published when it started.

        Raises
        ------
        ValueError
            For a version older than the one published before.
        """
        if version < self.version:
            raise ValueError(f"version = {version} must be at least {self.version}, which was published before")
        self.version = version
        if self.drop is None:
            return []
        old = [held.ticket for held in self.ready.values() if self._old(held)]
        also_running = self.drop.running and self.drop.by == "oldest"
        ran = [t for t in self.running.values() if self._too_old(t.version, t.version)] if also_running else []
        for ticket in sorted(chain(old, ran), key=_position):
            self.ready.pop(ticket.position, None)
            if self.running.pop(ticket.position, None) is not None:
                self.abandoned.add(ticket.position)
            self._discard(ticket)
        return ran

    # --- taking -------------------------------------------------------------------------------------------------------

    def take(self) -> list[Held[V]] | None:
        """Return the groups of the next batch in the order in which they started, or None as long as some are missing.

        What may be taken is set aside at once, which makes room in a queue of fixed length; it stays for the next call.

        Raises
        ------
        PlayersFailed
            After `failures` in a row. They are counted anew from then on: to call again is to try again.
        """
        if self._failing():
            raise self._players_failed()
        while len(self.part) < self.batch and (held := self._next()) is not None:
            self.part.append(self.ready.pop(held.ticket.position))
        if len(self.part) < self.batch:
            return None
        batch, self.part = self.part, []
        self.taken |= {held.ticket.number: self.batches for held in batch}
        self.batches += 1
        return sorted(batch, key=lambda held: held.ticket.position)

    def put_back(self, batch: Sequence[Held[V]]) -> None:
        """Undo the last :meth:`take`: the batch reached nobody, and is the next one again."""
        self.batches -= 1
        for held in batch:
            del self.taken[held.ticket.number]
        self.part = [*batch, *self.part]

    def stuck(self) -> str | None:
        """Return why the batch under way will never be whole, asked after a :meth:`take` that returned None; else None."""
        if self.running or self.may_start() or self._failing():
            return None
        missing = f"{self.batch - len(self.part)} of the {self.batch} groups of a batch are missing and nothing runs"
        if not self._left():
            return f"{missing}: all {self.tickets} tickets are spent; ask for fewer batches, or give more tickets"
        return (
            f"{missing}: with version {self.version} published {self.admission} lets {self.allowed()} rollouts start, and "
            f"a group has {self.group}; publish what was trained before taking more, or admit more"
        )

    # --- inside -------------------------------------------------------------------------------------------------------

    def _left(self) -> bool:
        return bool(self.again) or self.tickets is None or self.cursor < self.tickets

    def _over(self, ticket: Ticket) -> bool:
        """Take a ticket from those that run; return False where it had been dropped."""
        if self.running.get(ticket.position) == ticket:
            del self.running[ticket.position]
            return True
        if ticket.position not in self.abandoned:
            raise ValueError(f"{ticket} does not run: it was never started here, or is over")
        self.abandoned.remove(ticket.position)
        return False

    def _old(self, held: Held[V]) -> bool:
        started = held.ticket.version
        return self._too_old(*((held.oldest, held.newest) if held.oldest >= 0 else (started, started)))

    def _too_old(self, oldest: int, newest: int) -> bool:
        d = self.drop
        return d is not None and rules.too_old(self.version, oldest, newest, d.bound, d.by == "newest")

    def _discard(self, ticket: Ticket) -> None:
        self.plays_dropped += 1
        if self.drop is not None and self.drop.then == "requeue":
            self.again.append((ticket.number, ticket.play + 1, None))
        else:
            self.dropped[ticket.number] = self.version

    def _next(self) -> Held[V] | None:
        """Return the complete group to be taken now, if any may be."""
        if not self.ready:
            return None
        if self.order.window is None:
            return next(iter(self.ready.values()))
        first = min(self.ready)
        return self.ready[first] if rules.may_take(first, self.head, self.order.reach) else None

    def _failing(self) -> bool:
        return self.failures is not None and self.failures_in_a_row >= self.failures

    def _players_failed(self) -> PlayersFailed:
        row = list(self.failed.items())[-self.failures_in_a_row :]
        self.failures_in_a_row = 0
        reasons = "; ".join(f"ticket {number}: {reason}" for number, reason in row[-3:])
        return PlayersFailed(
            f"{len(row)} groups in a row could not be played, where failures = {self.failures} are the most; the last: "
            f"{reasons}. Taking again tries again"
        )


def _position(ticket: Ticket) -> int:
    return ticket.position


def _check_width(admission: FixedWidth, order: Order, group: int) -> None:
    queue = admission.width // group
    if queue < 1:
        raise ValueError(f"width = {admission.width} rollouts must be at least a group of {group}: nothing could start")
    if admission.of == "unconsumed" and order.window is not None and order.window > queue:
        raise ValueError(
            f"window = {order.window} groups is above the queue of {queue} that width = {admission.width} holds; choose at "
            f"most {queue}, or None for no window"
        )
