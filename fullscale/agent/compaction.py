"""Compaction: when a context has grown long it is replaced by a shorter one, and a new segment begins.

What is kept is the question, what was done so far, and the last thing read. The policy that samples after it sees nothing
else, so nothing else may stand before those tokens when they are scored.
"""

from collections.abc import Sequence

from fullscale.dialogue.prompt import Dialogue
from fullscale.dialogue.tags import information
from fullscale.environment import Step
from fullscale.world.questions import Question
from sim.records.config import config

__all__ = ["Compaction"]


@config
class Compaction:
    """Begin a new segment where the context would grow beyond a bound."""

    at_tokens: int
    """Tokens of a context, what is to be read next included, beyond which it is replaced."""

    def __post_init__(self) -> None:
        if self.at_tokens < 1:
            raise ValueError(f"at_tokens = {self.at_tokens} must be at least 1")

    def prompt(self, dialogue: Dialogue, question: Question, steps: Sequence[Step]) -> list[int]:
        """Return the ids of the context that goes on after these turns."""
        return (
            dialogue.prompt(question)
            + dialogue.observation(information(f"Earlier turns were left out. So far: {_done(steps)}."))
            + dialogue.observation(steps[-1].observation)
        )


def _done(steps: Sequence[Step]) -> str:
    """Return what was done, in words."""
    said = []
    for step in steps:
        name, argument = step.written.name, " ".join(step.written.argument.split())
        said.append("an invalid action" if name is None else f"{name} {argument}".strip())
    return "; ".join(said)
