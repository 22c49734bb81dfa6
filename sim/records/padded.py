"""Rectangular views of rollouts, with masks: what update rules and the simulator's loop compute on.

Q groups, G trajectories in the largest group, K turns (or T tokens) in the longest trajectory. Groups may be ragged.
What the mask leaves out is padding: 0 for log-probabilities, entropies and counts, -1 for actions and states, False for
flags. (Zero is a safe log-probability: its exponential is finite, so that masking after ``exp`` cannot make a NaN.) A
trajectory that is not present looks like one that failed: its reward is NaN, so a mean that forgets the mask shows it.
"""

# ruff: noqa: RUF009 (_optional() is dataclasses.field())

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.records.tables import Array, Groups, Outcome, RecordError, Segments, Trajectories, Turns, parents

if TYPE_CHECKING:
    from sim.records.rollouts import Rollouts

__all__ = ["Padded", "PaddedTokens", "pad_tokens", "pad_turns", "unpad"]

_PAD: dict[str, Any] = {"action": -1, "context": -1, "state_id": -1, "index": -1, "version": -1, "id": -1}


def _optional() -> Any:
    """A field that may be left out."""
    return field(default=None)


@dataclass(frozen=True, eq=False)
class Padded:
    """Turns as ``[Q, G, K]``, trajectories as ``[Q, G]``, groups as ``[Q]``.

    What is not given is filled with "not recorded", as in the flat tables. Arrays are not copied.
    RecordError if an array has another shape than ``mask`` asks for, or a mask has holes.
    """

    action: Array
    """Decision taken [Q, G, K]."""
    mask: Array
    """Which turns exist [Q, G, K]; they come first on the last axis."""
    reward: Array
    """Final reward [Q, G]."""
    outcome: Array
    """`Outcome` [Q, G]."""
    context: Array = _optional()
    """What the policy conditions on [Q, G, K]."""
    state_id: Array = _optional()
    """Number shared by identical observations [Q, G, K]."""
    index: Array = _optional()
    """Place of the turn in its trajectory [Q, G, K]; its place on the last axis where not given."""
    generated: Array = _optional()
    """Tokens sampled [Q, G, K]."""
    observed: Array = _optional()
    """Tokens that came back [Q, G, K]."""
    logp_behaviour: Array = _optional()
    """Log-probability of the decision under the policy that made it [Q, G, K]."""
    logp_proximal: Array = _optional()
    """The same at the start of the update [Q, G, K]."""
    logp_reference: Array = _optional()
    """The same under the reference [Q, G, K]."""
    entropy: Array = _optional()
    """Entropy of the turn's first tokens [Q, G, K]."""
    present: Array = _optional()
    """Which trajectories exist [Q, G]; they come first on the last axis."""
    start: Array = _optional()
    """Start of the trajectory in seconds [Q, G]."""
    end: Array = _optional()
    """End of the trajectory in seconds [Q, G]."""
    version_oldest: Array = _optional()
    """Oldest version noted in the trajectory [Q, G]."""
    version_newest: Array = _optional()
    """Newest version noted in the trajectory [Q, G]."""
    take_time: Array = _optional()
    """When the learner took the last of it [Q, G]."""
    take_version: Array = _optional()
    """The learner's version then [Q, G]."""
    task: Array = _optional()
    """Task of each group [Q]; its place where not given."""
    role: Array = _optional()
    """Role of each group [Q]."""
    baseline: Array = _optional()
    """Reward of a separate rollout [Q]."""

    def __post_init__(self) -> None:
        mask = np.asarray(self.mask)
        if mask.ndim != 3 or mask.dtype != np.bool_:
            raise RecordError(f"mask is {mask.dtype} of shape {mask.shape}: it must be bool of shape [Q, G, K]")
        shapes = {name: mask.shape[: _axes(name)] for name in self.__dataclass_fields__}
        for name, shape in shapes.items():
            value = getattr(self, name)
            value = _unrecorded(name, shape) if value is None else np.asarray(value)
            if value.shape != shape:
                raise RecordError(f"{name} has shape {value.shape}: it must be {shape} for a mask of {mask.shape}")
            object.__setattr__(self, name, value)
        _check_prefix("mask", mask)
        _check_prefix("present", self.present)
        if np.any(mask & ~self.present[..., None]):
            raise RecordError("mask marks turns of a trajectory that is not present: clear its mask or mark it present")


@dataclass(frozen=True, eq=False)
class PaddedTokens:
    """Tokens as ``[Q, G, T]``."""

    id: Array
    """The tokens."""
    mask: Array
    """Which exist; they come first on the last axis."""
    sampled: Array
    """Which the policy sampled."""
    train: Array
    """Which the loss may touch."""
    turn: Array
    """Place on the turn axis of `Padded` of the turn a token belongs to; -1 for padding."""
    version: Array
    """Version that sampled the token."""
    logp_behaviour: Array
    """Log-probability under the policy that sampled it."""
    logp_proximal: Array
    """The same at the start of the update."""
    logp_reference: Array
    """The same under the reference."""


def pad_turns(rollouts: Rollouts, role: str | None = "main") -> Padded:
    """Turns of the segments of one role (all for None), in the order of the segments, as ``[Q, G, K]``.

    Versions are the oldest and newest noted in those segments, take time and version the latest.
    """
    grid = _Grid(rollouts, role)
    turn = {
        name: grid.scatter(values[grid.turns], grid.turn_owner, _PAD.get(name, 0))
        for name, values in rollouts.turns.columns().items()
        if name != "offsets"
    }
    trajectory = {
        name: grid.place(values, _unrecorded(name, ()).item())
        for name, values in rollouts.trajectories.columns().items()
        if name != "offsets"
    }
    group = {name: values for name, values in rollouts.groups.columns().items() if name != "offsets"}
    mask = grid.scatter(np.ones(len(grid.turns), dtype=bool), grid.turn_owner, False)
    present = grid.place(np.ones(len(rollouts.trajectories), dtype=bool), False)
    return Padded(mask=mask, present=present, **turn, **trajectory, **grid.versions(), **group)


def pad_tokens(rollouts: Rollouts, role: str | None = "main") -> PaddedTokens:
    """Tokens of the segments of one role, in the order of the segments, as ``[Q, G, T]``.

    RecordError if the record keeps no tokens, as the simulator's do not.
    """
    if rollouts.tokens is None:
        raise RecordError("the record has no tokens: compute on its turns with padded()")
    grid = _Grid(rollouts, role)
    turn_of_token = parents(rollouts.turns.offsets)
    chosen = np.flatnonzero(np.isin(turn_of_token, grid.turns))
    place = np.zeros(len(rollouts.turns), dtype=np.int64)
    place[grid.turns] = _places(grid.turn_owner)
    owner_of_turn = np.zeros(len(rollouts.turns), dtype=np.int64)
    owner_of_turn[grid.turns] = grid.turn_owner
    owner = owner_of_turn[turn_of_token[chosen]]
    columns = rollouts.tokens.columns()
    padded = {name: grid.scatter(values[chosen], owner, _PAD.get(name, 0)) for name, values in columns.items()}
    mask = grid.scatter(np.ones(len(chosen), dtype=bool), owner, False)
    return PaddedTokens(mask=mask, turn=grid.scatter(place[turn_of_token[chosen]], owner, -1), **padded)


def unpad(padded: Padded) -> dict[str, Any]:
    """The tables of a record in which each trajectory is one main segment, as long as the trajectory."""
    count = int(padded.present.sum())
    ones = np.arange(count + 1)
    turns_of = padded.mask.sum(axis=2)[padded.present]
    trajectory = {name: getattr(padded, name)[padded.present] for name in ("reward", "outcome", "start", "end")}
    versions = ("version_oldest", "version_newest", "start", "end", "take_time", "take_version")
    segment = {name: getattr(padded, name)[padded.present] for name in versions}
    names = [name for name in Turns.__dataclass_fields__ if name != "offsets"]
    return {
        "groups": Groups(
            task=padded.task,
            role=padded.role,
            baseline=padded.baseline,
            offsets=_offsets(padded.present.sum(axis=1)),
        ),
        "trajectories": Trajectories(offsets=ones, **trajectory),
        "segments": Segments(parent=np.full(count, -1), offsets=_offsets(turns_of), **segment),
        "turns": Turns(**{name: getattr(padded, name)[padded.mask] for name in names}),
    }


class _Grid:
    """Where each trajectory of a record lies on the axes ``[Q, G]``, and which turns belong there."""

    def __init__(self, rollouts: Rollouts, role: str | None) -> None:
        self.segments = rollouts.segments
        self.group = parents(rollouts.groups.offsets)
        self.member = _places(self.group)
        sizes = np.diff(rollouts.groups.offsets)
        self.shape = (len(rollouts.groups), int(sizes.max(initial=0)))
        self.segment_owner = parents(rollouts.trajectories.offsets)
        self.chosen = np.ones(len(self.segments), dtype=bool) if role is None else self.segments.role == role
        segment_of_turn = parents(self.segments.offsets)
        self.turns = np.flatnonzero(self.chosen[segment_of_turn])
        self.turn_owner = self.segment_owner[segment_of_turn[self.turns]]

    def place(self, values: Array, pad: Any) -> Array:
        """One value per trajectory as ``[Q, G]``."""
        out = np.full(self.shape, pad, dtype=values.dtype)
        out[self.group, self.member] = values
        return out

    def scatter(self, values: Array, owner: Array, pad: Any) -> Array:
        """One value per row, with the trajectory of each row (sorted), as ``[Q, G, longest]``."""
        places = _places(owner)
        out = np.full((*self.shape, int(places.max(initial=-1)) + 1), pad, dtype=values.dtype)
        out[self.group[owner], self.member[owner], places] = values
        return out

    def versions(self) -> dict[str, Array]:
        """Versions and take of each trajectory, over its chosen segments."""
        return {
            "version_oldest": self._extreme("version_oldest", np.fmin),
            "version_newest": self._extreme("version_newest", np.fmax),
            "take_time": self._extreme("take_time", np.fmax),
            "take_version": self._extreme("take_version", np.fmax),
        }

    def _extreme(self, name: str, extreme: np.ufunc) -> Array:
        values = getattr(self.segments, name)
        noted = np.where(values < 0, np.nan, values) if values.dtype.kind == "i" else values
        found = np.full(len(self.group), np.nan)
        extreme.at(found, self.segment_owner[self.chosen], noted[self.chosen])
        if values.dtype.kind == "i":
            return self.place(np.where(np.isnan(found), -1, found).astype(np.int64), -1)
        return self.place(found, np.nan)


def _axes(name: str) -> int:
    if name in {"task", "role", "baseline"}:
        return 1
    of_trajectory = {"reward", "outcome", "start", "end", "present", "take_time", "take_version"}
    return 2 if name in of_trajectory or name.startswith("version_") else 3


def _unrecorded(name: str, shape: tuple[int, ...]) -> Array:
    """What an array holds that nobody recorded."""
    if name in {"index", "task"}:
        return np.broadcast_to(np.arange(shape[-1]), shape)
    if name == "present":
        return np.ones(shape, dtype=bool)
    if name == "role":
        return np.full(shape, "main")
    if name in {"generated", "observed"}:
        return np.zeros(shape, dtype=np.int64)
    if name in {"context", "state_id"} or "version" in name:
        return np.full(shape, -1)
    if name == "outcome":
        return np.full(shape, int(Outcome.INFRASTRUCTURE_FAILURE))
    return np.full(shape, np.nan)


def _places(owner: Array) -> Array:
    """How many earlier rows have the same owner, for sorted owners: [0, 0, 3] -> [0, 1, 0]."""
    return np.arange(len(owner)) - np.searchsorted(owner, owner)


def _offsets(counts: Array) -> Array:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _check_prefix(name: str, mask: Array) -> None:
    holes = np.argwhere(mask[..., 1:] & ~mask[..., :-1])
    if len(holes):
        where = tuple(int(each) for each in holes[0])
        raise RecordError(f"{name}{list(where)} is False before a True: move the padding to the end of the axis")
