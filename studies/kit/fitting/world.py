"""The world of a run: fitted to two pooled tables, early and late, once for every hit rate that the tables leave open."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sim.mdp.calibration import FREE, POLICY, TableFit, fit
from sim.mdp.published import TurnTable
from sim.mdp.worlds import World, seed_a
from studies.kit.fitting.data import Observed
from studies.kit.fitting.later import later_log_odds

__all__ = ["CHOSEN", "EARLY", "HELD", "LATE", "LEFT_OPEN_POINTS", "FittedWorld", "fit_world", "pooled"]

F64 = NDArray[np.float64]

EARLY, LATE = 20, 5
"""Most steps that are pooled at the beginning and at the end of what was read."""
HELD = (0.15, 0.3, 0.45, 0.6, 0.8)
"""Hit rates on known questions that are tried: tables leave them open, and the length-weighted drift hangs on them."""
LEFT_OPEN_POINTS = 0.25
"""A held hit rate stays if its fit is worse than the best by no more, percentage points (root mean square)."""
_STARTS = 2  # the first by hand; a second draw reaches the same minimum on tables like seed A's

CHOSEN = (
    ("guess_known", "P(right | answered at the start, known)"),
    ("guess_unknown", "P(right | answered at the start, unknown)"),
    ("retry_known", "factor on hit_known after a failed answer"),
    ("stale", "P(right | answered again without new evidence)"),
)
"""Constants of the world that are chosen, one value tried for each."""


@dataclass(frozen=True, eq=False)
class FittedWorld:
    """One world a held hit rate, all of which fit the same two tables."""

    table: TurnTable
    """What was fitted: the early and the late steps, pooled."""
    pooled_steps: tuple[int, int]
    """How many steps each row of the table pools."""
    fits: tuple[TableFit, ...]
    """The fits that are left open, in the order of their `hit_known`."""
    tried: int
    """Hit rates tried."""

    @property
    def best(self) -> TableFit:
        """The fit with the smallest root mean square."""
        return min(self.fits, key=lambda found: found.rms_points)

    @property
    def middle(self) -> TableFit:
        """The fit in the middle of what is left open: for mechanisms that do not hang on the hit rate."""
        return self.fits[len(self.fits) // 2]

    def habit(self, found: TableFit) -> tuple[tuple[str, float], ...]:
        """Return the late log-odds of a fit by name, those of the first decision among them."""
        return tuple(zip(POLICY, (float(z) for z in found.logits[-1]), strict=True))

    def quantities(self) -> list[tuple[str, float, float, float]]:
        """Return (name, best, least, largest) over the fits left open, for every quantity fitted or held."""
        names = [name for name in FREE if name != "stale"]  # which is chosen
        rows = [(name, [getattr(f.world, name) for f in self.fits], getattr(self.best.world, name)) for name in names]
        rows.append(
            (
                "a first answer on evidence is right",
                [f.first_answer_accuracy for f in self.fits],
                self.best.first_answer_accuracy,
            )
        )
        policies = [f.policies for f in self.fits]
        for j, when in enumerate(self.table.checkpoints):
            rows.append((f"P(answer | start), {when}", [p[j, 0] for p in policies], self.best.policies[j, 0]))
        for i, name in enumerate(POLICY[1:], 1):
            words = f"P(answer | {name.split('/')[0]}), counted over all steps"
            rows.append((words, [p[-1, i] for p in policies], self.best.policies[-1, i]))
        return [(name, float(value), float(min(every)), float(max(every))) for name, every, value in rows]


def pooled(observed: Observed) -> tuple[TurnTable, tuple[int, int]]:
    """Return the early and the late steps as one table of two rows, and how many steps each row pools.

    Rows are means over rollouts. The table is linear in P(answer | start), so that pooling steps between which only the
    first decision moves is exact; what the later decisions moved meanwhile is averaged over.
    """
    late = min(LATE, len(observed) // 2)
    early = min(EARLY, len(observed) - late)

    def mean(values: F64, rows: slice) -> F64:
        return np.asarray(np.average(values[rows], axis=0, weights=observed.rollouts[rows]))

    rows = (slice(0, early), slice(len(observed) - late, None))
    ends = [f"steps {observed.steps[r][0]}-{observed.steps[r][-1]}" for r in rows]
    accuracy, search = (np.stack([mean(x, r) for r in rows]) for x in (observed.accuracy, observed.search_share))
    return TurnTable(accuracy, search, (ends[0], ends[1])), (early, late)


def fit_world(observed: Observed, base: World | None = None, held: tuple[float, ...] = HELD) -> FittedWorld:
    """Return the worlds that fit the run's two pooled tables, by least squares.

    The hit rate on known questions trades exactly against the other hit rates, so it is held at each of `held` and all
    else is fitted again; what fits as well as the best stays open, and a mechanism that hangs on it is averaged over it.

    Parameters
    ----------
    observed
        The run, up to the step from which the future is forecast.
    base
        What is not fitted: the chosen constants, and whether a wrong answer ends an episode. None for seed A's.
    held
        Hit rates tried.
    """
    base = base or seed_a()
    turns = observed.turns
    structure = replace(base, turns=turns, unknown_kinds=max(3, (turns + 1) // 2))  # exact for moments of that order
    table, steps = pooled(observed)
    counted = dict(zip(POLICY[1:], later_log_odds(*observed.decided())[0], strict=True))
    fixed = {name: float(np.clip(u, -8, 8)) for name, u in counted.items()} | {"stale": base.stale}
    fits = [fit(table, base=structure, fixed=fixed | {"hit_known": held[0]}, starts=_STARTS)]
    for rate in held[1:]:
        fits.append(fit(table, base=structure, fixed=fixed | {"hit_known": rate}, near=fits[-1]))
    least = min(found.rms_points for found in fits)
    kept = tuple(found for found in fits if found.rms_points <= least + LEFT_OPEN_POINTS)
    return FittedWorld(table, steps, kept, len(fits))
