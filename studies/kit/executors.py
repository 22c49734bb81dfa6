"""Executors: how the tasks of a sweep are carried out. Each gives the results in the order of the tasks."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

__all__ = ["Executor", "Processes", "SweepError", "Task", "inline", "processes"]


class SweepError(RuntimeError):
    """A task of a sweep failed; the message names the point and the seeds."""


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
"""``run(config, seeds, study=...)``, which returns a block of runs."""
Executor = Callable[[Run, Sequence[Task]], Iterator[Any]]
"""Carries out tasks and yields the results in order."""


def inline(run: Run, tasks: Sequence[Task]) -> Iterator[Any]:
    """Carry out the tasks one after the other in this process. SweepError names the point that failed."""
    for task in tasks:
        try:
            result = run(task.config, task.seeds, study=task.study)
        except Exception as error:
            raise _failure(task, error) from error
        yield result


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

    def __call__(self, run: Run, tasks: Sequence[Task]) -> Iterator[Any]:
        """Carry out the tasks; a single one, or a single process, is done here instead."""
        if self.n == 1 or len(tasks) < 2:
            yield from inline(run, tasks)
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")  # fork would copy threads and locks of numpy and torch
            self._pool = ProcessPoolExecutor(self.n, mp_context=context)
        with _interrupts_held():
            futures = [self._pool.submit(run, task.config, task.seeds, study=task.study) for task in tasks]
        try:
            for task, future in zip(tasks, futures, strict=True):
                yield self._result(task, future)
        except BaseException:
            # An interrupt (or a consumer that stopped) must not leave workers behind.
            self.close(at_once=True)
            raise

    @staticmethod
    def _result(task: Task, future: "Future[Any]") -> Any:
        try:
            return future.result()
        except BrokenProcessPool as error:
            raise SweepError(
                f"{task.words}: a worker process died (out of memory, or killed); run with --processes 1 to see where"
            ) from error
        except Exception as error:
            raise _failure(task, error) from error

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
