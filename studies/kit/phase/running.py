"""Running points: what all of them need goes through the executor together, and each is concluded as soon as it can be.

    advance every point -> runs they ask for -> executor -> store -> advance the points that have theirs -> ledger

There is no barrier between points. One that fails is recorded with its error, and the others go on. Points of a study that
sweeps again after its first runs come round once more; all their second sweeps again go together.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from sim.records.fingerprint import code_fingerprint
from sim.records.run import RunRecord, Runs
from sim.records.store import Store
from studies.kit.executors import Executor, Run, SweepError, Task
from studies.kit.guard import Failure, Guarded
from studies.kit.phase.axes import Point
from studies.kit.phase.ledger import Entry, Ledger
from studies.kit.phase.points import Arms, Request, advance
from studies.kit.phase.target import Target
from studies.kit.phase.words import label
from studies.kit.progress import Status, carry_out
from studies.kit.seeds import Seeds
from studies.kit.sweep import BLOCK, blocks, keys_of, stranger, trainer

__all__ = ["Progress", "Runner", "Watch"]


@dataclass(frozen=True)
class Progress:
    """Where a sweep of points stands."""

    points: int
    """Points concluded or failed, those of the ledger among them."""
    of: int
    """Points of the sweep."""
    failed: int
    """Those that failed."""
    status: Status | None
    """How far the runs are that are being made now; ``None`` between them."""


Watch = Callable[[Progress], None]
"""Shows how far a sweep of points is."""


@dataclass
class _Open:
    """A point under way."""

    point: Point
    """The point."""
    request: Request
    """What its study asks for."""
    keys: dict[str, dict[int, str]]
    """The runs' names, by arm and seed."""
    missing: set[str]
    """Those that are not there yet."""
    held: dict[str, RunRecord] = field(default_factory=dict)
    """Those just made."""


@dataclass
class _Answer:
    """Answers what a study asks for in one pass, where every run is there."""

    store: Store
    """Where runs lie."""
    name: Callable[[Request], dict[str, dict[int, str]]]
    """Gives the runs' names, by arm and seed; they are hashes of the whole config, so none is computed twice."""
    before: _Open | None
    """What the pass before asked for, with the runs made since."""
    keys: dict[str, dict[int, str]] = field(default_factory=dict)
    """The names of the runs asked for last."""

    def __call__(self, request: Request) -> dict[str, Runs] | None:
        before = self.before
        self.keys = before.keys if before is not None and request == before.request else self.name(request)
        held = before.held if before is not None else {}
        if not all(key in held or self.store.has(key) for by_seed in self.keys.values() for key in by_seed.values()):
            return None
        return {
            arm: Runs.from_records([held.get(key) or self.store.load(key) for key in by_seed.values()], config)
            for (arm, config), by_seed in zip(request.configs.items(), self.keys.values(), strict=True)
        }


@dataclass(frozen=True)
class _Block(Task):
    """A block of runs that points wait for."""

    keys: dict[int, str]
    """The runs' names, by seed."""


@dataclass
class Runner:
    """Runs points of one study and writes what they come to into a ledger."""

    target: Target
    """The study."""
    rung: str
    """Where it runs."""
    seeds: Seeds
    """With which seeds."""
    arms: Arms
    """Which arms the keys are set in."""
    store: Store
    """Where the runs lie."""
    executor: Executor
    """What carries out the runs."""
    ledger: Ledger
    """Where the answers are written."""
    watch: Watch | None = None
    """What is told how far it is."""

    def __call__(self, points: Sequence[Point], of: int | None = None, before: int = 0) -> dict[int, Entry]:
        """Run the points and return what each came to, by its place in ``points``; ``before`` of ``of`` were done earlier.

        SweepError when runs come back as others than asked for; OSError when they cannot be written. What is stored and
        written by then stays.
        """
        self._of, self._before = of or len(points), before
        self._entries: dict[int, Entry] = {}
        self._status: Status | None = None
        opened = dict(self._advanced((number, point, None) for number, point in enumerate(points)))
        while opened:
            again: dict[int, _Open] = {}
            for run, numbers in _by_run(opened).items():
                again |= self._made(run, {number: opened[number] for number in numbers})
            opened = again
        return self._entries

    # Points -----------------------------------------------------------------------------------------------------------

    def _advanced(self, points: Iterable[tuple[int, Point, _Open | None]]) -> Iterator[tuple[int, _Open]]:
        """Advance points, with what was made for them, and yield those that need runs; the others are over."""
        for number, point, before in points:
            answer = _Answer(self.store, self._keys, before)
            found = advance(self.target, point, rung=self.rung, seeds=self.seeds, arms=self.arms, answer=answer)
            if isinstance(found, Request):
                every = {key for by_seed in answer.keys.values() for key in by_seed.values()}
                missing = {key for key in every if not self.store.has(key)}
                yield number, _Open(point, found, answer.keys, missing)
            elif isinstance(found, Failure):
                self._over(number, Entry(point, failure=found))
            else:
                self._over(number, Entry(point, found))

    def _over(self, number: int, entry: Entry) -> None:
        self.ledger.write(entry)
        self._entries[number] = entry
        self._say(self._status)

    def _keys(self, request: Request) -> dict[str, dict[int, str]]:
        fingerprint = code_fingerprint(self.rung)
        return keys_of(request.configs, request.seeds, self._study, self.rung, fingerprint)

    # Runs -------------------------------------------------------------------------------------------------------------

    def _made(self, run: Run | None, opened: dict[int, _Open]) -> dict[int, _Open]:
        """Make the runs of some points, conclude those that have theirs, and return those that ask for more."""
        tasks = self._tasks(opened)
        again = self._closed(opened, list(opened))  # another sweep may have stored theirs a moment ago
        waiting: dict[str, list[int]] = {}
        for number, each in opened.items():
            for key in each.missing:
                waiting.setdefault(key, []).append(number)
        every = {key for each in opened.values() for by_seed in each.keys.values() for key in by_seed.values()}
        guarded = Guarded(run or trainer(self.rung))
        stored = len(every) - len(waiting)
        with closing(carry_out(guarded, tasks, self.executor, self._say, stored, len(every))) as made:
            for task, result in made:
                mine = sorted({number for key in task.keys.values() for number in waiting[key]} & opened.keys())
                if isinstance(result, Failure):
                    for number in mine:
                        failure = replace(result, error=f"{task.words}: {result.error}")
                        self._over(number, Entry(opened.pop(number).point, failure=failure))
                else:
                    self._keep(task, result, [opened[number] for number in mine])
                    again |= self._closed(opened, mine)
        return again

    def _closed(self, opened: dict[int, _Open], numbers: list[int]) -> dict[int, _Open]:
        """Take the points that have their runs out of ``opened`` and advance them; return those that ask for more."""
        ready = [(number, opened.pop(number)) for number in numbers if not opened[number].missing]
        return dict(self._advanced((number, each.point, each) for number, each in ready))

    def _tasks(self, opened: dict[int, _Open]) -> list[_Block]:
        """Return the blocks to be made; a run that several points need is in one of them."""
        found: list[_Block] = []
        begun: set[str] = set()
        for each in opened.values():
            size = each.request.block or BLOCK[self.rung]
            have = begun | ({key for by_seed in each.keys.values() for key in by_seed.values()} - each.missing)
            for task in blocks(each.request.configs, each.keys, have, self._study, size):
                keys = {seed: each.keys[task.label][seed] for seed in task.seeds}
                begun.update(keys.values())
                found.append(_Block(f"{label(each.point)}: {task.label}", task.config, task.seeds, task.study, keys))
        return found

    def _keep(self, task: _Block, runs: Any, points: list[_Open]) -> None:
        """Store what came back and hand it to the points that wait for it."""
        for record in runs.records():
            if record.key != task.keys.get(record.seed):
                raise SweepError(stranger(task, record, self._study, self.rung, code_fingerprint(self.rung)))
            self.store.save(record)
            for each in points:
                if record.key in each.missing:
                    each.missing.discard(record.key)
                    each.held[record.key] = record

    @property
    def _study(self) -> str:
        """Name of the study in records: that of its file, as under pytest."""
        return self.target.path.stem.removeprefix("study_")

    def _say(self, status: Status | None) -> None:
        self._status = status
        if self.watch is not None:
            failed = sum(entry.failure is not None for entry in self._entries.values())
            self.watch(Progress(self._before + len(self._entries), self._of, failed, status))


def _by_run(opened: dict[int, _Open]) -> dict[Run | None, list[int]]:
    """Divide points by what trains their runs: an executor takes tasks of one function."""
    found: dict[Run | None, list[int]] = {}
    for number, each in opened.items():
        found.setdefault(each.request.run, []).append(number)
    return found
