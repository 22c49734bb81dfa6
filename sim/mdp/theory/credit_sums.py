"""What a credit makes of a rollout, given how many of the other rollouts of its group came out in which way.

An advantage depends on the other G - 1 rollouts of the question only through a few classes: what they earned, or what
they went on to earn from the state in question. So the credit is evaluated once for every *composition*, the numbers of
the others in each class, and expectations are sums over the multinomial distribution of the composition. With rewards 0
and 1 the composition is the number of successes and the sums are binomial.

Sizes: M ways, K turns, H kinds, X classes, C compositions, E entries (what an advantage can be about).
"""

from dataclasses import dataclass
from functools import lru_cache
from math import comb, lgamma
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sim.learning.batch import Batch
from sim.learning.credit import Credit, GreedyBaseline, NoBaseline, RunningBaseline
from sim.learning.step_credit import RewardToGo, StateGroups
from sim.learning.tabular import greedy
from sim.mdp.policy import PolicyTables
from sim.mdp.theory.ways import Ways, ways_of

__all__ = ["MOST_COMPOSITIONS", "Comparison", "comparisons", "compositions", "counted", "multinomial"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

MOST_COMPOSITIONS = 200_000
"""Compositions that are summed over; beyond it a sum takes seconds and gigabytes."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """One additive part of an advantage."""

    label: I64
    """Class of each way, as the other rollouts see it, [M]."""
    entry: I64
    """Row of `value` that a turn reads, [M, K]; -1 where this part gives the turn nothing."""
    value: F64
    """Advantage of an entry at each composition of the other G - 1, [H or 1, E, C]."""

    @property
    def classes(self) -> int:
        """Number of classes X."""
        return int(self.label.max()) + 1

    def class_probability(self, ways: Ways, probability: F64) -> F64:
        """Return P(class | kind), [H, X]."""
        H, X = len(ways.graph.share), self.classes
        return cast(F64, np.bincount(ways.kind * X + self.label, probability, H * X)).reshape(H, X)

    def at_turns(self, expected: F64, kind: I64, *more: I64) -> F64:
        """Return ``expected[kind, entry, *more]`` at every turn, [M, K]; 0 where this part gives nothing."""
        index = (kind, *more)
        columns = tuple(x[:, None] for x in index)
        return np.where(self.entry < 0, 0.0, expected[(columns[0], self.entry, *columns[1:])])


# --- compositions -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def compositions(n: int, classes: int) -> I64:
    """Return every way to divide `n` among classes, [C, X], in lexicographic order.

    >>> compositions(2, 2).tolist()
    [[0, 2], [1, 1], [2, 0]]

    Raises
    ------
    ValueError
        When there are more than `MOST_COMPOSITIONS`.
    """
    count = comb(n + classes - 1, classes - 1)
    if count > MOST_COMPOSITIONS:
        raise ValueError(
            f"{n} other rollouts fall into {classes} classes in {count} ways; at most {MOST_COMPOSITIONS} are summed over: "
            "use a smaller group, a shorter turn limit, or gamma = 1"
        )
    if classes == 1:
        return np.array([[n]])
    parts = [(first, compositions(n - first, classes - 1)) for first in range(n + 1)]
    return np.concatenate([np.insert(rest, 0, first, axis=1) for first, rest in parts])


def multinomial(counts: I64, probability: F64) -> F64:
    """Return P(counts) of ``counts.sum(-1)`` independent draws, [H, C], for counts [C, X] and P(class) [H, X]."""
    found = np.ones((len(probability), len(counts))) * _arrangements(counts)
    for x in range(counts.shape[1]):
        found *= probability[:, x, None] ** counts[:, x]
    return found


def _arrangements(counts: I64) -> F64:
    """Return n! / prod counts!, [C]."""
    log_factorial = np.array([lgamma(i + 1) for i in range(int(counts.sum(1).max(initial=0)) + 1)])
    return np.rint(np.exp(log_factorial[counts.sum(1)] - log_factorial[counts].sum(1)))


def counted(first: I64, second: I64, into: I64) -> I64:
    """Return the row of ``first[i] + second[j]`` in `into`, [len(first), len(second)]."""
    place = {tuple(row): i for i, row in enumerate(into.tolist())}
    total = (first[:, None] + second[None]).reshape(-1, into.shape[1])
    return np.array([place[tuple(row)] for row in total.tolist()]).reshape(len(first), len(second))


def _others(counts: I64) -> I64:
    """Return the classes of the other rollouts, one after another, [C, G - 1]."""
    places = np.arange(int(counts[0].sum()))
    found: I64 = (np.cumsum(counts, 1)[:, None] <= places[:, None]).sum(-1)
    return found


# --- credits ----------------------------------------------------------------------------------------------------------


def comparisons(credit: Credit, ways: Ways, group: int, policy: PolicyTables) -> tuple[Comparison, ...]:
    """Return the parts of which the advantages of `credit` are the sum.

    The credit itself is called, on groups made up for the purpose. Two are taken at a baseline that the rollouts of the
    batch do not touch, which their advantage is linear in: RunningBaseline at the expected reward (its mean once the policy
    has long stood still), GreedyBaseline at the expected reward of the greedy rollout of each kind. The steps of
    StateGroups are worked out here, from its equation.

    Raises
    ------
    ValueError
        For a credit that reads what this does not know, or too many compositions.
    """
    if isinstance(credit, RunningBaseline | GreedyBaseline):
        (plain,) = _parts(NoBaseline(), ways, group)
        return (Comparison(plain.label, plain.entry, plain.value - _baseline(credit, ways, policy)[:, None, None]),)
    return _parts(cast(Any, credit), ways, group)


def _baseline(credit: RunningBaseline | GreedyBaseline, ways: Ways, policy: PolicyTables) -> F64:
    """Return the mean of what each kind's rewards are compared with, [H]."""
    if isinstance(credit, GreedyBaseline):
        plain = ways_of(ways.graph)  # the greedy rollout's reward is not shaped
        return plain.by_kind(plain.probability(greedy(policy)) * plain.reward)
    mean = ways.graph.share @ ways.by_kind(ways.probability(policy) * ways.reward)
    return np.full(len(ways.graph.share), mean)


@lru_cache(maxsize=16)
def _parts(credit: Any, ways: Ways, group: int) -> tuple[Comparison, ...]:
    if isinstance(credit, StateGroups):
        visited = np.unique(ways.nodes[ways.nodes >= 0])
        steps = tuple(_steps(credit, ways, group, int(node)) for node in visited)
        return (*_parts(credit.episode, ways, group), *(s for s in steps if s.value.any()))
    if isinstance(credit, RewardToGo):
        return (_to_go(credit, ways, group),)
    reads = tuple(getattr(credit, "reads", ()))
    if getattr(credit, "per", "rollout") == "rollout" and not reads:
        return (_by_reward(credit, ways, group),)
    what = f"reads {', '.join(map(repr, reads))}" if reads else "tells tokens apart"
    raise ValueError(
        f"{type(credit).__name__} {what}: there is no exact sum for it; sample the gradient with sim.learning.tabular"
    )


def _by_reward(credit: Credit, ways: Ways, group: int) -> Comparison:
    """Return the one part of a credit per rollout: the classes are the rewards."""
    levels, label = np.unique(ways.reward, return_inverse=True)
    others = levels[_others(compositions(group - 1, len(levels)))]
    own = np.repeat(levels, len(others))[:, None]
    reward = np.concatenate([own, np.tile(others, (len(levels), 1))], 1)
    value = credit(Batch(reward)).value[:, 0, 0].reshape(1, len(levels), len(others))
    return Comparison(label, np.where(ways.running, label[:, None], -1), value)


def _to_go(credit: RewardToGo, ways: Ways, group: int) -> Comparison:
    """Return the one part of rewards to go: the classes are the returns from the first turn on."""
    K = ways.nodes.shape[1]
    whole = np.round(credit.gamma ** (ways.turns - 1.0) * ways.reward, 12)
    returns, first, label = np.unique(whole, return_index=True, return_inverse=True)
    pairs, which, own = np.unique(
        np.stack([ways.turns, ways.reward], 1), axis=0, return_index=True, return_inverse=True
    )
    others = first[_others(compositions(group - 1, len(returns)))]
    way = np.concatenate([np.repeat(which, len(others))[:, None], np.tile(others, (len(pairs), 1))], 1)
    value = credit(Batch(ways.reward[way], mask=ways.running[way])).value[:, 0]
    table = np.moveaxis(value.reshape(len(pairs), len(others), K), 1, 2).reshape(1, -1, len(others))
    entry = own.reshape(-1, 1) * K + np.arange(K)
    return Comparison(label, np.where(ways.running, entry, -1), table)


def _steps(credit: StateGroups, ways: Ways, group: int, node: int) -> Comparison:
    """Return omega x the advantage of the turns that begin in one node.

    The classes are the lists of discounted returns from the visits of one rollout; n_l of all the turns at the node have
    the return R_l, and A = (R - mean) / spread over them, 0 where all are equal.
    """
    left = np.maximum(ways.turns[:, None] - 1 - np.arange(ways.nodes.shape[1]), 0)
    to_go = np.round(credit.gamma**left * ways.reward[:, None], 12)
    here = ways.nodes == node
    levels = np.unique(to_go[here])
    level = np.searchsorted(levels, np.where(here, to_go, levels[0]))
    L = len(levels)
    visits = (here[..., None] & (level[..., None] == np.arange(L))).sum(1)  # [M, L]
    kinds_of_visit, label = np.unique(visits, axis=0, return_inverse=True)
    counts = compositions(group - 1, len(kinds_of_visit)) @ kinds_of_visit + kinds_of_visit[:, None]  # [X, C, L]
    value = credit.omega * _standing(levels, counts, credit.std, credit.ddof)
    label = label.reshape(-1)
    entry = np.where(here, label[:, None] * L + level, -1)
    return Comparison(label, entry, np.swapaxes(value, 1, 2).reshape(1, -1, value.shape[1]))


def _standing(levels: F64, counts: I64, std: bool, ddof: int) -> F64:
    """Return (R_l - mean) / spread among returns R_l of which there are counts [..., L], [..., L]."""
    total = np.maximum(counts.sum(-1, keepdims=True), 1)
    centred = levels - (counts * levels).sum(-1, keepdims=True) / total
    alike = (counts > 0).sum(-1, keepdims=True) <= 1
    spread = np.ones_like(centred[..., :1])
    if std:
        spread = np.sqrt((counts * centred**2).sum(-1, keepdims=True) / np.maximum(total - ddof, 1))
    return np.where(alike, 0.0, centred / np.where(alike, 1.0, spread))
