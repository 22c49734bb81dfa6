"""What `head_loss` owes to autograd: rows that are skipped, gradients that are handed over, and none where none is asked."""

from dataclasses import replace

import pytest
import torch

from fullscale.kernels.problem import Coefficients
from tests.fullscale.kernels.small import (
    POLICY,
    Counting,
    assert_close,
    call,
    in_one_go,
    leaves_of,
    loss_of,
    of_logp,
    ours,
    same_bits,
    small,
    total,
    truth,
    upstream_of,
)

F64 = torch.float64


@pytest.mark.parametrize("chunk_rows", [8, 64])
def test_rows_without_coefficients_are_skipped_exactly(chunk_rows):
    case, backend = small(1003, 40), Counting()
    upstream = upstream_of(case)
    for c in upstream.values():
        c[torch.arange(40) % 3 > 0] = c[8:16] = 0  # the second piece of eight has none at all
    active = [i for i in range(40) if i % 3 == 0 and not 8 <= i < 16]
    found = in_one_go(case, upstream, chunk_rows=chunk_rows, backend=backend)
    assert [t for piece in backend.gradients_of for t in piece] == case.targets[active].tolist()
    assert all(backend.gradients_of)  # nothing is asked for no rows
    assert_close(found, truth(case, upstream), case)
    fewer = replace(case, rows=torch.tensor(active))
    alone = in_one_go(fewer, {name: c[active] for name, c in upstream.items()}, chunk_rows=chunk_rows)
    for name in ("d_hidden", "d_weight", "d_bias"):
        torch.testing.assert_close(found[name], alone[name], rtol=1e-5, atol=1e-6)


def test_no_coefficients_at_all_leave_no_gradient(poisoned):
    case, leaves, backend = small(101, 10), leaves_of(small(101, 10)), Counting()
    out = loss_of(case, lambda s: Coefficients(None), leaves, backend=backend)
    out.loss.backward()
    assert float(out.loss.detach()) == 0
    assert backend.gradients_of == []
    assert not any(x.grad.any() for x in leaves.values())


@pytest.mark.parametrize("rows", [None, torch.tensor([3, 17, 9, 0, 12])], ids=["all", "some"])
def test_memory_that_nobody_wrote_is_never_read(poisoned, rows):
    case = replace(small(1003, 20), rows=rows)
    upstream = upstream_of(case)
    for c in upstream.values():
        c[:2] = 0
    assert_close(in_one_go(case, upstream, chunk_rows=2), truth(case, upstream), case)


@pytest.mark.parametrize("off", ["no_grad", "frozen"])
def test_nothing_is_kept_where_nothing_learns(off):
    case, backend = small(101, 10), Counting()
    leaves = None if off == "frozen" else leaves_of(case)
    with torch.set_grad_enabled(off == "frozen"):
        out = loss_of(case, of_logp, leaves, backend=backend)
    assert not out.loss.requires_grad
    assert backend.gradients_of == []
    assert backend.kept == [0.0]
    assert float(out.loss.detach()) == pytest.approx(float(call(case).logp.sum()), rel=1e-6)


@pytest.mark.parametrize("learns", [("hidden",), ("weight",), ("bias",)])
def test_what_is_frozen_gets_no_gradient(learns):
    case, upstream = small(101, 20), upstream_of(small(101, 20))
    whole, leaves = in_one_go(case, upstream), leaves_of(case)
    for name in leaves.keys() - set(learns):
        leaves[name].requires_grad_(False)
    options = {"need_entropy": True, "need_kl": True}
    loss_of(case, lambda s: Coefficients(*map(upstream.get, POLICY)), leaves, **options).loss.backward()
    assert {name for name, x in leaves.items() if x.grad is not None} == set(learns)
    assert all(same_bits(leaves[name].grad, whole[f"d_{name}"]) for name in learns)


def test_the_gradient_is_handed_over_once():
    leaves = leaves_of(small(101))
    loss = loss_of(small(101), of_logp, leaves).loss
    loss.backward(retain_graph=True)
    first = leaves["hidden"].grad.clone()
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()
    assert torch.equal(leaves["hidden"].grad, first)


@pytest.mark.parametrize("again", [torch.sum, lambda x: x.square().sum()], ids=["constant upstream", "its own"])
def test_a_second_derivative_is_refused(again):
    """Nor is it left out of a larger loss, as the derivative of a constant would be."""
    leaves = leaves_of(small(101))
    with pytest.raises(RuntimeError, match=r"twice|second derivative|create_graph"):  # noqa: PT012
        loss = again(loss_of(small(101), of_logp, leaves).loss)
        (first,) = torch.autograd.grad(loss, leaves["hidden"], create_graph=True)
        (first.square().sum() + leaves["weight"].sum()).backward()


def test_scalars_have_no_gradient():
    out = loss_of(small(101), of_logp, leaves_of(small(101)), need_entropy=True, need_kl=True)
    assert out.loss.requires_grad
    assert not any(getattr(out.scalars, name).requires_grad for name in ("logp", "entropy", "reference_logp", "kl"))
    assert out.scalars.rows == slice(0, 17)


def test_no_rows():
    case = replace(small(101), rows=torch.zeros(0, dtype=torch.int64))
    leaves, calls = leaves_of(case), []
    out = loss_of(case, calls.append, leaves, need_entropy=True, need_kl=True, units=[])
    out.loss.backward()
    assert calls == []
    assert float(out.loss.detach()) == 0
    assert out.scalars.logp.shape == out.scalars.kl.shape == (0,)
    assert not any(x.grad.any() for x in leaves.values())


def test_losses_add_up_over_calls():
    """Micro-batches of one step: gradients accumulate in the leaves as those of any loss."""
    case = small(101, 20, dtype=F64)
    upstream, leaves = upstream_of(case), leaves_of(case)
    for half in (torch.arange(8), torch.arange(8, 20)):
        part = replace(case, rows=half)

        def coefficients(s, half=half):
            return Coefficients(*(upstream[name][half][s.rows] for name in POLICY))

        loss_of(part, coefficients, leaves, need_entropy=True, need_kl=True, chunk_rows=5).loss.backward()
    whole = ours(case, upstream)
    for name, x in leaves.items():
        torch.testing.assert_close(x.grad, whole[f"d_{name}"], rtol=1e-12, atol=1e-12)
    assert total(call(case), upstream).abs() > 1
