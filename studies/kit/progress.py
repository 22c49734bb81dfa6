"""How far a sweep is, and how long it will still take: what executors report, put into one line."""

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from studies.kit.executors import Executor, Run, Task

__all__ = ["Show", "Status", "carry_out", "span"]

AnyTask = TypeVar("AnyTask", bound="Task")
_FIRST_ESTIMATE_S = 1.0  # before this, warming up is most of what was timed


@dataclass(frozen=True)
class Status:
    """Where a sweep stands."""

    point: str
    """What is at work, or was last: the label of the point, and the seed where it is a single one."""
    step: int
    """Steps done of that run; 0 where it does not report them."""
    steps: int
    """Steps it takes; 0 where it does not report them."""
    others: int
    """Runs that other processes are at."""
    done: int
    """Runs done, those from the store among them."""
    total: int
    """Runs of the sweep."""
    left_s: float | None
    """Seconds the rest will take at the pace so far; ``None`` while there is none to go by."""

    @property
    def words(self) -> str:
        """The status in a line.

        >>> Status("low, seed 3", 40, 100, 1, 12, 40, 371.0).words
        'low, seed 3: step 40 of 100 (1 more at work); 12 of 40 runs; about 6 min left'
        """
        others = f" ({self.others} more at work)" if self.others else ""
        point = f"{self.point}: step {self.step} of {self.steps}{others};" if self.steps else f"{self.point}{others}:"
        left = "" if self.left_s is None or self.done == self.total else f"; about {span(self.left_s)} left"
        return f"{point} {self.done} of {self.total} runs{left}"


Show = Callable[[Status | None], None]
"""Shows a status; ``None`` when there is nothing more to show."""


def span(seconds: float) -> str:
    """Write how long something takes, about.

    >>> span(3.2), span(48), span(371), span(9000)
    ('5 s', '50 s', '6 min', '2.5 h')
    """
    if seconds < 90:
        return f"{5 * max(1, math.ceil(seconds / 5))} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class _Watch:
    """Counts what is done and at work. Called by an executor as ``watch(number, step, steps)``."""

    def __init__(self, tasks: "Sequence[Task]", stored: int, total: int, show: Show) -> None:
        self.tasks, self.stored, self.total, self.show = tasks, stored, total, show
        self.began: float | None = None  # with the first task at work: starting processes is no part of the pace
        self.made = 0  # runs
        self.last = 0
        self.at_work: dict[int, tuple[int, int]] = {}

    def __call__(self, number: int, step: int, steps: int) -> None:
        self.began = self.began or time.monotonic()
        self.at_work[number] = (step, steps)
        self.show(self.status())

    def done(self, number: int) -> None:
        self.at_work.pop(number, None)
        self.made += len(self.tasks[number].seeds)
        self.last = number
        self.show(self.status())

    def status(self) -> Status:
        number = min(self.at_work, default=self.last)
        task = self.tasks[number]
        step, steps = self.at_work.get(number, (0, 0))
        point = f"{task.label}, seed {task.seeds[0]}" if len(task.seeds) == 1 else task.label
        others = max(0, len(self.at_work) - 1)
        return Status(point, step, steps, others, self.stored + self.made, self.total, self._left_s())

    def _left_s(self) -> float | None:
        """Seconds left: a run that is half done counts for half, what came from the store does not count."""
        took = 0.0 if self.began is None else time.monotonic() - self.began
        parts = (len(self.tasks[n].seeds) * step / steps for n, (step, steps) in self.at_work.items() if steps)
        made = self.made + sum(parts)
        if not made or took < _FIRST_ESTIMATE_S:
            return None
        return max(0.0, took * (self.total - self.stored - made) / made)


def carry_out(
    run: "Run", tasks: "Sequence[AnyTask]", executor: "Executor", show: Show | None, stored: int, total: int
) -> "Generator[tuple[AnyTask, Any], None, None]":
    """Carry out tasks and yield each with its result as soon as it is done, showing how far they are.

    ``stored`` of ``total`` runs were there before.
    """
    if not tasks:
        return
    if show is None:
        for number, result in executor(run, tasks, None):
            yield tasks[number], result
        return
    watch = _Watch(tasks, stored, total, show)
    try:
        show(watch.status())
        for number, result in executor(run, tasks, watch):
            watch.done(number)
            yield tasks[number], result
    finally:
        show(None)
