"""What a mechanism makes of a run, step by step: the predictive distribution of each count, and where the run then stands.

A mechanism is a chain of the log-odds z of the first decision, at many settings of its few parameters at once:

    m' = b1 m + (1 - b1) (drift(z) + push + sd(z) N(0, 1)),    z' = z + m',    count ~ Binomial(rollouts, sigmoid(z)).

Given a setting the filter is Gaussian in (z, m): drift is linearised at the mean, the binomial count enters by adaptive
Gauss-Hermite quadrature in z, so that the predictive probability is exact up to the Gaussian (assumed density filtering).
Settings are weighed by what they predicted (Bayes): nothing is tuned on the steps that are predicted.

Sizes: P settings, R regimes of a push (before, during, after; one where nothing switches).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaln, log_expit, logsumexp

from studies.kit.fitting.data import Observed
from studies.kit.fitting.fields import GRID
from studies.kit.fitting.later import began, moved, seen

__all__ = ["Filtered", "Motion", "State", "filtered", "log_binomial"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_START, _SPREAD = -2.0, 3.0  # before anything is seen: shares from .0003 to .98 within two sd
_NODES, _WEIGHTS = np.polynomial.hermite.hermgauss(5)
_WEIGHTS = _WEIGHTS * np.exp(_NODES**2)  # for an integrand that still holds its Gaussian


@dataclass(frozen=True, eq=False)
class Motion:
    """How z moves in a step, at P settings."""

    drift: F64
    """Mean of one step on `GRID`, logits, [tables, Z]."""
    sd: F64
    """Standard deviation of one step on `GRID`, logits, [tables, Z]."""
    table: I64
    """Which table a setting uses, [P]."""
    scale: F64
    """What the table is multiplied by at a setting, [P]."""
    push: F64
    """Logits a step that are added while a push lasts, [P]."""
    later: F64
    """What moves the later decisions, per p (1 - p) or its root, on `GRID`, [tables, Z, 2]; see `later_step`."""
    later_sd: F64
    """Standard deviation of it per root of p (1 - p), on `GRID`, [tables, Z, 2]."""
    memory: float = 0.0
    """b1: decay of the mean over past steps that z moves by."""
    switch: tuple[float, float] | None = None
    """P(the push begins in a step | not yet) and P(it ends in a step | it lasts); None where it always lasts."""
    signal_sized: bool = False
    """Whether the later decisions move by Adam's steps, alpha r / sqrt(1 + r^2) at a signal-to-noise ratio r, rather than by
    the gradient."""
    _slopes: F64 = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_slopes", np.gradient(self.drift, GRID, axis=1))

    @property
    def settings(self) -> int:
        """Number of settings (P)."""
        return len(self.table)

    @property
    def pushing(self) -> F64:
        """Whether the push acts, by regime, [R]."""
        return np.array([1.0] if self.switch is None else [0.0, 1.0, 0.0])

    def chances(self) -> F64:
        """Return P(regime now | regime before), [R before, R now]."""
        if self.switch is None:
            return np.ones((1, 1))
        begins, ends = self.switch
        return np.array([[1 - begins, begins, 0.0], [0.0, 1 - ends, ends], [0.0, 0.0, 1.0]])

    def at(self, z: F64, table: I64, scale: F64) -> tuple[F64, F64, F64]:
        """Return drift, its slope and sd at z, of the shape of z; beyond the grid they keep the values of its ends."""
        low, part = _between(z)
        drift, slope, sd = (
            scale * (x[table, low] * (1 - part) + x[table, low + 1] * part) for x in (self.drift, self._slopes, self.sd)
        )
        return drift, slope, sd

    def later_step(self, z: F64, u: F64) -> tuple[F64, F64]:
        """Return mean and sd of one update of the later decisions, [2, P] each, with the first at z [P] and them at u."""
        low, part = _between(z)
        slope = expit(u) * expit(-u)
        mean, sd = (
            (x[self.table, low] * (1 - part)[:, None] + x[self.table, low + 1] * part[:, None]).T
            for x in (self.later, self.later_sd)
        )
        mean, sd = mean * slope, sd * np.sqrt(slope)
        if self.signal_sized:
            size = np.sqrt(mean**2 + sd**2 + 1e-30)
            mean, sd = mean / size, sd / size
        return self.scale * mean, self.scale * sd


@dataclass(frozen=True, eq=False)
class State:
    """Where a run stands after the last step seen, given every setting; all [R, P]."""

    z: F64
    """Mean of z."""
    m: F64
    """Mean of m."""
    zz: F64
    """Variance of z."""
    zm: F64
    """Covariance of z and m."""
    mm: F64
    """Variance of m."""
    regime: F64
    """P(regime | setting)."""


@dataclass(frozen=True, eq=False)
class Filtered:
    """A mechanism after a run."""

    motion: Motion
    """The chain."""
    first: F64
    """log P(first decisions of step t | all before), the settings averaged over, [T]."""
    later: F64
    """log P(later decisions of step t | all before, and its first decisions), [T]; 0 in the warm-up."""
    weight: F64
    """P(setting | all counts), [P]."""
    state: State
    """Where the run stands."""

    @property
    def score(self) -> F64:
        """Log P(what is counted at step t | all before), [T]."""
        return self.first + self.later


def filtered(motion: Motion, observed: Observed, warm: int, prior: F64 | None = None) -> Filtered:
    """Return what a mechanism makes of a run.

    Where a step is not observed the chain moves on without a count.

    Parameters
    ----------
    motion
        The chain at its settings.
    observed
        The run.
    warm
        Steps from which the later decisions are estimated, before they are predicted.
    prior
        P(setting), [P]; None for all alike.
    """
    P = motion.settings
    log_weight = np.log(np.full(P, 1 / P) if prior is None else prior)
    state = _before(motion)
    fresh, failed, searches = observed.decided()
    later = began(fresh[:warm], failed[:warm], searches[:warm], P)
    found = np.zeros((2, len(observed)))
    for t in range(len(observed)):
        for _ in range(int(observed.steps[t] - observed.steps[t - 1]) if t else 0):
            if t >= warm:
                later = moved(later, *motion.later_step((state.regime * state.z).sum(0), later.u))
            state = _moved(motion, _mixed(motion, state))
        state, log_p = _seen(state, int(observed.unsearched[t]), int(observed.rollouts[t]))
        log_weight, found[0, t] = _weighed(log_weight, log_p)
        if t >= warm:
            later, log_p = seen(later, fresh[t], failed[t], searches[t])
            log_weight, found[1, t] = _weighed(log_weight, log_p)
    return Filtered(motion, found[0], found[1], np.exp(log_weight), state)


def _before(motion: Motion) -> State:
    """Return the state before anything is seen."""
    shape = (len(motion.pushing), motion.settings)
    regime = np.zeros(shape)
    regime[0] = 1.0
    none, start = np.zeros(shape), np.full(shape, _START)
    usual = motion.at(start, motion.table, motion.scale)[2] ** 2 * (1 - motion.memory) / (1 + motion.memory)
    m = usual if motion.memory else none  # a run is joined on its way: m has the variance of its past steps
    return State(start, none, np.full(shape, _SPREAD**2), none, m, regime)


def _weighed(log_weight: F64, log_p: F64) -> tuple[F64, float]:
    """Return the settings' log weights after log P(data | setting), and log P(data)."""
    total = float(logsumexp(log_weight + log_p))
    return log_weight + log_p - total, total


def _between(z: F64) -> tuple[I64, F64]:
    """Return the grid point below each z and how far it is to the next; the ends of the grid for what lies beyond."""
    place = ((z - GRID[0]) / (GRID[1] - GRID[0])).clip(0, len(GRID) - 1 - 1e-9)
    low = place.astype(np.int64)
    return low, place - low


def log_binomial(count: int | I64, rollouts: int | I64, z: F64) -> F64:
    """Return log P(count | rollouts) at log-odds z."""
    n, k = np.asarray(rollouts, np.float64), np.asarray(count, np.float64)
    choose = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    found: F64 = choose + n * log_expit(z) - (n - k) * z  # log sigmoid(-z) = log sigmoid(z) - z
    return found


def _mixed(motion: Motion, state: State) -> State:
    """Let the regime switch: each new regime is the Gaussian with the moments of the mixture that leads to it."""
    if motion.switch is None:
        return state
    joint = motion.chances()[:, :, None] * state.regime[:, None]  # [R before, R now, P]
    now = joint.sum(0)
    share = joint / np.maximum(now, 1e-300)
    z, m = ((share * x[:, None]).sum(0) for x in (state.z, state.m))
    dz, dm = state.z[:, None] - z, state.m[:, None] - m
    zz = (share * (state.zz[:, None] + dz * dz)).sum(0)
    zm = (share * (state.zm[:, None] + dz * dm)).sum(0)
    mm = (share * (state.mm[:, None] + dm * dm)).sum(0)
    empty = now <= 0
    if empty.any():  # a regime that cannot have been reached keeps a place to start from
        zz = np.where(empty, _SPREAD**2, zz)
    return State(z, m, zz, zm, mm, now)


def _moved(motion: Motion, state: State) -> State:
    """Return the state after one step of the chain."""
    drift, slope, sd = motion.at(state.z, motion.table, motion.scale)
    rise, kept = drift + motion.pushing[:, None] * motion.push, motion.memory
    if kept == 0:
        zz = state.zz * (1 + slope) ** 2 + sd**2
        return State(state.z + rise, state.m, zz, state.zm, state.mm, state.regime)
    new = 1 - kept
    bend = new * slope
    mm = kept**2 * state.mm + 2 * kept * bend * state.zm + bend**2 * state.zz + (new * sd) ** 2
    across = kept * state.zm + bend * state.zz  # cov(z, m')
    m = kept * state.m + new * rise
    return State(state.z + m, m, state.zz + 2 * across + mm, across + mm, mm, state.regime)


def _seen(state: State, count: int, rollouts: int) -> tuple[State, F64]:
    """Return the state after a count, and log P(count | setting) before it, [P]."""
    log_p, z, zz = _updated(state.z, state.zz, count, rollouts)
    gain = state.zm / np.maximum(state.zz, 1e-300)
    m, mm = state.m + gain * (z - state.z), state.mm - gain**2 * (state.zz - zz)
    with np.errstate(divide="ignore"):
        joint = np.log(state.regime) + log_p
    total = logsumexp(joint, 0)
    return State(z, m, zz, gain * zz, np.maximum(mm, 0.0), np.exp(joint - total)), total


def _updated(mean: F64, variance: F64, count: int, rollouts: int) -> tuple[F64, F64, F64]:
    """Return log P(count), and mean and variance of z after it, by quadrature around the mode."""
    seen = np.log((count + 0.5) / (rollouts - count + 0.5))
    sure = rollouts * expit(seen) * expit(-seen)
    z = (mean + variance * sure * seen) / (1 + variance * sure)
    for _ in range(3):  # Newton on a concave function, from a start that is exact where the likelihood is Gaussian
        g = expit(z)
        step = (count - rollouts * g - (z - mean) / variance) / (rollouts * g * (1 - g) + 1 / variance)
        z = z + step.clip(-1.5, 1.5)
    g = expit(z)
    width = np.sqrt(1 / (rollouts * g * (1 - g) + 1 / variance))
    nodes = z + np.sqrt(2) * width * _NODES[:, None, None]
    log_f = log_binomial(count, rollouts, nodes) - (nodes - mean) ** 2 / (2 * variance)
    top = log_f[len(_NODES) // 2]  # at the mode
    f = np.exp(log_f - top) * _WEIGHTS[:, None, None]
    total = f.sum(0)
    after = (f * nodes).sum(0) / total
    spread = (f * (nodes - after) ** 2).sum(0) / total
    return top + np.log(total * width / np.sqrt(np.pi * variance)), after, spread
