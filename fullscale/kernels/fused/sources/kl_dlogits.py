"""Derivatives of the loss by logits, recomputed, where the exact KL to a reference head is part of the loss."""

import triton
import triton.language as tl

from fullscale.kernels.fused.sources.dlogits import coefficient, slope
from fullscale.kernels.fused.sources.logits import LOG2E, biased, item, narrow, part_of, place, product, scaled

__all__ = ["kl_dlogits"]


@triton.jit(do_not_specialize=["n", "width", "reference_width", "start", "size", "first"])
def kl_dlogits(
    hidden: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    reference_hidden: tl.tensor,
    reference_weight: tl.tensor,
    reference_bias: tl.tensor,
    dz: tl.tensor,
    targets: tl.tensor,
    temperature: tl.tensor,
    scalars: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    reference_width: tl.tensor,
    start: tl.tensor,
    size: tl.tensor,
    first: tl.tensor,
    softcap: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRET: tl.constexpr,
) -> None:
    """Write dz = [one (j = target) - p (a + b log2 p + c log2 (p / p_r))] slope, a descriptor of [n, size].

    `scalars`, [8, n], holds M and log2 S, then, divided by the temperature, g, g + h H + k kl, h ln 2 and -k ln 2, then
    the reference's M_r and log2 S_r. The reference head has no gradient.
    """
    blocks = tl.cdiv(n, ROWS)
    tiles = tl.cdiv(size, COLUMNS)
    stop = start + size
    PART: tl.constexpr = COLUMNS // 4
    for index in range(tl.program_id(0), blocks * tiles, tl.num_programs(0)):
        block, tile = item(index, blocks, tiles)
        row = block * ROWS
        rows = row + tl.arange(0, ROWS)
        valid = rows < n
        column = start + tile * COLUMNS
        x = product(hidden, weight, row, column, width, ROWS, COLUMNS, DEPTH, INTERPRET)
        x = biased(x, bias, column, stop, COLUMNS)
        y = product(reference_hidden, reference_weight, row, column, reference_width, ROWS, COLUMNS, DEPTH, INTERPRET)
        y = biased(y, reference_bias, column, stop, COLUMNS)
        for quarter in tl.static_range(4):
            part = column + quarter * PART
            scale = LOG2E / tl.load(temperature + rows, mask=valid, other=1.0)
            target = place(tl.load(targets + rows, mask=valid, other=-1) - first, start, stop)
            t = scaled(part_of(x, quarter, 4, ROWS, COLUMNS), scale, softcap)
            r = scaled(part_of(y, quarter, 4, ROWS, COLUMNS), scale, softcap)
            log_p = (t - coefficient(scalars, 0, rows, n)[:, None]) - coefficient(scalars, 1, rows, n)[:, None]
            log_r = (r - coefficient(scalars, 6, rows, n)[:, None]) - coefficient(scalars, 7, rows, n)[:, None]
            inner = coefficient(scalars, 3, rows, n)[:, None] + coefficient(scalars, 4, rows, n)[:, None] * log_p
            inner += coefficient(scalars, 5, rows, n)[:, None] * (log_p - log_r)
            p = tl.exp2(log_p)
            hit = (part + tl.arange(0, PART))[None, :] == target[:, None]
            value = tl.where(hit, coefficient(scalars, 2, rows, n)[:, None], 0.0)
            value -= tl.where(p == 0, 0.0, p * inner)  # not 0 * -inf
            if softcap is not None:
                value *= slope(t, scale, softcap)
            dz.store([row, part - start], narrow(value, dz.dtype, INTERPRET))
