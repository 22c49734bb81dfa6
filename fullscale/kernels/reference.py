"""The definition, in torch, with the logits in memory: what every other backend is held against."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fullscale.kernels.merging import merge
from fullscale.kernels.problem import Coefficients, Gradients, Head, Kept, Partials, Problem, Statistics, Wanted

__all__ = ["Reference", "log_softmax", "scalars", "scaled_logits"]


def scaled_logits(head: Head, temperature: Tensor, softcap: float | None) -> Tensor:
    """Return cap(hidden @ weight.T + bias) / temperature, [n, V], in the precision of `temperature`."""
    dtype = temperature.dtype
    logits = head.hidden.to(dtype) @ head.weight.to(dtype).T
    if head.bias is not None:
        logits = logits + head.bias.to(dtype)
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits / temperature[:, None]


def log_softmax(head: Head, problem: Problem) -> Tensor:
    """Return the log-probs of every column under a head of the problem, [n, V]."""
    return torch.log_softmax(scaled_logits(head, problem.temperature, problem.softcap), -1)


def scalars(problem: Problem, wanted: Wanted) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return log-prob, entropy, the reference's log-prob and the exact KL, [n] each, as a graph that autograd can follow.

    Entropy and KL hold the states fixed. The problem must hold the whole vocabulary.
    """
    now = log_softmax(problem.head, problem)
    at = problem.targets[:, None]
    logp = now.gather(1, at)[:, 0]
    entropy = -(now.exp() * now).sum(-1) if wanted.entropy else None
    if problem.reference is None:
        return logp, entropy, None, None
    with torch.no_grad():
        there = log_softmax(problem.reference, problem)
    kl = (now.exp() * (now - there)).sum(-1) if wanted.kl else None
    return logp, entropy, there.gather(1, at)[:, 0], kl


@dataclass(frozen=True)
class Reference:
    """Logits in memory, the gradient by its formula. Its matrix products may depend on the number of rows: not strict."""

    name: str = "reference"
    """How it is asked for."""

    def refusal(self, problem: Problem, *, strict: bool) -> str | None:
        """Return why it cannot do a problem; None if it can."""
        if strict:
            return "its bits may depend on the number of rows; pass strict=False, or backend='chunked'"
        return None

    def keeps(self, wanted: Wanted) -> bool:
        """Return False: it could keep nothing but all the logits."""
        return False

    def partials(self, problem: Problem, wanted: Wanted, *, strict: bool, keep: float = 0.0) -> tuple[Partials, None]:
        """Reduce the strips of the logits; ValueError for `keep` above 0, as it keeps nothing."""
        if keep:
            raise ValueError(f"keep = {keep}: the reference backend keeps nothing; take keep = 0")
        first = problem.first
        here = [slice(s.start - first, s.stop - first) for s in problem.strips]
        at = problem.targets - first

        def pieces(head: Head) -> tuple[list[Tensor], Tensor, Tensor, Tensor]:
            z = scaled_logits(head, problem.temperature, problem.softcap)
            cut = [z[:, s] for s in here]
            top = torch.stack([x.amax(1) for x in cut], 1)
            centred = [x - m[:, None] for x, m in zip(cut, top.unbind(1), strict=True)]
            own = [
                torch.where((at >= s.start) & (at < s.stop), z.gather(1, at.clamp(0, z.shape[1] - 1)[:, None])[:, 0], 0)
                for s in here
            ]
            return centred, top, torch.stack([x.exp().sum(1) for x in centred], 1), torch.stack(own, 1)

        with torch.no_grad():
            z, top, mass, target = pieces(problem.head)
            moment = torch.stack([(x.exp() * x).sum(1) for x in z], 1) if wanted.entropy else None
            if not (wanted.reference or wanted.kl):
                return Partials(top, mass, target, moment), None
            assert problem.reference is not None
            r, *others = pieces(problem.reference)
            cross = None
            if wanted.kl:
                cross = torch.stack([(x.exp() * (x - y)).sum(1) for x, y in zip(z, r, strict=True)], 1)
        return Partials(top, mass, target, moment, others[0], others[1], others[2], cross), None

    def merge(self, partials: Partials) -> Statistics:
        """Merge strips in ascending order."""
        return merge(partials)

    def gradients(
        self,
        problem: Problem,
        statistics: Statistics,
        coefficients: Coefficients,
        into: Gradients,
        *,
        strict: bool,
        cached: Kept | None = None,
    ) -> None:
        """Add the gradients, with dlogits from their formula so that a shard of the vocabulary can do its part."""
        dtype = problem.temperature.dtype
        head = problem.head
        z = scaled_logits(head, problem.temperature, problem.softcap)
        lp = (z - statistics.top[:, None]) - statistics.log_mass[:, None]
        inner = torch.zeros_like(lp)
        at = problem.targets - problem.first
        own = torch.arange(z.shape[1], device=z.device) == at[:, None]
        dz = torch.zeros_like(lp)
        if coefficients.logp is not None:
            inner += coefficients.logp[:, None]
            dz += torch.where(own, coefficients.logp[:, None], 0)
        if coefficients.entropy is not None:
            assert statistics.entropy is not None
            inner += coefficients.entropy[:, None] * (lp + statistics.entropy[:, None])
        if coefficients.kl is not None:
            assert problem.reference is not None
            assert statistics.kl is not None
            assert statistics.reference_top is not None
            assert statistics.reference_log_mass is not None
            r = scaled_logits(problem.reference, problem.temperature, problem.softcap)
            lr = (r - statistics.reference_top[:, None]) - statistics.reference_log_mass[:, None]
            inner -= coefficients.kl[:, None] * (lp - lr - statistics.kl[:, None])
        dz = (dz - lp.exp() * inner) / problem.temperature[:, None]
        if problem.softcap is not None:
            dz = dz * (1 - (z * problem.temperature[:, None] / problem.softcap) ** 2)
        if into.hidden is not None:
            into.hidden.add_(dz @ head.weight.to(dtype))
        if into.weight is not None:
            dw = dz.T @ head.hidden.to(dtype)
            if into.accumulate:
                into.weight.add_(dw)
            else:
                into.weight.copy_(dw)
        if into.bias is not None:
            into.bias.add_(dz.sum(0))
