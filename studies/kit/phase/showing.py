"""How far a sweep of points is: a line under a bar in a terminal, a line now and then in a log. On stderr."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from studies.kit.phase.running import Progress, Watch
from studies.kit.phase.words import count
from studies.kit.progress import Status, span
from studies.kit.words import number

__all__ = ["Pace", "showing", "words"]

_LOG_S = 30.0  # a log that is silent for longer looks dead
_REDRAW_S = 0.1
_FIRST_RATE_S = 1.0


class Pace:
    """Runs made a second, of those that are being made now."""

    def __init__(self) -> None:
        self._total, self._began, self._first = -1, 0.0, 0

    def __call__(self, status: Status, now: float) -> float | None:
        """Return the pace; ``None`` in the first moments."""
        if status.total != self._total:
            self._total, self._began, self._first = status.total, now, status.done
        took = now - self._began
        return (status.done - self._first) / took if took >= _FIRST_RATE_S and status.done > self._first else None


def words(progress: Progress, rate: float | None) -> str:
    """Write how far a sweep is.

    >>> words(Progress(3, 121, 0, Status("p: a", 0, 0, 0, 30, 968, 75.0)), 12.5)
    '3 of 121 points; 30 of 968 runs, 12.5 a second; about 75 s left'
    """
    text = f"{progress.points} of {count(progress.of, 'point')}"
    text += f" ({progress.failed} failed)" if progress.failed else ""
    status = progress.status
    if status is None:
        return text
    text += f"; {status.done} of {count(status.total, 'run')}"
    text += f", {number(rate)} a second" if rate else ""
    return text + (f"; about {span(status.left_s)} left" if status.left_s and status.done < status.total else "")


@contextmanager
def showing() -> Iterator[Watch]:
    """Yield what a sweep tells how far it is, and show it while the block lasts."""
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    pace = Pace()
    shown = 0.0 if console.is_terminal else time.monotonic()  # in a log quiet begins with the sweep
    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False))
    with Bar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def watch(progress: Progress) -> None:
            nonlocal shown
            now = time.monotonic()
            rate = None if progress.status is None else pace(progress.status, now)
            if now - shown < (_REDRAW_S if console.is_terminal else _LOG_S):
                return
            shown = now
            if console.is_terminal:
                bar.update(task, description=words(progress, rate), **_part(progress))
            else:
                console.print(words(progress, rate), markup=False, highlight=False, soft_wrap=True)

        yield watch


def _part(progress: Progress) -> dict[str, Any]:
    """How much of the bar is full: by runs while some are being made, else by points."""
    if progress.status is None or progress.points == progress.of:
        return {"completed": progress.points, "total": progress.of}
    return {"completed": progress.status.done, "total": progress.status.total}
