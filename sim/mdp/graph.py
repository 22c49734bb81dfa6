"""`ToolGraph`: an agent's task as a graph of decisions, tool calls and what comes back.

Nodes are *states* of the episode (what is true) and *terminals* (how it ends). A policy does not see the state but its
*context*: states that look alike to the agent, such as "a document is in hand" whether or not it holds the answer, share
one. An edge is an outcome of an action. Its probability may depend on the *kind* of question (known beforehand, hard to
retrieve, ...), which is drawn once per question and never shown.

The graph is a networkx ``MultiDiGraph``, checked once when it is built. The simulator runs on the arrays of
:mod:`sim.mdp.compiled`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import networkx as nx

from sim.mdp import latency as laws
from sim.records.config import near_misses

if TYPE_CHECKING:
    from sim.mdp.compiled import CompiledGraph

__all__ = ["Action", "GraphError", "Outcome", "State", "Terminal", "ToolGraph"]

_TOLERANCE = 1e-9  # of a sum of probabilities: a few thousand roundings of float64


class GraphError(ValueError):
    """A tool graph that no episode could be played on; the message names the node and the number."""


@dataclass(frozen=True)
class Outcome:
    """One thing that may come back from an action."""

    to: str
    """Name of the state or terminal it leads to."""
    probability: float | tuple[float, ...]
    """Probability, one for all kinds of question or one per kind."""
    observed_tokens: int = 0
    """Length of the observation, tokens."""


@dataclass(frozen=True)
class Action:
    """What the agent may do in a state, and what may come of it."""

    name: str
    """Name, one of the graph's actions."""
    outcomes: tuple[Outcome, ...]
    """What may come back; the probabilities sum to 1 for every kind."""
    generated_tokens: int = 1
    """Tokens the agent writes to act."""
    latency: laws.Latency = laws.Constant(0.0)  # noqa: RUF009  frozen
    """Time until the observation is there, beyond generation, s."""
    evidence: bool = False
    """Whether the observation tells something about the answer (search, read, verify do; a verdict "wrong" does not)."""


@dataclass(frozen=True)
class State:
    """A situation in which the agent decides."""

    name: str
    """Name, unique in the graph."""
    context: str
    """What the policy conditions on; states of one context offer the same actions in the same order."""
    actions: tuple[Action, ...]
    """What can be done here; the first is the reference whose logit is 0."""


@dataclass(frozen=True)
class Terminal:
    """A way for the episode to end."""

    name: str
    """Name, unique in the graph."""
    reward: float
    """Reward of the episode."""
    solved: bool = False
    """Whether the task counts as solved."""


@dataclass(frozen=True)
class ToolGraph:
    """A task as a graph; see the module.

    Raises
    ------
    GraphError
        For an unreachable context, a dead end, an unknown action or target, probabilities that do not sum to 1, a
        negative latency or token count, a NaN, or states of one context that offer different actions.
    """

    name: str
    """Name for figures and messages."""
    kinds: tuple[tuple[str, float], ...]
    """(name, share) of each kind of question; the shares sum to 1."""
    initial: tuple[str, ...]
    """The state each kind begins in."""
    states: tuple[State, ...]
    """Where the agent decides."""
    terminals: tuple[Terminal, ...]
    """How an episode ends by itself."""
    actions: tuple[str, ...]
    """The vocabulary of actions; its order numbers them."""
    turn_limit: int
    """Turns after which the episode is cut."""
    turn_limit_reward: float = 0.0
    """Reward of an episode that is cut."""

    def __post_init__(self) -> None:
        _check_shares(self)
        _check_nodes(self)
        for state in self.states:
            _check_state(self, state)
        _check_contexts(self)
        _check_reachable(self)

    @cached_property
    def graph(self) -> nx.MultiDiGraph:
        """The networkx graph, frozen.

        Nodes carry ``role``, and ``context`` or ``reward``; edges, keyed by action and outcome, carry ``probability``
        (one per kind), token counts, mean latency and evidence.
        """
        g = nx.MultiDiGraph(name=self.name)
        for terminal in self.terminals:
            g.add_node(terminal.name, role="terminal", reward=terminal.reward, solved=terminal.solved)
        for state in self.states:
            g.add_node(state.name, role="state", context=state.context)
        for state in self.states:
            for action in state.actions:
                for i, outcome in enumerate(action.outcomes):
                    g.add_edge(
                        state.name,
                        outcome.to,
                        key=f"{action.name}#{i}",
                        action=action.name,
                        probability=list(self.per_kind(outcome.probability)),
                        generated_tokens=action.generated_tokens,
                        observed_tokens=outcome.observed_tokens,
                        latency_s=action.latency.mean_s(),
                        evidence=action.evidence,
                    )
        return nx.freeze(g)

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        """Decision contexts, in order of first appearance."""
        return tuple(dict.fromkeys(state.context for state in self.states))

    def actions_in(self, context: str) -> tuple[str, ...]:
        """Return the actions offered in `context`, the reference first.

        Raises
        ------
        GraphError
            When there is no such context (with near misses).
        """
        for state in self.states:
            if state.context == context:
                return tuple(action.name for action in state.actions)
        raise GraphError(f"{self.name} has no context {context!r}{near_misses(context, self.contexts)}")

    def per_kind(self, probability: float | Sequence[float]) -> tuple[float, ...]:
        """Return `probability` once per kind."""
        if isinstance(probability, int | float):
            return (float(probability),) * len(self.kinds)
        return tuple(float(p) for p in probability)

    def compiled(self) -> "CompiledGraph":
        """Return the arrays the simulator runs on (made once)."""
        return self._compiled

    @cached_property
    def _compiled(self) -> "CompiledGraph":
        from sim.mdp.compiled import compile_graph

        return compile_graph(self)

    def text(self) -> str:
        """Return a drawing for the terminal."""
        from sim.mdp.drawing import text

        return text(self)

    def to_json(self) -> str:
        """Return the graph as JSON text; :meth:`from_json` gives an equal graph back."""
        data = asdict(self)
        for state, plain in zip(self.states, data["states"], strict=True):
            for action, body in zip(state.actions, plain["actions"], strict=True):
                body["latency"] = {"law": type(action.latency).__name__, **body["latency"]}
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ToolGraph":
        """Build a graph from :meth:`to_json`'s text, checked like any other.

        Raises
        ------
        GraphError
            When the text is not such a graph; the message says where.
        """
        data = json.loads(text)
        try:
            return cls(
                name=data["name"],
                kinds=tuple((name, share) for name, share in data["kinds"]),
                initial=tuple(data["initial"]),
                states=tuple(_state(s) for s in data["states"]),
                terminals=tuple(Terminal(**t) for t in data["terminals"]),
                actions=tuple(data["actions"]),
                turn_limit=data["turn_limit"],
                turn_limit_reward=data["turn_limit_reward"],
            )
        except KeyError as error:
            raise GraphError(f"not a tool graph: the key {error} is missing; write one with to_json()") from None
        except TypeError as error:
            raise GraphError(f"not a tool graph: {error}; write one with to_json()") from None


def _state(data: Mapping[str, Any]) -> State:
    return State(data["name"], data["context"], tuple(_action(a) for a in data["actions"]))


def _action(data: Mapping[str, Any]) -> Action:
    latency = dict(data["latency"])
    law = latency.pop("law")
    known = {c.__name__: c for c in (laws.Constant, laws.Exponential, laws.LogNormal)}
    if law not in known:
        raise GraphError(f"action {data['name']!r}: unknown latency law {law!r}{near_misses(law, known)}")
    outcomes = tuple(Outcome(o["to"], _probability(o["probability"]), o["observed_tokens"]) for o in data["outcomes"])
    return Action(data["name"], outcomes, data["generated_tokens"], known[law](**latency), data["evidence"])


def _probability(p: float | list[float]) -> float | tuple[float, ...]:
    return tuple(p) if isinstance(p, list) else p


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
    if math.isnan(g.turn_limit_reward):
        raise GraphError(f"{g.name}: the reward at the turn limit is NaN")


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
