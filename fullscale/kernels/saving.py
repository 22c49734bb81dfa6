"""Records between forward and backward, their tensors where autograd keeps its own.

Autograd notices when a tensor that it keeps was changed in place, and lets go of them as soon as the backward is done.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from torch import Tensor

__all__ = ["restore", "save"]


@dataclass(frozen=True)
class _Place:
    """Stands for a tensor that is kept elsewhere."""

    index: int


def save(ctx: Any, *records: Any) -> None:
    """Keep records (frozen dataclasses, tensors, tuples, None) for the backward of an autograd function; once a forward."""
    tensors: list[Tensor] = []
    ctx.records = _emptied(records, tensors)
    ctx.save_for_backward(*tensors)


def restore(ctx: Any) -> tuple[Any, ...]:
    """Return the records that were saved.

    Raises
    ------
    RuntimeError
        From autograd: when a tensor was changed in place since, or was let go of by an earlier backward.
    """
    found: tuple[Any, ...] = _filled(ctx.records, ctx.saved_tensors)
    return found


# No closures here: one that calls itself is a cycle, and would hold on to the tensors until the collector runs.


def _emptied(x: Any, tensors: list[Tensor]) -> Any:
    if isinstance(x, Tensor):
        tensors.append(x)
        return _Place(len(tensors) - 1)
    return _each(x, _emptied, tensors)


def _filled(x: Any, tensors: tuple[Tensor, ...]) -> Any:
    return tensors[x.index] if isinstance(x, _Place) else _each(x, _filled, tensors)


def _each(x: Any, put: Any, tensors: Any) -> Any:
    """Return `x` with `put` done to its parts; itself where it has none."""
    if isinstance(x, tuple):
        return tuple(put(part, tensors) for part in x)
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: put(getattr(x, f.name), tensors) for f in fields(x)})
    return x
