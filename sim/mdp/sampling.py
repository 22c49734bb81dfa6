"""Rollouts of a block of policies on a tool graph, from indexed uniforms.

One turn costs two uniforms, one for the action and one for what comes back, whether or not the episode is still running:
arms whose episodes end at different turns keep using the same numbers. Arrays are turn-major in memory, [K, S, G, Q] (so
that sums over a group run along the questions, which is what a processor does well), and are shown as the record's
[S, Q, G, K].

A *place* is node * H + kind, a *choice* is place * A + action; seed s of a block counts its places and choices from s
times their number on, so that one table serves all seeds. Terminals come after the states, so an episode is running
exactly if its place is below states * H (within its seed).
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sim.mdp.compiled import CompiledGraph

__all__ = ["Decisions", "Sample", "Sampler"]

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Index = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Sample:
    """One batch of rollouts for each of S seeds; N = G * Q."""

    place: Index
    """Place before each turn and at the end, [K + 1, S, N]."""
    choice: Index
    """Choice at each turn, [K, S, N]; once the episode is over, action 0 at the terminal."""
    reward: F64
    """Reward, [S, Q, G]."""
    kind: Index
    """Kind of each question, [S, Q]."""


@dataclass(frozen=True, eq=False)
class Decisions:
    """Which decision of the policy each choice is, and sums over the choices that are one decision."""

    code: Index
    """context * A + action while the episode is running; C * A once solved, C * A + 1 once over otherwise; [choices]."""
    size: int
    """C * A + 2."""

    def __post_init__(self) -> None:
        order = np.argsort(self.code, kind="stable")
        object.__setattr__(self, "_order", order)
        object.__setattr__(self, "_runs", np.unique(self.code[order], return_index=True))

    @property
    def choices(self) -> int:
        """Number of choices."""
        return len(self.code)

    def sum(self, by_choice: F64) -> F64:
        """Return the sums by decision, [..., size], of values by choice, [..., choices].

        Not a matrix product: that may add in another order for another number of rows, and a seed must give the same
        bits in any block.
        """
        order, (present, first) = self._order, self._runs  # type: ignore[attr-defined]
        found = np.zeros((*by_choice.shape[:-1], self.size))
        found[..., present] = np.add.reduceat(by_choice[..., order], first, axis=-1)
        return found


class Sampler:
    """Draws rollouts; tables of the graph are laid out once."""

    def __init__(self, graph: CompiledGraph) -> None:
        H, N, A, O = graph.probability.shape
        self.graph = graph
        self.kinds_of_question = H
        self._outcomes = O
        self._share = np.cumsum(graph.share)[:-1].astype(np.float32)
        self._start = graph.initial * H + np.arange(H)
        # P(outcome <= o) for o < O - 1 by choice, [O - 1, N * H * A]; the last threshold is 1 and needs no comparison.
        cumulative = np.cumsum(graph.probability.transpose(1, 0, 2, 3), -1)[..., :-1]
        self._outcome = np.ascontiguousarray(
            np.moveaxis(cumulative, -1, 0).reshape(O - 1, N * H * A).astype(np.float32)
        )
        target = np.broadcast_to(graph.target[:, None], (N, H, A, O))
        self._next = (target * H + np.arange(H)[:, None, None]).reshape(-1)
        self._reward = np.repeat(graph.reward, H)
        self._solved = np.repeat(graph.solved, H)
        self._block: tuple[Index, F32, Index] = np.empty((0, 1), np.intp), self._outcome, self._next
        self._context = np.repeat(np.where(graph.context >= 0, graph.context, len(graph.contexts)), H)

    @property
    def running_below(self) -> int:
        """Places below this number are states: states * H."""
        return self.graph.states * self.kinds_of_question

    @cached_property
    def decisions(self) -> "Decisions":
        """What each choice is to the policy."""
        C, A = self.graph.offered.shape
        over = C * A + ~self._solved
        code = np.where(self._context[:, None] < C, self._context[:, None] * A + np.arange(A), over[:, None])
        return Decisions(code.reshape(-1), C * A + 2)

    def kinds(self, uniform: F32) -> Index:
        """Return the kind of each question from one uniform each, [S, Q]."""
        return np.searchsorted(self._share, uniform, side="right")

    def __call__(self, probability: F64, kind: Index, uniform: F32) -> Sample:
        """Return rollouts of policies `probability` [S, C, A] for questions `kind` [S, Q] and uniforms [S, K, 2, G, Q]."""
        S, K, _, G, Q = uniform.shape
        A, N = len(self.graph.actions), Q * G
        u = uniform.reshape(S, K, 2, N)
        thresholds = self._action_thresholds(probability)
        first, outcomes, following = self._of_block(S)
        place, choice = np.empty((K + 1, S, N), np.intp), np.empty((K, S, N), np.intp)
        place[0] = np.tile(self._start[kind] + first, (1, G))
        for t in range(K):
            code = np.multiply(place[t], A, out=choice[t])
            for threshold in thresholds:
                code += u[:, t, 0] >= threshold.take(place[t])
            outcome = code * self._outcomes
            for threshold in outcomes:
                outcome += u[:, t, 1] >= threshold.take(code)
            following.take(outcome, out=place[t + 1], mode="clip")
        return Sample(place, choice, self._grouped(self._reward.take(place[K] - first), G, Q), kind)

    def _of_block(self, seeds: int) -> tuple[Index, F32, Index]:
        """Return the first place of each seed, [S, 1], and the outcome tables repeated for every seed."""
        if len(self._block[0]) != seeds:
            first = (np.arange(seeds) * len(self._context))[:, None]
            following = (first[:, :, None] + self._next.reshape(-1, self._outcomes)).reshape(-1)
            self._block = first, np.tile(self._outcome, seeds), following
        return self._block

    @staticmethod
    def _grouped(x: F64, G: int, Q: int) -> F64:
        """Return [S, G * Q] as [S, Q, G], laid out with the group first: sums over a group then run along all questions."""
        return np.ascontiguousarray(x.reshape(-1, G, Q).transpose(1, 0, 2)).transpose(1, 2, 0)

    def _action_thresholds(self, probability: F64) -> F32:
        """Return P(action <= a) by place, [A - 1, S * N * H]."""
        S, C, A = probability.shape
        cumulative = np.ones((S, C + 1, A - 1), np.float32)
        cumulative[:, :C] = np.minimum(np.cumsum(probability, -1)[..., :-1], 1.0)
        by_place = cumulative[:, self._context]
        return np.ascontiguousarray(np.moveaxis(by_place, -1, 0).reshape(A - 1, S * len(self._context)))

    def running(self, sample: Sample) -> NDArray[np.bool_]:
        """Return whether a turn takes place, [K, S, N]."""
        first, _, _ = self._of_block(sample.place.shape[1])
        return sample.place[:-1] < first + self.running_below

    def nodes(self, sample: Sample) -> Index:
        """Return the node before each turn and at the end, [K + 1, S, N]."""
        first, _, _ = self._of_block(sample.place.shape[1])
        return (sample.place - first) // self.kinds_of_question

    def actions(self, sample: Sample) -> Index:
        """Return the action of each turn, [K, S, N]; 0 once the episode is over."""
        return sample.choice % len(self.graph.actions)

    def solved_at_end(self, sample: Sample) -> NDArray[np.bool_]:
        """Return whether each rollout ended solved, [S, N]."""
        first, _, _ = self._of_block(sample.place.shape[1])
        return self._solved.take(sample.place[-1] - first)

    def solved(self, sample: Sample) -> NDArray[np.bool_]:
        """Return whether each rollout is solved by the end of each turn, [K, S, N]."""
        first, _, _ = self._of_block(sample.place.shape[1])
        return self._solved.take(sample.place[1:] - first)
