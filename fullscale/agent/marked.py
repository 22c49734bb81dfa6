"""Ids that say how they came about, so that the learner of the second rung can be handed them as they are.

That learner cuts a batch along questions and by length, and asks a policy for the scalars of the ids it cut. What a
language model must know besides, which tokens were sampled and where a segment begins, travels in two bits of each id.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sim.learning.penalties import ScalarKey

__all__ = ["MarkedPolicy", "Scorer", "mark"]

_SAMPLED, _BEGINS = 1 << 40, 1 << 41
_ID = _SAMPLED - 1


def mark(ids: NDArray[np.int64], sampled: NDArray[np.bool_], segment: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ids [..., T] with a bit where a token was sampled and one where a segment but the first begins.

    >>> marked = mark(np.array([7, 8, 9]), np.array([False, True, False]), np.array([0, 0, 1]))
    >>> [f"{int(m):x}" for m in marked]
    ['7', '10000000008', '20000000009']
    """
    begins = np.zeros(ids.shape, np.bool_)
    begins[..., 1:] = segment[..., 1:] > segment[..., :-1]
    found: NDArray[np.int64] = ids | (sampled * np.int64(_SAMPLED)) | (begins * np.int64(_BEGINS))
    return found


class Scorer(Protocol):
    """A policy that is told which tokens count."""

    def scalars(
        self, ids: Tensor, wanted: Collection[ScalarKey], reference: Any, where: Tensor
    ) -> Mapping[ScalarKey, Tensor]:
        """Return the scalars of ids [B, T] in `where` [B, T], [B, T] each."""
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return what an optimiser moves."""
        ...


class MarkedPolicy:
    """A policy of marked ids: every segment becomes a row of its own, and tokens that were sampled alone are scored.

    Parameters
    ----------
    scorer
        What scores the rows.
    """

    def __init__(self, scorer: Scorer) -> None:
        self.scorer = scorer

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return what an optimiser moves."""
        return self.scorer.parameters()

    def scalars(
        self, ids: Tensor, wanted: Collection[ScalarKey], reference: "MarkedPolicy | None" = None
    ) -> Mapping[ScalarKey, Tensor]:
        """Return the scalars wanted of marked ids [B, T], [B, T] each; 0 at tokens that were not sampled."""
        plain, where, begins = ids & _ID, (ids & _SAMPLED) != 0, (ids & _BEGINS) != 0
        other = None if reference is None else reference.scorer
        if not bool(begins.any()):
            return self.scorer.scalars(plain, wanted, other, where)
        T = ids.shape[1]
        of_row = begins.long().cumsum(1)  # segment of each token within its episode
        counts = of_row.max(1).values + 1
        row = (counts.cumsum(0) - counts)[:, None] + of_row  # row of each token among all segments, [B, T]
        starts = torch.where(begins, torch.arange(T), 0).cummax(1).values
        place = torch.arange(T) - starts
        cut = plain.new_zeros(int(counts.sum()), int(place.max()) + 1)
        counted = torch.zeros(cut.shape, dtype=torch.bool)
        cut[row, place], counted[row, place] = plain, where
        found = self.scorer.scalars(cut, wanted, other, counted)
        return {name: values[row, place] for name, values in found.items()}
