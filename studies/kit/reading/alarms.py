"""Alarms on a run that was read, with thresholds from control runs: readings of the same recipe in which nothing happens.

Each signal is watched by itself, at one false-alarm rate: the share of control runs that it may alarm in at all. Where m
signals are watched, one of them alarms in up to m times as many; so few are. Whether the controls are of the run's recipe,
and whether nothing happened in them, is the user's word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.signals.monitors import LEAST_CONTROLS, Cusum, Detector, Level, PageHinkley, calibrate, controls_needed
from sim.signals.onsets import Direction
from studies.kit.reading.fold import Reading

__all__ = ["DETECTORS", "SIGNALS", "Alarm", "Alarms", "TwoSided", "alarms"]

F64 = NDArray[np.float64]

SIGNALS = (
    "behaviour/answer_share/turn0",
    "behaviour/no_search_share",
    "train/turns",
    "drift/kl_decision_sampled/turn0",
)
"""Columns that are watched where run and controls have them."""

_FEWEST_STEPS = 10
_WARMUP = 10  # steps that tell a run's own level


@dataclass(frozen=True)
class TwoSided:
    """A detector that looks both ways: at each step the larger of the statistics for a rise and for a fall."""

    up: Detector
    """For a rise."""
    down: Detector
    """For a fall."""

    def __call__(self, x: ArrayLike) -> F64:
        """The path [..., T] of the statistic for runs [..., T]."""
        return np.maximum(self.up(x), self.down(x))


def _two_sided(one: Callable[[Direction], Detector]) -> Detector:
    return TwoSided(one(Direction.UP), one(Direction.DOWN))


DETECTORS: Mapping[str, Callable[[float], Detector]] = {
    "cusum": lambda drift: _two_sided(lambda way: Cusum(drift=drift, warmup=_WARMUP, direction=way)),
    "page-hinkley": lambda drift: _two_sided(lambda way: PageHinkley(drift=drift, warmup=_WARMUP, direction=way)),
    "level": lambda _: _two_sided(lambda way: Level(persistence=2, direction=way)),
}
"""The detectors by name, from the shift that costs nothing: the median of the runs' standard deviations."""


@dataclass(frozen=True)
class Alarm:
    """What one signal's monitor says of the run."""

    signal: str
    """Its column."""
    step: int | None
    """Optimiser step at which it alarms; None if it does not."""
    threshold: float
    """Of the detector's statistic."""
    largest: float
    """Largest statistic of the run."""


@dataclass(frozen=True)
class Alarms:
    """What the monitors say, and on what it rests."""

    alarms: tuple[Alarm, ...]
    """One a signal; empty where no threshold could be set."""
    detector: str
    """Name of the detector."""
    rate: float
    """False-alarm rate of each signal."""
    controls: int
    """Control runs that the thresholds rest on."""
    steps: tuple[int, ...]
    """Optimiser steps that run and controls share: those that were watched."""
    notes: tuple[str, ...]
    """What was cut or left out, and why."""
    refused: str = ""
    """Why there are no alarms, and the way out; empty where there are."""


def alarms(reading: Reading, controls: Sequence[Reading], rate: float = 0.05, detector: str = "cusum") -> Alarms:
    """Return the alarms of a run, calibrated on control runs.

    All are compared on the steps they share, up to the shortest; what lies beyond is not watched. With too few controls
    nothing is calibrated: R of them promise 1 / (R + 1) at the best, and `LEAST_CONTROLS` is the fewest a threshold is
    set on.

    Raises
    ------
    ValueError
        For a rate outside (0, 1) or a detector that does not exist.
    """
    if detector not in DETECTORS:
        raise ValueError(f"detector {detector!r}: known are {', '.join(DETECTORS)}")
    needed = max(controls_needed(rate), LEAST_CONTROLS)
    notes: list[str] = []
    others = _others(reading, controls, notes)
    steps = _shared(reading, others, notes)
    refused = ""
    if len(others) < needed:
        refused = _too_few(len(others), needed, rate)
    elif len(steps) < _FEWEST_STEPS:
        refused = f"run and controls share {len(steps)} steps: {_FEWEST_STEPS} or more are needed"
    found = () if refused else tuple(_alarms(reading, others, steps, rate, detector, notes))
    if not refused and not found:
        refused = f"no signal that run and controls have without gaps: watched are {', '.join(SIGNALS)}"
    return Alarms(found, detector, rate, len(others), tuple(steps.tolist()), tuple(notes), refused)


def _too_few(controls: int, needed: int, rate: float) -> str:
    """Say what so few controls could promise, and the way out."""
    words = f"{controls} control run{'' if controls == 1 else 's'}"
    best = math.ceil(1000 / (controls + 1)) / 1000  # a rate that they can promise: never rounded down
    promise = f"a false-alarm rate of {best:g} at the best" if controls else "nothing"
    way = f", or allow a higher --rate, such as {best:g}" if controls >= LEAST_CONTROLS else ""
    return (
        f"{words} can promise {promise}; {needed} are needed for {rate:g}, and {LEAST_CONTROLS} for any: give more{way}"
    )


def _others(reading: Reading, controls: Sequence[Reading], notes: list[str]) -> list[Reading]:
    """Leave out the run itself and runs that were given twice: they would pass for independent ones."""
    seen, others = {reading.steps.digest()}, []
    for control in controls:
        digest = control.steps.digest()
        if digest in seen:
            notes.append(f"control {control.name} is left out: it is the run itself, or was given before")
        else:
            seen.add(digest)
            others.append(control)
    return others


def _shared(reading: Reading, controls: Sequence[Reading], notes: list[str]) -> NDArray[np.int64]:
    if not controls:
        return reading.step[:0]
    last = min(int(control.step[-1]) for control in controls)
    within = reading.step[reading.step <= last]
    steps: NDArray[np.int64] = reduce(np.intersect1d, (control.step for control in controls), within)
    if len(within) < len(reading.step):
        notes.append(f"steps after {last}, where the shortest control ends, are not watched")
    if len(steps) < len(within):
        notes.append(f"{len(within) - len(steps)} of {len(within)} steps are not watched: not every control has them")
    return steps


def _alarms(
    reading: Reading,
    controls: Sequence[Reading],
    steps: NDArray[np.int64],
    rate: float,
    detector: str,
    notes: list[str],
) -> list[Alarm]:
    found: list[Alarm] = []
    told: list[F64] = []
    for signal in SIGNALS:
        if signal not in reading.steps:
            continue
        series = [_series(each, signal, steps) for each in (reading, *controls)]
        runs = [each for each in series if each is not None]
        if len(runs) < len(series):
            lacking = len(series) - len(runs)
            notes.append(f"{signal} is not watched: {lacking} of {len(series)} runs lack it or have gaps in it")
            continue
        every = np.stack(runs)
        if any(np.array_equal(every, each) for each in told):
            continue  # of two actions, one share says what the other says
        told.append(every)
        # of all alike, so that the run is to the controls as they to each other
        drift = float(np.median(every.std(-1)))
        watched, quiet = every[:1], every[1:]
        monitor = calibrate(DETECTORS[detector](drift), quiet, rate)
        path = monitor.detector(watched)[0]
        place = float(monitor.alarms(watched)[0])
        step = None if np.isnan(place) else int(steps[int(place)])
        found.append(Alarm(signal, step, monitor.threshold, float(path.max())))
    return found


def _series(reading: Reading, signal: str, steps: NDArray[np.int64]) -> F64 | None:
    """Return a signal at some of a run's steps; None where it has not all of them."""
    if signal not in reading.steps:
        return None
    values = reading.steps[signal][np.isin(reading.step, steps)].astype(float)
    return values if np.isfinite(values).all() else None
