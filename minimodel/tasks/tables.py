"""The tool graph as the environment looks it up: what an action may be written as, and where it leads.

Sizes: H kinds, N nodes, C contexts, A actions. Every table has one more action, the last, so that -1 is a turn that says
nothing valid: it leads nowhere and takes no time.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minimodel.model.vocabulary import ANSWER, END, READ, SEARCH, VERIFY, Vocabulary
from minimodel.tasks.structure import node_places
from sim.mdp.building import Place
from sim.mdp.compiled import CompiledGraph
from sim.mdp.latency import Constant, Latency
from sim.mdp.worlds import World

__all__ = ["Grammar", "Moves", "grammar", "moves"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]

_OTHER, _ENTITY, _RELATION, _ANSWER, _END, _NEVER = range(6)  # classes of words, as far as grammar goes
_ARGUMENTS = {SEARCH: (_ENTITY, _RELATION), ANSWER: (_ANSWER, _END), READ: (_END, _END), VERIFY: (_ANSWER, _END)}


@dataclass(frozen=True, eq=False)
class Grammar:
    """What may be written."""

    decision: I64
    """Decision token of each action, [A + 1]; -1 for none."""
    action: I64
    """Action a token decides for, [V]; -1 for none."""
    word: I64
    """Class of each token, [V]."""
    arguments: I64
    """Class that each action's two arguments must have, [A + 1, 2]."""
    offered: Flags
    """Whether a context offers an action, [C, A + 1]."""

    def actions(self, context: I64, said: I64) -> I64:
        """Return the action that `said` [R, 3] (decision, arguments) stands for in `context` [R]; -1 for none."""
        action = self.action[said[:, 0]]
        wanted = self.arguments[action]
        fits = (self.word[said[:, 1]] == wanted[:, 0]) & (self.word[said[:, 2]] == wanted[:, 1])
        return np.where(fits & self.offered[context, action], action, -1)


def grammar(graph: CompiledGraph, vocabulary: Vocabulary) -> Grammar:
    """Return the grammar of a graph's actions in these words."""
    v, A = vocabulary, len(graph.actions)
    tokens = [v.decision(name) for name in graph.actions]
    action, word = np.full(v.size, -1), np.full(v.size, _OTHER)
    action[tokens] = np.arange(A)
    word[v.first_entity : v.first_relation] = _ENTITY
    word[v.first_relation : v.first_answer] = _RELATION
    word[v.first_answer :] = _ANSWER
    word[END] = _END
    return Grammar(
        decision=np.array([*tokens, -1]),
        action=action,
        word=word,
        arguments=np.array([*(_ARGUMENTS[token] for token in tokens), (_NEVER, _NEVER)]),
        offered=np.pad(graph.offered, ((0, 0), (0, 1))),
    )


@dataclass(frozen=True, eq=False)
class Moves:
    """Where actions lead. An action *works* when it hits, is passed, or is right."""

    works: F64
    """P(the action works | kind, node), [H, N, A + 1]."""
    after: I64
    """Node it leads to, [N, A + 1, 2]: the last axis says whether it worked."""
    twin: I64
    """Node that differs in whether the evidence in hand is right, [N, 2]; the node itself where there is none."""
    observed: I64
    """What the world says the observation costs, tokens, [N, A + 1]."""
    law: I64
    """Number of the latency law, [N, A + 1]."""
    laws: tuple[Latency, ...]
    """The laws; the first takes no time."""


def moves(graph: CompiledGraph, world: World) -> Moves:
    """Return the moves on the graph of `world` that :func:`~minimodel.tasks.structure.compiled` gives."""
    N, A = graph.generated.shape
    places = node_places(world)
    twin = _twins(places, N)
    working = np.array([_worked(place) for place in places] + list(graph.solved[len(places) :]))
    works = np.einsum("hnao,nao->hna", graph.probability, working[graph.target].astype(float))
    after = np.full((N, A + 1, 2), -1)
    after[:, -1] = np.arange(N)[:, None]
    for n, state in enumerate(graph.source.states):
        for action in state.actions:
            a = graph.actions.index(action.name)
            targets = graph.target[n, a, : len(action.outcomes)]
            after[n, a, working[targets].astype(int)] = targets
    # A right document is never answered wrongly in the graph, nor a wrong one rightly: the twin knows where that leads.
    for n, pair in enumerate(twin):
        gap = after[n] < 0
        after[n][gap] = after[pair].max(0)[gap]
    law, laws = _laws(graph, A)
    return Moves(
        np.pad(works, ((0, 0), (0, 0), (0, 1))),
        after,
        twin,
        np.pad(graph.observed.max(-1), ((0, 0), (0, 1))),
        law,
        laws,
    )


def _worked(place: Place) -> bool:
    return place.at == "passed" or (place.at in {"fresh", "read"} and place.hit)


def _twins(places: tuple[Place, ...], N: int) -> I64:
    number = {place: n for n, place in enumerate(places)}
    twin = np.tile(np.arange(N)[:, None], 2)
    for n, place in enumerate(places):
        if place.at not in {"start", "failed"}:  # nothing is in hand there
            twin[n] = [number[place._replace(hit=hit)] for hit in (False, True)]
    return twin


def _laws(graph: CompiledGraph, A: int) -> tuple[I64, tuple[Latency, ...]]:
    laws: list[Latency] = [Constant(0.0)]
    law = np.zeros((len(graph.context), A + 1), np.int64)
    for n, state in enumerate(graph.source.states):
        for action in state.actions:
            if action.latency not in laws:
                laws.append(action.latency)
            law[n, graph.actions.index(action.name)] = laws.index(action.latency)
    return law, tuple(laws)
