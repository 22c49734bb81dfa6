"""What a call owes to autograd: rows that are read or skipped, graphs, and gradients where they are asked for."""

from dataclasses import replace

import pytest
import torch
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from fullscale.kernels.linear_logprob import scatter
from tests.fullscale.kernels.small import (
    POLICY,
    SCALARS,
    Counting,
    assert_close,
    call,
    leaves_of,
    needs_bits,
    ours,
    relative,
    same_bits,
    small,
    total,
    truth,
    upstream_of,
)

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


# --- rows that do not count -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_what_other_rows_hold_is_never_read(poisoned, keep):
    case = small(1003, 40)
    rows = torch.tensor([1, 30, 7, 8, 22])
    others = torch.ones(40, dtype=torch.bool).index_fill(0, rows, False)
    hidden, theirs, temperature, targets = (
        x.clone() for x in (case.hidden, case.reference.hidden, case.temperature, case.targets)
    )
    hidden[others] = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, 0])[torch.arange(35) % 5, None]
    theirs[others], targets[others] = torch.nan, -100
    temperature[others] = torch.tensor([0, torch.nan, -1, torch.inf, 1])[torch.arange(35) % 5]
    spoilt = replace(
        case,
        hidden=hidden,
        targets=targets,
        temperature=temperature,
        rows=rows,
        reference=replace(case.reference, hidden=theirs),
    )
    upstream = upstream_of(spoilt)
    found, alone = (ours(c, upstream, keep=keep) for c in (spoilt, case.of(rows)))
    assert not found["d_hidden"][others].any()
    assert same_bits(found | {"d_hidden": found["d_hidden"][rows]}, alone)
    assert alone["d_hidden"].abs().sum(1).min() > 0


@pytest.mark.parametrize("options", [{}, {"keep": 1.0}, {"keep": 0.3}, {"dw_out": True}], ids=str)
@pytest.mark.parametrize("rows", [None, torch.tensor([5, 299, 0, 17]), torch.zeros(0, dtype=torch.int64)], ids=str)
def test_memory_that_nobody_wrote_is_never_read(poisoned, options, rows):
    case = replace(small(1003, 300), rows=rows)
    upstream = upstream_of(case)
    upstream["logp"][1:3] = upstream["entropy"][1:3] = upstream["kl"][1:3] = 0
    if "dw_out" in options:
        options = {"dw_out": torch.zeros(1003, 32)}
    found = ours(case, upstream, **options)
    assert all(x.isfinite().all() for x in found.values())
    assert_close(found, truth(case, upstream), case)


@pytest.mark.parametrize("rows", [None, torch.randperm(300, generator=torch.Generator().manual_seed(0))[:280]])
@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_rows_without_coefficients_are_skipped_exactly(rows, keep):
    """Bit for bit: a gradient is that of the same call with the rows left out."""
    case = replace(small(1003, 300), rows=rows)
    needs_bits(case)
    upstream = upstream_of(case)
    for j, name in enumerate(POLICY):  # each scalar alone, then none
        upstream[name][torch.arange(case.n) % 6 >= 3 - j] = 0
    active = torch.stack([x != 0 for x in upstream.values()]).any(0).nonzero()[:, 0]
    assert 100 < len(active) < 200
    names = torch.arange(300) if rows is None else rows
    backend = Counting()
    found = ours(case, upstream, backend=backend, keep=keep)
    assert backend.gradients_of == [case.targets[names[active]].tolist()]
    fewer = ours(replace(case, rows=names[active]), {k: x[active] for k, x in upstream.items()}, keep=keep)
    assert all(same_bits(found[name], fewer[name]) for name in found if name.startswith("d_"))
    assert_close(found, truth(case, upstream), case)


def test_no_coefficient_at_all_takes_no_product():
    case, backend = small(1003), Counting()
    found = ours(case, {name: torch.zeros(17) for name in POLICY}, backend=backend)
    assert backend.gradients_of == []
    assert not any(found[f"d_{name}"].any() for name in ("hidden", "weight", "bias"))


# --- autograd ---------------------------------------------------------------------------------------------------------


def test_a_scalar_without_upstream_gradient_takes_no_part():
    case = small(1003)
    upstream = upstream_of(case)
    for name in POLICY:
        leaves = leaves_of(case)
        out = call(case, leaves)
        (getattr(out, name) * upstream[name]).sum().backward()
        alone = ours(case, {name: upstream[name]})
        assert all(same_bits(leaves[k].grad, alone[f"d_{k}"]) for k in leaves)


@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_a_graph_that_is_retained_adds_its_gradient_again(keep):
    case = small(1003)
    upstream, leaves = upstream_of(case), leaves_of(case)
    loss = total(call(case, leaves, keep=keep), upstream)
    loss.backward(retain_graph=True)
    loss.backward()
    once = ours(case, upstream)
    assert all(same_bits(leaves[name].grad, 2 * once[f"d_{name}"]) for name in leaves)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


@pytest.mark.parametrize("loss", [torch.sum, lambda x: x.square().sum()], ids=["constant upstream", "its own"])
def test_a_second_derivative_is_refused(loss):
    """Nor is it left out of a larger loss, as the derivative of a constant would be."""
    leaves = leaves_of(small(101))
    with pytest.raises(RuntimeError, match=r"twice|second derivative|create_graph"):  # noqa: PT012
        (first,) = torch.autograd.grad(loss(call(small(101), leaves).logp), leaves["hidden"], create_graph=True)
        (first.square().sum() + leaves["weight"].sum()).backward()


@pytest.mark.parametrize("learns", [("hidden",), ("weight",), ("bias",), ("hidden", "bias")])
def test_what_is_frozen_gets_no_gradient_and_the_others_the_same(learns):
    case, upstream = small(1003), upstream_of(small(1003))
    whole, leaves = ours(case, upstream), leaves_of(case)
    for name in leaves.keys() - set(learns):
        leaves[name].requires_grad_(False)
    total(call(case, leaves), upstream).backward()
    for name, x in leaves.items():
        assert (x.grad is None) == (name not in learns)
        assert x.grad is None or same_bits(x.grad, whole[f"d_{name}"])


def test_the_entropy_can_do_without_a_gradient():
    case = small(1003)
    leaves = leaves_of(case)
    out = call(case, leaves, entropy_grad=False)
    assert not out.entropy.requires_grad
    assert same_bits(out.entropy, call(case).entropy)
    (out.logp * (1 + out.entropy)).sum().backward()
    alone = ours(case, {"logp": 1 + out.entropy.detach()})
    assert same_bits(leaves["hidden"].grad, alone["d_hidden"])


@pytest.mark.parametrize("off", ["no_grad", "inference", "frozen"])
def test_nothing_is_kept_where_nothing_learns(off):
    case, backend = small(1003), Counting()
    leaves = None if off == "frozen" else leaves_of(case)
    with {"no_grad": torch.no_grad, "inference": torch.inference_mode, "frozen": torch.enable_grad}[off]():
        out = call(case, leaves, backend=backend, keep=1.0)
    assert not any(x.requires_grad for name in SCALARS if (x := getattr(out, name)) is not None)
    assert backend.kept == [0.0]
    assert same_bits(out.logp, call(case).logp)


def test_only_what_has_a_gradient_says_so():
    out = call(small(101), leaves_of(small(101)))
    assert [name for name in SCALARS if getattr(out, name).requires_grad] == ["logp", "entropy", "kl"]


@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64])
def test_the_weights_gradient_is_added_where_it_is_told(dtype):
    case = small(1003, 300, dtype=dtype)
    upstream, there = upstream_of(case), torch.full((1003, 32), 3.0)
    true = truth(case, upstream)["d_weight"]
    leaves = leaves_of(case)
    loss = total(call(case, leaves, dw_out=there), upstream)
    for n in (1, 2):
        loss.backward(retain_graph=True)
        assert leaves["weight"].grad is None
        assert relative(there - 3, n * true) < 1e-5  # float32, whatever the operands are
    assert leaves["hidden"].grad is not None


@pytest.mark.parametrize("idle", ["no rows", "no coefficients"])
def test_what_is_there_stays_where_nothing_is_added(idle):
    case = small(101) if idle == "no coefficients" else replace(small(101), rows=torch.zeros(0, dtype=torch.int64))
    there, leaves = torch.full((101, 32), 3.0), leaves_of(case)
    (0 * call(case, leaves, dw_out=there).logp).sum().backward()
    assert (there == 3).all()
    assert not leaves["hidden"].grad.any()


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_autocast_outside_changes_no_bit(dtype):
    case = small(1003)
    upstream = upstream_of(case)
    with torch.autocast("cpu", dtype=dtype):
        inside = ours(case, upstream)
    assert same_bits(inside, ours(case, upstream))


def plainly(f, x):
    return f(x)


def with_checkpoints(f, x):
    return checkpoint(f, x, use_reentrant=False)


def with_reentrant_checkpoints(f, x):
    return checkpoint(f, x, use_reentrant=True)


def with_saved_tensors_elsewhere(f, x):
    with save_on_cpu():
        return f(x)


@pytest.mark.parametrize("run", [with_checkpoints, with_reentrant_checkpoints, with_saved_tensors_elsewhere])
@pytest.mark.parametrize("keep", [0.0, 1.0])
def test_ways_to_save_activations_change_no_bit(run, keep):
    case, found = small(1003), []
    for way in (plainly, run):
        leaves = leaves_of(case)

        def loss(x, leaves=leaves):
            return total(call(case, leaves | {"hidden": x * 1.5}, keep=keep), upstream_of(case))

        way(loss, leaves["hidden"]).backward()
        found.append({name: x.grad for name, x in leaves.items()})
    assert same_bits(*found)


# --- back among all rows ----------------------------------------------------------------------------------------------


def test_scatter_by_hand():
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    whole = scatter(values, torch.tensor([3, 0], dtype=torch.int32), 4, fill=-9.0)
    assert whole.tolist() == [2, -9, -9, 1]
    (whole * torch.tensor([1.0, 10, 100, 1000])).sum().backward()
    assert values.grad.tolist() == [1000, 1]
    assert scatter(values[:0], torch.zeros(0, dtype=torch.int64), 2).tolist() == [0, 0]


def test_scattered_log_probs_are_those_of_the_rows():
    case = replace(small(101), rows=torch.tensor([16, 2, 5]))
    whole = scatter(call(case).logp, case.rows, 17, fill=torch.nan)
    assert torch.equal(whole[case.rows], call(case).logp)
    assert int(whole.isnan().sum()) == 14
