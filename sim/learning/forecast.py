"""Whether, when and how fast a behaviour will flip: the mean field of a training run, integrated without sampling.

Every batch is replaced by its expectation: the exact expected gradient of all free logits, pulled back through the features,
the optimiser's step on it, and the drive. What is left out is chance, so a run whose learner waits for a rare event, or
whose flip *is* a fluctuation, is not forecast by it.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim.learning.credit import RunningBaseline
from sim.learning.optimisers import Adam, Natural, OptimiserState, Sgd
from sim.learning.setup import Training
from sim.mdp.exact import occupancy
from sim.mdp.policy import PolicyTables, SoftmaxPolicy, fisher, tables
from sim.mdp.theory.drift import Objective, effective_gap, expected_gradient
from sim.mdp.theory.spread import gradient_covariance
from sim.mdp.theory.ways import ways_of
from sim.records.config import near_misses
from sim.signals.onsets import Direction, first_passages

__all__ = ["Forecast", "forecast"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Forecast:
    """What the mean field says about one free logit; times are steps, as :func:`first_passages` counts them."""

    logit: str
    """The free logit, ``context/action``."""
    direction: int
    """Which way the objective pushes it at the habit: 1 up, -1 down, 0 neither. The drive is not in it."""
    gap: float
    """Effective gap at the habit; positive pushes down."""
    will_flip: bool
    """Whether the share of the action crosses a half within the run."""
    steps_to_half: float
    """First step before which the share is at or beyond a half; NaN if it does not get there."""
    width: float
    """Steps from a share of .1 to .9, or of .9 to .1; NaN if it does not pass both or starts between."""
    share: F64 = field(repr=False)
    """Share of the action before each step, [T]."""
    logits: F64 = field(repr=False)
    """All free logits before each step, [T, D]."""
    assumptions: tuple[str, ...]
    """What was taken for granted."""


def forecast(config: Training, logit: str | None = None) -> Forecast:
    """Return the forecast for a free logit of a run.

    Parameters
    ----------
    config
        The run: on policy, one update a batch, no injected noise.
    logit
        ``context/action``; None for the first of ``config.features.on``.

    Raises
    ------
    ValueError
        For what the mean field does not cover, by name: lag, inner updates, mismatch, gradient noise, an unknown optimiser,
        and whatever of the rule has no exact sum.
    """
    _check(config)
    logit = config.features.on[0] if logit is None else logit
    policy, graph = config.policy(), config.graph()
    if logit not in graph.free_names:
        raise ValueError(f"{logit!r} is no free logit of this world{near_misses(logit, graph.free_names)}")
    objective = Objective.of(config.rule, config.group, config.prompts, config.length_unit)  # type: ignore[arg-type]
    field = _MeanField(config, policy, objective)
    logits = field.integrate()
    d = graph.free_names.index(logit)
    share = tables(graph, logits).probability[:, graph.free_context[d], graph.free_action[d]]
    gap = effective_gap(graph, field.reference, objective, logit, field.reference)
    way = Direction.UP if share[0] < 0.5 else Direction.DOWN
    ends = (0.1, 0.9) if way is Direction.UP else (0.9, 0.1)
    began, half, ended = (float(first_passages(share, level, direction=way)) for level in (ends[0], 0.5, ends[1]))
    if (share[0] - ends[0]) * int(way) > 0:  # past the first end already: there is no such width
        began = np.nan
    return Forecast(
        logit, -int(np.sign(gap)), gap, bool(np.isfinite(half)), half, ended - began, share, logits, field.assumptions()
    )


def _check(config: Training) -> None:
    refused = {
        "lag": config.lag > 0,
        "inner_updates": config.inner_updates > 1,
        "mismatch": config.mismatch > 0,
        "noise": config.noise is not None and config.noise.sd > 0,
    }
    for name, on in refused.items():
        if on:
            raise ValueError(
                f"{name} = {getattr(config, name)}: the mean field is that of one update a batch, on policy and without "
                "injected noise; train instead"
            )
    if not isinstance(config.optimiser, Sgd | Natural | Adam):
        raise ValueError(f"{type(config.optimiser).__name__}: the mean step is known for Sgd, Natural and Adam")


class _MeanField:
    """The deterministic counterpart of the loop's block: one policy."""

    def __init__(self, config: Training, policy: SoftmaxPolicy, objective: Objective) -> None:
        self.config, self.policy, self.graph, self.objective = config, policy, policy.graph, objective
        self.reference = tables(self.graph, policy.z0)
        self.loads = config.loads()
        self.covariance = isinstance(config.optimiser, Adam) and self._has_covariance()

    def integrate(self) -> F64:
        """Return the free logits before each step, [T, D]; of a run without steps those of the habit."""
        P = self.policy.features.shape[1]
        w, state, offset = np.zeros((1, P)), OptimiserState.zeros((1, P)), 0.0
        found = []
        for step in range(max(self.config.steps, 1)):
            z = self.policy.logits(w[0]) + offset * self.loads
            found.append(z)
            change, state = self._step(state, tables(self.graph, z))
            w = w + change
            drive = self.config.drive
            if drive is not None and drive.start <= step < drive.start + drive.duration:
                offset += drive.rate
        return np.array(found)

    def _step(self, state: OptimiserState, now: PolicyTables) -> tuple[F64, OptimiserState]:
        """Return the mean change of the weights, [1, P], and the optimiser's next state."""
        dz = expected_gradient(self.graph, now, self.objective, self.reference)
        optimiser, metric = self.config.optimiser, None
        if optimiser.needs_fisher:
            dz = dz * self._met(now)
            metric = fisher(self.policy, now, occupancy(self.graph, now).decision.sum((0, 2)))[None]
        dw = self.policy.pull_back(dz)[None]
        if isinstance(optimiser, Adam):
            return self._adam(optimiser, state, dw, now)
        return optimiser.step(state, dw, np.ones(1, np.bool_), metric)

    def _adam(self, optimiser: Adam, state: OptimiserState, dw: F64, now: PolicyTables) -> tuple[F64, OptimiserState]:
        """Return Adam's step where the second moment is mean^2 + variance of a batch's gradient."""
        variance = np.zeros_like(dw)
        if self.covariance:
            F = self.policy.features
            variance = np.einsum("dp,de,ep->p", F, gradient_covariance(self.graph, now, self.objective), F)[None]
        return optimiser.move(state, dw, dw**2 + variance, np.ones(1, np.bool_))

    def _met(self, now: PolicyTables) -> F64:
        """Return P(a batch meets the context of each free logit), [D].

        Gradient and Fisher matrix both grow with the visits of a context, so their quotient does not, unless there are none.
        """
        g, ways = self.graph, ways_of(self.graph)
        probability = ways.probability(now)
        meets = (ways.running[..., None] & (ways.contexts[..., None] == g.free_context)).any(1)
        never = np.stack([1 - ways.by_kind(probability * meets[:, d]) for d in range(meets.shape[1])], 1).clip(0)
        found: F64 = 1 - (g.share @ never**self.config.group) ** self.config.prompts
        return found

    def _has_covariance(self) -> bool:
        try:
            gradient_covariance(self.graph, self.reference, self.objective)
        except ValueError:
            return False
        return True

    def assumptions(self) -> tuple[str, ...]:
        """Return what is taken for granted, in words."""
        found = ["every batch moves the policy by its mean: fluctuations neither help nor hinder"]
        if isinstance(self.config.optimiser, Natural):
            found.append(
                "the Fisher matrix is that of the mean visits; a context that a batch does not meet does not move"
            )
        if isinstance(self.config.optimiser, Adam):
            found.append(
                "Adam's second moment is mean^2 + variance of a batch's gradient, and its root does not fluctuate"
                if self.covariance
                else "Adam's second moment is mean^2: the variance of a batch's gradient is left out, so steps are too long"
            )
        if isinstance(self.config.rule.credit, RunningBaseline):
            found.append("the running baseline is at the expected reward of the current policy")
        return tuple(found)
