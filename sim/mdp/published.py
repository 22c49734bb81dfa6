"""The published table that started the project, as printed: seed A, two checkpoints of one run.

Source: Jason, a Search-R1 replication (zhuanlan.zhihu.com/p/2050794185909876253): accuracy accumulated up to a turn, and
share of trajectories that search at that turn, at steps 278 and 297; 128 prompts x 8 rollouts a step, four turns.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["SEED_A", "TurnTable", "implied_counts", "matching_entries"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TurnTable:
    """Accuracy and search share by turn, one row a checkpoint, as fractions of all rollouts."""

    accuracy: F64
    """Share solved by the end of turn t, [checkpoints, K]."""
    search_share: F64
    """Share that searches at turn t, [checkpoints, K]."""
    checkpoints: tuple[str, ...]
    """Names of the rows."""

    def stacked(self) -> F64:
        """Return all entries in one vector, accuracy first."""
        return np.concatenate([self.accuracy.ravel(), self.search_share.ravel()])


SEED_A = TurnTable(
    accuracy=np.array([[0.0, 47.07, 47.75, 57.03], [14.55, 28.22, 37.98, 41.69]]) / 100,
    search_share=np.array([[98.43, 0.78, 52.14, 1.95], [32.32, 48.63, 20.01, 41.79]]) / 100,
    checkpoints=("step 278", "step 297"),
)
"""Seed A's table."""


def _hundredths(table: TurnTable) -> NDArray[np.int64]:
    return np.rint(table.stacked() * 1e4).astype(np.int64)


def implied_counts(table: TurnTable, rollouts: int) -> NDArray[np.int64]:
    """Return the integer count of each entry that prints as it does, -1 where there is none.

    An entry prints the percentage cut (not rounded) to two decimals: floor(count / rollouts x 10,000) / 100.
    """
    printed = _hundredths(table)
    counts = np.arange(rollouts + 1)
    shown = counts * 10_000 // rollouts
    found = np.searchsorted(shown, printed)
    found = np.minimum(found, rollouts)
    return np.where(shown[found] == printed, found, -1)


def matching_entries(table: TurnTable, rollouts: int) -> int:
    """Return how many of the non-zero entries are a count out of `rollouts`."""
    return int(((implied_counts(table, rollouts) >= 0) & (_hundredths(table) > 0)).sum())
