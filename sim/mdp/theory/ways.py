"""Every way a rollout can go, as arrays: what the exact sums of this package run over."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import PolicyTables

__all__ = ["Unit", "Ways", "ways_of"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Unit = Literal["turn", "token"]
"""What lengths count: turns, or the tokens that the actions generate."""


@dataclass(frozen=True, eq=False)
class Ways:
    """All M ways of a graph; K is its turn limit. Nothing here depends on the policy.

    The same ways as :func:`sim.mdp.exact.trajectories`, in another order.
    """

    graph: CompiledGraph
    """The task."""
    kind: I64
    """Kind of the question, [M]."""
    chance: F64
    """P(what the environment does | kind, the actions), [M]."""
    nodes: I64
    """Node each turn begins in, [M, K]; -1 after the end."""
    actions: I64
    """Action of each turn, [M, K]; 0 after the end."""
    reward: F64
    """Reward of the episode, [M]."""

    @property
    def running(self) -> NDArray[np.bool_]:
        """Which turns take place, [M, K]."""
        return self.nodes >= 0

    @property
    def turns(self) -> I64:
        """Number of turns, [M]."""
        return self.running.sum(-1)

    @property
    def contexts(self) -> I64:
        """Context of each turn, [M, K]; 0 after the end."""
        return np.maximum(self.graph.context[self.nodes], 0)

    def lengths(self, unit: Unit = "turn") -> I64:
        """Return the length of each turn, in turns or in generated tokens, [M, K]; 0 after the end."""
        each = 1 if unit == "turn" else self.graph.generated[self.nodes, self.actions]
        return np.where(self.running, each, 0)

    def along(self, table: F64) -> F64:
        """Return the entry of a table [C, A] that each turn reads, [M, K]; 0 after the end."""
        return np.where(self.running, table[self.contexts, self.actions], 0.0)

    def scores(self, policy: PolicyTables) -> F64:
        """Return d log pi / dz of each turn with respect to the free logits, [M, K, D]; 0 after the end."""
        g = self.graph
        here = self.running[..., None] & (self.contexts[..., None] == g.free_context)
        chosen = self.actions[..., None] == g.free_action
        found: F64 = here * (chosen - policy.probability[g.free_context, g.free_action])
        return found

    def probability(self, policy: PolicyTables) -> F64:
        """Return P(way | kind) under one policy, [M]; it sums to 1 over the ways of a kind."""
        taken = policy.probability[self.contexts, self.actions]
        found: F64 = self.chance * np.where(self.running, taken, 1.0).prod(-1)
        return found

    def by_kind(self, values: F64) -> F64:
        """Return the sum of `values` [M] over the ways of each kind, [H]."""
        return cast(F64, np.bincount(self.kind, values, len(self.graph.share)))

    def by_decision(self, values: F64) -> F64:
        """Return the sum of `values` [M, K] over the turns that take each action in each context, [C, A]."""
        C, A = self.graph.offered.shape
        place, on = self.contexts * A + self.actions, self.running
        return cast(F64, np.bincount(place[on], values[on], C * A)).reshape(C, A)


@lru_cache(maxsize=64)
def ways_of(graph: CompiledGraph) -> Ways:
    """Return the ways of `graph`, found turn by turn; what the environment never does is left out."""
    H, K = len(graph.share), graph.turns
    kind, here, chance = np.arange(H, dtype=np.int64), graph.initial, np.ones(H)
    past = np.zeros((H, 0, 2), np.int64)  # (node, action) of the turns so far
    done: list[tuple[I64, F64, I64, I64]] = []
    for turn in range(K + 1):
        over = (here >= graph.states) | (turn == K)
        blank = np.tile(np.array([-1, 0]), (int(over.sum()), K - turn, 1))
        done.append((kind[over], chance[over], np.concatenate([past[over], blank], 1), here[over]))
        kind, chance, past, here = kind[~over], chance[~over], past[~over], here[~over]
        if turn == K:
            break
        odds = graph.probability[kind, here] * graph.offered[graph.context[here]][:, :, None]
        i, action, outcome = np.nonzero(odds)
        taken = np.stack([here[i], action], -1)[:, None]
        kind, chance, past = kind[i], chance[i] * odds[i, action, outcome], np.concatenate([past[i], taken], 1)
        here = graph.target[here[i], action, outcome]
    kinds, chances, steps, ends = (np.concatenate(x) for x in zip(*done, strict=True))
    return Ways(graph, kinds, chances, steps[..., 0], steps[..., 1], graph.reward[ends])
