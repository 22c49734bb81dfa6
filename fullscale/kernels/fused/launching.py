"""Tensors in, kernels started. Importing this imports Triton, which decides then whether kernels are interpreted."""

import functools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction
from triton.tools.tensor_descriptor import TensorDescriptor

from fullscale.kernels.contract import Strip, Tile
from fullscale.kernels.fused.sources import cached_dlogits, dlogits, forward, kl_dlogits, kl_forward, merge
from fullscale.kernels.fused.tiling import Piece, Plan, elementwise, parts, plan
from fullscale.kernels.problem import Head, Partials, Problem, Statistics

__all__ = ["INTERPRETED", "MERGED_ROWS", "Tiles", "derivatives", "merged", "reduced", "reduced_pair"]

INTERPRETED = isinstance(forward.forward, InterpretedFunction)
"""Whether kernels run in Triton's interpreter, in this process."""
MERGED_ROWS = 64
"""Rows that one program merges."""
_ALIGNMENT = 8


@dataclass(frozen=True, eq=False)
class Tiles:
    """Tiles that the forward kept, of the first strips of a problem.

    bfloat16 operands: 2^(t - k), at most 1, rounded to bfloat16, with k the largest t so far, for each row and part of a
    tile. What is read back has a relative error of 2^-9, so ln p one of 0.002 nats at most, as much as a derivative in
    bfloat16 has. The likeliest token is kept exactly, as 2^0, so that 1 - p has its digits where the policy is sure, and
    the target's logit is known besides. Columns of less than 2^-126 of the probability of the likeliest so far are kept
    as 0. float32 operands: t itself.
    """

    values: Tensor
    """[kept rows, parts x columns of a part]."""
    tops: Tensor | None
    """k, [parts, kept rows]; None where values are t."""
    edges: Tensor
    """First column of each part and one past its last, [parts, 2], int32, counted from the weight's row 0."""
    firsts: tuple[int, ...]
    """First part of each strip that is kept, and one past the last of all."""
    aligned: bool
    """Whether all edges are multiples of 8."""
    index: Tensor
    """Which of the kept rows the problem's rows are, [n], int64."""

    def take(self, index: Tensor) -> "Tiles":
        """Return those of some of the rows; nothing is copied."""
        return replace(self, index=self.index[index])


def reduced(problem: Problem, head: Head, tile: Tile, *, moment: bool, kept: int = 0) -> tuple[Partials, Tiles | None]:
    """Return the partial sums of one head, in bits, and the tiles of its first `kept` strips."""
    n, S = problem.rows, len(problem.strips)
    how = plan(tile, head.hidden.dtype, bias=head.bias is not None)
    top, mass, target = (_floats(problem, n, S) for _ in range(3))
    found = Partials(top, mass, target, _floats(problem, n, S) if moment else None)
    tiles = _tiles(problem, how.tile, kept) if kept else None
    if not n or not S:
        return found, tiles
    part = how.tile.columns // parts(problem.softcap)
    for begin, end, keeping in ((0, kept, tiles), (kept, S, None)):
        if begin < end:
            _launch(
                forward.forward,
                how,
                _blocks(n, how) * (end - begin),
                hidden=_rows_of(head.hidden, how),
                weight=_columns_of(head.weight, how),
                cache=keeping and _descriptor(keeping.values, how.tile.rows, part),
                offset=keeping and keeping.tops,
                bias=head.bias,
                targets=problem.targets,
                temperature=problem.temperature,
                edges=_edges(problem.strips, how.tile.columns, head.hidden.device),
                top_out=found.top,
                mass_out=found.mass,
                target_out=found.target,
                moment_out=found.moment,
                n=n,
                width=head.hidden.shape[1],
                strips=S,
                begin=begin,
                end=end,
                first=problem.first,
                softcap=problem.softcap,
            )
    return found, tiles


def reduced_pair(problem: Problem, reference: Head, tile: Tile, *, moment: bool) -> Partials:
    """Return the partial sums of the policy and of the reference, with their cross moment, in bits."""
    n, S, head = problem.rows, len(problem.strips), problem.head
    how = plan(tile, head.hidden.dtype, heads=2, bias=head.bias is not None or reference.bias is not None)
    top, mass, target, top_r, mass_r, target_r, cross = (_floats(problem, n, S) for _ in range(7))
    found = Partials(top, mass, target, _floats(problem, n, S) if moment else None, top_r, mass_r, target_r, cross)
    if n and S:
        _launch(
            kl_forward.kl_forward,
            how,
            _blocks(n, how) * S,
            **_two_heads(head, reference, how),
            targets=problem.targets,
            temperature=problem.temperature,
            edges=_edges(problem.strips, how.tile.columns, head.hidden.device),
            top_out=found.top,
            mass_out=found.mass,
            target_out=found.target,
            moment_out=found.moment,
            reference_top_out=found.reference_top,
            reference_mass_out=found.reference_mass,
            reference_target_out=found.reference_target,
            cross_out=found.cross,
            n=n,
            strips=S,
            first=problem.first,
            softcap=problem.softcap,
        )
    return found


def merged(partials: Partials) -> Statistics:
    """Return what each row comes to, in nats."""
    given = {name: None if x is None else x.contiguous() for name, x in vars(partials).items()}
    n, S = partials.top.shape

    def row(like: Tensor | None) -> Tensor | None:
        return None if like is None else partials.top.new_empty(n)

    top, log_mass, logp = (partials.top.new_empty(n) for _ in range(3))
    top_r, log_mass_r, logp_r = (row(partials.reference_top) for _ in range(3))
    found = Statistics(top, log_mass, logp, row(partials.moment), top_r, log_mass_r, logp_r, row(partials.cross))
    if n and S:
        grid = (-(-n // MERGED_ROWS),)
        outputs = {f"{name}_out": x for name, x in vars(found).items()}
        with _on(partials.top.device):
            merge.merge[grid](**given, **outputs, n=n, strips=S, ROWS=MERGED_ROWS, **elementwise(Tile()).options)
    return found


def derivatives(
    problem: Problem, piece: Piece, scalars: Tensor, tile: Tile, *, pair: bool, tiles: Tiles | None
) -> Tensor:
    """Return dz of a piece's columns, [n, size], in the dtype of the operands.

    Parameters
    ----------
    scalars
        As :func:`fullscale.kernels.fused.sources.kl_dlogits.kl_dlogits` takes them if `pair`, else as
        :func:`fullscale.kernels.fused.sources.dlogits.dlogits` does.
    pair
        Whether the reference head has a part in them.
    tiles
        What the forward kept of the piece; None to recompute.
    """
    head, n = problem.head, problem.rows
    stride = -(-piece.size // _ALIGNMENT) * _ALIGNMENT  # rows at multiples of 16 bytes
    dz = head.hidden.new_empty(n, stride)[:, : piece.size]
    common = {
        "targets": problem.targets,
        "temperature": problem.temperature,
        "scalars": scalars,
        "n": n,
        "start": piece.start,
        "first": problem.first,
        "softcap": problem.softcap,
    }
    if tiles is not None:
        _from_tiles(dz, piece, tile, tiles, common)
        return dz
    biases = [head.bias] if not pair or problem.reference is None else [head.bias, problem.reference.bias]
    how = plan(tile, head.hidden.dtype, heads=len(biases), bias=any(b is not None for b in biases))
    items = _blocks(n, how) * -(-piece.size // how.tile.columns)
    out = _descriptor(dz, how.tile.rows, how.tile.columns // 4)
    if pair and problem.reference is not None:
        two = _two_heads(head, problem.reference, how)
        _launch(kl_dlogits.kl_dlogits, how, items, dz=out, size=piece.size, **two, **common)
    else:
        one = {"hidden": _rows_of(head.hidden, how), "weight": _columns_of(head.weight, how), "bias": head.bias}
        _launch(dlogits.dlogits, how, items, dz=out, size=piece.size, width=head.hidden.shape[1], **one, **common)
    return dz


def _from_tiles(dz: Tensor, piece: Piece, tile: Tile, tiles: Tiles, common: dict[str, Any]) -> None:
    """Fill `dz` from kept tiles."""
    begin, end = tiles.firsts[piece.strips.start], tiles.firsts[piece.strips.stop]
    how = elementwise(tile)
    rows = how.tile.rows
    with _on(dz.device):
        cached_dlogits.cached_dlogits[(-(-dz.shape[0] // rows), end - begin)](
            cache=tiles.values,
            offset=tiles.tops,
            index=tiles.index,
            edges=tiles.edges,
            dz=dz,
            kept_rows=tiles.values.shape[0],
            stride=tiles.values.stride(0),
            tile_first=begin,
            dz_stride=dz.stride(0),
            ROWS=rows,
            COLUMNS=tiles.values.shape[1] // len(tiles.edges),
            ALIGNED=_ALIGNMENT if tiles.aligned else 1,
            INTERPRET=INTERPRETED,
            **how.options,
            **common,
        )


def _tiles(problem: Problem, tile: Tile, kept: int) -> Tiles:
    """Return room for the tiles of the first `kept` strips."""
    hidden, n = problem.head.hidden, problem.rows
    part = tile.columns // parts(problem.softcap)
    edges, firsts = _parts(problem.strips[:kept], tile.columns, part, hidden.device)
    exact = hidden.dtype == torch.float32
    return Tiles(
        values=hidden.new_empty(n, len(edges) * part),
        tops=None if exact else _floats(problem, len(edges), n),
        edges=edges,
        firsts=firsts,
        aligned=all(s.start % _ALIGNMENT == 0 and s.stop % _ALIGNMENT == 0 for s in problem.strips[:kept])
        and problem.first % _ALIGNMENT == 0,
        index=torch.arange(n, device=hidden.device),
    )


def _launch(kernel: Any, how: Plan, items: int, **arguments: Any) -> None:
    """Start a kernel over tiles: a program a processor, which do all pieces of work in turn."""
    device = arguments["targets"].device
    programs = items if INTERPRETED else min(items, _processors(device))
    with _on(device):
        kernel[(programs,)](
            **arguments,
            ROWS=how.tile.rows,
            COLUMNS=how.tile.columns,
            DEPTH=how.tile.depth,
            INTERPRET=INTERPRETED,
            **how.options,
        )


def _two_heads(head: Head, reference: Head, how: Plan) -> dict[str, Any]:
    return {
        "hidden": _rows_of(head.hidden, how),
        "weight": _columns_of(head.weight, how),
        "bias": head.bias,
        "width": head.hidden.shape[1],
        "reference_hidden": _rows_of(reference.hidden, how),
        "reference_weight": _columns_of(reference.weight, how),
        "reference_bias": reference.bias,
        "reference_width": reference.hidden.shape[1],
    }


def _rows_of(hidden: Tensor, how: Plan) -> Any:
    return _descriptor(hidden, how.tile.rows, how.tile.depth)


def _columns_of(weight: Tensor, how: Plan) -> Any:
    return _descriptor(weight, how.tile.columns, how.tile.depth)


def _descriptor(x: Tensor, rows: int, columns: int) -> Any:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [rows, columns])


def _floats(problem: Problem, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=problem.head.hidden.device)


def _blocks(n: int, how: Plan) -> int:
    return -(-n // how.tile.rows)


@contextmanager
def _on(device: torch.device) -> Iterator[None]:
    """Start kernels on a card; or in NumPy, which is not to warn of -inf and NaN, as a card would not."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            yield
    else:
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            yield


@functools.cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@functools.lru_cache(maxsize=64)
def _edges(strips: Sequence[Strip], columns: int, device: torch.device) -> Tensor:
    """Return first columns, columns past the last and tiles before, of every strip, [3, S], int32."""
    starts = [s.start - strips[0].start for s in strips]
    stops = [s.stop - strips[0].start for s in strips]
    before = [0]
    for s in strips[:-1]:
        before.append(before[-1] + -(-len(s) // columns))
    return torch.tensor([starts, stops, before], dtype=torch.int32, device=device)


@functools.lru_cache(maxsize=64)
def _parts(strips: Sequence[Strip], columns: int, part: int, device: torch.device) -> tuple[Tensor, tuple[int, ...]]:
    """Return `edges` and `firsts` of :class:`Tiles`. Where a strip's last tile sticks out, so do some of its parts."""
    edges: list[tuple[int, int]] = []
    firsts = [0]
    for s in strips:
        stop = s.stop - strips[0].start
        for start in range(s.start - strips[0].start, stop, columns):
            edges += [(begin, stop) for begin in range(start, start + columns, part)]
        firsts.append(len(edges))
    return torch.tensor(edges, dtype=torch.int32, device=device), tuple(firsts)
