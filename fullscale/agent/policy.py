"""A language model as a policy: per-token scalars with gradients; under an adapter its reference takes no memory."""

import copy
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from fullscale.agent.scoring import Asked, ScoringModel
from sim.learning.penalties import ScalarKey

__all__ = ["LanguagePolicy"]

KL: ScalarKey = ("kl", "ref")


class LanguagePolicy:
    """A causal language model, its temperature, and how its log-probs are had.

    Parameters
    ----------
    scoring
        The network; under sharding, the sharded one.
    temperature
        Divides the logits, in sampler and learner alike.
    """

    def __init__(self, scoring: ScoringModel, temperature: float = 1.0) -> None:
        if not temperature > 0:
            raise ValueError(f"temperature = {temperature} must be positive")
        self.scoring, self.temperature = scoring, temperature

    @property
    def model(self) -> nn.Module:
        """The Hugging Face model."""
        found: nn.Module = self.scoring.model
        return found

    def parameters(self) -> Iterable[nn.Parameter]:
        """Return what an optimiser moves: the adapter's parameters where there is one, else all."""
        return (p for p in self.scoring.parameters() if p.requires_grad)

    def frozen(self) -> "LanguagePolicy":
        """Return a copy that no optimiser moves; under an adapter, the same network with the adapter switched off."""
        if hasattr(self.model, "disable_adapter"):
            return AdapterOff(self.scoring, self.temperature)
        twin = copy.deepcopy(self.scoring).requires_grad_(False).eval()
        return LanguagePolicy(twin, self.temperature)

    def as_reference(self) -> AbstractContextManager[Any]:
        """Return the context in which this network is the policy that it is."""
        return nullcontext()

    def scalars(
        self,
        ids: Tensor,
        wanted: Collection[ScalarKey],
        reference: "LanguagePolicy | None" = None,
        where: Tensor | None = None,
    ) -> Mapping[ScalarKey, Tensor]:
        """Return "logp", "entropy" and the exact ("kl", "ref") as wanted, [B, T] each; 0 where not in `where`.

        They are on the device of `ids`.

        Parameters
        ----------
        where
            Tokens that count, [B, T], bool: those that were sampled. None for all but the first. Others cost no head.

        Raises
        ------
        ValueError
            For a scalar this network does not have, or a KL without a reference.
        """
        unknown = set(wanted) - {"logp", "entropy", KL}
        if unknown:
            raise ValueError(f"a language model has no scalar {unknown}; it has 'logp', 'entropy' and ('kl', 'ref')")
        if KL in wanted and reference is None:
            raise ValueError("an exact KL needs a reference policy; pass reference=")
        if where is None:
            where = torch.ones_like(ids, dtype=torch.bool)
            where[:, 0] = False
        here, device = ids.device, next(self.scoring.parameters()).device
        ids, where = ids.to(device), where.to(device)
        other = None
        if KL in wanted and reference is not None:
            with torch.no_grad(), reference.as_reference():
                other = reference.scoring.states(ids)
        asked = Asked(entropy="entropy" in wanted, kl=KL in wanted)
        with self.as_reference():
            found = self.scoring(ids, where, self.temperature, asked, other)
        names: dict[ScalarKey, str] = {"logp": "logp", "entropy": "entropy", KL: "kl"}
        return {key: found[name].to(here) for key, name in names.items() if key in wanted}


class AdapterOff(LanguagePolicy):
    """The network under an adapter, without it: a reference that takes no memory."""

    def as_reference(self) -> AbstractContextManager[Any]:
        """Return the context in which the adapter is off."""
        off: AbstractContextManager[Any] = self.model.disable_adapter()  # type: ignore[operator]
        return off

    def frozen(self) -> "LanguagePolicy":
        """Return itself: what the adapter started from never moves."""
        return self
