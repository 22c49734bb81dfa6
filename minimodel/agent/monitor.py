"""The rule monitor: an episode that answers before any search earns nothing, and a wrong such answer may end it.

Simple, and made for one family of tasks: it looks at the order of actions and at nothing else.
"""

import numpy as np
from numpy.typing import NDArray

from minimodel.agent.collect import Collected
from sim.records.config import config

__all__ = ["EvidenceFirst"]


@config
class EvidenceFirst:
    """Reward 0 (less `penalty`) for every episode whose first answer came before its first search."""

    ends: bool = False
    """Whether such an answer, where it is wrong, also ends the episode."""
    penalty: float = 0.0
    """What such an episode loses beyond its reward, in units of the reward."""

    def __post_init__(self) -> None:
        if self.penalty < 0:
            raise ValueError(f"penalty = {self.penalty} must be at least 0; it is subtracted")

    def __call__(self, batch: Collected) -> NDArray[np.float64]:
        """Return the reward that is trained on, [Q, G]."""
        return np.where(batch.guessed, -self.penalty, batch.reward)
