"""The step table: one row per optimiser step, one named column per quantity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sim.records.config import near_misses
from sim.records.npz import digest, npz_bytes, read_npz

__all__ = ["StepTable", "check_steps", "column", "common_shape", "numeric"]


@dataclass(frozen=True, eq=False)
class StepTable:
    """One row per optimiser step, one named column per quantity.

    Columns are copied to read-only float64 or int64 arrays. ValueError if ``step`` is missing, does not increase
    strictly, or a column is not one-dimensional, numeric and as long as ``step``.
    """

    columns: Mapping[str, np.ndarray]
    """Name, such as ``behaviour/search_share/turn0``, to values [T]; ``step`` is one of them."""

    def __post_init__(self) -> None:
        columns = {name: numeric(name, self.columns[name], 1) for name in sorted(self.columns)}
        common_shape(columns, "step table")
        check_steps(columns["step"])
        object.__setattr__(self, "columns", columns)

    def __getitem__(self, name: str) -> np.ndarray:
        return column(self.columns, name)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, sorted."""
        return tuple(self.columns)

    def tail(self, rows: int) -> StepTable:
        """The last ``rows`` rows, or all of them if there are fewer. ValueError if ``rows`` is negative."""
        if rows < 0:
            raise ValueError(f"tail of {rows} rows: must be 0 or more")
        start = max(len(self) - rows, 0)
        return StepTable({name: values[start:] for name, values in self.columns.items()})

    def equals(self, other: StepTable) -> bool:
        """Whether names, types and bits agree: NaN equals the same NaN, 0.0 differs from -0.0."""
        return self.digest() == other.digest()

    def digest(self) -> str:
        """The sha256 of the columns' names and bits."""
        return digest(self.columns)

    def to_bytes(self) -> bytes:
        """A deterministic npz archive."""
        return npz_bytes(self.columns)

    def save(self, path: Path) -> None:
        """Write the archive to ``path``."""
        Path(path).write_bytes(self.to_bytes())

    @classmethod
    def load(cls, path: Path) -> StepTable:
        """Read the archive at ``path``."""
        return cls(read_npz(Path(path)))


def numeric(name: str, values: Any, ndim: int) -> np.ndarray:
    """A read-only float64 or int64 copy, with the number of axes checked."""
    array = np.asarray(values)
    if array.ndim != ndim:
        axes = "[T]" if ndim == 1 else "[seeds, T]"
        raise ValueError(f"column {name!r} has shape {array.shape}: it must have {ndim} axes, {axes}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"column {name!r} is of type {array.dtype}: give float64 or int64 (codes for categories)")
    copy = np.array(array, dtype=np.float64 if array.dtype.kind == "f" else np.int64, order="C")
    copy.flags.writeable = False
    return copy


def common_shape(columns: Mapping[str, np.ndarray], what: str) -> tuple[int, ...]:
    """The shape all columns share. ValueError if ``step`` is missing or a column differs from it."""
    if "step" not in columns:
        raise ValueError(f"{what} has no column 'step': add the optimiser step of each row")
    shape: tuple[int, ...] = columns["step"].shape
    for name, values in columns.items():
        if values.shape != shape:
            raise ValueError(f"column {name!r} has shape {values.shape}, 'step' has {shape}: give every step a value")
    return shape


def check_steps(steps: np.ndarray) -> None:
    """ValueError unless the steps [T] increase strictly."""
    falls = np.flatnonzero(~(np.diff(steps) > 0))  # a NaN is a fall too
    if len(falls):
        row = int(falls[0]) + 1
        raise ValueError(
            f"column 'step' is {steps[row]} in row {row}, after {steps[row - 1]}; it must increase: keep one row a step"
        )


def column(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    """The column of that name; KeyError with the near misses if there is none."""
    try:
        return columns[name]
    except KeyError:
        raise KeyError(f"no column {name!r}{near_misses(name, columns)}") from None
