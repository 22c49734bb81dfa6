"""Clusters: seeds that share something drawn, such as a supervised start, and so are not independent of each other.

Numbers are reduced to one value a cluster. Yes-or-no outcomes are not: half a flip is no outcome. They keep their share,
and the clusters tell how many independent seeds that share rests on.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from studies.kit.estimate import Estimate
from studies.kit.samples import FEWEST_SEEDS, DataError

__all__ = ["FEWEST", "FEWEST_ORDERED", "clustered", "effective", "members", "reduced"]

F64 = NDArray[np.float64]

FEWEST = 4
"""Clusters for a t interval or a share; three degrees of freedom are as few as a spread can be taken from."""
FEWEST_ORDERED = FEWEST_SEEDS
"""Clusters for an interval from order statistics, which at five or fewer is the whole line."""
_TAIL = 0.025  # of the bound on the correlation


def members(name: str, n: int, clusters: Any, fewest: int = FEWEST) -> NDArray[np.intp]:
    """Return the cluster of each of n entries, numbered in order of first appearance  # [n].

    ``clusters`` holds one label an entry, of any sort. DataError for another number of labels or too few clusters.
    """
    labels = np.asarray(clusters)
    if labels.shape != (n,):
        raise DataError(f"clusters has shape {labels.shape} and {name} has ({n},): give one label an entry")
    number = {label: i for i, label in enumerate(dict.fromkeys(labels.tolist()))}
    if len(number) < fewest:
        raise DataError(
            f"{name} comes from {len(number)} clusters; the interval needs {fewest} or more independent ones: spread the "
            "seeds over more"
        )
    return np.array([number[label] for label in labels.tolist()], dtype=np.intp)


def reduced(array: F64, of: NDArray[np.intp], by: Callable[[F64], Any] = np.mean) -> F64:
    """Return one value a cluster: the mean of its entries, or what ``by`` makes of them  # [clusters]."""
    return np.array([by(array[of == i]) for i in range(of.max() + 1)], dtype=np.float64)


def effective(of: NDArray[np.intp], *columns: F64) -> int:
    """Return how many independent seeds the means of the columns rest on, rounded down.

    With clusters of sizes k, n entries in all and a correlation rho inside clusters,

        n_eff = n / (1 + (sum k^2 / n - 1) rho),

    which is the number of clusters at rho = 1 if all are of one size. A point estimate of rho from so few clusters is
    too low too often; here it is the upper 97.5 % bound from the F ratio of an analysis of variance, the largest over
    the columns. Where no cluster disagrees, or a column does not vary at all, nothing shows that the seeds of a cluster
    are more than one: rho = 1.
    """
    sizes = np.bincount(of).astype(np.float64)
    n = float(len(of))
    rho = max(_correlation(of, sizes, column) for column in columns)
    return math.floor(n / (1 + (float((sizes**2).sum()) / n - 1) * rho) * (1 + 1e-12))


def _correlation(of: NDArray[np.intp], sizes: F64, column: F64) -> float:
    """Upper bound of the intraclass correlation of one column."""
    n, m = len(of), len(sizes)
    means = np.bincount(of, weights=column) / sizes
    within = float(((column - means[of]) ** 2).sum())
    between = float((sizes * (means - column.mean()) ** 2).sum())
    if n == m or within == 0 or np.ptp(column) == 0:
        return 1.0
    size = (n - float((sizes**2).sum()) / n) / (m - 1)
    ratio = between / (m - 1) / (within / (n - m)) / float(special.fdtri(m - 1, n - m, _TAIL))
    return min(1.0, max(0.0, (ratio - 1) / (ratio + size - 1)))


def clustered(found: Estimate, of: NDArray[np.intp], units: str) -> Estimate:
    """Return an estimate that says what its units are, from how many clusters, and how many seeds one of them takes."""
    detail = {**found.detail, "clusters": f"{len(of)} seeds in {int(of.max()) + 1}"}
    return replace(found, how=f"{found.how}, {units}", detail=detail, seeds_a_unit=len(of) / found.n)
