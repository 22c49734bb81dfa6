"""What a run leaves behind beside its log: one row a rollout, a group, a version, an engine, a pool."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sim.cluster.model.simulation import Simulation

__all__ = ["Books", "EngineBooks", "GroupBooks", "PoolBooks", "RolloutBooks", "StepBooks", "books_of"]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Table:
    """Columns of equal length."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))

    def __eq__(self, other: object) -> bool:
        """Return whether every column is equal, bit for bit but for NaN."""
        if type(other) is not type(self):
            return NotImplemented
        return all(
            np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
            for a, b in ((getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, eq=False)
class RolloutBooks(_Table):
    """One row a rollout that was started, n of them; K turns."""

    group: I64
    """Its group."""
    member: I64
    """Which of the group it is."""
    kind: I64
    """Kind of its question."""
    start_s: F64
    """When it started, s."""
    end_s: F64
    """When it ended or was aborted, s."""
    start_version: I64
    """Version published when it started."""
    oldest: I64
    """Oldest version that wrote any of it; -1 for none."""
    newest: I64
    """Newest version that wrote any of it; -1 for none."""
    tokens: F64
    """Tokens it wrote."""
    token_versions: F64
    """Sum over those tokens of the version that wrote them."""
    tool_s: F64
    """Time its tool attempts were to take, s."""
    turns: I64
    """Turns written."""
    reward: F64
    """Reward; NaN where it was aborted or a tool failed for good."""
    aborted: Flags
    """Whether it was aborted."""
    valid: Flags
    """Whether it counts: no failure of infrastructure."""
    node: I64
    """State at each turn, [n, K]; -1 for none."""
    action: I64
    """Action of each turn, [n, K]; -1 for none."""
    version: I64
    """Version that chose it, [n, K]; -1 for none."""


@dataclass(frozen=True, eq=False)
class GroupBooks(_Table):
    """One row a group that was started."""

    prompt: I64
    """Number of the prompt in the source."""
    play: I64
    """How often the prompt had been played before."""
    start_version: I64
    """Version published when it started."""
    ready_s: F64
    """When it was complete, s; NaN for never."""
    take_version: I64
    """The learner's version when it was taken; -1 for never."""
    taken: Flags
    """Whether it was taken."""
    dropped: Flags
    """Whether it was dropped (not because the run stopped)."""
    valid: I64
    """Members that count."""


@dataclass(frozen=True, eq=False)
class StepBooks(_Table):
    """One row a version that was begun."""

    asked_s: F64
    """When the learner first asked for rollouts, s."""
    started_s: F64
    """When its first mini-batch was complete, s; NaN for never."""
    waited_s: F64
    """Time spent waiting for mini-batches, s."""
    trained_s: F64
    """Time spent training, s."""
    ended_s: F64
    """When training ended, s; NaN for never."""
    published_s: F64
    """When engines had it (or could have it), s; NaN for never."""
    rollouts: I64
    """Rollouts trained on."""
    tokens: F64
    """Tokens trained on."""


@dataclass(frozen=True, eq=False)
class EngineBooks(_Table):
    """One row an engine."""

    busy_s: F64
    """Time with a sequence active, s."""
    sequence_s: F64
    """Integral over time of the number active, s."""


@dataclass(frozen=True, eq=False)
class PoolBooks(_Table):
    """One row a tool pool."""

    busy_s: F64
    """Integral over time of the number of servers busy, s."""
    attempts: I64
    """Attempts started."""
    answered: I64
    """Attempts that ended with an answer."""
    timeouts: I64
    """Attempts that timed out."""
    failures: I64
    """Attempts that failed."""


@dataclass(frozen=True)
class Books:
    """All of it. Two engines that agree leave equal books."""

    end_s: float
    """When the run stopped, s."""
    rollouts: RolloutBooks
    """Rollouts, in the order in which they started."""
    groups: GroupBooks
    """Groups, in the order in which they started."""
    steps: StepBooks
    """Versions."""
    engines: EngineBooks
    """Engines."""
    pools: PoolBooks
    """Tool pools."""


def books_of(sim: Simulation) -> Books:
    """Return the books of a finished simulation of the model of record."""
    from sim.cluster.model.state import Fate

    T, G, S, K = sim.trajectories, sim.scheduler.groups, sim.learner.steps, sim.plan.graph.turns

    def ints(values: list[int]) -> I64:
        return np.array(values, np.int64)

    def by_turn(rows: list[list[int]]) -> I64:
        return np.array([row + [-1] * (K - len(row)) for row in rows], np.int64).reshape(-1, K)

    return Books(
        end_s=sim.env.now,
        rollouts=RolloutBooks(
            group=ints([t.group.id for t in T]),
            member=ints([t.member for t in T]),
            kind=ints([t.luck.kind for t in T]),
            start_s=np.array([t.start_s for t in T]),
            end_s=np.array([t.end_s for t in T]),
            start_version=ints([t.start_version for t in T]),
            oldest=ints([t.oldest for t in T]),
            newest=ints([t.newest for t in T]),
            tokens=np.array([t.tokens for t in T]),
            token_versions=np.array([t.token_versions for t in T]),
            tool_s=np.array([t.tool_s for t in T]),
            turns=ints([t.turn for t in T]),
            reward=np.array([t.reward for t in T]),
            aborted=np.array([t.cancelled for t in T], np.bool_),
            valid=np.array([t.valid for t in T], np.bool_),
            node=by_turn([t.nodes for t in T]),
            action=by_turn([t.actions for t in T]),
            version=by_turn([t.versions for t in T]),
        ),
        groups=GroupBooks(
            prompt=ints([g.prompt for g in G]),
            play=ints([g.play for g in G]),
            start_version=ints([g.start_version for g in G]),
            ready_s=np.array([g.ready_s for g in G]),
            take_version=ints([g.take_version for g in G]),
            taken=np.array([g.fate == Fate.TAKEN for g in G], np.bool_),
            dropped=np.array([g.fate == Fate.DROPPED for g in G], np.bool_),
            valid=ints([g.valid for g in G]),
        ),
        steps=StepBooks(
            asked_s=np.array([s.asked_s for s in S]),
            started_s=np.array([s.started_s for s in S]),
            waited_s=np.array([s.waited_s for s in S]),
            trained_s=np.array([s.trained_s for s in S]),
            ended_s=np.array([s.ended_s for s in S]),
            published_s=np.array([s.published_s for s in S]),
            rollouts=ints([s.rollouts for s in S]),
            tokens=np.array([s.tokens for s in S]),
        ),
        engines=EngineBooks(np.array([e.busy_s for e in sim.engines]), np.array([e.sequence_s for e in sim.engines])),
        pools=PoolBooks(
            np.array([p.busy_s for p in sim.pools]),
            ints([p.attempts for p in sim.pools]),
            ints([p.calls for p in sim.pools]),
            ints([p.timeouts for p in sim.pools]),
            ints([p.failures for p in sim.pools]),
        ),
    )
