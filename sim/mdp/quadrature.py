"""Gauss quadrature of a beta distribution: a few kinds of question in place of a continuum."""

from functools import lru_cache

import numpy as np

__all__ = ["beta_quadrature"]


@lru_cache(maxsize=4096)
def beta_quadrature(mean: float, icc: float, points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return nodes and weights of Gauss quadrature for Beta with `mean` and intra-class correlation `icc`.

    ``icc = 1 / (alpha + beta + 1)`` is the correlation of two Bernoulli draws with a common success rate. Moments up to
    order ``2 * points - 1`` are exact. Source: Golub and Welsch, "Calculation of Gauss quadrature rules" (1969).

    >>> rates, weights = beta_quadrature(.385, .5, 9)
    >>> round(sum(r * w for r, w in zip(rates, weights)), 12)
    0.385
    """
    if icc == 0 or mean in (0.0, 1.0):
        return (mean,), (1.0,)
    a, b = (1 / icc - 1) * (1 - mean) - 1, (1 / icc - 1) * mean - 1  # exponents of the Jacobi weight on [-1, 1]
    k = np.arange(1.0, points)
    diagonal = np.append((b - a) / (a + b + 2), (b - a) * (a + b) / ((2 * k + a + b) * (2 * k + a + b + 2)))
    # (k + a + b) / (2 k + a + b - 1) is 1 at k = 1, where it may read 0 / 0
    ratio = np.append(1.0, (k[1:] + a + b) / (2 * k[1:] + a + b - 1))[: len(k)]
    square = 4 * k * (k + a) * (k + b) * ratio / ((2 * k + a + b) ** 2 * (2 * k + a + b + 1))
    off = np.sqrt(square)
    x, v = np.linalg.eigh(np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1))
    rates, weights = np.clip((1 + x) / 2, 0, 1), v[0] ** 2
    return tuple(map(float, rates)), tuple(map(float, weights / weights.sum()))
