"""Blocks of rows whose bits do not depend on the block.

A library's matrix product may add in another order when it is given another number of rows; a row would then have one
log-prob alone and another in company. So rows are taken 256 at a time and the last block is padded: to a multiple of 16
where that gives the very bits of a full block, else to a full one. Whether it does is not assumed but tried, once for each
shape, on random numbers: an order of summation shows itself in half a million sums.
"""

import functools

import torch
from torch import Tensor

__all__ = [
    "BLOCK",
    "add_product",
    "aligned",
    "full_precision",
    "operand",
    "padded_rows",
    "product",
    "strip_sums",
    "working_dtype",
]

BLOCK = 256
"""Rows of a full block."""
ALIGNMENT = 64
"""Bytes: a line of a CPU's cache, and what torch aligns its own memory to."""
GRANULE = 16
"""A last block is padded to a multiple of this."""


def working_dtype(operand: torch.dtype) -> torch.dtype:
    """Return the precision of sums over operands: float64 for float64, float32 for all others."""
    return torch.float64 if operand == torch.float64 else torch.float32


def operand(x: Tensor) -> Tensor:
    """Return `x` as a matrix product takes it: 16-bit on CUDA, where sums are float32 in hardware; widened on a CPU."""
    return x if x.is_cuda else x.to(working_dtype(x.dtype))


def aligned(x: Tensor) -> Tensor:
    """Return `x`, or a copy of it that begins at a multiple of 64 bytes: elsewhere a product may go another way."""
    return x if x.data_ptr() % ALIGNMENT == 0 and x.is_contiguous() else x.clone(memory_format=torch.contiguous_format)


def product(x: Tensor, w: Tensor, out: Tensor | None = None) -> Tensor:
    """Return x @ w, [n, m] of [n, k] and [k, m], in working precision: never rounded to 16 bits.

    `out` is used where the device can write there.
    """
    if x.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(x, w, out_dtype=torch.float32)
    return torch.mm(x, w, out=out)


def add_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a @ b to `out`, summed in working precision; a is narrowed where b is 16-bit."""
    a = a.to(b.dtype)
    if a.dtype == out.dtype == working_dtype(a.dtype):
        out.addmm_(a, b)
    else:
        out += product(operand(a), operand(b))


def strip_sums(z: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
    """Return m and sum e^(z - m) of rows z [n, C]; leaves z - m in z and e^(z - m) in scratch."""
    top = z.amax(1)
    z.sub_(top[:, None])
    torch.exp(z, out=scratch)
    return top, scratch.sum(1)


def full_precision(x: Tensor) -> str | None:
    """Return why a matrix product of float32 operands would not be float32 here; None where it is."""
    if operand(x[:0]).dtype != torch.float32:
        return None
    try:
        precision = torch.get_float32_matmul_precision()
    except RuntimeError:  # set by the newer way, for one library; then torch does not answer the older question
        library = torch.backends.cuda if x.is_cuda else torch.backends.mkldnn
        precision = library.matmul.fp32_precision
    if precision in ("highest", "ieee", "none"):
        return None
    return (
        f"float32 matmul precision is {precision!r}, which rounds the operands; call "
        "torch.set_float32_matmul_precision('highest'), or pass strict=False"
    )


def padded_rows(rows: int, columns: int, hidden: Tensor) -> int | None:
    """Return how many rows a block of `rows` <= 256 is computed with, so that each has the bits it has in a full block.

    None where a row's bits depend on its place even in a full block.

    Parameters
    ----------
    columns
        Columns of the strip.
    hidden
        [n, H]; its device, dtype and H count.
    """
    x = operand(hidden[:0])
    fewer = -(-rows // GRANULE) * GRANULE
    return _padded_rows(fewer, columns, x.shape[1], x.dtype, x.device, torch.get_num_threads())


@functools.cache
def _padded_rows(
    rows: int, columns: int, depth: int, dtype: torch.dtype, device: torch.device, _threads: int
) -> int | None:
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(BLOCK, depth, generator=generator, device=device).to(dtype)
    w = torch.randn(columns, depth, generator=generator, device=device).to(dtype)
    whole = _sums(x, w)
    if rows == BLOCK:
        place = torch.randperm(BLOCK, generator=generator, device=device)
        return BLOCK if torch.equal(_sums(x[place], w), whole[place]) else None
    same = torch.equal(_sums(x[:rows], w), whole[:rows]) and torch.equal(_sums(x[-rows:], w), whole[-rows:])
    return rows if same else BLOCK


def _sums(x: Tensor, w: Tensor) -> Tensor:
    """Return all that a strip comes to, side by side."""
    z = product(x.contiguous(), w.T)
    raw, e = z.clone(), torch.empty_like(z)
    top, mass = strip_sums(z, e)
    return torch.cat([raw, torch.stack([top, mass, torch.linalg.vecdot(e, z)], 1)], 1)
