"""What a fit reads of a run: how many rollouts solved and searched, by turn, at every step."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from sim.records.npz import digest
from studies.kit.words import near

__all__ = ["FEWEST", "FitError", "Observed", "from_columns", "load"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

FEWEST = 12
"""Steps below which nothing is fitted: half of them are for warming up, and six are left to predict."""
_ROLLOUTS = ("rollouts", "train/rollouts")
_ACCURACY, _SEARCH, _PREFIX = "behaviour/accuracy/turn", "behaviour/search_share/turn", "behaviour/"


class FitError(ValueError):
    """A run that cannot be fitted. The message names what is missing and the way out."""


@dataclass(frozen=True, eq=False)
class Observed:
    """A run as a fit sees it. Checked once, here."""

    name: str
    """What the run is called."""
    steps: I64
    """Optimiser steps, rising, [T]."""
    accuracy: F64
    """Share of rollouts solved by the end of turn t, [T, K]."""
    search_share: F64
    """Share of rollouts that search at turn t, [T, K]."""
    rollouts: I64
    """Rollouts that the shares are of, [T]."""

    def __post_init__(self) -> None:
        T, K = self.search_share.shape
        if self.accuracy.shape != (T, K) or self.steps.shape != (T,) or self.rollouts.shape != (T,):
            raise FitError(
                f"{self.name}: {len(self.steps)} steps, {len(self.rollouts)} numbers of rollouts, accuracy "
                f"{self.accuracy.shape} and search share {self.search_share.shape} do not fit together"
            )
        for name, share in (("accuracy", self.accuracy), ("search share", self.search_share)):
            if not ((share >= 0) & (share <= 1)).all():
                bad = int(self.steps[np.argmax(~((share >= 0) & (share <= 1)).all(1))])
                raise FitError(f"{self.name}: {name} at step {bad} is not a share; leave such steps out with --since")
        if not (np.diff(self.steps) > 0).all():
            raise FitError(f"{self.name}: steps must rise; keep one row a step")
        if not (self.rollouts > 0).all():
            raise FitError(
                f"{self.name}: {int(self.rollouts.min())} rollouts a step; give their number with --rollouts"
            )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def turns(self) -> int:
        """Turns that are observed (K)."""
        return self.search_share.shape[1]

    @property
    def unsearched(self) -> I64:
        """Rollouts whose first turn is no search, [T]: what the rival mechanisms predict."""
        return self.rollouts - self.searched[:, 0]

    @property
    def searched(self) -> I64:
        """Rollouts that search at turn t, [T, K]."""
        return np.rint(self.rollouts[:, None] * self.search_share).astype(np.int64)

    def decided(self) -> tuple[I64, I64, I64]:
        """Return what the later turns show, [T, K - 1] each: rollouts on fresh evidence, after a failure, and searches.

        A turn follows either a search (fresh evidence in hand) or a wrong answer, so that the numbers in both contexts are
        those that searched the turn before, and those neither solved nor searching then.
        """
        solved = np.rint(self.rollouts[:, None] * self.accuracy).astype(np.int64)
        before = self.searched[:, :-1]
        return before, np.maximum(self.rollouts[:, None] - solved[:, :-1] - before, 0), self.searched[:, 1:]

    def between(self, since: int | None = None, until: int | None = None) -> "Observed":
        """Return the steps from `since` to `until`, both included."""
        low = self.steps[0] if since is None else since
        high = self.steps[-1] if until is None else until
        on = (self.steps >= low) & (self.steps <= high)
        if not on.any():
            raise FitError(f"{self.name} has no step from {low} to {high}: it has {self.steps[0]} to {self.steps[-1]}")
        return replace(
            self,
            steps=self.steps[on],
            accuracy=self.accuracy[on],
            search_share=self.search_share[on],
            rollouts=self.rollouts[on],
        )

    def digest(self) -> str:
        """Return the sha256 of all that was read, the name aside.

        Turns at the end at which nothing happened are left out: where a later step goes further, they are there.
        """
        solving = np.diff(self.accuracy, axis=1, prepend=0.0)
        turns = 1 + int(np.nonzero((self.search_share > 0) | (solving != 0))[1].max(initial=0))
        shares = {"accuracy": self.accuracy[:, :turns], "search_share": self.search_share[:, :turns]}
        return digest({"steps": self.steps, "rollouts": self.rollouts, **shares})


def from_columns(name: str, columns: Mapping[str, Any], rollouts: int | None = None) -> Observed:
    """Return the run in a step table.

    Parameters
    ----------
    name
        What to call it.
    columns
        ``step``, ``behaviour/accuracy/turn0`` ..., ``behaviour/search_share/turn0`` ..., and
        ``train/rollouts`` or ``rollouts`` if there is one, [T].
    rollouts
        Rollouts a step where the table does not say.

    Raises
    ------
    FitError
        For absent columns, actions other than search and answer, or a number of rollouts that is unknown or not the table's.
    """
    names = list(columns)
    turns = sorted(int(n.removeprefix(_SEARCH)) for n in names if n.startswith(_SEARCH))
    absent = [n for n in ("step", _SEARCH + "0", _ACCURACY + "0") if n not in names]
    absent += [f"{_ACCURACY}{t}" for t in turns if f"{_ACCURACY}{t}" not in names]
    if absent:
        raise FitError(f"{name} has no column {absent[0]!r}: a fit needs search share and accuracy by turn")
    _check_actions(name, columns, names)
    steps = np.asarray(columns["step"], np.int64)
    said = next((n for n in _ROLLOUTS if n in names), None)
    if rollouts is None and said is None:
        raise FitError(f"{name} does not say how many rollouts its shares are of: give their number with --rollouts")
    number = np.full(len(steps), rollouts) if said is None else np.asarray(columns[said])
    if rollouts is not None and (number != rollouts).any():
        each = f"{number[0]:g}" if np.ptp(number) == 0 else f"{number.min():g} to {number.max():g}"
        raise FitError(f"{name} says that a step has {each} rollouts, not {rollouts}: leave --rollouts out")

    def table(prefix: str) -> F64:
        return np.stack([np.asarray(columns[f"{prefix}{t}"], np.float64) for t in turns], 1)

    return Observed(name, steps, table(_ACCURACY), table(_SEARCH), np.rint(number).astype(np.int64))


def _check_actions(name: str, columns: Mapping[str, Any], names: list[str]) -> None:
    """Raise where the agent does something for which the fitted world has no place."""
    for column in names:
        action, end, _ = column.removeprefix(_PREFIX).partition("_share/turn")
        if column.startswith(_PREFIX) and end and action not in ("search", "answer", "no_search"):
            most = float(np.nanmax(columns[column]))
            if most > 0.01:
                raise FitError(
                    f"{name} takes the action {action!r} in up to {100 * most:.0f} % of rollouts: the world that is fitted "
                    "knows search and answer only"
                )


def load(run: str, *, store: Path | None = None, rollouts: int | None = None) -> Observed:
    """Return a run by its path or its key.

    Parameters
    ----------
    run
        A folder that ``metastable read`` wrote, the folder of a run in a store, an npz of steps, or a key of `store`.
    store
        Folder of runs in which keys, or the first digits of one, are looked up.
    rollouts
        Rollouts a step; None where the run says it.

    Raises
    ------
    FitError
        When there is no such run, or it lacks what a fit needs.
    """
    path = _place(run, store)
    if path.is_file():
        from sim.records.steps import StepTable

        try:
            return from_columns(path.stem, StepTable.load(path).columns, rollouts)
        except (OSError, ValueError, BadZipFile) as error:
            raise FitError(f"{path} cannot be read: {error}") from error
    from studies.kit.reading import keeping

    if keeping.is_kept(path):
        try:
            reading = keeping.load(path, words=False)
        except keeping.KeepingError as error:
            raise FitError(str(error)) from error
        name = path.resolve().name
        if "accuracy" in reading.absent and _SEARCH + "0" in reading.steps:
            raise FitError(f"{name} has no accuracy by turn, which a fit needs: {reading.absent['accuracy']}")
        return from_columns(name, reading.steps.columns, rollouts)
    return _recorded(path, rollouts)


def _place(run: str, store: Path | None) -> Path:
    """Return the file or folder of a run."""
    path = Path(run)
    if (path / "steps.npz").is_file() or (path.is_file() and path.suffix == ".npz"):
        return path
    keys = [] if store is None else [key for key in _keys(store) if key.startswith(run)]
    if store is not None and len(keys) == 1:
        return store / keys[0]
    if len(keys) > 1:
        raise FitError(f"{run!r} begins {len(keys)} keys in {store}: {', '.join(keys[:3])} ...; give more digits")
    wanted = "a folder that `metastable read` wrote, an .npz of steps, or a key of the store"
    if run and path.exists():
        raise FitError(
            f"{run} is no run: it takes {wanted}. If it holds rollouts, `metastable read {shlex.quote(run)}` reads them "
            "first and says where its record is"
        )
    hint = "" if store is None or not run else f"; {near(run, _keys(store))}"
    raise FitError(f"no run {run!r}: give {wanted}{hint}")


def _keys(store: Path) -> list[str]:
    from sim.records.store import Store

    return Store(store).keys()


def _recorded(folder: Path, rollouts: int | None) -> Observed:
    """Return a run of a store; a simulated run's config says how many rollouts a step has."""
    from sim.records.store import Store, StoreError

    try:
        record = Store(folder.resolve().parent).load(folder.resolve().name)
    except (KeyError, StoreError) as error:
        raise FitError(f"{folder} holds no run: {error}") from error
    config = record.manifest["config"]
    columns = dict(record.steps.columns)
    if not any(name in columns for name in _ROLLOUTS) and {"prompts", "group"} <= set(config):
        columns[_ROLLOUTS[0]] = np.full(len(record.steps), int(config["prompts"]) * int(config["group"]))
    return from_columns(record.key, columns, rollouts)
