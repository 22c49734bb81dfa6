"""Softmax policies over decision contexts: z = z0 + F w.

Every context has one logit per action; the first action offered is the reference and its logit is 0, so a choice between
two actions has one free logit, the log-odds of the second. The D free logits are an affine function of P weights. The
columns of F are *private* directions (one logit each) and *shared* ones (several logits, or none but content tokens):
what the rest of the network's gradients do to a decision comes through the shared ones.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.mdp.compiled import CompiledGraph
from sim.records.config import near_misses

__all__ = ["PolicyTables", "SoftmaxPolicy", "fisher", "free_logits", "tables"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class PolicyTables:
    """Action probabilities by context, for a block of policies."""

    probability: F64
    """pi(action | context), [..., C, A]; 0 where an action is not offered."""
    log_probability: F64
    """log pi, [..., C, A]; 0 where an action is not offered, so that sums over actions need no mask."""


def tables(graph: CompiledGraph, z: F64) -> PolicyTables:
    """Return the softmax of free logits `z`, [..., D]."""
    C, A = graph.offered.shape
    logits = np.full((*z.shape[:-1], C, A), -np.inf)
    logits[..., np.arange(C), graph.reference] = 0.0
    logits[..., graph.free_context, graph.free_action] = z
    logits -= logits.max(-1, keepdims=True)
    weight = np.exp(logits)
    total = weight.sum(-1, keepdims=True)
    log_probability = np.where(graph.offered, logits - np.log(total), 0.0)
    return PolicyTables(weight / total, log_probability)


def free_logits(graph: CompiledGraph, habit: Iterable[tuple[str, float]] = (), /, **log_odds: float) -> F64:
    """Return z, [D]: log-odds against each context's reference action, by name; 0 where not given.

    `habit` has pairs ("context/action", log-odds); ``context__action=log-odds`` adds to it, or takes the place of a pair.

    Raises
    ------
    ValueError
        For a name that is no free logit of the graph (with near misses).
    """
    names = [name.replace("/", "__") for name in graph.free_names]
    given = {name.replace("/", "__"): value for name, value in habit} | log_odds
    z = np.zeros(len(names))
    for name, value in given.items():
        if name not in names:
            raise ValueError(f"{graph.source.name} has no free logit {name!r}{near_misses(name, names)}")
        z[names.index(name)] = value
    return z


@dataclass(frozen=True, eq=False)
class SoftmaxPolicy:
    """The map from weights to action probabilities and back."""

    graph: CompiledGraph
    """The arrays of the task."""
    z0: F64
    """Free logits at w = 0, [D]."""
    features: F64
    """F, [D, P]."""

    def __post_init__(self) -> None:
        D = len(self.graph.free_context)
        if self.z0.shape != (D,) or self.features.ndim != 2 or self.features.shape[0] != D:
            raise ValueError(
                f"z0 {self.z0.shape} and F {self.features.shape} do not fit the {D} free logits of "
                f"{self.graph.source.name}: {', '.join(self.graph.free_names)}"
            )
        if not (np.isfinite(self.z0).all() and np.isfinite(self.features).all()):
            raise ValueError("z0 and F must be finite")

    def logits(self, w: F64) -> F64:
        """Return z = z0 + F w for w [..., P]; [..., D]."""
        # einsum adds in one order whatever the number of policies; a matrix product may not
        return self.z0 + np.einsum("...p,dp->...d", w, self.features)

    def tables(self, w: F64) -> PolicyTables:
        """Return the action probabilities at w [..., P]."""
        return tables(self.graph, self.logits(w))

    def pull_back(self, dz: F64) -> F64:
        """Return F' dz: a gradient with respect to z [..., D] as one with respect to w [..., P]."""
        pulled: F64 = np.einsum("...d,dp->...p", dz, self.features)
        return pulled


def fisher(policy: SoftmaxPolicy, now: PolicyTables, visits: F64) -> F64:
    """Return the Fisher matrix of the trajectory distribution with respect to the weights, [..., P, P].

    F' diag over contexts of n_c (diag(pi_c) - pi_c pi_c') F, with pi_c the free actions of a context: the covariance of the
    score of a rollout, where scores of different turns are uncorrelated.

    Parameters
    ----------
    policy
        The map from weights to logits, whose features F are used.
    now
        Action probabilities, tables [..., C, A].
    visits
        Visits of each context n_c, a rollout, [..., C].
    """
    g, F = policy.graph, policy.features
    pi = now.probability[..., g.free_context, g.free_action]
    same = g.free_context[:, None] == g.free_context
    fisher_z = same * (np.eye(pi.shape[-1]) * pi[..., None, :] - pi[..., :, None] * pi[..., None, :])
    fisher_z = fisher_z * visits[..., g.free_context][..., None]
    # einsum adds in one order whatever the number of policies; a matrix product may not
    found: F64 = np.einsum("dp,...de,eq->...pq", F, fisher_z, F)
    return found
