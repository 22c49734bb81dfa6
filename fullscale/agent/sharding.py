"""Weights over several devices (FSDP2): each rank holds a part of every parameter and sees it whole inside a forward alone.

Gradients are summed, not averaged, because every rank's loss is the whole batch's in its own rows
(:mod:`fullscale.agent.ranks`). They are reduced in float32 whatever products are made in.
"""

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from fullscale.agent.ranks import Ranks
from fullscale.agent.scoring import ScoringModel
from fullscale.model.halves import halves

__all__ = ["copied", "load", "shard", "spread", "whole", "whole_optimiser"]

_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
_FROM_FIRST = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def shard(scoring: ScoringModel, ranks: Ranks, device: str = "cpu") -> None:
    """Spread a network's weights over the ranks, layer by layer, in place.

    Where its body computes in another dtype than it is stored in, its layers are gathered in that one; embedding, last norm
    and head stay as they are stored.
    """
    products, scoring.autocast = scoring.autocast, None
    mesh = init_device_mesh(device, (ranks.world,))
    mixed = MixedPrecisionPolicy(param_dtype=products, reduce_dtype=torch.float32, output_dtype=None)
    for layer in _layers(halves(scoring.model).body):
        fully_shard(layer, mesh=mesh, mp_policy=mixed)
    # By default the root's would stay whole after a forward, and would be met whole by whoever looks at parameters then.
    fully_shard(
        scoring, mesh=mesh, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32), reshard_after_forward=True
    )
    scoring.spread = True
    for module in scoring.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo has no other


def whole(scoring: ScoringModel) -> dict[str, Any]:
    """Return the whole weights by name on the first rank's CPU, and nothing on the others'; to be called on all ranks."""
    return get_model_state_dict(scoring, options=_WHOLE)


@torch.no_grad()
def copied(scoring: ScoringModel, model: nn.Module | None) -> None:
    """Give a plain model the weights of a policy, one whole parameter at a time. To be called on all ranks.

    Parameters
    ----------
    model
        Built as the policy's was; its dtype and device may be others. None where this rank wants none.
    """
    theirs = {} if model is None else dict(model.named_parameters())
    for name, p in scoring.model.named_parameters():
        found = p.full_tensor() if isinstance(p, DTensor) else p
        if model is not None:
            theirs.pop(name).copy_(found)
    if theirs:
        raise ValueError(f"the model has parameters that the policy has not, {next(iter(theirs))!r} among them")


@torch.no_grad()
def spread(model: nn.Module, weights: dict[str, Any], everywhere: bool) -> None:
    """Give a plain model the weights that the first rank has; with `everywhere` on all ranks, a parameter at a time."""
    for name, p in model.named_parameters():
        if weights:
            p.copy_(weights[name])
        if everywhere:
            torch.distributed.broadcast(p, src=0)


def whole_optimiser(scoring: ScoringModel, optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the optimiser's whole state by name, likewise; nothing where it has none yet."""
    return get_optimizer_state_dict(scoring, optimiser, options=_WHOLE) if optimiser.state else {}


def load(
    scoring: ScoringModel,
    optimiser: torch.optim.Optimizer,
    weights: dict[str, Any],
    state: dict[str, Any],
    optimised: bool,
) -> None:
    """Give a network and its optimiser what :func:`whole` and :func:`whole_optimiser` returned, on however many ranks.

    Parameters
    ----------
    weights, state
        On the first rank; nothing on the others.
    optimised
        Whether there is a state of the optimiser.
    """
    options = _FROM_FIRST if isinstance(scoring, FSDPModule) else _WHOLE
    set_model_state_dict(scoring, weights, options=options)
    if optimised:
        set_optimizer_state_dict(scoring, optimiser, state, options=options)


def _layers(body: nn.Module) -> list[nn.Module]:
    """Return the body's layers: its longest list of modules."""
    lists = [list(m) for m in body.modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise TypeError(f"{type(body).__name__} has no list of layers to shard by")
    return max(lists, key=len)
