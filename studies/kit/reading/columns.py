"""The columns of a step table, from what was counted of each step; what no step gives is said to be absent, with the reason.

Names are those of the other rungs wherever the quantity is the same.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sim.records.steps import StepTable
from sim.records.tables import Outcome
from sim.signals.behaviour import TurnCounts, effective_number
from studies.kit.reading.statistics import Lag, Mean, finite, parts

if TYPE_CHECKING:
    from studies.kit.episodes import Episode

__all__ = ["OTHERS", "SEARCH", "StepCounts", "absences", "behaviour", "table", "workflow_shares"]

SEARCH = "search"
"""Name of the action that looks something up, at every rung."""
OTHERS = "(others)"
"""Name under which workflows beyond the most frequent are counted together."""

Row = dict[str, float]
Ways = Mapping[tuple[tuple[str, ...], int], int]
"""Rollouts by (their actions in order, the turn at which they were solved, or -1)."""


class StepCounts:
    """What is counted of one step."""

    def __init__(self) -> None:
        self.rollouts = 0
        self.ways: Counter[tuple[tuple[str, ...], int]] = Counter()
        self.recorded = 0
        """Rollouts of which something says how they ended."""
        self.unanswered = 0
        """Rollouts that were solved without an answer; they count as solved by the end of their last turn."""
        self._means: defaultdict[str, Mean] = defaultdict(Mean)
        self._lag = Lag()
        self._groups: dict[tuple[bool, int], tuple[int, int, float, float]] = {}

    def add(self, episode: Episode, actions: tuple[str, ...]) -> None:
        """Count an episode; ``actions`` are those of its turns."""
        self.rollouts += 1
        self.ways[actions, self._solved_at(episode)] += 1
        for column, total, count in parts(episode):
            self._means[column].add(total, count)
        self._lag.add(episode)
        text = isinstance(episode.task, str)
        key = text, hash(episode.task) if text else int(episode.task)  # a prompt may be long
        members, rewards, least, most = self._groups.get(key, (0, 0, np.inf, -np.inf))
        if finite(episode.reward):
            rewards, least, most = rewards + 1, min(least, episode.reward), max(most, episode.reward)
        self._groups[key] = members + 1, rewards, least, most

    def _solved_at(self, episode: Episode) -> int:
        self.recorded += episode.outcome is not Outcome.NOT_RECORDED
        if episode.outcome is not Outcome.SOLVED:
            return -1
        if episode.solved_at is None:
            self.unanswered += 1
            return max(len(episode.turns) - 1, 0)
        return episode.solved_at

    @property
    def grouped(self) -> bool:
        """Whether a task was attempted more than once."""
        return any(members > 1 for members, *_ in self._groups.values())

    def row(self, *, grouped: bool) -> Row:
        """Return what is not behaviour: numbers, means, staleness, and with ``grouped`` the groups without a signal.

        A group has none whose rewards are all equal, or that has fewer than two of them.
        """
        row: Row = {name: mean.value for name, mean in self._means.items()}
        row["train/rollouts"] = self.rollouts
        if "train/reward" in row:
            row["train/rewarded"] = self._means["train/reward"].count
            if grouped:
                silent = [count < 2 or least == most for _, count, least, most in self._groups.values()]
                row["train/degenerate_share"] = sum(silent) / len(silent)
        if self._lag.oldest is not None and self._lag.newest is not None:
            row |= {"staleness/oldest": self._lag.oldest, "staleness/newest": self._lag.newest}
        return row


def behaviour(ways: Ways, actions: Sequence[str], turns: int, *, accuracy: bool) -> Row:
    """Return what the rollouts of a step did, by turn: shares of *all* of them, finished ones included.

    Invalid turns are in no action's share. With ``accuracy``, also the share solved by the end of each turn.
    """
    code = {name: place for place, name in enumerate(actions)}
    decision = np.zeros((turns, 1, len(actions)), np.int64)
    solved = np.zeros(turns + 1, np.int64)  # and later than that
    for (sequence, solved_at), count in ways.items():
        for t, action in enumerate(sequence[:turns]):
            if action in code:
                decision[t, 0, code[action]] += count
        if solved_at >= 0:
            solved[min(solved_at, turns) :] += count
    rollouts = sum(ways.values())
    counted = TurnCounts(decision, solved[:turns], rollouts)
    by_turn = {f"{name}_share": counted.action_share(place) for name, place in code.items()}
    if accuracy:
        by_turn["accuracy"] = counted.accuracy()
    found = {f"behaviour/{name}/turn{t}": x for name, shares in by_turn.items() for t, x in enumerate(shares.tolist())}
    if accuracy:
        found["behaviour/solved_share"] = int(solved[-1]) / rollouts
    if SEARCH in code:
        never = sum(count for (sequence, _), count in ways.items() if SEARCH not in sequence)
        found["behaviour/no_search_share"] = never / rollouts
    sequences: Counter[tuple[str, ...]] = Counter()
    for (sequence, _), count in ways.items():
        sequences[sequence] += count
    counts = np.array(sorted(sequences.values()))
    found["behaviour/effective_workflows"] = float(effective_number(counts / rollouts))
    return found


def workflow_shares(ways: Ways, workflow: Mapping[tuple[str, ...], str], shown: Sequence[str]) -> Row:
    """Return the share of each workflow shown among the rollouts of a step; the others' together under `OTHERS`."""
    counts = dict.fromkeys(shown, 0)
    for (sequence, _), count in ways.items():
        counts[workflow[sequence] if workflow[sequence] in counts else OTHERS] += count
    rollouts = sum(ways.values())
    return {f"behaviour/workflow_share/{name}": count / rollouts for name, count in counts.items()}


def table(rows: Mapping[int, Row]) -> StepTable:
    """Return rows by step as a table; a value that a step has not got is NaN there."""
    steps = sorted(rows)
    names = {name for row in rows.values() for name in row}
    columns = {name: np.array([rows[step].get(name, np.nan) for step in steps]) for name in names}
    return StepTable({"step": np.array(steps, np.int64), **columns})


_FAMILIES = (
    ("reward", "train/reward", "no rollout has a reward"),
    ("accuracy", "behaviour/accuracy/", "no rollout says whether it was solved"),
    ("groups", "train/degenerate_share", "no task was attempted twice in a step, or nothing has a reward"),
    ("tokens", "train/generated_tokens", "the numbers of tokens are not recorded"),
    ("log-probabilities", ("decision/surprisal", "token/surprisal"), "no log-probabilities are recorded"),
    ("KL", "drift/kl_", "no log-probabilities under a reference policy are recorded"),
    ("importance ratios", "drift/ratio_before/", "no token has log-probabilities under both sampler and learner"),
    ("entropy", "entropy/", "no entropies are recorded"),
    ("staleness", "staleness/", "which version of the policy wrote a rollout, or took it, is not recorded"),
)  # quantity, how its columns begin, why there may be none


def absences(names: Iterable[str], actions: Sequence[str]) -> dict[str, str]:
    """Return what no column tells, with the reason."""
    known = tuple(names)
    absent = {
        quantity: why for quantity, prefix, why in _FAMILIES if not any(name.startswith(prefix) for name in known)
    }
    if not actions:
        absent["actions"] = "no turn has an action that can be made out"
    elif SEARCH not in actions:
        absent["share that never searches"] = f"no action is named {SEARCH!r}: there are {', '.join(actions)}"
    return absent
