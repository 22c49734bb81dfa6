"""The harness of the calibration tests: how often does a kind decide wrongly where the truth is the boundary?"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from studies.kit import above
from studies.kit.estimate import Estimate
from studies.kit.verdict import ALPHA

QUICK, FULL = 1500, 20_000
LIMIT = 0.025


@dataclass(frozen=True)
class Null:
    """Studies in which the truth is the boundary."""

    name: str
    estimate: Callable[..., Estimate]
    """The kind under trial."""
    draw: Callable[[np.random.Generator, int], dict[str, Any]]
    """Data of one study of n seeds."""
    boundary: float
    """The true value of the number."""


def rates(trial, n, repeats, seed=7):
    """Shares of studies that call the boundary passed from above and from below."""
    generator = np.random.default_rng([seed, n, *trial.name.encode()])
    region, false = above(trial.boundary), np.zeros(2)
    for _ in range(repeats):
        estimate = trial.estimate(**trial.draw(generator, n))
        if not estimate.reason:
            low, high = estimate.interval(ALPHA)
            # On the boundary both verdicts are wrong; above() leaves its bound to the complement, so "refuted" is
            # read here as the claim's mirror image would be: all of the interval below the bound.
            false += region.contains(low, high), high < trial.boundary
    return false / repeats


def tolerated(repeats):
    return LIMIT + 3 * math.sqrt(LIMIT * (1 - LIMIT) / repeats)


def calibrated(trial, n, repeats):
    return bool((rates(trial, n, repeats) <= tolerated(repeats)).all())
