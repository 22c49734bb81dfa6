"""Penalties in the loss: each returns the coefficient of one scalar of the network, uphill.

Entropy and the exact KL have scalars of their own. Penalties that a sample estimates (k1, k2, k3, squared log-ratios, LLDS)
are functions of the sampled log-prob: their derivative with respect to it joins the coefficient of ``"logp"``.

``KlPerState`` holds the visited states fixed. The gradient of the KL of whole trajectories has a further part, the KL that a
token leads to (``KlToGo``): two quantities with two names. Penalties in the *reward* are in :mod:`sim.learning.shaping`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.learning.batch import Reads
from sim.learning.view import Ratio, ScalarKey, Scope, View, exponential, over_level, read_by, scope_of
from sim.records.config import config

__all__ = [
    "EntropyBonus",
    "KlPerState",
    "KlToGo",
    "LikelihoodFloor",
    "Penalty",
    "SampledKl",
    "ScalarKey",
    "SquaredLogRatio",
    "kl_estimate",
]

Estimator = Literal["k1", "k2", "k3"]
Correction = Literal["none", "detached", "differentiated"]


@runtime_checkable
class Penalty(Protocol):
    """Anything that puts a coefficient on a scalar."""

    @property
    def scalar(self) -> ScalarKey:
        """The scalar it acts on."""
        ...

    @property
    def scope(self) -> Scope:
        """The unit that must be in view at once."""
        ...

    def __call__(self, view: View) -> Any:
        """Return coefficients, broadcastable to [..., Q, G, T]; finite at masked entries, which the rule sets to 0."""
        ...


def check_strength(strength: float) -> None:
    """Raise where a penalty would be a reward."""
    if strength < 0:
        raise ValueError(
            f"strength = {strength}: a penalty of negative strength rewards what it should bound; use >= 0"
        )


@config
class EntropyBonus:
    """+ strength x H(pi) at the visited states."""

    strength: float
    """Weight, in units of the reward."""
    scope: ClassVar[Scope] = "token"
    scalar: ClassVar[ScalarKey] = "entropy"

    def __call__(self, view: View) -> Any:
        """Return strength x factor."""
        return self.strength * view.factor


@config
class KlPerState:
    """- strength x KL(pi || reference) at the visited states, computed exactly over the vocabulary."""

    strength: float
    """beta, in units of the reward."""
    reference: str = "ref"
    """Name of the reference policy."""
    scope: ClassVar[Scope] = "token"

    def __post_init__(self) -> None:
        check_strength(self.strength)

    @property
    def scalar(self) -> ScalarKey:
        """The KL to the named reference, nats."""
        return ("kl", self.reference)

    def __call__(self, view: View) -> Any:
        """Return -strength x factor."""
        return -self.strength * view.factor


@config
class KlToGo:
    """- strength x (KL of the states a token leads to), on the token's log-prob.

    grad E[sum_t KL_t] = E[sum_t grad KL_t + grad log pi_t x sum_{s > t} KL_s]; this is the second part, KlPerState the
    first. Together with a mean over rollouts (BatchMean) they are the exact gradient of the trajectory KL, on policy.
    """

    strength: float
    """beta, in units of the reward."""
    reference: str = "ref"
    """Name of the reference policy."""
    scope: ClassVar[Scope] = "sequence"
    scalar: ClassVar[ScalarKey] = "logp"
    reads: ClassVar[tuple[Reads, ...]] = ("kl",)

    def __post_init__(self) -> None:
        check_strength(self.strength)

    def __call__(self, view: View) -> Any:
        """Return -strength x (sum of later exact KLs) x factor.

        Raises
        ------
        ValueError
            When the view has no exact KL of its states.
        """
        key = ("kl", self.reference)
        if key not in view.values:
            raise ValueError(
                f"KlToGo needs the exact KL of the visited states: coefficients(..., values={{{key}: ...}})"
            )
        xp = array_namespace(view.now)
        kl = xp.where(view.mask, view.values[key], xp.zeros_like(view.now))
        later = xp.sum(kl, axis=-1, keepdims=True) - xp.cumulative_sum(kl, axis=-1)
        return later * (-self.strength * view.factor)


def kl_estimate(d: Any, estimator: Estimator) -> tuple[Callable[[], Any], Any]:
    """Return an estimate of KL(pi || ref) from d = log pi - log ref of samples of pi (when called), and its slope by log pi.

    k1 = d; k2 = d^2 / 2; k3 = exp(-d) - 1 + d. All but k2 estimate the KL without bias, and only k2's derivative does so for
    its gradient: k1's averages to 0, k3's to the gradient of KL(ref || pi).

    Source: Schulman, "Approximating KL divergence" (2020); the gradients are worked out in the tests.
    """
    xp = array_namespace(d)
    if estimator == "k1":
        return lambda: d, xp.ones_like(d)
    if estimator == "k2":
        return lambda: d * d / 2, d
    slope = 1 - exponential(-d)
    return lambda: d - slope, slope


@config
class SampledKl:
    """- strength x an estimate of KL(pi || reference) from the sampled tokens.

    The derivative by log pi, with rho = pi / mu where a correction is asked for:
    ``none``: k'; ``detached``: rho k'; ``differentiated``: rho (k' + k), the gradient of rho k.

    What it regularises: k2 on policy or times the detached ratio, and k1 or k3 times the differentiated ratio, give the
    gradient of KL(pi || ref) (k2 does not: its own mean is not the KL). With no more than a detached ratio k1 gives 0 and
    k3 the gradient of KL(ref || pi); ``none`` does so on policy only. GRPO's own penalty is k3 without correction
    (2402.03300).
    """

    strength: float
    """beta, in units of the reward."""
    estimator: Estimator = "k3"
    """Which estimate."""
    correction: Correction = "none"
    """What makes up for sampling from mu."""
    scope: ClassVar[Scope] = "token"
    scalar: ClassVar[ScalarKey] = "logp"
    reads: ClassVar[tuple[Reads, ...]] = ("reference",)

    def __post_init__(self) -> None:
        check_strength(self.strength)

    def __call__(self, view: View) -> Any:
        """Return -strength x derivative x factor."""
        xp = array_namespace(view.now)
        d = view.log_ratio("now/reference")
        value, slope = kl_estimate(xp.zeros_like(view.now) if d is None else d, self.estimator)
        if self.correction == "differentiated":
            slope = slope + value()
        log = view.log_ratio("now/behaviour")
        if self.correction != "none" and log is not None:
            slope = slope * exponential(log)
        return slope * (-self.strength * view.factor)


@config
class SquaredLogRatio:
    """- strength x (log-ratio)^2, of a whole sequence or of each token.

    (sum_t log rho_t)^2 is Kimi K1.5's and K2's (2501.12599); sum_t (log rho_t)^2 is K2.5's (2602.02276). Only the first,
    with the log-partition as baseline, has the exact tilt pi_old exp(R / tau) / Z as its optimum, for large groups and
    rewards that the actions fix.
    """

    strength: float
    """Weight of the square, in units of the reward."""
    level: Literal["token", "sequence"] = "sequence"
    """What is squared."""
    ratio: Ratio = "now/proximal"
    """The two policies."""
    scalar: ClassVar[ScalarKey] = "logp"

    def __post_init__(self) -> None:
        check_strength(self.strength)

    @property
    def scope(self) -> Scope:
        """A token or a sequence."""
        return scope_of(self.level)

    @property
    def reads(self) -> tuple[Reads, ...]:
        """The reference, where it is compared with."""
        return read_by(self.ratio)

    def __call__(self, view: View) -> Any:
        """Return -2 strength x log-ratio x factor."""
        log = view.log_ratio(self.ratio)
        if log is None:
            return array_namespace(view.now).zeros_like(view.now)
        return over_level(log, self.level, view.mask) * (-2 * self.strength * view.factor)


@config
class LikelihoodFloor:
    """LLDS: holds up the likelihood of what was not worse than average.

    - strength x 1[A >= 0] x 1[the turn's log-likelihood fell] x max(0, log pi_old - log pi), per token. The gate is the
    sum over the turn; the sum is divided by the rule's normaliser.

    Source: arXiv 2512.04220; its code has strength 0.2 and a mean over tokens.
    """

    strength: float = 0.2
    """lambda, in units of the reward."""
    scope: ClassVar[Scope] = "turn"
    scalar: ClassVar[ScalarKey] = "logp"
    reads: ClassVar[tuple[Reads, ...]] = ("turn",)

    def __post_init__(self) -> None:
        check_strength(self.strength)

    def __call__(self, view: View) -> Any:
        """Return strength x factor where the gate is open and the token's log-prob fell."""
        xp = array_namespace(view.now)
        log = view.log_ratio("now/proximal")
        if log is None:
            return xp.zeros_like(view.now)
        fell = (over_level(log, "turn", view.mask, view.turn) < 0) & (log < 0) & (view.advantage >= 0)
        return xp.astype(fell, view.now.dtype) * (self.strength * view.factor)
