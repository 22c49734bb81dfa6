"""The fused kernels, in Triton's interpreter, against float64."""

import math
import re
from dataclasses import fields, replace

import pytest
import torch

pytest.importorskip("triton")

from fullscale.kernels.fused import launching
from fullscale.kernels.fused.backend import Fused
from fullscale.kernels.merging import merge
from fullscale.kernels.problem import Coefficients, Gradients, Head, Partials, Wanted
from tests.fullscale.kernels.fused.driving import ALL, BF16, check, fused, ours, problem_of, statistics_of
from tests.fullscale.kernels.small import POLICY, assert_close, largest, relative, small, truth, upstream_of

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=["float32", "bfloat16"])


# --- against the definition -------------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize(
    ("V", "M", "H"),
    [(300, 16, 32), (301, 17, 40), (257, 1, 16), (5, 3, 16)],
    ids=["whole", "tails", "a row", "few columns"],
)
def test_one_head(V, M, H, dtype):
    check(small(V, M, H, dtype, reference=False), ("logp", "entropy"))


@DTYPES
@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("bias", [False, True])
def test_two_heads(bias, softcap, dtype):
    check(small(301, 17, 40, dtype, bias=bias, softcap=softcap))


@pytest.mark.parametrize("names", [("logp",), ("entropy",), ("kl",), ("logp", "kl")], ids=" ".join)
def test_one_coefficient_at_a_time(names):
    found = check(small(301, 17, 32, BF16), names)
    assert found["d_weight"].norm() > 0


def test_the_references_logp_without_a_kl():
    case = small(301, 17, 32, BF16)
    check(case, ("logp",))
    assert statistics_of(case, Wanted()).reference_logp is None


@pytest.mark.parametrize("shift", [6.0, -6.0, 300.0, -300.0])
def test_a_common_shift_of_all_logits(shift):
    """What a column past the vocabulary is taken for shows when the others are far from 0."""
    case = small(301, 17, 32, BF16, reference=False, temperature=1.0)
    unit = torch.zeros_like(case.hidden)
    unit[:, 0] = 1.0
    weight = case.weight.clone()
    weight[:, 0] = shift
    hidden = torch.where(unit == 1, 1.0, case.hidden.double()).to(BF16)
    moved, upstream = replace(case, hidden=hidden, weight=weight), upstream_of(case, ("logp", "entropy"))
    found = ours(moved, upstream)
    del found["d_hidden"]  # of the unit that is common to all, 300 times what rounding leaves of sum_j dz_j = 0
    assert_close(found, truth(moved, upstream), moved)
    check(replace(case, bias=case.bias + shift), ("logp", "entropy"))


def test_one_column_has_nearly_all_the_mass():
    case = small(301, 17, 32, BF16, bias=False, reference=False, temperature=1.0)
    hidden = torch.zeros_like(case.hidden)
    hidden[:, 0] = 1
    weight = case.weight.clone()
    weight[:, 0] = 0
    weight[77, 0] = 40
    targets = torch.tensor([77, 3] * 8 + [77])
    found = check(replace(case, hidden=hidden, weight=weight, targets=targets), ("logp", "entropy"))
    assert float(found["entropy"].max()) < 1e-12
    assert found["logp"][0] == 0
    assert found["logp"][1] == pytest.approx(-40)


def test_all_columns_alike():
    """ln V, to the last bit that a sum of V ones leaves; and a target whose logit is the number 0."""
    case = small(256, 5, 16, reference=False, bias=False)
    found = check(replace(case, weight=torch.zeros_like(case.weight)), ("logp", "entropy"))
    assert found["entropy"].tolist() == pytest.approx([math.log(256)] * 5, abs=1e-6)
    assert found["logp"].tolist() == pytest.approx([-math.log(256)] * 5, abs=1e-6)


def test_targets_at_edges():
    """First and last column of the vocabulary, of a strip, of a tile and of the tail."""
    case = small(301, 16, 32, BF16, reference=False)
    edges = [x for start in (0, 150) for x in (start, start + 63, start + 64, start + 127, start + 128, start + 149)]
    check(replace(case, targets=torch.tensor([*edges, 300, 299, 1, 151])), ("logp", "entropy"))


@pytest.mark.parametrize("temperature", [0.01, 0.3, 10.0])
def test_one_temperature(temperature):
    check(small(301, 9, 32, BF16, temperature=temperature, softcap=30.0, reference=False), ("logp", "entropy"))


def test_a_temperature_for_each_row():
    temperature = torch.logspace(-2, 1, 17)
    check(replace(small(301, 17, 32, BF16), temperature=temperature))


def test_a_logit_that_a_cap_leaves_alone_keeps_its_digits():
    """At a low temperature: 1 - 2 / (1 + e^2x) would lose those of a logit that is small beside its cap."""
    case = small(301, 9, 32, scale=0.02, temperature=0.01, softcap=50.0, bias=False, reference=False)
    assert 1 < largest(case) < 32
    check(case, ("logp", "entropy"))


def test_barred_tokens_have_no_probability():
    """A bias of -inf, over a few columns and over a whole strip."""
    case = small(301, 9, 32, BF16, reference=False)
    bias = case.bias.clone()
    barred = [*range(37), 100, 300]
    bias[barred] = -torch.inf
    case = replace(case, bias=bias, targets=torch.full((9,), 50))
    upstream = upstream_of(case, ("logp",))
    found = ours(case, upstream)
    kept = [j for j in range(301) if j not in barred]
    fewer = replace(case, weight=case.weight[kept], bias=bias[kept], targets=torch.full((9,), kept.index(50)))
    true = truth(fewer, upstream)
    assert float((found["logp"] - true["logp"]).abs().max()) < 2e-5
    assert not found["d_weight"][barred].any()
    assert relative(found["d_weight"][kept], true["d_weight"]) < 5e-3
    entropy = ours(case, upstream_of(case, ("entropy",)))["entropy"]
    assert float((entropy - truth(fewer, upstream_of(case, ("entropy",)))["entropy"]).abs().max()) < 5e-5


def test_nothing_that_was_not_written_is_read(poisoned):
    check(small(301, 17, 24, BF16))
    check(small(301, 17, 24, BF16, reference=False), ("logp", "entropy"), keep=1.0)


def test_a_row_of_nan_stays_one_and_hurts_no_other():
    case = small(301, 17, 32, BF16)
    broken = case.hidden.clone()
    broken[5] = torch.nan
    whole, hurt = (
        fused().merge(fused().partials(problem_of(c), ALL, strict=True)[0])
        for c in (case, replace(case, hidden=broken))
    )
    others = [i for i in range(17) if i != 5]
    for name in ("logp", "entropy", "kl"):
        x, y = getattr(whole, name), getattr(hurt, name)
        assert torch.equal(x[others], y[others])
        assert y[5].isnan()
    assert hurt.reference_logp.isfinite().all()


# --- gradients --------------------------------------------------------------------------------------------------------


@DTYPES
def test_gradients_are_added_or_written(dtype):
    case = small(301, 17, 32, BF16)
    problem, backend = problem_of(case), fused()
    statistics = backend.merge(backend.partials(problem, ALL, strict=True)[0])
    coefficients = Coefficients(*(upstream_of(case)[name] for name in POLICY))
    written, added = (
        Gradients(torch.ones(17, 32), torch.full((301, 32), start, dtype=dtype), torch.ones(301), accumulate)
        for start, accumulate in ((torch.nan, False), (1.0, True))
    )
    for into in (written, added):
        backend.gradients(problem, statistics, coefficients, into, strict=True)
    assert torch.equal(written.hidden, added.hidden)
    assert torch.equal(written.bias, added.bias)
    torch.testing.assert_close(added.weight, written.weight + 1, atol=1e-2 if dtype == BF16 else 1e-6, rtol=1e-2)
    true = truth(case, upstream_of(case))
    assert relative(written.hidden - 1, true["d_hidden"]) < 5e-3
    assert relative(written.bias - 1, true["d_bias"]) < 5e-3


def test_no_rows():
    backend, case = fused(), small(301, 0, 32, BF16)
    partials, kept = backend.partials(problem_of(case), Wanted(entropy=True), strict=True, keep=1.0)
    statistics = backend.merge(partials)
    assert partials.top.shape == (0, 3)
    assert statistics.logp.shape == statistics.entropy.shape == (0,)
    into = Gradients(torch.zeros(0, 32), torch.full((301, 32), torch.nan), torch.zeros(301), False)
    backend.gradients(problem_of(case), statistics, Coefficients(torch.zeros(0)), into, strict=True, cached=kept)
    assert not into.weight.any()


def test_a_coefficient_of_what_was_not_computed():
    case = small(301, 3, 32)
    statistics = fused().merge(fused().partials(problem_of(case), Wanted(), strict=True)[0])
    into = Gradients(torch.zeros(3, 32), None, None, False)
    with pytest.raises(ValueError, match=r"needs statistics\.entropy"):
        fused().gradients(problem_of(case), statistics, Coefficients(None, torch.ones(3)), into, strict=True)


# --- merging ----------------------------------------------------------------------------------------------------------


def test_merged_by_hand():
    """Two strips, in bits: masses 1 and 2 under maxima 3 and 4, so M = 4 and S = 1/2 + 2."""
    found = fused().merge(
        Partials(
            top=torch.tensor([[3.0, 4.0]]),
            mass=torch.tensor([[1.0, 2.0]]),
            target=torch.tensor([[-0.0, 3.5]]),
            moment=torch.tensor([[0.0, -1.0]]),
        )
    )
    ln2 = math.log(2)
    assert found.top.tolist() == pytest.approx([4 * ln2])
    assert found.log_mass.tolist() == pytest.approx([math.log(2.5)])
    assert found.logp.tolist() == pytest.approx([-0.5 * ln2 - math.log(2.5)])
    assert found.entropy.tolist() == pytest.approx([math.log(2.5) - (-0.5 - 1.0) / 2.5 * ln2])


def test_merged_as_in_torch():
    partials, _ = fused().partials(problem_of(small(301, 17, 32, BF16)), ALL, strict=True)
    counts = ("mass", "reference_mass")
    in_nats = {f.name: getattr(partials, f.name) * (1 if f.name in counts else math.log(2)) for f in fields(partials)}
    mine, theirs = fused().merge(partials), merge(Partials(**in_nats))
    for f in fields(mine):
        torch.testing.assert_close(getattr(mine, f.name), getattr(theirs, f.name), atol=2e-6, rtol=1e-6)


def test_a_target_that_no_strip_holds_has_no_logp():
    problem = problem_of(small(301, 9, 32, BF16, bias=False))
    zero = replace(
        problem.head, hidden=torch.zeros_like(problem.head.hidden)
    )  # where a logit is 0, and no sign of absence
    targets = torch.tensor([0, 300, 301, -1, -301, 2**31, 2**32 + 5, 2**62, 5])
    for head in (problem.head, zero):
        found = fused().merge(fused().partials(replace(problem, head=head, targets=targets), ALL, strict=True)[0])
        for x in (found.logp, found.reference_logp):
            assert x.isnan().tolist() == [False, False, *[True] * 6, False]
        assert found.entropy.isfinite().all()


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(**changes):
    case = small(5, 3, 16, BF16)
    problem = problem_of(case)
    return Fused().refusal(replace(problem, **changes), strict=True), problem


def test_what_it_can_do_is_not_refused():
    assert refused()[0] is None
    assert Fused().refusal(problem_of(small(5, 0, 16)), strict=True) is None


@pytest.mark.parametrize(
    ("head", "said"),
    [
        (
            Head(torch.zeros(3, 16).half(), torch.zeros(5, 16).half()),
            "hidden is torch.float16.*bfloat16 and float32 only",
        ),
        (Head(torch.zeros(3, 16, dtype=BF16), torch.zeros(5, 16)), "weight is torch.float32 and hidden torch.bfloat16"),
        (
            Head(torch.zeros(3, 12, dtype=BF16), torch.zeros(5, 12, dtype=BF16)),
            "24 bytes apart.*multiple of 8 with zeros",
        ),
        (Head(torch.zeros(3, 16), torch.zeros(16, 5).T), r"weight has strides \(1, 5\).*contiguous"),
        (Head(torch.zeros(3, 16), torch.zeros(84)[1:81].view(5, 16)), "no multiple of 16 bytes; call .clone"),
        (Head(torch.zeros(3, 16), torch.zeros(5, 16), torch.zeros(10)[::2]), "bias has stride 2"),
    ],
)
def test_operands_that_it_cannot_take(head, said):
    reason, _ = refused(head=head)
    assert re.search(said, reason), reason
    assert "chunked" in reason


def test_a_reference_is_looked_at_too():
    reason, _ = refused(reference=Head(torch.zeros(3, 12, dtype=BF16), torch.zeros(5, 12, dtype=BF16)))
    assert reason.startswith("reference hidden has rows 24 bytes apart")


def test_without_triton(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'triton" in refused()[0]


def test_on_a_cpu_only_in_the_interpreter(monkeypatch):
    monkeypatch.setattr(launching, "INTERPRETED", False)
    assert "TRITON_INTERPRET=1 before" in refused()[0]


def test_float32_that_is_none(precision):
    precision("medium")
    case = small(5, 3, 16)
    assert "float32 matmul precision" in Fused().refusal(problem_of(case), strict=True)
    assert Fused().refusal(problem_of(case), strict=False) is None


def test_the_package_needs_no_triton(fresh_python):
    program = """
import sys
sys.modules["triton"] = None
import fullscale.kernels
from fullscale.kernels.fused.backend import Fused
print(Fused().name)
"""
    assert fresh_python(program) == "triton\n"


# --- the tiles of the card --------------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("names", [("logp", "entropy"), POLICY], ids=" ".join)
def test_tiles_as_on_a_card(names):
    case = small(8 * 700 + 5, 130, 72, BF16, bias=False)
    check(case, names, backend=Fused())
