"""Which array library an argument belongs to."""

from types import ModuleType
from typing import Any

import array_api_compat
import numpy as np

__all__ = ["array_namespace", "detached"]


def array_namespace(x: Any) -> ModuleType:
    """Return the array API namespace of `x`.

    numpy follows the standard itself since 2.1, so its arrays need no wrapper; the wrapper's calls take as long as a small
    array operation.
    """
    if type(x) is np.ndarray:
        return np
    found: ModuleType = array_api_compat.array_namespace(x)
    return found


def detached(x: Any) -> Any:
    """Return `x` without its gradient: nothing that a rule computes is differentiated."""
    return x.detach() if getattr(x, "requires_grad", False) else x
