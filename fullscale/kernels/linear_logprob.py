"""Per-token log-prob, entropy and exact KL of a linear head, with gradients, the logits never held.

What a trainer needs of a language model's head is a few numbers a token and, going back, the gradient of a weighted sum of
them. The weights are the update rule's coefficients, and most tokens of an agent's episode have none: observations, clipped
tokens, groups in which every reward is the same. Rows that do not count never reach a matrix product; rows whose upstream
gradients are all 0 do not reach the backward's.
"""

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fullscale.kernels.arguments import Arguments, Checked, gathered, problem_of, shape
from fullscale.kernels.problem import Backend, Coefficients, Gradients, Head, Kept, Problem, Statistics, Wanted
from fullscale.kernels.saving import restore, save
from fullscale.kernels.selection import select
from fullscale.kernels.vocabulary_parallel import gather, sum_over

__all__ = [
    "LogprobOut",
    "active_rows",
    "add_gradients",
    "evaluate",
    "learns",
    "linear_logprob",
    "refuse_invalid",
    "refuse_second_derivative",
    "scatter",
    "spread",
    "without_autocast",
]


@dataclass(frozen=True, eq=False)
class LogprobOut:
    """Scalars of the rows that count, in their order, [n] each, float32 (float64 of float64 operands)."""

    logp: Tensor
    """Log-prob of the target, nats; with a gradient."""
    entropy: Tensor | None
    """Entropy, nats; with a gradient unless `entropy_grad` was off."""
    lse: Tensor
    """Log-partition; without a gradient."""
    reference_logp: Tensor | None
    """Log-prob of the target under the reference; without a gradient."""
    kl: Tensor | None
    """Exact KL to the reference at this state, nats; with a gradient by the policy."""
    invalid: Tensor | None = None
    """On CUDA, whether any target was outside the vocabulary, a scalar bool; the rows concerned are NaN."""

    def check(self) -> None:
        """Raise ValueError if a target on a GPU was outside the vocabulary. Waits for the device, as the backward does."""
        refuse_invalid(self.invalid)


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float | Tensor = 1.0,
    rows: Tensor | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    need_entropy: bool = False,
    entropy_grad: bool = True,
    reference: Head | None = None,
    need_kl: bool = False,
    group: Any = None,
    vocabulary: int | None = None,
    keep: float = 0.0,
    dw_out: Tensor | None = None,
    backend: str | Backend = "auto",
    strict: bool = True,
) -> LogprobOut:
    """Return log softmax(z)[target] of every row that counts, z = cap(hidden @ weight.T + bias) / temperature.

    The gradient of any loss of the returned scalars is exact; entropy and KL hold the visited states fixed.

    Parameters
    ----------
    hidden
        [M, H], float32, bfloat16 or float16.
    weight
        [V, H], of the same dtype; under a group, this rank's shard (`contract.shard`).
    targets
        Ids in 0 .. V - 1 of the whole vocabulary, [M], int.
    temperature
        Divides the logits: one number, or one a row, [M].
    rows
        Rows that count, [n], int, each once, in any order; best on the CPU, which knows the loss mask, as checking them
        then waits for no device. None for all. What other rows hold, NaN included, is never read.
    softcap
        cap(x) = softcap tanh(x / softcap), before the temperature.
    bias
        [V].
    need_entropy, entropy_grad
        Whether to return the entropy, and with a gradient.
    reference
        A second head on the same rows: its log-prob of the target is returned.
    need_kl
        Also the exact KL(policy || reference), over the whole vocabulary.
    group, vocabulary
        Process group of 1, 2, 4 or 8 ranks over which the vocabulary is split, and its whole size. Every rank passes the
        same rows and gets the same scalars, bit for bit those of one rank; the gradient by `hidden` is summed over ranks.
    keep
        Share of the logits that is kept for the backward, which makes the others again: at 0 four matrix products in all
        and nothing of size n x V, at 1 three and all of it. `head_loss` has three products in bounded memory.
    dw_out
        [V, H], float32: the weight's gradient is added here instead of being returned (autograd then sees none).
    backend
        ``"auto"``, a name, or a `Backend`.
    strict
        A row's bits must not depend on its neighbours, and float32 means float32: a backend that cannot promise it refuses.

    Raises
    ------
    TypeError, ValueError
        For arguments out of bounds, by name; for a backend that refuses, with its reason.

    Notes
    -----
    Coefficients of the update rule point uphill; upstream gradients are those of a loss, so minus the coefficients.

    >>> import torch
    >>> x, w = torch.zeros(2, 3), torch.ones(5, 3)
    >>> linear_logprob(x, w, torch.tensor([0, 4]), need_entropy=True).entropy  # ln 5
    tensor([1.6094, 1.6094])
    """
    given = Arguments(targets, temperature, rows, softcap, reference, group, vocabulary)
    if need_kl and reference is None:
        raise ValueError("need_kl=True takes a reference to measure from; pass reference=Head(hidden, weight)")
    if not 0 <= keep <= 1:
        raise ValueError(f"keep = {keep} must lie in 0 .. 1: a share of the logits")
    with without_autocast(hidden):
        checked = problem_of(hidden, weight, bias, given)
        problem, bad = checked.problem, checked.bad
        if dw_out is not None:
            shape("dw_out", dw_out, ("V", "H"), tuple(weight.shape))
            if dw_out.dtype != torch.float32 or dw_out.device != weight.device or not dw_out.is_contiguous():
                raise ValueError("dw_out must be float32, contiguous and on the weight's device")
            if torch.is_grad_enabled() and not weight.requires_grad:
                raise ValueError(
                    "dw_out would stay as it is: the weight requires no gradient; leave dw_out out, or make it require one"
                )
        call = _Call(
            group=group,
            vocabulary=vocabulary,
            wanted=Wanted(need_entropy, reference is not None, need_kl),
            backend=select(backend, problem, strict=strict),
            strict=strict,
            keep=keep if learns(hidden, weight, bias) else 0.0,
            entropy_grad=entropy_grad,
            dw_out=dw_out,
            invalid=None if bad is None else bad.any(),
        )
        logp, entropy, lse, reference_logp, kl = _LinearLogprob.apply(hidden, weight, bias, checked, call)
    if bad is not None:
        logp = logp.masked_fill(bad, torch.nan)
    return LogprobOut(logp, entropy, lse, reference_logp, kl, call.invalid)


def scatter(values: Tensor, rows: Tensor, size: int, fill: float = 0.0) -> Tensor:
    """Return values [n] at their rows among `size`, with `fill` elsewhere, [size]; the gradient goes through."""
    whole = values.new_full((size,), fill)
    return whole.index_put((rows.to(values.device, torch.int64),), values)


def without_autocast(hidden: Any) -> AbstractContextManager[Any]:
    """Return the context in which operands stay what they are."""
    return torch.autocast(hidden.device.type if isinstance(hidden, Tensor) else "cpu", enabled=False)


def refuse_second_derivative() -> None:
    """Raise RuntimeError in a backward that is itself to be differentiated: its result would pass for a constant."""
    if torch.is_grad_enabled():
        raise RuntimeError("the head has no second derivative; leave create_graph off")


def refuse_invalid(invalid: Tensor | None) -> None:
    """Raise ValueError where a target of a GPU's rows was outside the vocabulary; waits for the device."""
    if invalid is not None and bool(invalid):
        raise ValueError(
            "a target is outside the vocabulary (its log-prob is NaN); leave rows that have no target out with rows="
        )


@dataclass(frozen=True, eq=False)
class _Call:
    """What travels beside the tensors that autograd sees."""

    group: Any
    vocabulary: int | None
    wanted: Wanted
    backend: Backend
    strict: bool
    keep: float
    entropy_grad: bool
    dw_out: Tensor | None
    invalid: Tensor | None


def learns(*tensors: Tensor | None) -> bool:
    """Return whether any of them will be given a gradient."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def evaluate(
    backend: Backend, problem: Problem, wanted: Wanted, group: Any, vocabulary: int | None, *, strict: bool, keep: float
) -> tuple[Statistics, Kept | None]:
    """Return the statistics of a problem, merged over all ranks, and what the backend keeps for its backward."""
    partials, cached = backend.partials(problem, wanted, strict=strict, keep=keep)
    if group is not None and vocabulary is not None:
        partials = gather(partials, vocabulary, group)
    return backend.merge(partials), cached


class _LinearLogprob(torch.autograd.Function):
    """Scalars forward, dlogits and two products backward."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, checked: Checked, call: _Call
    ) -> tuple[Tensor | None, ...]:
        found, cached = evaluate(
            call.backend, checked.problem, call.wanted, call.group, call.vocabulary, strict=call.strict, keep=call.keep
        )
        # the rows that count are gathered again in the backward, when there are fewer of them
        light = replace(checked.problem, head=Head(hidden.new_empty(0, hidden.shape[1]), weight, bias))
        save(ctx, hidden, light if call.wanted.kl else replace(light, reference=None), found, cached, checked.rows)
        ctx.call = call
        ctx.set_materialize_grads(False)
        # copies: what the backward needs of a scalar is not the caller's to change
        scalars = (found.logp, found.entropy, found.reference_logp, found.kl)
        logp, entropy, reference_logp, kl = (None if x is None else x.clone() for x in scalars)
        lse = found.lse
        fixed = [lse, reference_logp, None if call.entropy_grad else entropy]
        ctx.mark_non_differentiable(*[x for x in fixed if x is not None])
        return logp, entropy, lse, reference_logp, kl

    @staticmethod
    def backward(
        ctx: Any, logp: Tensor | None, entropy: Tensor | None, _lse: None, _reference: None, kl: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        hidden, light, found, cached, rows = restore(ctx)
        call: _Call = ctx.call
        refuse_invalid(call.invalid)
        weight, bias = light.head.weight, light.head.bias
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        coefficients = Coefficients(logp, entropy if call.entropy_grad else None, kl)
        problem = replace(light, head=Head(gathered(hidden, rows), weight, bias))
        index = active_rows(coefficients, problem)
        if index is not None:  # exact, not a filter: a row without coefficients has no gradient
            problem, found, coefficients = problem.take(index), found.take(index), coefficients.take(index)
            cached = None if cached is None else cached.take(index)
            rows = index if rows is None else rows[index]
        into = Gradients(
            hidden=torch.zeros_like(problem.head.hidden, dtype=problem.temperature.dtype) if wants_hidden else None,
            weight=None if not wants_weight else torch.empty_like(weight) if call.dw_out is None else call.dw_out,
            bias=torch.zeros_like(bias, dtype=problem.temperature.dtype) if wants_bias else None,
            accumulate=call.dw_out is not None,
        )
        with without_autocast(hidden):
            add_gradients(
                call.backend, problem, found, coefficients, into, call.group, strict=call.strict, cached=cached
            )
        return (
            None if into.hidden is None else spread(into.hidden, rows, hidden.shape, hidden.dtype),
            None if call.dw_out is not None else into.weight,
            None if into.bias is None else into.bias.to(bias.dtype),
            None,
            None,
        )


def active_rows(coefficients: Coefficients, problem: Problem) -> Tensor | None:
    """Return the rows with a coefficient that is not 0, ascending; None for every row."""
    active = coefficients.active()
    if active is None:
        return problem.targets.new_zeros(0)
    index = active.nonzero()[:, 0]
    return None if len(index) == problem.rows else index


def add_gradients(
    backend: Backend,
    problem: Problem,
    found: Statistics,
    coefficients: Coefficients,
    into: Gradients,
    group: Any,
    *,
    strict: bool,
    cached: Kept | None,
) -> None:
    """Add a problem's gradients, that by the hidden states summed over the ranks that share the vocabulary."""
    if problem.rows:
        backend.gradients(problem, found, coefficients, into, strict=strict, cached=cached)
        if group is not None and into.hidden is not None:
            sum_over(into.hidden, group)
    elif into.weight is not None and not into.accumulate:
        into.weight.zero_()


def spread(gradient: Tensor, rows: Tensor | None, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return a gradient of some rows as one of all of them, `size` = [M, H]; 0 for the others."""
    if rows is None:
        return gradient.to(dtype)
    whole = gradient.new_zeros(size, dtype=dtype)
    return whole.index_copy_(0, rows.to(gradient.device, torch.int64), gradient.to(dtype))
