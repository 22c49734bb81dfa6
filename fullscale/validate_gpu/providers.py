"""Ways to do the same work: ours, bare matrix products as the floor, plain torch, and peers where they are installed.

A peer that has no way to leave rows out computes all M and is told to ignore the others; it is also timed on the rows that
count alone, gathered beforehand, which is more than it does for its users.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fullscale.kernels.head_loss import Scalars, head_loss
from fullscale.kernels.linear_logprob import linear_logprob
from fullscale.kernels.problem import Coefficients
from fullscale.validate_gpu.cases import Point

__all__ = ["Absent", "Set", "Work", "providers", "sets"]

IGNORED = -100
"""Target that peers take for a row that does not count."""

Work = Callable[["Set"], object]


class Absent(Exception):  # noqa: N818 - not an error: what a provider does not do, or is not there to do
    """A provider that is not installed, or has no such operation."""


@dataclass(frozen=True, eq=False)
class Set:
    """One set of inputs; several take turns, so that nothing is found in a cache that a trainer would not find there."""

    hidden: Tensor
    """[M, H], bfloat16."""
    weight: Tensor
    """[V, H], bfloat16."""
    targets: Tensor
    """[M]."""
    rows: Tensor
    """Rows that count, [n], on the processor."""
    upstream: Tensor
    """Derivative of the loss by each log-prob, [n], float32."""
    gathered: Tensor
    """Hidden states of the rows that count, [n, H]."""
    own: Tensor
    """Their targets, [n]."""
    ignoring: Tensor
    """Targets with those of other rows ignored, [M]."""
    weighted: Tensor
    """Derivatives with 0 for other rows, [M]."""

    def leaves(self, gathered: bool = False) -> tuple[Tensor, Tensor]:
        """Return hidden states and weight without the gradients of the last call."""
        x = self.gathered if gathered else self.hidden
        x.grad = self.weight.grad = None
        return x, self.weight


def sets(point: Point, device: str, count: int = 2) -> tuple[Set, ...]:
    """Return random inputs of a point: logits of standard deviation 2."""
    made = []
    for seed in range(count):
        generator = torch.Generator(device).manual_seed(seed)
        M, H, V = point.rows, point.hidden, point.vocabulary

        def normal(*shape: int, generator: torch.Generator = generator) -> Tensor:
            return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

        hidden, weight = normal(M, H), normal(V, H).mul_(2 / H**0.5)
        targets = torch.randint(V, (M,), generator=generator, device=device)
        order = torch.randperm(M, generator=torch.Generator().manual_seed(seed))
        rows = order[: round(point.counting * M)].sort().values
        at = rows.to(device)
        upstream = torch.randn(len(rows), generator=generator, device=device)
        made.append(
            Set(
                hidden=hidden.requires_grad_(),
                weight=weight.requires_grad_(),
                targets=targets,
                rows=rows,
                upstream=upstream,
                gathered=hidden.detach()[at].requires_grad_(),
                own=targets[at],
                ignoring=torch.full_like(targets, IGNORED).index_copy_(0, at, targets[at]),
                weighted=torch.zeros(M, device=device).index_copy_(0, at, upstream),
            )
        )
    return tuple(made)


# --- ours -------------------------------------------------------------------------------------------------------------


def _ours(backend: str, keep: float = 0.0) -> Callable[[Point], Work]:
    def make(point: Point) -> Work:
        if keep and point.operation != "forward+backward":
            raise Absent("has no backward to keep logits for")

        def work(given: Set) -> object:
            hidden, weight = given.leaves()
            with torch.set_grad_enabled(point.operation == "forward+backward"):
                out = linear_logprob(
                    hidden,
                    weight,
                    given.targets,
                    rows=None if point.counting == 1 else given.rows,
                    need_entropy=point.operation == "forward+entropy",
                    keep=keep,
                    backend=backend,
                )
            return _backward(point, out.logp, given.upstream)

        return work

    return make


def _three_products(backend: str) -> Callable[[Point], Work]:
    """Return the head's loss with its coefficients asked for on the way."""

    def make(point: Point) -> Work:
        if point.operation != "forward+backward":
            raise Absent("has no forward alone")

        def work(given: Set) -> object:
            hidden, weight = given.leaves()

            def coefficients(scalars: Scalars) -> Coefficients:
                return Coefficients(given.upstream[scalars.rows])

            rows = None if point.counting == 1 else given.rows
            return head_loss(hidden, weight, given.targets, coefficients, rows=rows, backend=backend).loss.backward()

        return work

    return make


def _backward(point: Point, logp: Tensor, upstream: Tensor) -> object:
    return (logp * upstream).sum().backward() if point.operation == "forward+backward" else None


# --- others -----------------------------------------------------------------------------------------------------------


def _products(repeated: bool) -> Callable[[Point], Work]:
    """Return the matrix products alone, on the rows that count: no softmax, no loss. What nothing can be faster than."""

    def make(point: Point) -> Work:
        if repeated and point.operation != "forward+backward":
            raise Absent("is the bare products with logits made twice")
        logits: list[Tensor] = []  # allocated once: a provider of this kind would write to a workspace

        def work(given: Set) -> object:
            x, w = given.gathered.detach(), given.weight.detach()
            if not logits:
                logits.append(torch.empty(len(x), len(w), dtype=x.dtype, device=x.device))
            z = torch.mm(x, w.T, out=logits[0])
            if point.operation != "forward+backward":
                return z
            if repeated:
                torch.mm(x, w.T, out=z)
            return torch.mm(z, w), torch.mm(z.T, x)

        return work

    return make


def _plain(gathered: bool) -> Callable[[Point], Work]:
    """Return what one writes without thinking: logits, float32, log_softmax."""

    def make(point: Point) -> Work:
        def work(given: Set) -> object:
            hidden, weight = given.leaves(gathered)
            targets = given.own if gathered else given.targets
            with torch.set_grad_enabled(point.operation == "forward+backward"):
                lp = torch.log_softmax((hidden @ weight.T).float(), -1)
                logp = lp.gather(1, targets[:, None])[:, 0]
                if point.operation == "forward+entropy":
                    return logp, -(lp.exp() * lp).sum(-1)
            return _backward(point, logp, given.upstream if gathered else given.weighted)

        return work

    return make


def _peer(loss: Callable[[Tensor, Tensor, Tensor], Tensor], gathered: bool, point: Point) -> Work:
    """Return a peer's cross-entropy by token as a piece of work; none of them has an entropy."""
    if point.operation == "forward+entropy":
        raise Absent("has no entropy")

    def work(given: Set) -> object:
        hidden, weight = given.leaves(gathered)
        with torch.set_grad_enabled(point.operation == "forward+backward"):
            nll = loss(hidden, weight, given.own if gathered else given.ignoring)
        return _backward(point, -nll, given.upstream if gathered else given.weighted)

    return work


def _liger(gathered: bool) -> Callable[[Point], Work]:
    def make(point: Point) -> Work:
        try:
            from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss
        except ImportError as error:
            raise Absent("is not installed") from error
        by_token = LigerFusedLinearCrossEntropyLoss(reduction="none", ignore_index=IGNORED)
        return _peer(lambda x, w, t: by_token(w, x, t), gathered, point)

    return make


def _cce(gathered: bool) -> Callable[[Point], Work]:
    def make(point: Point) -> Work:
        try:
            from cut_cross_entropy import linear_cross_entropy
        except ImportError as error:
            raise Absent("is not installed") from error

        def loss(x: Tensor, w: Tensor, t: Tensor) -> Tensor:
            found: Tensor = linear_cross_entropy(x, w, t, ignore_index=IGNORED, reduction="none", filter_eps=None)
            return found

        return _peer(loss, gathered, point)

    return make


def providers(backend: str) -> dict[str, Callable[[Point], Work]]:
    """Return all ways by name, ours first; the chunked backend beside it unless it is ours."""
    beside = {} if backend == "chunked" else {"chunked": _ours("chunked")}
    return {
        "ours": _ours(backend),
        "ours, logits kept": _ours(backend, keep=1.0),
        "ours, head_loss": _three_products(backend),
        "products alone": _products(False),
        "products alone, logits twice": _products(True),
        **beside,
        "plain torch": _plain(False),
        "plain torch, gathered": _plain(True),
        "Liger": _liger(False),
        "Liger, gathered": _liger(True),
        "CCE": _cce(False),
        "CCE, gathered": _cce(True),
    }
