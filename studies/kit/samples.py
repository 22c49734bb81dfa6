"""Checks of the data a study hands over: each refuses what a kind cannot serve, and says what would be served."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "FEWEST_SEEDS",
    "DataError",
    "not_binary",
    "one_a_seed",
    "outcomes",
    "paired",
    "same_length",
    "values",
]

FEWEST_SEEDS = 6  # at 5 an exact sign-flip test cannot go below p = .0625, so no result could settle a claim


class DataError(ValueError):
    """The data cannot serve the kind of the claim."""


def values(name: str, given: Any, fewest: int = FEWEST_SEEDS) -> NDArray[np.float64]:
    """Return finite numbers, one a seed  # [n]."""
    array = np.asarray(given)
    if array.dtype == bool or array.dtype.kind not in "iuf":
        raise DataError(f"{name} has type {array.dtype}: it takes numbers, one a seed; for yes or no use rate()")
    array = _one_a_seed(name, array.astype(np.float64), fewest)
    bad = np.flatnonzero(~np.isfinite(array))
    if len(bad):
        raise DataError(
            f"{name}[{bad[0]}] is {array[bad[0]]}: every seed needs a finite number; a time that was not reached goes "
            "to time(), a seed that failed must be repaired or the study stopped"
        )
    return array


def outcomes(name: str, given: Any, fewest: int = FEWEST_SEEDS) -> NDArray[np.bool_]:
    """Return yes or no, one a seed  # [n] bool."""
    array = np.asarray(given)
    if array.dtype != bool:
        if array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all():
            shown = array.ravel()[:4].tolist() if array.size else []
            raise DataError(f"{name} takes True or False, one a seed, not {shown}: compare with a threshold first")
        array = array.astype(bool)
    return _one_a_seed(name, array, fewest)


def _one_a_seed(name: str, array: NDArray[Any], fewest: int) -> NDArray[Any]:
    if array.ndim != 1:
        raise DataError(f"{name} has shape {array.shape}: it takes one entry a seed; reduce over steps first")
    if len(array) < fewest:
        raise DataError(f"{name} has {len(array)} entries; this kind needs {fewest} or more: ask for more seeds")
    return array


_BY_SEED = ("outcomes", "treated", "control", "arms", "differences", "values", "times")  # not the scores of rank()


def one_a_seed(what: str, data: Mapping[str, Any], seeds: int) -> None:
    """Refuse data of a claim that do not hold one entry a seed: several of one seed are not independent."""
    for name in _BY_SEED:
        given = data.get(name)
        for dose, row in given.items() if isinstance(given, Mapping) else [("", given)]:
            if row is not None and len(row) != seeds:
                shown = f"{name}[{dose}]" if isinstance(given, Mapping) else name
                raise DataError(
                    f"{what}: {shown} has {len(row)} entries for {seeds} seeds; pass one a seed, or state the "
                    "claim's seeds="
                )


def same_length(first: str, one: NDArray[Any], second: str, other: NDArray[Any]) -> None:
    """Refuse two arms that are not paired by seed."""
    if len(one) != len(other):
        raise DataError(f"{first} has {len(one)} seeds and {second} has {len(other)}: run both arms on the same seeds")


def not_binary(kind: str, *arrays: NDArray[np.float64]) -> None:
    """Refuse outcomes of 0 and 1, and differences of such, where an interval for numbers is asked for."""
    if all(np.isin(array, (-1.0, 0.0, 1.0)).all() for array in arrays):
        raise DataError(
            f"{kind} was given only -1, 0 and 1: these are yes-or-no outcomes; use rate() for one arm, "
            "rate_difference() for two"
        )


def paired(
    kind: str, differences: Any | None, treated: Any | None, control: Any | None, fewest: int = FEWEST_SEEDS
) -> tuple[NDArray[np.float64], NDArray[np.float64]] | NDArray[np.float64]:
    """Return (treated, control), or the differences when those were given."""
    if differences is not None and treated is None and control is None:
        return values("differences", differences, fewest)
    if differences is None and treated is not None and control is not None:
        one, other = values("treated", treated, fewest), values("control", control, fewest)
        same_length("treated", one, "control", other)
        return one, other
    raise DataError(f"{kind} takes differences=, or treated= and control= of the same seeds")
