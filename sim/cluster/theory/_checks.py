"""What numbers of a closed form may be; each error names the value and the bound."""

import math

__all__ = ["count", "non_negative", "positive", "share", "stable"]


def positive(**values: float) -> None:
    """Refuse a value that is not a finite number above 0, by its name."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} = {value} must be a finite number above 0")


def non_negative(**values: float) -> None:
    """Refuse a value that is not a finite number of at least 0, by its name."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} = {value} must be a finite number of at least 0")


def count(**values: int) -> None:
    """Refuse a value below 1, by its name."""
    for name, value in values.items():
        if value < 1:
            raise ValueError(f"{name} = {value} must be at least 1")


def share(**values: float) -> None:
    """Refuse a value outside 0 to 1, by its name."""
    for name, value in values.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name} = {value} must lie from 0 to 1")


def stable(load: float, name: str) -> float:
    """Return the load, refusing 1 or more: then the queue grows without limit."""
    if not load < 1:
        raise ValueError(
            f"{name} = {load:.6g} must be below 1: work arrives faster than it is done; lower the arrivals"
        )
    return load
