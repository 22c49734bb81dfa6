"""Tool calls of many episodes at once, each with a time limit and a few attempts; failure is a reply like any other.

A tool is a function without arguments that may be slow, fail or hang. It runs in a thread of its own. A thread cannot be
stopped from outside, so a call that is late is left behind: its thread ends when it ends, or with the process, and nobody
waits for it. How many may be left behind is bounded; beyond that, calls are refused, which is a failure too. Replies stand
in the order of the calls and depend on nothing but them: not on which came back first.
"""

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any

from sim.records.config import config

__all__ = ["Call", "Done", "Patience", "Reply", "Status", "Toolbox", "take"]


@config
class Patience:
    """How long a tool is waited for, how often it is asked, how much runs at once."""

    timeout_s: float = 20.0
    """Time an attempt may take, s."""
    attempts: int = 3
    """Attempts of a call."""
    backoff_s: float = 0.5
    """Time between the first attempt and the second, s; it doubles with each."""
    concurrent: int = 32
    """Calls that run at once."""
    left_behind: int = 64
    """Late attempts that may still be running; while there are as many, calls are refused."""

    def __post_init__(self) -> None:
        if self.timeout_s <= 0 or self.backoff_s < 0:
            raise ValueError(
                f"timeout_s = {self.timeout_s} must be positive and backoff_s = {self.backoff_s} at least 0"
            )
        for name in ("attempts", "concurrent", "left_behind"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")


class Status(Enum):
    """What became of a call."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    REFUSED = "refused"


@dataclass(frozen=True)
class Call:
    """One use of a tool."""

    name: str
    """The tool, for messages."""
    run: Callable[[], Any]
    """Does it; must be safe beside other calls."""


@dataclass(frozen=True)
class Reply:
    """What came back from a call."""

    status: Status
    """OK, or how the last attempt failed."""
    value: Any
    """What the tool returned; None where it failed."""
    latency_s: float
    """From the beginning of the first attempt to the end of the last, s."""
    attempts: int
    """Attempts made."""
    reason: str = ""
    """Why it failed."""
    cause: BaseException | None = None
    """What the last attempt raised, if it did."""

    @property
    def failed(self) -> bool:
        """Whether there is no value: an infrastructure failure, which says nothing about the agent."""
        return self.status is not Status.OK


@dataclass(frozen=True)
class Done:
    """An attempt that ended."""

    ticket: int
    """Which."""
    value: Any
    """What the tool returned."""
    error: BaseException | None
    """What it raised."""
    at_s: float
    """When, on the clock."""


def take(finished: "SimpleQueue[Done]", wait_s: float) -> Done | None:
    """Return the next attempt that ended, or None when none does within `wait_s`."""
    try:
        return finished.get(timeout=wait_s) if wait_s > 0 else finished.get_nowait()
    except Empty:
        return None


class Toolbox:
    """Runs calls; see the module.

    Parameters
    ----------
    patience
        Limits.
    clock
        Time in seconds; called from the threads of the tools as well.
    take
        How to wait; :func:`take`, or in a test one that moves a clock of its own.
    """

    def __init__(
        self,
        patience: Patience | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        take: Callable[["SimpleQueue[Done]", float], Done | None] = take,
    ) -> None:
        self.patience = Patience() if patience is None else patience
        self._clock, self._take = clock, take
        self._left: list[threading.Thread] = []
        self._lock = threading.Lock()  # a tool may itself run calls: a sub-agent does

    @property
    def left_behind(self) -> int:
        """Late attempts that are still running."""
        with self._lock:
            self._left = [thread for thread in self._left if thread.is_alive()]
            return len(self._left)

    def run(self, calls: Sequence[Call]) -> list[Reply]:
        """Run all calls and return their replies, in order.

        It returns within (calls / concurrent + 1) x (attempts x timeout + backoffs), whatever the tools do.
        """
        return _Run(self, calls).replies()

    def leave(self, thread: threading.Thread) -> None:
        """Wait no longer for a thread."""
        with self._lock:
            self._left.append(thread)


@dataclass(frozen=True)
class _Attempt:
    call: int
    deadline_s: float
    thread: threading.Thread


class _Run:
    """The calls of one :meth:`Toolbox.run`: those that wait for their next attempt, and attempts that run."""

    def __init__(self, box: Toolbox, calls: Sequence[Call]) -> None:
        self.box, self.patience, self.clock = box, box.patience, box._clock
        self.calls = calls
        self.reply: dict[int, Reply] = {}
        self.attempts = [0] * len(calls)
        self.first_s = [0.0] * len(calls)
        self.waiting = [(self.clock(), i) for i in range(len(calls))]  # a heap: (due, call)
        self.running: dict[int, _Attempt] = {}  # by ticket, hence in the order of their deadlines
        self.ticket = itertools.count()
        self.finished: SimpleQueue[Done] = SimpleQueue()

    def replies(self) -> list[Reply]:
        while self.waiting or self.running:
            self._begin()
            self._hear()
        return [self.reply[i] for i in range(len(self.calls))]

    def _begin(self) -> None:
        """Begin what is due, as far as there is room."""
        while self.waiting and self.waiting[0][0] <= self.clock() and len(self.running) < self.patience.concurrent:
            _, i = heapq.heappop(self.waiting)
            left = self.box.left_behind
            if left >= self.patience.left_behind:
                self._give_up(i, Status.REFUSED, f"{left} late calls are still running, as many as may be left behind")
            else:
                self._attempt(i)

    def _attempt(self, i: int) -> None:
        ticket, now = next(self.ticket), self.clock()
        if not self.attempts[i]:
            self.first_s[i] = now
        self.attempts[i] += 1
        call = self.calls[i]
        thread = threading.Thread(
            target=_work, args=(ticket, call.run, self.clock, self.finished), name=f"tool {call.name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left
            self._give_up(i, Status.REFUSED, str(error))
        else:
            self.running[ticket] = _Attempt(i, now + self.patience.timeout_s, thread)

    def _hear(self) -> None:
        """Wait until an attempt ends, is late, or is due."""
        due = [attempt.deadline_s for attempt in itertools.islice(self.running.values(), 1)]
        if self.waiting and len(self.running) < self.patience.concurrent:
            due.append(self.waiting[0][0])
        if not due:
            return
        done = self.box._take(self.finished, min(due) - self.clock())
        while done is not None:  # what came back in time is heard before anything is called late
            self._finish(done)
            done = self.box._take(self.finished, 0.0)
        for ticket, attempt in list(self.running.items()):
            if attempt.deadline_s > self.clock():
                break
            del self.running[ticket]
            self.box.leave(attempt.thread)
            self._failed(attempt.call, Status.TIMEOUT, f"no reply within {self.patience.timeout_s:g} s", None)

    def _finish(self, done: Done) -> None:
        attempt = self.running.pop(done.ticket, None)
        if attempt is None:
            return  # it was late, and is no longer waited for
        i = attempt.call
        if done.error is None:
            self.reply[i] = Reply(Status.OK, done.value, done.at_s - self.first_s[i], self.attempts[i])
        else:
            self._failed(i, Status.ERROR, f"{type(done.error).__name__}: {done.error}", done.error)

    def _failed(self, i: int, status: Status, reason: str, cause: BaseException | None) -> None:
        if self.attempts[i] < self.patience.attempts:
            pause = self.patience.backoff_s * 2 ** (self.attempts[i] - 1)
            heapq.heappush(self.waiting, (self.clock() + pause, i))
        else:
            self._give_up(i, status, reason, cause)

    def _give_up(self, i: int, status: Status, reason: str, cause: BaseException | None = None) -> None:
        latency_s = self.clock() - self.first_s[i] if self.attempts[i] else 0.0
        made = f"{self.calls[i].name}, {self.attempts[i]} of {self.patience.attempts} attempts: {reason}"
        self.reply[i] = Reply(status, None, latency_s, self.attempts[i], made, cause)


def _work(ticket: int, run: Callable[[], Any], clock: Callable[[], float], finished: "SimpleQueue[Done]") -> None:
    try:
        done = Done(ticket, run(), None, clock())
    except BaseException as error:  # a tool that calls sys.exit has failed too
        done = Done(ticket, None, error, clock())
    finished.put(done)
