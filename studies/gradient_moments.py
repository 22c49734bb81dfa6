"""Exact mean and variance of the gradient that one batch gives, by enumeration: what two studies hold their samples against.

A batch is Q questions, each with a group of G rollouts drawn from a behaviour policy mu; its gradient is
(1/Q) sum_q (1/G) sum_i A_qi u_qi with u = sum_t w_t (e_{a_t} - pi(. | c_t)) the weighted score of a rollout. Given its kind
and the number W of wins in its group, the rollouts of a question are independent and A takes two values, so with m_r and
s_r the mean and mean square of u among rollouts of reward r

    E|sum_i A_i u_i|^2 = sum_W P(W) [ W a^2 s_1 + (G - W) b^2 s_0 + W (W - 1) a^2 |m_1|^2
                                     + (G - W)(G - W - 1) b^2 |m_0|^2 + 2 W (G - W) a b m_1.m_0 ]

with a and b the advantages of winners and losers. Rewards are 0 or 1. Weights may depend on the token, its rollout and the
sign of A, which the reward decides; not on the rest of the batch.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from sim.learning.batch import Batch
from sim.learning.credit import Credit
from sim.learning.view import View
from sim.learning.weights import Weight
from sim.mdp.compiled import CompiledGraph
from sim.mdp.exact import trajectories
from sim.mdp.policy import PolicyTables, tables

__all__ = ["Moments", "Paths", "moments", "paths"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Paths:
    """Every way an episode can go, M of them, up to T turns."""

    kind: I64
    """Kind of the question, [M]."""
    environment: F64
    """P(what came back | kind, what was done), [M]."""
    context: I64
    """Context of each turn, [M, T]; 0 once over."""
    action: I64
    """Action of each turn, [M, T]; 0 once over."""
    mask: NDArray[np.bool_]
    """Whether the turn takes place, [M, T]."""
    reward: F64
    """Reward, [M]."""

    def log_probability(self, policy: PolicyTables) -> F64:
        """Return log pi of each turn, 0 once over, [M, T]."""
        return np.where(self.mask, policy.log_probability[self.context, self.action], 0.0)

    def probability(self, policy: PolicyTables) -> F64:
        """Return P(path | kind), [M]."""
        return self.environment * np.exp(self.log_probability(policy).sum(1))


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the gradient of a batch with respect to the free logits."""

    mean: F64
    """E g, [D]."""
    variance: float
    """E|g - E g|^2."""


def paths(graph: CompiledGraph) -> Paths:
    """Return every path that some policy can take."""
    even = tables(graph, np.zeros(len(graph.free_context)))
    found = trajectories(graph, even)
    context, action = np.zeros((2, len(found), graph.turns), np.int64)
    mask = np.zeros(context.shape, np.bool_)
    for row, t in enumerate(found):
        context[row, : t.turns] = graph.context[list(t.nodes[:-1])]
        action[row, : t.turns] = t.actions
        mask[row, : t.turns] = True
    taken = np.where(mask, even.log_probability[context, action], 0.0).sum(1)
    return Paths(
        np.array([t.kind for t in found]),
        np.array([t.probability for t in found]) / np.exp(taken),
        context,
        action,
        mask,
        np.array([t.reward for t in found]),
    )


def moments(
    graph: CompiledGraph,
    ways: Paths,
    credit: Credit,
    weight: Weight,
    now: PolicyTables,
    behaviour: PolicyTables | None = None,
    proximal: PolicyTables | None = None,
    *,
    questions: int,
    group: int,
) -> Moments:
    """Return the moments for one policy each, tables [C, A]; `behaviour` is `now` and `proximal` is `behaviour` if left out.

    Raises
    ------
    ValueError
        When a reward is neither 0 nor 1.
    """
    if not np.isin(ways.reward, (0.0, 1.0)).all():
        raise ValueError(f"rewards must be 0 or 1; got {ways.reward[~np.isin(ways.reward, (0.0, 1.0))][0]}")
    behaviour = now if behaviour is None else behaviour
    score = _scores(graph, ways, weight, now, behaviour, behaviour if proximal is None else proximal)
    chance = ways.probability(behaviour)
    gain, loss = _advantages(credit, group)
    wins = np.arange(group + 1)
    mean, square = np.zeros(score.shape[1]), 0.0
    for kind, share in enumerate(graph.share):
        here = ways.kind == kind
        won, lost = (np.where(here & (ways.reward == r), chance, 0.0) for r in (1.0, 0.0))
        p = won.sum()
        m1, m0 = (c @ score / max(c.sum(), 1e-300) for c in (won, lost))
        s1, s0 = (c @ (score**2).sum(1) / max(c.sum(), 1e-300) for c in (won, lost))
        W, L, P = wins, group - wins, binom.pmf(wins, group, p)
        mean += share * (P @ (W * gain)[:, None] * m1[None] + P @ (L * loss)[:, None] * m0[None])[0] / group
        pairs = (
            W * (W - 1) * gain**2 * (m1 @ m1) + L * (L - 1) * loss**2 * (m0 @ m0) + 2 * W * L * gain * loss * (m1 @ m0)
        )
        square += share * float(P @ (W * gain**2 * s1 + L * loss**2 * s0 + pairs)) / group**2
    return Moments(mean, (square - float(mean @ mean)) / questions)


def _scores(
    graph: CompiledGraph,
    ways: Paths,
    weight: Weight,
    now: PolicyTables,
    behaviour: PolicyTables,
    proximal: PolicyTables,
) -> F64:
    """Return the weighted score of each path, [M, D]."""
    logs = {id(p): ways.log_probability(p)[None] for p in (now, behaviour, proximal)}
    sign = (2 * ways.reward - 1)[None, :, None]
    view = View.of(logs[id(now)], logs[id(behaviour)], sign, ways.mask[None], proximal=logs[id(proximal)])
    w = np.broadcast_to(weight(view).value, ways.mask[None].shape)[0] * ways.mask  # [M, T]
    taken = (ways.context[..., None] == graph.free_context) & (ways.action[..., None] == graph.free_action)
    pi = now.probability[graph.free_context, graph.free_action]
    visited = ways.context[..., None] == graph.free_context
    found: F64 = np.einsum("mt,mtd->md", w, taken - visited * pi)
    return found


def _advantages(credit: Credit, group: int) -> tuple[F64, F64]:
    """Return the advantage of winners and of losers in a group with 0 .. G wins, [G + 1] each; 0 where there are none."""
    reward = np.tril(np.ones((group + 1, group)), -1)[:, None]  # row W: the first W rollouts win
    value = credit(Batch(reward)).value[:, 0, :, 0]
    return np.where(reward[:, 0, 0] == 1, value[:, 0], 0.0), np.where(reward[:, 0, -1] == 0, value[:, -1], 0.0)
