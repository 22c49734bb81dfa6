"""Staleness of asynchronous training: identities of counts, and means that follow from them.

Version v is published after v steps. A trajectory that starts under version s and is taken by the step that makes version
t + 1 out of t has staleness t - s: the publications it lived through. Counting each of them once from its side and once
from the trajectories' gives the identity of :func:`staleness_sums`, on every path, without any assumption.

**The capacity rule.** At version v at most (eta + v + 1) B trajectories may have started; S steps take B each. Let the rule
bind: all that may start do so at once. Then B max(0, j - eta) is the sum of the start versions of batch j in order of
start, so the S B that start first have the sum B (S - eta)(S - eta - 1) / 2, while the versions of the takes add up to
B S (S - 1) / 2 in whatever order trajectories are taken. If the source holds S B trajectories, these are the taken ones and

    mean staleness = eta - eta (eta + 1) / (2 S)        (eta <= S - 1),   for every order.

If the source is endless, S eta B is the sum of the staleness of the taken *and* the ages at version S of the eta B that are
left, since that many are in flight at each of the S publications. The ages of the youngest eta B add up to
B eta (eta + 1) / 2, so orders that leave these, first in first out above all, give the mean above for the taken alone.
Every other order leaves older ones and shows a *lower* mean of the taken, down to 0 for last in first out, which leaves
the first eta B for ever. Where the rule does not bind trajectories start later, and the value is an upper bound.

Ours, except where a source is named.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.theory._checks import count, non_negative, positive, share

__all__ = [
    "Spanned",
    "capacity_mean",
    "mean_staleness",
    "pipeline_staleness",
    "staleness_sums",
    "unsaturated_mean",
    "versions_spanned",
    "windowed_capacity_lag",
    "windowed_lag",
]

Ints = NDArray[np.int64]


def staleness_sums(started: Ints, taken: Ints) -> tuple[int, int]:
    """Return both sides of the identity sum_i (taken_i - started_i) = sum_v N(v), exact.

    N(v) counts trajectories started and not yet taken when version v is published, started_i < v <= taken_i. The right side
    is counted from starts and takes alone, without pairing them: it does not know the order.

    Parameters
    ----------
    started, taken
        Version at the start and at the take of each trajectory, [N] integers; for one left over, the last version as
        `taken` makes its staleness its age.

    Raises
    ------
    ValueError
        When a trajectory is taken before it started, or a version is negative or no integer.

    >>> staleness_sums(np.array([0, 0, 1]), np.array([0, 2, 2]))
    (3, 3)
    """
    started, taken = np.asarray(started), np.asarray(taken)
    if started.shape != taken.shape or started.ndim != 1 or started.size == 0:
        raise ValueError(f"started {started.shape} and taken {taken.shape} must be arrays [N] of the same N > 0")
    if started.dtype.kind not in "iu" or taken.dtype.kind not in "iu":
        raise ValueError(f"versions must be integers, not {started.dtype} and {taken.dtype}")
    if (taken < started).any() or started.min() < 0:
        i = int(np.argmax((taken < started) | (started < 0)))
        raise ValueError(
            f"trajectory {i} starts at version {started[i]} and is taken at {taken[i]}: need 0 <= start <= take"
        )
    most = int(taken.max()) + 1
    starts, takes = np.bincount(started, minlength=most), np.bincount(taken, minlength=most)
    in_flight = np.cumsum(starts - takes)[:-1]  # between the takes of version v - 1 and the starts of version v
    return int((taken.astype(np.int64) - started.astype(np.int64)).sum()), int(in_flight.sum())


def capacity_mean(eta: int, steps: int) -> float:
    """Return the mean staleness of S steps while the capacity rule binds: e - e (e + 1) / (2 S), e = min(eta, S - 1).

    Exact for every order when the source holds just what S steps take; for first in first out also with an endless source,
    where it bounds the mean under any other order from above. See the module for the proof.

    Parameters
    ----------
    eta
        Versions that starts may run ahead, in started <= (eta + version + 1) B.
    steps
        S.

    >>> round(capacity_mean(4, 60), 4)
    3.8333
    """
    count(steps=steps)
    non_negative(eta=eta)
    e = min(eta, steps - 1)
    return e - e * (e + 1) / (2 * steps)


def windowed_lag(in_flight: int, window: int) -> int:
    """Return the most takes between start and take of a trajectory under a windowed order: N + W - 2.

    Of the N in flight, each take starts a new one. Only the oldest not yet taken and the W - 1 that started next after it
    may be taken: index i leaves as take i + W at the latest, and it started with take i - N + 1. Attained, for N > 1, by
    taking i last of its window. W = 1 is first in first out.

    >>> windowed_lag(8, 1), windowed_lag(8, 3)
    (7, 9)
    """
    count(in_flight=in_flight, window=window)
    return in_flight + window - 2 if in_flight > 1 else 0


def windowed_capacity_lag(eta: int, window: int, batch: int) -> int:
    """Return the largest staleness in versions under the capacity rule and a windowed order: eta + ceil((W - 1) / B).

    Index i starts at version floor(i / B) - eta at the earliest and is taken at floor((i + W - 1) / B) at the latest. First
    in first out (W = 1) has at most eta; without a window there is no bound. For eta = 0 each step takes all there are, and
    the staleness is 0. The window counts single trajectories, as the batch does. Attained where the rule binds.

    >>> windowed_capacity_lag(4, 1, 32), windowed_capacity_lag(4, 33, 32), windowed_capacity_lag(4, 34, 32)
    (4, 5, 6)
    """
    count(window=window, batch=batch)
    non_negative(eta=eta)
    return eta + math.ceil((window - 1) / batch) if eta > 0 else 0


def unsaturated_mean(span_s: float, interval_s: float, utilisation: float) -> float:
    """Return the mean staleness when nothing but the number of slots limits starts: E[span] / tau + rho.

    A step takes its batch at time 0 of a cycle of length tau and publishes at rho tau. A group that completes at a uniform
    phase U before the take has lived for span + U, through floor((span + U) / tau + rho) publications; its mean over U is
    the value given. It assumes that completions spread evenly over the cycle.

    Parameters
    ----------
    span_s
        E[span], mean time from a member's start until its *group* is complete, s: not the mean of a trajectory.
    interval_s
        tau, mean time from one step to the next, s.
    utilisation
        rho, share of time the learner trains.
    """
    non_negative(span_s=span_s)
    positive(interval_s=interval_s)
    share(utilisation=utilisation)
    return span_s / interval_s + utilisation


def mean_staleness(eta: int, span_s: float, interval_s: float, utilisation: float) -> float:
    """Return min(eta, unsaturated mean) for long runs: whichever of the capacity rule and the slots limits starts.

    >>> mean_staleness(4, 30.0, 5.0, 0.8), mean_staleness(8, 30.0, 5.0, 0.8)
    (4.0, 6.8)
    """
    non_negative(eta=eta)
    return min(float(eta), unsaturated_mean(span_s, interval_s, utilisation))


def pipeline_staleness(depth: int) -> int:
    """Return k - 1, the staleness of every trajectory in a pipeline that holds k batches: 0 synchronous, 1 one step off."""
    count(depth=depth)
    return depth - 1


@dataclass(frozen=True)
class Spanned:
    """How many publications fall into a rollout: `least`, or one more."""

    least: int
    """floor(l / tau)."""
    chance: float
    """Probability of one more, the fractional part of l / tau."""

    def mean(self) -> float:
        """Return the mean, l / tau."""
        return self.least + self.chance

    def variance(self) -> float:
        """Return the variance, of the phase alone: chance (1 - chance)."""
        return self.chance * (1 - self.chance)


def versions_spanned(duration_s: float, interval_s: float) -> Spanned:
    """Return floor(l / tau) + Bernoulli(frac): publications every tau s within a rollout of l s that starts at any phase.

    >>> versions_spanned(7.0, 4.0)
    Spanned(least=1, chance=0.75)
    """
    non_negative(duration_s=duration_s)
    positive(interval_s=interval_s)
    least = math.floor(duration_s / interval_s)
    return Spanned(least, duration_s / interval_s - least)
