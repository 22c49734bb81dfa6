"""Kinds of yes-or-no outcomes: a rate, a difference of paired rates, a trend over doses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from studies.kit import samples
from studies.kit.clusters import clustered, effective, members
from studies.kit.estimate import Estimate, settled
from studies.kit.intervals import clopper_pearson, mcnemar, newcombe_paired, trend_permutation
from studies.kit.samples import DataError, same_length
from studies.kit.words import number, probability

__all__ = ["Rate", "RateDifference", "Trend", "rate", "rate_difference", "trend"]

NO_DIFFERENCE = "the arms did not differ"
_PAIRED = "Newcombe 10, exact limits"


@dataclass(frozen=True)
class Rate:
    """The share of seeds at which something happened."""

    name: ClassVar[str] = "rate"
    exact: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (0.0, 1.0)
    sentence: ClassVar[str] = "share of seeds, exact (Clopper-Pearson) limits"

    def estimate(self, outcomes: Any, clusters: Any = None) -> Estimate:
        """Return count / n. Fit for any share.

        With ``clusters`` (one label a seed) the limits are those of as many independent seeds as the clusters are worth
        (``clusters.effective``): one a cluster where no cluster disagrees. A tail then reaches .026 at 16 clusters of 2
        and .034 at 16 of 3.
        """
        happened = samples.outcomes("outcomes", outcomes)
        count, n = int(happened.sum()), len(happened)

        def regrown(units: int, alpha: float) -> tuple[float, float]:
            return clopper_pearson(units if count == n else count / n * units, units, alpha)

        detail = {"count": f"{count}/{n}"}
        if clusters is not None:
            of = members("outcomes", n, clusters)
            units = effective(of, happened.astype(np.float64))
            found = Estimate(
                count / n, units, lambda alpha: regrown(units, alpha), "Clopper-Pearson", detail, regrown=regrown
            )
            return clustered(found, of, "effective seeds")
        return Estimate(
            count / n, n, lambda alpha: clopper_pearson(count, n, alpha), "Clopper-Pearson", detail, regrown=regrown
        )

    def promises(self, n: int) -> float:
        """Distance from a boundary of 1/2 at which n seeds settle the side with power .8."""
        needed = next((count for count in range(n + 1) if clopper_pearson(count, n)[0] > 0.5), n)
        return binomial_share(n, needed) - 0.5


@dataclass(frozen=True)
class RateDifference:
    """The difference of two shares, treated minus control, on the same seeds."""

    name: ClassVar[str] = "rate difference"
    exact: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    sentence: ClassVar[str] = "difference of two shares paired by seed, Newcombe's interval with exact limits"

    def estimate(self, treated: Any, control: Any, clusters: Any = None) -> Estimate:
        """Return share(treated) - share(control).

        Fit for a boundary of 0 at any shares, and for other boundaries where the arms are independent given the seed.
        Where they are not, a tail can reach .06. With ``clusters`` (one label a seed) the pairs count for as many
        independent ones as the clusters are worth by either arm and by the difference, whichever is worth least.
        """
        one, other = samples.outcomes("treated", treated), samples.outcomes("control", control)
        same_length("treated", one, "control", other)
        of = None if clusters is None else members("treated", len(one), clusters)
        if (one == other).all():
            return settled(0.0, NO_DIFFERENCE, len(one), _PAIRED, count=_counts(one, other))
        if of is None:
            return _difference(one, other)
        return clustered(_difference(one, other, of), of, "effective seeds")

    def promises(self, n: int) -> float:
        """Share of treated seeds, with control at 0, at which the difference is settled as above 0 with power .8."""
        settles = (count for count in range(1, n + 1) if paired_interval(0, count, 0, n - count, 0.05)[0] > 0)
        return binomial_share(n, next(settles, n))


@dataclass(frozen=True)
class Trend:
    """The rise of a share over ordered doses, the same seeds at every dose."""

    name: ClassVar[str] = "trend"
    exact: ClassVar[bool] = False
    bounds: ClassVar[tuple[float, float]] = (-1.0, 1.0)
    sentence: ClassVar[str] = "share at the highest dose minus share at the lowest, paired by seed; exact trend p"

    def estimate(self, arms: Mapping[float, Any]) -> Estimate:
        """Return share(top dose) - share(bottom dose); p permutes the doses within each seed."""
        if len(arms) < 2:
            raise DataError(f"arms has {len(arms)} doses: a trend needs two or more")
        doses = sorted(arms)
        rows = [samples.outcomes(f"arms[{dose}]", arms[dose]) for dose in doses]
        for dose, row in zip(doses, rows, strict=True):
            same_length(f"arms[{doses[0]}]", rows[0], f"arms[{dose}]", row)
        if all((row == rows[0]).all() for row in rows):
            return settled(0.0, NO_DIFFERENCE, len(rows[0]), _PAIRED)
        found = _difference(rows[-1], rows[0])
        p = trend_permutation(np.stack(rows, axis=1))
        shares = ", ".join(f"{number(float(d))}: {int(row.sum())}" for d, row in zip(doses, rows, strict=True))
        detail = {"counts by dose": shares, "trend p": probability(p)}
        return Estimate(found.effect, found.n, found.interval, _PAIRED, detail, p=p, null=0.0)

    def promises(self, n: int) -> float:
        """As for a difference of two rates."""
        return RateDifference().promises(n)


def paired_interval(
    both: float, treated_only: float, control_only: float, neither: float, alpha: float
) -> tuple[float, float]:
    """Newcombe's interval with exact limits, reaching to 0 unless the exact McNemar test excludes 0 too."""
    low, high = newcombe_paired(both, treated_only, control_only, neither, alpha)
    if mcnemar(treated_only, control_only) > alpha:
        return min(low, 0.0), max(high, 0.0)
    return low, high


def binomial_share(n: int, needed: int, power: float = 0.8) -> float:
    """Smallest share at which ``needed`` or more of n happen with the given power (1 if none does)."""
    return float(special.betaincinv(needed, n - needed + 1, power))


def _difference(treated: NDArray[np.bool_], control: NDArray[np.bool_], of: NDArray[np.intp] | None = None) -> Estimate:
    n = units = len(treated)
    counts = (
        int((treated & control).sum()),
        int((treated & ~control).sum()),
        int((~treated & control).sum()),
        int((~treated & ~control).sum()),
    )
    cells: tuple[float, float, float, float] = counts
    if of is not None:
        one, other = treated.astype(np.float64), control.astype(np.float64)
        units = effective(of, one, other, one - other)
        cells = (counts[0] / n * units, counts[1] / n * units, counts[2] / n * units, counts[3] / n * units)
    p = mcnemar(cells[1], cells[2])
    return Estimate(
        (counts[1] - counts[2]) / n,
        units,
        lambda alpha: paired_interval(*cells, alpha),
        _PAIRED,
        {"count": _counts(treated, control), "McNemar p": probability(p)},
    )


def _counts(treated: NDArray[np.bool_], control: NDArray[np.bool_]) -> str:
    return f"{int(treated.sum())}/{len(treated)} against {int(control.sum())}/{len(control)}"


def rate() -> Rate:
    """A claim about a share of seeds. Data: ``outcomes=`` bool [n]; optional ``clusters=`` [n]."""
    return Rate()


def rate_difference() -> RateDifference:
    """A claim about two arms on the same seeds. Data: ``treated=``, ``control=`` bool [n]; optional ``clusters=`` [n]."""
    return RateDifference()


def trend() -> Trend:
    """A claim about a share that rises or falls with a dose. Data: ``arms={dose: bool [n]}``."""
    return Trend()
