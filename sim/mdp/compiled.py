"""A tool graph as dense arrays, for enumeration and for the simulator's fast loop.

Sizes: H kinds, N nodes (states first, then terminals), C contexts, A actions, O outcomes (padded), D free logits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.mdp.graph import ToolGraph

__all__ = ["CompiledGraph", "compile_graph"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """See the module for the sizes."""

    source: ToolGraph
    """The graph this was made from."""
    share: F64
    """Share of each kind, [H]."""
    initial: I64
    """Node each kind starts in, [H]."""
    context: I64
    """Context of each node, [N]; -1 for terminals."""
    offered: NDArray[np.bool_]
    """Whether a context offers an action, [C, A]."""
    reference: I64
    """The action of each context whose logit is fixed at 0, [C]."""
    probability: F64
    """P(outcome | kind, node, action), [H, N, A, O]; terminals and actions not offered stay put."""
    target: I64
    """Node an outcome leads to, [N, A, O]."""
    generated: I64
    """Tokens generated, [N, A]."""
    observed: I64
    """Tokens observed, [N, A, O]."""
    latency_s: F64
    """Mean latency of an action, [N, A], s."""
    evidence: NDArray[np.bool_]
    """Whether the action brings evidence, [N, A]."""
    reward: F64
    """Reward on ending in a node, [N]: terminals their own, states the reward at the turn limit."""
    solved: NDArray[np.bool_]
    """Whether a node is a solved terminal, [N]."""
    free_context: I64
    """Context of each free logit, [D]."""
    free_action: I64
    """Action of each free logit, [D]."""

    @property
    def turns(self) -> int:
        """Turn limit K."""
        return self.source.turn_limit

    @property
    def states(self) -> int:
        """Number of states; nodes from this index on are terminals."""
        return len(self.source.states)

    @property
    def actions(self) -> tuple[str, ...]:
        """Names of the actions, [A]."""
        return self.source.actions

    @property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts, [C]."""
        return self.source.contexts

    @property
    def free_names(self) -> tuple[str, ...]:
        """Names of the free logits, [D], as ``context/action``."""
        return tuple(
            f"{self.contexts[c]}/{self.actions[a]}" for c, a in zip(self.free_context, self.free_action, strict=True)
        )


def compile_graph(graph: ToolGraph) -> CompiledGraph:
    """Return the arrays of `graph`."""
    nodes = {n: i for i, n in enumerate([s.name for s in graph.states] + [t.name for t in graph.terminals])}
    contexts = {c: i for i, c in enumerate(graph.contexts)}
    actions = {a: i for i, a in enumerate(graph.actions)}
    H, N, A = len(graph.kinds), len(nodes), len(actions)
    O = max(len(a.outcomes) for s in graph.states for a in s.actions)

    probability = np.zeros((H, N, A, O))
    probability[..., 0] = 1.0  # staying put, overwritten for what is offered
    target = np.repeat(np.arange(N), A * O).reshape(N, A, O)
    generated, observed = np.zeros((N, A), np.int64), np.zeros((N, A, O), np.int64)
    latency_s, evidence = np.zeros((N, A)), np.zeros((N, A), np.bool_)
    offered = np.zeros((len(contexts), A), np.bool_)
    reference = np.zeros(len(contexts), np.int64)
    for n, state in enumerate(graph.states):
        c = contexts[state.context]
        reference[c] = actions[state.actions[0].name]
        for action in state.actions:
            a = actions[action.name]
            offered[c, a] = True
            generated[n, a], evidence[n, a] = action.generated_tokens, action.evidence
            latency_s[n, a] = action.latency.mean_s()
            probability[:, n, a] = 0.0
            for o, outcome in enumerate(action.outcomes):
                probability[:, n, a, o] = graph.per_kind(outcome.probability)
                target[n, a, o] = nodes[outcome.to]
                observed[n, a, o] = outcome.observed_tokens
    free = [(contexts[c], actions[a]) for c in graph.contexts for a in graph.actions_in(c)[1:]]
    return CompiledGraph(
        source=graph,
        share=np.array([share for _, share in graph.kinds]),
        initial=np.array([nodes[name] for name in graph.initial]),
        context=np.array([contexts[s.context] for s in graph.states] + [-1] * len(graph.terminals)),
        offered=offered,
        reference=reference,
        probability=probability,
        target=target,
        generated=generated,
        observed=observed,
        latency_s=latency_s,
        evidence=evidence,
        reward=np.array([graph.turn_limit_reward] * len(graph.states) + [t.reward for t in graph.terminals], float),
        solved=np.array([False] * len(graph.states) + [t.solved for t in graph.terminals]),
        free_context=np.array([c for c, _ in free], np.int64),
        free_action=np.array([a for _, a in free], np.int64),
    )
