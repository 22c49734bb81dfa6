"""From numbers to a latency law: the fit of a family, how far off it is, and which of several is nearest.

A fit is a record: the law, the number of values, the Kolmogorov-Smirnov
distance and the quantiles of both. Values are fitted as if independent; what follows in time (bursts, a day's rhythm) is
not in a law. Units are those of the values, so a law of tokens is in tokens.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.cluster.families import FAMILIES, Family, TraceError, log_normal
from sim.mdp.latency import Empirical, Latency, percentile_s, survivals
from sim.records.config import config, flatten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "LEAST",
    "BestFit",
    "Fit",
    "best_fit",
    "fit",
    "fit_figure",
    "ks_distance",
    "replay",
]

F64 = NDArray[np.float64]

LEAST = 20
"""Fewest values a fit is made of: below it the p90 rests on one or two of them (ours)."""
_SHOWN = (0.5, 0.9, 0.99)
_EXPECTED_KS = (
    0.8687  # mean of the Kolmogorov distribution, sqrt(pi / 2) log 2: sqrt(n) KS of n draws from the law itself
)


@config
class Fit:
    """A law fitted to values."""

    family: str
    """Which family, with the constants chosen for it."""
    law: Latency
    """The fitted law."""
    n: int
    """Values it was fitted to."""
    left_out: int
    """Values at or below `above`, of which the law says nothing."""
    ks: float
    """Kolmogorov-Smirnov distance sup_t |F_n(t) - F(t)|, in sample; of the fitted values."""
    quantiles: tuple[tuple[float, float, float], ...]
    """(p, quantile of the values, quantile of the law) at p50, p90 and p99."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The numbers of the law, by path."""
        return {path: x for path, x in flatten(self.law).items() if path.rpartition(".")[2] != "type"}

    @property
    def ks_expected(self) -> float:
        """The mean KS distance of n draws from a continuous law to that law; less where its parameters were fitted."""
        return _EXPECTED_KS / self.n**0.5

    def quantile_error(self, p: float) -> float:
        """Return (quantile of the law) / (quantile of the values) - 1 at p = 0.5, 0.9 or 0.99; inf over a quantile of 0."""
        data, law = next((d, q) for shown, d, q in self.quantiles if shown == p)
        return law / data - 1 if data > 0 else (0.0 if law == 0 else np.inf)

    def words(self) -> str:
        """Return the fit in one line."""
        numbers = ", ".join(f"{path} {value:.4g}" for path, value in self.parameters.items() if value is not None)
        errors = ", ".join(f"p{100 * p:g} {100 * self.quantile_error(p):+.1f}%" for p, _, _ in self.quantiles)
        left = f" ({self.left_out} below left out)" if self.left_out else ""
        return (
            f"{self.family}: {numbers}; n = {self.n}{left}; KS {self.ks:.4f} (chance alone about "
            f"{self.ks_expected:.4f}); law against values at {errors}"
        )


@config
class BestFit:
    """The nearest of several fits, with all that were tried.

    The distance is in sample, so that more tries always look better, and it is nearly blind to the tail: where waiting is
    what matters, read the quantile errors too.
    """

    best: Fit
    """The fit of the least KS distance."""
    tried: tuple[Fit, ...]
    """Every fit, nearest first."""
    refused: tuple[str, ...]
    """Why a family could not be fitted, one sentence each."""

    def words(self) -> str:
        """Return all fits, one a line, with how many constants were tried."""
        count = len(self.tried) + len(self.refused)
        lines = [f"nearest by KS of {count} tried", *(f.words() for f in self.tried)]
        return "\n".join([*lines, *(f"refused: {why}" for why in self.refused)])


def fit(values: ArrayLike, family: Family = log_normal, *, above: float | None = None) -> Fit:
    """Return the law of `family` fitted to `values` [n], or to those above a threshold.

    >>> from sim.cluster.families import exponential
    >>> fit(np.arange(1.0, 41.0), exponential).law
    Exponential(mean=20.5)

    Raises
    ------
    TraceError
        For fewer than 20 values, values that are all equal, negative, NaN or infinite, and zeros where the family takes
        logarithms.
    """
    every = np.sort(_checked(values))  # so that not even a rounding depends on the order
    kept = every if above is None else every[every > above]
    if len(kept) < LEAST:
        where = "" if above is None else f" above {above}"
        raise TraceError(f"{len(kept)} values{where} are too few for a fit, which needs {LEAST}; use replay(values)")
    if kept.min() == kept.max():
        raise TraceError(f"all {len(kept)} values equal {kept[0]:g}; use Constant({kept[0]:g})")
    law = family(kept)
    if problem := law.problem():
        raise TraceError(f"{_name(family)} gives no law of {len(kept)} values: {problem}")
    quantiles = tuple(
        (p, float(np.quantile(kept, p, method="inverted_cdf")), float(percentile_s(law, p))) for p in _SHOWN
    )
    return Fit(_name(family), law, len(kept), len(every) - len(kept), ks_distance(law, kept), quantiles)


def best_fit(values: ArrayLike, families: Sequence[Family] = FAMILIES, *, above: float | None = None) -> BestFit:
    """Return the fit of the least KS distance, with all that were tried.

    Raises
    ------
    TraceError
        When no family can be fitted; the message has every reason.
    """
    tried, refused = [], []
    for family in families:
        try:
            tried.append(fit(values, family, above=above))
        except TraceError as error:
            refused.append(f"{_name(family)}: {error}")
    if not tried:
        raise TraceError(f"none of {len(families)} families can be fitted: {'; '.join(dict.fromkeys(refused))}")
    tried.sort(key=lambda f: f.ks)
    return BestFit(tried[0], tuple(tried), tuple(refused))


def replay(values: ArrayLike) -> Empirical:
    """Return the law that draws the recorded `values` [n] with replacement: no family, and nothing beyond the greatest.

    Raises
    ------
    TraceError
        For no values, or one that is negative, NaN or infinite.
    """
    return Empirical(tuple(_checked(values).tolist()))


def ks_distance(law: Latency, values: ArrayLike) -> float:
    """Return sup_t |F_n(t) - F(t)|, F_n the empirical distribution of `values` [n]; exact where the law has atoms.

    Between two values F_n is constant and F rises, so that the supremum is found just before and at the values.
    """
    at, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
    here = counts.cumsum() / counts.sum()
    before = here - counts / counts.sum()
    off_here = np.abs(here - (1 - survivals(law, at)))
    off_before = np.abs(before - (1 - survivals(law, np.nextafter(at, -np.inf))))
    return float(max(off_here.max(), off_before.max()))


def fit_figure(fits: Fit | Sequence[Fit], values: ArrayLike, *, name: str = "duration", unit: str = "s") -> "Figure":
    """Return the survival function of `values` with those of the fitted laws over it, both axes logarithmic.

    Values at which a fit does not look (:attr:`Fit.left_out`) are not drawn; zeros cannot be, and the title counts them.
    """
    from matplotlib.figure import Figure

    laws = [fits] if isinstance(fits, Fit) else list(fits)
    data = np.sort(_checked(values))[laws[0].left_out :]
    n, zeros = len(data), int(np.sum(data == 0))
    figure = Figure(figsize=(8.2, 4.6), layout="constrained")
    axes = figure.add_subplot()
    at = np.unique(data[data > 0])
    beyond = 1 - np.searchsorted(data, at, side="left") / n  # P(T >= t): the greatest value stays on the picture
    axes.plot(at, beyond, ".", color="#000000", markersize=4, label=f"values, n = {n}")
    grid = np.geomspace(at[0], at[-1], 400)
    for each, colour, dash in zip(laws, _COLOURS * len(laws), ("-", "--", "-.", ":") * len(laws), strict=False):
        drawn = survivals(each.law, np.nextafter(grid, -np.inf))
        shown = drawn >= 0.3 / n  # below it no value can speak for or against a law
        axes.plot(grid[shown], drawn[shown], dash, color=colour, lw=1.8, label=f"{each.family}, KS {each.ks:.3f}")
    axes.set(xscale="log", yscale="log", ylim=(0.3 / n, 1.5))
    axes.set(xlabel=f"{name} t, {unit}", ylabel="P(T ≥ t), share of values")
    axes.set_title(f"{name}, n = {n}" + (f", {zeros} of them 0 and not drawn" if zeros else ""), loc="left")
    axes.legend(frameon=False, loc="lower left")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito: told apart by everyone


def _checked(values: ArrayLike) -> F64:
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or not len(found):
        raise TraceError(f"values of shape {found.shape}; a column of at least 1 is needed")
    bad = np.flatnonzero(~(np.isfinite(found) & (found >= 0)))
    if len(bad):
        raise TraceError(
            f"value {bad[0]} of {len(found)} is {found[bad[0]]}, not a finite number of at least 0 ({len(bad)} such)"
        )
    return found


def _name(family: Family) -> str:
    if isinstance(family, partial):
        return f"{_name(family.func)}({', '.join(f'{k}={v}' for k, v in family.keywords.items())})"
    return getattr(family, "__name__", type(family).__name__)
