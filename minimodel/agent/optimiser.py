"""Optimisers of the tiny transformer: torch's own, behind the configs that are written down."""

from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import torch

from sim.records.config import config

__all__ = ["AdamW", "Optimiser", "Sgd"]


@runtime_checkable
class Optimiser(Protocol):
    """Anything that makes a torch optimiser and says how large its steps are."""

    @property
    def rate(self) -> float:
        """Return the learning rate."""
        ...

    @property
    def clip(self) -> float:
        """Return the largest norm of the gradient; 0 for no bound."""
        ...

    @property
    def warmup(self) -> int:
        """Return the updates over which the rate grows from nothing."""
        ...

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return the torch optimiser."""
        ...


def _check(config: Any) -> None:
    for name in ("rate", "clip", "warmup", "decay"):
        if getattr(config, name, 0) < 0:
            raise ValueError(f"{name} = {getattr(config, name)} must be at least 0")
    for name in ("b1", "b2"):
        if not 0 <= getattr(config, name, 0) < 1:
            raise ValueError(f"{name} = {getattr(config, name)} must lie in [0, 1)")


@config
class AdamW:
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101). Without a warm-up its first step is a full-size one."""

    rate: float = 2e-4
    """Learning rate."""
    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.99
    """Decay of the second moment."""
    decay: float = 0.0
    """Weight decay."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 for no bound."""
    warmup: int = 0
    """Updates over which the rate grows linearly from nothing."""

    def __post_init__(self) -> None:
        _check(self)

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's AdamW."""
        return torch.optim.AdamW(parameters, self.rate, (self.b1, self.b2), weight_decay=self.decay, fused=True)


@config
class Sgd:
    """Plain gradient steps: what the theory of flows and expected updates is about."""

    rate: float
    """Learning rate."""
    clip: float = 0.0
    """Largest norm of the gradient; 0 for no bound."""
    warmup: int = 0
    """Updates over which the rate grows linearly from nothing."""

    def __post_init__(self) -> None:
        _check(self)

    def build(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's SGD."""
        return torch.optim.SGD(parameters, self.rate)
