"""How long a run stays in a mode: spells with hysteresis, escape rates with censoring, survival, loss of memory.

A mode is *inside* (the behaviour is on) from where the signal reaches `enter` until it falls below `leave`; the gap
between the two keeps noise at one level from counting as many spells. The last spell of a run is cut off by its end: it is
kept as censored, its length counts as exposure, and never as a time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Spells", "escape_rate", "kaplan_meier", "median_length", "spells", "time_on_test"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Spells:
    """Stretches of runs within one mode, in the order of runs and of time, [N] each."""

    run: NDArray[np.intp]
    """Row of the run."""
    start: NDArray[np.intp]
    """First step."""
    length: NDArray[np.intp]
    """Steps; of a censored spell, those seen."""
    ended: NDArray[np.bool_]
    """Whether its end was seen; False for the last spell of a run."""
    inside: NDArray[np.bool_]
    """Whether the behaviour was on."""

    def where(self, keep: NDArray[np.bool_]) -> "Spells":
        """Return the spells at which `keep` [N] is true."""
        return Spells(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))

    @property
    def first(self) -> "Spells":
        """The first of these spells in every run that has one."""
        return self.where(np.concatenate([[True], self.run[1:] != self.run[:-1]]) if len(self.run) else self.ended)

    @property
    def later(self) -> "Spells":
        """Those that do not begin with their run, whose beginning was therefore seen."""
        return self.where(self.start > 0)


def spells(x: ArrayLike, enter: float = 0.5, leave: float = 0.2) -> Spells:
    """Return the spells of runs ``x`` [S, T], inside and outside alternating.

    Inside begins where x >= `enter`, and ends where x < `leave`; a run that begins between the two begins outside.

    Raises
    ------
    ValueError
        For runs that are not [S, T], hold NaN, or a `leave` above `enter`.

    >>> found = spells([[0.1, 0.6, 0.4, 0.3, 0.1, 0.1]])
    >>> found.length, found.inside, found.ended
    (array([1, 3, 2]), array([False,  True, False]), array([ True,  True, False]))
    """
    runs = np.asarray(x, dtype=np.float64)
    if runs.ndim != 2 or 0 in runs.shape:
        raise ValueError(f"x has shape {runs.shape}: must be [S, T] with a run and a step or more")
    if np.isnan(runs).any():
        raise ValueError("x holds NaN: watch a signal that every step has")
    if leave > enter:
        raise ValueError(f"leave = {leave} is above enter = {enter}: a run would be inside and outside at once")
    S, T = runs.shape
    said = np.where(runs >= enter, 1, np.where(runs < leave, -1, 0))
    last = np.maximum.accumulate(np.where(said != 0, np.arange(T), 0), axis=1)  # the last place that decided
    inside = np.take_along_axis(said, last, axis=1) == 1
    begins = np.ones((S, T), bool)
    begins[:, 1:] = inside[:, 1:] != inside[:, :-1]
    run, start = np.nonzero(begins)
    end = np.append(start[1:], T)
    final = np.append(run[1:] != run[:-1], True)
    end[final] = T
    return Spells(run, start, end - start, ~final, inside[run, start])


def escape_rate(length: ArrayLike, ended: ArrayLike) -> float:
    """Return ends seen / steps spent, per step: the maximum-likelihood rate of an exponential with censoring.

    NaN without exposure. For a rate that changes with time it is the average over the time spent.
    """
    steps = float(np.sum(length))
    return float(np.sum(ended)) / steps if steps else float("nan")


def kaplan_meier(length: ArrayLike, ended: ArrayLike) -> tuple[F64, F64]:
    """Return the times of ends, rising, and the share still there just after each: the product-limit estimate.

    S(t) = product over times t_i <= t of 1 - d_i / n_i, with d_i ends at t_i among n_i spells of that length or more; a
    spell censored at t_i is among them. Assumes that censoring says nothing of what would have come (Kaplan and Meier 1958).
    """
    spent, over = _pair(length, ended)
    times = np.unique(spent[over])
    at_risk = (spent >= times[:, None]).sum(1)
    ends = ((spent == times[:, None]) & over).sum(1)
    return times, np.cumprod(1 - ends / at_risk)


def median_length(length: ArrayLike, ended: ArrayLike) -> float:
    """Return the first time by which half have ended, by Kaplan and Meier; inf if fewer than half were seen to end."""
    times, left = kaplan_meier(length, ended)
    gone = np.flatnonzero(left <= 0.5 + 1e-12)
    return float(times[gone[0]]) if len(gone) else float("inf")


def time_on_test(length: ArrayLike, ended: ArrayLike) -> F64:
    """Return where each end but the last lies in the total time on test, 0 to 1, in order of length, [ends - 1].

    With T(t) = sum of min(length, t) over all spells, the values T(t_i) / T(t_last). If the rate is the same at all ages
    (exponential lengths) they are uniform, mean 1/2, variance 1/12; a rate that falls with age puts them early, below
    1/2, one that rises late. Censored spells add their time (Barlow and Proschan 1969).
    """
    spent, over = _pair(length, ended)
    times = np.sort(spent[over])
    total = np.minimum(spent, times[:, None]).sum(1)
    return total[:-1] / total[-1] if len(total) else np.empty(0)


def _pair(length: ArrayLike, ended: ArrayLike) -> tuple[F64, NDArray[np.bool_]]:
    spent, over = np.asarray(length, float), np.asarray(ended, bool)
    if spent.shape != over.shape or spent.ndim != 1:
        raise ValueError(f"length {spent.shape} and ended {over.shape}: must be [N], one of each a spell")
    return spent, over
