"""From strips to rows: a fixed loop over strips, ascending, and from bits to nats."""

import triton
import triton.language as tl

from fullscale.kernels.fused.sources.forward import ABSENT, moved

__all__ = ["merge"]

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _head(
    top: tl.tensor, mass: tl.tensor, target: tl.tensor, at: tl.tensor, valid: tl.tensor, strips: tl.tensor
) -> tl.tensor:
    """Return M, log2 S and log2 of the target's probability, [ROWS] each, bits; NaN for a target that no strip holds."""
    M = tl.load(top + at, mask=valid, other=0.0)
    for j in range(1, strips):
        M = tl.maximum(M, tl.load(top + at + j, mask=valid, other=0.0))
    S = tl.zeros_like(M)
    found = tl.load(target + at, mask=valid, other=0.0)
    for j in range(strips):
        S += tl.load(mass + at + j, mask=valid, other=1.0) * tl.exp2(tl.load(top + at + j, mask=valid, other=0.0) - M)
        if j > 0:
            found += tl.load(target + at + j, mask=valid, other=0.0)
    log_mass = tl.log2(S)
    held = found.to(tl.int32, bitcast=True) != ABSENT
    return M, S, log_mass, tl.where(held, (found - M) - log_mass, float("nan"))


@triton.jit(do_not_specialize=["n", "strips"])
def merge(
    top: tl.tensor,
    mass: tl.tensor,
    target: tl.tensor,
    moment: tl.tensor,
    reference_top: tl.tensor,
    reference_mass: tl.tensor,
    reference_target: tl.tensor,
    cross: tl.tensor,
    top_out: tl.tensor,
    log_mass_out: tl.tensor,
    logp_out: tl.tensor,
    entropy_out: tl.tensor,
    reference_top_out: tl.tensor,
    reference_log_mass_out: tl.tensor,
    reference_logp_out: tl.tensor,
    kl_out: tl.tensor,
    n: tl.tensor,
    strips: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    """Merge [n, strips] into [n]. What is not wanted is None, among the inputs and among the outputs alike.

    Each strip's sums are brought from its maximum m to the row's, M: the mass becomes s 2^(m - M), the moment
    (q + (m - M) s) 2^(m - M), and the cross moment (a + ((m - M) - (m_r - M_r)) s) 2^(m - M).
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = rows < n
    at = rows.to(tl.int64) * strips
    M, S, log_mass, logp = _head(top, mass, target, at, valid, strips)
    tl.store(top_out + rows, M * LN2, mask=valid)
    tl.store(log_mass_out + rows, log_mass * LN2, mask=valid)
    tl.store(logp_out + rows, logp * LN2, mask=valid)
    if moment is not None:
        Q = tl.zeros_like(M)
        for j in range(strips):
            m = tl.load(top + at + j, mask=valid, other=0.0)
            s = tl.load(mass + at + j, mask=valid, other=1.0)
            q = tl.load(moment + at + j, mask=valid, other=0.0)
            Q += (q + moved(m, M) * s) * tl.exp2(m - M)
        tl.store(entropy_out + rows, (log_mass - Q / S) * LN2, mask=valid)
    if reference_top is not None:
        M_r, _, log_mass_r, logp_r = _head(reference_top, reference_mass, reference_target, at, valid, strips)
        tl.store(reference_top_out + rows, M_r * LN2, mask=valid)
        tl.store(reference_log_mass_out + rows, log_mass_r * LN2, mask=valid)
        tl.store(reference_logp_out + rows, logp_r * LN2, mask=valid)
        if cross is not None:
            A = tl.zeros_like(M)
            for j in range(strips):
                m = tl.load(top + at + j, mask=valid, other=0.0)
                m_r = tl.load(reference_top + at + j, mask=valid, other=0.0)
                s = tl.load(mass + at + j, mask=valid, other=1.0)
                a = tl.load(cross + at + j, mask=valid, other=0.0)
                A += (a + (moved(m, M) - moved(m_r, M_r)) * s) * tl.exp2(m - M)
            tl.store(kl_out + rows, ((A / S - log_mass) + log_mass_r) * LN2, mask=valid)
