"""Where things stand in the tokens of an episode.

    BOS QUESTION e r | thinking .. decision argument argument | observation observation | thinking ..

A turn is a slot of fixed length: F thinking tokens, the decision, its two arguments, and the two tokens that come back. So
every position means the same in every episode, and episodes differ in the number of their turns alone. What comes back
from the last turn is read by nobody and has no place.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.records.config import config

__all__ = ["ARGUMENTS", "OBSERVED", "PROMPT", "Layout"]

PROMPT = 4
"""Tokens of a prompt: BOS QUESTION e r."""
ARGUMENTS = 2
"""Tokens after a decision: search e r, answer a END, read END END, verify a END."""
OBSERVED = 2
"""Tokens that come back: DOCUMENT a, or WRONG, PASS, REJECT or INVALID and NOTHING."""


@config
class Layout:
    """The slots of an episode; T = ``length()`` tokens, K = ``turns``."""

    thinking: int = 3
    """Filler tokens before a decision (F)."""
    turns: int = 4
    """Turn limit (K)."""

    def __post_init__(self) -> None:
        for name, least in (("thinking", 0), ("turns", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)}; a layout needs at least {least}")

    @property
    def written(self) -> int:
        """Tokens sampled in a turn: F thinking tokens, the decision, its arguments."""
        return self.thinking + 1 + ARGUMENTS

    @property
    def turn(self) -> int:
        """Tokens of a turn with what comes back."""
        return self.written + OBSERVED

    def length(self, turns: int | None = None) -> int:
        """Return the tokens of an episode of that many turns (default K), without the last observation.

        >>> Layout().length(), Layout().length(1)
        (34, 10)
        """
        taken = self.turns if turns is None else turns
        if not 0 < taken <= self.turns:
            raise ValueError(f"turns = {taken} must lie in [1, {self.turns}], the turn limit of this layout")
        return PROMPT + taken * self.turn - OBSERVED

    def sampled(self, taken: ArrayLike) -> NDArray[np.bool_]:
        """Return where the tokens stand that were sampled in episodes of `taken` [...] turns, [..., T].

        Prompt, observations and everything after the last turn are not among them, so the sum is ``taken * written``.
        """
        turns = np.asarray(taken)
        if turns.size and not (turns.min() >= 0 and turns.max() <= self.turns):
            raise ValueError(f"taken holds {turns.min()} to {turns.max()}; turns taken lie in [0, {self.turns}]")
        place = np.arange(self.length()) - PROMPT
        inside = (place >= 0) & (place % self.turn < self.written)
        return inside & (place // self.turn < turns[..., None])

    @property
    def turn_of(self) -> NDArray[np.int64]:
        """The turn each position belongs to, [T]: the prompt to turn 0, an observation to the turn that caused it."""
        return np.maximum(np.arange(self.length()) - PROMPT, 0) // self.turn

    @property
    def decisions(self) -> NDArray[np.int64]:
        """Position of each turn's decision token, [K]."""
        return PROMPT + self.thinking + self.turn * np.arange(self.turns)
