"""Episodes made by hand, and a stand-in for the source that a reader of files gives."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from sim.records.tables import Outcome, Tokens
from studies.kit.episodes import Episode, Turn


class Stream:
    """Episodes with an account of what could not be read, as `studies.kit.reading.formats.Source` gives them."""

    def __init__(self, episodes: Iterable[Episode], **account):
        self.episodes = list(episodes)
        self.format = "by hand"
        self.paths: tuple[Path, ...] = ()
        self.problems: list = []
        self.counts = Counter()
        self.absent: dict[str, str] = {}
        self.notes: list[str] = []
        self.__dict__.update(account)

    def __iter__(self):
        for episode in self.episodes:
            self.counts["episodes"] += 1
            yield episode


def episode(actions="search answer", *, step=0, task=0, reward=1.0, **fields):
    """An episode of these actions: solved if it has a reward above 0."""
    outcome = Outcome.NOT_RECORDED if reward is None else Outcome.SOLVED if reward > 0 else Outcome.WRONG
    turns = fields.pop("turns", tuple(Turn(name) for name in actions.split()))
    return Episode(step=step, task=task, turns=turns, reward=reward, **{"outcome": outcome, **fields})


def tokens(sampled, **logps):
    """Tokens of which these were sampled; log-probabilities of those, NaN elsewhere."""
    mask = np.array(sampled, bool)
    columns = {f"logp_{name}": np.where(mask, values, np.nan) for name, values in logps.items()}
    return Tokens(id=np.arange(len(mask)), sampled=mask, train=mask, **columns)
