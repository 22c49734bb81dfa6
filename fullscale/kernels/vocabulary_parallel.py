"""A vocabulary split over ranks: each reduces its strips, all merge all strips in the one order there is."""

from dataclasses import fields
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fullscale.kernels.contract import strips
from fullscale.kernels.problem import Partials

__all__ = ["gather", "sum_over"]


def gather(partials: Partials, vocabulary: int, group: Any) -> Partials:
    """Return the strips of all ranks side by side, [n, all strips], on every rank.

    What is sent is a few numbers a strip and row; the merged result has the bits of a vocabulary that is not split. Every
    rank must have the same rows. Ranks may hold unlike numbers of strips, so what is sent is padded.
    """
    names = [f.name for f in fields(partials) if getattr(partials, f.name) is not None]
    ranks = dist.get_world_size(group)
    counts = [len(strips(vocabulary, rank, ranks)) for rank in range(ranks)]
    mine = torch.stack([getattr(partials, name) for name in names])  # [fields, n, strips here]
    sent = mine.new_zeros(len(names), mine.shape[1], max(counts))
    sent[..., : mine.shape[2]] = mine
    received = [torch.empty_like(sent) for _ in range(ranks)]
    dist.all_gather(received, sent, group=group)
    whole = torch.cat([x[..., :count] for x, count in zip(received, counts, strict=True)], -1)
    return Partials(**{name: x.contiguous() for name, x in zip(names, whole, strict=True)})


def sum_over(x: Tensor, group: Any) -> Tensor:
    """Add `x` over the ranks, in place, and return it: the gradient by hidden states that every rank has its part of."""
    dist.all_reduce(x, group=group)
    return x
