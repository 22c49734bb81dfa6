"""A tile of logits: the product of rows and columns, its cap, its temperature, and the order in which tiles are visited."""

import triton
import triton.language as tl

__all__ = ["GROUP", "LOG2E", "biased", "item", "narrow", "part_of", "place", "product", "scaled"]

LOG2E = tl.constexpr(1.4426950408889634)
GROUP = tl.constexpr(16)
"""Row blocks that visit the same columns one after the other: those columns' weights, and the rows, then stay in L2."""


@triton.jit
def item(index: tl.tensor, blocks: tl.tensor, others: tl.tensor) -> tl.tensor:
    """Return (row block, other index) of the index-th of blocks x others pieces of work: GROUP row blocks, then onwards."""
    whole = GROUP * others
    first = index // whole * GROUP
    size = tl.minimum(blocks - first, GROUP)
    rest = index % whole
    return first + rest % size, rest // size


@triton.jit
def product(
    hidden: tl.tensor,
    weight: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    width: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRET: tl.constexpr,
) -> tl.tensor:
    """Return hidden[row:] @ weight[column:].T, [ROWS, COLUMNS], float32; what lies outside either matrix reads as zero."""
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for k in range(0, width, DEPTH):
        x = hidden.load([row, k])
        w = weight.load([column, k])
        if INTERPRET:
            x = x.to(tl.float32)
            w = w.to(tl.float32)
        total = tl.dot(x, w.T, total, input_precision="ieee")
    return total


@triton.jit
def _halves(x: tl.tensor, ROWS: tl.constexpr, COLUMNS: tl.constexpr) -> tl.tensor:
    """Return the left and the right half of a tile: in registers, nothing moves."""
    return x.reshape(ROWS, 2, COLUMNS // 2).permute(0, 2, 1).split()


@triton.jit
def part_of(
    x: tl.tensor, which: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
) -> tl.tensor:
    """Return one of the 2 or 4 parts of a tile's columns: what is done with a part at a time needs fewer registers."""
    left, right = _halves(x, ROWS, COLUMNS)
    if PARTS == 2:
        found = left if which == 0 else right
    else:
        first, second = _halves(left if which < 2 else right, ROWS, COLUMNS // 2)
        found = first if which % 2 == 0 else second
    return found


@triton.jit
def _tanh(x: tl.tensor) -> tl.tensor:
    """Return tanh(x) to a few units in the last place: a series near 0, where 1 - 2 / (1 + e^2x) would cancel."""
    square = x * x
    series = 2.0 / 15 + square * (-17.0 / 315 + square * (62.0 / 2835))
    series = x + x * square * (-1.0 / 3 + square * series)
    return tl.where(tl.abs(x) < 0.25, series, 1 - 2 / (1 + tl.exp2(x * (2 * LOG2E))))


@triton.jit
def biased(x: tl.tensor, bias: tl.tensor, column: tl.tensor, stop: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """Return a tile with its bias, which may be None, added: to the whole tile, as added to each half registers run out."""
    if bias is not None:
        columns = column + tl.arange(0, COLUMNS)
        x += tl.load(bias + columns, mask=columns < stop, other=0.0).to(tl.float32)[None, :]
    return x


@triton.jit
def scaled(x: tl.tensor, scale: tl.tensor, softcap: tl.tensor) -> tl.tensor:
    """Return logits in bits, t = cap(x) scale, scale = log2(e) / temperature: the cap comes before the temperature."""
    if softcap is not None:
        x = softcap * _tanh(x / softcap)
    return x * scale[:, None]


@triton.jit
def narrow(x: tl.tensor, dtype: tl.constexpr, INTERPRET: tl.constexpr) -> tl.tensor:
    """Return x in another dtype, rounded to nearest even; the interpreter cuts bits off, so it is rounded before."""
    if INTERPRET and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        x = bits.to(tl.float32, bitcast=True)
    return x.to(dtype)


@triton.jit
def place(target: tl.tensor, start: tl.tensor, stop: tl.tensor) -> tl.tensor:
    """Return the target's column as int32, or -1 where it lies outside start .. stop - 1."""
    return tl.where((target >= start) & (target < stop), target, -1).to(tl.int32)
