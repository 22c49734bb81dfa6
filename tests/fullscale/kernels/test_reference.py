"""The definition, against numbers worked by hand, against autograd, and against itself cut up."""

import math
from dataclasses import replace

import pytest
import torch

from fullscale.kernels.contract import strips
from fullscale.kernels.problem import Coefficients, Gradients, Head, Problem, Wanted
from fullscale.kernels.reference import Reference, log_softmax, scalars, scaled_logits
from tests.fullscale.kernels.small import POLICY, same_bits, small, truth, upstream_of

ALL = Wanted(entropy=True, reference=True, kl=True)
F64 = torch.float64


def from_logits(z, targets, temperature=1.0, softcap=None, reference=None):
    """The problem whose logits are z [n, V]: hidden states are the rows of the identity."""
    n, V = z.shape

    def head(z):
        return Head(torch.eye(n, dtype=F64), z.T.to(F64).contiguous())

    T = torch.full((n,), temperature, dtype=F64)
    theirs = None if reference is None else head(reference)
    return Problem(head(z), torch.tensor(targets), T, strips(V), softcap, theirs)


def test_scalars_by_hand():
    """Logits [2, 1, 0] at temperature .6: the log-prob of the first is -.2026 (known fault F9)."""
    z = torch.tensor([[2.0, 1, 0], [0, 0, 0]])
    logp, entropy, _, _ = scalars(from_logits(z, [0, 2], temperature=0.6), Wanted(entropy=True))
    p = [math.exp(x / 0.6 - math.log(sum(math.exp(y / 0.6) for y in (2, 1, 0)))) for x in (2, 1, 0)]
    assert logp.tolist() == pytest.approx([math.log(p[0]), -math.log(3)])
    assert float(logp[0]) == pytest.approx(-0.2026, abs=5e-5)
    assert entropy.tolist() == pytest.approx([-sum(q * math.log(q) for q in p), math.log(3)])


def test_the_kl_by_hand():
    """p = (2/3, 1/3) against (1/2, 1/2)."""
    z = torch.tensor([[math.log(2), 0.0]])
    _, _, theirs, kl = scalars(from_logits(z, [1], reference=torch.zeros(1, 2)), ALL)
    assert float(theirs) == pytest.approx(-math.log(2))
    assert float(kl) == pytest.approx(2 / 3 * math.log(4 / 3) + 1 / 3 * math.log(2 / 3))


def test_the_cap_comes_before_the_temperature():
    z = torch.tensor([[9.0, 0.0]])
    problem = from_logits(z, [0], temperature=0.5, softcap=3.0)
    found = scaled_logits(problem.head, problem.temperature, problem.softcap)
    assert found.tolist()[0] == pytest.approx([3 * math.tanh(3) / 0.5, 0])
    assert log_softmax(problem.head, problem).exp().sum(1).tolist() == pytest.approx([1])


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_gradient_of_the_scalars_by_finite_differences(softcap):
    case = small(11, 4, 5, F64, softcap=softcap)
    problem = case.problem()

    def found(hidden, weight, bias):
        return tuple(
            x for x in scalars(replace(problem, head=Head(hidden, weight, bias)), ALL) if x is not None and x.grad_fn
        )

    leaves = [x.clone().requires_grad_() for x in (case.hidden, case.weight, case.bias)]
    assert len(found(*leaves)) == 3  # log-prob, entropy, KL; the reference's log-prob is fixed
    assert torch.autograd.gradcheck(found, leaves)


@pytest.mark.parametrize("V", [1, 7, 1003])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_strips_merge_to_the_scalars(V, softcap):
    problem = small(V, dtype=F64, softcap=softcap).problem()
    partials, kept = Reference().partials(problem, ALL, strict=False)
    found = Reference().merge(partials)
    assert kept is None
    names = ("logp", "entropy", "reference_logp", "kl")
    for name, x in zip(names, scalars(problem, ALL), strict=True):
        torch.testing.assert_close(getattr(found, name), x, rtol=1e-12, atol=1e-12)


def into_nothing(problem, weight=None):
    """Where gradients are added: zeros, or `weight` for that of the weight."""
    fresh = torch.full_like(problem.head.weight, torch.nan) if weight is None else weight
    bias = None if problem.head.bias is None else torch.zeros_like(problem.head.bias)
    return Gradients(torch.zeros_like(problem.head.hidden), fresh, bias, accumulate=weight is not None)


@pytest.mark.parametrize("names", [("logp",), ("entropy",), ("kl",), POLICY])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_formula_of_the_gradient_is_autograds(names, softcap):
    case = small(101, 9, dtype=F64, softcap=softcap)
    problem, upstream, backend = case.problem(), upstream_of(case, names), Reference()
    found = backend.merge(backend.partials(problem, ALL, strict=False)[0])
    into = into_nothing(problem)
    backend.gradients(problem, found, Coefficients(*map(upstream.get, POLICY)), into, strict=False)
    true = truth(case, upstream)
    for name in ("hidden", "weight", "bias"):
        torch.testing.assert_close(getattr(into, name), true[f"d_{name}"], rtol=1e-10, atol=1e-12)


def test_shards_add_up_to_the_gradient_of_the_whole():
    case = small(101, 9, dtype=F64)
    problem, backend = case.problem(), Reference()
    found = backend.merge(backend.partials(problem, ALL, strict=False)[0])
    coefficients = Coefficients(*map(upstream_of(case).get, POLICY))
    whole = into_nothing(problem)
    backend.gradients(problem, found, coefficients, whole, strict=False)
    parts = []
    for rank in range(4):
        held = strips(101, rank, 4)
        here = slice(held[0].start, held[-1].stop)
        heads = [Head(h.hidden, h.weight[here], h.bias[here]) for h in (problem.head, problem.reference)]
        shard = replace(problem, head=heads[0], reference=heads[1], strips=held)
        parts.append(into_nothing(shard))
        backend.gradients(shard, found, coefficients, parts[-1], strict=False)
    torch.testing.assert_close(sum(p.hidden for p in parts), whole.hidden, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(torch.cat([p.weight for p in parts]), whole.weight, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(torch.cat([p.bias for p in parts]), whole.bias, rtol=1e-12, atol=1e-13)


def test_gradients_are_added_to_what_is_there():
    case = small(50, 6, dtype=F64)
    problem, backend = case.problem(), Reference()
    found = backend.merge(backend.partials(problem, ALL, strict=False)[0])
    coefficients = Coefficients(torch.ones(6, dtype=F64))
    once, twice = into_nothing(problem), into_nothing(problem, torch.zeros_like(problem.head.weight))
    backend.gradients(problem, found, coefficients, once, strict=False)
    for _ in range(2):
        backend.gradients(problem, found, coefficients, twice, strict=False)
    for name in ("hidden", "weight", "bias"):
        torch.testing.assert_close(getattr(twice, name), 2 * getattr(once, name))
        assert getattr(once, name).abs().max() > 0.1


def test_inputs_stay_as_they_are():
    case = small(50, 6, dtype=F64)
    problem, backend = case.problem(), Reference()
    held = {"x": problem.head.hidden, "w": problem.head.weight, "t": problem.targets, "T": problem.temperature}
    before = {name: x.clone() for name, x in held.items()}
    found = backend.merge(backend.partials(problem, ALL, strict=False)[0])
    backend.gradients(problem, found, Coefficients(torch.ones(6, dtype=F64)), into_nothing(problem), strict=False)
    assert same_bits(held, before)


def test_strict_is_refused_with_the_way_out():
    reason = Reference().refusal(small(50).problem(), strict=True)
    assert "number of rows" in reason
    assert "strict=False" in reason
    assert "chunked" in reason
    assert Reference().refusal(small(50).problem(), strict=False) is None


def test_it_keeps_nothing_and_says_so():
    case = small(101, 5)
    with pytest.raises(ValueError, match=r"keep = 0\.5: the reference backend keeps nothing"):
        Reference().partials(case.problem(), Wanted(), strict=False, keep=0.5)
