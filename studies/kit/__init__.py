"""What a study is written with: claims, kinds, regions, predictions, and the record of a verdict.

The names below are loaded on first use, so that pytest can import the plugin in this package without numpy, scipy or
matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from studies.kit.claims import Claim, ClaimError, Control, Prediction, claim
    from studies.kit.finding import ControlFinding, Finding
    from studies.kit.fixture import Study
    from studies.kit.kinds import agreement, bootstrap, identity, mean, median, rank, rate, rate_difference, time, trend
    from studies.kit.regions import Region, above, below, within
    from studies.kit.samples import DataError

__all__ = [
    "Claim",
    "ClaimError",
    "Control",
    "ControlFinding",
    "DataError",
    "Finding",
    "Prediction",
    "Region",
    "Study",
    "above",
    "agreement",
    "below",
    "bootstrap",
    "claim",
    "identity",
    "mean",
    "median",
    "rank",
    "rate",
    "rate_difference",
    "time",
    "trend",
    "within",
]

_HOMES = {
    "claims": ("Claim", "ClaimError", "Control", "Prediction", "claim"),
    "finding": ("ControlFinding", "Finding"),
    "fixture": ("Study",),
    "kinds": (
        "agreement",
        "bootstrap",
        "identity",
        "mean",
        "median",
        "rank",
        "rate",
        "rate_difference",
        "time",
        "trend",
    ),
    "regions": ("Region", "above", "below", "within"),
    "samples": ("DataError",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from the module that defines it (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
