"""The record of rollouts: group -> trajectory -> segment -> turn -> token, as flat tables with offsets.

A group is all attempts at one (task, role). A trajectory is a tree of segments, each one contiguous prompt with what
was sampled after it, so that compaction, sub-agents, branches, groups of unequal size and interrupted rollouts all fit.
Flat is what is kept and saved; `Rollouts.padded` is what update rules compute on; `Rollouts.trajectory` is for reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.records import nested
from sim.records.checks import check_rollouts
from sim.records.npz import digest, npz_bytes, read_npz
from sim.records.padded import Padded, PaddedTokens, pad_tokens, pad_turns, unpad
from sim.records.tables import (
    Array,
    Groups,
    Outcome,
    Pauses,
    Reason,
    RecordError,
    Segments,
    Tokens,
    Trajectories,
    Turns,
)

__all__ = [
    "Groups",
    "Outcome",
    "Padded",
    "PaddedTokens",
    "Pauses",
    "Reason",
    "RecordError",
    "Rollouts",
    "Segments",
    "Tokens",
    "Trajectories",
    "Turns",
]

SCHEMA = 1
"""Version of the tables' layout on disk."""

_TABLES: Mapping[str, Any] = {
    "groups": Groups,
    "trajectories": Trajectories,
    "segments": Segments,
    "turns": Turns,
    "tokens": Tokens,
    "pauses": Pauses,
}


@dataclass(frozen=True, eq=False)
class Rollouts:
    """Trajectories of one batch or one evaluation.

    Everything is checked at construction (see `sim.records.checks`): offsets cover the next table exactly, groups have
    different (task, role), segments come after their parents, times and versions are in order, ``train`` implies
    ``sampled``, a reward is missing only where the infrastructure failed or nothing says how the trajectory ended.
    RecordError otherwise.
    """

    groups: Groups
    """One row per (task, role)."""
    trajectories: Trajectories
    """One row per attempt, neighbours in their group."""
    segments: Segments
    """One row per contiguous prompt, neighbours in their trajectory."""
    turns: Turns
    """One row per decision, neighbours in their segment."""
    tokens: Tokens | None = None
    """One row per token, neighbours in their turn; None in the simulator."""
    pauses: Pauses | None = None
    """One row per pause, neighbours in their segment."""

    def __post_init__(self) -> None:
        pauses = Pauses(start=np.zeros(0), end=np.zeros(0)) if self.pauses is None else self.pauses
        object.__setattr__(self, "pauses", pauses)
        check_rollouts(self.groups, self.trajectories, self.segments, self.turns, self.tokens, pauses)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollouts):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _TABLES)

    def padded(self, role: str | None = "main") -> Padded:
        """Turns of the segments of ``role`` (of all for None) as ``[Q, G, K]``, with masks."""
        return pad_turns(self, role)

    def padded_tokens(self, role: str | None = "main") -> PaddedTokens:
        """Tokens of the segments of ``role`` (of all for None) as ``[Q, G, T]``, with masks."""
        return pad_tokens(self, role)

    @classmethod
    def from_padded(cls, padded: Padded) -> Rollouts:
        """The record of a rectangular batch, one main segment per trajectory.

        Exact inverse of `padded` for such records without tokens and pauses whose segments last as long as their
        trajectory, as the simulator's do.
        """
        return cls(**unpad(padded))

    @classmethod
    def from_trajectories(
        cls,
        trajectories: Iterable[nested.Trajectory],
        baselines: Mapping[tuple[int | str, str], float] | None = None,
    ) -> Rollouts:
        """The record of trajectories in any order, grouped by (task, role); in a group they keep their order.

        ``baselines`` gives the reward of a separate rollout by (task, role). RecordError if some trajectories have
        tokens and others none.
        """
        return cls(**nested.flatten(list(trajectories), dict(baselines or {})))

    def trajectory(self, row: int) -> nested.Trajectory:
        """One trajectory as a tree. IndexError if there is no such row."""
        if not 0 <= row < len(self):
            raise IndexError(f"trajectory {row}: the record has rows 0 to {len(self) - 1}")
        return nested.unflatten(self, row)

    def take(self, rows: Sequence[int]) -> Rollouts:
        """The record of some trajectories only, such as a sample to keep. Groups keep their baseline."""
        keys = zip(self.groups.task.tolist(), self.groups.role.tolist(), strict=True)
        baselines = dict(zip(keys, self.groups.baseline.tolist(), strict=True))
        return Rollouts.from_trajectories([self.trajectory(row) for row in rows], baselines)

    def columns(self) -> dict[str, Array]:
        """Every column as ``table/field``."""
        tables = {name: getattr(self, name) for name in _TABLES if getattr(self, name) is not None}
        return {
            f"{name}/{field}": values for name, table in tables.items() for field, values in table.columns().items()
        }

    def digest(self) -> str:
        """The sha256 of all columns: equal if and only if the records are bitwise equal."""
        return digest(self.columns())

    def to_bytes(self) -> bytes:
        """A deterministic npz archive."""
        return npz_bytes({**self.columns(), "schema": np.array(SCHEMA)})

    def save(self, path: Path) -> None:
        """Write the archive to ``path``."""
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> Rollouts:
        """Read the archive at ``path``. RecordError if a newer program wrote it."""
        return cls._of(read_npz(Path(path)), str(path))

    @classmethod
    def from_bytes(cls, data: bytes) -> Rollouts:
        """Read what `to_bytes` made. RecordError if a newer program wrote it."""
        return cls._of(read_npz(data), "the archive")

    @classmethod
    def _of(cls, arrays: dict[str, Array], where: str) -> Rollouts:
        schema = int(arrays.pop("schema", np.array(0)))
        if schema != SCHEMA:
            raise RecordError(
                f"{where} has schema {schema}: this program reads {SCHEMA}; use the version that wrote it"
            )
        tables: dict[str, dict[str, Array]] = {}
        for name, values in arrays.items():
            table, _, field = name.partition("/")
            tables.setdefault(table, {})[field] = values
        return cls(**{name: _TABLES[name](**columns) for name, columns in tables.items()})
