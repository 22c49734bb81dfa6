"""The push on guessing first where slow rollouts are not trained on: by exact sums, or from drawn groups (H8).

The gap is minus the mean push on the log-odds z of guessing, over g (1 - g): positive against guessing. Baselines are over
what arrived, as on a cluster, which does not know what the others would have earned.
"""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.ways import Ways, ways_of
from sim.mdp.worlds import World

__all__ = ["critical_loss", "gap", "gap_by_rule", "kept"]

F64 = NDArray[np.float64]

LATER = (("fresh/answer", 4.85), ("failed/answer", -4.2))
GROUP = 8


def kept(world: World, z: float, lost: float) -> tuple[Ways, F64, F64, F64]:
    """Return what arrives where each search is lost with probability `lost` and takes its rollout with it.

    The ways; P(kind, way, arrives) of each [M]; P(arrives | kind) and P(right | arrives, kind) [H].
    """
    graph = world.graph().compiled()
    ways = ways_of(graph)
    policy = tables(graph, free_logits(graph, (("start/answer", z), *LATER)))
    p = graph.share[ways.kind] * ways.probability(policy) * (1 - lost) ** _searches(ways).sum(-1)
    arrives = np.minimum(ways.by_kind(p) / graph.share, 1.0)
    return ways, p, arrives, np.minimum(ways.by_kind(p * ways.reward) / (arrives * graph.share), 1.0)


def gap(world: World, z: float, lost: float) -> float:
    """Return the gap between searching and guessing first where searches are lost with their rollouts, exactly.

    - sum P(kind, way, arrives) E[A | r] (1 [guess] - g) / (P(arrives) g (1 - g)), with E[A | r] over Bin(G - 1, P(arrives |
    kind)) others, each right with P(right | arrives, kind). A rollout that arrives alone has no advantage.
    """
    ways, p, arrives, right = kept(world, z, lost)
    advantage = np.zeros((2, len(right)))
    for others in range(1, GROUP):
        wins = binom.pmf(np.arange(others + 1)[:, None], others, right)  # [others + 1, H]
        advantage += binom.pmf(others, GROUP - 1, arrives) * (_advantages(others) @ wins)
    return _gap_of(p * advantage[ways.reward.astype(int), ways.kind], _guessed(ways), z) / float(p.sum())


def critical_loss(world: World, z: float) -> float:
    """Return d*, the P(a search is lost) at which the gap at log-odds z vanishes."""
    return float(brentq(lambda lost: gap(world, z, lost), 0.01, 0.97))


def gap_by_rule(world: World, z: float, extra: int = 0, over: float = 0.0, groups: int = 30_000) -> float:
    """Return the gap from drawn groups where the first G of G + extra count, or the first 1 / (1 + over) of groups.

    Searches take exponential times, answers none. Standard deviation .006 at 30,000 groups, .02 where guessing is rare.
    """
    rng = np.random.default_rng(0)
    ways, p, _, _ = kept(world, z, 0.0)
    kind = rng.choice(len(ways.graph.share), groups, p=ways.graph.share)
    way = np.empty((groups, GROUP + extra), int)
    for h in range(len(ways.graph.share)):
        mine = np.flatnonzero(ways.kind == h)
        way[kind == h] = rng.choice(mine, ((kind == h).sum(), GROUP + extra), p=p[mine] / p[mine].sum())
    took = (rng.exponential(size=(*way.shape, ways.nodes.shape[1])) * _searches(ways)[way]).sum(-1)
    way = np.take_along_axis(way, np.argsort(took, 1, kind="stable")[:, :GROUP], 1)
    way = way[np.argsort(np.sort(took, 1)[:, GROUP - 1], kind="stable")[: int(groups / (1 + over))]]
    push = GroupCredit()(Batch(ways.reward[way][None])).value[0, ..., 0] / way.size
    return _gap_of(push, _guessed(ways)[way], z)


@lru_cache
def _advantages(others: int) -> F64:
    """Return A by own reward and by how many of `others` are right, [2, others + 1]."""
    rewards = np.array([[[r, *(np.arange(others) < k)] for k in range(others + 1)] for r in (0.0, 1.0)])
    found: F64 = GroupCredit()(Batch(rewards)).value[..., 0, 0]
    return found


def _gap_of(push: F64, guessed: NDArray[np.bool_], z: float) -> float:
    g = expit(z)
    return -float((push * (guessed - g)).sum() / (g * (1 - g)))


def _searches(ways: Ways) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (ways.actions == ways.graph.actions.index("search")) & ways.running
    return found


def _guessed(ways: Ways) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = ways.actions[:, 0] == ways.graph.actions.index("answer")
    return found
