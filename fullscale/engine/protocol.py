"""What the agent asks of an engine: whole episodes, token by token, with how each token was drawn.

An engine plays episodes of several turns. A turn is what the policy writes until it stops; a reply is what it reads next, as
ids, or the word that the episode is over. Ids are carried from end to end: what was sampled is never decoded and encoded
again, so the next prompt is an exact extension of the last.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Answering", "Between", "Ended", "Engine", "Reply", "Settings", "Spoken", "Turn", "Uniforms", "Why"]

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
Flags = NDArray[np.bool_]

Ended = Literal["over", "context", "failed"]
Why = Literal["stop", "eos", "length", "context"]
"""Why a turn stopped: a stop string, the model's end-of-turn token, the turn's most tokens, or the context's."""


@dataclass(frozen=True)
class Settings:
    """How episodes are written."""

    temperature: float
    """Divides the logits; the log-probs that are returned are at this temperature. All tokens may be drawn."""
    turn_tokens: int
    """Most tokens a turn."""
    context_tokens: int
    """Most tokens an episode, prompt and observations included."""
    stop: tuple[str, ...] = ()
    """A turn stops with the token that completes any of these, wherever in the token's text it ends."""

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(
                f"temperature = {self.temperature} must be positive; for the likeliest tokens play without uniforms"
            )
        for name in ("turn_tokens", "context_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if "" in self.stop:
            raise ValueError("an empty stop string would stop every turn at its first token; leave it out")


@dataclass(frozen=True)
class Turn:
    """What the policy wrote in one turn."""

    ids: tuple[int, ...]
    """The tokens that were sampled, the one that ended the turn included."""
    text: str
    """Their text, without the end-of-turn token; what stands after a stop string inside its last token is in it."""
    why: Why
    """Why it stopped. After ``"context"`` nothing more can be written in this segment."""


@dataclass(frozen=True)
class Reply:
    """What follows a turn."""

    ids: tuple[int, ...] | None
    """Tokens to read before the next turn, maybe none; None when the episode is over."""
    compacts: bool = False
    """Whether a new segment begins: `ids` are then its whole prompt, and nothing before them is seen any more."""


@dataclass(frozen=True, eq=False)
class Spoken:
    """An episode of T tokens: prompt, then turns and what was read after each; segments one after the other."""

    ids: I64
    """Every token as it was read or sampled, [T]."""
    sampled: Flags
    """Whether the policy sampled it, [T]."""
    logp: F32
    """Log-prob of a sampled token given all before it, at the temperature of sampling, nats, [T]; 0 elsewhere."""
    entropy: F32
    """Entropy of the distribution it was drawn from, nats, [T]; 0 elsewhere."""
    version: I64
    """Version of the weights that sampled it, [T]; -1 elsewhere."""
    turn: I64
    """Turn each token belongs to, from 0, [T]: the prompt to the first, what was read to the turn before it."""
    segment: I64
    """Segment each token belongs to, from 0, [T]; a token was sampled given the tokens before it in its segment alone."""
    turns: tuple[Turn, ...]
    """The turns."""
    ended: Ended
    """``"over"`` where a reply said so; ``"context"`` where what came next, and a token after it, had no room; ``"failed"``
    where the engine could not go on, which says nothing about the policy."""
    reason: str = ""
    """Why it failed."""


Uniforms = Callable[[int, int], float]
"""(row, place) -> a number in [0, 1): the luck of one token. The n-th token of a turn has place turn x turn_tokens + n, so
that two arms of a study stay aligned when their turns end at different lengths."""
Answering = Callable[[Sequence[int], Sequence[Turn]], Sequence[Reply]]
"""(rows, their turns) -> their replies; called with all rows whose turn ended at one step, in ascending order."""
Between = Callable[[int], None]
"""Called before each step with its number; it may publish other weights."""


class Engine(Protocol):
    """Something that samples."""

    def publish(self, version: int, model: Any) -> None:
        """Sample with these weights from the next step on, in episodes under way as well."""
        ...

    def play(
        self,
        prompts: Sequence[Sequence[int]],
        reply: Answering,
        settings: Settings,
        uniforms: Uniforms | None,
        between: Between | None = None,
    ) -> list[Spoken]:
        """Play an episode on every prompt; without uniforms, take the likeliest token everywhere."""
        ...
