"""One learner on several devices: every rank is given the whole batch, scores its share of the rows, and knows the rest.

The rule needs the scalars of all tokens, but their gradient only where they were made. So a rank's scalars are those of all
rows, and differentiable in its own; gradients are then *summed* over ranks. What the learner computes from them is the same
on every rank and the same as on one device, for a rule of any scope, and no rank waits for another that has less to score:
each makes as many forwards.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fullscale.agent.marked import Scorer
from sim.learning.penalties import ScalarKey

__all__ = ["Ranks", "ShardedScorer"]


@dataclass(frozen=True)
class Ranks:
    """Who takes part."""

    rank: int = 0
    """Which this is."""
    world: int = 1
    """How many there are."""

    @classmethod
    def here(cls) -> "Ranks":
        """Return this process's place in the default process group; alone where there is none."""
        return cls(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else cls()

    def share(self, rows: int) -> slice:
        """Return this rank's share of so many rows: the first shares are larger by one where they do not divide."""
        each, more = divmod(rows, self.world)
        first = self.rank * each + min(self.rank, more)
        return slice(first, first + each + (self.rank < more))

    def gathered(self, mine: Any) -> list[Any]:
        """Return what every rank has, in the order of ranks."""
        if self.world == 1:
            return [mine]
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, mine)
        return found

    def most(self, value: int) -> int:
        """Return the largest of all ranks' values."""
        return int(max(self.gathered(value)))

    def from_first(self, value: Any) -> Any:
        """Return what the first rank has."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]


class ShardedScorer:
    """Scores rows together with the other ranks.

    Parameters
    ----------
    scorer
        The policy, whose parameters may be sharded over the ranks.
    ranks
        Who takes part.
    """

    def __init__(self, scorer: Scorer, ranks: Ranks) -> None:
        self.scorer, self.ranks = scorer, ranks

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return what an optimiser moves."""
        return self.scorer.parameters()

    def scalars(
        self, ids: Tensor, wanted: Collection[ScalarKey], reference: Any, where: Tensor
    ) -> Mapping[ScalarKey, Tensor]:
        """Return the scalars of all rows, [B, T] each, with a gradient in this rank's share."""
        other = reference.scorer if isinstance(reference, ShardedScorer) else reference
        if self.ranks.world == 1:
            return self.scorer.scalars(ids, wanted, other, where)
        mine = self.ranks.share(len(ids))
        if mine.start == mine.stop:  # collectives want a forward of every rank: a row of which nothing counts
            part = self.scorer.scalars(ids[:1], wanted, other, torch.zeros_like(where[:1]))
            part = {name: values[:0] for name, values in part.items()}
        else:
            part = self.scorer.scalars(ids[mine], wanted, other, where[mine])
        return {name: self._whole(part[name], len(ids), mine) for name in sorted(part, key=repr)}

    def _whole(self, part: Tensor, rows: int, mine: slice) -> Tensor:
        """Return the values of all rows, differentiable in `mine`."""
        whole = part.new_zeros(rows, part.shape[1])
        whole[mine] = part.detach()
        dist.all_reduce(whole)  # a sum of one number and zeros: exact
        own = torch.nn.functional.pad(part - part.detach(), (0, 0, mine.start, rows - mine.stop))
        return whole + own
