"""How compiled functions are made, and how they reach their tables.

Every compiled function takes the world, one record that holds all counters and the *addresses* of all tables; a table's
record is reached by address and index. So a call passes one pointer however many tables there are, and a table may be
replaced by a larger one between two calls of the kernel. No bounds are checked: the kernel leaves room before it acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    import numba
    from numba.extending import intrinsic
except ModuleNotFoundError as error:
    raise ImportError("the compiled engine needs numba: pip install 'metastable[fast]'") from error

__all__ = ["Record", "compiled", "pointer"]

Record = Any
"""A record in a table, which mypy cannot look into."""


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function that only compiled functions call, once for each combination of record, integer and real arguments.

    Floating point is as in Python to the last bit: no fastmath. numba would compile anew for each constant that is passed;
    here a constant or truth value is an int64 like any other.
    """
    options: dict[str, Any] = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    made: Any = numba.njit(**options)(function)
    template = made.get_call_template
    made.get_call_template = lambda args, kws: template(tuple(map(_plain, args)), kws)
    return made


def _plain(kind: Any) -> Any:
    kind = numba.types.unliteral(kind)
    return numba.types.int64 if isinstance(kind, numba.types.Integer | numba.types.Boolean) else kind


def pointer(dtype: np.dtype[Any]) -> Any:
    """Return a function (address, index) for compiled code: the record at that place of a table of `dtype`."""
    record = numba.from_dtype(dtype)
    size = dtype.itemsize

    @intrinsic
    def at(_typing: Any, _address: Any, _index: Any) -> Any:
        def code(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            offset = builder.mul(args[1], args[1].type(size))
            return builder.inttoptr(builder.add(args[0], offset), context.get_value_type(record))

        return record(numba.types.int64, numba.types.int64), code

    return at
