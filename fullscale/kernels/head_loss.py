"""The head's loss in three matrix products: coefficients are asked for while the logits are still there.

`linear_logprob` returns scalars, and its backward makes the logits again. Where the coefficients of a row depend on no other
row's scalars (or on those of its own sequence alone), they can be had at once: forward over some rows, coefficients,
gradients from the kept logits, next rows. Nothing is recomputed and what is kept is bounded by the rows at a time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fullscale.kernels.arguments import Arguments, Checked, problem_of
from fullscale.kernels.linear_logprob import (
    active_rows,
    add_gradients,
    evaluate,
    learns,
    refuse_invalid,
    refuse_second_derivative,
    spread,
    without_autocast,
)
from fullscale.kernels.problem import Backend, Coefficients, Gradients, Head, Kept, Problem, Statistics, Wanted
from fullscale.kernels.selection import select

__all__ = ["CHUNK_ROWS", "HeadLoss", "Scalars", "head_loss"]

CHUNK_ROWS = {"cpu": 256, "cuda": 4096}
"""Rows whose logits are kept at a time, by device: one block on a CPU; at V = 152,064 and 16 bits, 1.2 GB on a GPU."""


@dataclass(frozen=True, eq=False)
class Scalars:
    """What the coefficients of some rows may depend on, [b] each, without gradient."""

    rows: slice
    """Which of the n rows that count these are."""
    logp: Tensor
    """Log-prob of the target, nats."""
    entropy: Tensor | None
    """Entropy, nats."""
    reference_logp: Tensor | None
    """The reference's log-prob."""
    kl: Tensor | None
    """Exact KL, nats."""


@dataclass(frozen=True, eq=False)
class HeadLoss:
    """A loss, and the scalars it was made of."""

    loss: Tensor
    """sum_i g_i logp_i + h_i entropy_i + k_i kl_i, scalar; its gradient holds g, h and k fixed."""
    scalars: Scalars
    """Of all n rows."""


def head_loss(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    coefficients: Callable[[Scalars], Coefficients],
    *,
    temperature: float | Tensor = 1.0,
    rows: Tensor | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    need_entropy: bool = False,
    reference: Head | None = None,
    need_kl: bool = False,
    group: Any = None,
    vocabulary: int | None = None,
    units: Sequence[int] | None = None,
    chunk_rows: int | None = None,
    backend: str | Backend = "auto",
    strict: bool = True,
) -> HeadLoss:
    """Return the loss whose derivatives by each row's scalars `coefficients` gives, with its gradient already made.

    A backend that cannot keep what a scalar's gradient needs (the fused one, for an exact KL) makes logits again: more
    products, the same gradient.

    The gradient is that of the same loss of `linear_logprob`'s scalars with the coefficients detached; on a CPU, where the
    kept logits are not rounded, to the order in which rows are added up.

    Parameters
    ----------
    coefficients
        Called once for each piece of the rows, in order: scalars to derivatives of the loss (minus the update rule's
        coefficients, which point uphill). It must not depend on rows outside the piece; what is of wider scope (a
        batch's statistics) it has to know beforehand.
    units
        Lengths of consecutive runs of rows that must be in one piece, summing to n: the sequences of a rule whose scope is
        the sequence. None where each row stands alone.
    chunk_rows
        Rows at a time: what is kept is this many rows x V numbers. None for 256 on a CPU and 4,096 on CUDA.

    The other arguments are those of `linear_logprob`.

    Raises
    ------
    TypeError, ValueError
        As there; also for units that do not add up to the rows, or one longer than `chunk_rows`, and for coefficients of
        another shape. A second backward through the loss is a RuntimeError: its gradient is handed over, not kept.
    """
    given = Arguments(targets, temperature, rows, softcap, reference, group, vocabulary)
    if need_kl and reference is None:
        raise ValueError("need_kl=True takes a reference to measure from; pass reference=Head(hidden, weight)")
    with without_autocast(hidden):
        checked = problem_of(hidden, weight, bias, given)
        problem = checked.problem
        refuse_invalid(None if checked.bad is None else checked.bad.any())
        size = CHUNK_ROWS.get(hidden.device.type, CHUNK_ROWS["cuda"]) if chunk_rows is None else chunk_rows
        call = _Call(
            group=group,
            vocabulary=vocabulary,
            checked=checked,
            wanted=Wanted(need_entropy, reference is not None, need_kl),
            backend=select(backend, problem, strict=strict),
            strict=strict,
            coefficients=coefficients,
            pieces=tuple(_pieces(problem.rows, size, units, weight)),
        )
        loss, *found = _HeadLoss.apply(hidden, weight, bias, call, [learns(x) for x in (hidden, weight, bias)])
    return HeadLoss(loss, Scalars(slice(0, problem.rows), *found))


@dataclass(frozen=True, eq=False)
class _Call:
    """What travels beside the tensors that autograd sees."""

    group: Any
    vocabulary: int | None
    checked: Checked
    wanted: Wanted
    backend: Backend
    strict: bool
    coefficients: Callable[[Scalars], Coefficients]
    pieces: tuple[slice, ...]


def _pieces(n: int, size: int, units: Sequence[int] | None, weight: Tensor) -> Iterator[slice]:
    """Yield runs of at most `size` of n rows, cut between units."""
    if size < 1:
        raise ValueError(f"chunk_rows = {size} must be at least 1")
    if units is None:
        yield from (slice(start, min(start + size, n)) for start in range(0, n, size))
        return
    lengths = [int(length) for length in units]
    if lengths != list(units):
        odd = next(given for given, whole in zip(units, lengths, strict=True) if given != whole)
        raise ValueError(f"units hold {odd}; each is the length of a run of rows, a whole number")
    if min(lengths, default=0) < 0 or sum(lengths) != n:
        raise ValueError(f"units must be lengths that sum to the {n} rows that count; they sum to {sum(lengths)}")
    if max(lengths, default=0) > size:
        raise ValueError(
            f"unit {lengths.index(max(lengths))} has {max(lengths)} rows, more than chunk_rows = {size}; raise it (a row of "
            f"kept logits takes {weight.shape[0] * 4 / 1e6:.1f} MB at most), or use linear_logprob, which keeps none"
        )
    start = stop = 0
    for length in lengths:
        if stop + length - start > size:
            yield slice(start, stop)
            start = stop
        stop += length
    if stop > start:
        yield slice(start, stop)


class _HeadLoss(torch.autograd.Function):
    """Everything forward; the backward hands the gradients over, times its upstream number."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, call: _Call, asked: list[bool]
    ) -> tuple[Tensor | None, ...]:
        sums = _Sums(call, weight, asked)
        found = [sums.piece(part) for part in call.pieces]
        ctx.made = sums.gradients()
        ctx.rows, ctx.dtypes = call.checked.rows, [None if x is None else x.dtype for x in (hidden, weight, bias)]
        ctx.shape = hidden.shape
        ctx.set_materialize_grads(False)
        n = call.checked.problem.temperature.new_empty(0)
        wanted = call.wanted
        columns = (("logp", True), ("entropy", wanted.entropy), ("reference_logp", wanted.reference), ("kl", wanted.kl))
        whole = [
            (torch.cat([getattr(x, name) for x in found]) if found else n) if there else None for name, there in columns
        ]
        ctx.mark_non_differentiable(*[x for x in whole if x is not None])
        return sums.loss, *whole

    @staticmethod
    def backward(ctx: Any, upstream: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        if ctx.made is None:
            raise RuntimeError("head_loss hands its gradient over once; call it again, or use linear_logprob")
        made, ctx.made = ctx.made, None
        if upstream is None:
            return None, None, None, None, None
        hidden, weight, bias = (None if x is None else x.mul_(upstream) for x in made)  # before any rounding to 16 bits
        return (
            None if hidden is None else spread(hidden, ctx.rows, ctx.shape, ctx.dtypes[0]),
            None if weight is None else weight.to(ctx.dtypes[1]),
            None if bias is None else bias.to(ctx.dtypes[2]),
            None,
            None,
        )


class _Sums:
    """Loss and gradients so far."""

    def __init__(self, call: _Call, weight: Tensor, asked: list[bool]) -> None:
        self._call, self._asked = call, asked
        like = call.checked.problem.temperature
        self.loss = like.new_zeros(())
        self._hidden = like.new_zeros(call.checked.problem.head.hidden.shape) if asked[0] else None
        self._weight = like.new_empty(weight.shape) if asked[1] else None
        self._bias = like.new_zeros(weight.shape[0]) if asked[2] else None
        self._begun = False

    def piece(self, part: slice) -> Statistics:
        """Return the statistics of some rows, having added their loss and gradients."""
        call, learning = self._call, any(self._asked)
        problem = call.checked.problem.take(part)
        found, cached = evaluate(
            call.backend,
            problem,
            call.wanted,
            call.group,
            call.vocabulary,
            strict=call.strict,
            keep=float(learning and call.backend.keeps(call.wanted)),
        )
        entropy, reference_logp, kl = (
            None if x is None else x.clone() for x in (found.entropy, found.reference_logp, found.kl)
        )
        given = call.coefficients(Scalars(part, found.logp.clone(), entropy, reference_logp, kl))
        coefficients = _checked(given, found)
        for c, scalar in (
            (coefficients.logp, found.logp),
            (coefficients.entropy, found.entropy),
            (coefficients.kl, found.kl),
        ):
            if c is not None and scalar is not None:
                self.loss += c @ scalar
        if learning:
            self._add(problem, found, coefficients, cached, part)
        return found

    def _add(
        self, problem: Problem, found: Statistics, coefficients: Coefficients, cached: Kept | None, part: slice
    ) -> None:
        index = active_rows(coefficients, problem)
        if index is not None:
            problem, found, coefficients = problem.take(index), found.take(index), coefficients.take(index)
            cached = cached.take(index) if cached is not None and len(index) else None
        if not problem.rows:
            return
        whole = None if self._hidden is None else self._hidden[part]
        hidden = whole if whole is None or index is None else torch.zeros_like(problem.head.hidden, dtype=whole.dtype)
        into = Gradients(hidden, self._weight, self._bias, accumulate=self._begun)
        call = self._call
        add_gradients(call.backend, problem, found, coefficients, into, call.group, strict=call.strict, cached=cached)
        if whole is not None and hidden is not None and index is not None:
            whole.index_copy_(0, index, hidden)
        self._begun = True

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients by hidden states [n, H], weight and bias, in working precision."""
        if self._weight is not None and not self._begun:
            self._weight.zero_()
        return [self._hidden, self._weight, self._bias]


def _checked(given: Coefficients, found: Statistics) -> Coefficients:
    """Return coefficients in working precision, each with a scalar it is of, and as many as there are rows."""
    if not isinstance(given, Coefficients):
        raise TypeError(f"coefficients returned a {type(given).__name__}; it must be Coefficients(logp, entropy, kl)")
    made = {}
    for name, scalar, ask in (
        ("logp", found.logp, ""),
        ("entropy", found.entropy, "need_entropy=True"),
        ("kl", found.kl, "need_kl=True and a reference"),
    ):
        c = getattr(given, name)
        if c is None:
            continue
        if scalar is None:
            raise ValueError(f"there are coefficients of {name}, but no {name}; pass {ask}")
        if c.shape != scalar.shape:
            raise ValueError(f"coefficients.{name} has shape {tuple(c.shape)} for {len(scalar)} rows")
        made[name] = c.detach().to(scalar)
    return Coefficients(made.get("logp"), made.get("entropy"), made.get("kl"))
