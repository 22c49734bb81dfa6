"""A study over a grid, and what came out of it."""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.records.config import to_dict
from sim.records.fingerprint import code_fingerprint
from sim.records.store import Store
from studies import FOLDER
from studies.kit.executors import Executor, inline
from studies.kit.phase.axes import Axis, Point, axis, check_keys, points
from studies.kit.phase.ledger import Entry, Ledger, point_key
from studies.kit.phase.places import GridError, locate
from studies.kit.phase.points import Arms, Request, check, scout
from studies.kit.phase.running import Progress, Runner, Watch
from studies.kit.phase.target import Target, find
from studies.kit.seeds import Seeds, parse

__all__ = ["Setting", "Swept", "sweep_study"]

Grid = Mapping[str, str | Iterable[Any]]
"""Dotted path to values, or to text as on the command line: ``{"world.known": "0.1:0.6:11", "group": (4, 8)}``."""


@dataclass(frozen=True)
class Swept:
    """A study over a grid."""

    target: Target
    """The study."""
    base: Any
    """The config of its first arm, as the study has it."""
    axes: tuple[Axis, ...]
    """The keys with their values."""
    entries: tuple[Entry, ...]
    """What each point came to, the last key running fastest."""
    rung: str
    """Where it ran."""
    seeds: int
    """Seeds of the first claim."""
    folder: Path
    """Where the ledger lies."""
    notes: tuple[str, ...]
    """What was found damaged and made again."""
    fresh: int
    """Points that were not in the ledger before."""

    @property
    def failed(self) -> tuple[Entry, ...]:
        """The points that failed."""
        return tuple(entry for entry in self.entries if entry.failure is not None)


@dataclass(frozen=True)
class Setting:
    """What a sweep and a bisection share: the study, where and with what it runs, and where answers go."""

    target: Target
    """The study."""
    request: Request
    """What the study asks for by itself."""
    rung: str
    """Where it runs."""
    seeds: Seeds
    """With which seeds."""
    arms: Arms
    """Which arms the keys are set in."""
    store: Store
    """Where the runs lie."""
    root: Path
    """Where ledgers lie."""
    executor: Executor
    """What carries out the runs."""
    watch: Watch | None
    """What is told how far it is."""
    retry_failed: bool
    """Whether points that failed are tried again whatever the reason."""

    @classmethod
    def of(
        cls,
        study: str,
        *,
        seeds: int | str | None = None,
        rung: str = "sim",
        executor: Executor = inline,
        store: Path | str = "runs/store",
        ledgers: Path | str = "runs/sweeps",
        arms: Arms = "all",
        retry_failed: bool = False,
        watch: Watch | None = None,
        folder: Path = FOLDER,
    ) -> "Setting":
        """Find the study and ask it for its configs; see ``sweep_study``."""
        if arms not in ("all", "some"):
            raise GridError(f"arms={arms!r}: it is 'all' or 'some'")
        try:
            chosen = parse(None if seeds is None else str(seeds), rung)
        except ValueError as error:
            raise GridError(str(error)) from None
        if chosen.cap is not None:
            raise GridError(f"seeds {seeds}: the points of a sweep take one number of seeds, such as 8")
        target = find(study, rung, folder)
        request = scout(target, rung=rung, seeds=chosen)
        root = Path(ledgers)
        for path in (Path(store), root):
            _writable(path)
        return cls(target, request, rung, chosen, arms, Store(Path(store)), root, executor, watch, retry_failed)

    @property
    def base(self) -> Any:
        """The config of the study's first arm."""
        return next(iter(self.request.configs.values()))

    def axis(self, path: str, given: str | Iterable[Any]) -> Axis:
        """Return an axis, of values that the place takes in the first arm that has it."""
        places, error = [], None
        for config in self.request.configs.values():
            try:
                places.append(locate(config, path))
            except GridError as lacking:
                error = error or lacking
        if not places and error is not None:
            raise error
        return axis(places[0], given)

    def check(self, point: Point) -> None:
        """Raise GridError where the keys contradict what the study does with its arms."""
        check(self.target, point, rung=self.rung, seeds=self.seeds, arms=self.arms)

    def ledger(self, **what: Any) -> Ledger:
        """Open the ledger of what is asked."""
        about = {
            "study": self.target.name,
            "claims": [claim.id for claim in self.target.claims],
            "rung": self.rung,
            "arms": self.arms,
            "seeds": [self.seeds.base, self.seeds.n],
            "fingerprint": code_fingerprint(self.rung),
            "study_fingerprint": self.target.fingerprint,
            **what,
        }
        found = Ledger(self.root, about)
        found.open()
        return found

    def run(self, wanted: Sequence[Point], ledger: Ledger, known: Mapping[str, Entry]) -> list[Entry]:
        """Return what each point came to, running those that are not known or are to be tried again."""
        keys = [point_key(point) for point in wanted]
        found = {key: known[key] for key in keys if key in known and not self._again(known[key])}
        todo = [point for point, key in zip(wanted, keys, strict=True) if key not in found]
        if self.watch is not None:
            self.watch(Progress(len(found), len(wanted), sum(e.failure is not None for e in found.values()), None))
        runner = Runner(self.target, self.rung, self.seeds, self.arms, self.store, self.executor, ledger, self.watch)
        made = runner(todo, len(wanted), len(found)) if todo else {}
        found |= {point_key(todo[number]): entry for number, entry in made.items()}
        return [found[key] for key in keys]

    def _again(self, entry: Entry) -> bool:
        """Whether a point is to be tried again: where it failed by accident, or where that is asked for."""
        return entry.failure is not None and (self.retry_failed or entry.failure.accident)


def sweep_study(study: str, grid: Grid, **options: Any) -> Swept:
    """Run a study at every point of a grid and return what its claims come to there.

    Points of the ledger are not run again, nor runs of the store; a point that fails is recorded with its error and the
    others go on.

    Parameters
    ----------
    study
        A study's name, its file's path, or the id of one of its claims.
    grid
        Dotted path into the configs of its arms, to values or to text such as ``"0.1:0.6:11"``.
    seeds
        A number, ``"fresh:BASE"``, or None for each claim's own.
    rung
        ``"sim"``, ``"minimodel"`` or ``"fullscale"``.
    executor
        ``inline``, ``processes(n)``, or ``slurm(...)`` of :mod:`studies.kit.slurm`.
    store, ledgers
        Folders of the runs and of the sweeps.
    arms
        ``"all"``: a key that some arms lack, or that the study itself varies, is an error; ``"some"``: it is set where
        it is.
    retry_failed
        Whether points that failed are tried again; those that failed by accident always are.
    watch
        Called with a ``Progress`` now and then.
    folder
        Folder of the studies.

    Raises
    ------
    GridError
        For an unknown study, key or value (with near misses), keys that contradict each other or the study, an empty
        grid, or more than 100,000 points, before anything runs.
    LedgerError, SweepError, OSError
        When the ledger is a newer program's, the code changes meanwhile, or something cannot be written. What was
        stored by then stays, and the same call goes on from there.
    """
    setting = Setting.of(study, **options)
    if not grid:
        raise GridError(f"the grid is empty; {_keys(setting)}")
    check_keys(list(grid))
    axes = tuple(setting.axis(path, given) for path, given in grid.items())
    wanted = list(points(axes))
    setting.check(wanted[0])
    ledger = setting.ledger(grid={each.path: [to_dict(value) for value in each.values] for each in axes})
    known = ledger.entries(wanted)
    entries = setting.run(wanted, ledger, known)
    fresh = sum(entry is not known.get(point_key(entry.point)) for entry in entries)
    seeds = len(setting.seeds.of(setting.target.claims[0].seeds_at(setting.rung)))
    return Swept(
        setting.target,
        setting.base,
        axes,
        tuple(entries),
        setting.rung,
        seeds,
        ledger.folder,
        tuple(ledger.notes),
        fresh,
    )


def _keys(setting: Setting) -> str:
    """Say what can be varied."""
    from studies.kit.phase.places import paths

    names = [path for path in paths(setting.base) if locate(setting.base, path).numeric]
    return f"give keys with values, such as {', '.join(names[:6])}"


def _writable(path: Path) -> None:
    """Raise OSError, naming the folder, where no file can be written into it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".writing-", dir=path)
    except OSError as error:
        raise OSError(error.errno, f"nothing can be written to {path}: {error.strerror}; name another folder") from None
    os.close(handle)
    Path(name).unlink()
