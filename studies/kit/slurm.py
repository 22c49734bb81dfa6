"""Sweeps as jobs of a Slurm cluster, through submitit (extra ``cluster``): the same function, the same store.

A job takes some of the tasks, stores each run as soon as it is made, and notes the names of the runs; the runs themselves
come back through the store, which both sides must see. So a job that is preempted, runs out of time or dies loses only
the task it was at: that one comes back as a ``Failure`` with the path of the job's log, and the others go on.
"""

import json
import math
import pickle
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.records.run import Runs
from sim.records.store import Store
from studies.kit.executors import Report, Run, SweepError, Task, inline
from studies.kit.guard import Failure, Guarded
from studies.kit.phase.places import GridError
from studies.kit.words import near

if TYPE_CHECKING:
    from submitit import Job

__all__ = ["Slurm", "parse", "slurm"]

_JOBS = 50  # at once in an array, by default: starting one takes seconds
_LOOK_S = 1.0  # how often the folder of notes is looked at
_ASK_S = 15.0  # how often the queue is asked
_GRACE_S = 20.0  # a shared file system may show a file that late
_LOCAL_MIN = 7 * 24 * 60  # submitit would end a job on this machine after two minutes
_OWN = {"jobs": int, "cluster": str}
_SHARED = {"timeout_min": int, "mem_gb": float, "cpus_per_task": int, "gpus_per_node": int, "nodes": int}
_BY_NAME = {"time": "timeout_min", "mem": "mem_gb", "cpus": "cpus_per_task", "gpus": "gpus_per_node"}


def parse(options: Sequence[str]) -> dict[str, Any]:
    """Read ``partition=short,time=60,jobs=20`` into the options of ``slurm``.

    ``time`` is in minutes, ``mem`` in GB; what submitit calls ``slurm_NAME`` may be written ``NAME``. GridError for an
    option that is none of these.

    >>> parse(["partition=short,time=60", "jobs=20"])
    {'slurm_partition': 'short', 'timeout_min': 60, 'jobs': 20}
    """
    found: dict[str, Any] = {}
    for item in (part.strip() for option in options for part in option.split(",") if part.strip()):
        name, equals, text = item.partition("=")
        name = _BY_NAME.get(name, name)
        if not equals or not text:
            raise GridError(f"slurm option {item!r}: give NAME=VALUE, such as partition=short")
        kind = {**_OWN, **_SHARED}.get(name)
        try:
            found[name if kind else f"slurm_{name.removeprefix('slurm_')}"] = (kind or _literal)(text)
        except ValueError:
            raise GridError(f"slurm option {item!r}: {name} takes a number") from None
    return found


def _literal(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def slurm(
    store: Path | str, folder: Path | str, *, cluster: str | None = None, jobs: int = _JOBS, **options: Any
) -> "Slurm":
    """Return an executor on jobs.

    Parameters
    ----------
    store
        Folder of the runs, on a file system that the jobs see.
    folder
        Where the jobs' scripts, logs and notes go; on such a file system too.
    cluster
        ``"slurm"``, ``"local"`` (processes of this machine, started as jobs are) or ``"debug"`` (this process). Jobs of
        this machine have a week, unless ``timeout_min`` says otherwise.
    jobs
        Most jobs that tasks are divided among; they form one array.
    options
        Of submitit: ``timeout_min``, ``mem_gb``, ``cpus_per_task``, ``slurm_partition``, ``slurm_array_parallelism``, ...

    Raises
    ------
    GridError
        Without submitit or Slurm, or for an option that submitit does not have.
    """
    try:
        from submitit import AutoExecutor
    except ImportError:
        raise GridError("--executor slurm needs submitit: pip install 'metastable[cluster]'") from None
    if jobs < 1:
        raise GridError(f"jobs={jobs}: it takes 1 or more")
    if cluster in ("local", "debug"):
        options.setdefault("timeout_min", _LOCAL_MIN)
    where = Path(folder).resolve() / uuid.uuid4().hex[:8]
    try:
        made = AutoExecutor(folder=where / "logs", cluster=cluster or "slurm")
        made.update_parameters(**{"name": "metastable", **options})
    except (NameError, AssertionError, ValueError, RuntimeError) as error:
        known = [*_SHARED, *_OWN, "slurm_partition", "slurm_account", "slurm_qos", "slurm_array_parallelism"]
        strange = next((name for name in options if name in str(error)), None)
        hint = f"; {near(strange, known)}" if strange else ""
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise GridError(f"slurm: {first}{hint}") from None
    return Slurm(made, Store(Path(store).resolve()), where, jobs)


class Slurm:
    """Jobs; see ``slurm``."""

    def __init__(self, executor: Any, store: Store, folder: Path, jobs: int) -> None:
        self.executor, self.store, self.folder, self.jobs = executor, store, folder, jobs
        self._calls = 0

    def __call__(self, run: Run, tasks: Sequence[Task], report: Report | None = None) -> Iterator[tuple[int, Any]]:
        """Carry out the tasks; runs are stored by the time they are given.

        A task that failed is given as a ``Failure`` where the run is ``Guarded``, and else raises SweepError.
        """
        if not tasks:
            return
        self._calls += 1
        notes = self.folder / f"notes-{self._calls}"
        notes.mkdir(parents=True)
        shares = _shared(len(tasks), self.jobs)
        parts = [[(number, tasks[number]) for number in share] for share in shares]
        submitted = self._submitted(run, parts, notes)
        open_ = [(job, list(share)) for job, share in zip(submitted, shares, strict=True)]
        queue = _Queue(submitted)
        try:
            while open_:
                for job, left in open_:
                    ended = queue.ended(job)  # asked first: what it noted is then there to be read
                    if left and report is not None:
                        report(left[0], 0, 0)
                    for number, result in self._noted(notes, tasks, left):
                        yield number, self._given(run, tasks[number], result)
                    if ended and left:
                        yield from self._lost(run, tasks, job, left, notes)
                open_ = [(job, left) for job, left in open_ if left]
                if open_:
                    time.sleep(_LOOK_S)
        except BaseException:
            for job, left in open_:
                if left:
                    job.cancel(check=False)
            raise
        finally:
            for job in submitted:
                if type(job).__name__ == "LocalJob":  # a process of this machine must be waited for
                    job.wait()
        shutil.rmtree(notes, ignore_errors=True)

    def _submitted(self, run: Run, parts: list[list[tuple[int, Task]]], notes: Path) -> "list[Job[None]]":
        # Pickled here, as for processes: functions go by name, and jobs import them with this process's path.
        payloads = [pickle.dumps((run, part)) for part in parts]
        n = len(payloads)
        try:
            return list(self.executor.map_array(_job, [sys.path] * n, payloads, [self.store.root] * n, [notes] * n))
        except Exception as error:
            raise SweepError(f"the jobs could not be submitted: {error}") from error

    def _noted(self, notes: Path, tasks: Sequence[Task], left: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield what a job has noted of its tasks, in their order, and take them off the list."""
        while left and (path := notes / f"{left[0]}.json").is_file():
            noted = json.loads(path.read_text(encoding="utf-8"))
            number = left.pop(0)
            yield number, Failure(**noted["failure"]) if "failure" in noted else self._loaded(tasks[number], noted)

    def _loaded(self, task: Task, noted: Mapping[str, Any]) -> Runs:
        return Runs.from_records([self.store.load(key) for key in noted["keys"]], task.config)

    def _lost(
        self, run: Run, tasks: Sequence[Task], job: "Job[None]", left: list[int], notes: Path
    ) -> Iterator[tuple[int, Any]]:
        """Give the tasks that a job ended without: what it noted late, and failures for the others."""
        error = _error(job)
        until = time.monotonic() + (0.0 if error else _GRACE_S)
        while left:
            for number, result in self._noted(notes, tasks, left):
                yield number, self._given(run, tasks[number], result)
            if time.monotonic() >= until:
                break
            time.sleep(_LOOK_S)
        while left:
            number = left.pop(0)
            failure = Failure(error or "its job ended without a word of it", log=str(job.paths.stderr), accident=True)
            yield number, self._given(run, tasks[number], failure)

    @staticmethod
    def _given(run: Run, task: Task, result: Any) -> Any:
        if isinstance(result, Failure) and not isinstance(run, Guarded):
            log = f" (log: {result.log})" if result.log else ""
            raise SweepError(f"{task.words}: {result.error}{log}")
        return result


class _Queue:
    """Whether jobs have ended. Slurm's accounts, which submitit asks, are not kept everywhere; its queue is."""

    def __init__(self, jobs: "Sequence[Job[None]]") -> None:
        self._asked = time.monotonic()
        self._absent = {job.job_id: 0 for job in jobs}  # how often each was not in the queue

    def ended(self, job: "Job[None]") -> bool:
        """Return whether a job is over, however it ended."""
        if not _on_slurm(job):
            return bool(job.done())
        if time.monotonic() - self._asked > _ASK_S:
            self._asked = time.monotonic()
            there = _asked("squeue", "--noheader", "--array", "--me", "--format=%i")
            if there is not None:  # else the controller is busy: ask again later
                self._absent = {name: 0 if name in there.split() else n + 1 for name, n in self._absent.items()}
        return job.paths.result_pickle.exists() or self._absent[job.job_id] > 1


def _on_slurm(job: "Job[None]") -> bool:
    return type(job).__name__ == "SlurmJob"


def _asked(*command: str) -> str | None:
    """Return what a command of Slurm's prints; ``None`` where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _shared(n: int, jobs: int) -> list[range]:
    """Divide so many tasks among at most so many jobs, in order and evenly."""
    size = math.ceil(n / min(n, jobs))
    return [range(first, min(first + size, n)) for first in range(0, n, size)]


def _error(job: "Job[None]") -> str:
    """Say how a job ended, in a line; empty where it ended well."""
    if not job.paths.result_pickle.exists():
        told = (_asked("scontrol", "show", "job", job.job_id, "--oneliner") or "") if _on_slurm(job) else ""
        states = [word.removeprefix("JobState=") for word in told.split() if word.startswith("JobState=")]
        state = f" ({states[0].lower()})" if states else ""
        return f"job {job.job_id} ended without a result{state}: out of time or memory, preempted, or cancelled"
    error = job.exception()
    if error is None:
        return ""
    raised = [line for line in str(error).splitlines() if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return f"job {job.job_id} failed: {raised[-1] if raised else type(error).__name__}"


# In a job -----------------------------------------------------------------------------------------------------------


def _job(path: list[str], payload: bytes, store: Path, notes: Path) -> None:
    """Carry out some tasks, store their runs and note their names."""
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    run, part = pickle.loads(payload)
    guarded = run if isinstance(run, Guarded) else Guarded(run)
    for number, task in part:
        for _, result in inline(guarded, [task]):
            _note(notes / f"{number}.json", _kept(result, Store(store)))


def _kept(result: Any, store: Store) -> dict[str, Any]:
    """Store runs and return their names, or what to say of a failure."""
    if not isinstance(result, Failure):
        try:
            records = result.records()
            for record in records:
                store.save(record)
            return {"keys": [record.key for record in records]}
        except OSError as error:
            result = Failure.of(error)
    return {"failure": vars(result)}


def _note(path: Path, body: Mapping[str, Any]) -> None:
    writing = path.with_suffix(".writing")
    writing.write_text(json.dumps(body), encoding="utf-8")
    writing.replace(path)
