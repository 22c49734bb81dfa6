"""Tensors of a case: drawn on the processor where they are small, so that every device gets the same."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from fullscale.kernels.problem import Head
from fullscale.validate_gpu.cases import Case

__all__ = ["Inputs", "draw"]

_SMALL = 1 << 24
"""Numbers up to which a weight is drawn on the processor."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """What `linear_logprob` is given, and what its results are weighted with."""

    hidden: Tensor
    """[M, H]; rows that do not count are poisoned."""
    weight: Tensor
    """[V, H]."""
    targets: Tensor
    """[M], int64."""
    temperature: float | Tensor
    """One number or [M], float32."""
    rows: Tensor | None
    """Rows that count, [n], on the processor; None for all."""
    bias: Tensor | None
    """[V], float32."""
    softcap: float | None
    """Cap of the logits."""
    reference: Head | None
    """A head that differs from the policy's by a tenth of its spread."""
    upstream: dict[str, Tensor]
    """What each scalar is weighted with: logp, entropy, kl where a gradient of it is taken, [n], float32."""

    @property
    def counting(self) -> Tensor:
        """Rows that count, [n], on the device."""
        if self.rows is None:
            return torch.arange(len(self.hidden), device=self.hidden.device)
        return self.rows.to(self.hidden.device)


def draw(case: Case, device: str) -> Inputs:
    """Return the inputs of a case; the same on every call."""
    M, H, V = case.rows, case.hidden, case.vocabulary
    home = "cpu" if V * H <= _SMALL else device
    generator = torch.Generator(home).manual_seed(zlib.crc32(case.name.encode()))
    dtype = getattr(torch, case.dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=home)

    weight = normal(V, H) * (case.spread / H**0.5)
    hidden = normal(M, H)
    targets = torch.randint(V, (M,), generator=generator, device=home)
    if case.targets != "any":
        targets = torch.full_like(targets, 0 if case.targets == "first" else V - 1)
    if case.pattern == "equal":
        hidden.zero_()
    elif case.pattern != "random":
        own = weight[targets]
        hidden = own * ((30.0 if case.pattern == "peaked" else -30.0) / own.square().sum(1, keepdim=True))
    if case.offset:
        hidden[:, 0], weight[:, 0] = 1.0, case.offset  # exact in 16 bits
    theirs = None
    if case.kl:
        theirs = Head(hidden + 0.1 * normal(M, H), weight + 0.1 * case.spread / H**0.5 * normal(V, H))
    temperature: float | Tensor
    if case.temperature == "each":
        temperature = (torch.logspace(-1, 1, M) if M > 1 else torch.tensor([0.5])).to(device)
    else:
        temperature = float(case.temperature)
    rows = None
    if case.counting < 1:
        order = torch.randperm(M, generator=torch.Generator().manual_seed(1))
        rows = order[: round(case.counting * M)].sort().values
        others = torch.ones(M, dtype=torch.bool).index_fill(0, rows, False).to(home)
        poison = torch.tensor([torch.nan, torch.inf, -torch.inf], device=home)[torch.arange(M, device=home) % 3]
        hidden = torch.where(others[:, None], poison[:, None], hidden)
        targets = torch.where(others, -100, targets)
    n = M if rows is None else len(rows)
    upstream = {part: normal(n) for part in ("logp", "entropy", "kl") if part in case.coefficients.split()}
    if "some" in case.coefficients:
        upstream = {part: torch.where(torch.arange(n, device=home) % 2 == 0, x, 0) for part, x in upstream.items()}
    bias = normal(V) if case.bias else None
    return Inputs(
        hidden=hidden.to(device, dtype),
        weight=weight.to(device, dtype),
        targets=targets.to(device),
        temperature=temperature,
        rows=rows,
        bias=None if bias is None else bias.to(device),
        softcap=case.softcap,
        reference=theirs and Head(theirs.hidden.to(device, dtype), theirs.weight.to(device, dtype)),
        upstream={part: x.to(device) for part, x in upstream.items()},
    )
