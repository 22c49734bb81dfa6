"""Executors: how the tasks of a sweep are carried out. Each gives every result as soon as it is there."""

import functools
import inspect
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any

from studies.kit.guard import Failure, Guarded

__all__ = ["Executor", "Processes", "Report", "Run", "SweepError", "Task", "inline", "processes"]

_LOOK_S = 0.5  # how often the parent looks at the board on which workers write how far they are


class SweepError(RuntimeError):
    """A task of a sweep failed; the message names the point and the seeds."""


class _DiedError(SweepError):
    """A worker process died; ``suspects`` are the numbers of the tasks that were at work."""

    def __init__(self, message: str, suspects: tuple[int, ...]) -> None:
        super().__init__(message)
        self.suspects = suspects


@dataclass(frozen=True)
class Task:
    """One call: a point of a sweep on a block of seeds."""

    label: str
    """Name of the point."""
    config: Any
    """Its config."""
    seeds: tuple[int, ...]
    """The seeds of the block."""
    study: str
    """Name of the study, which names the streams of random numbers."""

    @property
    def words(self) -> str:
        """The task as named in errors."""
        ends = f"seed {self.seeds[0]}" if len(self.seeds) == 1 else f"seeds {self.seeds[0]} to {self.seeds[-1]}"
        return f"point {self.label!r}, {ends}"


Run = Callable[..., Any]
"""``run(config, seeds, study=...)``, which returns a block of runs. Where it takes ``progress`` too, it gets a function
that it may call as ``progress(done_steps, total_steps)``."""
Report = Callable[[int, int, int], None]
"""``report(number, done_steps, total_steps)`` of the task of that number; 0 of 0 where only known to be at work."""
Executor = Callable[[Run, Sequence[Task], Report | None], Iterator[tuple[int, Any]]]
"""Carries out tasks and yields (number of the task, result) as they are done, in any order."""


def inline(run: Run, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
    """Carry out the tasks one after the other in this process. SweepError names the point that failed."""
    for number, task in enumerate(tasks):
        try:
            result = _call(run, task, None if report is None else _Steps(report, number))
        except Exception as error:
            raise _failure(task, error) from error
        yield number, result


def _drained(ready: "SimpleQueue[Future[Any]]", looking: bool) -> "list[Future[Any]]":
    """Wait for a future, though not for long where somebody looks on, and return all that are there by then."""
    found = []
    try:
        found.append(ready.get(timeout=_LOOK_S if looking else None))
        while True:
            found.append(ready.get_nowait())
    except Empty:
        return found


@dataclass(frozen=True)
class _Renumbered:
    """Reports the tasks of a part under their numbers in the whole."""

    report: Report
    numbers: tuple[int, ...]

    def __call__(self, at: int, done: int, total: int) -> None:
        self.report(self.numbers[at], done, total)


@dataclass(frozen=True)
class _Steps:
    """What a run calls to say how far it is."""

    report: Report
    number: int

    def __call__(self, done: int, total: int) -> None:
        self.report(self.number, int(done), int(total))


def _call(run: Run, task: Task, steps: Callable[[int, int], None] | None) -> Any:
    """Carry out a task. Of runs that come back it is noted where they were made, and each one's part of the time."""
    wall, cpu = time.perf_counter(), time.process_time()
    more: dict[str, Any] = {}
    if steps is not None:
        steps(0, 0)
        if "progress" in inspect.signature(run).parameters:
            more["progress"] = steps
    result = run(task.config, task.seeds, study=task.study, **more)
    if not hasattr(result, "provenance"):
        return result
    n = len(task.seeds)
    spent = {"wall_s": (time.perf_counter() - wall) / n, "cpu_s": (time.process_time() - cpu) / n, "seeds_together": n}
    return replace(result, provenance={**_where(), **spent, **result.provenance})


@functools.cache
def _where() -> dict[str, Any]:
    from sim.records.fingerprint import environment

    return environment()


def processes(n: int) -> "Processes":
    """Return an executor on n spawned processes, kept between sweeps until it is closed."""
    if n < 1:
        raise ValueError(f"processes({n}): it takes 1 or more")
    return Processes(n)


class Processes:
    """Spawned worker processes that are started at the first sweep worth it and kept for the next."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._pool: ProcessPoolExecutor | None = None
        self._board: MutableSequence[int] = []
        self._tickets = 0  # tasks given out so far; what stands on the board may be of an earlier sweep

    def __call__(self, run: Run, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """Carry out the tasks; a single one, or a single process, is done here instead.

        Where the run is ``Guarded`` a task whose process dies comes back as a ``Failure`` and the others go on.
        """
        if self.n > 1 and isinstance(run, Guarded):
            yield from self._outliving(run, tasks, report)
        elif self.n == 1 or len(tasks) < 2:
            yield from inline(run, tasks, report)
        else:
            yield from self._pooled(run, tasks, report)

    def _outliving(self, run: Run, tasks: Sequence[Task], report: Report | None) -> Iterator[tuple[int, Any]]:
        """Carry out the tasks. Those at work when a process dies go last, one by one, to see whose fault it was."""
        left, suspects = list(range(len(tasks))), list[int]()
        while left or suspects:
            now = left or suspects[:1]
            numbered = None if report is None else _Renumbered(report, tuple(now))
            given = set()
            try:
                for at, result in self._pooled(run, [tasks[number] for number in now], numbered):
                    given.add(now[at])
                    yield now[at], result
            except _DiedError as death:
                at_work = [now[at] for at in death.suspects]
                if not at_work:
                    raise
                if len(at_work) == 1:
                    given.add(at_work[0])
                    yield at_work[0], Failure("its worker process died (out of memory, or killed)", accident=True)
                else:
                    suspects += at_work
                    left = [number for number in left if number not in at_work]
            left = [number for number in left if number not in given]
            suspects = [number for number in suspects if number not in given]

    def _pooled(self, run: Run, tasks: Sequence[Task], report: Report | None) -> Iterator[tuple[int, Any]]:
        first = self._tickets + 1
        self._tickets += len(tasks)
        pool = self._pool = self._pool or self._started()
        ready: SimpleQueue[Future[Any]] = SimpleQueue()
        with _interrupts_held():
            futures = {pool.submit(_work, first + number, run, task): number for number, task in enumerate(tasks)}
        for future in futures:
            future.add_done_callback(ready.put)
        waiting = set(futures.values())
        try:
            while waiting:
                # What came out well goes first: it is kept even when another one failed.
                for future in sorted(_drained(ready, report is not None), key=lambda future: bool(future.exception())):
                    waiting.discard(futures[future])
                    yield futures[future], self._result(tasks, futures[future], future, first, waiting)
                if report is not None:
                    self._look(report, first, waiting)
        except BaseException:
            # An interrupt (or a consumer that stopped) must not leave workers behind.
            self.close(at_once=True)
            raise

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # fork would copy threads and locks of numpy and torch
        # Plain shared memory: a worker that is killed while it writes leaves no lock behind for the others.
        self._board = context.RawArray("q", 3 * self.n)
        return ProcessPoolExecutor(self.n, context, _take_place, (self._board, context.Value("q", 0)))

    def _look(self, report: Report, first: int, waiting: set[int]) -> None:
        """Report what workers are at."""
        for place in range(0, len(self._board), 3):
            ticket, step, steps = self._board[place : place + 3]
            if ticket - first in waiting:
                report(ticket - first, step, steps)

    def _result(self, tasks: Sequence[Task], number: int, future: "Future[Any]", first: int, waiting: set[int]) -> Any:
        try:
            return future.result()
        except BrokenProcessPool as error:
            begun = {ticket - first for ticket in self._board[::3]}
            message = "a worker process died (out of memory, or killed); run with --processes 1 to see where"
            raise _DiedError(
                f"{tasks[number].words}: {message}", tuple(sorted(begun & (waiting | {number})))
            ) from error
        except Exception as error:
            raise _failure(tasks[number], error) from error

    def close(self, at_once: bool = False) -> None:
        """Stop the workers; ``at_once`` drops what they are doing."""
        pool, self._pool = self._pool, None
        if pool is None:
            return
        if at_once:
            for worker in list((getattr(pool, "_processes", None) or {}).values()):
                worker.terminate()
        # Also after that: until the pool's own thread has ended, the interpreter cannot exit quietly.
        pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the workers; at once if an error is on its way out."""
        self.close(at_once=error is not None)


# In a worker --------------------------------------------------------------------------------------------------------

_PLACE: list[Callable[[int, int, int], None]] = []


def _take_place(board: MutableSequence[int], taken: Any) -> None:
    """Take the next free place of the board for this worker."""
    with taken.get_lock():
        place = 3 * taken.value
        taken.value += 1

    def note(ticket: int, step: int, steps: int) -> None:
        board[place : place + 3] = [ticket, step, steps]

    _PLACE[:] = [note]
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker when its parent is gone: one that was killed could not stop it, and it would wait forever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(ticket: int, run: Run, task: Task) -> Any:
    return _call(run, task, _Steps(_PLACE[0], ticket))


# Before and after ---------------------------------------------------------------------------------------------------


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Start workers with Ctrl-C blocked, for good: the parent ends them, and they print no tracebacks of their own.

    Here it is held only meanwhile and delivered after. A signal mask passes to a new program, so that no worker can be
    hit while it still starts.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _failure(task: Task, error: Exception) -> SweepError:
    return SweepError(f"{task.words}: {type(error).__name__}: {error}")
