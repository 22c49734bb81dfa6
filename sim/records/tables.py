"""The flat tables of rollouts: one row per group, trajectory, segment, turn, token, and offsets from each to the next.

Rows of one parent are neighbours, and ``offsets[i]:offsets[i + 1]`` are the rows of parent i in the next table. A
column left out is filled with the value that says "not recorded": NaN for numbers, -1 for versions and states.
"""

# ruff: noqa: RUF009 (column() is dataclasses.field() with this module's metadata)

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import numpy as np

__all__ = [
    "Groups",
    "Outcome",
    "Pauses",
    "Reason",
    "RecordError",
    "Segments",
    "Table",
    "Tokens",
    "Trajectories",
    "Turns",
    "as_column",
    "parents",
    "same",
]

Array = np.ndarray


class RecordError(ValueError):
    """A record contradicts itself. The message names table, field, row, value, bound and the way out."""


class Outcome(IntEnum):
    """How a trajectory ended."""

    SOLVED = 0
    WRONG = 1
    TURN_LIMIT = 2
    TRUNCATED = 3
    INFRASTRUCTURE_FAILURE = 4
    NOT_RECORDED = 5

    @property
    def words(self) -> str:
        """The name as prose."""
        return self.name.lower().replace("_", " ")


class Reason(IntEnum):
    """Why a segment began. All but START continue another segment, their parent."""

    START = 0
    COMPACTION = 1
    RESUME = 2
    BRANCH = 3


_ACCEPTS = {"text": "U", "integer": "iu", "flag": "b", "number": "iuf", "id": "iuU"}
_TYPES: dict[str, type] = {"text": np.str_, "integer": np.int64, "flag": np.bool_, "number": np.float64}


def column(kind: str, *, fill: Any = None, extra: int = 0) -> Any:
    """A field that holds an array of ``kind`` with one entry per row, and ``extra`` more.

    Kinds are integer (int64), number (float64), flag (bool), text, and id (integer or text). A column with a ``fill``
    may be left out and is then full of it.
    """
    metadata = {"kind": kind, "fill": fill, "extra": extra}
    return dataclasses.field(metadata=metadata) if fill is None else dataclasses.field(default=None, metadata=metadata)


def as_column(name: str, values: Any, kind: str) -> Array:
    """``values`` as a read-only array of ``kind``. RecordError if that would lose or invent something."""
    array = np.asarray(values)
    if array.size == 0:
        array = array.astype(_TYPES["integer" if kind == "id" else kind])
    if array.dtype.kind not in _ACCEPTS[kind]:
        raise RecordError(f"{name} is an array of {array.dtype}: it must be of kind {kind}; convert it explicitly")
    if array.dtype.kind == "U":  # as narrow as its longest text, so that equal columns have equal bytes
        array = np.array(array.ravel().tolist(), dtype=np.str_).reshape(array.shape)
    else:
        array = np.array(array, dtype=_TYPES["integer" if kind == "id" else kind], order="C")
    array.flags.writeable = False
    return array


def parents(offsets: Array) -> Array:
    """The row of the parent of each child row: offsets [0, 2, 2, 3] -> [0, 0, 2]."""
    return np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))


def same(a: Array, b: Array) -> bool:
    """Whether two columns hold the same values, NaN being equal to NaN."""
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind == "f" and b.dtype.kind == "f"))


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length. The first field gives the number of rows."""

    def __post_init__(self) -> None:
        name = type(self).__name__.lower()
        fields = dataclasses.fields(self)
        rows = len(getattr(self, fields[0].name))
        for field in fields:
            length, value = rows + field.metadata["extra"], getattr(self, field.name)
            if value is None:
                value = np.full(length, field.metadata["fill"])
            array = as_column(f"{name}.{field.name}", value, field.metadata["kind"])
            if array.shape != (length,):
                raise RecordError(
                    f"{name}.{field.name} has shape {array.shape}: must be ({length},) for the {rows} rows of "
                    f"{name}.{fields[0].name}; give every row a value or leave the column out"
                )
            object.__setattr__(self, field.name, array)

    def __len__(self) -> int:
        return len(getattr(self, dataclasses.fields(self)[0].name))

    def columns(self) -> dict[str, Array]:
        """Name to array, in order of declaration."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def rows(self, start: int, stop: int) -> Self:
        """The rows from ``start`` up to ``stop``, for a table without offsets."""
        return type(self)(**{name: values[start:stop] for name, values in self.columns().items()})

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        theirs = other.columns()
        return all(same(values, theirs[name]) for name, values in self.columns().items())


@dataclass(frozen=True, eq=False)
class Groups(Table):
    """Trajectories that are compared with each other. The key is (task, role), never a trajectory's own id."""

    task: Array = column("id")
    """The question or task: an integer or a text."""
    offsets: Array = column("integer", extra=1)
    """Into the trajectories."""
    role: Array = column("text", fill="main")
    """``main``, or the name of the sub-agent whose trajectories these are."""
    baseline: Array = column("number", fill=math.nan)
    """Reward of a separate (greedy) rollout, for rules that subtract one."""


@dataclass(frozen=True, eq=False)
class Trajectories(Table):
    """One attempt at a task, from first prompt to reward."""

    reward: Array = column("number")
    """Final reward. NaN says that there is none, which only an infrastructure failure or an unrecorded outcome excuses."""
    outcome: Array = column("integer")
    """An `Outcome`."""
    offsets: Array = column("integer", extra=1)
    """Into the segments."""
    start: Array = column("number", fill=math.nan)
    """When it began, in seconds of the run's clock."""
    end: Array = column("number", fill=math.nan)
    """When its reward was known, in seconds."""


@dataclass(frozen=True, eq=False)
class Segments(Table):
    """One contiguous prompt with what was sampled after it. Nothing before it is seen by the policy."""

    parent: Array = column("integer")
    """Row of the segment that this one continues or was called from; -1 for none."""
    offsets: Array = column("integer", extra=1)
    """Into the turns."""
    role: Array = column("text", fill="main")
    """``main``, or a sub-agent's name."""
    reason: Array = column("integer", fill=int(Reason.START))
    """A `Reason`."""
    version_oldest: Array = column("integer", fill=-1)
    """Oldest policy version that sampled in it; -1 where nobody noted it."""
    version_newest: Array = column("integer", fill=-1)
    """Newest policy version that sampled in it; -1 where nobody noted it."""
    start: Array = column("number", fill=math.nan)
    """When generation began, in seconds."""
    end: Array = column("number", fill=math.nan)
    """When generation ended, in seconds."""
    take_time: Array = column("number", fill=math.nan)
    """When the learner took it, in seconds."""
    take_version: Array = column("integer", fill=-1)
    """The learner's version when it took it; -1 where nobody noted it."""
    pause_offsets: Array = column("integer", fill=0, extra=1)
    """Into the pauses."""


@dataclass(frozen=True, eq=False)
class Pauses(Table):
    """Spans in which a segment's generation stood still: a tool ran, or the engine was given to others."""

    start: Array = column("number")
    """When it stopped, in seconds."""
    end: Array = column("number")
    """When it went on, in seconds."""


@dataclass(frozen=True, eq=False)
class Turns(Table):
    """One decision of the policy and what came back."""

    action: Array = column("integer")
    """Which decision: a tool, or to answer."""
    index: Array = column("integer")
    """Place in the trajectory, from 0. A turn that was interrupted and resumed keeps its index in both segments."""
    context: Array = column("integer", fill=-1)
    """What the policy conditions on, as a number."""
    state_id: Array = column("integer", fill=-1)
    """Number shared by identical observations."""
    generated: Array = column("integer", fill=0)
    """Tokens sampled in the turn."""
    observed: Array = column("integer", fill=0)
    """Tokens that came back from the environment."""
    logp_behaviour: Array = column("number", fill=math.nan)
    """Log-probability of the decision under the policy that made it, in nats."""
    logp_proximal: Array = column("number", fill=math.nan)
    """The same under the policy at the start of the update."""
    logp_reference: Array = column("number", fill=math.nan)
    """The same under the reference policy."""
    entropy: Array = column("number", fill=math.nan)
    """Mean entropy of the distributions of the turn's first tokens, in nats."""
    offsets: Array = column("integer", fill=0, extra=1)
    """Into the tokens; all 0 where no tokens are kept."""


@dataclass(frozen=True, eq=False)
class Tokens(Table):
    """Every token of a turn: the prompt before it (first turn of a segment), what was sampled, what came back."""

    id: Array = column("integer")
    """The token as it was sampled or fed, never encoded again from text."""
    sampled: Array = column("flag")
    """Whether the policy sampled it."""
    train: Array = column("flag")
    """Whether the loss may touch it; only sampled tokens."""
    version: Array = column("integer", fill=-1)
    """Policy version that sampled it; -1 where nobody noted it."""
    logp_behaviour: Array = column("number", fill=math.nan)
    """Log-probability under the policy that sampled it, in nats."""
    logp_proximal: Array = column("number", fill=math.nan)
    """The same under the policy at the start of the update."""
    logp_reference: Array = column("number", fill=math.nan)
    """The same under the reference policy."""
