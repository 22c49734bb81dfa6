"""Derivatives of the loss by logits from tiles that the forward kept: no product, one pass over memory."""

import triton
import triton.language as tl

from fullscale.kernels.fused.sources.dlogits import coefficient, derivative
from fullscale.kernels.fused.sources.logits import LOG2E, narrow, place

__all__ = ["cached_dlogits"]


@triton.jit(do_not_specialize=["n", "kept_rows", "stride", "tile_first", "dz_stride", "start", "first"])
def cached_dlogits(
    cache: tl.tensor,
    offset: tl.tensor,
    index: tl.tensor,
    edges: tl.tensor,
    dz: tl.tensor,
    targets: tl.tensor,
    temperature: tl.tensor,
    scalars: tl.tensor,
    n: tl.tensor,
    kept_rows: tl.tensor,
    stride: tl.tensor,
    tile_first: tl.tensor,
    dz_stride: tl.tensor,
    start: tl.tensor,
    first: tl.tensor,
    softcap: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
    INTERPRET: tl.constexpr,
) -> None:
    """Write dz, [n, ..] of columns from `start` on. A program does ROWS rows of the kept tile `tile_first` + its second id.

    `cache` [kept_rows, stride] holds t where `offset` is None, else 2^(t - k) with k = offset[tile, row], [.., kept_rows];
    row i of the problem is row index[i] of the cache. `edges`, [tiles, 2], holds the first column of each tile and one past
    its last. `scalars`, [6, n], is that of `dlogits`, and the target's t, which is known better than what is kept tells.
    All columns are multiples of ALIGNED, which makes stores of 16 bytes of what would else be single numbers.
    """
    tile = tile_first + tl.program_id(1)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    valid = rows < n
    kept = tl.load(index + rows, mask=valid, other=0)  # int64
    column = tl.multiple_of(tl.load(edges + 2 * tile), ALIGNED)
    stop = tl.multiple_of(tl.load(edges + 2 * tile + 1), ALIGNED)
    lane = tl.arange(0, COLUMNS)
    inside = valid[:, None] & (column + lane < stop)[None, :]
    stride = tl.multiple_of(stride, COLUMNS).to(tl.int64)
    t = tl.load(cache + kept[:, None] * stride + (tile * COLUMNS + lane)[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    if offset is not None:
        k = tl.load(offset + tile.to(tl.int64) * kept_rows + kept, mask=valid, other=0.0)
        t = tl.log2(t) + k[:, None]
    scale = LOG2E / tl.load(temperature + rows, mask=valid, other=1.0)
    target = place(tl.load(targets + rows, mask=valid, other=-1) - first, column, stop)
    hit = (column + lane)[None, :] == target[:, None]
    value = derivative(
        tl.where(hit, coefficient(scalars, 5, rows, n)[:, None], t),
        hit,
        coefficient(scalars, 0, rows, n),
        coefficient(scalars, 1, rows, n),
        coefficient(scalars, 2, rows, n),
        coefficient(scalars, 3, rows, n),
        coefficient(scalars, 4, rows, n),
        scale,
        softcap,
    )
    out = rows.to(tl.int64)[:, None] * tl.multiple_of(dz_stride, ALIGNED).to(tl.int64)
    at = tl.multiple_of(column - tl.multiple_of(start, ALIGNED), ALIGNED)
    tl.store(dz + out + (at + lane)[None, :], narrow(value, dz.dtype.element_ty, INTERPRET), mask=inside)
