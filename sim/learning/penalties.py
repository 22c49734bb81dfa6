"""Penalties on scalars of the network other than the sampled log-probability: entropy, and the exact KL to a reference.

Each returns the coefficient of its scalar, pointing uphill. Both hold the visited states fixed: the gradient of the
*trajectory* KL has a further part, KL to go in the advantage, which is another quantity with another name.
"""

from typing import Any, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.records.config import config

__all__ = ["EntropyBonus", "KlPerState", "Penalty", "ScalarKey"]

ScalarKey = str | tuple[str, str]
"""Name of a per-token scalar of the network: ``"logp"``, ``"entropy"``, ``("kl", reference)``."""


@runtime_checkable
class Penalty(Protocol):
    """Anything that puts a coefficient on a scalar."""

    @property
    def scalar(self) -> ScalarKey:
        """The scalar it acts on."""
        ...

    def __call__(self, mask: Any, factor: Any) -> Any:
        """Return coefficients [..., Q, G, T] from the mask and the normaliser's factors."""
        ...


def _spread(strength: float, mask: Any, factor: Any) -> Any:
    xp = array_namespace(factor)
    return strength * xp.where(mask, xp.broadcast_to(factor, mask.shape), xp.zeros_like(factor))


@config
class EntropyBonus:
    """+ strength x H(pi) at the visited states."""

    strength: float
    """Weight, in units of the reward."""

    @property
    def scalar(self) -> ScalarKey:
        """The entropy of the token distribution, nats."""
        return "entropy"

    def __call__(self, mask: Any, factor: Any) -> Any:
        """Return strength x mask x factor."""
        return _spread(self.strength, mask, factor)


@config
class KlPerState:
    """- strength x KL(pi || reference) at the visited states, computed exactly over the vocabulary."""

    strength: float
    """beta, in units of the reward."""
    reference: str = "ref"
    """Name of the reference policy."""

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError(f"strength = {self.strength}: a KL penalty of negative strength rewards drift; use >= 0")

    @property
    def scalar(self) -> ScalarKey:
        """The KL to the named reference, nats."""
        return ("kl", self.reference)

    def __call__(self, mask: Any, factor: Any) -> Any:
        """Return -strength x mask x factor."""
        return _spread(-self.strength, mask, factor)
