"""Strips become rows: the same number whatever the cut, the same bits whoever made the strips."""

import itertools
import math
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullscale.kernels.chunked import Chunked
from fullscale.kernels.contract import strips
from fullscale.kernels.merging import merge
from fullscale.kernels.problem import Head, Partials, Wanted
from tests.fullscale.kernels.small import needs_bits, small

ALL = Wanted(entropy=True, reference=True, kl=True)


def of_strips(z, r, targets, edges):
    """Partials of logits [n, V] and the reference's, float64, cut at `edges`, by the definition in `Partials`."""
    columns = {f.name: [] for f in fields(Partials)}
    for start, stop in itertools.pairwise(edges):
        x, y = z[:, start:stop], r[:, start:stop]
        a, b = x - x.amax(1, keepdim=True), y - y.amax(1, keepdim=True)
        here = (targets >= start) & (targets < stop)
        at = (targets - start).clamp(0, stop - start - 1)[:, None]
        e = a.exp()
        made = {
            "top": x.amax(1),
            "mass": e.sum(1),
            "target": torch.where(here, x.gather(1, at)[:, 0], 0),
            "moment": (a * e).sum(1),
            "reference_top": y.amax(1),
            "reference_mass": b.exp().sum(1),
            "reference_target": torch.where(here, y.gather(1, at)[:, 0], 0),
            "cross": (e * (a - b)).sum(1),
        }
        for name, x in made.items():
            columns[name].append(x)
    return Partials(**{name: torch.stack(x, 1) for name, x in columns.items()})


def test_two_strips_by_hand():
    """Logits [0, ln 3 | ln 4]: p = 1/8, 3/8, 4/8; the reference is uniform."""
    z = torch.tensor([[0.0, math.log(3), math.log(4)]], dtype=torch.float64)
    found = merge(of_strips(z, torch.zeros_like(z), torch.tensor([1]), [0, 2, 3]))
    entropy = math.log(8) - (3 * math.log(3) + 4 * math.log(4)) / 8
    assert float(found.top) == math.log(4)
    assert float(found.log_mass) == pytest.approx(math.log(2))
    assert float(found.lse) == pytest.approx(math.log(8))
    assert float(found.logp) == pytest.approx(math.log(3 / 8))
    assert float(found.entropy) == pytest.approx(entropy)
    assert float(found.reference_logp) == pytest.approx(-math.log(3))
    assert float(found.kl) == pytest.approx(math.log(3) - entropy)


@pytest.mark.parametrize("S", [3, 16, 80])
def test_strips_are_added_ascending(S):
    """2^24 + 1 + 1 + ... stays 2^24 in float32 from the left, and is larger from the right or in pairs."""
    falling = torch.ones(1, S)
    falling[0, 0] = 2.0**24
    mass = torch.cat([falling, falling.flip(1)])
    found = merge(Partials(torch.zeros(2, S), mass, torch.zeros(2, S)))
    assert torch.equal(found.log_mass, torch.tensor([2.0**24, 2.0**24 + S - 1]).log())
    found = merge(Partials(torch.zeros(1, S), torch.ones(1, S), torch.zeros(1, S), -falling))
    assert float(found.entropy) == float(torch.tensor(float(S)).log() + torch.tensor(2.0**24) / S)


def cuts(V):
    return st.sets(st.integers(1, V - 1)).map(lambda inner: [0, *sorted(inner), V])


@given(
    st.integers(2, 40).flatmap(lambda V: st.tuples(st.just(V), cuts(V), cuts(V))),
    st.integers(0, 2**16),
    st.sampled_from((0.1, 1.0, 30.0)),
    st.sampled_from((0.0, 300.0, -300.0)),
)
def test_any_cut_of_the_vocabulary_gives_the_same(cut, seed, scale, shift):
    V, first, second = cut
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(3, V, generator=draw, dtype=torch.float64) * scale + shift
    r = torch.randn(3, V, generator=draw, dtype=torch.float64) * scale
    targets = torch.tensor([0, V // 2, V - 1])
    a, b = (merge(of_strips(z, r, targets, edges)) for edges in (first, second))
    lp, lr = z.log_softmax(1), r.log_softmax(1)
    true = {
        "logp": lp.gather(1, targets[:, None])[:, 0],
        "entropy": -(lp.exp() * lp).sum(1),
        "lse": z.logsumexp(1),
        "reference_logp": lr.gather(1, targets[:, None])[:, 0],
        "kl": (lp.exp() * (lp - lr)).sum(1),
    }
    for name, x in true.items():
        torch.testing.assert_close(getattr(a, name), x, rtol=1e-11, atol=1e-11)
        torch.testing.assert_close(getattr(b, name), x, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("V", [7, 1003, 5003])
def test_the_strips_of_shards_side_by_side_have_the_bits_of_the_whole(V, ranks):
    case = small(V, 40)
    needs_bits(case)
    problem, backend = case.problem(), Chunked()
    whole, _ = backend.partials(problem, ALL, strict=True)
    parts = []
    for rank in range(ranks):
        held = strips(V, rank, ranks)
        here = slice(held[0].start if held else 0, held[-1].stop if held else 0)

        def cut(head, here=here):
            return Head(head.hidden, head.weight[here].clone(), head.bias[here].clone())

        shard = replace(problem, head=cut(problem.head), reference=cut(problem.reference), strips=held)
        parts.append(backend.partials(shard, ALL, strict=True)[0])
    for f in fields(whole):
        assert torch.equal(torch.cat([getattr(p, f.name) for p in parts], 1), getattr(whole, f.name)), f.name


def test_a_row_merges_alone_as_in_company():
    partials, _ = Chunked().partials(small(5003, 77).problem(), ALL, strict=False)
    whole = merge(partials)
    for n in (1, 2, 3, 7, 9, 31):
        some = merge(Partials(**{f.name: getattr(partials, f.name)[5 : 5 + n].clone() for f in fields(partials)}))
        for f in fields(whole):
            assert torch.equal(getattr(some, f.name), getattr(whole, f.name)[5 : 5 + n]), (f.name, n)


def test_partials_stay_as_they_are():
    partials, _ = Chunked().partials(small(100).problem(), ALL, strict=False)
    before = {f.name: getattr(partials, f.name).clone() for f in fields(partials)}
    merge(partials)
    assert all(torch.equal(getattr(partials, name), x) for name, x in before.items())


def test_no_rows_and_what_is_not_asked_for():
    none = merge(Partials(torch.zeros(0, 3), torch.ones(0, 3), torch.zeros(0, 3)))
    assert none.logp.shape == none.lse.shape == (0,)
    assert none.entropy is none.reference_logp is none.kl is None
