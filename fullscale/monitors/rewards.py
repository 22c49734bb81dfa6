"""A judge as a term of the reward: what a language model says of an episode's text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullscale.engine.http.client import Client, Patience
from fullscale.monitors.judge import Judge
from sim.records.config import config

__all__ = ["Judged", "Judgement"]

F64 = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Judgement:
    """What a judge said of a batch."""

    term: F64
    """What each episode's reward gains, [B]."""
    score: float
    """Share of yes among those it could be read on; NaN where on none."""
    unclear: float
    """Share of episodes on which it said neither yes nor no, or nothing; they gain nothing."""


@config
class Judged:
    """Adds `weight` to the reward of every episode of which a criterion holds."""

    address: str
    """Where an OpenAI-compatible server listens, such as ``http://127.0.0.1:8111``."""
    criterion: str = "Does the text search for evidence before it gives an answer?"
    """What is asked of the text of an episode, all but its prompt."""
    weight: float = 0.1
    """What a yes is worth, in units of the reward; at 0 it is only written down."""
    model: str = ""
    """Name under which the model is served; empty for the only one."""
    also: Mapping[str, Any] | None = None
    """What is added to every request; see :class:`~fullscale.monitors.judge.Judge`."""
    concurrent: int = 16
    """Requests at once."""
    timeout_s: float = 120.0
    """Time a request may take, s."""

    def __post_init__(self) -> None:
        if not self.criterion.strip():
            raise ValueError("criterion is empty; ask something of a text")
        if self.concurrent < 1 or self.timeout_s <= 0:
            raise ValueError(
                f"concurrent = {self.concurrent} must be at least 1 and timeout_s = {self.timeout_s} positive"
            )

    def judge(self) -> Judge:
        """Return the judge."""
        client = Client(self.address, Patience(self.timeout_s))
        return Judge(client, self.model, criterion=self.criterion, also=self.also, concurrent=self.concurrent)

    def of(self, texts: Sequence[str]) -> Judgement:
        """Return what is said of these texts."""
        scores = np.array(self.judge().scores(texts, unclear=float("nan")))
        read = ~np.isnan(scores)
        score = float(scores[read].mean()) if read.any() else float("nan")
        return Judgement(self.weight * np.where(read, scores, 0.0), score, float(1 - read.mean()))
