"""One head's strips reduced: largest logit, mass, entropy's moment, the target's logit."""

import triton
import triton.language as tl

from fullscale.kernels.fused.sources.logits import LOG2E, biased, item, narrow, part_of, place, product, scaled

__all__ = ["ABSENT", "forward", "if_held", "moved", "weighed"]

ABSENT = tl.constexpr(-(2**31))
"""Bits of -0.0, the target's logit in a strip without the target: a zero that adds nothing, and that no sum comes to."""


@triton.jit
def if_held(found: tl.tensor, target: tl.tensor) -> tl.tensor:
    """Return the target's logit, or -0.0 where the strip lacks the target; by its bits, as Triton drops a zero's sign."""
    return tl.where(target >= 0, found.to(tl.int32, bitcast=True), ABSENT).to(tl.float32, bitcast=True)


@triton.jit
def weighed(t: tl.tensor, top: tl.tensor) -> tl.tensor:
    """Return the maximum with `t` taken in, t less that maximum, 2 to this, and what sums so far are to be multiplied by.

    Where all so far is -inf, as in a strip of barred tokens, 0 stands for the maximum, lest -inf - -inf be NaN.
    """
    new = tl.maximum(top, tl.max(t, 1))
    shift = tl.where(new == float("-inf"), 0.0, new)
    below = t - shift[:, None]
    return new, below, tl.exp2(below), tl.exp2(top - shift)


@triton.jit
def moved(top: tl.tensor, new: tl.tensor) -> tl.tensor:
    """Return how far a maximum moved; 0 where it was -inf, as nothing was summed under it."""
    return tl.where(top == float("-inf"), 0.0, top - new)


@triton.jit(do_not_specialize=["n", "width", "strips", "begin", "end", "first"])
def forward(
    hidden: tl.tensor,
    weight: tl.tensor,
    cache: tl.tensor,
    offset: tl.tensor,
    bias: tl.tensor,
    targets: tl.tensor,
    temperature: tl.tensor,
    edges: tl.tensor,
    top_out: tl.tensor,
    mass_out: tl.tensor,
    target_out: tl.tensor,
    moment_out: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    strips: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    first: tl.tensor,
    softcap: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRET: tl.constexpr,
) -> None:
    """Reduce strips begin .. end - 1. A piece of work is a row block and a strip; each output is [n, strips].

    `hidden` [n, width] and `weight` [columns, width] are tensor descriptors. `edges`, [3, strips], holds each strip's first
    column, one past its last, and how many tiles come before its own; columns are counted from the weight's row 0, which
    is column `first` of the vocabulary. `bias`, `softcap` and `moment_out` may be None.

    `cache`, a descriptor of [n, tiles x COLUMNS] or None, is where tiles are kept, tile after tile: t where `offset` is
    None, else 2^(t - k) with k the largest t so far, which goes to `offset`, [parts of all
    tiles, n].
    """
    blocks = tl.cdiv(n, ROWS)
    PARTS: tl.constexpr = 2 if softcap is None else 4
    PART: tl.constexpr = COLUMNS // PARTS
    for index in range(tl.program_id(0), blocks * (end - begin), tl.num_programs(0)):
        block, strip = item(index, blocks, end - begin)
        strip += begin
        rows = block * ROWS + tl.arange(0, ROWS)
        valid = rows < n
        scale = LOG2E / tl.load(temperature + rows, mask=valid, other=1.0)
        start = tl.load(edges + strip)
        stop = tl.load(edges + strips + strip)
        target = place(tl.load(targets + rows, mask=valid, other=-1) - first, start, stop)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        mass = tl.zeros((ROWS,), tl.float32)
        moment = tl.zeros((ROWS,), tl.float32)
        found = tl.zeros((ROWS,), tl.float32)
        for column in range(start, stop, COLUMNS):
            x = product(hidden, weight, block * ROWS, column, width, ROWS, COLUMNS, DEPTH, INTERPRET)
            x = biased(x, bias, column, stop, COLUMNS)
            for part in tl.static_range(PARTS):
                columns = column + part * PART + tl.arange(0, PART)
                t = scaled(part_of(x, part, PARTS, ROWS, COLUMNS), scale, softcap)
                found += tl.sum(tl.where(columns[None, :] == target[:, None], t, 0.0), 1)
                t = tl.where(columns[None, :] < stop, t, float("-inf"))
                new, below, e, kept = weighed(t, top)
                if moment_out is not None:
                    moment = kept * (moment + moved(top, new) * mass)
                    moment += tl.sum(tl.where(e == 0, 0.0, e * below), 1)  # not 0 * -inf
                mass = kept * mass + tl.sum(e, 1)
                top = new
                if cache is not None:
                    at = PARTS * (tl.load(edges + 2 * strips + strip) + (column - start) // COLUMNS) + part
                    if offset is None:
                        cache.store([block * ROWS, at * PART], t)
                    else:
                        cache.store([block * ROWS, at * PART], narrow(e, tl.bfloat16, INTERPRET))
                        tl.store(offset + at.to(tl.int64) * n + rows, top, mask=valid)
        out = rows.to(tl.int64) * strips + strip
        tl.store(top_out + out, top, mask=valid)
        tl.store(mass_out + out, mass, mask=valid)
        tl.store(target_out + out, if_held(found, target), mask=valid)
        if moment_out is not None:
            tl.store(moment_out + out, moment, mask=valid)
