"""The push on guessing first where long rollouts do not arrive, by exact sums, and the loss at which it turns (H8)."""

import numpy as np
from scipy.optimize import brentq

from minimodel.agent.setup import Training
from minimodel.tasks.facts import draw_facts
from minimodel.tasks.task import played_world
from sim.mdp.policy import PolicyTables
from sim.mdp.theory.drift import Objective, expected_advantage
from sim.mdp.theory.ways import ways_of

__all__ = ["critical_loss", "gap"]


def gap(config: Training, lost: float) -> float:
    """Return the first push on guessing first where a rollout of n turns arrives with (1 - lost)^(n - 1), over all.

    The sum over ways of E[A | reward] x P(arrives), guess first against search first, as under a constant average: what a
    token mean divides by is left out, and does not alter the sign to first order.
    """
    task = config.task
    graph = draw_facts(task.world, task.vocabulary, task.held_out, 0).graph(played_world(task))
    p = config.start.script.probabilities(graph)
    ways = ways_of(graph)
    chance = ways.probability(PolicyTables(p, np.log(np.maximum(p, 1e-300))))
    solved = np.bincount(ways.kind, chance * ways.reward, len(graph.share))
    pairs = zip(ways.reward.astype(int).tolist(), solved[ways.kind], strict=True)
    advantage = np.array([expected_advantage(r, s, Objective.of(config.rule, config.group)) for r, s in pairs])
    push = graph.share[ways.kind] * chance * advantage * (1 - lost) ** (ways.turns - 1.0)
    first = ways.actions[:, 0] == graph.actions.index("answer")
    guessed = float((graph.share[ways.kind] * chance)[first].sum())
    return float(push[~first].sum() / (1 - guessed) - push[first].sum() / guessed)


def critical_loss(config: Training) -> float:
    """Return d*, the P(lost) a turn at which the push vanishes."""
    return float(brentq(lambda lost: gap(config, lost), 0.0, 0.99))
