"""Slopes over several settings, one a seed: how a number grows with what was varied."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["power", "slope"]

F64 = NDArray[np.float64]


def slope(x: ArrayLike, y: ArrayLike) -> F64:
    """Return the least-squares slope of y on x over k settings for each of n seeds, [n].

    `x` is [k], or [k, n] where the seeds differ in it, and `y` is [k, n]. NaN for a seed that lacks a setting.
    """
    across, along = (np.asarray(v, dtype=np.float64) for v in (x, y))
    if len(across) != len(along) or len(along) < 2:
        raise ValueError(f"a slope needs two settings or more, the same of x and y; got {len(across)} and {len(along)}")
    centred = across.reshape(len(across), -1) - across.mean(0)
    found: F64 = (centred * along).sum(0) / (centred * centred).sum(0)
    return found


def power(measured: Mapping[float, ArrayLike]) -> F64:
    """Return the slope of log y on log x for each seed, [n], of numbers y [n] measured at settings x: y grows as x^power.

    >>> power({1.0: [3.0, 5.0], 2.0: [6.0, 20.0]}).round(6).tolist()
    [1.0, 2.0]
    """
    return slope(np.log(list(measured)), np.log(np.array(list(measured.values()), dtype=np.float64)))
