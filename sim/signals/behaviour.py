"""Behaviour by turn: what a batch of rollouts did, from counts.

Every share has *all* rollouts in its denominator, finished ones included, as in seed A's table; a *hazard* divides by the
rollouts still unsolved. Leading axes (seeds, steps) are free.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["TurnCounts", "effective_number", "entropy", "hazards", "total_variation", "workflow_shares"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class TurnCounts:
    """Counts of a batch."""

    decision: NDArray[Any]
    """Rollouts that took action a in context c at turn t, [..., K, C, A]."""
    solved: NDArray[Any]
    """Rollouts solved by the end of turn t, [..., K]."""
    rollouts: int
    """All rollouts of the batch, finished or not."""

    def action_share(self, action: int) -> F64:
        """Return the share of all rollouts that take `action` at turn t, [..., K]."""
        return self.decision[..., action].sum(-1) / self.rollouts

    def accuracy(self) -> F64:
        """Return the share of all rollouts solved by the end of turn t, [..., K]."""
        return self.solved / self.rollouts

    def turns(self) -> F64:
        """Return the mean number of turns taken, [...]."""
        return self.decision.sum((-3, -2, -1)) / self.rollouts

    def policy(self) -> F64:
        """Return the empirical P(action | context), [..., C, A]; NaN for a context not visited."""
        by_context = self.decision.sum(-3)
        visits = by_context.sum(-1, keepdims=True)
        return np.divide(by_context, visits, out=np.full(by_context.shape, np.nan), where=visits > 0)


def hazards(accuracy: ArrayLike, search_share: ArrayLike) -> tuple[F64, F64]:
    """Return P(search | unsolved) and P(correct | answered) by turn, from the two columns of seed A's table.

    Where wrong answers may be retried, ``alive_t = 1 - accuracy_{t-1}`` and whoever is alive and does not search answers.

    Parameters
    ----------
    accuracy
        Share of all rollouts solved by the end of turn t, [..., K].
    search_share
        Share of all rollouts that search at turn t, [..., K].
    """
    accuracy, search = np.asarray(accuracy, float), np.asarray(search_share, float)
    before = np.concatenate([np.zeros_like(accuracy[..., :1]), accuracy[..., :-1]], -1)
    alive = 1 - before
    answered = alive - search
    with np.errstate(invalid="ignore", divide="ignore"):
        return search / alive, np.where(answered > 0, (accuracy - before) / answered, np.nan)


def workflow_shares(codes: NDArray[np.intp], count: int) -> F64:
    """Return the share of each workflow (sequence of actions, coded as an integer below `count`), [S, count].

    `codes` is [S, N], one per rollout.
    """
    seeds = codes.shape[0]
    flat = (codes + np.arange(seeds)[:, None] * count).ravel()
    return np.bincount(flat, minlength=seeds * count).reshape(seeds, count) / codes.shape[1]


def entropy(p: F64) -> F64:
    """Return the entropy of distributions on the last axis, nats; 0 log 0 is 0.

    >>> round(float(entropy(np.array([.25, .25, .25, .25]))), 4)
    1.3863
    """
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    result: F64 = -(p * logs).sum(-1)
    return result


def effective_number(p: F64) -> F64:
    """Return exp(entropy): the number of equally likely alternatives that would be as uncertain."""
    return np.exp(entropy(p))


def total_variation(p: F64, q: F64) -> F64:
    """Return half the L1 distance of distributions on the last axis."""
    result: F64 = np.abs(p - q).sum(-1) / 2
    return result
