"""Fitting one world and two policies to a published table of two checkpoints, and saying what the fit identifies.

The model is the exact occupancy of :class:`~sim.mdp.worlds.World` under a three-logit policy per checkpoint; nothing is
sampled. Least squares on percentages, logit-transformed parameters, several starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import expit, logit

from sim.mdp.exact import occupancy
from sim.mdp.policy import tables
from sim.mdp.published import TurnTable
from sim.mdp.sampling import Sampler
from sim.mdp.worlds import World, seed_a
from sim.records.rng import BlockStream

__all__ = ["FREE", "POLICY", "TableFit", "fit", "model_table", "simulate"]

F64 = NDArray[np.float64]

FREE = ("known", "hit_known", "hit_unknown", "icc", "anchoring", "stale")
"""World quantities fitted, shared by both checkpoints; each lies in (0, 1)."""

POLICY = ("start/answer", "fresh/answer", "failed/answer")
"""Policy log-odds fitted for each checkpoint."""

_FLOOR = 1e-4  # keeps a quantity off 0 and 1, where its logit is infinite and the fit cannot return
_STRUCTURE = replace(
    seed_a(), unknown_kinds=3
)  # exact: an episode of 4 turns has moments of order 3 at most in a hit rate


@dataclass(frozen=True, eq=False)
class TableFit:
    """A fitted world and its policies."""

    table: TurnTable
    """What was fitted."""
    world: World
    """The shared world."""
    logits: F64
    """Policy log-odds, [checkpoints, 3], in the order of `POLICY`; equal rows when one policy was asked for."""
    model: TurnTable
    """What the fit predicts."""
    parameters: int
    """Free parameters."""
    starts: int
    """Starting points tried."""
    agreeing: int
    """Of these, how many ended within 0.01 points (root mean square) of the best."""

    @property
    def residual_points(self) -> F64:
        """Model minus table, percentage points, in the order of :meth:`TurnTable.stacked`."""
        return 100 * (self.model.stacked() - self.table.stacked())

    @property
    def max_residual_points(self) -> float:
        """Largest absolute residual, percentage points."""
        return float(np.abs(self.residual_points).max())

    @property
    def rms_points(self) -> float:
        """Root mean square residual, percentage points."""
        return float(np.sqrt((self.residual_points**2).mean()))

    @property
    def policies(self) -> F64:
        """P(answer | context), [checkpoints, 3]."""
        return expit(self.logits)

    @property
    def first_answer_accuracy(self) -> float:
        """P(correct | a first answer on evidence): kappa aK + (1 - kappa) a1, which the table does identify."""
        w = self.world
        return w.known * w.hit_known + (1 - w.known) * w.hit_unknown


def model_table(world: World, logits: F64, names: tuple[str, ...], like: World = _STRUCTURE) -> TurnTable:
    """Return the exact table of `world` under the policies `logits`, [checkpoints, 3]."""
    graph = world.refilled(like)
    order = [graph.free_names.index(name) for name in POLICY]
    z = np.zeros((len(logits), len(graph.free_names)))
    z[:, order] = logits
    found = [occupancy(graph, tables(graph, row)) for row in z]
    search = graph.actions.index("search")
    return TurnTable(np.array([o.solved for o in found]), np.array([o.action_share(search) for o in found]), names)


def fit(
    table: TurnTable,
    *,
    base: World = _STRUCTURE,
    fixed: Mapping[str, float] | None = None,
    one_policy: bool = False,
    starts: int = 6,
    seed: int = 0,
    near: TableFit | None = None,
) -> TableFit:
    """Return the least-squares fit.

    Parameters
    ----------
    table
        Two checkpoints.
    base
        World that gives the constants not fitted.
    fixed
        Quantities of `FREE`, and log-odds of `POLICY`, held at a value instead of fitted.
    one_policy
        Whether both checkpoints share one policy.
    starts
        Starting points: the first by hand, the others from indexed draws.
    seed
        Seed of those draws.
    near
        A fit to start from instead (one start), for refits.
    """
    fixed = dict(fixed or {})
    unknown = set(fixed) - {*FREE, *POLICY}
    if unknown:
        known = ", ".join((*FREE, *POLICY))
        raise ValueError(f"{min(unknown)!r} is not fitted here, so it cannot be held; fitted: {known}")
    held: dict[str, Any] = {name: fixed[name] for name in FREE if name in fixed}
    base = replace(base, **held)
    free = tuple(name for name in FREE if name not in fixed)
    decided = np.array([fixed.get(name, np.nan) for name in POLICY])
    open_ = np.isnan(decided)
    policies = 1 if one_policy else len(table.checkpoints)
    aim = table.stacked()

    def world_of(x: F64) -> World:
        values = np.clip(expit(x[: len(free)]), _FLOOR, 1 - _FLOOR)
        changes: dict[str, Any] = dict(zip(free, map(float, values), strict=True))
        return replace(base, **changes)

    def logits_of(x: F64) -> F64:
        rows = np.repeat(decided[None], policies, 0)
        rows[:, open_] = x[len(free) :].reshape(policies, -1)
        return np.repeat(rows, len(table.checkpoints) // policies, 0)

    def residual(x: F64) -> F64:
        return 100 * (model_table(world_of(x), logits_of(x), table.checkpoints, base).stacked() - aim)

    habits = np.array([[-4.0, 4.0, -4.0], [0.7, 4.0, -2.5]]) if near is None else np.clip(near.logits, -8, 8)
    first = _start(free, _STRUCTURE if near is None else near.world, habits[:policies, open_])
    points = [first] if near else _starts(first, len(free), starts, seed)
    exactness = 1e-5 if near else 1e-8  # a refit starts where it ends, up to the noise of its table
    found = [
        least_squares(residual, x, bounds=(-9, 9), max_nfev=200, ftol=exactness, xtol=exactness, gtol=exactness)
        for x in points
    ]
    rms = np.array([np.sqrt(2 * f.cost / len(aim)) for f in found])
    best = found[int(np.argmin(rms))].x
    world, logits = world_of(best), logits_of(best)
    model = model_table(world, logits, table.checkpoints, base)
    return TableFit(table, world, logits, model, len(best), len(points), int((rms < rms.min() + 0.01).sum()))


def _start(free: tuple[str, ...], world: World, habits: F64) -> F64:
    values = np.array([getattr(world, name) for name in free])
    return np.concatenate([logit(np.clip(values, 1e-3, 1 - 1e-3)), habits.ravel()])


def _starts(first: F64, free: int, starts: int, seed: int) -> list[F64]:
    draws = BlockStream((seed,), "calibration/starts")
    spread = np.where(np.arange(len(first)) < free, 1.5, 0.5)
    return [first] + [first + spread * draws.normals(i, first.shape)[0] for i in range(1, starts)]


def simulate(
    found: TableFit, seeds: tuple[int, ...], *, stream: str, prompts: int = 128, group: int = 8
) -> list[TurnTable]:
    """Return one sampled table per seed from a fitted world.

    Each checkpoint gets prompts x group rollouts, on questions of its own.
    """
    graph = replace(found.world, unknown_kinds=9).graph().compiled()
    order = [graph.free_names.index(name) for name in POLICY]
    sampler, search = Sampler(graph), graph.actions.index("search")
    accuracy = np.zeros((len(seeds), len(found.logits), graph.turns))
    share = np.zeros_like(accuracy)
    for i, row in enumerate(found.logits):
        z = np.zeros(len(graph.free_names))
        z[order] = row
        policy = np.repeat(tables(graph, z).probability[None], len(seeds), 0)
        kind = sampler.kinds(BlockStream(seeds, f"{stream}/question").uniforms(i, (prompts,)))
        uniform = BlockStream(seeds, f"{stream}/turn").uniforms(i, (graph.turns, 2, group, prompts))
        sample = sampler(policy, kind, uniform)
        searched = sampler.running(sample) & (sampler.actions(sample) == search)
        solved = sampler.solved(sample)
        share[:, i], accuracy[:, i] = searched.mean(-1).T, solved.mean(-1).T
    return [TurnTable(a, s, found.table.checkpoints) for a, s in zip(accuracy, share, strict=True)]
