"""Weights: how much each sampled token's advantage counts, given what the policy has become since it was sampled.

The update direction of every objective here is sum of w x A x grad log pi with w held constant: the stop-gradient is the
same for all, and a paper that differentiates min(rho A, clip(rho) A) arrives at w = rho or 0. Most weights of the field are
one thing, a ratio of two policies at some level, kept inside a region that may depend on the sign of A; :class:`Bounded` is
that, and :class:`Product` multiplies several. Named ones are functions that return them.
"""

import operator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.learning.batch import Reads
from sim.learning.view import Level, Ratio, Scope, View, broadest, exponential, over_level, read_by, scope_of
from sim.records.config import config

__all__ = [
    "Bounded",
    "Bounds",
    "Product",
    "Region",
    "Unweighted",
    "Weight",
    "Weights",
    "ppo_clip",
    "truncated",
]


@dataclass(frozen=True, eq=False)
class Bounds:
    """Where one ratio met its bounds; what it means is computed when asked for."""

    ratio: Any
    """The unclamped ratio."""
    low: Any
    """Least ratio kept, by the sign of A."""
    high: Any
    """Largest ratio kept, by the sign of A."""
    band: tuple[float, float]
    """The narrowest bounds of either sign."""


@dataclass(frozen=True, eq=False)
class Weights:
    """Weights of a batch, and what the rule did."""

    value: Any
    """w, broadcastable to [..., Q, G, T]; finite at masked entries, where it is multiplied by 0."""
    factors: tuple[Any, ...]
    """What w would be without any bound, as factors, each broadcastable to [..., Q, G, T]; 1 at masked entries."""
    bounds: tuple[Bounds, ...] = ()
    """One for each bounded ratio in w."""

    @property
    def unclamped(self) -> Any:
        """W as it would be without any bound: the product of its factors."""
        return reduce(operator.mul, self.factors)

    @property
    def binding(self) -> Any:
        """Where a bound changed the gradient (depends on the sign of A), bool, or None if the rule has no bound."""
        return _any([(b.ratio < b.low) | (b.ratio > b.high) for b in self.bounds])

    @property
    def outside(self) -> Any:
        """Where a ratio lies outside the bounds of either sign, bool, or None if the rule has no bound."""
        return _any([(b.ratio < b.band[0]) | (b.ratio > b.band[1]) for b in self.bounds])


def _any(found: list[Any]) -> Any:
    return reduce(operator.or_, found) if found else None


@runtime_checkable
class Weight(Protocol):
    """Anything that weights sampled tokens."""

    @property
    def scope(self) -> Scope:
        """The unit that must be in view at once."""
        ...

    def __call__(self, view: View) -> Weights:
        """Return the weights."""
        ...


@config
class Unweighted:
    """w = 1: REINFORCE, the plain on-policy gradient. The ratio is still reported."""

    @property
    def scope(self) -> Scope:
        """A token."""
        return "token"

    def __call__(self, view: View) -> Weights:
        """Return ones."""
        log = view.log_ratio("now/behaviour")
        return Weights(view.one(), (view.one() if log is None else exponential(log),))


@config
class Region:
    """The ratios that are kept as they are, ends included, and what becomes of the others."""

    low: float = 0.0
    """Least ratio."""
    high: float | None = None
    """Largest ratio; None for no bound."""
    outside: Literal["zero", "truncate"] = "zero"
    """``"zero"``: no gradient; ``"truncate"``: the ratio is replaced by the bound it passed."""

    def __post_init__(self) -> None:
        if self.low < 0 or (self.high is not None and self.high < self.low):
            raise ValueError(f"a region from {self.low} to {self.high} is empty; ratios are positive, low <= high")

    @property
    def top(self) -> float:
        """Largest ratio, as a number."""
        return float("inf") if self.high is None else self.high


@config
class Bounded:
    """w = r inside a region, and 0 or the bound outside it; the region may depend on the sign of A.

    r = exp(log top - log bottom) of two policies, at a level: of the token, of its turn or sequence (product), the
    geometric mean of its sequence, or the least token ratio of its sequence. In log space throughout, so a product over
    300 tokens neither overflows nor vanishes before it is clamped.
    """

    ratio: Ratio = "now/proximal"
    """The two policies."""
    level: Level = "token"
    """The unit the ratio is about."""
    positive: Region = Region()
    """Region where A > 0."""
    negative: Region | None = None
    """Region where A < 0; None for the same."""
    inside: Literal["ratio", "one"] = "ratio"
    """w inside the region: r, or 1 (a mask, where another factor carries the ratio)."""

    def __post_init__(self) -> None:
        if self.inside == "one" and "truncate" in (r.outside for r in self.regions()):
            raise ValueError(
                'inside = "one" makes a mask, and a mask has no bound to truncate to; use outside = "zero"'
            )

    @property
    def scope(self) -> Scope:
        """The unit of the level."""
        return scope_of(self.level)

    @property
    def reads(self) -> tuple[Reads, ...]:
        """The reference or the turns, where the ratio is about them."""
        return (*read_by(self.ratio), *(("turn",) if self.level == "turn" else ()))

    def regions(self) -> tuple[Region, Region]:
        """Return the regions for A > 0 and A < 0."""
        return self.positive, self.positive if self.negative is None else self.negative

    def band(self) -> tuple[float, float]:
        """Return the narrowest bounds of either sign."""
        up, down = self.regions()
        return max(up.low, down.low), min(up.top, down.top)

    def __call__(self, view: View) -> Weights:
        """Return the bounded ratios; those without the current policy are computed once a batch."""
        if self.ratio != "proximal/behaviour":
            return self._weigh(view)
        if self not in view.fixed:
            view.fixed[self] = self._weigh(view)
        found: Weights = view.fixed[self]
        return found

    def _weigh(self, view: View) -> Weights:
        log = view.log_ratio(self.ratio)
        if log is None and self.band()[0] <= 1 <= self.band()[1]:  # one policy: every ratio is 1, no bound can bind
            one = view.one()
            return Weights(one, (one,), (Bounds(one, 0.0, float("inf"), self.band()),))
        ratio = view.one() if log is None else exponential(over_level(log, self.level, view.mask, view.turn))
        up, down = self.regions()
        low, high = _by_sign(view.advantage, up.low, down.low), _by_sign(view.advantage, up.top, down.top)
        value = self._inside(ratio, low, high, view.advantage)
        unclamped = ratio if self.inside == "ratio" else view.one()
        return Weights(value, (unclamped,), (Bounds(ratio, low, high, self.band()),))

    def _inside(self, ratio: Any, low: Any, high: Any, advantage: Any) -> Any:
        xp = array_namespace(ratio)
        outside = _outside(ratio, low, high)
        if self.inside == "one":
            return xp.ones_like(ratio) if outside is None else xp.astype(~outside, ratio.dtype)
        if outside is None:
            return ratio
        up, down = self.regions()
        if up.outside == down.outside == "truncate":
            return _clamp(ratio, low, high)
        zeroed = xp.where(outside, _scalar(0.0, ratio), ratio)
        if up.outside == down.outside:
            return zeroed
        truncates = (advantage > 0) if up.outside == "truncate" else (advantage <= 0)
        return xp.where(truncates, _clamp(ratio, low, high), zeroed)


def _outside(ratio: Any, low: Any, high: Any) -> Any:
    """Return where a ratio passes a bound, or None where there is none."""
    passed = [] if isinstance(low, float) and low == 0 else [ratio < low]
    if not (isinstance(high, float) and high == float("inf")):
        passed.append(ratio > high)
    return _any(passed)


def _scalar(value: float, like: Any) -> Any:
    """Return a number as an array of no axes, of the kind of `like`."""
    return array_namespace(like).asarray(value, dtype=like.dtype, device=like.device)


def _by_sign(advantage: Any, up: float, down: float) -> Any:
    """Return `up` where A > 0 and `down` elsewhere; a plain number where they are the same."""
    if up == down:
        return up
    return array_namespace(advantage).where(advantage > 0, _scalar(up, advantage), _scalar(down, advantage))


def _clamp(ratio: Any, low: Any, high: Any) -> Any:
    """Return the ratio kept between its bounds; a plain 0 or infinity is none."""
    low = None if isinstance(low, float) and low == 0 else low
    high = None if isinstance(high, float) and high == float("inf") else high
    return array_namespace(ratio).clip(ratio, min=low, max=high)


def ppo_clip(low: float = 0.2, high: float = 0.2, dual: float | None = None) -> Bounded:
    """Return PPO's clipped ratio: w = rho, and 0 where the bound binds.

    The gradient of min(rho A, clip(rho, 1 - low, 1 + high) A) is rho A grad log pi, except 0 where A > 0 and
    rho > 1 + high or A < 0 and rho < 1 - low. It is unbounded for A < 0 and large rho, unless `dual` bounds it: the loss of
    a token with A < 0 is then capped at dual x |A|.

    Source: Schulman et al., arXiv 1707.06347, equation 7; unequal bounds: DAPO, arXiv 2503.14476; dual clip: Ye et al.,
    arXiv 1912.09729.

    Raises
    ------
    ValueError
        For bounds outside their range.
    """
    if not 0 < low < 1:
        raise ValueError(f"low = {low} must lie in (0, 1): the ratio is bounded below by 1 - low")
    if high <= 0:
        raise ValueError(f"high = {high} must be positive: the ratio is bounded above by 1 + high")
    if dual is not None and dual <= 1:
        raise ValueError(f"dual = {dual} must be above 1: it caps the ratio of tokens with A < 0")
    return Bounded(positive=Region(high=1 + high), negative=Region(low=1 - low, high=dual))


def truncated(high: float, ratio: Ratio = "now/proximal") -> Bounded:
    """Return w = min(r, high): no token loses its gradient (CISPO's and TIS's weight)."""
    return Bounded(ratio, positive=Region(high=high, outside="truncate"))


@config
class Product:
    """w = the product of several weights, each with its own ratio, level and region."""

    factors: tuple[Weight, ...]
    """What is multiplied."""

    def __post_init__(self) -> None:
        if not self.factors:
            raise ValueError("a product of no weights; use Unweighted()")

    @property
    def scope(self) -> Scope:
        """The broadest of its factors'."""
        return broadest(*(f.scope for f in self.factors))

    @property
    def reads(self) -> tuple[Reads, ...]:
        """What its factors read."""
        return tuple(name for f in self.factors for name in getattr(f, "reads", ()))

    def __call__(self, view: View) -> Weights:
        """Return the products."""
        found = [f(view) for f in self.factors]
        value = reduce(operator.mul, [w.value for w in found])
        return Weights(value, sum((w.factors for w in found), ()), sum((w.bounds for w in found), ()))
