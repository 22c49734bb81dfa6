"""Tiles that the forward keeps for the backward."""

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")

from fullscale.kernels.problem import Coefficients, Gradients, Wanted
from tests.fullscale.kernels.fused.driving import ALL, BF16, check, fused, ours, problem_of
from tests.fullscale.kernels.small import relative, small, upstream_of


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("keep", [0.4, 1.0])
@pytest.mark.parametrize("V", [301, 300])
def test_kept_logits_give_the_gradients_of_recomputed_ones(V, keep, softcap):
    case = small(V, 17, 32, reference=False, softcap=softcap)
    upstream = upstream_of(case, ("logp", "entropy"))
    again, kept = (ours(case, upstream, keep=share) for share in (0.0, keep))
    for name in ("logp", "entropy", "lse"):
        assert torch.equal(again[name], kept[name])
    for name in ("d_hidden", "d_weight", "d_bias"):
        assert relative(kept[name], again[name]) < 1e-6
        assert again[name].norm() > 0


@pytest.mark.parametrize("softcap", [None, 4.0])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_kept_exponentials_are_as_good_as_bfloat16(softcap, temperature):
    check(
        small(301, 17, 32, BF16, reference=False, softcap=softcap, temperature=temperature),
        ("logp", "entropy"),
        keep=1.0,
    )


def test_what_was_kept_serves_twice_and_in_any_order():
    case = small(301, 17, 32, BF16, reference=False)
    problem, backend = problem_of(case), fused()
    partials, kept = backend.partials(problem, Wanted(entropy=True), strict=True, keep=1.0)
    statistics, coefficients = backend.merge(partials), Coefficients(torch.arange(17.0), torch.ones(17))
    found = []
    for order in (torch.arange(17), torch.arange(17), torch.arange(17).flip(0), torch.tensor([3, 11])):
        into = Gradients(torch.zeros(len(order), 32), None, None, False)
        backend.gradients(
            problem.take(order),
            statistics.take(order),
            coefficients.take(order),
            into,
            strict=True,
            cached=kept.take(order),
        )
        found.append(into.hidden)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2].flip(0))
    assert torch.equal(found[0][[3, 11]], found[3])
    assert found[0].norm() > 0


def test_the_likeliest_token_is_kept_exactly():
    """1 - p of a token of which the policy is sure would otherwise be lost in the rounding of p."""
    case = small(301, 9, 32, BF16, bias=False, reference=False, temperature=1.0)
    hidden = torch.zeros_like(case.hidden)
    hidden[:, 0], hidden[:, 1] = 1, torch.arange(9)
    weight = torch.zeros_like(case.weight)
    weight[77, 0] = 12.0
    weight[:, 1] = torch.linspace(-0.3, 0.3, 301)
    check(replace(case, hidden=hidden, weight=weight, targets=torch.full((9,), 77)), ("logp",), keep=1.0)


def test_nothing_is_kept_for_the_exact_kl():
    assert fused().keeps(Wanted(entropy=True, reference=True))
    assert not fused().keeps(ALL)
    with pytest.raises(ValueError, match=r"keep = 0\.5 with the exact KL.*take keep = 0"):
        fused().partials(problem_of(small(301, 3)), ALL, strict=True, keep=0.5)
