"""The fused backend: forward in one pass without logits in memory, backward by pieces of the vocabulary."""

import importlib.util
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from fullscale.kernels.contract import Tile
from fullscale.kernels.fused.products import add_product, put_product
from fullscale.kernels.fused.tiling import CHUNK, DTYPES, pieces
from fullscale.kernels.problem import Coefficients, Gradients, Head, Kept, Partials, Problem, Statistics, Wanted
from fullscale.kernels.row_blocks import full_precision

if TYPE_CHECKING:
    from fullscale.kernels.fused.launching import Tiles

__all__ = ["Fused"]

_LOG2E, _LN2 = math.log2(math.e), math.log(2)
_OTHERWISE = "or take backend='chunked'"
_CAPABILITY = 9
"""Major compute capability whose registers and shared memory the tiles are cut for: Hopper's."""
_TORCH = "2.10"
"""First torch whose addmm adds to a float32 sum a product of bfloat16."""


@dataclass(frozen=True)
class Fused:
    """Triton kernels: on a Hopper card, or in Triton's interpreter on a CPU.

    Partial sums are in bits: top, target and the moments are log2(e) times what they are in nats. A row's log-prob,
    entropy and KL have the same bits whatever other rows there are and however the vocabulary is split, on one card and
    with one Triton. Gradients are the same from run to run; which product a library takes for them may depend on n.
    A target that no strip of any rank holds gives NaN.
    """

    tile: Tile = field(default_factory=Tile)
    """Of a head without a bias and bfloat16 operands."""
    chunk: int = CHUNK
    """Columns whose derivatives are held at a time."""
    name: str = "triton"
    """How it is asked for."""

    def refusal(self, problem: Problem, *, strict: bool) -> str | None:
        """Return why it cannot do a problem, with the way out; None if it can."""
        if importlib.util.find_spec("triton") is None:
            return f"Triton is not installed; pip install 'triton>=3.6' (Linux only), {_OTHERWISE}"
        reason = _operands(problem) or _device(problem.head.hidden.device)
        return reason or (full_precision(problem.head.hidden) if strict else None)

    def keeps(self, wanted: Wanted) -> bool:
        """Return whether tiles can be kept: not for the exact KL, whose backward would recompute the reference's anyway."""
        return not wanted.kl

    @torch.no_grad()
    def partials(
        self, problem: Problem, wanted: Wanted, *, strict: bool, keep: float = 0.0
    ) -> tuple[Partials, Kept | None]:
        """Reduce every strip; keep the tiles of a share of them, the first ones.

        Raises
        ------
        ValueError
            To keep tiles for the exact KL.
        """
        from fullscale.kernels.fused import launching

        reference = problem.reference
        if reference is not None and wanted.kl:
            if keep:
                raise ValueError(f"keep = {keep} with the exact KL: its backward recomputes both heads; take keep = 0")
            return launching.reduced_pair(problem, reference, self.tile, moment=wanted.entropy), None
        kept = math.ceil(keep * len(problem.strips))
        found, tiles = launching.reduced(problem, problem.head, self.tile, moment=wanted.entropy, kept=kept)
        if reference is None or not wanted.reference:
            return found, tiles
        theirs, _ = launching.reduced(problem, reference, self.tile, moment=False)
        return (
            Partials(found.top, found.mass, found.target, found.moment, theirs.top, theirs.mass, theirs.target),
            tiles,
        )

    @torch.no_grad()
    def merge(self, partials: Partials) -> Statistics:
        """Merge strips in ascending order."""
        from fullscale.kernels.fused import launching

        return launching.merged(partials)

    @torch.no_grad()
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
        """Add the gradients, a piece of the vocabulary after the other: dz, dz^T hidden, dz weight, and dz summed.

        Raises
        ------
        ValueError
            For a coefficient of a scalar that was not computed.
        """
        from fullscale.kernels.fused import launching

        if not problem.rows:
            if into.weight is not None and not into.accumulate:
                into.weight.zero_()
            return
        tiles: Tiles | None = cached if isinstance(cached, launching.Tiles) else None
        scalars = _scalars(problem, statistics, coefficients)
        pair = coefficients.kl is not None
        kept = 0 if tiles is None or pair else len(tiles.firsts) - 1
        hidden, weight = problem.head.hidden, problem.head.weight
        for piece in pieces(problem.strips, kept, self.chunk):
            mine = tiles if piece.strips.start < kept else None
            dz = launching.derivatives(problem, piece, scalars, self.tile, pair=pair, tiles=mine)
            place = slice(piece.start, piece.start + piece.size)
            if into.weight is not None:
                (add_product if into.accumulate else put_product)(into.weight[place], dz.T, hidden)
            if into.hidden is not None:
                add_product(into.hidden, dz, weight[place])
            if into.bias is not None:
                into.bias[place] += dz.sum(0, dtype=torch.float32)


def _scalars(problem: Problem, statistics: Statistics, coefficients: Coefficients) -> Tensor:
    """Return what the derivative's kernels take of each row, [6, n], or [8, n] with a KL; see there."""
    tau = problem.temperature
    g, h, k = (torch.zeros_like(tau) if c is None else c for c in vars(coefficients).values())
    level = g
    if coefficients.entropy is not None:
        level = level + h * _computed(statistics.entropy, "entropy")
    if coefficients.kl is not None:
        level = level + k * _computed(statistics.kl, "kl")
    given = [statistics.top * _LOG2E, statistics.log_mass * _LOG2E, g / tau, level / tau, h * _LN2 / tau]
    if coefficients.kl is None:
        given.append((statistics.logp + statistics.log_mass + statistics.top) * _LOG2E)
    else:
        given.append(-k * _LN2 / tau)
        given.append(_computed(statistics.reference_top, "reference_top") * _LOG2E)
        given.append(_computed(statistics.reference_log_mass, "reference_log_mass") * _LOG2E)
    return torch.stack(given).to(torch.float32)


def _computed(found: Tensor | None, name: str) -> Tensor:
    if found is None:
        raise ValueError(f"a coefficient needs statistics.{name}, which was not wanted of the forward")
    return found


def _operands(problem: Problem) -> str | None:
    """Return what is wrong with the operands."""
    heads: list[tuple[str, Head]] = [("", problem.head)]
    if problem.reference is not None:
        heads.append(("reference ", problem.reference))
    dtype = problem.head.hidden.dtype
    if dtype not in DTYPES:
        return f"hidden is {dtype}, and there are kernels for {_names(DTYPES)} only; convert it, {_OTHERWISE}"
    for whose, head in heads:
        for name, x in (("hidden", head.hidden), ("weight", head.weight)):
            if x.dtype != dtype:
                return f"{whose}{name} is {x.dtype} and hidden {dtype}; convert one of them, {_OTHERWISE}"
            if x.numel() and (reason := _layout(x)) is not None:
                return f"{whose}{name} {reason}, {_OTHERWISE}"
        if head.bias is not None and head.bias.stride(0) != 1:
            return f"{whose}bias has stride {head.bias.stride(0)}; make it contiguous, {_OTHERWISE}"
    return None


def _layout(x: Tensor) -> str | None:
    """Return why a tensor descriptor cannot hold a matrix: rows must be contiguous and begin at multiples of 16 bytes."""
    if x.stride(1) != 1:
        return f"has strides {x.stride()}, its rows are not contiguous; call .contiguous()"
    if x.stride(0) * x.element_size() % 16:
        return (
            f"has rows {x.stride(0) * x.element_size()} bytes apart, no multiple of 16; pad the hidden size from "
            f"{x.shape[1]} to a multiple of {16 // x.element_size()} with zeros"
        )
    if x.data_ptr() % 16:
        return "begins at an address that is no multiple of 16 bytes; call .clone()"
    return None


def _device(device: torch.device) -> str | None:
    """Return why kernels cannot run on a device in this process."""
    from fullscale.kernels.fused import launching

    if device.type == "cpu":
        if launching.INTERPRETED:
            return None
        return (
            "tensors are on the CPU, where kernels run in Triton's interpreter only; set TRITON_INTERPRET=1 before Triton "
            f"is imported, {_OTHERWISE}"
        )
    if device.type != "cuda" or torch.version.hip is not None:
        return f"device {device} is none of NVIDIA's; take backend='chunked'"
    if launching.INTERPRETED:
        return "TRITON_INTERPRET is set, so that kernels would not run on the card; unset it and start again"
    major, minor = torch.cuda.get_device_capability(device)
    if major != _CAPABILITY:
        return f"tiles are cut for compute capability 9.x and {device} has {major}.{minor}; take backend='chunked'"
    if TorchVersion(torch.__version__) < _TORCH:
        return (
            f"torch {torch.__version__} cannot add products of bfloat16 in float32; update it to {_TORCH}, {_OTHERWISE}"
        )
    return None


def _names(dtypes: tuple[torch.dtype, ...]) -> str:
    return " and ".join(str(d).removeprefix("torch.") for d in dtypes)
