"""Strip by strip in torch: the logits of at most 256 rows and 2,048 columns exist at a time, on any device.

Strips are the outer loop, so that a strip of the weight stays in the processor's cache while all rows pass over it. Sums
are float32 whatever the operands are (float64 for float64), and logits are never rounded to 16 bits.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fullscale.kernels.contract import Strip
from fullscale.kernels.merging import merge
from fullscale.kernels.problem import Coefficients, Gradients, Head, Kept, Partials, Problem, Statistics, Wanted
from fullscale.kernels.row_blocks import (
    BLOCK,
    add_product,
    aligned,
    full_precision,
    operand,
    padded_rows,
    product,
    strip_sums,
)

__all__ = ["Chunked", "Logits"]


@dataclass(frozen=True, eq=False)
class Logits:
    """Scaled logits of the policy, kept from the forward: a number a row and column of the strips that are."""

    strips: tuple[Tensor, ...]
    """[n, columns] for the first strips; the others are made again."""

    def take(self, index: Tensor) -> "Logits":
        """Return those of some of the rows."""
        return Logits(tuple(z[index] for z in self.strips))


@dataclass(frozen=True)
class Chunked:
    """The CPU's backend, and the GPU's until a fused one is unlocked."""

    name: str = "chunked"
    """How it is asked for."""

    def refusal(self, problem: Problem, *, strict: bool) -> str | None:
        """Return why it cannot do a problem; None if it can."""
        if not strict or not problem.rows:
            return None
        if (reason := full_precision(problem.head.hidden)) is not None:
            return reason
        for head in filter(None, (problem.head, problem.reference)):
            for columns in {len(s) for s in problem.strips}:
                if padded_rows(BLOCK, columns, head.hidden) is None:
                    return (
                        f"in matrix products of {BLOCK} x {head.hidden.shape[1]} x {columns} a row's bits depend on its "
                        "place on this device; pass strict=False"
                    )
        return None

    def keeps(self, wanted: Wanted) -> bool:
        """Return True: the policy's logits, whatever is wanted of them."""
        return True

    def partials(
        self, problem: Problem, wanted: Wanted, *, strict: bool, keep: float = 0.0
    ) -> tuple[Partials, Logits | None]:
        """Reduce every strip; keep the logits of a share of them: their gradient has the very bits of a recomputed one."""
        n, S, like = problem.rows, len(problem.strips), problem.temperature
        both = wanted.reference or wanted.kl

        def column() -> Tensor:
            return like.new_empty(n, S)

        found = Partials(column(), column(), column(), column() if wanted.entropy else None)
        if both:
            more = (column(), column(), column())
            found = Partials(found.top, found.mass, found.target, found.moment, *more, column() if wanted.kl else None)
        kept = []
        for j, (mine, theirs) in enumerate(_strips(problem, strict, reference=both)):
            whole = like.new_empty(n, mine.columns) if j < keep * S else None
            for rows in _blocks(n):
                z, e = mine.logits(rows), mine.scratch(rows)
                if whole is not None:
                    whole[rows] = z
                found.target[rows, j] = mine.of_target(z, rows)
                found.top[rows, j], found.mass[rows, j] = strip_sums(z, e)
                if found.moment is not None:
                    found.moment[rows, j] = torch.linalg.vecdot(e, z)
                if theirs is not None:
                    _reduce_reference(found, theirs, rows, j, z, e)
            if whole is not None:
                kept.append(whole)
        return found, Logits(tuple(kept)) if kept else None

    def merge(self, partials: Partials) -> Statistics:
        """Merge strips in ascending order."""
        return merge(partials)

    def gradients(
        self,
        problem: Problem,
        statistics: Statistics,
        coefficients: Coefficients,
        into: Gradients,
        *,
        strict: bool,
        cached: Kept | None = None,
    ) -> None:
        """Add the gradients: a strip's dlogits block by block, each used at once for both products."""
        slopes = _Slopes.of(problem, statistics, coefficients)
        for j, (mine, theirs) in enumerate(_strips(problem, strict, reference=coefficients.kl is not None)):
            sums = _WeightRows.of(into, mine)
            kept = cached.strips[j] if isinstance(cached, Logits) and j < len(cached.strips) else None
            for rows in _blocks(problem.rows):
                z = mine.logits(rows) if kept is None else mine.copied(kept[rows])
                dz = slopes.dlogits(z, mine, theirs, rows)
                if into.hidden is not None:
                    add_product(into.hidden[rows], dz, mine.weight)
                if sums is not None:
                    sums.add(dz, mine.hidden(rows))
                if into.bias is not None:
                    into.bias[mine.place] += dz.sum(0)
            if sums is not None:
                sums.finish()


def _blocks(n: int) -> Iterator[slice]:
    for start in range(0, n, BLOCK):
        yield slice(start, min(start + BLOCK, n))


def _strips(problem: Problem, strict: bool, *, reference: bool) -> "Iterator[tuple[_Strip, _Strip | None]]":
    """Yield every strip of the policy's head, with the reference's where it is asked for."""
    space = _Workspace(problem.temperature)
    again = _Workspace(problem.temperature) if reference and problem.reference is not None else None
    for strip in problem.strips:
        theirs = None
        if again is not None and problem.reference is not None:
            theirs = _Strip(problem, problem.reference, strip, again, strict)
        yield _Strip(problem, problem.head, strip, space, strict), theirs


def _reduce_reference(found: Partials, theirs: "_Strip", rows: slice, j: int, centred: Tensor, e: Tensor) -> None:
    """Enter the reference's sums and the cross moment of a block; uses up `centred`, z - m, [b, C]."""
    assert found.reference_top is not None
    assert found.reference_mass is not None
    assert found.reference_target is not None
    r = theirs.logits(rows)
    found.reference_target[rows, j] = theirs.of_target(r, rows)
    found.reference_top[rows, j], found.reference_mass[rows, j] = strip_sums(r, theirs.scratch(rows))
    if found.cross is not None:
        found.cross[rows, j] = torch.linalg.vecdot(e, centred.sub_(r))


class _Workspace:
    """Two buffers of a block's logits, used again for every strip; they grow when a block is padded to more rows."""

    def __init__(self, like: Tensor) -> None:
        self._like, self._buffers = like, [like.new_empty(0), like.new_empty(0)]

    def __call__(self, which: int, rows: int, columns: int) -> Tensor:
        """Return buffer 0 or 1 as [rows, columns]."""
        if self._buffers[which].numel() < rows * columns:
            self._buffers[which] = self._like.new_empty(rows * columns)
        return self._buffers[which][: rows * columns].view(rows, columns)


class _Strip:
    """One strip of one head: its weights as operands, and the scaled logits of a block of rows at a time."""

    def __init__(self, problem: Problem, head: Head, strip: Strip, space: _Workspace, strict: bool) -> None:
        self.columns, self.start = len(strip), strip.start
        self.place = slice(strip.start - problem.first, strip.stop - problem.first)
        self.weight = aligned(operand(head.weight[self.place]))
        self.bias = None if head.bias is None else head.bias[self.place].to(problem.temperature.dtype)
        self.softcap, self.temperature, self.head = problem.softcap, problem.temperature, head
        self._targets, self._space, self._strict = problem.targets, space, strict

    def hidden(self, rows: slice) -> Tensor:
        """Return a block's hidden states as operands, [b, H]."""
        return operand(self.head.hidden[rows])

    def logits(self, rows: slice) -> Tensor:
        """Return a block's scaled logits, [b, C], in a buffer that the next call uses again."""
        x = self.hidden(rows)
        n = x.shape[0]
        if self._strict and (padded := padded_rows(n, self.columns, x)) is not None and padded > n:
            x = torch.cat([x, x.new_zeros(padded - n, x.shape[1])])
        x = aligned(x) if self._strict else x
        z = product(x, self.weight.T, self._space(0, x.shape[0], self.columns))[:n]
        if self.bias is not None:
            z.add_(self.bias)
        if self.softcap is not None:
            z.div_(self.softcap).tanh_().mul_(self.softcap)
        return z.div_(self.temperature[rows, None])

    def copied(self, z: Tensor) -> Tensor:
        """Return kept logits in the buffer, so that they outlive what is done to them."""
        return self._space(0, *z.shape).copy_(z)

    def scratch(self, rows: slice) -> Tensor:
        """Return the other buffer, [b, C]."""
        return self._space(1, rows.stop - rows.start, self.columns)

    def target_columns(self, rows: slice) -> tuple[Tensor, Tensor]:
        """Return whether the target is one of the strip's columns, [b], and at which it would be, [b, 1]."""
        at = self._targets[rows] - self.start
        return (at >= 0) & (at < self.columns), at.clamp(0, self.columns - 1)[:, None]

    def of_target(self, z: Tensor, rows: slice) -> Tensor:
        """Return the logits of the targets, 0 where they are elsewhere, [b]."""
        here, at = self.target_columns(rows)
        return torch.where(here, z.gather(1, at)[:, 0], 0)


@dataclass(frozen=True, eq=False)
class _Slopes:
    """The dlogits of a row as a line in its log-probs: -p (base + slope ln p + kl ln r), and `logp` at the target."""

    statistics: Statistics
    base: Tensor
    slope: Tensor | None
    kl: Tensor | None
    logp: Tensor | None

    @classmethod
    def of(cls, problem: Problem, statistics: Statistics, coefficients: Coefficients) -> "_Slopes":
        """Gather g + h H + k KL, h - k, k and g, each over the temperature."""
        base, slope, kl = torch.zeros_like(problem.temperature), None, None
        if coefficients.logp is not None:
            base = base + coefficients.logp
        if coefficients.entropy is not None and statistics.entropy is not None:
            base = base + coefficients.entropy * statistics.entropy
            slope = coefficients.entropy
        if coefficients.kl is not None and statistics.kl is not None:
            base = base + coefficients.kl * statistics.kl
            slope = -coefficients.kl if slope is None else slope - coefficients.kl
            kl = coefficients.kl

        def scaled(x: Tensor | None) -> Tensor | None:
            return None if x is None else x / problem.temperature

        return cls(statistics, base / problem.temperature, scaled(slope), scaled(kl), scaled(coefficients.logp))

    def dlogits(self, z: Tensor, mine: _Strip, theirs: _Strip | None, rows: slice) -> Tensor:
        """Return the derivative by the raw logits of a block, [b, C]; uses up z."""
        found = self.statistics
        slant = None
        if mine.softcap is not None:  # d capped / d raw = 1 - (capped / softcap)^2, and capped = z temperature
            slant = (z * (mine.temperature[rows, None] / mine.softcap)).square_().neg_().add_(1)
        lp = z.sub_(found.top[rows, None]).sub_(found.log_mass[rows, None])
        p = torch.exp(lp, out=mine.scratch(rows))
        base = self.base[rows, None]
        line = base if self.slope is None else torch.addcmul(base, lp, self.slope[rows, None], out=lp)
        if self.kl is not None and theirs is not None:
            assert found.reference_top is not None
            assert found.reference_log_mass is not None
            lr = theirs.logits(rows).sub_(found.reference_top[rows, None]).sub_(found.reference_log_mass[rows, None])
            line = line.addcmul_(lr, self.kl[rows, None])
        dz = p.mul_(line).neg_()
        if self.logp is not None:
            here, at = mine.target_columns(rows)
            dz.scatter_add_(1, at, torch.where(here, self.logp[rows], 0)[:, None])
        return dz if slant is None else dz.mul_(slant)


class _WeightRows:
    """The gradient of a strip's rows of the weight, summed in working precision."""

    def __init__(self, target: Tensor, accumulate: bool, like: Tensor) -> None:
        self._target, self._accumulate = target, accumulate
        direct = target.dtype == like.dtype and target.is_contiguous()
        self._sum = target if direct else torch.empty_like(target, dtype=like.dtype)
        self._fresh = not (direct and accumulate)

    @classmethod
    def of(cls, into: Gradients, mine: _Strip) -> "_WeightRows | None":
        """Return the sum for a strip; None where nobody asks."""
        return None if into.weight is None else cls(into.weight[mine.place], into.accumulate, mine.temperature)

    def add(self, dz: Tensor, hidden: Tensor) -> None:
        """Add dz.T @ hidden, [C, H] of [b, C] and [b, H]."""
        if not self._fresh:
            add_product(self._sum, dz.T, hidden)
        elif hidden.dtype == self._sum.dtype:
            torch.mm(dz.T, hidden, out=self._sum)
        else:
            self._sum.copy_(product(dz.T.to(hidden.dtype), hidden))
        self._fresh = False

    def finish(self) -> None:
        """Bring the sum to where it belongs; zero where there were no rows."""
        if self._fresh:
            self._sum.zero_()
        if self._sum is not self._target:
            if self._accumulate:
                self._target.add_(self._sum)
            else:
                self._target.copy_(self._sum)
