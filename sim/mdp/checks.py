"""What makes a tool graph playable; each refusal names the node, the number and the way out."""

import math

import networkx as nx

from sim.mdp.graph import Action, GraphError, State, ToolGraph
from sim.records.config import near_misses

__all__ = ["check"]

_TOLERANCE = 1e-9  # of a sum of probabilities: a few thousand roundings of float64


def check(g: ToolGraph) -> None:
    """Refuse a graph that no episode could be played on.

    Raises
    ------
    GraphError
        See :class:`~sim.mdp.graph.ToolGraph`.
    """
    _check_shares(g)
    _check_nodes(g)
    for state in g.states:
        _check_state(g, state)
    _check_contexts(g)
    _check_reachable(g)


def _check_shares(g: ToolGraph) -> None:
    for name, share in g.kinds:
        if not 0 <= share <= 1:  # NaN fails this too
            raise GraphError(f"{g.name}: kind {name!r} has share {share}; a share lies in [0, 1]")
    total = math.fsum(share for _, share in g.kinds)
    if abs(total - 1) > _TOLERANCE:
        raise GraphError(f"{g.name}: the shares of the kinds sum to {total:.12g}, not 1")
    if len(g.initial) != len(g.kinds):
        raise GraphError(f"{g.name}: {len(g.initial)} initial states for {len(g.kinds)} kinds; name one for each kind")
    if g.turn_limit < 1:
        raise GraphError(f"{g.name}: turn limit {g.turn_limit}; an episode needs at least 1 turn")
    if not math.isfinite(g.turn_limit_reward):
        shown = "NaN" if math.isnan(g.turn_limit_reward) else g.turn_limit_reward
        raise GraphError(f"{g.name}: the reward at the turn limit is {shown}; it must be finite")


def _check_nodes(g: ToolGraph) -> None:
    names = [s.name for s in g.states] + [t.name for t in g.terminals]
    twice = {n for n in names if names.count(n) > 1}
    if twice:
        raise GraphError(f"{g.name}: node {min(twice)!r} is defined {names.count(min(twice))} times")
    for terminal in g.terminals:
        if math.isnan(terminal.reward) or math.isinf(terminal.reward):
            raise GraphError(f"{g.name}: terminal {terminal.name!r} has reward {terminal.reward}; it must be finite")
    state_names = [s.name for s in g.states]
    for name in g.initial:
        if name not in state_names:
            raise GraphError(f"{g.name}: initial state {name!r} does not exist{near_misses(name, state_names)}")


def _check_state(g: ToolGraph, state: State) -> None:
    where = f"{g.name}: state {state.name!r}"
    if not state.actions:
        raise GraphError(
            f"{where} is a dead end: it offers 0 actions and is no terminal; give it one or make it terminal"
        )
    nodes = [s.name for s in g.states] + [t.name for t in g.terminals]
    offered = [a.name for a in state.actions]
    if len(set(offered)) < len(offered):
        raise GraphError(f"{where} offers an action twice: {', '.join(offered)}")
    for action in state.actions:
        here = f"{where}, action {action.name!r}"
        if action.name not in g.actions:
            raise GraphError(f"{here} is unknown{near_misses(action.name, g.actions)}")
        if action.latency.problem():
            raise GraphError(f"{here}: {action.latency.problem()}")
        if action.generated_tokens < 1:
            raise GraphError(f"{here} generates {action.generated_tokens} tokens; an action takes at least 1")
        _check_outcomes(g, here, action, nodes)


def _check_outcomes(g: ToolGraph, here: str, action: Action, nodes: list[str]) -> None:
    columns = []
    for outcome in action.outcomes:
        if outcome.to not in nodes:
            raise GraphError(f"{here} leads to {outcome.to!r}, which does not exist{near_misses(outcome.to, nodes)}")
        if outcome.observed_tokens < 0:
            raise GraphError(f"{here} -> {outcome.to!r} observes {outcome.observed_tokens} tokens; the least is 0")
        column = g.per_kind(outcome.probability)
        if len(column) != len(g.kinds):
            raise GraphError(f"{here} -> {outcome.to!r} has {len(column)} probabilities for {len(g.kinds)} kinds")
        for (kind, _), p in zip(g.kinds, column, strict=True):
            if not 0 <= p <= 1:
                raise GraphError(
                    f"{here} -> {outcome.to!r} has probability {p} for kind {kind!r}; it must lie in [0, 1]"
                )
        columns.append(column)
    for i, (kind, _) in enumerate(g.kinds):
        total = math.fsum(column[i] for column in columns)
        if abs(total - 1) > _TOLERANCE:
            raise GraphError(f"{here}: the probabilities sum to {total:.12g} for kind {kind!r}, not 1")


def _check_contexts(g: ToolGraph) -> None:
    first: dict[str, State] = {}
    for state in g.states:
        twin = first.setdefault(state.context, state)
        here, there = [a.name for a in state.actions], [a.name for a in twin.actions]
        if here != there:
            raise GraphError(
                f"{g.name}: context {state.context!r} offers {there} in state {twin.name!r} but {here} in {state.name!r}; "
                "the agent cannot tell them apart, so give them one list or two contexts"
            )


def _check_reachable(g: ToolGraph) -> None:
    possible = nx.DiGraph()
    possible.add_nodes_from(g.initial)
    for state in g.states:
        for action in state.actions:
            possible.add_edges_from((state.name, o.to) for o in action.outcomes if max(g.per_kind(o.probability)) > 0)
    reached = set(g.initial).union(*(nx.descendants(possible, name) for name in sorted(set(g.initial))))
    for state in g.states:
        if state.name not in reached:
            raise GraphError(
                f"{g.name}: state {state.name!r} (context {state.context!r}) is unreachable: 0 paths of positive "
                f"probability lead to it from {', '.join(sorted(set(g.initial)))}"
            )
