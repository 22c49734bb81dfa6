"""The mean drift of a behaviour under an objective, by exact binomial sums (T1).

z is the log-odds of guessing at the start, g = sigmoid(z), eta the SGD rate, Delta the effective gap between searching
first and guessing first: under SGD and one update a batch E[dz] = -eta g (1 - g) Delta.
"""

from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from sim.mdp.compiled import CompiledGraph
from sim.mdp.exact import trajectories
from sim.mdp.policy import PolicyTables
from sim.records.config import near_misses

__all__ = ["Objective", "effective_gap", "expected_advantage", "expected_gradient"]

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
