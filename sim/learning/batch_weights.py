"""Weights that must see the whole batch: normalised to a mean of 1, and masked by a second moment."""

from typing import Literal

from sim.learning.arrays import array_namespace
from sim.learning.batch import Reads
from sim.learning.view import Ratio, Scope, View, exponential, read_by
from sim.learning.weights import Bounds, Weight, Weights
from sim.records.config import config

__all__ = ["BatchNormalised", "SecondMoment"]


@config
class BatchNormalised:
    """w / (mean of w over the batch's sampled tokens): the weights average to 1, zeros included."""

    weight: Weight
    """What is normalised."""

    @property
    def reads(self) -> tuple[Reads, ...]:
        """What the weight reads."""
        return tuple(getattr(self.weight, "reads", ()))

    @property
    def scope(self) -> Scope:
        """The batch."""
        return "batch"

    def __call__(self, view: View) -> Weights:
        """Return the weights divided by their mean; 0 where all of them are."""
        xp = array_namespace(view.now)
        w = self.weight(view)
        axes = (-3, -2, -1)
        count = xp.sum(view.sampled, axis=axes, keepdims=True)
        total = xp.sum(view.sampled * w.value, axis=axes, keepdims=True)
        some = total > 0
        scale = xp.where(some, count, xp.zeros_like(count)) / xp.where(some, total, xp.ones_like(total))
        return Weights(w.value * scale, w.factors, w.bounds)


@config
class SecondMoment:
    """w = r where r is kept; tokens with the largest (log r)^2 are masked until its mean over the rest is small enough.

    The mean is over, and the mask falls on, the tokens that a trust region is about: those an update moves further away
    (A > 0 and r > 1, or A < 0 and r < 1). The others keep their ratio. Tokens of equal (log r)^2 share a fate, so the order
    of the batch does not matter.

    Source: M2PO, arXiv 2510.01161, algorithm 1. AReaL's code takes the mean over all tokens (``of="all"``) and of
    pi_old / mu; the authors' code turns the threshold into bounds for PPO's clip.
    """

    threshold: float = 0.04
    """Bound on the mean (log r)^2, nats^2 (0.04 in the authors' scripts)."""
    ratio: Ratio = "now/behaviour"
    """The two policies."""
    of: Literal["away", "all"] = "away"
    """Which tokens the mean is over: those that move away, or all."""

    @property
    def reads(self) -> tuple[Reads, ...]:
        """The reference, where it is compared with."""
        return read_by(self.ratio)

    def __post_init__(self) -> None:
        if self.threshold <= 0:
            raise ValueError(f"threshold = {self.threshold} must be positive, in nats squared")

    @property
    def scope(self) -> Scope:
        """The batch."""
        return "batch"

    def __call__(self, view: View) -> Weights:
        """Return the ratios, 0 where masked."""
        xp = array_namespace(view.now)
        log = view.log_ratio(self.ratio)
        if log is None:
            one = view.one()
            return Weights(one, (one,), (Bounds(one * 0, 0.0, float("inf"), (0.0, float("inf"))),))
        square = log * log
        bound = view.mask if self.of == "all" else view.mask & (view.advantage * log > 0)
        *lead, Q, G, T = square.shape
        # the others sort to the far end and are no part of any mean
        ordered = xp.sort(xp.reshape(xp.where(bound, square, xp.inf), (*lead, Q * G * T)), axis=-1)
        real = xp.isfinite(ordered)
        mean = xp.cumulative_sum(xp.where(real, ordered, xp.zeros_like(ordered)), axis=-1)
        mean = mean / xp.arange(1, Q * G * T + 1, dtype=mean.dtype, device=mean.device)
        # means of a rising sequence rise: the first that is too large is the smallest square to be masked
        over = real & (mean > self.threshold)
        cut = xp.min(xp.where(over, ordered, xp.inf), axis=-1)[..., None, None, None]
        masked = bound & (square >= cut)
        unclamped = exponential(log)
        value = xp.where(masked, xp.zeros_like(unclamped), unclamped)
        kept = xp.where(bound & ~masked, square, xp.zeros_like(square))
        largest = xp.where(bound, xp.max(kept, axis=(-3, -2, -1), keepdims=True), xp.full_like(square, xp.inf))
        return Weights(value, (unclamped,), (Bounds(square, 0.0, largest, (0.0, float("inf"))),))
