"""How much the gradient of one batch varies about its mean, by exact sums: the noise that a learner lives with.

A question's rollouts give X = 1/G sum_i A_i v_i, with v_i the score of a rollout times N x its factor; the questions of a
batch are independent, so the covariance of their mean is that of X divided by Q.
"""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from sim.learning.normalisers import BatchMean, ConstantLength, SequenceMean
from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import PolicyTables
from sim.mdp.theory.credit_sums import Comparison, comparisons, compositions, counted, multinomial
from sim.mdp.theory.drift import Objective, ways_for
from sim.mdp.theory.length_sums import own_factor
from sim.mdp.theory.ways import Ways

__all__ = ["gradient_covariance"]

F64 = NDArray[np.float64]


def gradient_covariance(graph: CompiledGraph, policy: PolicyTables, objective: Objective) -> F64:
    """Return the covariance of one batch's gradient with respect to the free logits, [D, D], on policy.

    E[X X'] = 1/G E[A^2 v v'] + (1 - 1/G) E[A_1 A_2 v_1 v_2'], the second by the classes of both rollouts and the composition
    of the other G - 2. Penalties are left out.

    Raises
    ------
    ValueError
        For a credit that tells the turns of a rollout apart, one with a baseline from outside the batch, or a normaliser
        that adds up lengths of several rollouts: there is no exact sum for these.
    """
    if getattr(objective.credit, "per", "rollout") != "rollout" or getattr(objective.credit, "reads", ()):
        raise ValueError(
            f"{type(objective.credit).__name__}: the covariance is known for credits of whole rollouts only"
        )
    if not isinstance(objective.normaliser, BatchMean | ConstantLength | SequenceMean):
        raise ValueError(
            f"{type(objective.normaliser).__name__}: the covariance is known for BatchMean, ConstantLength and SequenceMean"
        )
    ways = ways_for(graph, objective)
    probability = ways.probability(policy)
    (part,) = comparisons(objective.credit, ways, objective.group, policy)
    v = _scores(ways, policy) * own_factor(objective.normaliser, ways.lengths(objective.unit).sum(-1))[:, None]
    alone, pair = _moments(part, ways, probability, objective.group)
    H, X = len(graph.share), part.classes

    def by_class(values: F64) -> F64:
        """Return E[values; class | kind], [H, X, ...]."""
        total = np.zeros((H * X, *values.shape[1:]))
        np.add.at(total, ways.kind * X + part.label, values * probability.reshape(-1, *[1] * (values.ndim - 1)))
        return total.reshape(H, X, *values.shape[1:])

    G, first = objective.group, by_class(v)
    square = np.einsum("hx,hxde->hde", alone[1], by_class(v[:, :, None] * v[:, None])) / G
    square = square + (1 - 1 / G) * np.einsum("hxy,hxd,hye->hde", pair, first, first)
    mean = np.einsum("h,hx,hxd->d", graph.share, alone[0], first)
    return cast(F64, (np.einsum("h,hde->de", graph.share, square) - np.outer(mean, mean)) / objective.prompts)


def _scores(ways: Ways, policy: PolicyTables) -> F64:
    """Return d log P(way) / dz, [M, D]."""
    g = ways.graph
    pi = policy.probability[g.free_context, g.free_action]
    here = ways.running[..., None] & (ways.contexts[..., None] == g.free_context)
    found: F64 = (here * ((ways.actions[..., None] == g.free_action) - pi)).sum(1)
    return found


def _moments(part: Comparison, ways: Ways, probability: F64, group: int) -> tuple[F64, F64]:
    """Return E[A | class], E[A^2 | class], [2, H, X], and E[A_1 A_2 | both classes], [H, X, X]."""
    X = part.classes
    chances = part.class_probability(ways, probability)
    every = compositions(group - 1, X)
    others = multinomial(every, chances)
    alone = np.stack([np.einsum("hxc,hc->hx", part.value**power, others) for power in (1, 2)])
    rest = compositions(group - 2, X)
    seen = part.value[
        :, :, counted(np.eye(X, dtype=np.int64), rest, every)
    ]  # A of class x beside y and a rest, [., X, Y, C]
    pair = np.einsum("hxyc,hyxc,hc->hxy", seen, seen, multinomial(rest, chances))
    return alone, pair
