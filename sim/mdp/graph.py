"""`ToolGraph`: an agent's task as a graph of decisions, tool calls and what comes back.

Nodes are *states* of the episode (what is true) and *terminals* (how it ends). A policy does not see the state but its
*context*: states that look alike to the agent, such as "a document is in hand" whether or not it holds the answer, share
one. An edge is an outcome of an action. Its probability may depend on the *kind* of question (known beforehand, hard to
retrieve, ...), which is drawn once per question and never shown.

The graph is a networkx ``MultiDiGraph``, checked once when it is built. The simulator runs on the arrays of
:mod:`sim.mdp.compiled`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any

import networkx as nx

from sim.mdp import latency as laws
from sim.records.config import near_misses

if TYPE_CHECKING:
    from sim.mdp.compiled import CompiledGraph

__all__ = ["Action", "GraphError", "Outcome", "State", "Terminal", "ToolGraph"]

_LAWS: dict[str, Any] = {
    law.__name__: law
    for law in (
        laws.Capped,
        laws.CappedPareto,
        laws.Constant,
        laws.Empirical,
        laws.Exponential,
        laws.LogNormal,
        laws.Mixture,
    )
}


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
        from sim.mdp.checks import check  # it needs this module

        check(self)

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
                body["latency"] = _law_data(action.latency)
        return json.dumps(data, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "ToolGraph":
        """Build a graph from :meth:`to_json`'s text, checked like any other.

        Raises
        ------
        GraphError
            When the text is not such a graph; the message says where.
        """
        try:
            data = json.loads(text)
            return cls(
                name=data["name"],
                kinds=_kinds(data["kinds"]),
                initial=tuple(data["initial"]),
                states=tuple(_state(s) for s in data["states"]),
                terminals=tuple(Terminal(**t) for t in data["terminals"]),
                actions=tuple(data["actions"]),
                turn_limit=data["turn_limit"],
                turn_limit_reward=data["turn_limit_reward"],
            )
        except KeyError as error:
            raise GraphError(f"not a tool graph: the key {error} is missing; write one with to_json()") from None
        except (TypeError, ValueError) as error:
            if isinstance(error, GraphError):
                raise
            raise GraphError(f"not a tool graph: {error}; write one with to_json()") from None


def _kinds(data: Sequence[Sequence[Any]]) -> tuple[tuple[str, float], ...]:
    for kind in data:
        if len(kind) != 2:
            raise GraphError(f"not a tool graph: kinds holds {kind}, which is no pair of name and share")
    return tuple((name, share) for name, share in data)


def _state(data: Mapping[str, Any]) -> State:
    return State(data["name"], data["context"], tuple(_action(a) for a in data["actions"]))


def _action(data: Mapping[str, Any]) -> Action:
    outcomes = tuple(Outcome(o["to"], _probability(o["probability"]), o["observed_tokens"]) for o in data["outcomes"])
    latency = _law(dict(data["latency"]), data["name"])
    return Action(data["name"], outcomes, data["generated_tokens"], latency, data["evidence"])


def _law_data(value: Any) -> Any:
    """Return a law, or what stands in a field of one, as JSON data; laws nest."""
    if isinstance(value, laws.Latency):
        return {"law": type(value).__name__, **{f.name: _law_data(getattr(value, f.name)) for f in fields(value)}}  # type: ignore[arg-type]
    return [_law_data(item) for item in value] if isinstance(value, tuple) else value


def _law(data: Any, action: str) -> Any:
    """Build what :func:`_law_data` wrote."""
    if isinstance(data, list):
        return tuple(_law(item, action) for item in data)
    if not isinstance(data, Mapping):
        return data
    name = data["law"]
    if name not in _LAWS:
        raise GraphError(f"action {action!r}: unknown latency law {name!r}{near_misses(name, _LAWS)}")
    return _LAWS[name](**{key: _law(item, action) for key, item in data.items() if key != "law"})


def _probability(p: float | list[float]) -> float | tuple[float, ...]:
    return tuple(p) if isinstance(p, list) else p
