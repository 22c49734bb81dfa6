"""The answers to the questions of `cases`: a backend against the oracle, and against itself to the bit."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fullscale.kernels.arguments import Arguments, problem_of
from fullscale.kernels.contract import shard, strips
from fullscale.kernels.head_loss import Scalars, head_loss
from fullscale.kernels.linear_logprob import LogprobOut, linear_logprob
from fullscale.kernels.problem import Backend, Coefficients, Problem, Wanted
from fullscale.validate_gpu import oracle
from fullscale.validate_gpu.cases import Case
from fullscale.validate_gpu.inputs import Inputs, draw
from fullscale.validate_gpu.outcome import Outcome, judged, skipped
from fullscale.validate_gpu.poison import Poisoned

__all__ = ["CHECKS", "answer"]

CAPS = {"logp": 2e-5, "entropy": 5e-5, "lse": 2e-5, "reference_logp": 2e-5, "kl": 5e-5}
"""Nats, against float64 of the same operands, for logits up to 16; in proportion beyond, as a float's own step is."""
GRADIENT = {"bfloat16": 5e-3, "float16": 5e-3, "float32": 5e-5}
"""Relative error of a gradient in the 2-norm, as dlogits and results are rounded to that type; of one row, 4 times it."""
KEPT = 2.0
"""Times as much where logits are kept in 16 bits."""
INTERPRETED = 2.0
"""Times as much in Triton's interpreter, which cuts a float32 off to 16 bits where a card rounds it."""
SAMPLE = 512
"""Rows of a large case that are compared with float64."""


def answer(case: Case, backend: Backend, device: str, *, may_refuse: bool = False) -> Outcome:
    """Return what a case comes to on a backend, which with `may_refuse` may decline any."""
    if (lacking := _memory(case, device)) is not None:
        return skipped("memory", lacking)
    inputs = draw(case, device)
    if (reason := backend.refusal(_problem(inputs), strict=True)) is not None:
        return (
            skipped("refused", reason)
            if may_refuse or case.may_refuse
            else Outcome("failed", note=f"refused: {reason}")
        )
    with Poisoned():
        return CHECKS[case.check](case, inputs, backend)


def _memory(case: Case, device: str) -> str | None:
    """Return what a card lacks for a large case and its oracle: weight and two gradients, one pair of them in float64."""
    if not case.large or device == "cpu":
        return None
    needed = case.vocabulary * case.hidden * (2 + 2 + 8 + 8 + 8) + (6 << 30)
    free, _ = torch.cuda.mem_get_info()
    return None if free >= needed else f"needs {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free"


# --- what is called ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Called:
    """A call of the public function, with the leaves of its gradient."""

    out: LogprobOut
    leaves: Mapping[str, Tensor]
    upstream: Mapping[str, Tensor]

    def backward(self, *, again: bool = False) -> dict[str, Tensor]:
        """Return the gradients by the leaves; those of an earlier call are not added to."""
        for leaf in self.leaves.values():
            leaf.grad = None
        loss = torch.stack([(g * getattr(self.out, part)).sum() for part, g in self.upstream.items()]).sum()
        torch.autograd.backward(
            loss, retain_graph=again
        )  # loss.backward() would leave `Poisoned` for the time of the call
        return {name: leaf.grad.clone() for name, leaf in self.leaves.items() if leaf.grad is not None}


def _call(case: Case, inputs: Inputs, backend: Backend, dw_out: Tensor | None = None) -> _Called:
    leaves = {"hidden": inputs.hidden.detach().requires_grad_(), "weight": inputs.weight.detach().requires_grad_()}
    if inputs.bias is not None:
        leaves["bias"] = inputs.bias.detach().requires_grad_()
    out = linear_logprob(
        leaves["hidden"],
        leaves["weight"],
        inputs.targets,
        temperature=inputs.temperature,
        rows=inputs.rows,
        softcap=inputs.softcap,
        bias=leaves.get("bias"),
        need_entropy=case.entropy,
        reference=inputs.reference,
        need_kl=case.kl,
        keep=case.keep,
        dw_out=dw_out,
        backend=backend,
        strict=True,
    )
    return _Called(out, leaves, inputs.upstream)


def _problem(inputs: Inputs) -> Problem:
    given = Arguments(inputs.targets, inputs.temperature, inputs.rows, inputs.softcap, inputs.reference)
    return problem_of(inputs.hidden, inputs.weight, inputs.bias, given).problem


def _partials(case: Case, problem: Problem, backend: Backend) -> dict[str, Tensor]:
    """Return all that a backend makes of a problem on the way to its scalars, by name."""
    wanted = Wanted(case.entropy, case.kl, case.kl)
    found, _ = backend.partials(problem, wanted, strict=True)
    return _named(found) | {f"merged {k}": v for k, v in _named(backend.merge(found)).items()}


def _named(record: Any) -> dict[str, Tensor]:
    return {f.name: x for f in fields(record) if isinstance(x := getattr(record, f.name), Tensor)}


# --- against the oracle -----------------------------------------------------------------------------------------------


def _values(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    with torch.no_grad():
        out = _call(case, inputs, backend).out
    n = len(out.logp)
    among = torch.randperm(n, generator=torch.Generator().manual_seed(0))[: SAMPLE if case.large else n].to(
        out.logp.device
    )
    truth = oracle.values(inputs, among)
    found, bounds = {"largest logit": truth.largest}, {}
    for part, cap in CAPS.items():
        ours, true = getattr(out, part), getattr(truth, part)
        if ours is not None and true is not None:
            found[part] = float((ours[among].double() - true).abs().max())
            bounds[part] = cap * max(1.0, truth.largest / 16)
    return judged(found, bounds)


def _gradients(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    return _against_truth(case, inputs, backend, _call(case, inputs, backend).backward())


def _added(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    before = torch.randn(inputs.weight.shape, generator=torch.Generator().manual_seed(0)).to(inputs.weight.device)
    into = before.clone()
    found = _call(case, inputs, backend, dw_out=into).backward()
    if "weight" in found:
        return Outcome("failed", note="the weight has a gradient beside the one that was added to dw_out")
    return _against_truth(case, inputs, backend, found | {"weight": into - before})


def _head_loss(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    """Three products, in pieces, the last one short."""
    hidden, weight = inputs.hidden.detach().requires_grad_(), inputs.weight.detach().requires_grad_()

    def coefficients(scalars: Scalars) -> Coefficients:
        return Coefficients(inputs.upstream["logp"][scalars.rows], inputs.upstream["entropy"][scalars.rows])

    found = head_loss(hidden, weight, inputs.targets, coefficients, rows=inputs.rows, need_entropy=True, backend=backend,
                      chunk_rows=case.rows // 2 - 1)  # fmt: skip
    found.loss.backward()
    assert hidden.grad is not None
    assert weight.grad is not None
    return _against_truth(case, inputs, backend, {"hidden": hidden.grad, "weight": weight.grad})


def _against_truth(case: Case, inputs: Inputs, backend: Backend, found: Mapping[str, Tensor]) -> Outcome:
    values: dict[str, float] = {}
    bounds: dict[str, float] = {}
    bound = GRADIENT[case.dtype]
    bound *= KEPT if case.keep or case.check == "head_loss" else 1.0
    bound *= INTERPRETED if backend.name == "triton" and inputs.hidden.device.type == "cpu" else 1.0
    for name, true in oracle.gradients(inputs).items():
        error, size = found[name].double() - true, float(true.norm())
        values |= {name: float(error.norm()) / size, f"{name} norm": size}
        bounds[name] = bound
        if true.ndim == 2:
            rows = true.norm(dim=1)
            values[f"{name}, worst row"] = float((error.norm(dim=1) / rows.clamp(min=1e-3 * float(rows.max()))).max())
            bounds[f"{name}, worst row"] = 4 * bound
    if inputs.rows is not None:
        elsewhere = found["hidden"].index_fill(0, inputs.counting, 0.0)
        values["hidden, rows that do not count"], bounds["hidden, rows that do not count"] = (
            float(elsewhere.abs().max()),
            0.0,
        )
    return judged(values, bounds)


# --- against itself, to the bit ---------------------------------------------------------------------------------------


def _differing(pairs: Iterator[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]]) -> Outcome:
    """Return passed if all pairs of results have the same bits; NaN is no result."""
    compared = differing = unwritten = 0
    for a, b in pairs:
        for name, x in a.items():
            compared += x.numel()
            unwritten += int(x.isnan().sum())
            differing += int((x != b[name]).sum()) + int((x.signbit() != b[name].signbit()).sum())
    values = {"compared": compared, "differing": differing, "NaN": unwritten}
    return judged(values, {"differing": 0, "NaN": 0} if compared else {"compared": -1})


def _at(found: Mapping[str, Tensor], index: Tensor) -> dict[str, Tensor]:
    return {name: x[index] for name, x in found.items()}


def _company(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    """A row alone, and among as many others as each number says, at the beginning and at the end."""
    problem = _problem(inputs)
    whole = _partials(case, problem, backend)
    every = torch.arange(problem.rows, device=inputs.hidden.device)
    parts = [x for n in case.company for x in (every[:n], every[-n:])] + [every[problem.rows // 2 :][:1]]
    return _differing((_at(whole, part), _partials(case, problem.take(part), backend)) for part in parts)


def _permuted(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    problem = _problem(inputs)
    order = torch.randperm(problem.rows, generator=torch.Generator().manual_seed(2)).to(inputs.hidden.device)
    pair = (_at(_partials(case, problem, backend), order), _partials(case, problem.take(order), backend))
    return _differing(iter([pair]))


def _again(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    problem = _problem(inputs)
    first = _partials(case, problem, backend)
    return _differing((first, _partials(case, problem, backend)) for _ in range(3))


def _shards(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    """The strips of all ranks, side by side, are those of one rank."""
    problem = _problem(inputs)
    whole = _named(backend.partials(problem, Wanted(case.entropy), strict=True)[0])

    def pairs() -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
        for ranks in case.ranks:
            found = []
            for rank in range(ranks):
                mine = shard(case.vocabulary, rank, ranks)
                head = replace(problem.head, weight=problem.head.weight[mine.start : mine.stop])
                part = replace(problem, head=head, strips=strips(case.vocabulary, rank, ranks))
                found.append(_named(backend.partials(part, Wanted(case.entropy), strict=True)[0]))
            yield whole, {name: torch.cat([f[name] for f in found], 1) for name in whole}

    return _differing(pairs())


def _gradients_again(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    first = _call(case, inputs, backend).backward()
    return _differing((first, _call(case, inputs, backend).backward()) for _ in range(4))


def _dropped(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    """Rows whose coefficients are all 0 leave the gradients as if they had not been asked about."""
    found = _call(case, inputs, backend).backward()
    kept = inputs.upstream["logp"].nonzero()[:, 0]
    fewer = replace(inputs, rows=inputs.counting[kept].cpu(), upstream={k: v[kept] for k, v in inputs.upstream.items()})
    return _differing(iter([(found, _call(case, fewer, backend).backward())]))


def _twice(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    """A graph that is kept gives the same gradients again, and the inputs are as they were."""
    called = _call(case, inputs, backend)
    first = called.backward(again=True) | {f"input {k}": v.detach().clone() for k, v in called.leaves.items()}
    fresh = draw(case, inputs.hidden.device.type)
    second = called.backward() | {"input hidden": fresh.hidden, "input weight": fresh.weight}
    return _differing(iter([(first, second)]))


def _empty(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    """No rows: no scalars, and gradients that are 0 and not merely unwritten."""
    called = _call(case, inputs, backend)
    found = called.backward()
    values = {"scalars": called.out.logp.numel(), "gradients": len(found)}
    wrong = sum(int((g != 0).sum()) for g in found.values())
    return judged(values | {"not zero": wrong, "missing": 2 - len(found)}, {"scalars": 0, "not zero": 0, "missing": 0})


def _outside(case: Case, inputs: Inputs, backend: Backend) -> Outcome:
    """A target that is no column is told: by an error at once, or by NaN in its row alone and an error when asked."""
    targets = inputs.targets.clone()
    targets[0] = case.vocabulary
    try:
        out = _call(case, replace(inputs, targets=targets), backend).out
    except ValueError as error:
        return judged({"untold": float("targets" not in str(error))}, {"untold": 0}, note=str(error))
    nan = out.logp.isnan()
    values = {"row not NaN": float(not bool(nan[0])), "other rows NaN": int(nan[1:].sum()), "untold": 1.0}
    try:
        out.check()
    except ValueError:
        values["untold"] = 0.0
    return judged(values, dict.fromkeys(values, 0))


CHECKS: Mapping[str, Callable[[Case, Inputs, Backend], Outcome]] = {
    "values": _values,
    "gradients": _gradients,
    "added": _added,
    "head_loss": _head_loss,
    "company": _company,
    "permuted": _permuted,
    "again": _again,
    "shards": _shards,
    "gradients_again": _gradients_again,
    "dropped": _dropped,
    "twice": _twice,
    "empty": _empty,
    "outside": _outside,
}
"""What `Case.check` names."""
