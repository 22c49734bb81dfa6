"""A run as it is kept: what it is (manifest), how it came about (provenance), and one row per optimiser step.

The manifest is identity. It holds no time, host or path, so one seed of one config gives the same bytes in any process
and in any block of seeds. Everything that may differ between two computations of the same run goes into the provenance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.records.config import canonical_json, to_dict
from sim.records.steps import StepTable, check_steps, column, common_shape, numeric

if TYPE_CHECKING:
    from sim.records.rollouts import Rollouts

__all__ = ["SCHEMA", "RunRecord", "Runs", "StepTable", "run_key"]

SCHEMA = 1
"""Version of the manifest's layout. A record with a higher one was written by a newer program."""


def run_key(config: Mapping[str, Any], study: str, seed: int, rung: str, fingerprint: str) -> str:
    """The name of a run: the first 16 hex digits of the sha256 of the canonical JSON of all that determines it."""
    identity = {"config": config, "study": study, "seed": int(seed), "rung": rung, "fingerprint": fingerprint}
    return hashlib.sha256(canonical_json(identity).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One seed of one config at one rung."""

    manifest: Mapping[str, Any]
    """Deterministic identity: schema, key, study, rung, seed, config, fingerprint, columns, rows, digests."""
    provenance: Mapping[str, Any]
    """How it came about: wall_s, cpu_s, host, platform, executor, versions, recorded_at. Not part of identity."""
    steps: StepTable
    """One row per optimiser step."""
    rollouts: Rollouts | None = None
    """The trajectories that were kept, if any."""

    @classmethod
    def create(
        cls,
        config: Any,
        study: str,
        seed: int,
        rung: str,
        fingerprint: str,
        steps: StepTable,
        provenance: Mapping[str, Any] | None = None,
        rollouts: Rollouts | None = None,
    ) -> RunRecord:
        """The record with its manifest computed from what determines it and from the data's digests."""
        nested = to_dict(config)
        manifest = {
            "schema": SCHEMA,
            "key": run_key(nested, study, seed, rung, fingerprint),
            "study": study,
            "rung": rung,
            "seed": int(seed),
            "config": nested,
            "fingerprint": fingerprint,
            "columns": list(steps.names),
            "rows": len(steps),
            "steps_digest": steps.digest(),
            "rollouts_digest": None if rollouts is None else rollouts.digest(),
        }
        return cls(manifest, dict(provenance or {}), steps, rollouts)

    @property
    def key(self) -> str:
        """The run's name in a store."""
        return str(self.manifest["key"])

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.manifest["seed"])

    def manifest_bytes(self) -> bytes:
        """The manifest as canonical JSON with a final newline."""
        return canonical_json(self.manifest).encode() + b"\n"

    def equals(self, other: RunRecord) -> bool:
        """Whether two records are the same run with the same bits, whoever computed them."""
        return self.manifest_bytes() == other.manifest_bytes()


@dataclass(frozen=True, eq=False)
class Runs:
    """A block: several seeds of one config, all with the same number of steps.

    ValueError if seeds repeat, or a column is not numeric and ``[len(seeds), T]``.
    """

    config: Any
    """The config record all seeds share."""
    seeds: tuple[int, ...]
    """The seeds, in the order of the rows of every column."""
    study: str
    """Name of the study, which names the streams of randomness."""
    rung: str
    """``sim``, ``minimodel`` or ``fullscale``."""
    fingerprint: str
    """Fingerprint of the code that made the block."""
    columns: Mapping[str, np.ndarray] = field(repr=False)
    """Name to values [S, T]; ``step`` is one of them."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """How the block came about; copied to each of its records."""
    rollouts: Mapping[int, Rollouts] = field(default_factory=dict)
    """Seed to the trajectories kept of it, where any were."""

    def __post_init__(self) -> None:
        seeds = tuple(int(seed) for seed in self.seeds)
        if len(set(seeds)) != len(seeds):
            raise ValueError(f"seeds {seeds} repeat: a block holds each seed once; drop the repeated ones")
        columns = {name: numeric(name, self.columns[name], 2) for name in sorted(self.columns)}
        shape = common_shape(columns, "block of runs")
        if shape[0] != len(seeds):
            raise ValueError(f"columns have {shape[0]} rows for {len(seeds)} seeds: give one row [T] per seed")
        for row in columns["step"]:
            check_steps(row)
        strangers = sorted(set(self.rollouts) - set(seeds))
        if strangers:
            raise ValueError(f"rollouts of seeds {strangers}, which are not in the block: its seeds are {seeds}")
        object.__setattr__(self, "seeds", seeds)
        object.__setattr__(self, "columns", columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return column(self.columns, name)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        return len(self.seeds)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, sorted."""
        return tuple(self.columns)

    def records(self) -> list[RunRecord]:
        """One record per seed; each is the same whatever block the seed was computed in."""
        return [
            RunRecord.create(
                self.config,
                self.study,
                seed,
                self.rung,
                self.fingerprint,
                StepTable({name: values[row] for name, values in self.columns.items()}),
                self.provenance,
                self.rollouts.get(seed),
            )
            for row, seed in enumerate(self.seeds)
        ]

    def select(self, seeds: Iterable[int]) -> Runs:
        """The block of the named seeds, in the order named. KeyError for a seed it does not hold."""
        wanted = tuple(int(seed) for seed in seeds)
        absent = [seed for seed in wanted if seed not in self.seeds]
        if absent:
            raise KeyError(f"seeds {absent} are not in the block: it holds {self.seeds}")
        rows = [self.seeds.index(seed) for seed in wanted]
        columns = {name: values[rows] for name, values in self.columns.items()}
        rollouts = {seed: self.rollouts[seed] for seed in wanted if seed in self.rollouts}
        return self._with(wanted, columns, rollouts, self.provenance)

    @classmethod
    def from_records(cls, records: Sequence[RunRecord], config: Any) -> Runs:
        """The block of records of one config, in the order given.

        ValueError if there are none, or if they differ in config, study, rung, fingerprint, columns or length.
        """
        if not records:
            raise ValueError("no records: a block needs one at least")
        wanted = {name: records[0].manifest[name] for name in ("study", "rung", "fingerprint", "columns", "rows")}
        wanted["config"] = to_dict(config)
        for record in records:
            for name, value in wanted.items():
                if canonical_json(record.manifest[name]) != canonical_json(value):
                    raise ValueError(
                        f"run {record.key} (seed {record.seed}) has another {name} than the block: "
                        f"{_brief(record.manifest[name])}, not {_brief(value)}; put it into a block of its own"
                    )
        return cls(
            config=config,
            seeds=tuple(record.seed for record in records),
            study=str(wanted["study"]),
            rung=str(wanted["rung"]),
            fingerprint=str(wanted["fingerprint"]),
            columns={name: np.stack([record.steps[name] for record in records]) for name in records[0].steps.names},
            provenance=dict(records[0].provenance) if len(records) == 1 else {},
            rollouts={record.seed: record.rollouts for record in records if record.rollouts is not None},
        )

    @classmethod
    def concatenate(cls, blocks: Sequence[Runs]) -> Runs:
        """One block of the seeds of several, in order. ValueError as in `from_records`."""
        if not blocks:
            raise ValueError("no blocks: there is nothing to concatenate")
        if len(blocks) == 1:
            return blocks[0]
        return cls.from_records([record for block in blocks for record in block.records()], blocks[0].config)

    def equals(self, other: Runs) -> bool:
        """Whether both hold the same runs, bit for bit, in the same order."""
        mine, theirs = self.records(), other.records()
        return len(mine) == len(theirs) and all(a.equals(b) for a, b in zip(mine, theirs, strict=True))

    def _with(
        self,
        seeds: tuple[int, ...],
        columns: Mapping[str, np.ndarray],
        rollouts: Mapping[int, Rollouts],
        provenance: Mapping[str, Any],
    ) -> Runs:
        return Runs(self.config, seeds, self.study, self.rung, self.fingerprint, columns, provenance, rollouts)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
