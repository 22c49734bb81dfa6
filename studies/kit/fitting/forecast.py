"""The next steps as a run's mechanisms see them: paths of the first decision drawn from where the run stands."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logsumexp

from sim.records.rng import BlockStream, stream_key
from studies.kit.fitting.data import FitError
from studies.kit.fitting.filtering import Filtered, log_binomial
from studies.kit.fitting.rank import Ranked, Ranking

__all__ = ["INTERVALS", "LEVELS", "Fan", "Forecast", "forecast", "log_score", "paths"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

LEVELS = (np.arange(40) + 0.5) / 40
"""Levels of the quantiles that are kept: forty points of equal mass."""
INTERVALS = (0.5, 0.9)
"""Coverage of the intervals of what will be counted."""
_DRAWS = 4000
_SURE = (1e-9, 1 - 1e-9)  # no share is foretold to be nearer to 0 or 1


@dataclass(frozen=True, eq=False)
class Fan:
    """What one mechanism, or all together, foresee."""

    name: str
    """Who foresees it."""
    share: F64
    """Quantiles of P(no search at the first turn) at `LEVELS`, [H, 40]."""
    counted: F64
    """Ends of the intervals `INTERVALS` of the share of rollouts that will be counted, [H, 2 intervals, 2 ends]."""

    @property
    def median(self) -> F64:
        """Median of P(no search at the first turn), [H]."""
        return np.asarray((self.share[:, 19] + self.share[:, 20]) / 2)


@dataclass(frozen=True, eq=False)
class Forecast:
    """A run's next steps."""

    steps: I64
    """Optimiser steps foreseen, [H]."""
    rollouts: int
    """Rollouts a step that are counted."""
    together: Fan
    """The rivals averaged by their weights: the forecast."""
    each: tuple[Fan, ...]
    """Rivals and yardsticks by themselves, in the order of the ranking."""


def forecast(ranking: Ranking, horizon: int = 10, *, draws: int = _DRAWS, seed: int = 0) -> Forecast:
    """Return what the rivals foresee for the next `horizon` steps.

    Parameters
    ----------
    ranking
        The rivals and where each leaves the run.
    horizon
        Steps ahead.
    draws, seed
        Paths drawn of each rival, and the seed of their stream.
    """
    if horizon < 1 or draws < 40:
        raise FitError(f"horizon = {horizon} must be at least 1 and draws = {draws} at least 40")
    rollouts = int(np.median(ranking.observed.rollouts))
    rows = [row for row in (*ranking.rows, *ranking.yardsticks) if row.filtered is not None]
    drawn = {row.name: _drawn(row, horizon, draws, seed) for row in rows}
    parts = [
        drawn[row.name][_evenly(draws, round(draws * row.weight))] for row in rows if round(draws * row.weight) > 0
    ]
    steps = ranking.observed.steps[-1] + 1 + np.arange(horizon)
    together = _fan("together", np.concatenate(parts), rollouts, seed)
    return Forecast(steps, rollouts, together, tuple(_fan(row.name, drawn[row.name], rollouts, seed) for row in rows))


def _drawn(row: Ranked, horizon: int, draws: int, seed: int) -> F64:
    assert row.filtered is not None
    return paths(row.filtered, horizon, draws, BlockStream((seed,), f"fitting/forecast/{row.name}"))


def paths(found: Filtered, horizon: int, draws: int, stream: BlockStream) -> F64:
    """Return log-odds of the first decision at the next steps, one path a row, [draws, H].

    Setting and regime are drawn from their weights, z and m from their Gaussian, then the chain is run as it is, without
    the linearisation of the filter.
    """
    motion, state = found.motion, found.state
    joint = (state.regime * found.weight).ravel()
    where = np.searchsorted(np.cumsum(joint), (np.arange(draws) + 0.5) / draws * joint.sum()).clip(0, len(joint) - 1)
    regime, setting = np.divmod(where, motion.settings)
    z, m, zz, zm, mm = (getattr(state, name)[regime, setting] for name in ("z", "m", "zz", "zm", "mm"))
    shock = stream.normals(0, (2, draws))[0]
    slope = zm / np.maximum(zz, 1e-300)
    m = m + slope * np.sqrt(zz) * shock[0] + np.sqrt(np.maximum(mm - slope * zm, 0)) * shock[1]
    z = z + np.sqrt(zz) * shock[0]
    table, scale, kept = motion.table[setting], motion.scale[setting], motion.memory
    chances = np.cumsum(motion.chances(), 1)
    path = np.empty((horizon, draws))
    for h in range(horizon):
        u = stream.doubles(h + 1, (draws,))[0]
        regime = (u[:, None] >= chances[regime]).sum(1).clip(0, len(chances) - 1)
        drift, _, sd = motion.at(z, table, scale)
        step = drift + motion.pushing[regime] * motion.push[setting] + sd * stream.normals(h + 1, (draws,))[0]
        m = kept * m + (1 - kept) * step
        z = z + m
        path[h] = z
    return path.T


def log_score(share: F64, counts: I64, rollouts: I64) -> F64:
    """Return log P(count) at each step under quantiles of equal mass, [H, L]: the mean of binomials at them, [H]."""
    p = share.clip(*_SURE)  # what was rounded to 0 or 1 in writing
    z = np.log(p) - np.log1p(-p)
    found: F64 = logsumexp(log_binomial(counts[:, None], rollouts[:, None], z), 1) - np.log(share.shape[1])
    return found


def _evenly(draws: int, wanted: int) -> I64:
    """Return `wanted` rows out of `draws`, evenly spread: rows are ordered by setting."""
    return ((np.arange(wanted) + 0.5) / wanted * draws).astype(np.int64)


def _fan(name: str, z: F64, rollouts: int, seed: int) -> Fan:
    p = expit(z).clip(*_SURE)
    key = np.array([stream_key(f"fitting/count/{name}"), seed], np.uint64)
    counted = np.random.Generator(np.random.Philox(key=key)).binomial(rollouts, p) / rollouts
    ends = np.array([np.quantile(counted, [(1 - c) / 2, (1 + c) / 2], axis=0) for c in INTERVALS])
    return Fan(name, np.quantile(p, LEVELS, axis=0).T, ends.transpose(2, 0, 1))
