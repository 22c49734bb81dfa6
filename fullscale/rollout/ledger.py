"""Where every group of a run is: under way, waiting, handed to the learner, or given up for a reason.

Who plays a group is told a *ticket*, whose number and play name the question and all its luck. At any moment every number
below the cursor is one of

    running -> complete -> taken        played; waiting for the learner; handed to it in a batch
    again -> running                    to be played again: it was too old, or under way when the ledger was saved
    dropped, failed                     too old and given up; its player raised

and no number is two of them, none is missing (:meth:`Ledger.fates`). Complete ones that are set aside for a batch under way
are still complete here.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import Any, Generic, TypeVar

from sim.cluster.measures import Survivorship

__all__ = ["Held", "Ledger", "Ticket"]

V = TypeVar("V")


@dataclass(frozen=True)
class Ticket:
    """Leave to play one group."""

    number: int
    """Which group, from 0: it names the question and, with `play`, the luck."""
    play: int
    """How often the number was played before and was too old."""
    position: int
    """Place in the order in which tickets started, from 0. A number that is played again has a new one, unless it was under
    way when the ledger was saved."""
    version: int
    """Version published when it started: nothing older wrote any of it."""


@dataclass(frozen=True, eq=False)
class Held(Generic[V]):
    """A group that is complete."""

    ticket: Ticket
    """Its ticket."""
    oldest: int
    """Oldest version that wrote any of it; -1 where nobody noted one."""
    newest: int
    """Newest version that wrote any of it; -1 where nobody noted one."""
    value: V
    """What was played."""


class Ledger(Generic[V]):
    """Where every ticket number is. What may happen to it is decided elsewhere (:class:`fullscale.rollout.books.Books`)."""

    def __init__(self) -> None:
        self.version = 0  # published
        self.cursor = 0  # the next fresh number
        self.positions = 0  # the next position
        self.batches = 0  # taken
        self.plays_dropped = 0
        self.running: dict[int, Ticket] = {}  # by position
        self.ready: dict[int, Held[V]] = {}  # by position, in the order in which they were completed
        self.part: list[Held[V]] = []  # set aside for the batch under way
        self.again: deque[tuple[int, int, int | None]] = deque()  # (number, play, the position it keeps)
        self.taken: dict[int, int] = {}  # number -> batch
        self.dropped: dict[int, int] = {}  # number -> version then published
        self.failed: dict[int, str] = {}  # number -> reason
        self.abandoned: set[int] = set()  # positions dropped while they ran: who plays them has not come back

    @property
    def head(self) -> int:
        """The oldest position that is neither over nor to have another; the next one where there is none."""
        kept = (position for _, _, position in self.again if position is not None)
        return min(chain(self.running, self.ready, kept), default=self.positions)

    def fates(self) -> dict[int, str]:
        """Return what became of every number below the cursor.

        Raises
        ------
        RuntimeError
            When one is nowhere, in two places, or beyond the cursor.
        """
        found: dict[int, str] = {}
        for fate, numbers in self._places():
            for number in numbers:
                if number in found or not 0 <= number < self.cursor:
                    also = found.get(number, f"not below the cursor, {self.cursor}")
                    raise RuntimeError(f"ticket {number} is {fate} and {also}")
                found[number] = fate
        if len(found) < self.cursor:
            raise RuntimeError(f"tickets {sorted(set(range(self.cursor)) - found.keys())[:5]} are nowhere")
        return found

    def counts(self) -> dict[str, int]:
        """Return how many numbers are where, how many plays were dropped, and how many of those have not come back."""
        found = {fate: sum(1 for _ in numbers) for fate, numbers in self._places()}
        return found | {"plays_dropped": self.plays_dropped, "abandoned": len(self.abandoned)}

    def survivorship(self, class_of: Callable[[int], int], names: Sequence[str]) -> tuple[Survivorship, ...]:
        """Return how often each class of tickets is trained on, against how often one is started and its end is known.

        `class_of` numbers the classes by ticket number, say by how long its question takes; `names` are theirs. A ticket
        that was too old counts as started, whether or not it waits to be played again.
        """
        under_way = chain(self.running.values(), (held.ticket for held in chain(self.ready.values(), self.part)))
        before = {t.number for t in under_way if t.play} | {number for number, play, _ in self.again if play}
        started, trained = [0] * len(names), [0] * len(names)
        for number in self.taken.keys() | self.dropped.keys() | self.failed.keys() | before:
            started[class_of(number)] += 1
            trained[class_of(number)] += number in self.taken
        usual = sum(trained) / max(sum(started), 1)
        ratios = [t / (s * usual) if s and usual else 0.0 for s, t in zip(started, trained, strict=True)]
        return tuple(Survivorship(*row) for row in zip(names, started, trained, ratios, strict=True))

    # --- on paper -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything as plain data for :meth:`load`; each ``"value"`` is what was played, as it is."""
        return {
            **{name: getattr(self, name) for name in _NUMBERS},
            **{name: [list(row) for row in getattr(self, name).items()] for name in _OVER},
            "running": [list(astuple(ticket)) for ticket in self.running.values()],
            "again": [list(row) for row in self.again],
            "ready": [_written(held) for held in self.ready.values()],
            "part": [_written(held) for held in self.part],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from a state.

        What ran then is played again before anything else, with its number and play, hence its luck, and its place.

        Raises
        ------
        ValueError
            When tickets were given out already, or the state is no whole one.
        """
        if self.cursor or self.version:
            raise ValueError(f"{self.cursor} tickets were given out already: load a state before anything starts")
        try:
            self._load(state)
            self.fates()
        except (KeyError, TypeError, RuntimeError) as error:
            raise ValueError(f"this is no whole state: {error!r}") from error

    def _load(self, state: Mapping[str, Any]) -> None:
        for name in _NUMBERS:
            setattr(self, name, int(state[name]))
        for name in _OVER:
            setattr(self, name, {int(number): what for number, what in state[name]})
        ran = sorted((Ticket(*row) for row in state["running"]), key=lambda ticket: ticket.position)
        self.again = deque((ticket.number, ticket.play, ticket.position) for ticket in ran)
        self.again.extend((number, play, kept) for number, play, kept in state["again"])
        self.ready = {held.ticket.position: held for held in map(_read, state["ready"])}
        self.part = [_read(row) for row in state["part"]]

    def _places(self) -> Iterator[tuple[str, Iterator[int]]]:
        yield "running", (ticket.number for ticket in self.running.values())
        yield "complete", (held.ticket.number for held in chain(self.ready.values(), self.part))
        yield "again", (number for number, _, _ in self.again)
        yield "taken", iter(self.taken)
        yield "dropped", iter(self.dropped)
        yield "failed", iter(self.failed)


_NUMBERS = ("version", "cursor", "positions", "batches", "plays_dropped")
_OVER = ("taken", "dropped", "failed")


def _written(held: Held[Any]) -> dict[str, Any]:
    ticket = list(astuple(held.ticket))
    return {"ticket": ticket, "oldest": held.oldest, "newest": held.newest, "value": held.value}


def _read(row: Mapping[str, Any]) -> Held[Any]:
    return Held(Ticket(*row["ticket"]), row["oldest"], row["newest"], row["value"])
