"""Derivatives of the loss by logits: recomputed tile by tile, for one head."""

import triton
import triton.language as tl

from fullscale.kernels.fused.sources.logits import LOG2E, biased, item, narrow, part_of, place, product, scaled

__all__ = ["coefficient", "derivative", "dlogits", "slope"]


@triton.jit
def coefficient(scalars: tl.tensor, which: tl.constexpr, rows: tl.tensor, n: tl.tensor) -> tl.tensor:
    """Return one of the scalars of each row, [ROWS] of [.., n], and 0 past the last row."""
    return tl.load(scalars + which * n + rows, mask=rows < n, other=0.0)


@triton.jit
def slope(t: tl.tensor, scale: tl.tensor, softcap: tl.tensor) -> tl.tensor:
    """Return d cap(x) / dx = 1 - (cap(x) / softcap)^2; at least 0, also where a kept logit has gone to -inf."""
    u = t / (scale * softcap)[:, None]
    return tl.maximum(1 - u * u, 0.0)


@triton.jit
def derivative(
    t: tl.tensor,
    hit: tl.tensor,
    top: tl.tensor,
    log_mass: tl.tensor,
    one: tl.tensor,
    a: tl.tensor,
    b: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
) -> tl.tensor:
    """Return dz = [one (j = target) - p (a + b log2 p)] slope, with log2 p = (t - M) - log2 S."""
    log_p = (t - top[:, None]) - log_mass[:, None]
    p = tl.exp2(log_p)
    weight = tl.where(p == 0, 0.0, p * (a[:, None] + b[:, None] * log_p))  # not 0 * -inf
    dz = tl.where(hit, one[:, None], 0.0) - weight
    if softcap is not None:
        dz *= slope(t, scale, softcap)
    return dz


@triton.jit(do_not_specialize=["n", "width", "start", "size", "first"])
def dlogits(
    hidden: tl.tensor,
    weight: tl.tensor,
    dz: tl.tensor,
    bias: tl.tensor,
    targets: tl.tensor,
    temperature: tl.tensor,
    scalars: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    start: tl.tensor,
    size: tl.tensor,
    first: tl.tensor,
    softcap: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRET: tl.constexpr,
) -> None:
    """Write dz, a descriptor of [n, size], of columns start .. start + size - 1. A piece of work is one tile.

    `scalars`, [5 or more, n], holds M and log2 S in bits, and, divided by the temperature, the coefficients of
    :func:`derivative`: g, g + h H, and h ln 2.
    """
    blocks = tl.cdiv(n, ROWS)
    tiles = tl.cdiv(size, COLUMNS)
    stop = start + size
    PART: tl.constexpr = COLUMNS // 4
    for index in range(tl.program_id(0), blocks * tiles, tl.num_programs(0)):
        block, tile = item(index, blocks, tiles)
        rows = block * ROWS + tl.arange(0, ROWS)
        valid = rows < n
        column = start + tile * COLUMNS
        x = product(hidden, weight, block * ROWS, column, width, ROWS, COLUMNS, DEPTH, INTERPRET)
        x = biased(x, bias, column, stop, COLUMNS)
        for quarter in tl.static_range(4):
            part = column + quarter * PART
            # Loaded for each quarter, after the store of the one before: none is begun before registers are free.
            scale = LOG2E / tl.load(temperature + rows, mask=valid, other=1.0)
            target = place(tl.load(targets + rows, mask=valid, other=-1) - first, start, stop)
            t = scaled(part_of(x, quarter, 4, ROWS, COLUMNS), scale, softcap)
            value = derivative(
                t,
                (part + tl.arange(0, PART))[None, :] == target[:, None],
                coefficient(scalars, 0, rows, n),
                coefficient(scalars, 1, rows, n),
                coefficient(scalars, 2, rows, n),
                coefficient(scalars, 3, rows, n),
                coefficient(scalars, 4, rows, n),
                scale,
                softcap,
            )
            dz.store([block * ROWS, part - start], narrow(value, dz.dtype, INTERPRET))
