"""The kind of a score that should tell two sorts of runs apart."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import optimize

from studies.kit.clusters import members, reduced
from studies.kit.estimate import Estimate, settled
from studies.kit.intervals import auroc, auroc_interval
from studies.kit.samples import FEWEST_SEEDS, DataError, values

__all__ = ["Rank", "rank"]

_HOW = "Newcombe 5 with t"


@dataclass(frozen=True)
class Rank:
    """The probability that a positive run scores above a negative one."""

    name: ClassVar[str] = "rank"
    exact: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    sentence: ClassVar[str] = "area under the ROC curve, Newcombe's interval with a t quantile"

    def estimate(self, positive: Any, negative: Any, clusters: Any = None) -> Estimate:
        """Return the AUROC of scores of runs with and without the event.

        ``clusters`` is a pair of label arrays, (of positive, of negative); the units are then the mean scores of the
        clusters of each sort. Fit for scores of one shape in both sorts; where one sort scatters three times as widely
        the tail on the far side of .9 can reach .05.
        """
        fewest = FEWEST_SEEDS
        one, other = values("positive", positive, fewest), values("negative", negative, fewest)
        if clusters is not None:
            if not isinstance(clusters, tuple) or len(clusters) != 2:
                raise DataError("clusters takes a pair: labels of the positive scores, labels of the negative ones")
            one = reduced(one, members("positive", len(one), clusters[0], fewest))
            other = reduced(other, members("negative", len(other), clusters[1], fewest))
        m, n = len(one), len(other)
        counts = {"scores": f"{m} + {n}"}
        if np.ptp(np.concatenate([one, other])) == 0:
            return settled(0.5, "the scores did not differ", m + n, _HOW, **counts)
        area = auroc(one, other)
        return Estimate(area, m + n, lambda alpha: auroc_interval(area, m, n, alpha), _HOW, counts)

    def promises(self, n: int) -> float:
        """Area at which n + n scores settle that it lies above 1/2, with power .8 (normal approximation)."""
        needed = float(optimize.brentq(lambda area: auroc_interval(area, n, n)[0] - 0.5, 0.5, 1.0))

        def spread(area: float) -> float:
            inner = 1 + (n - 1) * (1 - area) / (2 - area) + (n - 1) * area / (1 + area)
            return math.sqrt(area * (1 - area) * inner) / n

        return float(optimize.brentq(lambda area: area - 0.8416 * spread(area) - needed, needed, 1.0))


def rank() -> Rank:
    """A claim about an AUROC. Data: ``positive=``, ``negative=`` scores; optional ``clusters=``, a pair of labels."""
    return Rank()
