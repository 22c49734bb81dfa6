"""The border: what a caller passes is checked here, by name and bound, and becomes a problem of the rows that count."""

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fullscale.kernels.contract import shard, strips
from fullscale.kernels.problem import Head, Problem
from fullscale.kernels.row_blocks import working_dtype

__all__ = ["Arguments", "Checked", "gathered", "problem_of", "shape"]

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32)
SMALLEST, LARGEST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max


@dataclass(frozen=True, eq=False)
class Arguments:
    """What a call of `linear_logprob` or `head_loss` has beside hidden states, weight and bias."""

    targets: Tensor
    """[M], ids."""
    temperature: float | Tensor = 1.0
    """One number or [M]."""
    rows: Tensor | None = None
    """Rows that count, [n]; None for all."""
    softcap: float | None = None
    """As in `Problem`."""
    reference: Head | None = None
    """With hidden states [M, H']."""
    group: Any = None
    """Process group over which the vocabulary is split."""
    vocabulary: int | None = None
    """Columns of the whole, where it is split."""


@dataclass(frozen=True, eq=False)
class Checked:
    """A problem, and where its rows come from."""

    problem: Problem
    """Of the rows that count."""
    rows: Tensor | None
    """Which those are, [n], int64, on the device; None for all."""
    bad: Tensor | None
    """On CUDA, whether a row's target is none of the vocabulary's, [n], bool: the caller poisons the row."""


def problem_of(hidden: Tensor, weight: Tensor, bias: Tensor | None, given: Arguments) -> Checked:
    """Return the problem of the rows that count.

    A target outside the vocabulary is an error here on a CPU; a GPU would have to be waited for.

    Raises
    ------
    TypeError
        For what is not a tensor of the right kind.
    ValueError
        For shapes, devices and values out of bounds; each names the argument, its value and the bound.
    """
    M, H = shape("hidden", hidden, ("M", "H"))
    _floating("hidden", hidden)
    V, _ = shape("weight", weight, ("V", "H"), (None, H))
    _same("weight", weight, "hidden", hidden)
    if bias is not None:
        shape("bias", bias, ("V",), (V,))
        _bias("bias", bias, hidden)
    rank, ranks = (0, 1) if given.group is None else (dist.get_rank(given.group), dist.get_world_size(given.group))
    whole = _vocabulary(V, rank, ranks, given)
    rows = _rows(given.rows, M, hidden)
    targets, bad = _targets(given.targets, rows, M, whole, hidden)
    dtype = working_dtype(hidden.dtype)
    problem = Problem(
        head=Head(gathered(hidden, rows), weight, bias),
        targets=targets,
        temperature=_temperature(given.temperature, rows, M, hidden).to(dtype),
        strips=strips(whole, rank, ranks),
        softcap=_softcap(given.softcap),
        reference=_reference(given.reference, rows, M, V, hidden),
    )
    return Checked(problem, rows, bad)


def shape(name: str, x: Any, letters: tuple[str, ...], sizes: tuple[int | None, ...] | None = None) -> tuple[int, ...]:
    """Return a tensor's shape, which must have as many axes as `letters` and the sizes that are given."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor [{', '.join(letters)}], not {type(x).__name__}")
    sizes = sizes or (None,) * len(letters)
    if x.ndim != len(letters) or any(s is not None and s != n for s, n in zip(sizes, x.shape, strict=True)):
        wanted = ", ".join(a if s is None else f"{a} = {s}" for a, s in zip(letters, sizes, strict=True))
        flatten = "; flatten batch and position into one axis" if x.ndim > len(letters) else ""
        raise ValueError(f"{name} has shape {tuple(x.shape)} and must be [{wanted}]{flatten}")
    return tuple(x.shape)


def _floating(name: str, x: Tensor) -> None:
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} is {_name(x)}; it must be one of {', '.join(str(d)[6:] for d in FLOATS)}")


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _device(name: str, x: Tensor, like: Tensor) -> None:
    if x.device != like.device:
        raise ValueError(f"{name} is on {x.device} and hidden on {like.device}; move one of them")


def _same(name: str, x: Tensor, other: str, like: Tensor) -> None:
    _floating(name, x)
    _device(name, x, like)
    if x.dtype != like.dtype:
        raise TypeError(
            f"{name} is {_name(x)} and {other} {_name(like)}; cast one of them: nothing is widened silently"
        )


def _bias(name: str, bias: Tensor, like: Tensor) -> None:
    _floating(name, bias)
    _device(name, bias, like)
    if not bias.is_cuda and not bool(torch.isfinite(bias).all()):
        raise ValueError(
            f"{name} has entries that are not finite; to forbid a token, leave its column out of the weight"
        )


def _number(name: str, x: Any, way: str) -> float:
    """Return a positive number that float32 can hold."""
    if isinstance(x, bool) or not isinstance(x, Real):
        raise TypeError(f"{name} is a {type(x).__name__}; it must be a number")
    number = float(x)
    if not SMALLEST <= number <= LARGEST:
        raise ValueError(f"{name} = {x} must be positive, {SMALLEST:.2g} to {LARGEST:.2g}; {way}")
    return number


def _vocabulary(V: int, rank: int, ranks: int, given: Arguments) -> int:
    """Return the columns of the whole vocabulary, of which this rank holds V."""
    if given.group is None:
        if given.vocabulary not in (None, V):
            raise ValueError(f"vocabulary = {given.vocabulary}, but the weight has {V} rows and no group shares it")
        if V < 1:
            raise ValueError("weight has no rows: a vocabulary has at least one column")
        return V
    if given.vocabulary is None:
        raise ValueError("with a group, vocabulary= must say how many columns the whole has: shards may be uneven")
    mine = shard(given.vocabulary, rank, ranks)
    if len(mine) != V:
        raise ValueError(
            f"weight has {V} rows; rank {rank} of {ranks} holds columns {mine.start} .. {mine.stop - 1} of "
            f"{given.vocabulary}, {len(mine)} rows (fullscale.kernels.contract.shard says which)"
        )
    return given.vocabulary


def _rows(rows: Tensor | None, M: int, hidden: Tensor) -> Tensor | None:
    if rows is None:
        return None
    shape("rows", rows, ("n",))
    if rows.dtype not in INTEGERS:
        raise TypeError(f"rows is {_name(rows)}; it holds indices, int32 or int64 (of a mask: mask.nonzero()[:, 0])")
    if not rows.is_cuda and rows.numel():  # the host knows its loss mask, so this costs no wait for a GPU
        low, high = int(rows.min()), int(rows.max())
        if low < 0 or high >= M:
            raise ValueError(f"rows holds {low if low < 0 else high}; indices must lie in 0 .. {M - 1}")
        if rows.unique().numel() != rows.numel():
            raise ValueError("rows names a row twice, whose gradient would be counted once; each row at most once")
    return rows.to(hidden.device, torch.int64, non_blocking=True, copy=True)  # a loader may fill its buffer again


def gathered(x: Tensor, rows: Tensor | None) -> Tensor:
    """Return the rows of `x`, one after the other in memory; `x` itself where that is what it is."""
    return x.contiguous() if rows is None else x.index_select(0, rows.to(x.device, torch.int64))


def _targets(
    targets: Tensor, rows: Tensor | None, M: int, vocabulary: int, hidden: Tensor
) -> tuple[Tensor, Tensor | None]:
    shape("targets", targets, ("M",), (M,))
    if targets.dtype not in INTEGERS:
        raise TypeError(f"targets is {_name(targets)}; ids are int32 or int64")
    _device("targets", targets, hidden)
    kept = gathered(targets, rows).to(torch.int64)
    kept = kept.clone() if kept.data_ptr() == targets.data_ptr() else kept  # a loader may fill its buffer again
    bad = (kept < 0) | (kept >= vocabulary)
    if kept.is_cuda:
        return kept, bad
    if bool(bad.any()):
        at = int(bad.nonzero()[0, 0])
        where = at if rows is None else int(rows[at])
        raise ValueError(
            f"targets[{where}] = {int(kept[at])} is not in the vocabulary, 0 .. {vocabulary - 1}; leave rows that have no "
            "target out with rows="
        )
    return kept, None


def _temperature(temperature: float | Tensor, rows: Tensor | None, M: int, hidden: Tensor) -> Tensor:
    if not isinstance(temperature, Tensor):
        temperature = _number("temperature", temperature, "greedy decoding has no log-probs to compare")
        n = M if rows is None else rows.shape[0]
        return torch.full((n,), temperature, dtype=torch.float64, device=hidden.device)
    shape("temperature", temperature, ("M",), (M,))
    _floating("temperature", temperature)
    if temperature.requires_grad:
        raise ValueError("temperature would need a gradient, which is not computed; pass temperature.detach()")
    _device("temperature", temperature, hidden)
    kept = gathered(temperature, rows)
    if not kept.is_cuda:
        wrong = ~((kept >= SMALLEST) & (kept <= LARGEST))
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0, 0])
            where = at if rows is None else int(rows[at])
            raise ValueError(f"temperature[{where}] = {float(kept[at])} must be positive and finite in float32")
    return kept.clone() if kept.data_ptr() == temperature.data_ptr() else kept


def _softcap(softcap: float | None) -> float | None:
    return None if softcap is None else _number("softcap", softcap, "None for no cap")


def _reference(reference: Head | None, rows: Tensor | None, M: int, V: int, hidden: Tensor) -> Head | None:
    if reference is None:
        return None
    if not isinstance(reference, Head):
        raise TypeError(f"reference is a {type(reference).__name__}; it must be a Head(hidden, weight, bias)")
    _, H = shape("reference.hidden", reference.hidden, ("M", "H'"), (M, None))
    shape("reference.weight", reference.weight, ("V", "H'"), (V, H))
    _same("reference.hidden", reference.hidden, "hidden", hidden)
    _same("reference.weight", reference.weight, "hidden", hidden)
    bias = reference.bias
    if bias is not None:
        shape("reference.bias", bias, ("V",), (V,))
        _bias("reference.bias", bias, hidden)
        bias = bias.detach()
    return Head(gathered(reference.hidden.detach(), rows), reference.weight.detach(), bias)
