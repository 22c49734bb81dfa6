"""Alarms while a run goes on: what has been seen so far is folded into one number, and a threshold is set for it.

A detector maps runs ``x`` [..., T] to the path [..., T] of its statistic; the value at t depends on x up to t only. Its
threshold comes from control runs: runs of the same recipe and length in which nothing happens. It is set on whole runs,
"at most this share of control runs alarms at all", which takes the autocorrelation of the signal as it is. A threshold
computed for white noise instead fires on most control runs of an ordinary training signal.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.signals.onsets import Direction

__all__ = [
    "LEAST_CONTROLS",
    "Cusum",
    "Detector",
    "Evaluation",
    "Level",
    "Monitor",
    "PageHinkley",
    "alarm_time",
    "calibrate",
    "controls_needed",
    "evaluate",
]

Floats = NDArray[np.float64]

Detector = Callable[[ArrayLike], Floats]
"""Runs [..., T] to the path of the statistic [..., T]; larger is more alarming."""

LEAST_CONTROLS = 20
"""Fewest control runs a threshold is set on, and fewest that false alarms are counted on."""


@dataclass(frozen=True)
class Level:
    """How far the signal has stayed beyond any level for the last ``persistence`` steps.

    statistic_t = min of s x over the last m steps, s = +1 or -1; -inf until there are m of them. It exceeds a threshold
    exactly if each of those values does.
    """

    persistence: int = 1
    """m, in steps."""
    direction: Direction = Direction.UP
    """Which way is alarming."""

    def __post_init__(self) -> None:
        _at_least("persistence", self.persistence, 1)

    def __call__(self, x: ArrayLike) -> Floats:
        """The path [..., T] of the statistic for runs [..., T]."""
        signed = _runs(x) * int(self.direction)
        path = signed.copy()
        for back in range(1, min(self.persistence, signed.shape[-1])):
            path[..., back:] = np.minimum(path[..., back:], signed[..., : signed.shape[-1] - back])
        path[..., : self.persistence - 1] = -np.inf
        return path


@dataclass(frozen=True)
class Cusum:
    """Cumulative sum of what exceeds the target by more than a drift, never below zero.

    S_t = max(0, S_(t-1) + s (x_t - target) - k), S_0 = 0. Best against a lasting shift of 2 k. Source: Page 1954.
    """

    drift: float
    """k: the shift, in units of x, that costs nothing; half of the shift looked for."""
    target: float | None = None
    """Mean when all is well; None takes each run's own mean over its warm-up."""
    warmup: int = 20
    """Steps at the start during which the statistic stays 0."""
    direction: Direction = Direction.UP
    """Which way is alarming."""

    def __post_init__(self) -> None:
        _at_least("drift", self.drift, 0)
        _at_least("warmup", self.warmup, 1 if self.target is None else 0)

    def __call__(self, x: ArrayLike) -> Floats:
        """The path [..., T] of the statistic for runs [..., T]."""
        runs = _runs(x)
        head, tail = runs[..., : self.warmup], runs[..., self.warmup :]
        path = np.zeros(runs.shape)
        if tail.shape[-1]:
            target = head.mean(axis=-1, keepdims=True) if self.target is None else self.target
            path[..., self.warmup :] = _reflected(int(self.direction) * (tail - target) - self.drift)
        return path


@dataclass(frozen=True)
class PageHinkley:
    """The same sum against the running mean of the run itself, so that no target is needed.

    m_t = m_(t-1) + s (x_t - mean of x_1..x_t) - k; statistic_t = m_t - min over s <= t of m_s, with m_0 = 0.
    The running mean follows a slow change, which this detector therefore forgives. Source: Page 1954, Hinkley 1971.
    """

    drift: float
    """k: the shift, in units of x, that costs nothing."""
    warmup: int = 0
    """Steps at the start that enter the mean but not the sum."""
    direction: Direction = Direction.UP
    """Which way is alarming."""

    def __post_init__(self) -> None:
        _at_least("drift", self.drift, 0)
        _at_least("warmup", self.warmup, 0)

    def __call__(self, x: ArrayLike) -> Floats:
        """The path [..., T] of the statistic for runs [..., T]."""
        runs = _runs(x)
        means = np.cumsum(runs, axis=-1) / np.arange(1, runs.shape[-1] + 1)
        steps = int(self.direction) * (runs - means) - self.drift
        path = np.zeros(runs.shape)
        if runs.shape[-1] > self.warmup:
            path[..., self.warmup :] = _reflected(steps[..., self.warmup :])
        return path


@dataclass(frozen=True)
class Monitor:
    """A detector with a threshold that holds for runs of the length it was set on."""

    detector: Detector
    """Runs to the path of the statistic."""
    threshold: float
    """Alarm when the statistic is above it."""
    false_alarm_rate: float
    """The share of control runs that may alarm at all."""
    controls: int
    """Number of control runs it was set on."""
    steps: int
    """Their length."""
    fingerprints: frozenset[bytes] = field(default=frozenset(), repr=False)
    """Hashes of those runs, so that they are not used again to count false alarms."""

    def alarms(self, x: ArrayLike) -> Floats:
        """When each run in ``x`` [..., T] alarms, as [...]; NaN if it does not.

        ValueError if the runs are longer than the controls: longer runs alarm more often than the rate promises.
        """
        runs = _runs(x)
        if runs.shape[-1] > self.steps:
            raise ValueError(
                f"runs of {runs.shape[-1]} steps: the threshold holds up to {self.steps}, the controls' length; "
                f"cut the runs or calibrate on longer controls"
            )
        return alarm_time(self.detector(runs), self.threshold)


@dataclass(frozen=True)
class Evaluation:
    """What an alarm is worth: how often it cries wolf, and how early it is when there is one."""

    false_alarms: int
    """Control runs, other than those of the calibration, that alarmed."""
    controls: int
    """Number of such control runs."""
    false_alarm_rate: float
    """The rate that was asked for in calibration."""
    alarmed: int
    """Runs with an onset that alarmed."""
    runs: int
    """Runs with an onset."""
    lead_to_onset: Floats
    """Onset - alarm in steps [N], positive if the alarm was first; NaN without alarm or onset."""
    lead_to_halfway: Floats
    """Half-way point - alarm in steps [N]; NaN without alarm or half-way point."""


def alarm_time(path: ArrayLike, threshold: float) -> Floats:
    """The first place where each path [..., T] is above the threshold, as [...]; NaN if it never is.

    >>> alarm_time([[0, 1, 2, 3], [0, 1, 1, 0]], threshold=1)
    array([ 2., nan])
    """
    above = np.asarray(path, dtype=np.float64) > threshold
    if above.shape[-1] == 0:
        return np.full(above.shape[:-1], np.nan)
    return np.where(above.any(axis=-1), above.argmax(axis=-1), np.nan)


def controls_needed(false_alarm_rate: float) -> int:
    """Fewest control runs that can promise the rate: R with ceil((1 - a)(R + 1)) <= R. 5 % needs 19, 1 % needs 99."""
    if not 0 < false_alarm_rate < 1:
        raise ValueError(f"false_alarm_rate={false_alarm_rate}: must be between 0 and 1, as in 0.05")
    return math.ceil((1 - false_alarm_rate) / false_alarm_rate - 1e-9)


def calibrate(detector: Detector, controls: ArrayLike, false_alarm_rate: float) -> Monitor:
    """The monitor whose threshold at most the given share of whole control runs exceeds.

    The threshold is the k-th smallest of the R controls' largest statistics, k = ceil((1 - a)(R + 1)). A new run of the
    same kind then exceeds it with probability 1 - k / (R + 1) <= a, whatever the distribution and the autocorrelation.
    That is the mean over draws of the controls; for the draw at hand the rate is Beta(R + 1 - k, k) distributed, so at
    a = 5 % it is .05 +- .05 for R = 20 and .05 +- .011 for R = 400.

    ``controls`` is [R, T]: runs of the recipe to be watched, with its length, in which nothing happens. Never white
    noise. ValueError if R is below `controls_needed` or `LEAST_CONTROLS`.
    """
    runs = _matrix("controls", controls)
    count, steps = runs.shape
    needed = max(controls_needed(false_alarm_rate), LEAST_CONTROLS)
    if count < needed:
        raise ValueError(
            f"{count} control runs cannot promise a false-alarm rate of {false_alarm_rate}: {needed} are needed; "
            f"run more controls or allow a higher rate"
        )
    largest = np.sort(detector(runs).max(axis=-1))
    rank = math.ceil((1 - false_alarm_rate) * (count + 1) - 1e-9)  # 0.95 * 20 may come out above 19
    return Monitor(detector, float(largest[rank - 1]), false_alarm_rate, count, steps, _fingerprints(runs))


def evaluate(monitor: Monitor, runs: ArrayLike, onset: ArrayLike, half: ArrayLike, controls: ArrayLike) -> Evaluation:
    """False alarms on fresh controls [C, T], and leads on runs [N, T] with known onsets and half-way points [N].

    Onset and half-way point come from the behaviour, labelled on other rollouts than the signal, and are NaN where they
    did not happen. A lead may be chance: read it together with the false alarms. ValueError for fewer than
    `LEAST_CONTROLS` controls, for a control that was used in calibration, or for labels of another length.
    """
    fresh, watched = _matrix("controls", controls), _matrix("runs", runs)
    if len(fresh) < LEAST_CONTROLS:
        raise ValueError(f"{len(fresh)} control runs: {LEAST_CONTROLS} or more are needed to count false alarms")
    known = _fingerprints(fresh) & monitor.fingerprints
    if known:
        raise ValueError(f"{len(known)} control runs were used in calibration: count false alarms on other ones")
    onsets, halves = np.asarray(onset, dtype=np.float64), np.asarray(half, dtype=np.float64)
    for name, labels in (("onset", onsets), ("half", halves)):
        if labels.shape != (len(watched),):
            raise ValueError(f"{name} has shape {labels.shape}: must be ({len(watched)},), one label a run")
    alarms = monitor.alarms(watched)
    changed = ~np.isnan(onsets)
    return Evaluation(
        false_alarms=int(np.sum(~np.isnan(monitor.alarms(fresh)))),
        controls=len(fresh),
        false_alarm_rate=monitor.false_alarm_rate,
        alarmed=int(np.sum(changed & ~np.isnan(alarms))),
        runs=int(changed.sum()),
        lead_to_onset=onsets - alarms,
        lead_to_halfway=halves - alarms,
    )


def _reflected(steps: Floats) -> Floats:
    """Running sum of the steps, held at zero from below: S_t = max(0, S_(t-1) + step_t)."""
    sums = np.cumsum(steps, axis=-1)
    return sums - np.minimum(np.minimum.accumulate(sums, axis=-1), 0.0)


def _runs(x: ArrayLike) -> Floats:
    runs = np.asarray(x, dtype=np.float64)
    if runs.ndim == 0:
        raise ValueError("x is a single number: must be runs [..., T]")
    bad = np.argwhere(~np.isfinite(runs))
    if len(bad):
        where = tuple(int(each) for each in bad[0])
        raise ValueError(f"x{list(where)} = {runs[where]}: must be finite; watch a signal that every step has")
    return runs


def _matrix(name: str, x: ArrayLike) -> Floats:
    runs = _runs(x)
    if runs.ndim != 2 or runs.shape[-1] == 0:
        raise ValueError(f"{name} has shape {runs.shape}: must be [runs, T] with T of 1 or more")
    return runs


def _at_least(name: str, value: float, bound: float) -> None:
    if not value >= bound:
        raise ValueError(f"{name}={value}: must be {bound} or more")


def _fingerprints(runs: Floats) -> frozenset[bytes]:
    return frozenset(hashlib.blake2b(row.tobytes(), digest_size=16).digest() for row in runs)
