"""The loss whose gradient is made going forward: that of `linear_logprob` with the coefficients held fixed."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullscale.kernels.head_loss import CHUNK_ROWS
from fullscale.kernels.problem import Coefficients
from tests.fullscale.kernels.small import (
    POLICY,
    assert_close,
    call,
    in_one_go,
    leaves_of,
    loss_of,
    needs_bits,
    of_logp,
    ours,
    relative,
    same_bits,
    small,
    truth,
    upstream_of,
)

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


# --- the same as linear_logprob ---------------------------------------------------------------------------------------

TIGHT = {F64: 1e-12, F32: 2e-6, BF16: 4e-3, F16: 1e-3}
"""Rows are added up in another order; 16-bit gradients are then rounded, the last bit either way."""


@pytest.mark.parametrize("dtype", [F64, F32, BF16, F16])
@pytest.mark.parametrize("names", [("logp",), ("logp", "entropy"), POLICY])
@pytest.mark.parametrize("chunk_rows", [None, 7, 64])
def test_value_and_gradient_are_those_of_the_scalars(dtype, names, chunk_rows):
    case = small(1003, 70, dtype=dtype, softcap=5.0)
    upstream = upstream_of(case, names)
    found, theirs = in_one_go(case, upstream, chunk_rows=chunk_rows), ours(case, upstream)
    assert_close(found, truth(case, upstream), case)
    for name, x in theirs.items():
        if name.startswith("d_"):
            assert relative(found[name], x) <= TIGHT[dtype], name
        elif name in found:
            torch.testing.assert_close(found[name], x, rtol=1e-6, atol=1e-6)
    terms = torch.stack([c * theirs[name] for name, c in upstream.items()])
    assert abs(found["loss"] - terms.sum()) <= TIGHT[F64 if dtype == F64 else F32] * terms.abs().sum()
    assert abs(terms.sum()) > 1


@pytest.mark.parametrize("rows", [torch.tensor([60, 3, 4, 41]), torch.arange(0, 70, 2)])
def test_some_rows(rows):
    case = replace(small(1003, 70), rows=rows)
    upstream = upstream_of(case)
    found = in_one_go(case, upstream, chunk_rows=8)
    assert_close(found, truth(case, upstream), case)
    others = torch.ones(70, dtype=torch.bool).index_fill(0, rows, False)
    assert not found["d_hidden"][others].any()


@pytest.mark.parametrize("chunk_rows", [1, 5, 16, 100, 256, 300, 1000])
def test_scalars_have_the_bits_of_linear_logprob_however_they_are_cut(chunk_rows):
    case = small(1003, 300)
    needs_bits(case)
    upstream = upstream_of(case)
    found, theirs = in_one_go(case, upstream, chunk_rows=chunk_rows), ours(case, upstream)
    assert all(same_bits(found[name], theirs[name]) for name in ("logp", "entropy", "reference_logp", "kl"))
    assert relative(found["d_hidden"], theirs["d_hidden"]) < 1e-6  # a gradient's bits are not promised


def test_coefficients_that_depend_on_the_scalars_are_held_fixed():
    """PPO's ratio: the gradient is that of sg(ratio) log pi, and not of ratio log pi."""
    case = small(101, 20, dtype=F64)
    old = call(case).logp.detach() + 0.1

    def ratio(s):
        return Coefficients(-(s.logp - old[s.rows]).exp(), 0.01 * s.entropy)

    leaves, again = leaves_of(case), leaves_of(case)
    loss_of(case, ratio, leaves, need_entropy=True, chunk_rows=6).loss.backward()
    out = call(case, again)
    (-((out.logp - old).exp().detach() * out.logp) + 0.01 * out.entropy.detach() * out.entropy).sum().backward()
    for name, x in leaves.items():
        torch.testing.assert_close(x.grad, again[name].grad, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("scale", [-0.5, 3.0, 0.0])
def test_the_upstream_number_scales_the_gradient(scale):
    case = small(101, 20)
    upstream = upstream_of(case)
    found, once = in_one_go(case, upstream, scale), in_one_go(case, upstream)
    for name in ("d_hidden", "d_weight", "d_bias"):
        torch.testing.assert_close(found[name], once[name] * scale)


def test_a_scaled_loss_keeps_small_gradients_of_16_bits():
    """Loss scaling: 1e-9 vanishes in float16 unless the scale comes before the rounding."""
    case = small(101, 20, dtype=F16, reference=False)
    upstream = {"logp": torch.full((20,), 1e-9)}
    found = in_one_go(case, upstream, scale=2.0**16)
    theirs = ours(case, {"logp": upstream["logp"] * 2.0**16})
    assert theirs["d_weight"].abs().max() > 0
    for name in ("d_hidden", "d_weight"):
        assert relative(found[name], theirs[name]) < 1e-2, name


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_autocast_outside_changes_no_bit(dtype):
    case = small(1003, 30)
    upstream = upstream_of(case)
    with torch.autocast("cpu", dtype=dtype):
        inside = in_one_go(case, upstream, chunk_rows=9)
    assert same_bits(inside, in_one_go(case, upstream, chunk_rows=9))


# --- pieces -----------------------------------------------------------------------------------------------------------


def pieces_of(case, **options):
    """Which rows each call of the coefficients was for."""
    seen = []

    def coefficients(s):
        assert all(x is None or len(x) == s.rows.stop - s.rows.start for x in (s.logp, s.entropy, s.kl))
        assert not s.logp.requires_grad
        seen.append(range(s.rows.start, s.rows.stop))
        return Coefficients(torch.ones_like(s.logp))

    loss_of(case, coefficients, **options)
    return seen


@given(st.lists(st.integers(0, 9), max_size=12), st.integers(9, 24))
def test_units_are_packed_whole_and_in_order(units, size):
    pieces = pieces_of(small(5, sum(units), reference=False), units=units, chunk_rows=size)
    assert [i for piece in pieces for i in piece] == list(range(sum(units)))  # every row once
    assert all(1 <= len(piece) <= size for piece in pieces)
    edges = {0}
    for length in units:
        edges.add(max(edges) + length)
    assert {piece.start for piece in pieces} <= edges
    lengths = [n for n in units if n]
    ends = [sum(lengths[:i]) for i in range(1, len(lengths) + 1)]
    for one in pieces[:-1]:  # as full as they come: the next unit would not have fitted
        assert lengths[ends.index(one.stop) + 1] + len(one) > size


@given(st.integers(0, 30), st.integers(1, 12))
def test_without_units_every_piece_but_the_last_is_full(n, size):
    pieces = pieces_of(small(5, n, reference=False), chunk_rows=size)
    assert [len(p) for p in pieces] == [size] * (n // size) + [n % size] * (n % size > 0)


def test_pieces_by_hand():
    assert pieces_of(small(5, 10), units=[3, 2, 4, 1], chunk_rows=5) == [range(5), range(5, 10)]
    assert pieces_of(small(5, 10), units=[3, 2, 5], chunk_rows=8) == [range(5), range(5, 10)]
    assert pieces_of(small(5, 10), units=[10], chunk_rows=10) == [range(10)]
    assert pieces_of(small(5, 300)) == [range(CHUNK_ROWS["cpu"]), range(256, 300)]
    assert pieces_of(replace(small(5, 10), rows=torch.tensor([9, 1, 2])), chunk_rows=2) == [range(2), range(2, 3)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"units": [3, 6], "chunk_rows": 5}, ("unit 1 has 6 rows", "chunk_rows = 5", "linear_logprob")),
        ({"units": [4, 4]}, ("units", "9 rows", "sum to 8")),
        ({"units": [10, -1]}, ("units", "9 rows")),
        ({"units": []}, ("units", "9 rows", "sum to 0")),
        ({"chunk_rows": 0}, ("chunk_rows = 0", "at least 1")),
        ({"chunk_rows": -256}, ("chunk_rows = -256", "at least 1")),
    ],
)
def test_units_that_cannot_be_packed_are_named(options, said):
    with pytest.raises(ValueError) as raised:
        loss_of(small(5, 9), of_logp, **options)
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)


# --- coefficients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_back", "said"),
    [
        (lambda s: Coefficients(s.logp[:-1]), ("coefficients.logp", "(4,)", "5 rows")),
        (lambda s: Coefficients(s.logp[:, None]), ("coefficients.logp", "(5, 1)", "5 rows")),
        (lambda s: Coefficients(s.logp.sum()), ("coefficients.logp", "()", "5 rows")),
        (lambda s: Coefficients(None, entropy=s.logp), ("entropy", "need_entropy=True")),
        (lambda s: Coefficients(None, kl=s.logp), ("kl", "need_kl=True")),
    ],
)
def test_coefficients_that_do_not_fit_are_named(given_back, said):
    with pytest.raises(ValueError) as raised:
        loss_of(small(101, 10), given_back, chunk_rows=5)
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize("given_back", [None, 1.0, torch.ones(5), (torch.ones(5),)], ids=str)
def test_what_is_no_coefficients_is_named(given_back):
    with pytest.raises(TypeError, match="Coefficients"):
        loss_of(small(101, 10), lambda s: given_back, chunk_rows=5)


def test_an_error_in_the_callback_comes_through():
    def fails(s):
        if s.rows.start:
            raise KeyError("advantage of row 5")
        return Coefficients(torch.ones_like(s.logp))

    leaves = leaves_of(small(101, 10))
    with pytest.raises(KeyError, match="advantage of row 5"):
        loss_of(small(101, 10), fails, leaves, chunk_rows=5)
    assert all(x.grad is None for x in leaves.values())
    loss_of(small(101, 10), of_logp, leaves, chunk_rows=5).loss.backward()
    assert leaves["hidden"].grad.abs().max() > 0


def test_coefficients_may_be_of_another_precision_and_have_a_graph():
    case = small(101, 10)
    g = torch.linspace(-1, 1, 10, dtype=F64, requires_grad=True)
    leaves = leaves_of(case)
    loss_of(case, lambda s: Coefficients(g[s.rows] * 2), leaves, chunk_rows=4).loss.backward()
    assert g.grad is None
    theirs = ours(case, {"logp": 2 * g.detach().float()})
    for name, x in leaves.items():
        torch.testing.assert_close(x.grad, theirs[f"d_{name}"], rtol=1e-5, atol=1e-6)


def test_what_the_callback_does_to_its_scalars_is_its_own_affair():
    """As `clamp_`: neither the loss nor the gradient is that of the clamped."""
    case = small(101, 10)
    upstream = upstream_of(case)

    def coefficients(s):
        for x in (s.logp, s.entropy, s.kl):
            x.fill_(7)
        return Coefficients(*(upstream[name][s.rows] for name in POLICY))

    leaves = leaves_of(case)
    out = loss_of(case, coefficients, leaves, need_entropy=True, need_kl=True, chunk_rows=4)
    out.loss.backward()
    alone = in_one_go(case, upstream, chunk_rows=4)
    assert same_bits(out.loss.detach(), alone["loss"])
    assert same_bits(out.scalars.logp, alone["logp"])
    assert [name for name, x in leaves.items() if not same_bits(x.grad, alone[f"d_{name}"])] == []
