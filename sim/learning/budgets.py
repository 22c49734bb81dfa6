"""Sampling budgets: how many rollouts each question gets, and which groups are worth an update. Plain functions."""

import numpy as np
from numpy.typing import NDArray

from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit

__all__ = ["dynamic_filter", "no_signal_probability", "uniform_budget"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def uniform_budget(rollouts: int, questions: int) -> I64:
    """Return the rollouts of each question, [questions]: equal, the first ones one more where they do not divide.

    Raises
    ------
    ValueError
        When there are fewer than two rollouts a question: a group of one has no baseline.
    """
    if questions < 1 or rollouts < 2 * questions:
        raise ValueError(f"{rollouts} rollouts for {questions} questions; a group needs at least 2")
    each, over = divmod(rollouts, questions)
    return np.full(questions, each, np.int64) + (np.arange(questions) < over)


def dynamic_filter(
    reward: F64, valid: NDArray[np.bool_] | None = None, *, wanted: int | None = None
) -> NDArray[np.bool_]:
    """Return which groups to train on, [..., Q]: those whose usable rewards differ, the first `wanted` of them.

    What is left out is sampled anew from other questions until the batch is full, or leaves the batch smaller.

    Source: DAPO, arXiv 2503.14476, equation 11.

    Parameters
    ----------
    reward
        [..., Q, G].
    valid
        Rollouts that count, [..., Q, G].
    wanted
        Most groups to keep; None for all.
    """
    keep: NDArray[np.bool_] = ~GroupCredit(std=False)(Batch(reward, valid=valid)).degenerate
    if wanted is not None:
        if wanted < 1:
            raise ValueError(f"wanted = {wanted} groups; keep at least 1")
        keep &= np.cumsum(keep, axis=-1) <= wanted
    return keep


def no_signal_probability(success: F64 | float, group: int) -> F64:
    """Return P(all G rewards agree) = p^G + (1 - p)^G, for rewards of 0 or 1 and success probability p."""
    p = np.asarray(success, float)
    if ((p < 0) | (p > 1)).any():
        raise ValueError(f"success = {success} must lie in [0, 1]")
    return p**group + (1 - p) ** group
