"""Means over sampled tokens: masked numerator and denominator alike, and nothing at all where there is nothing.

Two quantities go by "entropy" in the field and are kept apart here: the *entropy* of a distribution, which needs the
whole of it and is never negative, and the *surprisal* of what was sampled, -log pi(sampled), whose mean estimates it.
"""

from typing import Any

from sim.learning.arrays import array_namespace
from sim.learning.weights import Weights

__all__ = ["clip_fractions", "distribution_entropy", "masked_mean", "mean_surprisal"]


def masked_mean(values: Any, mask: Any) -> float | None:
    """Return the mean of `values` where `mask`; None when nothing is there to average."""
    xp = array_namespace(values)
    kept = xp.broadcast_to(mask, values.shape) if mask.ndim != values.ndim or mask.shape != values.shape else mask
    count = int(xp.sum(xp.astype(kept, xp.int64)))
    if count == 0:
        return None
    return float(xp.sum(xp.where(kept, values, xp.zeros_like(values)))) / count


def mean_surprisal(logp: Any, mask: Any) -> float | None:
    """Return the mean of -log pi(sampled) over sampled tokens, nats; None when there are none."""
    mean = masked_mean(logp, mask)
    return None if mean is None else -mean


def distribution_entropy(logits: Any) -> Any:
    """Return the entropy of softmax(logits) on the last axis, nats."""
    xp = array_namespace(logits)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    total = xp.sum(xp.exp(shifted), axis=-1, keepdims=True)
    log_p = shifted - xp.log(total)
    return -xp.sum(xp.exp(log_p) * log_p, axis=-1)


def clip_fractions(weights: Weights, mask: Any) -> tuple[float | None, float | None]:
    """Return (binding, outside): two shares of sampled tokens that both go by "clip fraction".

    *Binding*: a bound changed the gradient, which depends on the sign of the advantage. *Outside*: the ratio lies outside
    the bounds, whatever the sign. None where there are no tokens or the rule has no bound.
    """
    if weights.binding is None or weights.outside is None:
        return None, None
    xp = array_namespace(mask)

    def share(flags: Any) -> float | None:
        return masked_mean(xp.astype(xp.broadcast_to(flags, mask.shape), xp.float64), mask)

    return share(weights.binding), share(weights.outside)
