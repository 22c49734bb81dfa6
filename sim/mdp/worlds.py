"""Worlds: the few quantities that matter, as one frozen record that every rung builds its task from.

The simulator builds a :class:`~sim.mdp.graph.ToolGraph`; the tiny transformer will build a synthetic fact base and a
token environment, and full scale a question set with a search tool, from the same record.

Questions come in kinds. A *known* one the model can answer without evidence; of an *unknown* one it cannot. A search
brings a document that holds the answer with a probability that belongs to the question. Among unknown questions this hit
rate varies as Beta(mean ``hit_unknown``, intra-class correlation ``icc``), which is replaced by its Gauss quadrature on
``unknown_kinds`` points: every moment up to 2 n - 1 is exact, so expectations over a group of 8 rollouts with up to two
searches each are exact at 9 points.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sim.mdp.compiled import CompiledGraph
from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph
from sim.mdp.latency import Latency, LogNormal
from sim.records.config import config

__all__ = ["PRESETS", "ReadMore", "Verify", "World", "beta_quadrature", "read_more_world", "seed_a", "verify_world"]


@config
class Verify:
    """A tool that checks the answer in hand before it is given; one use an episode."""

    sensitivity: float = 0.95
    """P(pass | the evidence in hand holds the answer)."""
    specificity: float = 0.9
    """P(reject | it does not)."""
    hit_after_reject: float = 0.45
    """Hit rate of a search that follows a rejection."""

    def __post_init__(self) -> None:
        for name in ("sensitivity", "specificity", "hit_after_reject"):
            _probability(name, getattr(self, name))


@config
class ReadMore:
    """A tool that reads on in the document found, when the first chunk does not hold the answer."""

    hit: float = 0.4
    """P(a later chunk holds the answer | the first does not), whatever the question."""

    def __post_init__(self) -> None:
        _probability("hit", self.hit)


@config
class World:
    """Quantities of a question-answering task with tools; probabilities unless a unit is named."""

    known: float = 0.21
    """Share of questions whose answer the model knows beforehand (kappa)."""
    guess_known: float = 0.97
    """P(correct | answered at the start, known)."""
    guess_unknown: float = 0.005
    """P(correct | answered at the start, unknown)."""
    hit_known: float = 0.8
    """P(a first search finds the answer | known) (aK)."""
    retry_known: float = 0.5
    """Factor on `hit_known` once an answer has failed."""
    hit_unknown: float = 0.385
    """Mean P(a search finds the answer | unknown) (a1)."""
    icc: float = 0.5
    """Intra-class correlation of that hit rate between searches for one question."""
    unknown_kinds: int = 9
    """Quadrature points for the unknown questions; 1 where `icc` is 0."""
    anchoring: float = 0.5
    """Factor on the hit rate of unknown questions once a *guess* has failed (lambda_G)."""
    stale: float = 0.02
    """P(correct | answered again without new evidence)."""
    wrong_answer_ends: bool = False
    """Whether a wrong answer ends the episode (as in stock Search-R1) or may be retried (as in seed A's table)."""
    may_guess: bool = True
    """Whether the agent may answer at the start."""
    known_visible: bool = False
    """Whether the policy can tell known from unknown questions at the start."""
    turns: int = 4
    """Turn limit."""
    verify: Verify | None = None
    """The verify tool, if there is one."""
    read_more: ReadMore | None = None
    """The read-more tool, if there is one."""
    document_tokens: int = 500
    """Length of a search result, tokens."""
    search_median_s: float = 0.8
    """Median latency of a search, s (log-normal, sigma 0.6; ours)."""

    def __post_init__(self) -> None:
        for name in (
            "known",
            "guess_known",
            "guess_unknown",
            "hit_known",
            "retry_known",
            "hit_unknown",
            "icc",
            "stale",
        ):
            _probability(name, getattr(self, name))
        if not 0 <= self.anchoring <= 1:
            raise ValueError(f"anchoring = {self.anchoring} must lie in [0, 1]: it scales a probability")
        if self.turns < 1:
            raise ValueError(f"turns = {self.turns}; an episode needs at least 1")
        if self.unknown_kinds < 1 or (self.icc == 0 and self.unknown_kinds != 1):
            raise ValueError(
                f"unknown_kinds = {self.unknown_kinds} with icc = {self.icc}; use 1 where icc is 0, else >= 1"
            )
        if self.icc == 1:
            raise ValueError("icc = 1 leaves nothing to chance between searches; use a value below 1")

    def kinds(self) -> tuple[tuple[str, float, float], ...]:
        """Return (name, share, hit rate of a first search) of each kind of question; shares of 0 are left out."""
        return _kinds(self)

    def _find_kinds(self) -> tuple[tuple[str, float, float], ...]:
        rates, weights = beta_quadrature(self.hit_unknown, self.icc, self.unknown_kinds)
        unknown = [
            (f"unknown hit {rate:.3f}", (1 - self.known) * weight, rate)
            for rate, weight in zip(rates, weights, strict=True)
        ]
        every = [("known", self.known, self.hit_known), *unknown]
        return tuple(kind for kind in every if kind[1] > 0)

    def graph(self) -> ToolGraph:
        """Return the task as a tool graph."""
        return _graph(self)

    def refilled(self, like: "World") -> CompiledGraph:
        """Return this world's arrays on the structure of `like`'s: equal to ``graph().compiled()`` and much faster.

        For fits, which need thousands of worlds that differ in their probabilities only.

        Raises
        ------
        ValueError
            When the two differ in structure: number of kinds, places an episode can reach, or what can come back.
        """
        return _refill(self, like)


class _Place(NamedTuple):
    """State of an episode: where the agent stands and what has happened."""

    at: str  # start | fresh | read | passed | rejected | failed
    hit: bool = False  # the evidence in hand holds the answer
    guessed: bool = False  # a guess has failed
    answered: bool = False  # an answer on evidence has failed
    checked: bool = False  # verify has been used

    @property
    def name(self) -> str:
        marks = [
            m for m, on in (("guessed", self.guessed), ("answered", self.answered), ("checked", self.checked)) if on
        ]
        hand = {True: " hit", False: " miss"}[self.hit] if self.at not in {"start", "failed"} else ""
        return f"{self.at}{hand}" + (f" ({', '.join(marks)})" if marks else "")


_Step = dict["_Place | str", float]


@lru_cache(maxsize=256)
def _kinds(world: World) -> tuple[tuple[str, float, float], ...]:
    return world._find_kinds()


@lru_cache(maxsize=64)
def _places(world: World) -> tuple[_Place, ...]:
    return tuple(_reachable(world, _starts(world)))


def _starts(world: World) -> tuple[_Place, ...]:
    return tuple(_Place("start", hit=name == "known" and world.known_visible) for name, _, _ in world.kinds())


@lru_cache(maxsize=256)
def _graph(world: World) -> ToolGraph:
    kinds = world.kinds()
    names = {place: _name(world, place) for place in _places(world)}
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


def _reachable(world: World, starts: tuple[_Place, ...]) -> list[_Place]:
    """Return places by breadth-first search from the starts, so that the order is that of the story."""
    found = list(dict.fromkeys(starts))
    for place in found:
        for action in _offered(world, place):
            for kind in world.kinds():
                for target, p in _step(world, place, action, kind).items():
                    if isinstance(target, _Place) and p > 0 and target not in found:
                        found.append(target)
    return found


def _name(world: World, place: _Place) -> str:
    if place.at == "start" and world.known_visible:
        return "start known" if place.hit else "start unknown"
    return place.name


def _context(world: World, place: _Place) -> str:
    if place.at == "start":
        return _name(world, place).replace(" ", "_")
    return "fresh_checked" if place.at == "fresh" and place.checked else place.at


def _offered(world: World, place: _Place) -> tuple[str, ...]:
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


def _actions(world: World, place: _Place, names: dict[_Place, str]) -> tuple[Action, ...]:
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


def _step(world: World, place: _Place, action: str, kind: tuple[str, float, float]) -> _Step:
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


def _hit_rate(world: World, place: _Place, known: bool, first_hit: float) -> float:
    if place.at == "rejected" and world.verify:
        return world.verify.hit_after_reject
    if known:
        return world.hit_known * (world.retry_known if place.guessed or place.answered else 1.0)
    return first_hit * (world.anchoring if place.guessed else 1.0)


@lru_cache(maxsize=64)
def _slots(like: World) -> tuple[tuple[int, int, _Place, str, dict["_Place | str", int]], ...]:
    """Return (node, action, place, its name, next place or terminal -> outcome number) of every action of a structure."""
    graph = like.graph().compiled()
    places = _places(like)
    found: list[_Place | str] = [*places, *(t.name for t in graph.source.terminals)]
    return tuple(
        (n, int(a), place, graph.actions[a], {found[t]: o for o, t in reversed(list(enumerate(graph.target[n, a])))})
        for n, place in enumerate(places)
        for a in np.flatnonzero(graph.offered[graph.context[n]])
    )


@lru_cache(maxsize=64)
def _refill(world: World, like: World) -> CompiledGraph:
    template = like.graph().compiled()
    kinds = world.kinds()
    if len(kinds) != len(like.kinds()):
        raise ValueError(f"{len(kinds)} kinds of question do not fit a structure of {len(like.kinds())}")
    probability = template.probability.copy()
    for n, a, place, action, slots in _slots(like):
        probability[:, n, a] = 0.0
        if action not in _offered(world, place):
            raise ValueError(f"{place.name}: {action} is not offered in this world, but the structure offers it")
        for h, kind in enumerate(kinds):
            for target, p in _step(world, place, action, kind).items():
                if p > 0:
                    if target not in slots:
                        raise ValueError(
                            f"{place.name}: {action} now leads to {target}; the structure does not hold that"
                        )
                    probability[h, n, a, slots[target]] = p
    return replace(template, share=np.array([share for _, share, _ in kinds]), probability=probability)


@lru_cache(maxsize=4096)
def beta_quadrature(mean: float, icc: float, points: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return nodes and weights of Gauss quadrature for Beta with `mean` and intra-class correlation `icc`.

    ``icc = 1 / (alpha + beta + 1)`` is the correlation of two Bernoulli draws with a common success rate. Moments up to
    order ``2 * points - 1`` are exact (Golub and Welsch 1969, through ``scipy.special.roots_jacobi``).

    >>> rates, weights = beta_quadrature(.385, .5, 9)
    >>> round(sum(r * w for r, w in zip(rates, weights)), 12)
    0.385
    """
    if icc == 0 or mean in (0.0, 1.0):
        return (mean,), (1.0,)
    from scipy.special import roots_jacobi

    size = 1 / icc - 1
    with np.errstate(invalid="ignore"):  # scipy divides 0 by 0 in an entry it then replaces, when alpha + beta = 1
        x, w = roots_jacobi(points, size * (1 - mean) - 1, size * mean - 1)
    weights = w / w.sum()
    return tuple(float(v) for v in np.clip((1 + x) / 2, 0, 1)), tuple(float(v) for v in weights)


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name} = {value} must lie in [0, 1]: it is a probability")


def seed_a() -> World:
    """Return the world of seed A's table: search or answer, four turns, a wrong answer may be retried."""
    return World()


def verify_world() -> World:
    """Return a world where an answer is final and may be verified first; every question is searched for."""
    return World(
        known=0.0, hit_unknown=0.47, icc=0.0, unknown_kinds=1, wrong_answer_ends=True, may_guess=False, verify=Verify()
    )


def read_more_world() -> World:
    """Return seed A's world with documents that can be read further and a verify tool."""
    return replace(seed_a(), read_more=ReadMore(), verify=Verify(), turns=6)


PRESETS: dict[str, Callable[[], World]] = {
    "seed-a": seed_a,
    "seed-a-final": lambda: replace(seed_a(), wrong_answer_ends=True),
    "verify": verify_world,
    "read-more": read_more_world,
}
"""The worlds the command line knows by name."""
