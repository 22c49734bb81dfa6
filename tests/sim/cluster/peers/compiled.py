"""Whether the compiled engine is there."""

import importlib.util

import pytest

from sim.cluster.run import compiled_is_there

__all__ = ["compiled_or_skip", "why_not"]


def why_not() -> str:
    """Return why the compiled engine cannot be measured; empty where it can."""
    if not compiled_is_there():
        return "numba is not installed (extra `fast`)"
    return "" if importlib.util.find_spec("sim.cluster.compiled.driver") else "sim.cluster.compiled has no driver"


def compiled_or_skip() -> None:
    if why_not():
        pytest.skip(why_not())
