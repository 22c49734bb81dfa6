"""Optimisers on a block of parameter vectors, [S, P], one per seed; gradients point uphill.

Each is a config with ``start`` (its state) and ``step`` (the change of the parameters and the next state): functions of
arrays, so a run resumes from what it saved. Seeds that are not ``active`` keep parameters and state.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sim.records.config import config

__all__ = ["Adam", "Natural", "Optimiser", "OptimiserState", "Sgd"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OptimiserState:
    """Moments and step counts; optimisers without memory leave them at 0."""

    first: F64
    """Running mean of the gradient, [S, P]."""
    second: F64
    """Running mean of its square, [S, P]."""
    steps: F64
    """Updates made, [S, 1]."""

    @classmethod
    def zeros(cls, shape: tuple[int, int]) -> "OptimiserState":
        """Return the state before the first update."""
        return cls(np.zeros(shape), np.zeros(shape), np.zeros((shape[0], 1)))


@runtime_checkable
class Optimiser(Protocol):
    """Anything that turns gradients into parameter changes."""

    @property
    def needs_fisher(self) -> bool:
        """Whether `step` wants the Fisher matrix."""
        ...

    def step(
        self, state: OptimiserState, gradient: F64, active: NDArray[np.bool_], fisher: F64 | None
    ) -> tuple[F64, OptimiserState]:
        """Return the change of the parameters [S, P] and the next state."""
        ...


def _positive(name: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"{name} = {value} must be positive; for a learner that does not move use steps=0")


@config
class Sgd:
    """w += rate x gradient."""

    rate: float
    """Step size, logits per unit of gradient."""

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError(f"rate = {self.rate} must be at least 0")

    @property
    def needs_fisher(self) -> bool:
        """No."""
        return False

    def step(
        self, state: OptimiserState, gradient: F64, active: NDArray[np.bool_], fisher: F64 | None
    ) -> tuple[F64, OptimiserState]:
        """Return the plain step."""
        return np.where(active[:, None], self.rate * gradient, 0.0), state


@config
class Natural:
    """w += rate x (Fisher + damping)^-1 gradient (Amari 1998): steps in distributions rather than in logits.

    With private weights it is the replicator equation, dz = rate x (advantage of the action), whatever its probability.
    """

    rate: float
    """Step size."""
    damping: float = 1e-6
    """Added to the diagonal of the Fisher matrix."""

    def __post_init__(self) -> None:
        _positive("rate", self.rate)
        _positive("damping", self.damping)

    @property
    def needs_fisher(self) -> bool:
        """Yes."""
        return True

    def step(
        self, state: OptimiserState, gradient: F64, active: NDArray[np.bool_], fisher: F64 | None
    ) -> tuple[F64, OptimiserState]:
        """Return the preconditioned step; `fisher` is [S, P, P]."""
        if fisher is None:
            raise ValueError("the natural gradient needs the Fisher matrix, [S, P, P]; got None")
        damped = fisher + self.damping * np.eye(gradient.shape[1])
        change = self.rate * np.linalg.solve(damped, gradient[..., None])[..., 0]
        return np.where(active[:, None], change, 0.0), state


@config
class Adam:
    """Adam with bias correction (Kingma and Ba, arXiv 1412.6980); its first step has full size `rate`."""

    rate: float
    """Step size alpha."""
    b1: float = 0.9
    """Decay of the first moment."""
    b2: float = 0.999
    """Decay of the second moment."""
    epsilon: float = 1e-8
    """Added to the root of the second moment."""

    def __post_init__(self) -> None:
        _positive("rate", self.rate)
        for name in ("b1", "b2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must lie in [0, 1)")

    @property
    def needs_fisher(self) -> bool:
        """No."""
        return False

    def step(
        self, state: OptimiserState, gradient: F64, active: NDArray[np.bool_], fisher: F64 | None
    ) -> tuple[F64, OptimiserState]:
        """Return the step of size about `rate` in each coordinate."""
        return self.move(state, gradient, gradient**2, active)

    def move(
        self, state: OptimiserState, gradient: F64, square: F64, active: NDArray[np.bool_]
    ) -> tuple[F64, OptimiserState]:
        """Return the step on a gradient and its square, [S, P] each; in expectation the square is mean^2 + variance."""
        on = active[:, None]
        first = np.where(on, self.b1 * state.first + (1 - self.b1) * gradient, state.first)
        second = np.where(on, self.b2 * state.second + (1 - self.b2) * square, state.second)
        steps = state.steps + on
        counted = np.maximum(steps, 1)
        mean, size = first / (1 - self.b1**counted), second / (1 - self.b2**counted)
        change = np.where(on, self.rate * mean / (np.sqrt(size) + self.epsilon), 0.0)
        return change, OptimiserState(first, second, steps)
