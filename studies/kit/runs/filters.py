"""Which runs are meant: by study, rung, seed, code, age, and any setting of the config."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from studies.kit.words import CommandError, near

if TYPE_CHECKING:
    from studies.kit.runs.listing import Row

__all__ = ["SORTS", "Condition", "Filters", "Sort", "cutoff", "ordered", "select"]

# One value an option, which may be repeated: an option that took several would swallow the keys that follow it.
_Texts = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME")]
_Seeds = Annotated[tuple[int, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="SEED")]
_Conditions = Annotated[tuple[str, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PATH=VALUE")]
_Age = Annotated[str | None, tyro.conf.arg(metavar="AGE")]
Sort = Literal["study", "key", "seed", "steps", "recorded", "wall", "cpu", "size"]
"""What a list may be sorted by; ``study`` goes on with rung, config and seed."""
SORTS: tuple[str, ...] = ("study", "key", "seed", "steps", "recorded", "wall", "cpu", "size")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Filters:
    """What a run must be to be meant. Options that are repeated widen a filter; different options narrow it."""

    study: _Texts = ()
    """Only runs of this study."""
    rung: _Texts = ()
    """Only runs of this rung."""
    seed: _Seeds = ()
    """Only this seed."""
    code: Literal["any", "this", "other"] = "any"
    """Only runs made by the code that is running, or by other code."""
    where: _Conditions = ()
    """Only runs with this setting, such as world.known=.35 or 'steps>100' (= != < <= > >=); all must hold."""
    newer: _Age = None
    """Only runs recorded since: an age such as 7d, 12h or 30m, or a date."""
    older: _Age = None
    """Only runs recorded before: an age such as 7d, 12h or 30m, or a date."""

    @property
    def any_given(self) -> bool:
        """Whether anything is filtered at all."""
        return self != Filters()


@dataclass(frozen=True)
class Condition:
    """A setting of the config that must be equal to, unlike, below or above a value."""

    path: str
    """Dotted path of the setting."""
    operator: str
    """``=``, ``!=``, ``<``, ``<=``, ``>`` or ``>=``."""
    text: str
    """The value as it was written."""

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Read ``PATH=VALUE``; CommandError for anything else."""
        found = re.fullmatch(r"([^=<>!]+)(<=|>=|!=|=|<|>)(.*)", text, flags=re.DOTALL)
        if found is None:
            raise CommandError(f"--where {text}: give PATH=VALUE, such as world.known=.35, or PATH<VALUE, PATH>VALUE")
        condition = cls(*(part.strip() for part in found.groups()))
        if condition.operator in ("<", "<=", ">", ">=") and not _is_number(condition.value):
            raise CommandError(f"--where {text}: {condition.operator} compares numbers, not {condition.text!r}")
        return condition

    @property
    def value(self) -> Any:
        """The value as JSON reads it; ``.35`` too is a number, and what is neither is text."""
        try:
            return json.loads(self.text)
        except ValueError:
            pass
        try:
            return float(self.text)
        except ValueError:
            return self.text

    def holds(self, leaf: Any) -> bool:
        """Whether a leaf meets it. A type may be named without its module."""
        if self.operator in ("=", "!="):
            return self._equals(leaf) == (self.operator == "=")
        if not _is_number(leaf):
            return False
        value = self.value
        below, equal = leaf < value, leaf == value
        return {"<": below, "<=": below or equal, ">": leaf > value, ">=": leaf > value or equal}[self.operator]

    def _equals(self, leaf: Any) -> bool:
        if isinstance(leaf, str):
            return leaf == self.text or (self.path.split(".")[-1] == "type" and leaf.rpartition(".")[2] == self.text)
        value = self.value
        if _is_number(leaf):
            return _is_number(value) and bool(leaf == value)
        return type(leaf) is type(value) and bool(leaf == value)


def select(rows: Iterable["Row"], filters: Filters, now: datetime | None = None) -> "list[Row]":
    """Return the runs among ``rows`` that are meant, in their order.

    CommandError for a study, rung, seed or setting that no run of the store has (with near misses), or an age that
    cannot be read. A run whose provenance does not say when it was recorded is neither newer nor older than anything.
    """
    runs = [row for row in rows if row.is_run]
    _known("study", filters.study, {row.study for row in runs})
    _known("rung", filters.rung, {str(row.manifest["rung"]) for row in runs})
    chosen = [row for row in runs if _fits(row, filters)]
    now = now or datetime.now(UTC)
    if filters.newer is not None:
        since = cutoff("--newer", filters.newer, now)
        chosen = [row for row in chosen if row.recorded is not None and row.recorded >= since]
    if filters.older is not None:
        before = cutoff("--older", filters.older, now)
        chosen = [row for row in chosen if row.recorded is not None and row.recorded < before]
    return _where(chosen, runs, [Condition.parse(text) for text in filters.where])


def ordered(rows: "Sequence[Row]", by: Sort, reverse: bool = False) -> "list[Row]":
    """Return runs sorted; those without the number they are sorted by come last either way."""
    names = {"wall": "wall_s", "cpu": "cpu_s"}

    def key(row: "Row") -> Any:
        manifest = row.manifest
        if by == "study":
            return row.study, manifest["rung"], json.dumps(row.config, sort_keys=True), manifest["seed"]
        if by in names:
            return row.seconds(names[by])
        plain = {"key": row.name, "seed": manifest["seed"], "steps": manifest["rows"], "size": row.size}
        return row.recorded if by == "recorded" else plain[by]

    have = [row for row in rows if key(row) is not None]
    lack = [row for row in rows if key(row) is None]
    return sorted(have, key=key, reverse=reverse) + lack


def cutoff(option: str, text: str, now: datetime) -> datetime:
    """Return the moment that an age before ``now`` or a date names; CommandError for what is neither.

    >>> from datetime import UTC, datetime
    >>> str(cutoff("--older", "36h", datetime(2026, 3, 4, tzinfo=UTC)))
    '2026-03-02 12:00:00+00:00'
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?|\.\d+)([smhdw])", text)
    try:
        if found is not None:
            return now - timedelta(seconds=float(found[1]) * _UNITS[found[2]])
        date = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CommandError(
            f"{option} {text}: give an age such as 7d, 12h or 30m, or a date such as 2026-03-04"
        ) from None
    return date.replace(tzinfo=UTC) if date.tzinfo is None else date


def _fits(row: "Row", filters: Filters) -> bool:
    manifest = row.manifest
    return (
        (not filters.study or row.study in filters.study)
        and (not filters.rung or manifest["rung"] in filters.rung)
        and (not filters.seed or manifest["seed"] in filters.seed)
        and filters.code in ("any", row.code)
    )


def _where(chosen: "list[Row]", runs: "Sequence[Row]", conditions: Sequence[Condition]) -> "list[Row]":
    if not conditions:
        return chosen
    from sim.records.config import flatten

    leaves: dict[str, dict[str, Any]] = {}  # by config as text: many runs share one

    def of(row: "Row") -> dict[str, Any]:
        text = json.dumps(row.config, sort_keys=True)
        if text not in leaves:
            leaves[text] = flatten(row.config)
        return leaves[text]

    paths = {path for row in runs for path in of(row)}
    for condition in conditions:
        if condition.path not in paths:
            raise CommandError(f"--where: no run has a setting {condition.path!r}; {near(condition.path, paths)}")
    return [row for row in chosen if all(c.path in of(row) and c.holds(of(row)[c.path]) for c in conditions)]


def _known(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    for name in asked:
        if name not in known:
            raise CommandError(f"no run of {what} {name!r} here; {near(name, known)}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
