"""From an estimate to a verdict: one rule for every kind, one for the record, one for the seeds still needed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from studies.kit.estimate import Estimate
from studies.kit.regions import Region

__all__ = ["ALPHA", "Judgement", "Standing", "judge", "more_seeds", "more_units", "smallest_alpha", "standing"]

ALPHA = 0.05
"""One minus the level of every verdict's interval."""
_LEAST_ALPHA = 1e-12  # below this a p-value is rounding error
_MOST_RATIO = 1000.0  # of half-width to distance: a million times the seeds


@dataclass(frozen=True)
class Judgement:
    """An estimate held against a region."""

    verdict: str
    """``supported``, ``refuted``, ``undecided`` or ``no verdict``."""
    low: float | None
    """Lower end of the interval; ``None`` without a verdict."""
    high: float | None
    """Upper end of the interval; ``None`` without a verdict."""
    p: float | None
    """Smallest alpha at which a verdict stands."""
    more: int | None
    """Seeds still needed when undecided."""
    reason: str = ""
    """Why there is no verdict."""


def judge(estimate: Estimate, region: Region, alpha: float = ALPHA) -> Judgement:
    """Return the verdict: supported inside the region, refuted inside the complement, else undecided."""
    if estimate.reason:
        return Judgement("no verdict", None, None, None, None, estimate.reason)
    low, high = (float(end) for end in estimate.interval(alpha))
    if region.contains(low, high):
        verdict, more = "supported", None
    elif region.excludes(low, high):
        verdict, more = "refuted", None
    else:
        verdict, more = "undecided", _more(estimate, region, low, high, alpha) if estimate.tested else None
    return Judgement(verdict, low, high, _p(estimate, region), more)


def _p(estimate: Estimate, region: Region) -> float | None:
    if not estimate.tested:
        return None
    if estimate.p is not None and region.boundaries == (estimate.null,):
        return float(estimate.p)
    return smallest_alpha(estimate.interval, region)


def smallest_alpha(interval: Callable[[float], tuple[float, float]], region: Region) -> float:
    """Return the smallest alpha at which the interval lies on one side of the region's boundary (1 if at none).

    Intervals are nested in alpha, so the alphas at which a verdict stands form a range up to 1 and bisection finds its
    end. For an interval that inverts a test this is that test's p-value.
    """

    def decided(alpha: float) -> bool:
        low, high = interval(alpha)
        return region.contains(low, high) or region.excludes(low, high)

    if not decided(1.0 - 1e-9):
        return 1.0
    if decided(_LEAST_ALPHA):
        return _LEAST_ALPHA
    least, most = math.log(_LEAST_ALPHA), 0.0
    for _ in range(60):
        middle = (least + most) / 2
        least, most = (least, middle) if decided(math.exp(middle)) else (middle, most)
    return math.exp(most)


def _more(estimate: Estimate, region: Region, low: float, high: float, alpha: float) -> int | None:
    if estimate.regrown is None:
        more = more_seeds(estimate, region, low, high)
    else:
        more = more_units(estimate.regrown, estimate.n, region, alpha)
    return None if more is None else math.ceil(more * estimate.seeds_a_unit)


def more_units(
    regrown: Callable[[int, float], tuple[float, float]], n: int, region: Region, alpha: float = ALPHA
) -> int | None:
    """Return how many more units would settle the claim, found with the interval itself at the effect measured.

    The interval shrinks as units are added, so doubling brackets the smallest number that settles and bisection finds
    it; ``None`` when a million times the units would not do.
    """

    def settles(units: int) -> bool:
        low, high = regrown(units, alpha)
        return region.contains(low, high) or region.excludes(low, high)

    short, enough = n, 2 * n
    while not settles(enough):
        if enough > n * _MOST_RATIO**2:
            return None
        short, enough = enough, 2 * enough
    while enough - short > 1:
        middle = (short + enough) // 2
        short, enough = (short, middle) if settles(middle) else (middle, enough)
    return enough - n


def more_seeds(estimate: Estimate, region: Region, low: float, high: float) -> int | None:
    """Return how many more units would settle the claim if effect and spread stay as measured.

    An interval end at distance h from the effect moves as h sqrt(n / n'). It must come within the distance d from the
    effect to the boundary it straddles, so n' = n (h / d)**2; the largest over the boundaries counts. ``None`` when
    the effect lies on a boundary (or so near that a million times the seeds would not do) or the end beyond the run.
    """

    def scale(value: float) -> float:
        return math.log(value) if estimate.log and value > 0 else value

    effect = scale(estimate.effect)
    pairs = [(scale(end), scale(low) if scale(end) < effect else scale(high)) for end in region.boundaries]
    if not region.contains(estimate.effect, estimate.effect):
        # Outside, only the nearest boundary has to be cleared.
        pairs = sorted(pairs, key=lambda pair: abs(pair[0] - effect))[:1]
    needed = estimate.n
    for boundary, end in pairs:
        reach, distance = abs(end - effect), abs(boundary - effect)
        if not (math.isfinite(reach) and math.isfinite(distance)) or distance * _MOST_RATIO <= reach:
            return None
        needed = max(needed, math.ceil(estimate.n * (reach / distance) ** 2))
    return max(1, needed - estimate.n)


@dataclass(frozen=True)
class Standing:
    """How a verdict stands to the one on record."""

    status: str
    """``on record``, ``as expected``, ``contradicted``, ``weakened``, ``strengthened`` or ``new``."""
    fails: bool
    """Whether the study fails because of it."""
    reason: str = ""
    """What is wrong and what to do about it."""


def standing(verdict: str, expect: str | None, *, same_seeds: bool, here: bool, recorded: bool = True) -> Standing:
    """Compare a verdict with the one the claim expects: that on record, once it is ``recorded``.

    ``same_seeds``: the seeds are those of the record; ``here``: so are platform and versions. A contradiction fails on
    any seeds and anywhere. A verdict lost or gained fails only on the recorded seeds, here: elsewhere arithmetic
    differs in the last bits, training amplifies that, and the recorded seeds are as good as fresh ones.
    """
    if expect is None:
        return Standing("new", fails=False, reason="no verdict on record: add expect=")
    if verdict == expect:
        return Standing("on record" if recorded else "as expected", fails=False)
    said = f"on record as {expect}" if recorded else f"the claim expects {expect}"
    if {verdict, expect} == {"supported", "refuted"}:
        reason = f"{said}, now {verdict}: find out which is wrong before changing expect="
        return Standing("contradicted", fails=True, reason=reason)
    status = "strengthened" if expect == "undecided" and verdict != "no verdict" else "weakened"
    if not same_seeds:
        return Standing(status, fails=False, reason=f"{said}; other seeds, so not held against it")
    if not here:
        reason = f"{said}; other platform or versions than recorded, so not held against it"
        return Standing(status, fails=False, reason=reason)
    return Standing(
        status, fails=True, reason=f"{said}, now {verdict} with the {'recorded' if recorded else 'stated'} seeds"
    )
