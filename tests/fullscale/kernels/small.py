"""Small problems, what they come to in float64 written out in plain torch, and what the kernel makes of them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fullscale.kernels.arguments import Arguments, problem_of
from fullscale.kernels.chunked import Chunked
from fullscale.kernels.head_loss import HeadLoss, head_loss
from fullscale.kernels.linear_logprob import LogprobOut, linear_logprob
from fullscale.kernels.problem import Coefficients, Head, Problem

SCALARS = ("logp", "entropy", "lse", "reference_logp", "kl")
LEAVES = ("hidden", "weight", "bias")
POLICY = ("logp", "entropy", "kl")
"""Scalars with a gradient."""


@dataclass(frozen=True, eq=False)
class Small:
    """What a call is given."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None = None
    temperature: float | Tensor = 1.0
    rows: Tensor | None = None
    softcap: float | None = None
    reference: Head | None = None

    @property
    def n(self) -> int:
        return len(self.targets) if self.rows is None else len(self.rows)

    def options(self) -> dict[str, Any]:
        """All but hidden states, weight and bias."""
        return {name: getattr(self, name) for name in ("temperature", "rows", "softcap", "reference")}

    def problem(self) -> Problem:
        given = Arguments(self.targets, **self.options())
        return problem_of(self.hidden, self.weight, self.bias, given).problem

    def strict(self) -> bool:
        """Whether this machine's matrix products let a row keep its bits."""
        return Chunked().refusal(self.problem(), strict=True) is None

    def of(self, index: Any) -> "Small":
        """The problem of some of the rows, cut out beforehand."""
        assert self.rows is None
        kept = self.reference and replace(self.reference, hidden=self.reference.hidden[index])
        t = self.temperature
        return replace(
            self,
            hidden=self.hidden[index],
            targets=self.targets[index],
            temperature=t[index] if isinstance(t, Tensor) else t,
            reference=kept,
        )


def small(
    V: int,
    M: int = 17,
    H: int = 32,
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    scale: float = 1.0,
    bias: bool = True,
    reference: bool = True,
    temperature: float | str = "each row",
    softcap: float | None = None,
) -> Small:
    """Random operands; the logits' spread is about `scale`, the reference is a nudge away."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*size: int, spread: float = 1.0) -> Tensor:
        return (torch.randn(*size, generator=draw, dtype=torch.float64) * spread).to(dtype)

    weight = normal(V, H, spread=scale / H**0.5)
    case = Small(
        hidden=normal(M, H),
        weight=weight,
        targets=torch.randint(V, (M,), generator=draw),
        bias=normal(V) if bias else None,
        temperature=torch.rand(M, generator=draw) + 0.5 if isinstance(temperature, str) else temperature,
        softcap=softcap,
    )
    if not reference:
        return case
    theirs = Head(normal(M, 16), normal(V, 16, spread=scale / 4), normal(V) if bias else None)
    return replace(case, reference=theirs)


def upstream_of(case: Small, names: Iterable[str] = POLICY, seed: int = 1) -> dict[str, Tensor]:
    """A derivative of the loss by each scalar of each row."""
    draw = torch.Generator().manual_seed(seed)
    dtype = torch.float64 if case.hidden.dtype == torch.float64 else torch.float32
    return {name: torch.randn(case.n, generator=draw, dtype=torch.float64).to(dtype) for name in names}


# --- the definition ---------------------------------------------------------------------------------------------------


def logits(head: Head, softcap: float | None, temperature: Any) -> Tensor:
    """Scaled logits in float64, [n, V]."""
    z = head.hidden.double() @ head.weight.double().T
    if head.bias is not None:
        z = z + head.bias.double()
    if softcap is not None:
        z = softcap * (z / softcap).tanh()
    return z / temperature


def written_out(case: Small, leaves: dict[str, Tensor | None]) -> dict[str, Tensor]:
    """Every scalar of the rows that count, in float64 with its graph."""
    rows = torch.arange(len(case.targets)) if case.rows is None else case.rows.long()
    T = case.temperature
    T = T.double()[rows, None] if isinstance(T, Tensor) else T
    hidden, weight = leaves["hidden"], leaves["weight"]
    assert hidden is not None
    assert weight is not None
    z = logits(Head(hidden[rows], weight, leaves["bias"]), case.softcap, T)
    lse = z.logsumexp(1)
    lp = z - lse[:, None]
    target = case.targets.long()[rows, None]
    found = {"lse": lse, "logp": lp.gather(1, target)[:, 0], "entropy": -(lp.exp() * lp).sum(1)}
    if case.reference is not None:
        there = replace(case.reference, hidden=case.reference.hidden[rows])
        lr = logits(there, case.softcap, T).log_softmax(1)
        found |= {"reference_logp": lr.gather(1, target)[:, 0], "kl": (lp.exp() * (lp - lr)).sum(1)}
    return found


def leaves_of(case: Small, dtype: torch.dtype | None = None) -> dict[str, Tensor | None]:
    """Copies that collect a gradient."""
    found: dict[str, Tensor | None] = {}
    for name in LEAVES:
        x = getattr(case, name)
        found[name] = None if x is None else x.detach().clone().to(dtype or x.dtype).requires_grad_()
    return found


def collected(values: dict[str, Any], leaves: dict[str, Tensor | None]) -> dict[str, Tensor]:
    grads = {f"d_{name}": x.grad for name, x in leaves.items() if x is not None and x.grad is not None}
    return {name: x.detach() for name, x in values.items() if x is not None} | grads


def truth(case: Small, upstream: dict[str, Tensor]) -> dict[str, Tensor]:
    """Scalars, and the gradients of sum_i upstream_i scalar_i, by autograd in float64."""
    leaves = leaves_of(case, torch.float64)
    values = written_out(case, leaves)
    torch.stack([(c.double() * values[name]).sum() for name, c in upstream.items()]).sum().backward()
    return collected(values, leaves)


def largest(case: Small) -> float:
    """max |z / temperature| over both heads: what single precision is relative to."""
    T = case.temperature[:, None] if isinstance(case.temperature, Tensor) else case.temperature
    heads = [Head(case.hidden, case.weight, case.bias), *filter(None, [case.reference])]
    return max((float(logits(h, case.softcap, T).abs().max()) for h in heads if len(h.hidden)), default=0.0)


# --- the kernel -------------------------------------------------------------------------------------------------------


def wanted(case: Small, names: Iterable[str] = POLICY) -> dict[str, Any]:
    return {"need_entropy": "entropy" in names, "need_kl": "kl" in names and case.reference is not None}


def total(out: Any, upstream: dict[str, Tensor]) -> Tensor:
    """sum_i upstream_i scalar_i."""
    return torch.stack([(c * getattr(out, name)).sum() for name, c in upstream.items()]).sum()


def ours(case: Small, upstream: dict[str, Tensor], **options: Any) -> dict[str, Tensor]:
    """The same from `linear_logprob`; strict wherever the machine can be."""
    leaves = leaves_of(case)
    out = call(case, leaves, **wanted(case, upstream) | options)
    total(out, upstream).backward()
    return collected({name: getattr(out, name) for name in SCALARS}, leaves)


def call(case: Small, leaves: dict[str, Tensor | None] | None = None, **options: Any) -> LogprobOut:
    """Every scalar of `linear_logprob`, with the graph."""
    leaves = leaves or {name: getattr(case, name) for name in LEAVES}
    given = wanted(case) | case.options() | {"strict": case.strict()} | options
    return linear_logprob(leaves["hidden"], leaves["weight"], case.targets, bias=leaves["bias"], **given)


def in_one_go(case: Small, upstream: dict[str, Tensor], scale: float = 1.0, **options: Any) -> dict[str, Tensor]:
    """The same from `head_loss`, with its loss."""
    leaves = leaves_of(case)

    def coefficients(found: Any) -> Coefficients:
        return Coefficients(*(upstream[name][found.rows] if name in upstream else None for name in POLICY))

    out = loss_of(case, coefficients, leaves, **wanted(case, upstream) | options)
    (out.loss * scale).backward()
    values = {name: getattr(out.scalars, name) for name in SCALARS if name != "lse"}
    return collected(values | {"loss": out.loss}, leaves)


def of_logp(found: Any) -> Coefficients:
    """Coefficients of the sum of log-probs."""
    return Coefficients(torch.ones_like(found.logp))


def loss_of(case: Small, coefficients: Any, leaves: dict[str, Tensor | None] | None = None, **options: Any) -> HeadLoss:
    """`head_loss`, with the graph."""
    leaves = leaves or {name: getattr(case, name) for name in LEAVES}
    given = case.options() | {"strict": case.strict()} | options
    return head_loss(leaves["hidden"], leaves["weight"], case.targets, coefficients, bias=leaves["bias"], **given)


@dataclass(frozen=True)
class Counting(Chunked):
    """A backend that remembers what it was asked for."""

    gradients_of: list[list[int]] = field(default_factory=list)
    """Targets of the rows of each call for gradients."""
    kept: list[float] = field(default_factory=list)
    """Share of the logits to keep, of each call for strips."""

    def partials(self, problem: Problem, wanted: Any, *, strict: bool, keep: float = 0.0) -> Any:
        self.kept.append(keep)
        return super().partials(problem, wanted, strict=strict, keep=keep)

    def gradients(self, problem: Problem, *args: Any, **options: Any) -> None:
        self.gradients_of.append(problem.targets.tolist())
        super().gradients(problem, *args, **options)


@contextmanager
def unwritten_is_nan() -> Iterator[None]:
    """Memory that nobody has written holds NaN: torch fills it so under deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.utils.deterministic.fill_uninitialized_memory
        assert torch.zeros(2).new_empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


# --- comparisons ------------------------------------------------------------------------------------------------------


def same_bits(a: Any, b: Any) -> bool:
    """Whether two tensors are equal, or two results in everything they hold."""
    if isinstance(a, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all())
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


def relative(x: Tensor, true: Tensor) -> float:
    """|x - true| / |true|, Frobenius; absolute where there is nothing."""
    size = float(true.double().norm())
    return float((x.double() - true.double()).norm()) / (size or 1.0)


def bounds(case: Small) -> dict[str, float]:
    """How far from float64 each scalar may be: a stated few units in the last place of the largest logit."""
    if case.hidden.dtype == torch.float64:
        return dict.fromkeys(SCALARS, 1e-12 * max(32.0, largest(case)))
    loose = 2.0**-20 * largest(case)
    tight = largest(case) <= 32
    scalar, moment = (2e-5, 5e-5) if tight else (loose, loose)
    return {"logp": scalar, "lse": scalar, "reference_logp": scalar, "entropy": moment, "kl": 2 * moment}


def slopes(case: Small) -> float:
    """How far from float64 a gradient may be, relative."""
    if case.hidden.dtype == torch.float64:
        return 1e-12 * max(10.0, largest(case))
    return 5e-3 if case.hidden.element_size() == 2 else max(2e-5, 2.0**-18 * largest(case))


def assert_close(found: dict[str, Tensor], true: dict[str, Tensor], case: Small) -> None:
    """Every scalar within its bound and every gradient within its own; nothing missing, nothing NaN."""
    limits = bounds(case)
    assert found.keys() - {"loss"} <= true.keys()
    for name, x in found.items():
        assert x.isfinite().all(), f"{name} is not finite"
        if name.startswith("d_"):
            assert x.dtype == getattr(case, name[2:]).dtype
            assert relative(x, true[name]) <= slopes(case), f"{name}: {relative(x, true[name]):.2g}"
        elif x.numel() and name in limits:
            off = float((x.double() - true[name]).abs().max())
            assert off <= limits[name], f"{name} is {off:.2g} off, more than {limits[name]:.2g}"


def needs_bits(case: Small) -> None:
    """Skip what this machine refuses; the refusal itself has its own tests."""
    if not case.strict():
        pytest.skip("matrix products of this machine do not keep a row's bits at this shape")
