"""Memory that a backend allocates without filling is filled for it, so that an element it never writes cannot pass."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Poisoned"]

_aten = torch.ops.aten
_UNFILLED = {_aten.empty, _aten.empty_like, _aten.empty_strided, _aten.new_empty, _aten.new_empty_strided}


class Poisoned(TorchDispatchMode):
    """While it lasts, memory from `torch.empty` and its kin holds NaN, or the largest integer; in a backward too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`; fill what it made if it is of that kind."""
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in _UNFILLED:
            made.fill_(_poison(made.dtype))
        return made


def _poison(dtype: torch.dtype) -> float:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.nan
    return True if dtype == torch.bool else torch.iinfo(dtype).max
