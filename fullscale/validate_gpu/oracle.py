"""The definition once more, in float64 with the logits in memory, sharing no code with any backend."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullscale.validate_gpu.inputs import Inputs

__all__ = ["Truth", "gradients", "values"]

_LOGITS = 1 << 26
"""Logits in memory at a time."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Scalars of the rows that count, [n] each, float64."""

    logp: Tensor
    """Log-prob of the target."""
    entropy: Tensor
    """Entropy, nats."""
    lse: Tensor
    """Log-partition."""
    reference_logp: Tensor | None
    """Log-prob of the target under the reference."""
    kl: Tensor | None
    """KL to the reference, nats."""
    largest: float
    """Largest |scaled logit| of both heads: the errors of float32 sums are in proportion to it."""


def _scaled(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: Tensor, softcap: float | None) -> Tensor:
    z = hidden @ weight.T
    if bias is not None:
        z = z + bias.double()
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    return z / temperature[:, None]


def _scalars(inputs: Inputs, at: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Truth:
    """Return the scalars of the rows `at`, of the leaves given."""
    if isinstance(inputs.temperature, Tensor):
        temperature = inputs.temperature[at].double()
    else:
        temperature = torch.full((len(at),), inputs.temperature, dtype=torch.float64, device=at.device)
    z = _scaled(hidden, weight, bias, temperature, inputs.softcap)
    lp = torch.log_softmax(z, 1)
    own = inputs.targets[at][:, None]
    largest = float(z.detach().abs().max()) if len(at) else 0.0
    reference_logp = kl = None
    if inputs.reference is not None:
        theirs = inputs.reference
        r = _scaled(theirs.hidden[at].double(), theirs.weight.double(), None, temperature, inputs.softcap)
        lr = torch.log_softmax(r, 1)
        reference_logp, kl = lr.gather(1, own)[:, 0], (lp.exp() * (lp - lr)).sum(1)
        largest = max(largest, float(r.abs().max()))
    return Truth(lp.gather(1, own)[:, 0], -(lp.exp() * lp).sum(1), torch.logsumexp(z, 1), reference_logp, kl, largest)


def values(inputs: Inputs, among: Tensor | None = None) -> Truth:
    """Return the scalars of the rows that count, or of those `among` them."""
    at = inputs.counting if among is None else inputs.counting[among]
    weight = inputs.weight.double()
    parts = [
        _scalars(inputs, some, inputs.hidden[some].double(), weight, inputs.bias) for some in _some(at, len(weight))
    ]

    def whole(name: str) -> Tensor | None:
        found = [getattr(p, name) for p in parts]
        return None if found[0] is None else torch.cat(found)

    logp, entropy, lse = torch.cat([p.logp for p in parts]), whole("entropy"), whole("lse")
    assert entropy is not None
    assert lse is not None
    return Truth(logp, entropy, lse, whole("reference_logp"), whole("kl"), max(p.largest for p in parts))


def gradients(inputs: Inputs) -> dict[str, Tensor]:
    """Return the gradients by hidden [M, H], weight [V, H] and bias [V] of the weighted sum of the scalars, float64."""
    weight = inputs.weight.double().requires_grad_()
    bias = None if inputs.bias is None else inputs.bias.double().requires_grad_()
    dx = torch.zeros(inputs.hidden.shape, dtype=torch.float64, device=inputs.hidden.device)
    places = torch.arange(len(inputs.counting), device=dx.device)
    for some in _some(places, len(weight)):
        at = inputs.counting[some]
        hidden = inputs.hidden[at].double().requires_grad_()
        found = _scalars(inputs, at, hidden, weight, bias)
        loss = torch.stack([(g[some] * getattr(found, part)).sum() for part, g in inputs.upstream.items()]).sum()
        loss.backward()
        assert hidden.grad is not None
        dx[at] = hidden.grad
    found_gradients = {"hidden": dx, "weight": weight.grad if weight.grad is not None else torch.zeros_like(weight)}
    if bias is not None:
        found_gradients["bias"] = bias.grad if bias.grad is not None else torch.zeros_like(bias)
    return found_gradients


def _some(rows: Tensor, vocabulary: int) -> tuple[Tensor, ...]:
    return rows.split(max(1, _LOGITS // vocabulary))
