"""From a world to its tool graph: every place an episode can reach, found by playing it out.

A place is what is true in an episode: where the agent stands, whether the evidence in hand holds the answer, and what has
been tried. :func:`_step` is the one definition of what can happen; the graph, and the refilling of its probabilities for
another world of the same structure, both come from it.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sim.mdp.compiled import CompiledGraph
from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph
from sim.mdp.latency import Latency, LogNormal
from sim.mdp.worlds import World

__all__ = ["Place", "graph_of", "places", "refill"]


class Place(NamedTuple):
    """State of an episode: where the agent stands and what has happened."""

    at: str  # start | fresh | read | passed | rejected | failed
    hit: bool = False  # the evidence in hand holds the answer
    guessed: bool = False  # a guess has failed
    answered: bool = False  # an answer on evidence has failed
    checked: bool = False  # verify has been used

    @property
    def name(self) -> str:
        """Where the agent stands, what is in hand, and what has happened, in words."""
        marks = [
            m for m, on in (("guessed", self.guessed), ("answered", self.answered), ("checked", self.checked)) if on
        ]
        hand = {True: " hit", False: " miss"}[self.hit] if self.at not in {"start", "failed"} else ""
        return f"{self.at}{hand}" + (f" ({', '.join(marks)})" if marks else "")


_Step = dict["Place | str", float]


@lru_cache(maxsize=64)
def places(world: World) -> tuple[Place, ...]:
    """Return the place each state of ``world.graph()`` stands for, in the order of its states."""
    return tuple(_reachable(world, _starts(world)))


def _starts(world: World) -> tuple[Place, ...]:
    return tuple(Place("start", hit=name == "known" and world.known_visible) for name, _, _ in world.kinds())


@lru_cache(maxsize=256)
def graph_of(world: World) -> ToolGraph:
    """Return the tool graph of `world` (made once)."""
    kinds = world.kinds()
    names = {place: _name(world, place) for place in places(world)}
    states = tuple(State(names[p], _context(world, p), _actions(world, p, names)) for p in names)
    actions = ("search", "answer") + ("read",) * bool(world.read_more) + ("verify",) * bool(world.verify)
    return ToolGraph(
        name="question answering with tools",
        kinds=tuple((name, share) for name, share, _ in kinds),
        initial=tuple(names[p] for p in _starts(world)),
        states=states,
        terminals=(Terminal("solved", 1.0, solved=True),) + (Terminal("wrong", 0.0),) * world.wrong_answer_ends,
        actions=actions,
        turn_limit=world.turns,
    )


def _reachable(world: World, starts: tuple[Place, ...]) -> list[Place]:
    """Return places by breadth-first search from the starts, so that the order is that of the story."""
    found = list(dict.fromkeys(starts))
    for place in found:
        for action in _offered(world, place):
            for kind in world.kinds():
                for target, p in _step(world, place, action, kind).items():
                    if isinstance(target, Place) and p > 0 and target not in found:
                        found.append(target)
    return found


def _name(world: World, place: Place) -> str:
    if place.at == "start" and world.known_visible:
        return "start known" if place.hit else "start unknown"
    return place.name


def _context(world: World, place: Place) -> str:
    if place.at == "start":
        return _name(world, place).replace(" ", "_")
    return "fresh_checked" if place.at == "fresh" and place.checked else place.at


def _offered(world: World, place: Place) -> tuple[str, ...]:
    if place.at == "start":
        return ("search", "answer") if world.may_guess else ("search",)
    if place.at == "passed" or (place.at == "fresh" and place.checked):
        return ("answer",)
    if place.at in {"fresh", "read"} and world.verify:
        more = ("read",) * bool(world.read_more and place.at == "fresh")
        return ("answer", "verify", *more)
    if place.at == "fresh" and world.read_more:
        return ("search", "answer", "read")
    return ("search", "answer")


def _actions(world: World, place: Place, names: dict[Place, str]) -> tuple[Action, ...]:
    latency: dict[str, Latency] = {
        "search": LogNormal(world.search_median_s, 0.6),
        "read": LogNormal(world.search_median_s / 4, 0.3),
        "verify": LogNormal(world.search_median_s, 0.3),
        "answer": LogNormal(0.01, 0.1),
    }
    seen = {"search": world.document_tokens, "read": world.document_tokens, "verify": 4, "answer": 4}
    built = []
    for action in _offered(world, place):
        steps = [_step(world, place, action, kind) for kind in world.kinds()]
        targets = [t for t in dict.fromkeys(t for s in steps for t in s) if max(s.get(t, 0.0) for s in steps) > 0]
        outcomes = tuple(
            Outcome(t if isinstance(t, str) else names[t], tuple(s.get(t, 0.0) for s in steps), seen[action])
            for t in targets
        )
        built.append(Action(action, outcomes, 1, latency[action], evidence=action != "answer"))
    return tuple(built)


def _step(world: World, place: Place, action: str, kind: tuple[str, float, float]) -> _Step:
    """Return P(next place or terminal | kind) after `action`."""
    name, _, first_hit = kind
    known = name == "known"
    if action == "search":
        p = _hit_rate(world, place, known, first_hit)
        return {place._replace(at="fresh", hit=True): p, place._replace(at="fresh", hit=False): 1 - p}
    if action == "read":
        assert world.read_more is not None
        p = 1.0 if place.hit else world.read_more.hit
        return {place._replace(at="read", hit=True): p, place._replace(at="read", hit=False): 1 - p}
    if action == "verify":
        assert world.verify is not None
        p = world.verify.sensitivity if place.hit else 1 - world.verify.specificity
        return {place._replace(at="passed", checked=True): p, place._replace(at="rejected", checked=True): 1 - p}
    if place.at == "start":
        p = world.guess_known if known else world.guess_unknown
        failed = place._replace(at="failed", hit=False, guessed=True)
    elif place.at == "failed":
        p, failed = world.stale, place
    else:
        p, failed = float(place.hit), place._replace(at="failed", hit=False, answered=True)
    return {"solved": p, ("wrong" if world.wrong_answer_ends else failed): 1 - p}


def _hit_rate(world: World, place: Place, known: bool, first_hit: float) -> float:
    if place.at == "rejected" and world.verify:
        return world.verify.hit_after_reject
    if known:
        return world.hit_known * (world.retry_known if place.guessed or place.answered else 1.0)
    return first_hit * (world.anchoring if place.guessed else 1.0)


def _structure(world: World) -> dict[str, object]:
    """Return what two worlds must share to have graphs that differ in their probabilities only."""
    plain = ("turns", "may_guess", "known_visible", "wrong_answer_ends", "document_tokens", "search_median_s")
    return {
        **{name: getattr(world, name) for name in plain},
        "verify": world.verify is not None,
        "read_more": world.read_more is not None,
        "kinds": tuple("known" if name == "known" else "unknown" for name, _, _ in world.kinds()),
    }


@lru_cache(maxsize=64)
def _slots(like: World) -> tuple[tuple[int, int, Place, str, dict["Place | str", int]], ...]:
    """Return (node, action, place, its name, next place or terminal -> outcome number) of every action of a structure."""
    graph = like.graph().compiled()
    here = places(like)
    found: list[Place | str] = [*here, *(t.name for t in graph.source.terminals)]
    return tuple(
        (n, int(a), place, graph.actions[a], {found[t]: o for o, t in reversed(list(enumerate(graph.target[n, a])))})
        for n, place in enumerate(here)
        for a in np.flatnonzero(graph.offered[graph.context[n]])
    )


@lru_cache(maxsize=64)
def refill(world: World, like: World) -> CompiledGraph:
    """Return the arrays of `world` on the structure of `like`; see :meth:`sim.mdp.worlds.World.refilled`."""
    template = like.graph().compiled()
    kinds = world.kinds()
    differ = [name for name, value in _structure(world).items() if value != _structure(like)[name]]
    if differ:
        here, there = _structure(world)[differ[0]], _structure(like)[differ[0]]
        raise ValueError(f"{differ[0]} = {here} does not fit a structure with {there}; build this world's own graph()")
    probability = template.probability.copy()
    for n, a, place, action, slots in _slots(like):
        probability[:, n, a] = 0.0
        for h, kind in enumerate(kinds):
            for target, p in _step(world, place, action, kind).items():
                if p > 0:
                    if target not in slots:
                        raise ValueError(
                            f"{place.name}: {action} now leads to {target}; the structure does not hold that"
                        )
                    probability[h, n, a, slots[target]] = p
    return replace(template, share=np.array([share for _, share, _ in kinds]), probability=probability)
