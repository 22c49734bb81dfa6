"""Where a run's behaviour shifted, looking back over the whole of it: change points, joined into transitions.

Nothing here is calibrated. The penalty of a change is set from the series' own noise, as if it were an autoregression of
the first order; of such series without any change few show one up to an autocorrelation of .9 (docs/reading.md). A
share that moves by a quarter for ten steps is told however much it wanders, so one that wanders far and slowly (standard
deviation .05, autocorrelation .9) shows changes in most runs of 100 steps in which there is none. How often the ordinary
course of a run looks like a change, only other runs of its recipe can tell: see `alarms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.signals.onsets import change_points
from studies.kit.episodes import ANSWER
from studies.kit.reading.columns import OTHERS

if TYPE_CHECKING:
    from sim.records.steps import StepTable
    from studies.kit.reading.fold import Reading

__all__ = ["FEWEST", "LEAST", "RAMP", "Noise", "Shift", "Transition", "noise", "shifts", "signals", "transitions"]

F64 = NDArray[np.float64]

FEWEST = 12
"""Values below which a series is not searched."""
LEAST = 0.05
"""Smallest shift of a share that is told; of what is no share, the smallest is `LEAST_SD` of its noise."""
LEAST_SD = 2.0
"""In standard deviations of what it does from step to step."""
RAMP = 20
"""Optimiser steps. Changes of one direction no further apart are one shift; its levels are those of so many steps."""

_ALWAYS = 0.25**2 * 10 / 2  # most penalty for a share: the error of ten steps and ten more, a quarter apart
_PENALTY = 4.0  # times variance, autocorrelation's factor and log T; chosen by what series without a change show
_NEAR = 5  # optimiser steps
_SHORTEST = 3  # steps of a level
_TURNS = 4  # turns whose search shares are watched
_WORKFLOWS = 8  # most frequent workflows whose shares are watched
_CLIP = 3.5  # spreads beyond which a difference is a jump and no noise
_SHARES = ("behaviour/", "train/degenerate_share", "train/invalid_share")


@dataclass(frozen=True)
class Noise:
    """What a series does when nothing happens to it, taken from its differences, which a few jumps do not spoil."""

    variance: float
    """Its variance about the level."""
    autocorrelation: float
    """Of neighbours; raised by its standard error, as too low a value makes changes of slow swings."""

    white: float
    """Variance of a series without memory that would differ as much from step to step."""

    def penalty(self, steps: int) -> float:
        """Return the penalty of a change in a series of so many steps."""
        memory = (1 + self.autocorrelation) / (1 - self.autocorrelation)
        return _PENALTY * self.variance * memory * float(np.log(steps))


@dataclass(frozen=True)
class Shift:
    """A change of level of one signal."""

    signal: str
    """Its column."""
    step: int
    """Optimiser step at which it is half-way."""
    last: int
    """Last optimiser step at the level before."""
    first: int
    """First optimiser step at the level after."""
    before: float
    """Median of up to `RAMP` steps before."""
    after: float
    """Median of up to `RAMP` steps after."""
    noise: float
    """Standard deviation of what the signal does from step to step."""

    @property
    def size(self) -> float:
        """Change of level."""
        return self.after - self.before


@dataclass(frozen=True)
class Transition:
    """Shifts of several signals at about the same time."""

    shifts: tuple[Shift, ...]
    """The shifts, the largest of a share first."""

    @property
    def main(self) -> Shift:
        """The largest."""
        return self.shifts[0]

    @property
    def step(self) -> int:
        """Optimiser step at which the largest is half-way."""
        return self.main.step


def signals(reading: Reading) -> tuple[str, ...]:
    """Return the columns that are watched, those that a run has.

    First actions, searching by turn and at all, ways of working; what it earned, how long it took, how many ways; what
    is known of the first decision's log-probability and entropy.
    """
    first = [f"behaviour/{action}_share/turn0" for action in reading.actions]
    wanted = (
        *first,
        *(f"behaviour/search_share/turn{t}" for t in range(_TURNS)),
        "behaviour/no_search_share",
        *(f"behaviour/workflow_share/{name}" for name in reading.workflows[:_WORKFLOWS] if name != OTHERS),
        "behaviour/solved_share",
        "train/reward",
        "train/turns",
        "train/invalid_share",
        "behaviour/effective_workflows",
        "drift/kl_decision_sampled/turn0",
        "decision/surprisal/turn0",
        "entropy/recorded/turn0",
    )
    return tuple(name for name in dict.fromkeys(wanted) if name in reading.steps)


def is_share(signal: str) -> bool:
    """Whether a column is a share of rollouts or turns."""
    return signal.startswith(_SHARES) and signal != "behaviour/effective_workflows"


def noise(x: ArrayLike) -> Noise:
    """Return the noise of a series [T] without gaps.

    For an autoregression of variance v and autocorrelation r, differences of neighbours have variance 2 v (1 - r), those
    of next neighbours 2 v (1 - r^2). Both are taken from differences cut at `_CLIP` spreads.
    """
    series = np.asarray(x, float)
    one, two = np.diff(series), series[2:] - series[:-2]
    still = any(np.median(np.abs(each)) == 0 for each in (one, two))  # mostly constant: there is no telling a memory
    found = 0.0 if still else float(np.clip(_power(two) / _power(one) - 1, 0.0, 0.95))
    white = _power(one) / 2
    return Noise(white / (1 - found), min(found + len(series) ** -0.5, 0.97), white)


def _power(differences: F64) -> float:
    """Return the mean square of differences, cut at a multiple of what half of them do not exceed; whole if that is 0."""
    bound = _CLIP * 1.4826 * float(np.median(np.abs(differences))) or np.inf
    return float(np.mean(np.clip(differences, -bound, bound) ** 2))


def shifts(signal: str, step: ArrayLike, x: ArrayLike, rollouts: ArrayLike | None = None) -> tuple[Shift, ...]:
    """Return the shifts of a series, in order.

    Parameters
    ----------
    signal
        Name of the column.
    step
        Optimiser steps, [T].
    x
        Its values, [T]; where it is NaN the series has a gap, and a change that falls into it is said to.
    rollouts
        Of a share, of how many, [T]: its noise is at least that of counting.
    """
    there = np.isfinite(np.asarray(x, float))
    series, steps = np.asarray(x, float)[there], np.asarray(step)[there]
    if len(series) < FEWEST or np.ptp(series) == 0:
        return ()
    found = noise(series)
    penalty, least, white = found.penalty(len(series)), LEAST_SD * found.white**0.5, found.white
    if rollouts is not None:
        counting = _counting(series, np.asarray(rollouts, float)[there])
        penalty = max(min(penalty, _ALWAYS), Noise(counting, 0.0, counting).penalty(len(series)))
        least, white = LEAST, max(white, counting)
    points = change_points(series, penalty=penalty, min_size=_SHORTEST)
    told = []
    for before, chain, after in _chains(points, series, steps):
        low, high = max(before, chain[0] - RAMP), min(after, chain[-1] + RAMP)
        start, end = float(np.median(series[low : chain[0]])), float(np.median(series[chain[-1] : high]))
        if abs(end - start) >= least:
            half = _half(series, chain, start, end)
            ends = int(steps[chain[0] - 1]), int(steps[chain[-1]])
            told.append(Shift(signal, int(steps[half]), *ends, start, end, white**0.5))
    return tuple(told)


def _counting(share: F64, rollouts: F64) -> float:
    """Return the mean variance of counting so many; a share of 0 has some too."""
    smooth = (share * rollouts + 1) / (rollouts + 2)
    return float(np.mean(smooth * (1 - smooth) / rollouts))


def _chains(points: Sequence[int], series: F64, steps: NDArray[np.int64]) -> Iterable[tuple[int, list[int], int]]:
    """Yield changes of one direction that follow each other closely, with where the level before begins and after ends."""
    levels = [float(part.mean()) for part in np.split(series, list(points))]
    chains: list[list[int]] = []
    for place, point in enumerate(points):
        along = place > 0 and (levels[place + 1] > levels[place]) == (levels[place] > levels[place - 1])
        if along and steps[point] - steps[points[place - 1]] <= RAMP:
            chains[-1].append(point)
        else:
            chains.append([point])
    for place, chain in enumerate(chains):
        before = chains[place - 1][-1] if place else 0
        after = chains[place + 1][0] if place + 1 < len(chains) else len(series)
        yield before, chain, after


def _half(series: F64, chain: Sequence[int], start: float, end: float) -> int:
    """Return the place of the way at which a single step from one level to the other fits best."""
    way = series[chain[0] : chain[-1]] - (start + end) / 2
    return chain[0] + int(np.concatenate([[0.0], np.cumsum(way * np.sign(end - start))]).argmin())


def transitions(reading: Reading) -> tuple[Transition, ...]:
    """Return the shifts of all signals that are watched, those at about the same time together, in order of time.

    Shifts belong together if the way of one, from last to first, overlaps that of the largest or is within `_NEAR` of it.
    """
    found = [shift for name in signals(reading) for shift in _of(reading.steps, name)]
    left = sorted(found, key=_weight, reverse=True)
    together = []
    while left:
        main = left[0]
        near = [each for each in left if each.last - _NEAR <= main.first and main.last - _NEAR <= each.first]
        left = [each for each in left if each not in near]
        together.append(Transition(tuple(near)))
    return tuple(sorted(together, key=lambda each: each.step))


def _of(steps: StepTable, name: str) -> tuple[Shift, ...]:
    return shifts(name, steps["step"], steps[name], steps["train/rollouts"] if is_share(name) else None)


def _weight(shift: Shift) -> tuple[bool, float, bool]:
    """Shares come first, by size; of equal ones, the answer's."""
    answer = shift.signal == f"behaviour/{ANSWER}_share/turn0"
    return is_share(shift.signal), abs(shift.size) if is_share(shift.signal) else abs(shift.size) / shift.noise, answer
