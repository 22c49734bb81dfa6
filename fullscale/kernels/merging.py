"""From strips to rows: one order, ascending, whoever made the strips."""

import torch
from torch import Tensor

from fullscale.kernels.problem import Partials, Statistics

__all__ = ["merge"]


def merge(partials: Partials) -> Statistics:
    """Return what each row comes to from its strips, [n, S] each, in nats.

    Each strip's sums are brought from its own maximum m to the row's, M: the mass becomes mass e^(m - M) and the moment
    (moment + (m - M) mass) e^(m - M); the cross moment moves by (m - M) - (m_r - M_r). Then they are added, ascending.
    """
    top, shift, mass, S = _one_head(partials.top, partials.mass)
    log_mass = torch.log(S)
    scale = torch.exp(shift)
    entropy = reference_top = reference_log_mass = reference_logp = kl = None
    if partials.moment is not None:
        entropy = log_mass - _ascending(partials.moment * scale + shift * mass) / S
    if partials.reference_top is not None:
        assert partials.reference_mass is not None
        assert partials.reference_target is not None
        reference_top, reference_shift, _, reference_S = _one_head(partials.reference_top, partials.reference_mass)
        reference_log_mass = torch.log(reference_S)
        reference_logp = (_ascending(partials.reference_target) - reference_top) - reference_log_mass
        if partials.cross is not None:
            moved = partials.cross * scale + (shift - reference_shift) * mass
            kl = (_ascending(moved) / S - log_mass) + reference_log_mass
    return Statistics(
        top=top,
        log_mass=log_mass,
        logp=(_ascending(partials.target) - top) - log_mass,
        entropy=entropy,
        reference_top=reference_top,
        reference_log_mass=reference_log_mass,
        reference_logp=reference_logp,
        kl=kl,
    )


def _one_head(top: Tensor, mass: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return M [n], m - M [n, S], the strips' masses at M [n, S], and their sum [n]."""
    M = top.amax(1)
    shift = top - M[:, None]
    moved = mass * torch.exp(shift)
    return M, shift, moved, _ascending(moved)


def _ascending(terms: Tensor) -> Tensor:
    """Return the sum over strips, [n] of [n, S], term after term: torch.sum is free to choose an order."""
    total = terms[:, 0].clone()
    for column in terms.unbind(1)[1:]:
        total += column
    return total
