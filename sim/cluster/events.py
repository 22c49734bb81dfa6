"""What happened, as columns: one row an event, in the order in which it happened.

A *generation chunk* is one uninterrupted stretch of decoding under one version of the weights. It starts with GEN_START and
ends with exactly one of GEN_END (the turn is written), GEN_PAUSE (a weight sync, the end of a round, a token cap: the
tokens are kept), GEN_PREEMPT (the engine ran out of KV memory: kept, to be prefilled again), GEN_ABORT (the tokens are
lost). So every chunk carries the version that made its tokens, stamped when it began.

A *tool attempt* starts with TOOL_START and ends with exactly one of TOOL_END, TOOL_TIMEOUT, TOOL_FAIL, TOOL_ABORT. A
trajectory starts with TRAJ_START and ends with TRAJ_END or TRAJ_ABORT. Whatever is open when a run stops is aborted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.records.npz import npz_bytes, read_npz

__all__ = ["PAIRS", "DropReason", "Event", "EventLog", "Kind"]


class Kind(IntEnum):
    """Kinds of event; which columns each fills stands beside it (others are -1, or 0 for `value`)."""

    GROUP_ADMIT = 0
    """entity: group; version: published; turn: attempt (0, or how often the prompt was requeued); value: prompt."""
    TRAJ_START = 1
    """entity: group; traj; version: published; turn: member; value: kind of question."""
    GEN_START = 2
    """entity: engine; traj; turn; version: the engine's; value: context tokens."""
    GEN_END = 3
    """entity: engine; traj; turn; version of the chunk; value: tokens of the chunk."""
    GEN_PAUSE = 4
    """As GEN_END; the turn goes on later."""
    GEN_PREEMPT = 5
    """As GEN_END; the turn goes on later, its KV memory was taken."""
    GEN_ABORT = 6
    """As GEN_END; value: tokens lost."""
    TOOL_ENQUEUE = 7
    """entity: pool; traj; turn; version: attempt. Only where a call waits."""
    TOOL_START = 8
    """entity: pool; traj; turn; version: attempt."""
    TOOL_END = 9
    """As TOOL_START."""
    TOOL_TIMEOUT = 10
    """As TOOL_START."""
    TOOL_FAIL = 11
    """As TOOL_START."""
    TOOL_ABORT = 12
    """As TOOL_START: an attempt in service was cancelled."""
    TOOL_RETRY = 13
    """As TOOL_START, version: the attempt that follows; the backoff is over."""
    TRAJ_END = 14
    """entity: group; traj; turn: turns taken; version: published; value: reward (NaN after a failure of infrastructure)."""
    TRAJ_ABORT = 15
    """entity: group; traj; turn: turns taken; version: published."""
    GROUP_READY = 16
    """entity: group; version: published; value: members that count."""
    GROUP_HOLD = 17
    """entity: group: its members are held at their next turn until it is resumed."""
    GROUP_RESUME = 18
    """entity: group."""
    GROUP_DROP = 19
    """entity: group; version: published; value: a :class:`DropReason`."""
    TRAIN_TAKE = 20
    """entity: group; version: the learner's; turn: mini-batch; value: step."""
    TRAIN_START = 21
    """entity: step; turn: mini-batch; version: the learner's; value: tokens trained on."""
    TRAIN_END = 22
    """entity: step; turn: mini-batch; version: the learner's, before the update."""
    VERSION = 23
    """version: now published."""
    SYNC_START = 24
    """entity: engine, or -1 for all; version: the newest then (one that loads by itself may come to load a newer one)."""
    SYNC_END = 25
    """entity: engine, or -1 for all; version: the one loaded."""
    ENGINE_FAIL = 26
    """entity: engine."""
    ENGINE_UP = 27
    """entity: engine; version: the one it loads."""
    CONTROL = 28
    """version: published; value: the width the controller sets."""
    STOP = 29
    """The run is over; what follows at this instant are aborts."""


class DropReason(IntEnum):
    """Why a group was dropped."""

    OLD = 0
    """Too old."""
    LATE = 1
    """Its round closed without it."""
    INVALID = 2
    """Too few of its members count."""
    STOPPED = 3
    """The run was over."""


PAIRS: Mapping[Kind, tuple[Kind, ...]] = {
    Kind.TRAJ_START: (Kind.TRAJ_END, Kind.TRAJ_ABORT),
    Kind.GEN_START: (Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT, Kind.GEN_ABORT),
    Kind.TOOL_START: (Kind.TOOL_END, Kind.TOOL_TIMEOUT, Kind.TOOL_FAIL, Kind.TOOL_ABORT),
    Kind.TRAIN_START: (Kind.TRAIN_END,),
    Kind.SYNC_START: (Kind.SYNC_END,),
}
"""Each kind that opens something, with those that close it. A training step or sync may be open when a run stops."""


class Event(NamedTuple):
    """One row; see :class:`Kind` for what the columns mean."""

    t_s: float
    kind: int
    entity: int
    traj: int
    turn: int
    version: int
    value: float


@dataclass(frozen=True, eq=False)
class EventLog:
    """Events in order, one array a column, [n] each."""

    t_s: NDArray[np.float64]
    """Time since the run began, s; never falls."""
    kind: NDArray[np.uint8]
    """A :class:`Kind`."""
    entity: NDArray[np.int32]
    """Group, engine, pool or step, by kind; -1 for none."""
    traj: NDArray[np.int32]
    """Trajectory, numbered as they start; -1 for none."""
    turn: NDArray[np.int16]
    """Turn (or what the kind says); -1 for none."""
    version: NDArray[np.int32]
    """Version (or what the kind says); -1 for none."""
    value: NDArray[np.float64]
    """A number, by kind."""

    @classmethod
    def of(cls, rows: Sequence[tuple[float, int, int, int, int, int, float]]) -> EventLog:
        """Return the log of rows ordered as in :class:`Event`."""
        return cls.flat([x for row in rows for x in row])

    @classmethod
    def flat(cls, numbers: Sequence[float]) -> EventLog:
        """Return the log of rows written one after the other."""
        width = len(fields(cls))
        return cls(*(np.array(numbers[i::width], t) for i, t in enumerate(_TYPES)))

    def __len__(self) -> int:
        return len(self.t_s)

    def __iter__(self) -> Iterator[Event]:
        columns = [getattr(self, f.name).tolist() for f in fields(self)]
        return map(Event._make, zip(*columns, strict=True))

    def __eq__(self, other: object) -> bool:
        """Return whether every column is equal, bit for bit but for NaN."""
        if not isinstance(other, EventLog):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, f.name), getattr(other, f.name), equal_nan=f.name in ("t_s", "value"))
            for f in fields(self)
        )

    __hash__ = None  # type: ignore[assignment]

    def of_kind(self, *kinds: Kind) -> NDArray[np.intp]:
        """Return the rows of these kinds, in order."""
        return np.flatnonzero(np.isin(self.kind, kinds))

    def between(self, start_s: float, end_s: float) -> EventLog:
        """Return the events with start <= t < end."""
        first, last = np.searchsorted(self.t_s, (start_s, end_s))
        return self.rows(slice(int(first), int(last)))

    def rows(self, which: slice | NDArray[np.intp] | NDArray[np.bool_]) -> EventLog:
        """Return some of the rows."""
        return EventLog(*(getattr(self, f.name)[which] for f in fields(self)))

    def save(self, path: Path) -> None:
        """Write an npz file whose bytes depend on the events alone; an interrupted call leaves no half of one."""
        part = path.with_name(path.name + ".part")
        part.write_bytes(npz_bytes({f.name: getattr(self, f.name) for f in fields(self)}))
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> EventLog:
        """Read what :meth:`save` wrote.

        Raises
        ------
        ValueError
            When the file is no event log; names the column that is missing or of another type.
        """
        arrays = read_npz(path)
        missing = [f.name for f in fields(cls) if f.name not in arrays]
        if missing:
            raise ValueError(f"{path} is no event log: it has no column {missing[0]!r}; write one with save()")
        for f, expected in zip(fields(cls), _TYPES, strict=True):
            if arrays[f.name].dtype != expected:
                raise ValueError(
                    f"{path} is no event log: column {f.name!r} is {arrays[f.name].dtype} where {np.dtype(expected)} is due"
                )
        return cls(*(arrays[f.name] for f in fields(cls)))


_TYPES = (np.float64, np.uint8, np.int32, np.int32, np.int16, np.int32, np.float64)
