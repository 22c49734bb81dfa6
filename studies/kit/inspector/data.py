"""What the inspector shows of a run: its steps, the shares of its workflows, curves, and rollouts with their words."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from studies.kit.episodes import Episode, Turn, workflow

__all__ = ["Inspected", "Mark", "absent_from", "from_episodes", "workflow_of"]


@dataclass(frozen=True)
class Mark:
    """A transition that a detector found."""

    step: int
    """Optimiser step at which it was found."""
    label: str
    """What happened, in words."""
    calibrated: bool
    """Whether the detector's false-alarm rate is known for runs like this one."""
    signal: str
    """The column it was found in."""


@dataclass(frozen=True, eq=False)
class Inspected:
    """A run as the inspector shows it. ValueError if its parts do not fit each other."""

    name: str
    """Name of the run."""
    actions: tuple[str, ...]
    """Names of the actions."""
    steps: tuple[int, ...]
    """Optimiser steps, ascending: the T rows of ``shares`` and of each column."""
    rollouts: tuple[int, ...]
    """Rollouts of each step, kept or not."""
    workflows: tuple[str, ...]
    """Ways of working, in the order in which they are to be stacked; some may stand for several rare ones."""
    shares: NDArray[np.float64]  # [T, W]
    """Share of each workflow among the rollouts of each step; NaN where a step has none."""
    columns: Mapping[str, NDArray[np.float64]]
    """Curves to show, by name: [T] each, NaN where there is no value."""
    episodes: Sequence[Episode]
    """The rollouts that can be read."""
    marks: Sequence[Mark] = ()
    """Transitions that were found."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """What cannot be shown, and why."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the run."""
    folded: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Longer lists, by title: only the title is seen until it is opened."""

    def __post_init__(self) -> None:
        shape = (len(self.steps), len(self.workflows))
        if list(self.steps) != sorted(set(self.steps)):
            raise ValueError(
                f"run {self.name!r}: its steps must ascend and differ; sort them and join those that are equal"
            )
        if self.shares.shape != shape:
            raise ValueError(
                f"run {self.name!r}: shares have shape {self.shares.shape}: must be {shape} for {shape[0]} steps and "
                f"{shape[1]} workflows"
            )
        for what, length in [
            ("rollouts", len(self.rollouts)),
            *((key, len(each)) for key, each in self.columns.items()),
        ]:
            if length != shape[0]:
                raise ValueError(f"run {self.name!r}: {what} has {length} entries: must be {shape[0]}, one a step")
        stray = {episode.step for episode in self.episodes} - set(self.steps)
        if stray:
            raise ValueError(f"run {self.name!r}: an episode is of step {min(stray)}, which is not among the steps")


def workflow_of(episode: Episode) -> str:
    """Name the workflow of an episode, as the inspector groups it."""
    return workflow(turn.action for turn in episode.turns)


def from_episodes(
    name: str,
    episodes: Iterable[Episode],
    actions: Sequence[str],
    *,
    columns: Mapping[str, NDArray[np.float64]] | None = None,
    marks: Sequence[Mark] = (),
    absent: Mapping[str, str] | None = None,
    notes: tuple[str, ...] = (),
) -> Inspected:
    """Return the run of which these are all rollouts.

    Workflows are ordered by their share of all rollouts, the largest first. Mean reward and turns of each step are added
    to ``columns`` where it does not hold them; what no rollout has is added to ``absent``.
    """
    by_step: dict[int, list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_step[episode.step].append(episode)
    steps = tuple(sorted(by_step))
    counts = [Counter(map(workflow_of, by_step[step])) for step in steps]
    workflows = tuple(each for each, _ in sum(counts, Counter()).most_common())
    kept = [episode for step in steps for episode in by_step[step]]
    own = {
        "train/reward": np.array([_mean(e.reward for e in by_step[step]) for step in steps]),
        "train/turns": np.array([_mean(float(len(e.turns)) for e in by_step[step]) for step in steps]),
    }
    return Inspected(
        name=name,
        actions=tuple(actions),
        steps=steps,
        rollouts=tuple(len(by_step[step]) for step in steps),
        workflows=workflows,
        shares=np.array([[count[each] / count.total() for each in workflows] for count in counts]).reshape(
            len(steps), -1
        ),
        columns={**own, **(columns or {})},
        episodes=kept,
        marks=marks,
        absent={**absent_from(kept), **(absent or {})},
        notes=notes,
    )


_OF_TURNS: Mapping[str, Callable[[Turn], bool]] = {
    "words": lambda turn: bool(turn.generated or turn.observed),
    "tokens": lambda turn: turn.tokens is not None,
    "log-probabilities": lambda turn: turn.logp is not None or _any(turn, "logp_behaviour"),
    "KL to the reference": lambda turn: turn.logp_reference is not None or _any(turn, "logp_reference"),
    "entropy": lambda turn: turn.entropy is not None,
}


def absent_from(episodes: Sequence[Episode]) -> dict[str, str]:
    """Return the quantities that no rollout has, each with the reason."""
    turns = [turn for episode in episodes for turn in episode.turns]
    gone = [what for what, has in _OF_TURNS.items() if not any(map(has, turns))]
    if all(episode.version_newest is None for episode in episodes):
        gone.append("policy versions")
    if all(episode.reward is None for episode in episodes):
        gone.append("reward")
    return dict.fromkeys(gone, "the rollouts that were kept do not hold it")


def _any(turn: Turn, column: str) -> bool:
    return turn.tokens is not None and not bool(np.isnan(turn.tokens.columns()[column]).all())


def _mean(values: Iterable[float | None]) -> float:
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else math.nan
