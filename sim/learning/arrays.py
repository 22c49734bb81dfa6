"""Which array library an argument belongs to, without the cost of asking for numpy arrays."""

from types import ModuleType
from typing import Any

import array_api_compat
import array_api_compat.numpy
import numpy as np

__all__ = ["array_namespace"]


def array_namespace(x: Any) -> ModuleType:
    """Return the array API namespace of `x`; the general look-up takes as long as a small array operation."""
    if type(x) is np.ndarray:
        return array_api_compat.numpy
    found: ModuleType = array_api_compat.array_namespace(x)
    return found
