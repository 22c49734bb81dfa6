"""A row's bits are its own: not its neighbours', its place's, the batch's, the tile's or the split vocabulary's."""

from dataclasses import fields, replace

import pytest
import torch

pytest.importorskip("triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from fullscale.kernels.contract import Tile, shard, strips
from fullscale.kernels.fused.backend import Fused
from fullscale.kernels.problem import Head, Partials, Wanted
from tests.fullscale.kernels.fused.driving import ALL, BF16, problem_of
from tests.fullscale.kernels.small import same_bits, small

ONE = Wanted(entropy=True, reference=True)
V = 8 * 40 + 3
SHORT, TILE = Tile(16, 64, 32), Tile(32, 64, 32)


def laid_out(case):
    """The strips of a real vocabulary."""
    return replace(problem_of(case), strips=strips(V))


def partials_of(problem, wanted=ALL, tile=SHORT):
    """Every number of every strip, and what they merge to."""
    backend = Fused(tile)
    found, _ = backend.partials(problem, wanted, strict=True)
    merged = backend.merge(found)
    held = {f"strips: {f.name}": getattr(found, f.name) for f in fields(found)}
    held |= {f"rows: {f.name}": getattr(merged, f.name) for f in fields(merged)}
    held = {name: x for name, x in held.items() if x is not None}
    assert all(x.isfinite().all() and x.any() for x in held.values())
    return held


def rows_of(found, index):
    return {name: x[index] for name, x in found.items()}


@pytest.fixture(scope="module", params=[torch.float32, BF16], ids=["float32", "bfloat16"])
def case(request):
    return small(V, 21, 40, request.param)


@pytest.mark.parametrize("wanted", [ONE, ALL], ids=["one head", "two heads"])
def test_alone_as_in_company(case, wanted):
    whole = partials_of(laid_out(case), wanted)
    for i in (0, 20):
        assert same_bits(partials_of(laid_out(case.of([i])), wanted), rows_of(whole, [i]))


@pytest.mark.parametrize("wanted", [ONE, ALL], ids=["one head", "two heads"])
def test_wherever_it_stands(case, wanted):
    order = torch.randperm(21, generator=torch.Generator().manual_seed(3))
    assert same_bits(partials_of(laid_out(case.of(order)), wanted), rows_of(partials_of(laid_out(case), wanted), order))


@settings(max_examples=2)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=20))
def test_in_any_company(drawn):
    case = small(V, 21, 40, BF16)
    whole = partials_of(laid_out(case), ONE)
    assert same_bits(partials_of(laid_out(case.of(drawn)), ONE), rows_of(whole, drawn))


@pytest.mark.parametrize("wanted", [ONE, ALL], ids=["one head", "two heads"])
def test_however_many_rows_a_tile_has(case, wanted):
    assert same_bits(partials_of(laid_out(case), wanted), partials_of(laid_out(case), wanted, TILE))


@pytest.mark.parametrize("wanted", [ONE, ALL], ids=["one head", "two heads"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_however_the_vocabulary_is_split(ranks, wanted, case):
    whole = laid_out(case)
    pieces = []
    for rank in range(ranks):
        part = shard(V, rank, ranks)
        columns = slice(part.start, part.stop)
        mine, theirs = (
            Head(h.hidden, h.weight[columns], h.bias[columns].clone()) for h in (whole.head, whole.reference)
        )
        problem = replace(whole, head=mine, reference=theirs, strips=strips(V, rank, ranks))
        pieces.append(Fused(SHORT).partials(problem, wanted, strict=True)[0])
    names = [f.name for f in fields(Partials) if getattr(pieces[0], f.name) is not None]
    joined = {name: torch.cat([getattr(p, name) for p in pieces], 1) for name in names}
    found = partials_of(whole, wanted)
    assert same_bits(joined, {name: found[f"strips: {name}"] for name in names})
    merged = Fused().merge(Partials(**joined))
    assert torch.equal(merged.logp, found["rows: logp"])


def test_whatever_else_is_wanted():
    problem = laid_out(small(V, 17, 40, BF16))
    least, more = partials_of(problem, Wanted()), partials_of(problem, ONE)
    assert same_bits(least, {name: more[name] for name in least})


def test_another_row_has_other_bits():
    """That a row keeps its bits would be worth nothing if all rows had the same."""
    found = partials_of(laid_out(small(V, 21, 40)))
    for name, x in found.items():
        assert len(x.reshape(21, -1).unique(dim=0)) == 21, name
