"""Normalisers: what the sum over tokens is divided by. "GRPO loss" has meant each of these somewhere.

A normaliser maps lengths, [..., Q, G, T] (0 where masked; 1 a token, or a turn's length in tokens where a turn stands for
its tokens), to the factor each entry is multiplied by, broadcastable against it. It depends on masks alone, so it is
computed once per batch and the gradient is the same however the batch is cut up to execute it.

Excluded rollouts are outside numerator and denominator alike. A batch in which everything is masked gives factors of 0.
"""

from typing import Any, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.records.config import config

__all__ = ["BatchMean", "ConstantLength", "MicrobatchMean", "Normaliser", "SequenceMean", "TokenMean"]


@runtime_checkable
class Normaliser(Protocol):
    """Anything that turns lengths into factors."""

    def __call__(self, lengths: Any) -> Any:
        """Return factors broadcastable against `lengths` [..., Q, G, T]."""
        ...


def _inverse(x: Any) -> Any:
    """Return 1 / x, and 0 where x is 0."""
    xp = array_namespace(x)
    return xp.where(x > 0, 1 / xp.where(x > 0, x, xp.ones_like(x)), xp.zeros_like(x))


def _per_rollout(lengths: Any) -> Any:
    """Return the length of each rollout, [..., Q, G, 1]."""
    return array_namespace(lengths).sum(lengths, axis=-1, keepdims=True)


def _count(rollout_lengths: Any) -> Any:
    """Return the number of rollouts with any length, [..., 1, 1, 1]."""
    xp = array_namespace(rollout_lengths)
    return xp.astype(xp.sum(rollout_lengths > 0, axis=(-3, -2, -1), keepdims=True), rollout_lengths.dtype)


@config
class TokenMean:
    """1 / (tokens of the whole batch): every token counts the same (DAPO, arXiv 2503.14476, equation 12)."""

    def __call__(self, lengths: Any) -> Any:
        """Return factors [..., 1, 1, 1]."""
        return _inverse(array_namespace(lengths).sum(lengths, axis=(-3, -2, -1), keepdims=True))


@config
class SequenceMean:
    """1 / (rollouts x own length): every rollout counts the same, a token of a short one more (GRPO, 2402.03300)."""

    def __call__(self, lengths: Any) -> Any:
        """Return factors [..., Q, G, 1]."""
        own = _per_rollout(lengths)
        return _inverse(own) * _inverse(_count(own))


@config
class ConstantLength:
    """1 / (rollouts x L) with one L for all (Dr. GRPO, arXiv 2503.20783)."""

    length: float
    """L, in the units of `lengths`."""

    def __post_init__(self) -> None:
        if self.length <= 0:
            raise ValueError(f"length = {self.length} must be positive")

    def __call__(self, lengths: Any) -> Any:
        """Return factors [..., 1, 1, 1]."""
        return _inverse(_count(_per_rollout(lengths))) / self.length


@config
class BatchMean:
    """1 / (Q x G): the sum over a rollout's tokens, averaged over rollouts; the policy gradient itself."""

    def __call__(self, lengths: Any) -> Any:
        """Return factors [..., 1, 1, 1]."""
        return _inverse(_count(_per_rollout(lengths)))


@config
class MicrobatchMean:
    """The mean over micro-batches of `size` consecutive rollouts (recorded order) of each one's token mean.

    Stock verl, and so Search-R1, averages so by accident of execution; here it is part of the objective, however the
    batch is executed. Size 1 is the sequence mean; Q x G is the token mean. A micro-batch with no token does not count.
    """

    size: int
    """Rollouts in a micro-batch; the last one may be smaller."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"size = {self.size} must be at least 1 rollout")

    def __call__(self, lengths: Any) -> Any:
        """Return factors [..., Q, G, 1]."""
        xp = array_namespace(lengths)
        own = _per_rollout(lengths)
        *lead, Q, G, _ = own.shape
        flat = xp.reshape(own, (*lead, Q * G))
        short = -(Q * G) % self.size
        if short:
            flat = xp.concat([flat, xp.zeros((*lead, short), dtype=flat.dtype, device=flat.device)], axis=-1)
        chunks = xp.reshape(flat, (*lead, -1, self.size))
        tokens = xp.sum(chunks, axis=-1, keepdims=True)
        used = xp.sum(xp.astype(tokens > 0, tokens.dtype), axis=-2, keepdims=True)
        factor = xp.broadcast_to(_inverse(tokens) * _inverse(used), chunks.shape)
        return xp.reshape(xp.reshape(factor, flat.shape)[..., : Q * G], own.shape)
