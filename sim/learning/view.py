"""What a weight or a penalty sees at one forward, and the ratios between the policies in play.

Four policies: the one being updated (now), the learner's when the batch began (proximal, pi_old), the one the engine
sampled from (behaviour, mu), and a fixed one (reference). Log-ratios are masked before they are exponentiated, so a padded
entry can never become inf x 0. Products over a turn or a sequence are sums of log-ratios, and only then exponentiated.
"""

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from sim.learning.arrays import array_namespace
from sim.learning.batch import Reads

__all__ = [
    "Level",
    "Ratio",
    "ScalarKey",
    "Scope",
    "View",
    "broadest",
    "exponential",
    "log_ratio",
    "over_level",
    "read_by",
    "scope_of",
]

Ratio = Literal["now/proximal", "now/behaviour", "proximal/behaviour", "now/reference"]
"""Which two policies are compared."""

Level = Literal["token", "turn", "sequence", "geometric", "least"]
"""A token's own ratio; the product over its turn or its sequence; the geometric mean, or the least, over its sequence."""

Scope = Literal["token", "turn", "sequence", "group", "batch"]
"""The unit that must be in view at once."""

ScalarKey = str | tuple[str, str]
"""Name of a per-token scalar of the network: ``"logp"``, ``"entropy"``, ``("kl", reference)``."""

_SCOPES: tuple[Scope, ...] = ("token", "turn", "sequence", "group", "batch")


def broadest(*scopes: Scope) -> Scope:
    """Return the largest of the units."""
    return max(scopes, key=_SCOPES.index)


def scope_of(level: Level) -> Scope:
    """Return the unit a level needs."""
    return level if level in ("token", "turn") else "sequence"


def read_by(ratio: Ratio) -> tuple[Reads, ...]:
    """Return what a ratio reads beyond the log-probs of sampler and learner."""
    return ("reference",) if ratio == "now/reference" else ()


@dataclass(frozen=True, eq=False)
class View:
    """Detached arrays, [..., Q, G, T] unless said otherwise."""

    now: Any
    """log pi of what was sampled."""
    proximal: Any
    """log pi_old; the same object as `behaviour` where there is one engine."""
    behaviour: Any
    """log mu."""
    advantage: Any
    """A, [..., Q, G, 1] or [..., Q, G, T]."""
    mask: Any
    """What counts, bool."""
    sampled: Any
    """The same as 1 and 0 in the dtype of the log-probs."""
    factor: Any
    """The normaliser's factors, broadcastable."""
    reference: Any = None
    """log pi_ref, or None."""
    turn: Any = None
    """Turn of each token, int, or None where every entry is a turn."""
    values: Mapping[ScalarKey, Any] = field(default_factory=dict)
    """Current values of other scalars, for penalties that read them."""
    fixed: dict[Hashable, Any] = field(default_factory=dict)
    """What does not change from one forward on a batch to the next, by the part that computed it."""
    logs: dict[Ratio, Any] = field(default_factory=dict, init=False)
    """Log-ratios of this forward, by name: weight and penalties often want the same."""

    @classmethod
    def of(cls, now: Any, behaviour: Any, advantage: Any, mask: Any, **more: Any) -> "View":
        """Return the view of one engine and a normaliser of 1; `more` sets other fields."""
        xp = array_namespace(now)
        base = {"proximal": behaviour, "sampled": xp.astype(mask, now.dtype), "factor": 1.0}
        return cls(now=now, behaviour=behaviour, advantage=advantage, mask=mask, **(base | more))

    def log_ratio(self, ratio: Ratio) -> Any:
        """Return the log-ratio of two policies, 0 at masked entries; None where they are one and the same array.

        Raises
        ------
        ValueError
            When the batch has no such log-probs.
        """
        top, bottom = (getattr(self, name) for name in ratio.split("/"))
        if bottom is None:  # of the four policies only the reference may be absent
            raise ValueError(f"a ratio {ratio} needs Batch(reference=...), which this batch does not have")
        if top is bottom:
            return None
        if ratio not in self.logs:
            self.logs[ratio] = log_ratio(top, bottom, self.mask)
        return self.logs[ratio]

    def one(self) -> Any:
        """Return 1, broadcastable."""
        return array_namespace(self.now).ones((1,) * self.now.ndim, dtype=self.now.dtype, device=self.now.device)


def log_ratio(top: Any, bottom: Any, mask: Any) -> Any:
    """Return top - bottom, 0 at masked entries whatever stands there."""
    xp = array_namespace(top)
    difference = top - bottom
    return xp.where(mask, difference, xp.zeros((), dtype=difference.dtype, device=difference.device))


def exponential(log_ratios: Any) -> Any:
    """Return the ratios, at most about the square root of the dtype's largest number (8e153 in float64, 1e19 in float32).

    A ratio beyond that cannot be told from infinity by anything a rule does with it, and infinity times an advantage of 0
    is no number. The product of two that saturate is still finite.
    """
    xp = array_namespace(log_ratios)
    return xp.exp(xp.clip(log_ratios, max=(math.log(xp.finfo(log_ratios.dtype).max) - 1) / 2))


def over_level(log_ratios: Any, level: Level, mask: Any, turn: Any = None) -> Any:
    """Return the log-ratio of each entry's unit, broadcastable to [..., T].

    ``geometric`` divides the sum over a sequence by its number of sampled tokens; ``least`` is the smallest.
    """
    xp = array_namespace(log_ratios)
    if level == "token" or (level == "turn" and turn is None):
        return log_ratios
    if level == "turn":
        return _by_turn(log_ratios, mask, turn)
    if level == "least":
        least = xp.min(xp.where(mask, log_ratios, xp.full_like(log_ratios, xp.inf)), axis=-1, keepdims=True)
        return xp.where(xp.isfinite(least), least, xp.zeros_like(least))  # 0 where nothing was sampled
    total = xp.sum(log_ratios, axis=-1, keepdims=True)
    if level == "sequence":
        return total
    count = xp.sum(xp.astype(mask, total.dtype), axis=-1, keepdims=True)
    return total / xp.where(count > 0, count, xp.ones_like(count))


def _by_turn(x: Any, mask: Any, turn: Any) -> Any:
    """Return the sum over the sampled tokens of each token's turn, [..., T]."""
    xp = array_namespace(x)
    found, zero = xp.zeros_like(x), xp.zeros_like(x)
    for k in range(int(xp.max(turn)) + 1):
        here = mask & (turn == k)
        found = xp.where(here, xp.sum(xp.where(here, x, zero), axis=-1, keepdims=True), found)
    return found
