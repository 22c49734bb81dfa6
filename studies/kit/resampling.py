"""The kind of a number computed once from a large body of data, whose error a bootstrap gives."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from studies.kit.estimate import Estimate, settled
from studies.kit.samples import DataError, values

__all__ = ["FEWEST_REPLICATES", "Bootstrap", "bootstrap"]

FEWEST_REPLICATES = 100  # with fewer the 2.5 % point is among the two smallest
FEWEST_UNITS = 20  # percentile intervals of a mean cover .84 to .87 at 5 to 10 units


@dataclass(frozen=True)
class Bootstrap:
    """One estimate from all the data, and the same estimate from many resampled or simulated data sets."""

    name: ClassVar[str] = "bootstrap"
    exact: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    sentence: ClassVar[str] = "one estimate from all data, percentile interval over bootstrap replicates"

    def estimate(self, value: Any, replicates: Any, units: int | None = None) -> Estimate:
        """Return the value; the interval runs between the k-th replicate from either end, k = [alpha (R + 1) / 2].

        ``units`` is the number of independent units the estimate rests on. Fit for 20 or more, and for estimates whose
        error has about the same distribution at the estimate as at the truth.
        """
        centre = float(values("value", np.atleast_1d(np.asarray(value, dtype=np.float64)), 1)[0])
        ordered = np.sort(values("replicates", replicates, FEWEST_REPLICATES))
        count = len(ordered)
        if units is not None and units < FEWEST_UNITS:
            raise DataError(
                f"a bootstrap of {units} units covers too little (.84 to .87 at 5 to 10); it takes {FEWEST_UNITS}: "
                "use mean(symmetric=True) or median() on the units"
            )
        detail: dict[str, str | int | float] = {"replicates": count, **({} if units is None else {"units": units})}
        if ordered[0] == ordered[-1]:
            return settled(centre, "the replicates did not differ", count, "percentile", **detail)

        def ends(alpha: float) -> tuple[float, float]:
            k = math.floor(alpha / 2 * (count + 1) * (1 + 1e-12))
            if k < 1:
                return -math.inf, math.inf
            k = min(k, (count + 1) // 2)
            return float(ordered[k - 1]), float(ordered[count - k])

        return Estimate(centre, units or count, ends, "percentile bootstrap", detail)

    def promises(self, n: int) -> float:
        """Distance from the boundary, in standard errors, settled with power .8; ``n`` plays no part."""
        del n
        return 1.96 + 0.8416


def bootstrap() -> Bootstrap:
    """A claim about one estimate from all data. Data: ``value=``, ``replicates=`` [R >= 100]; optional ``units=``."""
    return Bootstrap()
