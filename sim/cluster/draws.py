"""Every random number of a run, indexed by what it is for: kind of draw, prompt, play, rollout, turn, attempt.

One counter-based stream per kind of draw; no generator belongs to an entity. So a rollout has the same luck whatever else
runs, whenever it is admitted, and whichever engine simulates it, and runs under different schedulers are paired. A prompt
that is played again (a requeue) has fresh luck in everything but what belongs to the prompt: its kind and its factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.plan import Laws, Plan
from sim.mdp.latency import Latency, quantiles_s
from sim.records.rng import BlockStream

__all__ = ["BLOCK", "Block", "Draws"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]

BLOCK = 64
"""Prompts drawn together."""
_PLAYS = 4096
"""Most plays of one prompt; a bound on the index, not on the run's length."""


@dataclass(frozen=True, eq=False)
class Block:
    """Draws of some prompts' rollouts: rows are prompt-major, [R] = prompts x members; K turns."""

    kind: I64
    """Kind of question, [R]."""
    length_factor: F64
    """Factor of token counts, [R]."""
    latency_factor: F64
    """Factor of tool latencies, [R]."""
    route: F64
    """Uniform that picks the action, [R, K]."""
    outcome: F64
    """Uniform that picks what comes back, [R, K]."""
    length: F64
    """Draw of each shape of a law of tokens, [R, K, shapes]."""
    latency: F64
    """Draw of each shape of a tool law, [R, K, attempts, shapes]."""
    failure: F64
    """Uniform that decides whether an attempt fails, [R, K, attempts]."""


class Draws:
    """The draws of one run.

    Parameters
    ----------
    plan
        The run's plan.
    seed
        Its seed.
    study
        Namespace of the streams.
    """

    def __init__(self, plan: Plan, seed: int, study: str) -> None:
        self.plan, self.seed, self.study = plan, seed, study
        self._streams: dict[str, BlockStream] = {}
        self._series: dict[tuple[str, int], tuple[int, list[float]]] = {}
        share = np.cumsum(plan.graph.share)
        share[-1] = 2.0
        self._share = share

    def block(self, block: int) -> Block:
        """Return the first plays of prompts block * 64 .. block * 64 + 63."""
        return self._rollouts("", block, BLOCK, self.prompts(block))

    def again(self, prompt: int, play: int) -> Block:
        """Return play number `play` (1, 2, ...) of one prompt: fresh luck for its rollouts, the prompt's own unchanged."""
        if not 1 <= play < _PLAYS:
            raise ValueError(f"prompt {prompt} is played for the {play + 1}th time; at most {_PLAYS} plays are indexed")
        row = prompt % BLOCK
        kind, length, latency = self.prompts(prompt // BLOCK)
        one = slice(row, row + 1)
        return self._rollouts("again/", prompt * _PLAYS + play, 1, (kind[one], length[one], latency[one]))

    def series(self, name: str, index: int, law: Latency, number: int) -> float:
        """Return draw `number` of a law of its own: jitter of the learner, arrivals, up and down times of engine `index`."""
        first, values = self._series.get((name, index), (0, []))
        if not first <= number < first + len(values):
            block = number // BLOCK
            u = self._stream(f"{name}").doubles(index * 2**32 + block, (BLOCK,))[0]
            first, values = block * BLOCK, quantiles_s(law, u).tolist()
            self._series[name, index] = first, values
        return float(values[number - first])

    def _stream(self, name: str) -> BlockStream:
        if name not in self._streams:
            self._streams[name] = BlockStream((self.seed,), f"{self.study}/cluster/{name}")
        return self._streams[name]

    def prompts(self, block: int) -> tuple[I64, F64, F64]:
        """Return what belongs to the prompts of a block: kind of question, length factor, latency factor, [64] each."""
        work = self.plan.cluster.workload
        kind = np.searchsorted(self._share, self._stream("kind").doubles(block, (BLOCK,))[0], side="right")
        factors = []
        for name, sigma in (("length", work.prompt_length_sigma), ("latency", work.prompt_latency_sigma)):
            if sigma == 0:
                factors.append(np.ones(BLOCK))
            else:
                z = self._stream(f"prompt-{name}").normals(block, (BLOCK,))[0]
                factors.append(np.exp(sigma * z - sigma**2 / 2))
        return kind, factors[0], factors[1]

    def _rollouts(self, prefix: str, step: int, prompts: int, kept: tuple[I64, F64, F64]) -> Block:
        plan = self.plan
        members, K, tries = plan.cluster.workload.members, plan.graph.turns, plan.attempts
        R = prompts * members

        def u(name: str, *more: int) -> F64:
            return self._stream(prefix + name).doubles(step, (R, K, *more))[0]

        pools = len(plan.cluster.tools)
        kind, length_factor, latency_factor = kept
        return Block(
            kind=np.repeat(kind, members),
            length_factor=np.repeat(length_factor, members),
            latency_factor=np.repeat(latency_factor, members),
            route=u("route"),
            outcome=u("outcome"),
            length=_shaped(plan.tokens, u("length")),
            latency=_shaped(plan.tool, u("latency", tries)) if pools else np.ones((R, K, tries, 0)),
            failure=u("failure", tries) if any(p.failure > 0 for p in plan.cluster.tools) else np.ones((R, K, tries)),
        )


def _shaped(laws: Laws, u: F64) -> F64:
    """Return the draw of each shape for each uniform, [..., shapes]: one uniform serves all, as one of them is used."""
    if not laws.shapes:
        return np.empty((*u.shape, 0))
    return np.stack([quantiles_s(shape, u) for shape in laws.shapes], axis=-1)
