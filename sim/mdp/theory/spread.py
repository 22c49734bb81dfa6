"""Exact mean and covariance of the gradient that one batch gives: the noise that a learner lives with, on and off policy.

A question's rollouts come from a behaviour policy mu and give X = 1/G sum_i A_i v_i, with v_i = sum_t w_t d log pi(a_t) / dz
times N x the rollout's factor. The questions of a batch are independent, so the covariance of their mean is that of X
divided by Q. A weight w may look at the sign of the advantage, as a clip does; so an advantage is the sum of its positive
and its negative part, each with its own v.

Sizes: M ways, K turns, D free logits, H kinds, X classes, C compositions, S = 2 signs.
"""

from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sim.learning.normalisers import BatchMean, ConstantLength, SequenceMean
from sim.learning.view import View
from sim.learning.weights import Unweighted, Weight
from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import PolicyTables
from sim.mdp.theory.credit_sums import Comparison, comparisons, compositions, counted, multinomial
from sim.mdp.theory.drift import Objective, ways_for
from sim.mdp.theory.length_sums import own_factor
from sim.mdp.theory.ways import Ways

__all__ = ["Moments", "gradient_covariance", "gradient_moments"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Of the gradient of a batch with respect to the free logits."""

    mean: F64
    """E g, [D]."""
    covariance: F64
    """E (g - E g)(g - E g)', [D, D]."""

    @property
    def variance(self) -> float:
        """E |g - E g|^2, the trace of the covariance."""
        return float(np.trace(self.covariance))


def gradient_covariance(graph: CompiledGraph, policy: PolicyTables, objective: Objective) -> F64:
    """Return the covariance of one batch's gradient on policy, [D, D]; see :func:`gradient_moments`."""
    return gradient_moments(graph, policy, objective).covariance


def gradient_moments(
    graph: CompiledGraph,
    now: PolicyTables,
    objective: Objective,
    weight: Weight = Unweighted(),  # noqa: B008 - frozen
    behaviour: PolicyTables | None = None,
    proximal: PolicyTables | None = None,
) -> Moments:
    """Return the moments of one batch's gradient with respect to the free logits of `now`. Penalties are left out.

    A running baseline is taken as fixed at its stationary mean.

    E[X X'] = 1/G sum_s E[A_s^2 v_s v_s'] + (1 - 1/G) sum_sr E[A_1s A_2r v_1s v_2r'] over signs s and r, the second by the
    classes of both rollouts and the composition of the other G - 2.

    Parameters
    ----------
    graph, now
        The task and the policy whose gradient it is, tables [C, A].
    objective
        Credit, normaliser and the size of a batch.
    weight
        What multiplies the score of each turn, from its ratios and the sign of its advantage.
    behaviour, proximal
        The policy that samples, and the learner's when the batch began; `now` and `behaviour` if left out. Ratios between
        policies that are one object are exactly 1.

    Raises
    ------
    ValueError
        For a credit that tells the turns of a rollout apart, one with a greedy baseline, a normaliser that
        adds up lengths of several rollouts, or a weight that looks at several rollouts: there is no exact sum for these.
    """
    _check(objective, weight)
    behaviour = now if behaviour is None else behaviour
    ways = ways_for(graph, objective)
    probability = ways.probability(behaviour)
    (part,) = comparisons(objective.credit, ways, objective.group, behaviour)
    factor = own_factor(objective.normaliser, ways.lengths(objective.unit).sum(-1))  # type: ignore[arg-type]
    v = _weighted_scores(ways, weight, now, behaviour, behaviour if proximal is None else proximal) * factor[:, None]
    H, X, G = len(graph.share), part.classes, objective.group
    member = probability * (ways.kind * X + part.label == np.arange(H * X)[:, None])  # [H X, M]
    first = (member @ v).reshape(2, H, X, -1)
    by_way = member[:, None] * v.swapaxes(1, 2)[:, None]  # [S, H X, D, M]
    second = (by_way @ v[:, None]).reshape(2, H, X, v.shape[-1], -1)
    once, twice, pair = _advantages(part, ways, probability, G)
    square = np.einsum("h,shx,shxde->de", graph.share, twice, second) / G
    square = square + (1 - 1 / G) * np.einsum("h,srhxy,shxd,rhye->de", graph.share, pair, first, first)
    mean: F64 = np.einsum("h,shx,shxd->d", graph.share, once, first)
    return Moments(mean, (square - np.outer(mean, mean)) / objective.prompts)


def _check(objective: Objective, weight: Weight) -> None:
    credit, normaliser = objective.credit, objective.normaliser
    if getattr(credit, "per", "rollout") != "rollout" or getattr(credit, "reads", ()):
        raise ValueError(f"{type(credit).__name__}: the covariance is known for credits of whole rollouts only")
    if not isinstance(normaliser, BatchMean | ConstantLength | SequenceMean):
        raise ValueError(
            f"{type(normaliser).__name__}: the covariance is known for BatchMean, ConstantLength and SequenceMean"
        )
    if weight.scope in ("group", "batch"):
        raise ValueError(
            f"{type(weight).__name__} looks at a whole {weight.scope}: the covariance is known for weights of a token, a "
            "turn or a sequence; sample the gradient with sim.learning.tabular"
        )


def _weighted_scores(
    ways: Ways, weight: Weight, now: PolicyTables, behaviour: PolicyTables, proximal: PolicyTables
) -> F64:
    """Return sum_t w_t d log pi(a_t) / dz of each way for an advantage above and one below 0, [S, M, D]."""
    mask = np.stack([ways.running] * 2)
    # one array a policy: a ratio of an array to itself is known to be 1
    logs = {id(p): np.stack([ways.along(p.log_probability)] * 2) for p in (now, behaviour, proximal)}
    sign = np.array([1.0, -1.0])[:, None, None]
    view = View.of(logs[id(now)], logs[id(behaviour)], sign, mask, proximal=logs[id(proximal)])
    w = np.broadcast_to(weight(view).value, mask.shape) * mask
    return cast(F64, np.einsum("smk,mkd->smd", w, ways.scores(now)))


def _advantages(part: Comparison, ways: Ways, probability: F64, group: int) -> tuple[F64, F64, F64]:
    """Return the moments of the positive and negative part of A by class.

    E[A_s | class] and E[A_s^2 | class], [S, H, X], and E[A_1s A_2r | both classes], [S, S, H, X, X].
    """
    X = part.classes
    signed = np.stack([part.value.clip(min=0), part.value.clip(max=0)])
    chances = part.class_probability(ways, probability)
    every = compositions(group - 1, X)
    others = multinomial(every, chances)
    once, twice = (np.einsum("shxc,hc->shx", signed**power, others) for power in (1, 2))
    rest = compositions(group - 2, X)
    # A of class x beside y and a rest, [S, ., X, Y, C]
    seen = signed[..., counted(np.eye(X, dtype=np.int64), rest, every)]
    pair = np.einsum("shxyc,rhyxc,hc->srhxy", seen, seen, multinomial(rest, chances))
    return once, twice, pair
