"""What a mechanism makes of the later decisions: the same update that moves the first one moves them as well.

u is the log-odds of answering on fresh evidence, and of answering again after a failure. At every later turn it is known
how many rollouts stand in either context, and how many of both together search:

    searches = Bin(fresh, sigmoid(-u_fresh)) + Bin(failed, sigmoid(-u_failed)),

so the two are seen without any world. Given a setting, u is Gaussian; the count enters through its mean and variance
(extended Kalman filter). A share `_ODD` of counts is taken to be anything, so that one odd turn cannot decide.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear
from scipy.special import expit, logit, ndtr

__all__ = ["Later", "began", "later_log_odds", "moved", "seen"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

_ODD = 0.01
_DRIFTED = 0.01  # variance added at the start: the warm-up is taken as one policy


@dataclass(frozen=True, eq=False)
class Later:
    """Log-odds of the later decisions at P settings."""

    u: F64
    """Means (fresh, failed), [2, P]."""
    cov: F64
    """Covariance, [2, 2, P]."""


def later_log_odds(fresh: I64, failed: I64, searches: I64) -> tuple[F64, F64]:
    """Return the log-odds (fresh, failed) that counts [T, K - 1] show, and their variances: least squares on the counts."""
    n = np.stack([fresh.ravel(), failed.ravel()], 1).astype(np.float64)
    weight = 1 / np.sqrt(np.maximum(n.sum(1), 1.0))
    found = lsq_linear(n * weight[:, None], searches.ravel() * weight, bounds=(0, 1)).x
    total = n.sum(0)
    q = (found * total + 0.5) / (total + 1)
    return -logit(q), 1 / ((total + 1) * q * (1 - q))


def began(fresh: I64, failed: I64, searches: I64, settings: int) -> Later:
    """Return the log-odds that the warm-up shows, at every setting alike; counts [T, K - 1]."""
    u, variance = later_log_odds(fresh, failed, searches)
    cov = np.diag(variance + _DRIFTED)
    return Later(np.tile(u[:, None], settings), np.tile(cov[..., None], settings))


def moved(later: Later, step: F64, sd: F64) -> Later:
    """Return the log-odds after one update with this mean and deviation, [2, P] each."""
    cov = later.cov.copy()
    cov[0, 0] += sd[0] ** 2
    cov[1, 1] += sd[1] ** 2
    return Later(later.u + step, cov)


def seen(later: Later, fresh: I64, failed: I64, searches: I64) -> tuple[Later, F64]:
    """Return the log-odds after the later turns of one step, [K - 1] each, and log P(searches | setting), [P]."""
    u, cov = later.u, later.cov
    total = np.zeros(u.shape[1])
    for counts in zip(fresh, failed, searches, strict=True):
        n, count = np.array(counts[:2], np.float64)[:, None], float(counts[2])
        if n.sum() == 0:
            continue
        q = expit(-u)
        bend = -n * q * (1 - q)  # d mean / d u
        noise = (n * q * (1 - q)).sum(0)
        across = (cov * bend[None]).sum(1)  # cov(u, mean)
        spread = (bend * across).sum(0) + noise
        off = count - (n * q).sum(0)
        wide = np.sqrt(spread + 1 / 12)
        likely = ndtr((off + 0.5) / wide) - ndtr((off - 0.5) / wide)
        total += np.log((1 - _ODD) * likely + _ODD / (n.sum() + 1))
        gain = across / (spread + 0.25)  # a count is whole: it says no more than that
        u = u + gain * off
        cov = cov - gain[:, None] * across[None]
    return Later(u, cov), total
