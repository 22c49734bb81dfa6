"""How far one update moves the log-odds of the first decision, by exact sums: mean and noise along a grid of log-odds.

z is the log-odds of answering at the start, g = sigmoid(z). Per unit of rate, a batch of N rollouts moves z by

    mean(z) + sd(z) x N(0, 1),

where both follow from the fitted world, the objective and N; the rate itself is what a mechanism fits.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.special import expit

from sim.learning.normalisers import BatchMean, Normaliser, SequenceMean
from sim.mdp.calibration import POLICY
from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.drift import Objective, expected_advantage, expected_gradient
from sim.mdp.theory.spread import gradient_covariance
from sim.mdp.theory.ways import ways_of
from sim.mdp.worlds import Habit, World

__all__ = ["GRID", "Field", "along", "losing", "plain", "weighted"]

F64 = NDArray[np.float64]

GRID = np.linspace(-9.0, 6.0, 46)
"""Log-odds at which a field is tabulated; beyond its ends a field keeps its end values."""
_LOGIT = POLICY[0]
_EVERY = 5  # noise costs ten times as much as the mean: so it is tabulated at every fifth point


@dataclass(frozen=True, eq=False)
class Field:
    """What one update does at each point of `GRID`, per unit of rate."""

    mean: F64
    """Mean of the first decision's log-odds, [Z]."""
    sd: F64
    """Standard deviation of it, [Z]."""
    later: F64
    """Mean of the later log-odds (fresh, failed) over p (1 - p) of the decision, [Z, 2]."""
    later_sd: F64
    """Standard deviation of them over the root of p (1 - p), [Z, 2]."""

    @property
    def fastest(self) -> float:
        """Largest absolute mean on the grid: a speed is a rate times this."""
        return float(np.abs(self.mean).max())

    def towards_guessing(self, low: float, high: float) -> bool:
        """Whether the mean points towards guessing anywhere between two log-odds."""
        on = (low - 0.25 <= GRID) & (high + 0.25 >= GRID)
        return bool((self.mean[on] > 0).any())


def plain(world: World, habit: Habit, rollouts: int, group: int = 8) -> Field:
    """Return the field of an average over rollouts: what restores the habit that earns more."""
    return along(world, habit, BatchMean(), rollouts, group)


def weighted(world: World, habit: Habit, rollouts: int, group: int = 8) -> Field:
    """Return the field of a sequence mean, which weighs a rollout by 1 / turns."""
    return along(world, habit, SequenceMean(), rollouts, group)


@lru_cache(maxsize=64)
def along(world: World, habit: Habit, normaliser: Normaliser, rollouts: int, group: int = 8) -> Field:
    """Return the field of an objective: advantages over a group and its spread, and a normaliser.

    Parameters
    ----------
    world, habit
        The task, and the log-odds of the later decisions, which are held.
    normaliser
        What the sum over a batch is divided by.
    rollouts, group
        Rollouts a batch, and a question.
    """
    graph = world.graph().compiled()
    objective = Objective(normaliser=normaliser, group=group, prompts=max(1, rollouts // group))
    policies = [tables(graph, z) for z in _places(graph, habit)]
    mean = np.array([expected_gradient(graph, p, objective) for p in policies])
    variance = [np.diag(gradient_covariance(graph, p, objective)) for p in policies[::_EVERY]]
    return _field(graph, habit, mean, _filled(np.sqrt(variance)))


def losing(world: World, habit: Habit, losses: tuple[float, ...], rollouts: int, group: int = 8) -> list[Field]:
    """Return the field of the plain average where a rollout of n turns is learnt from with probability (1 - lost)^(n - 1).

    One field for each of `losses`. The baseline is over all rollouts of the group: their rewards are known, their tokens are
    not used. The mean is

        sum over ways of P(way) (1 - lost)^(n - 1) E[A | reward] grad log pi(way) / P(arrives),

    an average over those that are learnt from. The noise is that of independent rollouts, times what the rollouts of a group
    add to it where none is lost.
    """
    graph = world.graph().compiled()
    ways = ways_of(graph)
    keep = np.stack([(1 - lost) ** (ways.turns - 1.0) for lost in (*losses, 0.0)])
    solved, won = ways.reward > 0, _advantages(group)
    mean, square = np.empty((2, len(keep), len(GRID), len(graph.free_names)))
    arrives = np.empty((len(keep), len(GRID), 1))
    for i, z in enumerate(_places(graph, habit)):
        policy = tables(graph, z)
        chance = graph.share[ways.kind] * ways.probability(policy)
        right = (ways.by_kind(chance * solved) / graph.share).clip(0, 1)[ways.kind]
        advantage = np.where(solved, np.interp(right, _AT, won[1]), np.interp(right, _AT, won[0]))
        score = advantage[:, None] * ways.scores(policy).sum(1)  # [M, D]
        arrives[:, i, 0] = keep @ chance
        mean[:, i], square[:, i] = keep @ (chance[:, None] * score), keep @ (chance[:, None] * score**2)
    alone = np.sqrt(np.maximum(square - mean**2, 1e-30) / rollouts) / arrives
    together = plain(world, habit, rollouts, group)
    sd = np.empty_like(alone[-1])
    sd[:, _order(graph)] = np.column_stack([together.sd, together.later_sd * _root(graph, habit)])
    return [
        _field(graph, habit, m, own * sd / alone[-1]) for m, own in zip((mean / arrives)[:-1], alone[:-1], strict=True)
    ]


_AT = np.linspace(0, 1, 201)  # success rates; what is tabulated is a polynomial of degree group - 1


@lru_cache
def _advantages(group: int) -> F64:
    """Return E[A | own reward] by own reward and by success rate of the others, [2, len(_AT)]."""
    objective = Objective(group=group)
    return np.array([[expected_advantage(r, float(p), objective) for p in _AT] for r in (0, 1)])


def _places(graph: CompiledGraph, habit: Habit) -> F64:
    """Return all free logits with the first decision at each point of the grid, [Z, D]."""
    z = np.tile(free_logits(graph, habit), (len(GRID), 1))
    z[:, graph.free_names.index(_LOGIT)] = GRID
    return z


def _order(graph: CompiledGraph) -> list[int]:
    """Return where the first decision and the later ones stand among the free logits."""
    return [graph.free_names.index(name) for name in POLICY]


def _root(graph: CompiledGraph, habit: Habit) -> F64:
    """Return the root of p (1 - p) of the later decisions, [2]."""
    z = free_logits(graph, habit)[_order(graph)[1:]]
    return np.sqrt(expit(z) * expit(-z))


def _field(graph: CompiledGraph, habit: Habit, mean: F64, sd: F64) -> Field:
    """Return the field of means and deviations of all free logits, [Z, D] each."""
    first, *later = _order(graph)
    root = _root(graph, habit)
    return Field(mean[:, first], sd[:, first], mean[:, later] / root**2, sd[:, later] / root)


def _filled(coarse: F64) -> F64:
    """Return values at every point of the grid from those at every fifth, in logs: the noise falls as a power of g."""
    logs = np.log(np.maximum(coarse, 1e-15))
    return np.asarray(np.exp(CubicSpline(GRID[::_EVERY], logs)(GRID)))
