"""Both heads' strips reduced in one pass, with the cross moment that the exact KL is made of."""

import triton
import triton.language as tl

from fullscale.kernels.fused.sources.forward import if_held, moved, weighed
from fullscale.kernels.fused.sources.logits import LOG2E, biased, item, part_of, place, product, scaled

__all__ = ["kl_forward"]


@triton.jit(do_not_specialize=["n", "width", "reference_width", "strips", "first"])
def kl_forward(
    hidden: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    reference_hidden: tl.tensor,
    reference_weight: tl.tensor,
    reference_bias: tl.tensor,
    targets: tl.tensor,
    temperature: tl.tensor,
    edges: tl.tensor,
    top_out: tl.tensor,
    mass_out: tl.tensor,
    target_out: tl.tensor,
    moment_out: tl.tensor,
    reference_top_out: tl.tensor,
    reference_mass_out: tl.tensor,
    reference_target_out: tl.tensor,
    cross_out: tl.tensor,
    n: tl.tensor,
    width: tl.tensor,
    reference_width: tl.tensor,
    strips: tl.tensor,
    first: tl.tensor,
    softcap: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    INTERPRET: tl.constexpr,
) -> None:
    """Reduce strips of both heads. As `forward`, twice, with a tile of half the width for each head.

    A maximum that moves by d, and one of the reference that moves by d_r, turn the cross moment a, of mass s, into
    2^d (a + (d - d_r) s).
    """
    blocks = tl.cdiv(n, ROWS)
    PARTS: tl.constexpr = 2 if softcap is None else 4
    PART: tl.constexpr = COLUMNS // PARTS
    for index in range(tl.program_id(0), blocks * strips, tl.num_programs(0)):
        block, strip = item(index, blocks, strips)
        row = block * ROWS
        rows = row + tl.arange(0, ROWS)
        valid = rows < n
        scale = LOG2E / tl.load(temperature + rows, mask=valid, other=1.0)
        start = tl.load(edges + strip)
        stop = tl.load(edges + strips + strip)
        target = place(tl.load(targets + rows, mask=valid, other=-1) - first, start, stop)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        reference_top = top
        mass = tl.zeros((ROWS,), tl.float32)
        reference_mass = mass
        moment = mass
        cross = mass
        found = mass
        reference_found = mass
        for column in range(start, stop, COLUMNS):
            x = product(hidden, weight, row, column, width, ROWS, COLUMNS, DEPTH, INTERPRET)
            x = biased(x, bias, column, stop, COLUMNS)
            y = product(
                reference_hidden, reference_weight, row, column, reference_width, ROWS, COLUMNS, DEPTH, INTERPRET
            )
            y = biased(y, reference_bias, column, stop, COLUMNS)
            for part in tl.static_range(PARTS):
                columns = column + part * PART + tl.arange(0, PART)
                hit = columns[None, :] == target[:, None]
                inside = columns[None, :] < stop
                t = scaled(part_of(x, part, PARTS, ROWS, COLUMNS), scale, softcap)
                r = scaled(part_of(y, part, PARTS, ROWS, COLUMNS), scale, softcap)
                found += tl.sum(tl.where(hit, t, 0.0), 1)
                reference_found += tl.sum(tl.where(hit, r, 0.0), 1)
                new, below, e, kept = weighed(tl.where(inside, t, float("-inf")), top)
                new_r, below_r, e_r, kept_r = weighed(tl.where(inside, r, float("-inf")), reference_top)
                d = moved(top, new)
                cross = kept * (cross + (d - moved(reference_top, new_r)) * mass)
                cross += tl.sum(tl.where(e == 0, 0.0, e * (below - below_r)), 1)
                if moment_out is not None:
                    moment = kept * (moment + d * mass) + tl.sum(tl.where(e == 0, 0.0, e * below), 1)
                mass = kept * mass + tl.sum(e, 1)
                reference_mass = kept_r * reference_mass + tl.sum(e_r, 1)
                top = new
                reference_top = new_r
        out = rows.to(tl.int64) * strips + strip
        tl.store(top_out + out, top, mask=valid)
        tl.store(mass_out + out, mass, mask=valid)
        tl.store(target_out + out, if_held(found, target), mask=valid)
        tl.store(reference_top_out + out, reference_top, mask=valid)
        tl.store(reference_mass_out + out, reference_mass, mask=valid)
        tl.store(reference_target_out + out, if_held(reference_found, target), mask=valid)
        tl.store(cross_out + out, cross, mask=valid)
        if moment_out is not None:
            tl.store(moment_out + out, moment, mask=valid)
