"""A backend driven as the public functions drive it: forward, merge, backward."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from fullscale.kernels.contract import Strip, Tile
from fullscale.kernels.fused.backend import Fused
from fullscale.kernels.problem import Coefficients, Gradients, Head, Problem, Wanted
from tests.fullscale.kernels.small import POLICY, Small, assert_close, truth, upstream_of

TILE = Tile(32, 128, 32)
"""So small that a problem of half a second has several of each kind."""
ALL = Wanted(entropy=True, reference=True, kl=True)
STRIP = 150
BF16 = torch.bfloat16


def fused(tile: Tile = TILE, chunk: int = 200) -> Fused:
    """The backend with small tiles, and with several pieces of a vocabulary of a few hundred."""
    return Fused(tile, chunk)


def problem_of(case: Small) -> Problem:
    """All rows of a case, in strips of which each has a tile and a bit."""
    T = case.temperature
    temperature = T if isinstance(T, Tensor) else torch.full((len(case.targets),), float(T))
    head = Head(case.hidden, case.weight, case.bias)
    V = case.weight.shape[0]
    laid = tuple(Strip(start, min(start + STRIP, V)) for start in range(0, V, STRIP))
    return Problem(head, case.targets, temperature, laid, case.softcap, case.reference)


def statistics_of(case: Small, wanted: Wanted = ALL) -> Any:
    """What the rows of a case come to."""
    return fused().merge(fused().partials(problem_of(case), wanted, strict=True)[0])


def ours(
    case: Small, upstream: dict[str, Tensor], *, keep: float = 0.0, backend: Fused | None = None
) -> dict[str, Any]:
    """Scalars, and gradients of sum_i upstream_i scalar_i, under the names that `truth` has for them."""
    backend, problem = backend or fused(), problem_of(case)
    assert backend.refusal(problem, strict=True) is None
    wanted = Wanted("entropy" in upstream, case.reference is not None, "kl" in upstream)
    partials, kept = backend.partials(problem, wanted, strict=True, keep=keep)
    assert (kept is not None) == (keep > 0)
    found = backend.merge(partials)
    into = Gradients(
        torch.zeros(case.hidden.shape),
        torch.full_like(case.weight, torch.nan),
        None if case.bias is None else torch.zeros(case.bias.shape),
        accumulate=False,
    )
    coefficients = Coefficients(*map(upstream.get, POLICY))
    backend.gradients(problem, found, coefficients, into, strict=True, cached=kept)
    scalars = {name: getattr(found, name) for name in ("logp", "entropy", "lse", "reference_logp", "kl")}
    gradients = {"d_hidden": into.hidden.to(case.hidden.dtype), "d_weight": into.weight}
    if into.bias is not None:
        gradients["d_bias"] = into.bias.to(case.bias.dtype)
    return {name: x for name, x in scalars.items() if x is not None} | gradients


def check(case: Small, names: Iterable[str] = POLICY, **options: Any) -> dict[str, Tensor]:
    """Every scalar and every gradient of a case against float64."""
    upstream = upstream_of(case, names)
    found = ours(case, upstream, **options)
    assert_close(found, truth(case, upstream), case)
    return found
