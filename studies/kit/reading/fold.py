"""A run as it is read, from a stream of episodes in one pass: a table of its steps, its workflows, and rollouts to read.

Memory grows with the steps, with the different sequences of actions of a step, and with the sample; not with the number of
rollouts or the length of their text. Nothing depends on the order of the episodes or on the files they are spread over.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sim.records.steps import StepTable
from studies.kit.episodes import ANSWER, NO_ACTION, Episode, workflow
from studies.kit.reading.columns import OTHERS, StepCounts, absences, behaviour, table, workflow_shares
from studies.kit.reading.sample import Sample
from studies.kit.reading.statistics import MOST_TURNS

if TYPE_CHECKING:
    from studies.kit.reading.formats import Problem, Source

__all__ = ["MOST_ACTIONS", "MOST_WORKFLOWS", "Folding", "Reading", "fold"]

MOST_WORKFLOWS = 40
"""Workflows with a share of their own: those with most rollouts in the whole run."""
MOST_ACTIONS = 24
"""Actions with columns of their own, the most frequent; a model invents names without end."""

Actions = tuple[str, ...]

_MAIN = "main"  # the role whose behaviour the columns tell, where there are several
_EVERY = 256  # episodes between two reports of progress


@dataclass(frozen=True, eq=False)
class Reading:
    """What a run shows, read from its rollouts."""

    name: str
    """Name of the run."""
    format: str
    """Layout it was read from."""
    steps: StepTable
    """One row a step: behaviour by turn, workflow shares, means. What cannot be computed has no column."""
    actions: tuple[str, ...]
    """Names of the actions that have columns, sorted, the answer last; empty where no turn names one."""
    workflows: tuple[str, ...]
    """Ways of working, by number of rollouts; `OTHERS` last where there are more."""
    episodes: tuple[Episode, ...] = ()
    """The rollouts that were kept to be read, by step and workflow."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """What cannot be told, and why."""
    problems: tuple[Problem, ...] = ()
    """What could not be read; the first hundred."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many lines, episodes, problems, ... there were."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the numbers."""
    paths: tuple[Path, ...] = ()
    """The files."""

    @property
    def step(self) -> NDArray[np.int64]:
        """Optimiser step of each row, [T]."""
        return self.steps["step"]

    @property
    def rollouts(self) -> NDArray[np.int64]:
        """Rollouts of each step, kept or not, [T]."""
        return self.steps["train/rollouts"]

    @property
    def shares(self) -> NDArray[np.float64]:
        """Share of each workflow among the rollouts of each step, [T, W]."""
        return np.stack([self.steps[f"behaviour/workflow_share/{name}"] for name in self.workflows], 1)

    @property
    def turns(self) -> int:
        """Turns that have columns."""
        by_turn = [name.rpartition("/turn")[2] for name in self.steps.names if name.startswith("behaviour/")]
        return 1 + max((int(turn) for turn in by_turn if turn.isdigit()), default=-1)


def fold(
    source: Source,
    keep: int = 5000,
    progress: Callable[[int, int], None] | None = None,
    name: str | None = None,
) -> Reading:
    """Return what a stream of episodes shows.

    Shares have all rollouts of a step in their denominator, finished ones included, as in `sim.signals.behaviour`; a
    rollout is solved by the end of the turn of the answer that solved it. Where sub-agents have rollouts of their own,
    the columns are those of the main role.

    Parameters
    ----------
    source
        Episodes in any order, with an account of what could not be read.
    keep
        Rollouts to keep with their words, see `studies.kit.reading.sample`.
    progress
        Called now and then with the numbers of episodes and steps so far.
    name
        Name of the run; by default that of its file, or of the folder of its files.
    """
    folding = Folding(keep)
    for number, episode in enumerate(source, 1):
        folding.add(episode)
        if progress is not None and number % _EVERY == 0:
            progress(number, folding.steps_seen)
    return folding.reading(source, name or _name(source.paths))


def _name(paths: Sequence[Path]) -> str:
    if not paths:
        return "run"
    return paths[0].resolve().parent.name if len(paths) > 1 else paths[0].name.split(".")[0]


class Folding:
    """What is known of a run while its episodes come in."""

    def __init__(self, keep: int) -> None:
        self.sample = Sample(keep)
        self.roles: dict[str, dict[int, StepCounts]] = {}
        self.ways: dict[Actions, tuple[Actions, str]] = {}  # each sequence kept once, and its workflow

    @property
    def steps_seen(self) -> int:
        """Steps so far."""
        return max(map(len, self.roles.values()), default=0)

    def add(self, episode: Episode) -> None:
        """Count an episode, and keep it if it belongs to the sample."""
        sequence = tuple(turn.action for turn in episode.turns)
        way = self.ways.get(sequence)
        if way is None:
            way = self.ways[sequence] = sequence, workflow(sequence)
        self.roles.setdefault(episode.role, defaultdict(StepCounts))[episode.step].add(episode, way[0])
        self.sample.add(episode, way[1])

    def reading(self, source: Source, name: str) -> Reading:
        """Return what the episodes so far show; ``source`` gives the account of what could not be read.

        ValueError if there were none.
        """
        if not self.roles:
            raise ValueError(f"{name}: there are no episodes to fold")
        counted = _Counted(self.roles, dict(self.ways.values()))
        episodes = tuple(episode for episode in self.sample.episodes() if episode.step in counted.steps)
        steps = table(counted.rows(accuracy="accuracy" not in source.absent))
        return Reading(
            name=name,
            format=source.format,
            steps=steps,
            actions=counted.actions,
            workflows=counted.workflows,
            episodes=episodes,
            absent={**absences(steps.names, counted.actions), **source.absent},
            problems=tuple(source.problems),
            counts=dict(sorted(source.counts.items())),
            notes=(*source.notes, *counted.notes(), *_sampled(self.sample, len(episodes))),
            paths=tuple(source.paths),
        )


class _Counted:
    """What was counted of the role whose behaviour is told."""

    def __init__(self, roles: Mapping[str, Mapping[int, StepCounts]], names: Mapping[Actions, str]) -> None:
        sizes = {role: sum(step.rollouts for step in steps.values()) for role, steps in roles.items()}
        self.role = _MAIN if _MAIN in roles else max(sorted(sizes), key=sizes.__getitem__)
        self.steps, self.names = roles[self.role], names
        self.rollouts = sizes.pop(self.role)
        self.others = sizes
        self.longest = max(len(sequence) for step in self.steps.values() for sequence, _ in step.ways)
        self.frequency: Counter[str] = Counter()  # of actions
        self.sizes: Counter[str] = Counter()  # of workflows
        for step in self.steps.values():
            for (sequence, _), count in step.ways.items():
                self.sizes[names[sequence]] += count
                for action in sequence:
                    self.frequency[action] += count
        self.known = self.frequency.keys() - {NO_ACTION}
        tools = sorted(_most(self.frequency, MOST_ACTIONS, but=(ANSWER, NO_ACTION)))
        self.actions = (*tools, ANSWER) if self.known else ()
        shown = _most(self.sizes, MOST_WORKFLOWS)
        self.workflows = (*shown, *[OTHERS] * (len(self.sizes) > len(shown)))

    def rows(self, *, accuracy: bool) -> dict[int, dict[str, float]]:
        """Return the columns of each step."""
        told = accuracy and any(step.recorded for step in self.steps.values())
        grouped = any(step.grouped for step in self.steps.values())
        turns = min(self.longest, MOST_TURNS)
        return {
            number: step.row(grouped=grouped)
            | behaviour(step.ways, self.actions, turns, accuracy=told)
            | workflow_shares(step.ways, self.names, self.workflows)
            for number, step in self.steps.items()
        }

    def notes(self) -> list[str]:
        """Return what a reader should know of the numbers."""
        unrecorded = self.rollouts - sum(step.recorded for step in self.steps.values())
        unanswered = sum(step.unanswered for step in self.steps.values())
        hidden = len(self.known - set(self.actions))
        others = ", ".join(f"{count:,} rollouts of {role!r}" for role, count in sorted(self.others.items()))
        said = (
            (
                0 < unrecorded < self.rollouts,
                f"{unrecorded:,} rollouts do not say how they ended: they count as not solved",
            ),
            (
                unanswered,
                f"{unanswered:,} rollouts were solved without an answer: solved by the end of their last turn",
            ),
            (self.longest > MOST_TURNS, f"turns go up to {self.longest}: columns by turn end at turn {MOST_TURNS - 1}"),
            (hidden, f"{hidden} more actions occur: the {MOST_ACTIONS} most frequent have columns"),
            (others, f"columns are those of the role {self.role!r}: not counted in them are {others}"),
        )
        return [words for holds, words in said if holds]


def _most(sizes: Counter[str], most: int, but: Sequence[str] = ()) -> list[str]:
    """Return the names with the largest counts, by count and then by name."""
    return sorted(sizes.keys() - set(but), key=lambda name: (-sizes[name], name))[:most]


def _sampled(sample: Sample, kept: int) -> list[str]:
    seen = sample.seen.total()
    if kept == seen:
        return []
    if not kept:
        return [f"none of {seen:,} rollouts is kept to be read"]
    return [
        f"{kept:,} of {seen:,} rollouts are kept to be read: of every workflow at every step as many as there is room for"
    ]
