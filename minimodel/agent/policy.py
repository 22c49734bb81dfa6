"""The tiny transformer as a policy: per-token scalars of the network, with gradients."""

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from minimodel.model.transformer import Transformer
from sim.learning.penalties import ScalarKey

__all__ = ["Push", "TinyPolicy", "log_probs"]


@dataclass(frozen=True)
class Push:
    """Logits added from outside to one token at one position: the external drive. Part of the policy, at every rung."""

    position: int
    """Position of the token whose prediction is pushed."""
    token: int
    """The token made likelier."""
    logits: float
    """By how much."""


class TinyPolicy:
    """A transformer, its temperature, and what pushes it.

    Parameters
    ----------
    model
        The network.
    temperature
        Divides the logits, in sampler and learner alike.
    bfloat16
        Whether the learner's matrix products are made in bfloat16 (weights, log-probs and sums stay float32): beside a
        float32 sampler this is a train-serving mismatch, mean |d log p| about .004 a token.
    """

    def __init__(self, model: Transformer, temperature: float = 1.0, *, bfloat16: bool = False) -> None:
        self.model, self.temperature, self.bfloat16 = model, temperature, bfloat16
        self.push: Push | None = None

    def parameters(self) -> Iterable[torch.nn.Parameter]:
        """Return the network's parameters."""
        return self.model.parameters()

    def frozen(self) -> "TinyPolicy":
        """Return a copy that no optimiser moves: a version to sample with, or a reference."""
        twin = TinyPolicy(copy.deepcopy(self.model), self.temperature, bfloat16=self.bfloat16)
        for parameter in twin.parameters():
            parameter.requires_grad_(False)
        twin.push = self.push
        return twin

    def log_probs(self, ids: Tensor) -> Tensor:
        """Return log pi(. | tokens up to i) for the token at i + 1, [B, T - 1, V]."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bfloat16):
            logits = self.model(ids[:, :-1])
        logits = logits.float()
        if self.push is not None and self.push.position <= logits.shape[1]:
            shift = torch.zeros_like(logits[0])
            shift[self.push.position - 1, self.push.token] = self.push.logits
            logits = logits + shift
        return log_probs(logits, self.temperature)

    def scalars(
        self, ids: Tensor, wanted: Collection[ScalarKey], reference: "TinyPolicy | None" = None
    ) -> Mapping[ScalarKey, Tensor]:
        """Return "logp", "entropy" and the exact ("kl", "ref") as wanted, [B, T] each.

        Raises
        ------
        ValueError
            For a scalar this network does not have, or a KL without a reference.
        """
        unknown = set(wanted) - {"logp", "entropy", ("kl", "ref")}
        if unknown:
            raise ValueError(
                f"the tiny transformer has no scalar {unknown}; it has 'logp', 'entropy' and ('kl', 'ref')"
            )
        now = self.log_probs(ids)  # [B, T-1, V]; entry i predicts token i + 1
        found: dict[ScalarKey, Tensor] = {}
        if "logp" in wanted:
            found["logp"] = now.gather(-1, ids[:, 1:, None])[..., 0]
        if "entropy" in wanted:
            found["entropy"] = -(now.exp() * now).sum(-1)
        if ("kl", "ref") in wanted:
            if reference is None:
                raise ValueError("an exact KL needs a reference policy; pass reference=")
            with torch.no_grad():
                there = reference.log_probs(ids)
            found["kl", "ref"] = (now.exp() * (now - there)).sum(-1)
        return {name: torch.nn.functional.pad(value, (1, 0)) for name, value in found.items()}


def log_probs(logits: Tensor, temperature: float) -> Tensor:
    """Return log softmax(logits / temperature): the one place where a temperature enters, for sampler and learner."""
    return torch.log_softmax(logits if temperature == 1 else logits / temperature, -1)
