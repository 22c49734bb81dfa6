"""Strip by strip against the definition, and the promise of strict: a row's bits are its own."""

from dataclasses import fields, replace

import pytest
import torch

from fullscale.kernels import chunked
from fullscale.kernels.chunked import Chunked
from fullscale.kernels.linear_logprob import linear_logprob
from fullscale.kernels.problem import Coefficients, Gradients, Head, Wanted
from fullscale.kernels.reference import Reference
from tests.fullscale.kernels.small import POLICY, SCALARS, needs_bits, ours, same_bits, small, upstream_of

ALL = Wanted(entropy=True, reference=True, kl=True)
F64 = torch.float64
SIZES = [2, 15, 16, 17, 64, 257]


def partials_of(case, wanted=ALL, strict=True):
    """Partials and the scalars they merge to, by name."""
    backend = Chunked()
    found, _ = backend.partials(case.problem(), wanted, strict=strict)
    merged = backend.merge(found)
    held = {f"strips: {f.name}": getattr(found, f.name) for f in fields(found)}
    held |= {f"rows: {f.name}": getattr(merged, f.name) for f in fields(merged)}
    return {name: x for name, x in held.items() if x is not None}


def rows_of(found, index):
    return {name: x[index] for name, x in found.items()}


def differ(a, b):
    assert a.keys() == b.keys()
    return [name for name in a if not same_bits(a[name], b[name])]


# --- against the definition -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("V", [1, 7, 1003, 2049])
def test_strips_are_the_references(V, dtype):
    problem = small(V, 33, dtype=dtype, softcap=4.0).problem()
    close = {F64: 1e-12, torch.float32: 2e-5}[dtype]
    for wanted in (Wanted(), Wanted(entropy=True), Wanted(reference=True), Wanted(kl=True, reference=True), ALL):
        mine, _ = Chunked().partials(problem, wanted, strict=False)
        theirs, _ = Reference().partials(problem, wanted, strict=False)
        for f in fields(mine):
            a, b = getattr(mine, f.name), getattr(theirs, f.name)
            assert (a is None) == (b is None), (f.name, wanted)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=close, atol=close)


@pytest.mark.parametrize("names", [("logp",), ("entropy",), ("kl",), ("logp", "kl"), ("entropy", "kl"), POLICY])
@pytest.mark.parametrize("accumulate", [False, True])
def test_gradients_are_the_references(names, accumulate):
    case = small(1003, 33, dtype=F64, softcap=4.0)
    problem, upstream = case.problem(), upstream_of(case, names)
    found = []
    for backend in (Chunked(), Reference()):
        partials, _ = backend.partials(problem, ALL, strict=False)
        start = torch.ones_like if accumulate else lambda x: torch.full_like(x, torch.nan)
        head = problem.head
        into = Gradients(torch.ones_like(head.hidden), start(head.weight), torch.ones_like(head.bias), accumulate)
        coefficients = Coefficients(*map(upstream.get, POLICY))
        backend.gradients(problem, backend.merge(partials), coefficients, into, strict=False)
        found.append(into)
    for name in ("hidden", "weight", "bias"):
        torch.testing.assert_close(*(getattr(into, name) for into in found), rtol=1e-10, atol=1e-12)


def test_inputs_and_what_was_kept_stay_as_they_are():
    problem = small(1003, 33).problem()
    partials, kept = Chunked().partials(problem, ALL, strict=False, keep=1.0)
    statistics = Chunked().merge(partials)
    held = {f"strip {j}": z for j, z in enumerate(kept.strips)}
    held |= {f.name: getattr(statistics, f.name) for f in fields(statistics)}
    held |= {"x": problem.head.hidden, "w": problem.head.weight, "b": problem.head.bias, "r": problem.reference.hidden}
    held |= {"targets": problem.targets, "temperature": problem.temperature}
    coefficients = Coefficients(*(torch.ones(33) for _ in POLICY))
    held |= {f"of {name}": getattr(coefficients, name) for name in POLICY}
    before = {name: x.clone() for name, x in held.items()}
    into = Gradients(torch.zeros(33, 32), torch.empty(1003, 32), torch.zeros(1003), accumulate=False)
    Chunked().gradients(problem, statistics, coefficients, into, strict=False, cached=kept)
    assert differ(held, before) == []


@pytest.mark.parametrize("names", [("logp",), POLICY])
def test_kept_logits_have_the_bits_of_recomputed_ones(names):
    case = small(1003, 300, softcap=4.0)
    needs_bits(case)
    upstream = upstream_of(case, names)
    for skipped in (0, 41, 299):
        upstream = {name: c * (torch.arange(300) >= skipped) for name, c in upstream.items()}
        recomputed, *kept = (ours(case, upstream, keep=share) for share in (0.0, 0.4, 1.0))
        assert [differ(found, recomputed) for found in kept] == [[], []]
        assert recomputed["d_weight"].abs().max() > 0.01


def test_what_is_kept_is_the_scaled_logits():
    case = small(1003, 20, dtype=F64, reference=False)
    _, kept = Chunked().partials(case.problem(), Wanted(), strict=False, keep=1.0)
    z = (case.hidden @ case.weight.T + case.bias) / case.temperature[:, None]
    torch.testing.assert_close(torch.cat(kept.strips, 1), z)
    torch.testing.assert_close(torch.cat(kept.take(torch.tensor([3, 1])).strips, 1), z[[3, 1]])
    _, part = Chunked().partials(case.problem(), Wanted(), strict=False, keep=0.5)
    torch.testing.assert_close(torch.cat(part.strips, 1), z[:, :501])  # four of eight strips: 1003 * 4 // 8
    assert Chunked().partials(case.problem(), Wanted(), strict=False)[1] is None


# --- bits -------------------------------------------------------------------------------------------------------------

CASES = {
    "a vocabulary no strip divides": {"V": 2053},
    "strips of a few columns": {"V": 51, "H": 64},
    "columns alone": {"V": 7},
    "16 bits": {"V": 1003, "H": 33, "dtype": torch.bfloat16},
    "double": {"V": 1003, "dtype": F64},
    "capped": {"V": 1003, "softcap": 3.0, "scale": 8.0},
    "deep": {"V": 130, "H": 1024},
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def many(request):
    """Two full blocks of rows and 7 more."""
    case = small(M=519, **request.param)
    needs_bits(case)
    return case


def test_a_row_alone_has_the_bits_it_has_among_many(many):
    whole = partials_of(many)
    for i in (0, 255, 256, 512, 518):
        assert differ(partials_of(many.of(torch.tensor([i]))), rows_of(whole, [i])) == [], i


def test_so_do_some_of_the_rows(many):
    whole = partials_of(many)
    for n in SIZES:
        some = torch.arange(519 - n, 519)
        assert differ(partials_of(many.of(some)), rows_of(whole, some)) == [], n


@pytest.mark.parametrize("V", [7, 125, 400])
def test_so_does_every_number_of_rows_up_to_forty(V):
    case = small(V, 40)
    needs_bits(case)
    whole = partials_of(case)
    for n in range(1, 40):
        assert differ(partials_of(case.of(slice(n))), rows_of(whole, slice(n))) == [], n


def test_so_do_rows_in_another_order(many):
    order = torch.randperm(519, generator=torch.Generator().manual_seed(2))
    assert differ(partials_of(many.of(order)), rows_of(partials_of(many), order)) == []


def test_so_do_rows_in_other_company(many):
    twice = torch.cat([torch.arange(500, 519), torch.arange(300)])
    assert differ(partials_of(many.of(twice)), rows_of(partials_of(many), twice)) == []


def test_so_do_rows_whose_neighbours_are_huge_or_no_numbers(many):
    keep = torch.arange(0, 519, 7)
    others = torch.ones(519, dtype=torch.bool).index_fill(0, keep, False)
    spoilt = many.hidden.clone()
    spoilt[others] = torch.tensor([torch.nan, torch.inf, 1e4])[torch.arange(int(others.sum())) % 3, None].to(spoilt)
    found = partials_of(replace(many, hidden=spoilt))
    assert differ(rows_of(found, keep), rows_of(partials_of(many), keep)) == []


def test_so_do_rows_wherever_they_start_in_memory(many):
    """A product may go another way where an operand is not aligned: a view into a packed buffer is not."""
    whole = partials_of(many)
    for start in (1, 2, 3, 5):
        buffer = torch.zeros(many.hidden.numel() + start, dtype=many.hidden.dtype)
        buffer[start:] = many.hidden.flatten()
        moved = replace(many, hidden=buffer[start:].view_as(many.hidden))
        assert differ(partials_of(moved), whole) == [], start


def test_so_do_rows_against_a_weight_wherever_it_starts(many):
    whole = partials_of(many)
    for start in (1, 2, 3, 4):
        buffer = torch.zeros(many.weight.numel() + start, dtype=many.weight.dtype)
        buffer[start:] = many.weight.flatten()
        assert differ(partials_of(replace(many, weight=buffer[start:].view_as(many.weight))), whole) == [], start


def test_so_do_rows_under_another_number_of_threads(many, threads):
    found = []
    for n in (1, 2):
        threads(n)
        needs_bits(many)
        found.append(partials_of(many) | partials_of(many.of(torch.arange(5))))
    assert differ(*found) == []


def test_without_strict_the_last_block_is_not_padded(monkeypatch):
    """What strict costs: up to 15 rows, or a full block, of products."""
    seen = []

    def product(x, w, out=None, shipped=chunked.product):
        seen.append(len(x))
        return shipped(x, w, out)

    monkeypatch.setattr(chunked, "product", product)
    case = small(7, 258)
    needs_bits(case)
    Chunked().partials(case.problem(), Wanted(), strict=False)
    assert set(seen) == {256, 2}
    seen.clear()
    Chunked().partials(case.problem(), Wanted(), strict=True)
    assert seen
    assert all(n % 16 == 0 for n in seen)


# --- strict refuses what it cannot keep -------------------------------------------------------------------------------


def call(case, **options):
    return linear_logprob(case.hidden, case.weight, case.targets, bias=case.bias, **case.options(), **options)


def test_strict_is_refused_where_a_block_does_not_keep_bits(monkeypatch):
    case = small(1003)
    monkeypatch.setattr(chunked, "padded_rows", lambda *_: None)
    with pytest.raises(ValueError, match=r"backend 'chunked' cannot do this.*bits depend on its place.*strict=False"):
        call(case, backend="chunked")
    assert call(case, backend="chunked", strict=False).logp.isfinite().all()


def test_so_it_is_for_the_reference_head_alone(monkeypatch):
    """Its hidden states may be of another width."""
    case = small(1003)
    monkeypatch.setattr(
        chunked,
        "padded_rows",
        lambda rows, columns, x, H=case.reference.hidden.shape[1]: None if x.shape[1] == H else 256,
    )
    with pytest.raises(ValueError, match=r"256 x 16 x 12[56]"):
        call(case)
    assert call(replace(case, reference=None)).logp.isfinite().all()


def test_strict_is_refused_where_float32_is_less(precision):
    case = small(1003)
    precision("medium")
    with pytest.raises(ValueError, match=r"'medium'.*set_float32_matmul_precision\('highest'\).*strict=False"):
        call(case, backend="chunked")
    with pytest.raises(ValueError, match="'medium'"):
        call(case)  # "auto" falls back to nothing
    assert call(case, strict=False).logp.isfinite().all()


def test_the_reference_backend_is_never_strict():
    with pytest.raises(ValueError, match=r"backend 'reference' cannot do this.*strict=False"):
        call(small(7), backend="reference")
    assert call(small(7), backend="reference", strict=False).logp.isfinite().all()


def test_no_rows_have_bits_to_lose(monkeypatch):
    monkeypatch.setattr(chunked, "padded_rows", lambda *_: None)
    case = replace(small(1003), rows=torch.zeros(0, dtype=torch.int64))
    out = call(case, need_entropy=True, need_kl=True)
    assert all(getattr(out, name).shape == (0,) for name in SCALARS)


def test_workspace_is_a_block_of_a_strip(monkeypatch):
    """No array of n x V: of 600 rows and 5,003 columns at most 256 x 626 numbers exist at a time."""
    largest = []
    shipped = chunked._Workspace.__call__

    def seen(self, which, rows, columns):
        largest.append(rows * columns)
        return shipped(self, which, rows, columns)

    monkeypatch.setattr(chunked._Workspace, "__call__", seen)
    case = small(5003, 600)
    ours(case, upstream_of(case), strict=False)
    assert 0 < max(largest) <= 256 * 626


def test_a_head_without_columns_of_its_own_adds_nothing():
    """A rank of a small vocabulary may hold none of it."""
    problem = small(7, 5, bias=False, reference=False).problem()
    empty = replace(problem, head=Head(problem.head.hidden, problem.head.weight[:0]), strips=())
    partials, _ = Chunked().partials(empty, Wanted(entropy=True), strict=True)
    assert partials.top.shape == partials.moment.shape == (5, 0)
    into = Gradients(torch.zeros(5, 32), torch.empty(0, 32), None, accumulate=False)
    statistics = Chunked().merge(Chunked().partials(problem, Wanted(entropy=True), strict=False)[0])
    Chunked().gradients(empty, statistics, Coefficients(torch.ones(5)), into, strict=True)
    assert not into.hidden.any()


@pytest.mark.parametrize("backend", [Chunked(), Reference()], ids=lambda b: b.name)
def test_gradients_of_no_rows_are_written_as_zero(backend):
    problem = small(101, 5).problem().take(slice(0))
    statistics = backend.merge(backend.partials(problem, ALL, strict=False)[0])
    weight = torch.full((101, 32), torch.nan)
    into = Gradients(torch.zeros(0, 32), weight, torch.zeros(101), accumulate=False)
    backend.gradients(problem, statistics, Coefficients(*(torch.zeros(0) for _ in POLICY)), into, strict=False)
    assert not weight.any()
