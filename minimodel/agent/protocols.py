"""What the agent asks of a policy and of an engine. The tiny transformer supplies one of each, full scale others.

A *policy* is the learner's side: it scores tokens that are there, with gradients. An *engine* is the sampler's side: it
writes tokens, without. They hold the same weights when the engine was published the policy's newest version, and still
may differ in arithmetic; what a token was sampled with is therefore what its engine said, never recomputed.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from sim.learning.penalties import ScalarKey

__all__ = ["Conversation", "Engine", "Policy", "Written"]

I64 = NDArray[np.int64]
F32 = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Written:
    """One turn of R episodes, as the engine sampled it: ids are carried from here on, never encoded again."""

    ids: I64
    """Tokens, [R, n]."""
    logp: F32
    """Log-probability of each as it was sampled, nats, [R, n]."""
    entropy: F32
    """Entropy of the distribution each was drawn from, nats, [R, n]."""
    version: I64
    """Version of the weights that wrote it, [R, n]; stamped when it is written."""
    watched: F32
    """Log-probabilities of the watched ids at the watched place of the turn, nats, [R, W]."""


class Conversation(Protocol):
    """Episodes under way in an engine; those that end are dropped."""

    def write(self, tokens: int, uniforms: F32 | None, watch: tuple[int, tuple[int, ...]]) -> Written:
        """Sample the next `tokens` of every episode by inverse CDF; without uniforms [tokens, R], the likeliest.

        `watch` names a place within these tokens and the ids whose log-probabilities are wanted there.
        """
        ...

    def read(self, keep: Flags, observation: I64) -> None:
        """Go on with the episodes in `keep` [R] alone, each having read its observation [R', O]."""
        ...


class Engine(Protocol):
    """Something that samples."""

    def publish(self, version: int, policy: Any) -> None:
        """Sample with these weights from now on, in conversations under way as well."""
        ...

    def open(self, prompts: I64) -> Conversation:
        """Begin an episode on every prompt, [R, P]."""
        ...


class Policy(Protocol):
    """Something that learns."""

    def scalars(
        self, ids: torch.Tensor, wanted: Collection[ScalarKey], reference: Any = None
    ) -> Mapping[ScalarKey, torch.Tensor]:
        """Return per-token scalars of ids [B, T], each [B, T] with a gradient.

        Entry t is about token t given the tokens before it; entry 0, which nothing precedes, is 0.
        """
        ...

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return what an optimiser moves."""
        ...
