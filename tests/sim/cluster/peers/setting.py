"""The cluster that benchmarks simulate, and its numbers drawn once, so that nobody is timed drawing them.

All ask for the same blocks of draws when they need them, and are timed turning those into what they use.

Agents of eight turns, seven of them ending in a call of one of four tools. A turn writes a log-normal number of tokens (mean
300) on one of W / 125 engines; a tool takes a Pareto time (shape 1.5, capped at 120 s), times out after 60 s, which ends the
rollout, and has servers for about nine tenths of the calls that would be in service without a limit. Groups of 8,
batches of W / 8, first in, first out; weights are loaded for a second, in which engines stand still. AReaL's rule is there
with an eta that leaves the W slots as the binding limit.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.books import Books
from sim.cluster.draws import Block, Draws
from sim.cluster.plan import Plan, plan
from sim.cluster.scheduling import Capacity
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import CappedPareto, LogNormal

__all__ = ["Drawn", "Lines", "Outputs", "agents", "drawn", "lines", "outputs"]

GROUP, TURNS, TOOLS = 8, 8, ("search", "python", "shell", "browser")


def agents(slots: int, rollouts: int, *, tokens: float = 300.0, eta: int = 64, timeout_s: float = 60.0) -> Cluster:
    """Return the cluster with so many slots that trains on about so many rollouts.

    `tokens` is the mean number a turn writes. Engines are as much faster as it is above 300: the same times, other lengths.
    """
    batch = max(1, round(slots / 8 / GROUP)) * GROUP
    turn = tokens / 300.0
    sigma = 0.8
    length = LogNormal(tokens * math.exp(-(sigma**2) / 2), sigma)
    latency = CappedPareto(2.0, 1.5, 120.0)
    return Cluster(
        workload=Workload(
            task=Chain(turns=TURNS, tools=TOOLS), group=GROUP, tokens=tuple((name, length) for name in (*TOOLS, "answer"))
        ),
        engines=Engines(count=max(1, round(slots / 125)), base_s=0.01 / turn, per_sequence_s=1e-4 / turn),
        tools=tuple(
            ToolPool(name, (name,), latency, servers=max(1, slots // 10), timeout_s=timeout_s) for name in TOOLS
        ),
        admission=Capacity(eta),
        slots=slots,
        learner=Learner(batch=batch, base_s=2.0, per_token_s=3.0 / (TURNS * tokens * batch)),
        sync=Sync("interrupt", 1.0),
        steps=max(1, rollouts // batch),
    )  # fmt: skip


class Drawn(Draws):
    """Draws that are made once: every run after the first looks its blocks up."""

    def __init__(self, made: Plan, seed: int) -> None:
        super().__init__(made, seed, "bench")
        self._drawn: dict[int, Block] = {}

    def block(self, block: int) -> Block:
        """Return a block, drawn when it was first asked for."""
        if block not in self._drawn:
            self._drawn[block] = super().block(block)
        return self._drawn[block]


def drawn(cluster: Cluster, seed: int = 0) -> tuple[Plan, Drawn]:
    """Return the plan of a cluster and its draws."""
    made = plan(cluster)
    return made, Drawn(made, seed)


Lines = list[tuple[list[int], list[float], list[float]]]


def lines(made: Plan, block: Block) -> Lines:
    """Return a block as a list of (tools, tokens, latencies) of the turns of each rollout, for peers that know the cluster.

    The model of record chooses the tool when a turn is written, as the policy may have changed; here it never does.
    """
    choice = np.searchsorted(made.initial[0][: len(TOOLS) - 1], block.route, side="right")
    tokens = made.tokens.scale[0] * block.length[..., 0] * block.length_factor[:, None]
    latency = made.tool.scale[0] * block.latency[:, :, 0, 0] * block.latency_factor[:, None]
    latency = np.minimum(latency, made.tool.cap[0])
    return list(zip(choice.tolist(), tokens.tolist(), latency.tolist(), strict=True))


@dataclass(frozen=True)
class Outputs:
    """What all ways of simulating the cluster must agree on."""

    end_s: NDArray[np.float64]
    """When each rollout ended, s; NaN for those that had not when the run stopped."""
    start_version: NDArray[np.int64]
    """Version published when each group started."""
    take_version: NDArray[np.int64]
    """The learner's version when it was taken; -1 for never. What it is above the other is the staleness."""
    stop_s: float
    """When the run stopped, s."""


def outputs(books: Books) -> Outputs:
    """Return them from the books of either engine."""
    end_s = np.where(books.rollouts.aborted, np.nan, books.rollouts.end_s)
    return Outputs(end_s, books.groups.start_version, books.groups.take_version, books.end_s)
