"""The picture of a sweep: effect over one key or two, what is not settled, and theory's boundary over it."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sim.records.config import replace
from studies.kit.figures import COLOURS, figure, style
from studies.kit.phase.axes import Axis
from studies.kit.phase.ledger import Entry
from studies.kit.phase.sweeps import Swept
from studies.kit.phase.words import shown, tally
from studies.kit.words import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Theory", "diagram", "theory", "title"]

F64 = NDArray[np.float64]
_FINEST = 700  # configs at which theory is asked; a few milliseconds each
_HATCH = {"undecided": "////", "no verdict": "....", "failed": "xxxx"}
_LINES = ("#000000", "#7A7A7A")
_STYLES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")


@dataclass(frozen=True)
class Theory:
    """What theory says over a grid."""

    at: tuple[F64, ...]
    """Values of each key, finer than the sweep's."""
    values: Mapping[str, F64]
    """The function whose zero is the boundary, by name, with one axis for each key; NaN where there is none."""
    here: Mapping[str, F64]
    """The same at the points of the sweep, in their order."""


def theory(swept: Swept) -> Theory | None:
    """Ask the study's ``boundary(config)`` over the grid of a sweep; ``None`` where it has none or a key has no numbers."""
    ask = swept.target.boundary
    if ask is None or len(swept.axes) > 2 or not all(axis.numeric and len(axis.values) > 1 for axis in swept.axes):
        return None

    def value(point: Mapping[str, Any]) -> dict[str, float]:
        try:
            found = ask(replace(swept.base, point))
        except ValueError:
            return {}
        return dict(found) if isinstance(found, Mapping) else {"theory's boundary": float(found)}

    names = [axis.path for axis in swept.axes]
    finer = [_finer(axis, len(swept.axes)) for axis in swept.axes]
    kinds = [type(axis.values[0]) for axis in swept.axes]
    mesh = itertools.product(*finer)
    fine = [value({n: kind(x) for n, kind, x in zip(names, kinds, row, strict=True)}) for row in mesh]
    here = [value(entry.point) for entry in swept.entries]
    labels = list(dict.fromkeys(label for found in here for label in found))
    shape = tuple(len(each) for each in finer)
    return Theory(
        tuple(finer),
        {label: np.array([found.get(label, np.nan) for found in fine]).reshape(shape) for label in labels},
        {label: np.array([found.get(label, np.nan) for found in here]) for label in labels},
    )


def _finer(axis: Axis, keys: int) -> F64:
    """Return the values of an axis in order, with others between them unless they are whole numbers."""
    if type(axis.values[0]) is int:
        return np.sort(np.array(axis.values, dtype=np.float64))
    most = int(_FINEST ** (1 / keys))
    n = len(axis.values)
    parts = max(1, (most - 1) // max(1, n - 1))
    values = np.sort(np.array(axis.values, dtype=np.float64))
    scaled = np.log(values) if axis.log else values
    fine = np.interp(np.arange((n - 1) * parts + 1) / parts, np.arange(n), scaled)
    return np.exp(fine) if axis.log else fine


def title(swept: Swept, claim: str, foreseen: Theory | None) -> str:
    """Return what the sweep found, in a line."""
    found = [entry.of(claim) for entry in swept.entries]
    counts: dict[str, int] = {}
    for each in found:
        if each is not None:
            counts[each.verdict] = counts.get(each.verdict, 0) + 1
    text = tally(counts, len(swept.failed))
    if foreseen is None:
        return f"{text[:1].upper()}{text[1:]}"
    values = next(iter(foreseen.here.values()))
    settled = np.array([each is not None and each.verdict in ("supported", "refuted") for each in found])
    settled &= np.isfinite(values)
    side = np.array([each is not None and each.verdict == "supported" for each in found])
    agree = int((side == (values > 0))[settled].sum())
    return f"{agree} of {int(settled.sum())} settled points lie where theory's line puts them"


def diagram(swept: Swept, claim: str | None = None, foreseen: Theory | None = None) -> "Figure":
    """Draw a claim over one key, as a curve with intervals, or over two, as a map; ``theory`` gives what is foreseen.

    ValueError for a sweep over more keys.
    """
    stated = swept.target.claim(claim)
    if len(swept.axes) > 2:
        raise ValueError(f"a diagram has one key or two, not {len(swept.axes)}; the table has them all")
    with style():
        made, ax = figure(title=title(swept, stated.id, foreseen), size=(8.2, 5.2))
        draw = _map if len(swept.axes) == 2 else _curve
        draw(ax, swept, stated, foreseen)
        made.supxlabel(_caption(swept, stated.id), fontsize=8, color="#555555", x=0.01, ha="left")
    return made


def _caption(swept: Swept, claim: str) -> str:
    region = swept.target.claim(claim).region_at(swept.rung)
    sides = "\nEach side has a colour scale of its own." if len(swept.axes) == 2 and len(region.boundaries) == 1 else ""
    return (
        f"{claim}, supported {region.words}. n={swept.seeds} seeds a point; settled where the 95 % interval lies on one "
        f"side.{sides}"
    )


def _numbers(swept: Swept, claim: str) -> F64:
    """Return the effects in the order of the points; NaN where there is none."""
    found = (entry.of(claim) for entry in swept.entries)
    values = [np.nan if each is None or each.effect is None else each.effect for each in found]
    return np.array([value if np.isfinite(value) else np.nan for value in values])


def _state(entry: Entry, claim: str) -> str:
    found = entry.of(claim)
    return "failed" if found is None else found.verdict


# Two keys -------------------------------------------------------------------------------------------------------------


def _map(ax: "Axes", swept: Swept, claim: Any, foreseen: Theory | None) -> None:
    from matplotlib.colors import Normalize, TwoSlopeNorm
    from matplotlib.lines import Line2D

    down, across = swept.axes
    order = [np.argsort(_places(axis)) for axis in (down, across)]
    values = _numbers(swept, claim.id).reshape(len(down.values), len(across.values))[np.ix_(*order)]
    ends = claim.region_at(swept.rung).boundaries
    least, most = (float(np.nanmin(values)), float(np.nanmax(values))) if np.isfinite(values).any() else (0.0, 1.0)
    norm: Any = Normalize(least, most)
    if len(ends) == 1:
        reach = max(abs(least - ends[0]), abs(most - ends[0]), 1e-12) / 20
        norm = TwoSlopeNorm(ends[0], min(least, ends[0] - reach), max(most, ends[0] + reach))
    x, y = (_edges(axis) for axis in (across, down))
    mesh = ax.pcolormesh(
        x, y, values, cmap="RdBu_r" if len(ends) == 1 else "viridis", norm=norm, edgecolors="face", linewidth=0.3
    )
    bar = ax.get_figure(root=True).colorbar(mesh, ax=ax, pad=0.02)  # type: ignore[union-attr]
    if len(ends) == 1:  # the two sides have scales of their own
        ticks = [*np.linspace(norm.vmin, ends[0], 4), *np.linspace(ends[0], norm.vmax, 4)[1:]]
        bar.set_ticks([float(tick) for tick in ticks])
        bar.ax.yaxis.set_major_formatter(lambda value, _: number(value, 2))
    bar.set_label(claim.unit or claim.kind.sentence)
    bar.outline.set_visible(False)
    handles = list(_hatched(ax, swept, claim.id, x, y, order))
    for index, (name, found) in enumerate((foreseen.values if foreseen else {}).items()):
        colour, line = _LINES[min(index, 1)], _STYLES[index % len(_STYLES)]
        assert foreseen is not None
        if np.nanmin(found) < 0 < np.nanmax(found):
            ax.contour(
                foreseen.at[1], foreseen.at[0], found, levels=[0.0], colors=colour, linewidths=2, linestyles=line
            )
        handles.append(Line2D([], [], color=colour, linestyle=line, linewidth=2, label=name))
    for axis, name in ((across, "x"), (down, "y")):
        _scale(ax, axis, name)
    if handles:
        ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3)


def _hatched(ax: "Axes", swept: Swept, claim: str, x: F64, y: F64, order: list[NDArray[np.int64]]) -> Iterator[Any]:
    """Hatch the cells without a settled verdict, and yield what the legend says of them."""
    from matplotlib.patches import Patch, Rectangle

    states = np.array([_state(entry, claim) for entry in swept.entries])
    states = states.reshape(len(order[0]), len(order[1]))[np.ix_(*order)]
    for state, hatch in _HATCH.items():
        found = np.argwhere(states == state)
        for row, column in found:
            size = (x[column + 1] - x[column], y[row + 1] - y[row])
            cell = Rectangle((x[column], y[row]), *size, fill=False, hatch=hatch, edgecolor="#444444", linewidth=0)
            ax.add_patch(cell)
        if len(found):
            yield Patch(facecolor="white", edgecolor="#444444", hatch=hatch, linewidth=0, label=state)


# One key --------------------------------------------------------------------------------------------------------------


def _curve(ax: "Axes", swept: Swept, claim: Any, foreseen: Theory | None) -> None:
    (axis,) = swept.axes
    places = _places(axis)
    values = _numbers(swept, claim.id)
    found = [entry.of(claim.id) for entry in swept.entries]
    ends = np.array([[np.nan, np.nan] if f is None or f.low is None else [f.low, f.high] for f in found], float)
    ends[~np.isfinite(ends)] = np.nan
    reach = np.abs(ends - values[:, None]).T
    ax.errorbar(places, values, yerr=reach, fmt="o-", color=COLOURS[0], linewidth=1.2, label="effect, 95 % interval")
    failed = [place for place, entry in zip(places, swept.entries, strict=True) if entry.failure is not None]
    if failed:
        ax.plot(
            failed, np.zeros(len(failed)), "x", color=COLOURS[1], transform=ax.get_xaxis_transform(), label="failed"
        )
    region = claim.region_at(swept.rung)
    for end in region.boundaries:
        ax.axhline(end, color=COLOURS[2], linewidth=1, linestyle=":")
    low, high = ax.get_ylim()
    ax.axhspan(
        max(region.low, low), min(region.high, high), color=COLOURS[2], alpha=0.1, linewidth=0, label="supported"
    )
    ax.set_ylim(low, high)
    for index, (name, line) in enumerate((foreseen.values if foreseen else {}).items()):
        assert foreseen is not None
        for again, zero in enumerate(zeros(foreseen.at[0], line)):
            text = None if again else name
            ax.axvline(zero, color=_LINES[min(index, 1)], linestyle="--", linewidth=1.4, label=text)
    _scale(ax, axis, "x")
    ax.set_ylabel(claim.unit or claim.kind.sentence)
    ax.legend()


def zeros(at: F64, values: F64) -> list[float]:
    """Return where a function given at some places crosses zero, by straight lines between them.

    >>> zeros(np.array([0.0, 1.0, 2.0]), np.array([-1.0, 1.0, 3.0]))
    [0.5]
    """
    above = values >= 0
    change = np.flatnonzero((above[:-1] != above[1:]) & np.isfinite(values[:-1]) & np.isfinite(values[1:]))
    return [float(at[i] - values[i] * (at[i + 1] - at[i]) / (values[i + 1] - values[i])) for i in change]


# Axes -----------------------------------------------------------------------------------------------------------------


def _places(axis: Axis) -> F64:
    """Return where the values of a key stand: the numbers themselves, or one after the other."""
    return np.array(axis.values if axis.numeric else range(len(axis.values)), dtype=np.float64)


def _edges(axis: Axis) -> F64:
    """Return the edges of cells around the values, halfway between neighbours."""
    values = np.sort(_places(axis))
    scaled = np.log(values) if axis.log else values
    if len(scaled) == 1:
        half = 0.05 * abs(scaled[0]) or 0.5
        edges = np.array([scaled[0] - half, scaled[0] + half])
    else:
        middle = (scaled[1:] + scaled[:-1]) / 2
        edges = np.concatenate([[2 * scaled[0] - middle[0]], middle, [2 * scaled[-1] - middle[-1]]])
    return np.exp(edges) if axis.log else edges


def _scale(ax: "Axes", axis: Axis, name: str) -> None:
    """Label an axis; on a log scale where the values are, with names where they are no numbers."""
    getattr(ax, f"set_{name}label")(axis.path)
    if axis.log:
        getattr(ax, f"set_{name}scale")("log")
        getattr(ax, f"{name}axis").set_major_formatter("{x:g}")
        getattr(ax, f"{name}axis").set_minor_formatter("{x:g}")
    if not axis.numeric:
        getattr(ax, f"set_{name}ticks")(_places(axis), [shown(value) for value in axis.values])
