"""Weights: how much each sampled token's advantage counts, given what the policy has become since it was sampled.

The update direction of every objective here is sum of weight x A x grad log pi with the weight held constant (its
stop-gradient). A rule states its *scope*, the unit it must see at once. Log-ratios are masked before they are
exponentiated, so a padded entry can never become inf x 0.
"""

from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.records.config import config

__all__ = ["PpoClip", "Scope", "Unweighted", "Weight", "Weights", "log_ratio"]

Scope = Literal["token", "turn", "sequence", "group", "batch"]


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of a batch, and what the rule did."""

    value: Any
    """w, broadcastable to [..., Q, G, T]; finite at masked entries, where it is multiplied by 0."""
    unclamped: Any
    """The ratio before any bound, broadcastable to [..., Q, G, T]; 1 at masked entries."""
    binding: Any
    """Where a bound changed the gradient (depends on the sign of A), bool, or None if the rule has no bound."""
    outside: Any
    """Where the ratio lies outside the bounds, whatever the sign of A, bool, or None if the rule has no bound."""


@runtime_checkable
class Weight(Protocol):
    """Anything that weights sampled tokens."""

    @property
    def scope(self) -> Scope:
        """The unit that must be in one micro-batch."""
        ...

    def __call__(self, logp: Any, behaviour: Any, advantage: Any, mask: Any) -> Weights:
        """Return the weights for log-probs now and at sampling [..., Q, G, T], A [..., Q, G, 1], mask [..., Q, G, T]."""
        ...


def log_ratio(logp: Any, behaviour: Any, mask: Any) -> Any:
    """Return log(pi / mu), 0 at masked entries."""
    xp = array_namespace(logp)
    difference = logp - behaviour
    return xp.where(mask, difference, xp.zeros_like(difference))


def _one(logp: Any) -> Any:
    """Return 1, broadcastable against `logp`."""
    return array_namespace(logp).ones((1,) * logp.ndim, dtype=logp.dtype)


@config
class Unweighted:
    """w = 1: REINFORCE, the plain on-policy gradient."""

    @property
    def scope(self) -> Scope:
        """A token."""
        return "token"

    def __call__(self, logp: Any, behaviour: Any, advantage: Any, mask: Any) -> Weights:
        """Return ones; the ratio is still reported."""
        one = _one(logp)
        if logp is behaviour:
            return Weights(one, one, None, None)
        return Weights(one, array_namespace(logp).exp(log_ratio(logp, behaviour, mask)), None, None)


@config
class PpoClip:
    """PPO's clipped ratio: w = rho, and 0 where the bound binds.

    The gradient of min(rho A, clip(rho, 1 - low, 1 + high) A) is rho A grad log pi, except 0 where A > 0 and
    rho > 1 + high or A < 0 and rho < 1 - low. It is unbounded for A < 0 and large rho.

    Source: Schulman et al., arXiv 1707.06347, equation 7; unequal bounds: DAPO, arXiv 2503.14476.
    """

    low: float = 0.2
    """Lower bound is 1 - low."""
    high: float = 0.2
    """Upper bound is 1 + high."""

    def __post_init__(self) -> None:
        if not 0 < self.low < 1:
            raise ValueError(f"low = {self.low} must lie in (0, 1): the ratio is bounded below by 1 - low")
        if self.high <= 0:
            raise ValueError(f"high = {self.high} must be positive: the ratio is bounded above by 1 + high")

    @property
    def scope(self) -> Scope:
        """A token."""
        return "token"

    def __call__(self, logp: Any, behaviour: Any, advantage: Any, mask: Any) -> Weights:
        """Return rho, zeroed where the bound binds."""
        xp = array_namespace(logp)
        if logp is behaviour:  # the first update on policy: every ratio is 1 and no bound can bind
            one, none = _one(logp), xp.astype(_one(logp), xp.bool) ^ True
            return Weights(one, one, none, none)
        ratio = xp.exp(log_ratio(logp, behaviour, mask))
        above, below = ratio > 1 + self.high, ratio < 1 - self.low
        binding = ((advantage > 0) & above) | ((advantage < 0) & below)
        return Weights(xp.where(binding, xp.zeros_like(ratio), ratio), ratio, binding, above | below)
