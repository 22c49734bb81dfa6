"""Which columns of TRL's completion logs make up the reward: found by the advantages that stand beside them, never guessed.

A log has a column for each reward function and then those that the functions added, which may be numbers too; weights are
not in it. A lone column of numbers is the reward. Of several, the sum of the first k is the reward where it, and no other
such sum, gives the advantages of all rows looked at, by one of TRL's three ways (``scale_rewards``):

    advantage = (reward - mean of its group) / (sd + 1e-4)    sd of the group, or of the batch; or without a divisor
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["SCALES", "advantages", "reward_columns"]

F64 = NDArray[np.float64]
Table = Mapping[str, Sequence[Any]]
"""Name to values, [N] each: ``prompt``, ``advantage`` and columns of numbers, those of the reward functions first."""

SCALES = ("group", "batch", "none")
"""TRL's ways of dividing an advantage."""

_CLOSE = 1e-3  # TRL computes in single precision
_FEW = 8  # columns whose sums are tried


def reward_columns(source: Source, tables: Iterable[Table]) -> tuple[str, ...]:
    """Return the columns whose sum is the reward; none, and why in ``source.absent``, where nothing tells."""
    names: list[str] = []
    agree: list[tuple[str, ...]] = []
    for table in tables:
        if not names:
            names = [name for name in table if name not in ("prompt", "advantage")]
            agree = [tuple(names[: k + 1]) for k in range(min(len(names), _FEW))]
            if len(names) < 2:
                break
        if table.keys() >= {*names, "advantage"}:
            agree = [columns for columns in agree if _explains(table, columns)]
    if len(names) == 1 or len(agree) == 1:
        summed = tuple(names) if len(names) == 1 else agree[0]
        how = "" if len(names) == 1 else ", whose sum gives the advantages"
        source.note(f"the reward is what TRL logs as {' + '.join(summed)}{how}")
        return summed
    if not names:
        source.lacks("reward", "the logs have no column of numbers beside the advantage")
    else:
        source.lacks(
            "reward",
            f"TRL logs {', '.join(names)} without their weights, and {'several' if agree else 'none'} of the sums of the "
            "first of them give the advantages: each is kept beside the rollout",
        )
    return ()


def advantages(reward: F64, group: NDArray[np.intp], scale: str) -> F64:
    """Return the advantages of rewards [N], as TRL computes them, 0 where there is no reward.

    >>> advantages(np.array([0., 1., 5., 5.]), np.array([0, 0, 1, 1]), "group").round(3).tolist()
    [-0.707, 0.707, 0.0, 0.0]
    """
    count = np.bincount(group, ~np.isnan(reward))[group]
    filled = np.nan_to_num(reward)
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = reward - np.bincount(group, filled)[group] / count
        if scale == "group":
            centred /= np.sqrt(np.bincount(group, np.nan_to_num(centred) ** 2)[group] / (count - 1)) + 1e-4
        elif scale == "batch":
            known = reward[~np.isnan(reward)]
            centred /= (known.std(ddof=1) if len(known) > 1 else np.nan) + 1e-4
    return np.nan_to_num(centred)


def _explains(table: Table, columns: Sequence[str]) -> bool:
    """Whether the sum of columns gives the advantages of a table, in one of the ways."""
    scores = np.array([table[name] for name in columns], float)
    reward = np.where(np.isnan(scores).all(0), np.nan, np.nansum(scores, 0))
    _, group = np.unique([repr(prompt) for prompt in table["prompt"]], return_inverse=True)
    given = np.array(table["advantage"], float)
    return any(np.allclose(advantages(reward, group, scale), given, rtol=_CLOSE, atol=_CLOSE) for scale in SCALES)
