"""Exact return, visitation and policy gradient of a tool graph by enumeration of what can happen turn by turn.

Recursions over (turn, kind, node), so the cost grows with the turn limit and not with the number of trajectories.
:func:`trajectories` lists them one by one, for small graphs and for quantities that need a whole trajectory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import PolicyTables, tables

__all__ = [
    "Occupancy",
    "Trajectory",
    "expected_return",
    "occupancy",
    "policy_gradient",
    "return_function",
    "trajectories",
    "values",
]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Occupancy:
    """Where episodes are, turn by turn, under one policy."""

    state: F64
    """P(node before turn t | kind), [K + 1, H, N]; the last row is where episodes end."""
    decision: F64
    """P(context c and action a at turn t), averaged over kinds, [K, C, A]."""
    solved: F64
    """P(solved by the end of turn t), averaged over kinds, [K]."""

    def action_share(self, action: int) -> F64:
        """Return P(the turn takes place and takes `action`), [K]: the share of all episodes, finished ones included."""
        return self.decision[:, :, action].sum(1)


def _node_policy(graph: CompiledGraph, policy: PolicyTables) -> F64:
    """Return pi(a | node), [N, A]; terminals take action 0, which leaves them where they are."""
    node = policy.probability[np.maximum(graph.context, 0)]
    idle = np.zeros(len(graph.actions))
    idle[0] = 1.0
    return np.where(graph.context[:, None] >= 0, node, idle)


def _members(graph: CompiledGraph) -> F64:
    """Return 1 where a state belongs to a context, [states, C]."""
    return np.eye(len(graph.contexts))[graph.context[: graph.states]]


def _kernel(graph: CompiledGraph) -> F64:
    """Return P(next node | kind, node, action), [H, N, A, N]."""
    H, N, A, O = graph.probability.shape
    kernel = np.zeros((H, N, A, N))
    n, a = np.indices((N, A))
    for o in range(O):
        kernel[:, n, a, graph.target[..., o]] += graph.probability[..., o]
    return kernel


def occupancy(graph: CompiledGraph, policy: PolicyTables) -> Occupancy:
    """Return the exact visitation of `policy` (one policy: tables [C, A])."""
    pi, kernel = _node_policy(graph, policy), _kernel(graph)
    step = np.einsum("na,hnam->hnm", pi, kernel)
    H, N = len(graph.share), len(graph.context)
    state = np.zeros((graph.turns + 1, H, N))
    state[0, np.arange(H), graph.initial] = 1.0
    for t in range(graph.turns):
        state[t + 1] = np.einsum("hn,hnm->hm", state[t], step)
    S = graph.states
    here = np.einsum("h,thn->tn", graph.share, state[:-1])[:, :S]
    decision = np.einsum("nc,tn,na->tca", _members(graph), here, pi[:S])
    solved = np.einsum("h,thn,n->t", graph.share, state[1:], graph.solved.astype(float))
    return Occupancy(state, decision, solved)


def values(graph: CompiledGraph, policy: PolicyTables) -> tuple[F64, F64]:
    """Return V [K + 1, H, N] and Q [K, H, N, A]: expected reward from a node before turn t, and after an action."""
    pi, kernel = _node_policy(graph, policy), _kernel(graph)
    V = np.zeros((graph.turns + 1, len(graph.share), len(graph.context)))
    Q = np.zeros((graph.turns, *V.shape[1:], len(graph.actions)))
    V[-1] = graph.reward
    for t in reversed(range(graph.turns)):
        Q[t] = np.einsum("hnam,hm->hna", kernel, V[t + 1])
        V[t] = np.einsum("na,hna->hn", pi, Q[t])
    return V, Q


def expected_return(graph: CompiledGraph, policy: PolicyTables) -> float:
    """Return J, the expected reward of an episode."""
    return float(graph.share @ values(graph, policy)[0][0, np.arange(len(graph.share)), graph.initial])


def policy_gradient(graph: CompiledGraph, policy: PolicyTables) -> F64:
    """Return dJ/dz, [D] = sum_t sum_h share_h sum_n d_t(n | h) pi(a | n) (Q_t - V_t): the policy gradient theorem.

    Source: Sutton, McAllester, Singh and Mansour, "Policy gradient methods for reinforcement learning with function
    approximation" (NeurIPS 1999).
    """
    V, Q = values(graph, policy)
    pi = _node_policy(graph, policy)
    where = occupancy(graph, policy).state[:-1]
    S = graph.states
    advantage = (Q - V[:-1, ..., None])[:, :, :S]
    per_node = np.einsum("h,thn,na,thna->na", graph.share, where[..., :S], pi[:S], advantage)
    by_context = _members(graph).T @ per_node
    return by_context[graph.free_context, graph.free_action]


@dataclass(frozen=True)
class Trajectory:
    """One way an episode can go."""

    kind: int
    """Kind of the question."""
    nodes: tuple[int, ...]
    """Nodes visited, the last one where it ends."""
    actions: tuple[int, ...]
    """Actions taken, one per turn."""
    probability: float
    """Probability given the kind."""
    reward: float
    """Reward of the episode."""

    @property
    def turns(self) -> int:
        """Number of turns taken."""
        return len(self.actions)


def trajectories(graph: CompiledGraph, policy: PolicyTables) -> list[Trajectory]:
    """Return every trajectory of positive probability, kind by kind; probabilities sum to 1 within a kind."""
    return [t for kind in range(len(graph.share)) for t in _walk(graph, policy, kind)]


def _walk(graph: CompiledGraph, policy: PolicyTables, kind: int) -> Iterator[Trajectory]:
    stack: list[tuple[tuple[int, ...], tuple[int, ...], float]] = [((int(graph.initial[kind]),), (), 1.0)]
    while stack:
        nodes, taken, p = stack.pop()
        here = nodes[-1]
        if here >= graph.states or len(taken) == graph.turns:
            yield Trajectory(kind, nodes, taken, p, float(graph.reward[here]))
            continue
        for a in np.flatnonzero(graph.offered[graph.context[here]]):
            p_action = float(policy.probability[graph.context[here], a])
            for o, q in enumerate(graph.probability[kind, here, a]):
                if p_action * q > 0:
                    stack.append(((*nodes, int(graph.target[here, a, o])), (*taken, int(a)), p * p_action * float(q)))


def return_function(graph: CompiledGraph) -> Callable[[F64], F64]:
    """Return J as a function of free logits [..., D], for many policies at once; what it gives is [...].

    J = sum over m of gain_m prod over (c, a) of pi(a | c)^n_m(c, a): trajectories that take the same decisions equally often
    are one term, and its gain is P(environment) x reward, added up over them and averaged over kinds.
    """
    even = tables(graph, np.zeros(len(graph.free_names)))
    taken, gains = [], []
    for t in trajectories(graph, even):
        counts = np.zeros(even.probability.shape)
        np.add.at(counts, (graph.context[list(t.nodes[:-1])], np.array(t.actions)), 1)
        taken.append(counts.ravel())
        gains.append(graph.share[t.kind] * t.probability * t.reward / np.exp((counts * even.log_probability).sum()))
    decisions, which = np.unique(np.array(taken), axis=0, return_inverse=True)
    gain = np.bincount(which.ravel(), gains)

    def returns(z: F64) -> F64:
        log_pi = tables(graph, z).log_probability
        found: F64 = np.exp(log_pi.reshape(*z.shape[:-1], -1) @ decisions.T) @ gain
        return found

    return returns
