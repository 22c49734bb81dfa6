"""Seeds until decided: a study is run again on more seeds until confidence sequences settle its claims, or a cap is met.

Runs are kept in the store, so another look costs the new seeds alone. The verdict on a claim is that of the first look at
which its sequence lies on one side of the boundary; what later looks would say does not count. Looking often is free: a
sequence holds at all looks at once (:mod:`studies.kit.sequences`).
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from studies.kit import sequences
from studies.kit.claims import Claim
from studies.kit.estimate import Estimate, Kind
from studies.kit.finding import Finding
from studies.kit.locations import Mean, Median, Time
from studies.kit.samples import DataError, paired
from studies.kit.seeds import Seeds
from studies.kit.shares import Rate, RateDifference, Trend

__all__ = ["BLOCK", "FIRST", "Looks", "following", "has_sequence", "sequential"]

FIRST = 8
"""Seeds at the first look; with fewer no sequence settles a share or a median."""
BLOCK = {"sim": 8, "minimodel": 4, "fullscale": 2}
"""Seeds that are added at a time, by rung: few where a run is dear."""
_GROWTH = 4  # a look adds this part of the seeds, or a block: a study computes its numbers anew each time

Ends = Callable[[float], tuple[float, float]]
Regrown = Callable[[int, float], tuple[float, float]]
_Sequence = tuple[str, Ends, Regrown | None]
_SIGNS = "confidence sequence of the median, beta-binomial on the side of a point"
_HAVE = (Rate, RateDifference, Trend, Mean, Median, Time)


def following(n: int, rung: str, cap: int) -> int:
    """Return the seeds at the look after the one at n.

    >>> [following(n, "sim", 256) for n in (8, 16, 64, 250)], following(8, "minimodel", 32)
    ([16, 24, 80, 256], 12)
    """
    block = BLOCK[rung]
    return min(cap, n + max(block, n // _GROWTH // block * block))


# The sequence of each kind --------------------------------------------------------------------------------------------


def has_sequence(kind: Kind) -> bool:
    """Whether there is a confidence sequence for the kind."""
    return isinstance(kind, _HAVE)


def sequential(kind: Kind, data: Mapping[str, Any], estimate: Estimate) -> Estimate:
    """Return an estimate with the kind's confidence sequence in place of its interval for a fixed number of seeds.

    A number that is computed, and data that allow no verdict, stay as they are. A kind without a sequence gets no verdict
    and says so. DataError for seeds that share clusters: the sequences count every seed as a unit of its own.
    """
    if kind.exact or estimate.reason:
        return estimate
    if not has_sequence(kind):
        return replace(estimate, reason=f"{kind.name} has no confidence sequence: --seeds fresh")
    clusters = data.get("clusters")
    if clusters is not None and len(set(np.asarray(clusters).tolist())) < len(clusters):
        raise DataError("until decided every seed is a unit of its own; these share clusters: use --seeds fresh")
    how, interval, regrown = _made(kind, data)
    detail = {name: value for name, value in estimate.detail.items() if not name.endswith(" p")}  # of a fixed n
    return replace(estimate, interval=interval, how=how, detail=detail, p=None, null=None, regrown=regrown)


def _made(kind: Kind, data: Mapping[str, Any]) -> _Sequence:
    match kind:
        case Rate():
            return _rate(data)
        case RateDifference():
            return _pairs(np.asarray(data["treated"], bool), np.asarray(data["control"], bool))
        case Trend():
            arms = {dose: np.asarray(row, bool) for dose, row in data["arms"].items()}
            return _pairs(arms[max(arms)], arms[min(arms)])
        case Mean(log=log):
            return _mean(data, log)
        case Median():
            values = np.asarray(data["values"], dtype=np.float64)
            return _SIGNS, lambda alpha: sequences.quantile_ends(values, values, alpha), None
    times = np.asarray(data["times"], dtype=np.float64)
    seen = np.isfinite(times)
    least, most = np.where(seen, times, data["censored_at"]), np.where(seen, times, np.inf)
    return _SIGNS, lambda alpha: sequences.quantile_ends(least, most, alpha), None


def _rate(data: Mapping[str, Any]) -> _Sequence:
    n, count = len(data["outcomes"]), int(np.asarray(data["outcomes"], bool).sum())

    def regrown(units: int, alpha: float) -> tuple[float, float]:
        return sequences.rate_ends(count / n * units, units, alpha)

    return "beta-binomial confidence sequence", lambda alpha: sequences.rate_ends(count, n, alpha), regrown


def _pairs(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> _Sequence:
    cells = [int(cell.sum()) for cell in (one & other, one & ~other, ~one & other, ~one & ~other)]
    ends = sequences.paired_rates

    def regrown(units: int, alpha: float) -> tuple[float, float]:
        both, treated_only, control_only, neither = (cell / len(one) * units for cell in cells)
        return ends(both, treated_only, control_only, neither, alpha)

    how = "confidence sequence of pairs, beta-binomial where they differ"
    return how, lambda alpha: ends(cells[0], cells[1], cells[2], cells[3], alpha), regrown


def _mean(data: Mapping[str, Any], log: bool) -> _Sequence:
    given = paired("mean", data.get("differences"), data.get("treated"), data.get("control"))
    if not isinstance(given, tuple):
        units = given
    else:
        units = np.log(given[0]) - np.log(given[1]) if log else given[0] - given[1]
    if not log:
        return "t-mixture confidence sequence", lambda alpha: sequences.t_ends(units, alpha), None

    def ratio(alpha: float) -> tuple[float, float]:
        low, high = np.exp(sequences.t_ends(units, alpha))
        return float(low), float(high)

    return "t-mixture confidence sequence on logs", ratio, None


# Looking --------------------------------------------------------------------------------------------------------------


class Looks:
    """The looks at one study: how many seeds it has now, and what is decided.

    ``named`` are the claims that ``-k`` names; where it names none of the study's, all claims must be decided. A named
    claim without a confidence sequence is refused; others without one get no verdict.
    """

    def __init__(self, seeds: Seeds, rung: str, claims: Collection[Claim], named: Collection[str]) -> None:
        if seeds.cap is None:
            raise ValueError(f"{seeds} has no cap: there is nothing to look at again")
        self.cap, self.rung = seeds.cap, rung
        self.seeds = replace(seeds, n=min(FIRST, seeds.cap))
        self.at: list[int] = []
        self.kept: dict[str, Finding] = {}
        self._named = {claim.id for claim in claims if claim.id in named}
        able = {claim.id for claim in claims if has_sequence(claim.kind)}
        self._deciding = able & (self._named or able)

    def sequential(self, claim: Claim, data: Mapping[str, Any], estimate: Estimate) -> Estimate:
        """Return what ``sequential`` makes of a claim's estimate; DataError for a named claim that has no sequence."""
        if claim.id in self._named and not (has_sequence(claim.kind) or claim.kind.exact):
            raise DataError(
                f"{claim.id}: there is no confidence sequence for kind={claim.kind.name}; use --seeds fresh, which fixes n"
            )
        return sequential(claim.kind, data, estimate)

    def more(self, findings: Iterable[Finding]) -> bool:
        """Take the findings of a look; return whether to look again, on ``seeds`` that are then more."""
        n = self.seeds.n or 0
        self.at.append(n)
        for found in findings:
            if found.verdict in ("supported", "refuted") and found.claim not in self.kept:
                self.kept[found.claim] = self._told(found)
        if self._deciding <= self.kept.keys() or n >= self.cap:
            return False
        self.seeds = replace(self.seeds, n=following(n, self.rung, self.cap))
        return True

    def settled(self, found: Finding) -> Finding:
        """Return the finding of the look that decided the claim; else the last one's."""
        return self.kept.get(found.claim) or self._told(found)

    def _told(self, found: Finding) -> Finding:
        if found.kind in ("identity", "agreement"):
            return found
        looks = ", ".join(map(str, self.at or [found.seeds]))
        ended = "decided" if found.verdict in ("supported", "refuted") else "not decided"
        words = f"{ended} at {found.seeds} of at most {self.cap} seeds; looks at {looks}"
        return replace(found, detail=(*found.detail, ("until decided", words)))
