"""The books of a run, and what a learner sees of its rollouts, from the tables."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cluster.books import Books, EngineBooks, GroupBooks, PoolBooks, RolloutBooks, StepBooks
from sim.cluster.compiled.state import DROPPED, TAKEN
from sim.cluster.compiled.tables import Tables

__all__ = ["TakenGroup", "TakenRollout", "books_of", "taken"]


class LuckOf(NamedTuple):
    """What a learner may know of a rollout's draws."""

    kind: int
    """Kind of its question."""


@dataclass(frozen=True)
class TakenRollout:
    """A rollout as a learner sees it; attributes as in :class:`sim.cluster.model.state.Trajectory`."""

    id: int
    """Its number."""
    member: int
    """Which of its group it is."""
    choices: list[tuple[int, int, int]]
    """(state, action, version that chose it) of each turn."""
    node: int
    """Where it is."""
    start_s: float
    """When it started, s."""
    end_s: float
    """When it ended or was aborted, s."""
    reward: float
    """Reward; NaN where it was aborted or a tool failed for good."""
    valid: bool
    """Whether it counts: no failure of infrastructure."""
    cancelled: bool
    """Whether it was aborted."""
    turn: int
    """Turns written."""
    tokens: float
    """Tokens it wrote."""
    start_version: int
    """Version published when it started."""
    oldest: int
    """Oldest version that wrote any of it; -1 for none."""
    newest: int
    """Newest version that wrote any of it; -1 for none."""
    luck: LuckOf
    """Its draws."""

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


@dataclass(frozen=True)
class TakenGroup:
    """A group as a learner sees it; attributes as in :class:`sim.cluster.model.state.Group`."""

    id: int
    """Its number."""
    prompt: int
    """Number of the prompt in the source."""
    play: int
    """How often the prompt had been played before."""
    start_version: int
    """Version published when it started."""
    take_version: int
    """The learner's version when it was taken."""
    valid: int
    """Members that count."""
    members: list[TakenRollout]
    """Its rollouts."""


def taken(tables: Tables) -> list[TakenGroup]:
    """Return the groups of the version that is trained on."""
    w, groups = tables.w, tables.arrays["groups"]
    first = int(tables.arrays["steps"][int(w["step"])]["taken_first"])
    names = ("prompt", "play", "start_version", "take_version", "valid")
    return [
        TakenGroup(id=i, members=_members(tables, i), **{name: int(groups[i][name]) for name in names})
        for i in tables.arrays["taken"][first : int(w["taken_n"])].tolist()
    ]


def _members(tables: Tables, group: int) -> list[TakenRollout]:
    members, turns = int(tables.w["members"]), int(tables.w["turn_limit"])
    here = slice(group * members, (group + 1) * members)
    rows = tables.arrays["trajs"][here]
    columns = {f.name: rows[f.name].tolist() for f in fields(TakenRollout) if f.name not in ("choices", "luck")}
    found = []
    for i, chosen in enumerate(tables.arrays["turns"].reshape(-1, turns)[here].tolist()):
        values = {name: column[i] for name, column in columns.items()}
        values["valid"], values["cancelled"] = bool(values["valid"]), bool(values["cancelled"])
        choices = [choice for choice in chosen if choice[0] >= 0]
        found.append(TakenRollout(choices=choices, luck=LuckOf(int(rows["kind"][i])), **values))
    return found


def books_of(tables: Tables) -> Books:
    """Return the books of a finished run."""
    w = tables.w
    T = tables.arrays["trajs"][: int(w["traj_n"])]
    G = tables.arrays["groups"][: int(w["group_n"])]
    S = tables.arrays["steps"][: min(int(w["step"]) + 1, int(w["step_n"]))]
    E, P = tables.arrays["engines"], tables.arrays["pools"]
    turns = tables.arrays["turns"].reshape(-1, int(w["turn_limit"]))[: len(T)]
    return Books(
        end_s=float(w["now"]),
        rollouts=RolloutBooks(
            **_ints(T, "group", "member", "kind", "start_version", "oldest", "newest", turns="turn"),
            **_reals(T, "start_s", "end_s", "tokens", "token_versions", "tool_s", "reward"),
            **_ints(turns, "node", "action", "version"),
            aborted=T["cancelled"] != 0,
            valid=T["valid"] != 0,
        ),
        groups=GroupBooks(
            **_ints(G, "prompt", "play", "start_version", "take_version", "valid"),
            **_reals(G, "ready_s"),
            taken=G["fate"] == TAKEN,
            dropped=G["fate"] == DROPPED,
        ),
        steps=StepBooks(
            **_reals(S, "asked_s", "started_s", "waited_s", "trained_s", "ended_s", "published_s", "tokens"),
            **_ints(S, "rollouts"),
        ),
        engines=EngineBooks(**_reals(E, "busy_s", "sequence_s")),
        pools=PoolBooks(**_reals(P, "busy_s"), **_ints(P, "attempts", "timeouts", "failures", answered="calls")),
    )


def _ints(table: NDArray[Any], *same: str, **other: str) -> dict[str, Any]:
    """Return columns by the name they have in the books: the same, or another."""
    return {name: table[column].astype(np.int64) for name, column in [*zip(same, same, strict=True), *other.items()]}


def _reals(table: NDArray[Any], *same: str) -> dict[str, Any]:
    return {name: table[name].copy() for name in same}
