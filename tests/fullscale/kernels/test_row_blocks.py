"""Blocks that keep a row's bits: what is promised is tried, and what fails the trial is refused."""

import math

import pytest
import torch

from fullscale.kernels import row_blocks
from fullscale.kernels.chunked import Chunked
from fullscale.kernels.row_blocks import BLOCK, full_precision, operand, padded_rows, product, strip_sums, working_dtype
from tests.fullscale.kernels.small import small

X = torch.zeros(0, 32)


@pytest.fixture
def tried_again():
    """Trials are made once; forget them before and after."""
    row_blocks._padded_rows.cache_clear()
    yield
    row_blocks._padded_rows.cache_clear()


def test_sums_are_wider_than_16_bits():
    assert [working_dtype(d) for d in (torch.bfloat16, torch.float16, torch.float32, torch.float64)] == [
        torch.float32,
        torch.float32,
        torch.float32,
        torch.float64,
    ]
    x = torch.tensor([[1 + 2**-7, 16.0]], dtype=torch.bfloat16)
    assert operand(x).dtype == torch.float32
    assert float(product(operand(x), operand(x).T)) == (1 + 2**-7) ** 2 + 2**8  # 16 bits hold neither


def test_strip_sums_by_hand():
    z = torch.tensor([[math.log(2), 0.0, 0.0], [300.0, 300.0, 300.0]])
    scratch = torch.empty_like(z)
    top, mass = strip_sums(z, scratch)
    assert top.tolist() == pytest.approx([math.log(2), 300])
    assert mass.tolist() == pytest.approx([2, 3])
    assert torch.linalg.vecdot(scratch, z).tolist() == pytest.approx([-math.log(2), 0])  # the moment
    assert z.tolist()[1] == [0, 0, 0]
    assert scratch.tolist()[0] == pytest.approx([1, 0.5, 0.5])


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 200, 255, 256])
@pytest.mark.parametrize("columns", [125, 2048])
def test_a_block_is_padded_to_a_granule_or_whole(rows, columns):
    found = padded_rows(rows, columns, X)
    assert found in {-(-rows // 16) * 16, BLOCK} | ({None} if rows == BLOCK else set())


def test_what_a_padded_block_promises_is_kept_on_other_numbers():
    """The trial is on one draw; here it is on another, with rows of very unlike sizes."""
    draw = torch.Generator().manual_seed(7)
    w = torch.randn(300, 32, generator=draw)
    x = torch.randn(BLOCK, 32, generator=draw) * torch.logspace(-6, 3, BLOCK)[:, None]
    if padded_rows(BLOCK, 300, x) is None:
        pytest.skip("a row's bits depend on its place here")
    whole = product(x, w.T)
    for n in (1, 16, 100, 241):
        padded = padded_rows(n, 300, x)
        assert torch.equal(product(torch.cat([x[:n], x.new_zeros(padded - n, 32)]), w.T)[:n], whole[:n])


def depending_on_place(x, w, out=None, shipped=product):
    return shipped(x, w, out) * (1 + torch.arange(len(x))[:, None] * 2.0**-20)


def depending_on_rows(x, w, out=None, shipped=product):
    return shipped(x, w, out) * (1 + len(x) * 2.0**-20)


def test_a_product_whose_bits_depend_on_the_place_is_found_out(monkeypatch, tried_again):
    monkeypatch.setattr(row_blocks, "product", depending_on_place)
    assert padded_rows(BLOCK, 125, X) is None
    assert "a row's bits depend on its place" in Chunked().refusal(small(1000).problem(), strict=True)
    assert Chunked().refusal(small(1000).problem(), strict=False) is None


def test_a_product_whose_bits_depend_on_the_number_of_rows_is_given_full_blocks(monkeypatch, tried_again):
    monkeypatch.setattr(row_blocks, "product", depending_on_rows)
    assert padded_rows(16, 125, X) == BLOCK
    assert padded_rows(1, 125, X) == BLOCK


def test_sums_whose_bits_depend_on_the_place_are_found_out(monkeypatch, tried_again):
    def sums(z, scratch, shipped=strip_sums):
        top, mass = shipped(z, scratch)
        return top, mass + torch.arange(len(z)) * 2.0**-14

    monkeypatch.setattr(row_blocks, "strip_sums", sums)
    assert padded_rows(BLOCK, 125, X) is None


def test_a_trial_counts_for_its_number_of_threads(tried_again, threads):
    """Threads may cut a product otherwise."""
    for n in (1, 2):
        threads(n)
        padded_rows(16, 125, X)
    assert row_blocks._padded_rows.cache_info().misses == 2


def test_a_trial_leaves_the_random_numbers_alone(tried_again):
    torch.manual_seed(3)
    alone = torch.rand(4)
    torch.manual_seed(3)
    padded_rows(16, 125, X)
    assert torch.equal(torch.rand(4), alone)


def test_float32_that_is_less_is_named(precision):
    assert full_precision(torch.zeros(1)) is None
    precision("medium")
    reason = full_precision(torch.zeros(1))
    assert "'medium'" in reason
    assert "torch.set_float32_matmul_precision('highest')" in reason
    assert "strict=False" in reason
    assert full_precision(torch.zeros(1, dtype=torch.float64)) is None  # of float32 alone


@pytest.fixture
def lowered_by_backend():
    """The newer way to lower float32, by backend: after it torch refuses to answer the older question."""
    before = torch.backends.mkldnn.matmul.fp32_precision
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    yield
    torch.backends.mkldnn.matmul.fp32_precision = before


def test_float32_lowered_for_one_backend_is_a_refusal_and_no_crash(lowered_by_backend):
    reason = full_precision(torch.zeros(1))
    assert reason is not None
    assert "strict=False" in reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_on_a_cpu_operands_of_16_bits_are_float32_in_a_product_too(precision, dtype):
    """They are widened before it; dlogits times weights is then as imprecise as float32 is."""
    precision("medium")
    assert "'medium'" in (Chunked().refusal(small(1000, dtype=dtype).problem(), strict=True) or "")


def test_a_trial_counts_for_all_numbers_of_rows_that_are_padded_alike(tried_again):
    """Which rows have a gradient changes at every step; a trial at every step would cost more than the step."""
    for n in range(1, 33):
        padded_rows(n, 125, X)
    assert row_blocks._padded_rows.cache_info().misses == 2
