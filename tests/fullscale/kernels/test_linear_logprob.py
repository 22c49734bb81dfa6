"""Scalars and gradients of every kind of logits against float64 written out, and what holds for all of them."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fullscale.kernels.problem import Head
from tests.fullscale.kernels.small import (
    POLICY,
    assert_close,
    call,
    largest,
    leaves_of,
    ours,
    relative,
    small,
    truth,
    upstream_of,
)

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
DTYPES = [F32, BF16, F16, F64]


def agrees(case, names=POLICY, **options):
    upstream = upstream_of(case, names)
    found = ours(case, upstream, **options)
    assert_close(found, truth(case, upstream), case)
    return found


# --- against float64 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("V", [1, 7, 1000, 2049, 5003])
def test_every_vocabulary(V, dtype):
    agrees(small(V, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 255, 256, 257])
def test_every_number_of_rows(n, dtype):
    found = agrees(small(1000, n, dtype=dtype))
    assert found["logp"].shape == (n,)
    assert found["d_hidden"].shape == (n, 32)


def shifted(by):
    """One more hidden unit, always 1, adds `by` to every logit of both heads."""

    def more(x, value):
        return torch.cat([x, x.new_full((len(x), 1), value)], 1)

    def change(case):
        theirs = replace(case.reference, hidden=more(case.reference.hidden, 1), weight=more(case.reference.weight, by))
        return replace(case, hidden=more(case.hidden, 1), weight=more(case.weight, by), reference=theirs)

    return change


def peaked(case):
    """The first hidden unit, always 1, lifts one column by 60: the target's in every other row."""
    hidden, weight = case.hidden.clone(), case.weight.clone()
    hidden[:, 0], weight[:, 0] = 1, 0
    weight[77, 0] = 60
    return replace(case, hidden=hidden, weight=weight, targets=torch.where(torch.arange(17) % 2 == 0, 77, case.targets))


def to_column(column):
    return lambda case: replace(case, targets=torch.full_like(case.targets, column))


def at_temperature(value):
    return lambda case: replace(case, temperature=value)


KINDS = {
    **{f"shifted by {by}": shifted(by) for by in (6.0, -6.0, 300.0, -300.0)},
    "one-hot": peaked,
    **{f"target {j}": to_column(j) for j in (0, 124, 125, 999)},  # either side of a strip's edge, and the last
    **{f"temperature {T}": at_temperature(T) for T in (0.01, 0.6, 10.0)},
    "a temperature a row": at_temperature(torch.logspace(-2, 1, 17)),
    "a wide spread": lambda case: replace(case, weight=case.weight * 30),
    "capped": lambda case: replace(case, softcap=3.0),
    "capped, cold": lambda case: replace(case, softcap=20.0, temperature=0.1, weight=case.weight * 8),
    "no bias": lambda case: replace(case, bias=None),
    "no reference": lambda case: replace(case, reference=None),
    "strided": lambda case: replace(case, hidden=case.hidden.T.contiguous().T, weight=case.weight.T.contiguous().T),
    "some rows": lambda case: replace(case, rows=torch.tensor([3, 16, 0, 9, 8], dtype=torch.int32)),
}


@pytest.mark.parametrize("dtype", [F32, BF16, F64])
@pytest.mark.parametrize("change", KINDS.values(), ids=KINDS)
def test_every_kind_of_logits(change, dtype):
    case = change(small(1000, dtype=dtype))
    names = POLICY if case.reference is not None else ("logp", "entropy")
    agrees(case, names)


@pytest.mark.parametrize("names", [("logp",), ("entropy",), ("kl",), ("logp", "entropy"), ("entropy", "kl")])
@pytest.mark.parametrize("options", [{}, {"keep": 1.0}, {"backend": "reference", "strict": False}], ids=str)
def test_every_loss(names, options):
    agrees(small(1003, 33, softcap=4.0), names, **options)


@pytest.mark.parametrize("V", [2, 1000, 5003])
def test_all_equal_logits_have_the_entropy_of_the_vocabulary(V):
    case = small(V, bias=False)
    out = call(replace(case, weight=torch.zeros_like(case.weight)))
    torch.testing.assert_close(out.entropy, torch.full((17,), math.log(V)), rtol=2.0**-22, atol=0)
    torch.testing.assert_close(out.logp, torch.full((17,), -math.log(V)), rtol=2.0**-22, atol=0)


@pytest.mark.parametrize("scale", [1.0, 6.0, 40.0])
def test_gradients_are_no_worse_than_twice_those_of_16_bit_logits(scale):
    """What people write: logits in bf16, their log-softmax in float32."""
    case = small(2049, 256, 64, BF16, scale=scale, bias=False, reference=False)
    upstream = upstream_of(case, ("logp", "entropy"))
    true, found = truth(case, upstream), ours(case, upstream)
    leaves = leaves_of(case)
    lp = ((leaves["hidden"] @ leaves["weight"].T).float() / case.temperature[:, None]).log_softmax(1)
    plain = {"logp": lp.gather(1, case.targets[:, None])[:, 0], "entropy": -(lp.exp() * lp).sum(1)}
    sum((upstream[name] * x).sum() for name, x in plain.items()).backward()
    for name in ("hidden", "weight"):
        mine, theirs = (relative(x, true[f"d_{name}"]) for x in (found[f"d_{name}"], leaves[name].grad))
        assert mine <= min(5e-3, 2 * theirs), (name, mine, theirs)
    for name, x in plain.items():
        assert (found[name] - true[name]).abs().max() < 0.01 * (x - true[name]).abs().max(), name


@pytest.mark.parametrize("backend", ["reference", "chunked"])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_gradients_by_finite_differences(backend, softcap):
    case = small(11, 4, 5, F64, softcap=softcap)

    def found(hidden, weight, bias):
        out = call(case, {"hidden": hidden, "weight": weight, "bias": bias}, backend=backend, strict=False)
        return out.logp, out.entropy, out.kl

    assert torch.autograd.gradcheck(found, [x for x in leaves_of(case).values() if x is not None])


# --- properties -------------------------------------------------------------------------------------------------------

drawn = st.builds(
    small,
    st.integers(1, 60),
    st.integers(1, 5),
    st.just(16),
    st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from((0.1, 1.0, 10.0)),
    softcap=st.sampled_from((None, 3.0)),
)


@given(drawn)
def test_log_probs_entropies_and_divergences_are_in_bounds(case):
    out = call(case)
    V, digits = len(case.weight), 2.0**-20 * (1 + largest(case))
    assert (out.logp <= 0).all()
    assert (out.reference_logp <= 0).all()
    assert (out.entropy >= 0).all()
    assert (out.entropy <= math.log(V) + 2.0**-22).all()
    assert (out.kl >= -digits).all()


@given(drawn)
def test_a_head_has_no_divergence_from_itself(case):
    out = call(replace(case, reference=Head(case.hidden, case.weight, case.bias)))
    assert (out.kl == 0).all()
    assert torch.equal(out.reference_logp, out.logp)


@given(drawn, st.sampled_from((-300.0, -6.0, 6.0, 300.0)))
def test_a_common_part_of_the_logits_changes_nothing(case, by):
    case = replace(case, softcap=None, temperature=1.0)
    moved = replace(case, bias=case.bias.float() + by)
    found, before = call(moved), call(replace(case, bias=case.bias.float()))
    for name in ("logp", "entropy", "reference_logp"):
        assert (getattr(found, name) - getattr(before, name)).abs().max() <= 2.0**-19 * (largest(case) + abs(by)), name


@given(drawn, st.sampled_from(POLICY))
def test_a_rows_dlogits_sum_to_nothing(case, name):
    """By the bias, of one row at a time: what one column gains the others lose."""
    case = replace(case, softcap=None)
    for i in range(case.n):
        dz = ours(case, {name: (torch.arange(case.n) == i).to(case.problem().temperature)})["d_bias"].double()
        rounding = {BF16: 2.0**-8, F16: 2.0**-10}.get(case.hidden.dtype, 2.0**-18)
        assert abs(dz.sum()) <= rounding * dz.abs().sum() + 2.0**-20 * (1 + largest(case))
