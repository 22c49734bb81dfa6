"""What theory says before anything is simulated: mean drift, fold, recovery, first passage.

Notation: z is the log-odds of guessing at the start, g = sigmoid(z), eta the SGD rate, Delta the effective gap between
searching first and guessing first. Under SGD and one update a batch E[dz] = -eta g (1 - g) Delta (+ v under a drive).
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.special import expit, ndtr

from sim.mdp.compiled import CompiledGraph
from sim.mdp.exact import trajectories
from sim.mdp.policy import PolicyTables
from sim.records.config import near_misses

__all__ = [
    "Fold",
    "Objective",
    "effective_gap",
    "expected_advantage",
    "expected_gradient",
    "first_passage_probability",
    "recovery_steps",
]

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Objective:
    """The part of a rule that decides the mean drift on policy: credit and weight by length."""

    group: int = 8
    """Rollouts a question (G)."""
    std: bool = True
    """Whether advantages are divided by the group's standard deviation."""
    ddof: int = 1
    """Degrees of freedom taken off in it."""
    by_length: bool = False
    """Whether a rollout counts 1 / turns (sequence mean) instead of 1 (batch mean)."""


def expected_advantage(reward: int, success: float, objective: Objective) -> float:
    """Return E[A | own reward], for a 0/1 reward when each of the other G - 1 succeeds with probability `success`.

    An exact binomial sum over the number of the others that succeed; degenerate groups count 0.
    """
    G = objective.group
    total = 0.0
    for others in range(G):
        wins = others + reward
        advantage = reward - wins / G
        if objective.std and 0 < wins < G:
            advantage /= np.sqrt(wins * (G - wins) / G / (G - objective.ddof))
        if 0 < wins < G:
            total += comb(G - 1, others) * success**others * (1 - success) ** (G - 1 - others) * advantage
    return float(total)


def expected_gradient(graph: CompiledGraph, policy: PolicyTables, objective: Objective) -> F64:
    """Return the expected update direction of one batch with respect to the free logits, [D], on policy.

    The exact sum over kinds and trajectories of P x E[A | reward, kind] x (1 or 1 / turns) x grad log P. Rewards must be
    0 or 1.

    Raises
    ------
    ValueError
        For another reward, named.
    """
    found = trajectories(graph, policy)
    odd = {t.reward for t in found} - {0.0, 1.0}
    if odd:
        raise ValueError(f"rewards must be 0 or 1 for the binomial sums; got {min(odd)}")
    success = np.zeros(len(graph.share))
    for t in found:
        success[t.kind] += t.probability * t.reward
    advantage = [[expected_advantage(r, p, objective) for r in (0, 1)] for p in success]
    by_decision = np.zeros(policy.probability.shape)
    for t in found:
        weight = graph.share[t.kind] * t.probability * advantage[t.kind][int(t.reward)]
        weight /= t.turns if objective.by_length else 1
        for node, action in zip(t.nodes, t.actions, strict=False):
            by_decision[graph.context[node], action] += weight
    score = by_decision - policy.probability * by_decision.sum(-1, keepdims=True)
    return score[graph.free_context, graph.free_action]


def effective_gap(
    graph: CompiledGraph, policy: PolicyTables, objective: Objective, logit: str = "start/answer"
) -> float:
    """Return Delta: minus the expected gradient of a free logit, divided by p (1 - p).

    Positive when the objective pushes against the action of that logit. Without std and length it is
    (1 - 1/G) x (value of the reference - value of the action), averaged over the question kinds.
    """
    if logit not in graph.free_names:
        raise ValueError(f"{logit!r} is no free logit of {graph.source.name}{near_misses(logit, graph.free_names)}")
    i = graph.free_names.index(logit)
    p = policy.probability[graph.free_context[i], graph.free_action[i]]
    return float(-expected_gradient(graph, policy, objective)[i] / (p * (1 - p)))


@dataclass(frozen=True)
class Fold:
    """A constant drive v against the restoring drift eta Delta g (1 - g), Delta taken constant in g."""

    rate: float
    """eta."""
    gap: float
    """Delta."""

    @property
    def critical_drive(self) -> float:
        """v_c = eta Delta / 4, logits per step: above it no share of guessing is at rest."""
        return self.rate * self.gap / 4

    def fixed_point(self, drive: float) -> float:
        """Return the stable share of guessing g* = (1 - sqrt(1 - v / v_c)) / 2.

        Raises
        ------
        ValueError
            When the drive is above the critical one.
        """
        if drive > self.critical_drive:
            raise ValueError(f"drive {drive} is above v_c = {self.critical_drive:.4g}: there is no fixed point")
        return float((1 - np.sqrt(1 - drive / self.critical_drive)) / 2)

    def passage_steps(self, drive: float, start: float, end: float = 0.0) -> float:
        """Return the steps from log-odds `start` to `end` under a drive: the integral of dz / (v - eta Delta g (1 - g))."""
        if drive <= self.critical_drive:
            raise ValueError(f"drive {drive} is not above v_c = {self.critical_drive:.4g}: z = {end} is never reached")
        value, _ = quad(lambda z: 1 / (drive - self.rate * self.gap * expit(z) * expit(-z)), start, end)
        return float(value)


def recovery_steps(rate: float, gap: float, start: float, end: float = float(np.log(0.2 / 0.8))) -> float:
    """Return the steps of dz/dt = -eta Delta g (1 - g) from log-odds `start` down to `end`.

    With s(z) = z + sinh z, d s / dt = -eta Delta / 2 ... so the time is 2 (s(start) - s(end)) / (eta Delta): exponential
    in how far the overshoot went.
    """
    if end >= start:
        raise ValueError(f"end {end} must lie below start {start}")

    def s(z: float) -> float:
        return float(z + np.sinh(z))

    return 2 * (s(start) - s(end)) / (rate * gap)


def first_passage_probability(
    start: float, sd: float | F64, drift: F64 | None, steps: int, *, grid: F64, level: float = 0.0
) -> float:
    """Return P(z reaches `level` within `steps`) for the Markov chain z' = z + drift(z) + sd x N(0, 1).

    Computed on a grid of z below the level: absorbed above it, reflected at the grid's lower end. With no drift and a
    fine grid it approaches the discretely watched Brownian passage.

    Parameters
    ----------
    start
        Log-odds at step 0.
    sd
        Standard deviation of one step, logits; one for all or one at each grid point.
    drift
        Mean of one step at each grid point, logits; None for 0.
    steps
        Number of steps.
    grid
        Equally spaced log-odds, the last one the level.
    level
        Where passage is counted.
    """
    spread = np.broadcast_to(np.asarray(sd, float), grid.shape)
    if not (spread > 0).all():
        raise ValueError(f"sd = {spread.min()} must be positive: without noise use passage_steps")
    if not np.isclose(grid[-1], level):
        raise ValueError(f"the grid ends at {grid[-1]}, not at the level {level}")
    rise = np.zeros_like(grid) if drift is None else drift

    def landing(z: F64) -> F64:
        """Return P(next in each cell | z), one row a starting point; what would leave at the lower end stays there."""
        centre, scale = z + np.interp(z, grid, rise), np.interp(z, grid, spread)
        below = ndtr((grid - centre[:, None]) / scale[:, None])
        cells = np.diff(below, axis=1)
        cells[:, 0] += below[:, 0]
        return cells

    if steps == 0:
        return 0.0
    p = landing(np.array([start]))[0]  # the first step from the very start, the others from the middle of a cell
    step = landing((grid[1:] + grid[:-1]) / 2)
    for _ in range(steps - 1):
        p = p @ step
    return float(1 - p.sum())
