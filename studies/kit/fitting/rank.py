"""Rival mechanisms ranked by what each predicted for the next step, step after step, before it was seen.

The score of a mechanism is the sum over the steps after a warm-up of log P(counts of the step | counts before), its few
settings weighed by what they predicted so far (prequential, Dawid 1984): nothing is tuned on a step that is scored, and a
mechanism with more settings pays for them. What is *not* held out is the world, which is fitted to all steps that are used.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from studies.kit.fitting.data import FEWEST, FitError, Observed
from studies.kit.fitting.filtering import Filtered, filtered
from studies.kit.fitting.mechanisms import Mechanism, rivals, yardsticks
from studies.kit.fitting.world import FittedWorld, fit_world

__all__ = ["BLOCK", "TIE_NATS", "Ranked", "Ranking", "rank", "standing"]

F64 = NDArray[np.float64]

TIE_NATS = 2.0
"""Mechanisms within so many nats of each other are not told apart: the odds are below 8 to 1."""
BLOCK = 5
"""Steps that are taken together where the spread of a difference is estimated, since neighbours share their luck."""
_LEAST_BLOCKS = 4


@dataclass(frozen=True, eq=False)
class Ranked:
    """One rival, or one yardstick, in its place."""

    mechanism: Mechanism
    """What was tried."""
    filtered: Filtered | None
    """What it made of the run; None where the fitted worlds leave it no room."""
    first: float
    """log P of the first decisions of the steps scored, nats; -inf where there is no room."""
    later: float
    """log P of the later decisions of the steps scored, nats."""
    behind: float
    """Nats behind the rival that stands first (negative: ahead of it)."""
    spread: float | None
    """Standard error of that difference, from blocks of steps; None for too few, or for the first itself."""
    weight: float
    """P(rival | counts) if exactly the rivals here could be true, alike beforehand; 0 for a yardstick."""

    @property
    def name(self) -> str:
        """Name of the mechanism."""
        return self.mechanism.name

    @property
    def score(self) -> float:
        """Log P of all that was scored."""
        return self.first + self.later

    @property
    def setting(self) -> Mapping[str, tuple[float, float, float]]:
        """Mean, 5 % and 95 % point of each fitted parameter, given the counts."""
        if self.filtered is None:
            return {}
        return {name: _summary(values, self.filtered.weight) for name, values in self.mechanism.settings.items()}


@dataclass(frozen=True, eq=False)
class Ranking:
    """The rivals of one run, best first."""

    observed: Observed
    """The steps that were used."""
    fitted: FittedWorld
    """The world."""
    warm: int
    """Steps before the first that is scored."""
    rows: tuple[Ranked, ...]
    """Rivals, best first."""
    yardsticks: tuple[Ranked, ...]
    """What knows no mechanism, best first."""

    @property
    def scored(self) -> int:
        """Steps that are scored."""
        return len(self.observed) - self.warm

    @property
    def tied(self) -> tuple[Ranked, ...]:
        """The rivals that are not told apart from the first, itself included."""
        return tuple(row for row in self.rows if row.behind < TIE_NATS)

    @property
    def informative(self) -> bool:
        """Whether the first rival predicts better than what has one parameter and no mechanism, by more than a tie."""
        return self.yardsticks[0].behind >= TIE_NATS


def rank(observed: Observed, *, group: int = 8, warm: int | None = None, fitted: FittedWorld | None = None) -> Ranking:
    """Return the rivals in the order of their scores.

    A rival that contains another, as a push that may not have begun contains the plain gradient, stands behind it unless it
    predicts better by more than a tie.

    Parameters
    ----------
    observed
        The run, up to the step from which the future is forecast.
    group
        Rollouts a question.
    warm
        Steps before the first that is scored; None for a quarter of the run, and at least 8.
    fitted
        The world, where it is fitted already.

    Raises
    ------
    FitError
        For fewer steps than a fit takes.
    """
    if len(observed) < FEWEST:
        raise FitError(f"{observed.name} has {len(observed)} steps to fit; {FEWEST} are the fewest")
    warm = max(8, len(observed) // 4) if warm is None else warm
    if not 1 <= warm < len(observed):
        raise FitError(f"warm-up of {warm} steps: it must leave a step of {len(observed)} to predict")
    fitted = fitted or fit_world(observed)
    rollouts = int(np.median(observed.rollouts))
    made = [_tried(m, observed, warm) for m in rivals(fitted, rollouts, group)]
    plain = [_tried(m, observed, warm) for m in yardsticks()]
    scores = {m.name: -np.inf if f is None else float(f.score[warm:].sum()) for m, f in made}
    order = sorted(made, key=lambda pair: standing(pair[0], scores), reverse=True)
    leader = order[0][1]
    if leader is None:
        raise FitError(f"{observed.name}: the fitted worlds leave no mechanism any room")
    weight = dict(zip(scores, softmax(list(scores.values())), strict=True))
    rows = tuple(_row(m, f, leader, warm, float(weight[m.name])) for m, f in order)
    others = sorted((_row(m, f, leader, warm, 0.0) for m, f in plain), key=lambda row: row.behind)
    return Ranking(observed, fitted, warm, rows, tuple(others))


def _tried(mechanism: Mechanism, observed: Observed, warm: int) -> tuple[Mechanism, Filtered | None]:
    return mechanism, None if mechanism.motion is None else filtered(mechanism.motion, observed, warm)


def standing(mechanism: Mechanism, scores: Mapping[str, float]) -> float:
    """Return what a rival is sorted by: its score, or just below that of the special case that it does not beat."""
    score, within = scores[mechanism.name], scores.get(mechanism.contains, -np.inf)
    return float(np.nextafter(within, -np.inf)) if 0 <= score - within < TIE_NATS else score


def _row(mechanism: Mechanism, found: Filtered | None, leader: Filtered, warm: int, weight: float) -> Ranked:
    if found is None:
        return Ranked(mechanism, None, -np.inf, 0.0, np.inf, None, 0.0)
    difference = (leader.score - found.score)[warm:]
    first, later = float(found.first[warm:].sum()), float(found.later[warm:].sum())
    spread = None if found is leader else _spread(difference)
    return Ranked(mechanism, found, first, later, float(difference.sum()), spread, weight)


def _spread(difference: F64) -> float | None:
    """Return the standard error of a sum over steps, from the sums of blocks of steps."""
    blocks = len(difference) // BLOCK
    if blocks < _LEAST_BLOCKS:
        return None
    sums = difference[len(difference) - blocks * BLOCK :].reshape(blocks, BLOCK).sum(1)
    return float(np.sqrt(blocks) * sums.std(ddof=1))


def _summary(values: F64, weight: F64) -> tuple[float, float, float]:
    """Return the weighted mean, 5 % and 95 % point."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order])
    low, high = np.searchsorted(reached, (0.05, 0.95)).clip(max=len(order) - 1)
    return float(values @ weight), float(values[order[low]]), float(values[order[high]])
