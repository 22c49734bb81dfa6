"""Runs that fail without ending the sweep: what went wrong comes back as a result among the others."""

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.records.store import StoreError

__all__ = ["Failure", "Guarded"]

_LONGEST = 20_000  # characters of a traceback that are kept: its end, where the error stands


@dataclass(frozen=True)
class Failure:
    """A task that gave no runs."""

    error: str
    """Type and message of the error, or what became of the process."""
    trace: str = ""
    """The traceback, where there is one."""
    log: str = ""
    """Path of the log that says more, where there is one."""
    accident: bool = False
    """Whether it says nothing of the task: a process that was killed, a full disk, a job that ran out of time. Any other
    error would come again, as a run is determined by its config and seed."""

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Return what an exception says. Want of memory, errors of the system and damaged records are accidents."""
        trace = "".join(traceback.format_exception(error))
        accident = isinstance(error, MemoryError | OSError | StoreError)
        return cls(f"{type(error).__name__}: {error}", trace[-_LONGEST:], accident=accident)


@dataclass(frozen=True)
class Guarded:
    """A run whose errors come back as a ``Failure``. An executor lets one that is guarded outlive its process too."""

    run: Callable[..., Any]
    """The run itself."""

    def __call__(self, config: Any, seeds: tuple[int, ...], *, study: str, progress: Any = None) -> Any:
        """Return what the run returns, or a ``Failure``."""
        more = {"progress": progress} if progress and "progress" in inspect.signature(self.run).parameters else {}
        try:
            return self.run(config, seeds, study=study, **more)
        except Exception as error:
            if type(error).__module__.partition(".")[0] == "submitit":  # its job is out of time: no error of the run
                raise
            return Failure.of(error)
