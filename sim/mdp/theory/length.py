"""Where a length-weighted loss teaches a habit that earns less: the window of the share of known questions (H7).

A sequence mean counts a rollout 1 / turns. A right guess ends after one turn and counts in full; a wrong guess runs on, and
its blame is divided by more turns. So guessing gains from the first known questions on, and pays only later.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import brentq

from sim.learning.credit import GroupCredit
from sim.learning.normalisers import SequenceMean
from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.worlds import SEED_A_HABIT, Habit, World

__all__ = ["first_order_world", "flip_threshold", "length_window"]


def flip_threshold(hit: float) -> float:
    """Return p*, the share of known questions above which a sequence mean pushes from searching to guessing first.

    First order in the share of guessing: E[A / turns | guess first] = E[A / turns | search first] with A = r - b, b the
    success of searching first. Assumes four turns; a wrong answer may be retried, until the limit; a guess is always right
    on a known question and never on an unknown one; every search finds the answer with probability h = `hit`, whatever
    the question and whatever failed before; the agent answers on evidence and searches after a failure. Then with
    b = 1 - (1 - h)^2

        guess:   p (1 - b) + (1 - p) (h (1 - b) / 3 - (1 - h) b / 4)
        search:  h (1 - b) / 2 + (1 - h) h (1 - b) / 4 - (1 - h)^2 b / 4
        p* = h (5 - 2 h) / (12 - 10 h + h^2)

    Neither the group's size nor a division by its spread enters: at first order every question is solved with the same
    probability b, so any centred credit scales both sides alike. Source: the equation is a prototype's, the closed form
    ours.

    >>> round(flip_threshold(.35), 3)
    0.175

    Raises
    ------
    ValueError
        For a hit rate outside (0, 1): guessing and searching tie at the ends.
    """
    if not 0 < hit < 1:
        raise ValueError(f"hit = {hit} must lie in (0, 1): at 0 nothing is found, at 1 searching never fails")
    return hit * (5 - 2 * hit) / (12 - 10 * hit + hit**2)


def first_order_world(hit: float, known: float) -> World:
    """Return the world that :func:`flip_threshold` is about."""
    return World(
        known=known,
        guess_known=1.0,
        guess_unknown=0.0,
        hit_known=hit,
        retry_known=1.0,
        hit_unknown=hit,
        icc=0.0,
        unknown_kinds=1,
        anchoring=1.0,
        stale=0.0,
    )


def length_window(
    world: World,
    objective: Objective | None = None,
    habit: Habit = SEED_A_HABIT,
    logit: str = "start/answer",
    points: int = 49,
) -> tuple[float, float] | None:
    """Return the shares of known questions between which an objective flips the world to a worse habit; None if nowhere.

    Inside, the effective gap of the objective is negative (it pushes towards `logit`) while that of the plain policy
    gradient is positive (the reference action is worth more). Both are taken at the habit, by exact sums. In the world of
    :func:`flip_threshold`, with a habit that is pure, the window is p* < known < hit.

    Parameters
    ----------
    world
        The task; its `known` is varied over (0, 1).
    objective
        What is learnt from; None for a sequence mean of rewards minus the group's mean, undivided.
    habit
        Log-odds of the free logits.
    logit
        The free logit in question.
    points
        Shares tried, equally spaced, before the ends are refined; the first stretch inside is reported.
    """
    objective = objective or Objective(GroupCredit(std=False), SequenceMean())
    plain = Objective(GroupCredit(std=False), group=objective.group)
    like = replace(world, known=0.5)

    def inside(known: float) -> tuple[float, float]:
        graph = replace(world, known=known).refilled(like)
        return -_gap(graph, objective, habit, logit), _gap(graph, plain, habit, logit)

    def margin(known: float) -> float:
        return min(inside(known))

    shares = np.linspace(0, 1, points + 2)[1:-1]
    margins = np.array([margin(float(known)) for known in shares])
    if not (margins > 0).any():
        return None
    first = int(np.argmax(margins > 0))
    last = first + int(np.argmin(np.append(margins[first:] > 0, False))) - 1
    low = 0.0 if first == 0 else float(brentq(margin, shares[first - 1], shares[first], xtol=1e-10))
    high = 1.0 if last == points - 1 else float(brentq(margin, shares[last], shares[last + 1], xtol=1e-10))
    return low, high


def _gap(graph: CompiledGraph, objective: Objective, habit: Habit, logit: str) -> float:
    return effective_gap(graph, tables(graph, free_logits(graph, habit)), objective, logit)
