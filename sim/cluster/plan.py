"""A cluster as arrays and numbers: what both engines run on.

Laws are split into a scale, a shape and a cap: a duration is min(scale x shape's draw x the prompt's factor, cap). Actions
whose laws differ in scale alone share a shape, so that few columns of draws serve many laws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.spec import Cluster
from sim.mdp.compiled import CompiledGraph
from sim.mdp.latency import Capped, CappedPareto, Constant, Exponential, Latency, LogNormal
from sim.mdp.policy import free_logits, tables

__all__ = ["Laws", "Plan", "action_thresholds", "plan"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

NEVER = 2.0
"""A threshold that no uniform reaches."""


@dataclass(frozen=True, eq=False)
class Laws:
    """Laws by row, split."""

    scale: F64
    """Scale of each law."""
    shape: I64
    """Which shape it has; -1 for a constant."""
    cap: F64
    """Its cap; infinite for none."""
    shapes: tuple[Latency, ...]
    """The distinct shapes, of scale 1."""

    @classmethod
    def of(cls, laws: list[Latency]) -> Laws:
        """Split `laws`."""
        parts = [_split(law) for law in laws]
        shapes: list[Latency] = []
        for _, shape, _ in parts:
            if shape is not None and shape not in shapes:
                shapes.append(shape)
        return cls(
            scale=np.array([scale for scale, _, _ in parts], float),
            shape=np.array([-1 if shape is None else shapes.index(shape) for _, shape, _ in parts], np.int64),
            cap=np.array([cap for _, _, cap in parts], float),
            shapes=tuple(shapes),
        )


def _split(law: Latency) -> tuple[float, Latency | None, float]:
    if isinstance(law, Constant):
        return law.seconds, None, math.inf
    if isinstance(law, Exponential):
        return law.mean, Exponential(1.0), math.inf
    if isinstance(law, LogNormal):
        return law.median, LogNormal(1.0, law.sigma), math.inf
    if isinstance(law, CappedPareto):
        return law.scale, CappedPareto(1.0, law.alpha, None), law.top  # the cap comes after the prompt's factor
    if isinstance(law, Capped):
        scale, shape, cap = _split(law.uncapped)
        return scale, shape, min(cap, law.cap)
    return 1.0, law, math.inf


@dataclass(frozen=True, eq=False)
class Plan:
    """What both engines run on; N nodes, A actions, C contexts, O outcomes, H kinds, P pools."""

    cluster: Cluster
    """The config."""
    graph: CompiledGraph
    """The task."""
    outcome: F64
    """P(outcome <= o | kind, node, action), [H, N, A, O]; the last is never reached."""
    tokens: Laws
    """Laws of tokens by node and action, row node * A + action."""
    tool: Laws
    """Laws of tool latency by pool."""
    pool: I64
    """Pool that serves an action, [A]; -1 for none."""
    initial: F64
    """P(action <= a | context) of version 0, [C, A]; see :func:`action_thresholds`."""
    attempts: int
    """Most attempts any pool makes."""
    wait_s: F64
    """Backoff before each retry, [P, attempts], s."""


def plan(cluster: Cluster) -> Plan:
    """Return the plan of a cluster."""
    graph = cluster.workload.task.graph().compiled()
    names = graph.actions
    laws = [
        cluster.workload.law(action, int(graph.generated[n, a]))
        for n in range(len(graph.context))
        for a, action in enumerate(names)
    ]
    pool = np.full(len(names), -1)
    for p, spec in enumerate(cluster.tools):
        for action in spec.actions:
            pool[names.index(action)] = p
    outcome = np.cumsum(graph.probability, -1)
    last = graph.probability.shape[-1] - 1 - np.argmax(graph.probability[..., ::-1] > 0, axis=-1)
    outcome[np.arange(outcome.shape[-1]) >= last[..., None]] = NEVER
    z0 = free_logits(graph, cluster.workload.habit)
    tries = 1 + max((spec.retries for spec in cluster.tools), default=0)
    return Plan(
        cluster=cluster,
        graph=graph,
        outcome=outcome,
        tokens=Laws.of(laws),
        tool=Laws.of([spec.latency for spec in cluster.tools]),
        pool=pool,
        initial=action_thresholds(graph, tables(graph, z0).probability),
        attempts=tries,
        wait_s=np.array([[s.backoff_s * s.backoff_factor**k for k in range(tries)] for s in cluster.tools]),
    )


def action_thresholds(graph: CompiledGraph, probability: F64) -> F64:
    """Return P(action <= a | context), [C, A], with the last action offered and all after it at a value never reached.

    The action of a uniform u is the first whose threshold is above u, so rounding of a sum never picks what is not offered.
    """
    found = np.cumsum(probability, -1)
    last = graph.offered.shape[1] - 1 - np.argmax(graph.offered[:, ::-1], axis=1)
    found[np.arange(found.shape[1]) >= last[:, None]] = NEVER
    return found
