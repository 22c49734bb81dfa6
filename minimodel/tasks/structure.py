"""A world's tool graph with a node for everything that tokens can do in it.

A tool graph holds what can happen where answers are right or wrong with the world's probabilities. Tokens can do more:
copy a document that holds the answer and get it wrong, ask for another question than the one at hand, verify a candidate
of their own. Where a probability is 0 or 1 the world's own graph may lack the place this leads to. So the nodes are those
of a world with the same structure and probabilities of one half, and the probabilities are the world's.
"""

from dataclasses import replace
from typing import Any

from sim.mdp.building import Place, places
from sim.mdp.compiled import CompiledGraph
from sim.mdp.worlds import ReadMore, Verify, World

__all__ = ["compiled", "node_places"]

_CHANCES = ("guess_known", "guess_unknown", "hit_known", "retry_known", "hit_unknown", "anchoring", "stale")


def compiled(world: World) -> CompiledGraph:
    """Return the arrays of `world`; equal to ``world.graph().compiled()`` where every probability is inside (0, 1)."""
    return world.refilled(_halves(world))


def node_places(world: World) -> tuple[Place, ...]:
    """Return the place each state of :func:`compiled` stands for."""
    return places(_halves(world))


def _halves(world: World) -> World:
    """Return the world of the same structure whose probabilities are all one half."""
    unknown = sum(name != "known" for name, _, _ in world.kinds())
    several = unknown > 1
    halves: dict[str, Any] = dict.fromkeys(_CHANCES, 0.5)
    halves |= {"icc": 0.5 if several else 0.0, "unknown_kinds": unknown if several else 1}
    halves |= {"verify": Verify(0.5, 0.5, 0.5) if world.verify else None}
    halves |= {"read_more": ReadMore(0.5) if world.read_more else None}
    return replace(world, **halves)
