"""What the simulation remembers of a rollout and of a group."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.cluster.draws import Block
    from sim.cluster.model.engine import Engine

__all__ = ["Fate", "Group", "Luck", "Place", "Trajectory", "lucks"]


class Place(IntEnum):
    """Where a rollout is."""

    QUEUED = 0
    """Waiting for an engine."""
    WRITING = 1
    """In an engine's batch."""
    WRITTEN = 2
    """Its turn is written; what follows happens at this instant."""
    CALLING = 3
    """Waiting for a tool's server."""
    SERVED = 4
    """A tool attempt is in service."""
    BACKOFF = 5
    """Waiting to retry."""
    HELD = 6
    """At its next turn, until its group is resumed."""
    OVER = 7
    """Ended or aborted."""


class Fate(IntEnum):
    """What became of a group."""

    RUNNING = 0
    READY = 1
    TAKEN = 2
    DROPPED = 3


class Luck:
    """The draws of one rollout, as flat lists; see :class:`sim.cluster.draws.Block` for their axes."""

    __slots__ = ("failure", "kind", "latency", "latency_factor", "length", "length_factor", "outcome", "route")

    def __init__(self, kind: int, length_factor: float, latency_factor: float, *lists: list[float]) -> None:
        self.kind, self.length_factor, self.latency_factor = kind, length_factor, latency_factor
        self.route, self.outcome, self.length, self.latency, self.failure = lists


def lucks(block: Block) -> list[Luck]:
    """Return the draws of each row as flat lists, which Python reads faster than arrays."""
    rows = len(block.kind)
    lists = (
        x.reshape(rows, -1).tolist() for x in (block.route, block.outcome, block.length, block.latency, block.failure)
    )
    numbers = (x.tolist() for x in (block.kind, block.length_factor, block.latency_factor))
    return [Luck(*row) for row in zip(*numbers, *lists, strict=True)]


class Trajectory:
    """One rollout."""

    __slots__ = (
        "action", "attempt", "cache_engine", "cache_epoch", "cached", "cancelled", "choices", "chunk", "chunk_prefill",
        "chunk_v", "context", "end_s", "ends", "engine", "group", "id", "job", "kv", "luck", "member", "newest", "node",
        "oldest", "place", "remaining", "reward", "round_tokens", "start_s", "start_version", "ticket", "token_versions",
        "tokens", "tool_s", "turn", "valid", "version", "waits", "written",
    )  # fmt: skip

    def __init__(self, identity: int, group: Group, member: int, luck: Luck, context: float, node: int) -> None:
        self.id, self.group, self.member, self.luck = identity, group, member, luck
        self.turn, self.node, self.action = 0, node, -1
        self.context = context  # tokens before this turn
        self.written = 0.0  # tokens of this turn so far
        self.remaining = -1.0  # tokens it has still to write; -1 before the action is chosen
        self.place = Place.QUEUED
        self.engine: Engine
        self.job = 0  # serial number of its place in an engine's batch; 0 for none
        self.ticket = 0  # of its place in an engine's queue; another one there is out of date
        self.chunk = self.chunk_prefill = self.chunk_v = self.kv = 0.0
        self.cached, self.cache_engine, self.cache_epoch = 0.0, -1, -1
        self.attempt = 0
        self.round_tokens = 0.0
        self.version = self.oldest = self.newest = -1
        self.tokens = self.token_versions = self.tool_s = 0.0
        self.start_s, self.end_s, self.start_version = 0.0, float("nan"), -1
        self.reward, self.valid, self.cancelled = float("nan"), True, False
        self.waits: Any = None  # the calendar's entry that it waits for; another one finds that it is not meant
        self.ends = 0  # how the attempt in service ends
        self.choices: list[tuple[int, int, int]] = []  # (state, action, version) of each turn

    @property
    def nodes(self) -> list[int]:
        """State at each turn."""
        return [node for node, _, _ in self.choices]

    @property
    def actions(self) -> list[int]:
        """Action of each turn."""
        return [action for _, action, _ in self.choices]

    @property
    def versions(self) -> list[int]:
        """Version that chose it."""
        return [version for _, _, version in self.choices]


class Group:
    """The rollouts of one prompt."""

    __slots__ = (
        "done", "fate", "held", "id", "in_round", "members", "play", "prompt", "ready_s", "start_version", "take_version",
        "valid",
    )  # fmt: skip

    def __init__(self, identity: int, prompt: int, play: int, version: int) -> None:
        self.id, self.prompt, self.play, self.start_version = identity, prompt, play, version
        self.members: list[Trajectory] = []
        self.fate = Fate.RUNNING
        self.done = self.valid = 0
        self.held, self.in_round = False, False
        self.ready_s = float("nan")
        self.take_version = -1
