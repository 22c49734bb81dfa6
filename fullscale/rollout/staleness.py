"""Which versions wrote a group, and how old they are when it is used, token by token."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["span", "staleness"]

I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


def span(version: I64, sampled: Flags) -> tuple[int, int]:
    """Return the oldest and the newest version that wrote any sampled token; -1 and -1 where none is noted.

    Parameters
    ----------
    version
        Version that wrote each token, any shape; -1 where nobody noted it.
    sampled
        Where the policy wrote, the same shape.
    """
    known = version[sampled & (version >= 0)]
    return (int(known.min()), int(known.max())) if known.size else (-1, -1)


def staleness(version: I64, sampled: Flags, update: int) -> dict[str, float]:
    """Return how many versions behind the sampled tokens of a batch are: the oldest, the newest, the mean over tokens.

    A token whose version nobody noted is not a lag of 0: it enters none of the three and lowers the coverage, the share of
    tokens whose version is known. NaN where there is nothing to measure.

    Parameters
    ----------
    version, sampled
        As in :func:`span`.
    update
        The version that learns from them.

    Raises
    ------
    ValueError
        When a token was written by a version that is yet to be made.
    """
    oldest, newest = span(version, sampled)
    if newest > update:
        raise ValueError(f"version {newest} wrote a token and {update} learns from it: give the learner's version")
    known = version[sampled & (version >= 0)]
    absent = float("nan")
    return {
        "staleness/oldest": float(update - oldest) if known.size else absent,
        "staleness/newest": float(update - newest) if known.size else absent,
        "staleness/token_mean": float((update - known).mean()) if known.size else absent,
        "staleness/coverage": known.size / int(sampled.sum()) if sampled.any() else absent,
    }
