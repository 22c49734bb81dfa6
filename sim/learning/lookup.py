"""Between per-turn arrays and per-decision tables: reading a table at every turn, and summing turns into one."""

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.mdp.sampling import Decisions, Sample

__all__ = ["Lookup", "as_record"]

F64 = NDArray[np.float64]
Index = NDArray[np.intp]
Scalar = TypeVar("Scalar", bound=np.generic)


def as_record(x: NDArray[Scalar], Q: int, G: int) -> NDArray[Scalar]:
    """Return turn-major [K, S, G * Q] as the record's view [S, Q, G, K]; no copy."""
    K, S, _ = x.shape
    return x.reshape(K, S, G, Q).transpose(1, 3, 2, 0)


@dataclass(frozen=True, eq=False)
class Lookup:
    """Where each turn of a batch stands in a table by seed and choice."""

    index: Index
    """Choice of every turn, numbered through the seeds, [K, S, N]."""
    decisions: Decisions
    """What each choice is to the policy."""

    @classmethod
    def of(cls, sample: Sample, decisions: Decisions) -> "Lookup":
        """Return the lookup of a batch."""
        return cls(sample.choice, decisions)

    def gather(self, table: F64) -> F64:
        """Return ``table[seed, context, action]`` of every turn, 0 once the episode is over, [K, S, N]."""
        padded = np.zeros((len(table), self.decisions.size))
        padded[:, :-2] = table.reshape(len(table), -1)
        return padded[:, self.decisions.code].ravel().take(self.index)

    def scatter(self, values: F64, shape: tuple[int, ...]) -> F64:
        """Return the sums of `values` [S, Q, G, K] by seed, context and action, shaped [S, C, A]."""
        flat = values.transpose(3, 0, 2, 1).ravel()  # turn-major again: no copy when `values` came from such arrays
        sums = np.bincount(self.index.ravel(), weights=flat, minlength=shape[0] * self.decisions.choices)
        return self.decisions.sum(sums.reshape(shape[0], -1).astype(np.float64, copy=False))[:, :-2].reshape(shape)

    def count(self, shape: tuple[int, ...]) -> tuple[F64, F64]:
        """Return counts of each decision at each turn, [S, K, C, A], and of rollouts solved before it, [S, K].

        `shape` is (S, C, A).
        """
        K, S, _ = self.index.shape
        width = self.decisions.choices
        counts = np.stack([np.bincount(turn.ravel(), minlength=S * width).reshape(S, width) for turn in self.index])
        by_decision = self.decisions.sum(counts.astype(np.float64)).transpose(1, 0, 2)
        return by_decision[..., :-2].reshape(S, K, *shape[1:]), by_decision[..., -2]

    def visits(self, shape: tuple[int, ...]) -> F64:
        """Return the visits of each context a rollout, [S, C]; `shape` is (S, C, A)."""
        found: F64 = self.count(shape)[0].sum((1, 3)) / self.index.shape[-1]
        return found
