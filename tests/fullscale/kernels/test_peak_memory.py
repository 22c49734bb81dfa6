"""What is held at worst beyond the two gradients: does it grow with the vocabulary, and with the tokens?

    way                                        | vocabulary doubled | tokens doubled
    linear_logprob                             | the same           | 4 numbers a strip
    head_loss                                  | 256 x V numbers    | the same
    torch, logits in memory                    | doubled            | doubled
    cut-cross-entropy, its torch path          | doubled            | doubled
    Liger, chunked log-prob                    | the same           | doubled, up to 2,048
    Liger, scaled cross-entropy off a GPU      | doubled            | the same above 512
    torch, linear_cross_entropy in chunks      | below one block    | below one block

The gradients themselves are the caller's: dW has the weight's size and dX that of the hidden states.
"""

from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from torch.nn import functional

from fullscale.kernels.contract import STRIP, strips
from fullscale.kernels.head_loss import CHUNK_ROWS
from fullscale.kernels.row_blocks import BLOCK
from tests.fullscale.kernels.peak import Shape, fresh_peaks

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peaks are Linux's to tell")

MB = 1e6
NOISE = 0.4 * MB
"""What peaks differ by from run to run, and what a library may set up for a first product of some shape."""
BASE = Shape(rows=512, hidden=64, vocabulary=16_384)
VOCABULARIES = [replace(BASE, vocabulary=V) for V in (16_384, 32_768, 65_536)]
ROWS = [replace(BASE, rows=n) for n in (512, 1024, 2048)]
MASKED = replace(BASE, tokens=2048)
SMALL, MORE_COLUMNS, MORE_ROWS = (Shape(n, 64, V) for n, V in ((512, 8192), (512, 16_384), (1024, 8192)))
"""At which peers are measured."""
LOGITS_BLOCK = 4 * BLOCK * STRIP
"""Bytes of those that the chunked backend has at a time."""
NEEDS = {"cut": "cut_cross_entropy", "liger_chunked": "liger_kernel", "liger_scaled": "liger_kernel"}


def there(way: str) -> bool:
    if way == "torch_chunked":
        return hasattr(functional, "linear_cross_entropy")
    return way not in NEEDS or find_spec(NEEDS[way]) is not None


GROWTH = {  # way: by the vocabulary's doubling, by the tokens'
    "log_softmax": (2, 2),
    "logsumexp": (2, 2),
    "in_place": (2, 2),
    "cut": (2, 2),
    "liger_chunked": (1, 2),
    "liger_scaled": (2, 1),
}


@pytest.fixture(scope="module")
def workspace():
    """Bytes by way and shape, all of one fresh process."""
    peers = {
        (way, shape) for way in (*GROWTH, "torch_chunked") if there(way) for shape in (SMALL, MORE_COLUMNS, MORE_ROWS)
    }
    ours = {("ours", shape) for shape in (*VOCABULARIES, *ROWS, MASKED)}
    three = {("in_three_products", shape) for shape in (*VOCABULARIES[:2], *ROWS[:2])}
    wanted = sorted(peers | ours | three, key=str)
    return dict(zip(wanted, fresh_peaks(wanted), strict=True))


def test_ours_is_two_blocks_of_logits_whatever_the_vocabulary(workspace):
    found = [workspace["ours", shape] for shape in VOCABULARIES]
    assert max(len(s) for s in strips(BASE.vocabulary)) == STRIP
    assert min(found) > 2 * LOGITS_BLOCK
    assert max(found) < 2 * LOGITS_BLOCK + 2 * NOISE
    assert max(found) - min(found) < NOISE


def test_ours_grows_by_a_few_numbers_a_strip_and_token(workspace):
    for less, more in pairwise(ROWS):
        scalars = 4 * (4 * len(strips(BASE.vocabulary)) + 16)  # four sums a strip, a dozen statistics and coefficients
        assert -NOISE < workspace["ours", more] - workspace["ours", less] < scalars * (more.rows - less.rows) + NOISE


def test_ours_copies_the_hidden_states_that_count_and_no_others(workspace):
    extra = workspace["ours", MASKED] - workspace["ours", BASE]
    gathered = 4 * BASE.rows * BASE.hidden
    assert extra < 3 * gathered + NOISE  # of the forward, of the backward, and their gradient before it is spread


def test_three_products_keep_the_logits_of_a_chunk_of_rows(workspace):
    for shape in VOCABULARIES[:2]:
        beside = workspace["in_three_products", shape] - 4 * CHUNK_ROWS["cpu"] * shape.vocabulary
        assert LOGITS_BLOCK < beside < 3 * LOGITS_BLOCK + NOISE
    assert abs(workspace["in_three_products", ROWS[1]] - workspace["in_three_products", ROWS[0]]) < NOISE


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=pytest.mark.skipif(not there(way), reason="absent")) for way in GROWTH]
)
def test_how_peers_grow(workspace, way):
    small = workspace[way, SMALL]
    assert workspace[way, MORE_COLUMNS] > 4 * workspace["ours", MORE_COLUMNS]
    by_columns, by_rows = workspace[way, MORE_COLUMNS] / small, workspace[way, MORE_ROWS] / small
    assert (by_columns, by_rows) == pytest.approx(GROWTH[way], rel=0.04)


@pytest.mark.parametrize("way", ["log_softmax", "logsumexp"])
def test_logits_in_memory_are_there_several_times(workspace, way):
    assert 4 < workspace[way, SMALL] / (4 * SMALL.rows * SMALL.vocabulary) < 6


@pytest.mark.skipif(not there("torch_chunked"), reason="this torch has no linear_cross_entropy")
def test_torch_in_chunks_is_smaller_still(workspace):
    """Its chunk is half as large as its hidden states, for products of a few rows at a time; and it has no entropy."""
    for shape in (SMALL, MORE_COLUMNS, MORE_ROWS):
        assert workspace["torch_chunked", shape] < LOGITS_BLOCK
