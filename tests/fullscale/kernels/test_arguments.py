"""Every way to call wrongly is an error that names the argument, its value, the bound and the way out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fullscale.kernels.arguments import Arguments, gathered, problem_of
from fullscale.kernels.head_loss import head_loss
from fullscale.kernels.linear_logprob import linear_logprob
from fullscale.kernels.problem import Coefficients, Head
from tests.fullscale.kernels.small import small

M, H, V = 6, 32, 101
CASE = small(V, M)
X, W, T = CASE.hidden, CASE.weight, CASE.targets
META = torch.device("meta")
NAN, INF = torch.nan, torch.inf


def at(x, index, value):
    """A copy with one entry changed."""
    x = x.clone()
    x[index] = value
    return x


def head(**changed):
    """The reference head with something wrong."""
    return {"reference": replace(CASE.reference, **changed)}


WRONG = {
    # hidden
    "hidden is a list": ({"hidden": [[1.0]]}, TypeError, ("hidden", "tensor [M, H]", "list")),
    "hidden is an array": ({"hidden": X.numpy()}, TypeError, ("hidden", "tensor", "ndarray")),
    "hidden has a batch axis": (
        {"hidden": X.view(2, 3, H)},
        ValueError,
        ("hidden", "(2, 3, 32)", "[M, H]", "flatten batch and position"),
    ),
    "hidden is one row": ({"hidden": X[0]}, ValueError, ("hidden", "(32,)", "[M, H]")),
    "hidden is of integers": ({"hidden": X.long()}, TypeError, ("hidden is int64", "bfloat16, float16, float32")),
    # weight
    "weight is no tensor": ({"weight": None}, TypeError, ("weight", "tensor [V, H]", "NoneType")),
    "weight is of another width": ({"weight": W[:, :30]}, ValueError, ("weight", f"({V}, 30)", "H = 32")),
    "weight is transposed": ({"weight": W.T}, ValueError, ("weight", f"(32, {V})", "H = 32")),
    "weight is of another dtype": (
        {"weight": W.bfloat16()},
        TypeError,
        ("weight is bfloat16", "hidden float32", "cast one"),
    ),
    "weight is elsewhere": ({"weight": W.to(META)}, ValueError, ("weight is on meta", "hidden on cpu", "move")),
    "weight has no rows": ({"weight": W[:0], "bias": None}, ValueError, ("weight has no rows", "at least one")),
    # bias
    "bias is of another size": ({"bias": CASE.bias[:9]}, ValueError, ("bias", "(9,)", f"V = {V}")),
    "bias is of integers": ({"bias": CASE.bias.long()}, TypeError, ("bias is int64",)),
    "bias is elsewhere": ({"bias": CASE.bias.to(META)}, ValueError, ("bias is on meta", "move")),
    "bias forbids a token": ({"bias": at(CASE.bias, 3, -INF)}, ValueError, ("bias", "finite", "leave its column out")),
    "bias is no number": ({"bias": at(CASE.bias, 3, NAN)}, ValueError, ("bias", "finite")),
    # targets
    "targets are a list": ({"targets": [1] * M}, TypeError, ("targets", "tensor [M]", "list")),
    "targets are fewer": ({"targets": T[:4]}, ValueError, ("targets", "(4,)", "M = 6")),
    "targets are columns": ({"targets": T[:, None]}, ValueError, ("targets", "(6, 1)", "M = 6", "flatten")),
    "targets are floats": ({"targets": T.float()}, TypeError, ("targets is float32", "int32 or int64")),
    "targets are elsewhere": ({"targets": T.to(META)}, ValueError, ("targets is on meta", "move")),
    "a target is a label to ignore": (
        {"targets": at(T, 4, -100)},
        ValueError,
        ("targets[4] = -100", "0 .. 100", "rows="),
    ),
    "a target is one too large": ({"targets": at(T, 2, V)}, ValueError, (f"targets[2] = {V}", "0 .. 100", "rows=")),
    "a target of a chosen row": (
        {"targets": at(T, 5, -1), "rows": torch.tensor([0, 5])},
        ValueError,
        ("targets[5] = -1",),
    ),
    # rows
    "rows are a list": ({"rows": [0, 1]}, TypeError, ("rows", "tensor [n]", "list")),
    "rows are a mask": ({"rows": T > 0}, TypeError, ("rows is bool", "int32 or int64", "nonzero")),
    "rows are floats": ({"rows": torch.tensor([])}, TypeError, ("rows is float32", "int32 or int64")),
    "rows have two axes": ({"rows": torch.tensor([[0]])}, ValueError, ("rows", "(1, 1)", "[n]")),
    "a row is beyond": ({"rows": torch.tensor([0, M])}, ValueError, (f"rows holds {M}", "0 .. 5")),
    "a row counts from the end": ({"rows": torch.tensor([0, -1])}, ValueError, ("rows holds -1", "0 .. 5")),
    "a row is named twice": ({"rows": torch.tensor([2, 0, 2])}, ValueError, ("rows", "twice", "at most once")),
    # temperature
    "temperature is zero": ({"temperature": 0.0}, ValueError, ("temperature = 0.0", "positive", "greedy")),
    "temperature is negative": ({"temperature": -0.5}, ValueError, ("temperature = -0.5", "positive")),
    "temperature is infinite": ({"temperature": INF}, ValueError, ("temperature = inf",)),
    "temperature is no number": ({"temperature": NAN}, ValueError, ("temperature = nan",)),
    "temperature is text": ({"temperature": "1"}, TypeError, ("temperature",)),
    "temperature is none": ({"temperature": None}, TypeError, ("temperature",)),
    "temperature is nothing in single precision": ({"temperature": 1e-50}, ValueError, ("temperature = 1e-50",)),
    "temperature is without end in single precision": ({"temperature": 1e39}, ValueError, ("temperature = 1e+39",)),
    "temperature of a row is nothing in single precision": (
        {"temperature": at(torch.ones(M, dtype=torch.float64), 3, 1e-50)},
        ValueError,
        ("temperature[3]",),
    ),
    "temperatures are of the chosen rows": (
        {"temperature": torch.ones(2), "rows": torch.tensor([0, 5])},
        ValueError,
        ("temperature", "(2,)", "M = 6"),
    ),
    "temperature has no axis": ({"temperature": torch.tensor(1.0)}, ValueError, ("temperature", "()", "M = 6")),
    "temperatures are integers": ({"temperature": torch.ones(M).long()}, TypeError, ("temperature is int64",)),
    "temperatures are elsewhere": (
        {"temperature": torch.ones(M, device=META)},
        ValueError,
        ("temperature is on meta",),
    ),
    "a temperature is zero": (
        {"temperature": at(torch.ones(M), 3, 0)},
        ValueError,
        ("temperature[3] = 0.0", "positive"),
    ),
    "a temperature of a chosen row is infinite": (
        {"temperature": at(torch.ones(M), 5, INF), "rows": torch.tensor([0, 5])},
        ValueError,
        ("temperature[5] = inf", "finite"),
    ),
    "a temperature learns": (
        {"temperature": torch.ones(M, requires_grad=True)},
        ValueError,
        ("temperature", "gradient", "detach"),
    ),
    # softcap
    "softcap is zero": ({"softcap": 0.0}, ValueError, ("softcap = 0.0", "positive", "None for no cap")),
    "softcap is negative": ({"softcap": -30.0}, ValueError, ("softcap = -30.0",)),
    "softcap is infinite": ({"softcap": INF}, ValueError, ("softcap = inf",)),
    "softcap is text": ({"softcap": "30"}, TypeError, ("softcap",)),
    # reference
    "the reference has other rows": (head(hidden=X[:4, :16]), ValueError, ("reference.hidden", "(4, 16)", "M = 6")),
    "the reference has other columns": (
        head(weight=W[:50, :16]),
        ValueError,
        ("reference.weight", "(50, 16)", f"V = {V}"),
    ),
    "the reference has another width": (head(weight=W), ValueError, ("reference.weight", "H' = 16")),
    "the reference has another dtype": (
        head(hidden=CASE.reference.hidden.double()),
        TypeError,
        ("reference.hidden is float64", "hidden float32"),
    ),
    "the reference's bias is of another size": (
        head(bias=torch.zeros(3)),
        ValueError,
        ("reference.bias", "(3,)", f"V = {V}"),
    ),
    "the reference's bias is of integers": (head(bias=torch.ones(V).long()), TypeError, ("reference.bias is int64",)),
    "the reference's bias forbids a token": (
        head(bias=at(torch.zeros(V), 3, -INF)),
        ValueError,
        ("reference.bias", "finite"),
    ),
    "the reference is a pair": ({"reference": (X, W)}, TypeError, ("reference", "Head")),
    # the whole
    "a vocabulary beside the weight's": (
        {"vocabulary": 150},
        ValueError,
        ("vocabulary = 150", f"{V} rows", "no group"),
    ),
    "a KL to nothing": ({"reference": None, "need_kl": True}, ValueError, ("need_kl=True", "reference=Head")),
    "a backend that is none": ({"backend": "chunkd"}, ValueError, ("chunkd", "chunked")),
}

GIVEN = {"hidden": X, "weight": W, "targets": T, "bias": CASE.bias, "reference": CASE.reference}


def by_scalars(hidden, weight, targets, **options):
    return linear_logprob(hidden, weight, targets, **options)


def by_loss(hidden, weight, targets, **options):
    return head_loss(hidden, weight, targets, lambda s: Coefficients(torch.ones_like(s.logp)), **options)


@pytest.mark.parametrize("called", [by_scalars, by_loss])
@pytest.mark.parametrize(("changed", "kind", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(called, changed, kind, said):
    with pytest.raises(kind) as raised:
        called(**(GIVEN | changed))
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize("called", [by_scalars, by_loss])
def test_without_the_change_nothing_is_wrong(called):
    called(**(GIVEN | {"vocabulary": V, "need_kl": True, "temperature": torch.ones(M), "rows": torch.tensor([5, 0])}))


OPTIONS = {
    "keep": ({"keep": 1.5}, ("keep = 1.5", "0 .. 1")),
    "keep below": ({"keep": -0.1}, ("keep = -0.1", "0 .. 1")),
    "keep is no number": ({"keep": NAN}, ("keep = nan", "0 .. 1")),
    "dw_out shape": ({"dw_out": torch.zeros(V, 30)}, ("dw_out", f"({V}, 30)", "H = 32")),
    "dw_out dtype": ({"dw_out": torch.zeros(V, H).bfloat16()}, ("dw_out must be float32",)),
    "dw_out layout": ({"dw_out": torch.zeros(H, V).T}, ("dw_out", "contiguous")),
}


@pytest.mark.parametrize(("changed", "said"), OPTIONS.values(), ids=OPTIONS)
def test_what_is_wrong_with_the_backward_is_named(changed, said):
    with pytest.raises(ValueError) as raised:
        by_scalars(**(GIVEN | changed))
    assert [part for part in said if part not in str(raised.value)] == [], str(raised.value)


# --- what becomes of right ones ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [None, torch.tensor([4, 0, 2]), torch.tensor([4, 0, 2], dtype=torch.int32)])
def test_a_problem_holds_the_rows_that_count_in_their_order(rows):
    index = torch.arange(M) if rows is None else rows.long()
    temperature = torch.linspace(0.5, 1, M, dtype=torch.float64)
    given = Arguments(T.int(), temperature, rows, 30.0, CASE.reference)
    checked = problem_of(X, W, CASE.bias, given)
    problem = checked.problem
    assert checked.bad is None
    assert problem.rows == len(index)
    assert torch.equal(problem.head.hidden, X[index])
    assert torch.equal(problem.reference.hidden, CASE.reference.hidden[index])
    assert torch.equal(problem.targets, T[index])
    assert problem.targets.dtype == torch.int64
    assert torch.equal(problem.temperature, temperature[index].float())
    assert problem.softcap == 30
    assert problem.strips[-1].stop == V


def test_one_number_is_the_temperature_of_every_row():
    for dtype, working in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        case = small(V, M, dtype=dtype, temperature=0.1, reference=False)
        assert torch.equal(case.problem().temperature, torch.full((M,), 0.1, dtype=working))


def test_rows_are_contiguous_and_untouched_where_they_are_already():
    assert gathered(X, None) is X
    assert gathered(X.T, None).is_contiguous()
    assert torch.equal(gathered(X, torch.tensor([3, 1])), X[[3, 1]])


def test_the_reference_is_held_fixed():
    theirs = Head(*(x.clone().requires_grad_() for x in (CASE.reference.hidden, CASE.reference.weight)))
    hidden = X.clone().requires_grad_()
    out = linear_logprob(hidden, W, T, reference=theirs, need_kl=True)
    assert not out.reference_logp.requires_grad
    out.kl.sum().backward()
    assert hidden.grad.abs().max() > 0
    assert theirs.hidden.grad is theirs.weight.grad is None


def test_a_take_of_a_problem_is_that_of_the_rows_alone():
    given = Arguments(T, torch.linspace(0.5, 1, M), torch.tensor([4, 0, 2]), None, CASE.reference)
    problem = problem_of(X, W, CASE.bias, given).problem.take(torch.tensor([2, 0]))
    alone = problem_of(X, W, CASE.bias, replace(given, rows=torch.tensor([2, 4]))).problem
    assert torch.equal(problem.head.hidden, alone.head.hidden)
    assert torch.equal(problem.reference.hidden, alone.reference.hidden)
    assert torch.equal(problem.targets, alone.targets)
    assert torch.equal(problem.temperature, alone.temperature)


def test_a_number_of_numpys_is_a_number():
    once = linear_logprob(X, W, T, temperature=np.float32(0.5)).logp
    assert torch.equal(once, linear_logprob(X, W, T, temperature=0.5).logp)


def test_a_gradient_that_would_go_nowhere_is_named():
    with pytest.raises(ValueError, match="requires no gradient"):
        linear_logprob(X.clone().requires_grad_(), W, T, dw_out=torch.zeros(V, H))


def test_units_that_are_no_whole_numbers_are_named():
    with pytest.raises(ValueError, match=r"units hold 2\.5; .* whole number"):
        head_loss(X, W, T, lambda s: Coefficients(torch.ones_like(s.logp)), units=[2.5, 3.5])
