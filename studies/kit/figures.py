"""Figures: one style, and the few pictures that most studies need.

Each function returns a matplotlib ``Figure`` made without pyplot, so nothing global is touched and nothing has to be
closed. The title is for the finding in words; how many seeds and which interval stands in the picture.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from studies.kit.intervals import wilson
from studies.kit.regions import Region

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sim.mdp.published import TurnTable
    from sim.records.run import Runs

__all__ = [
    "COLOURS",
    "SIZE",
    "STYLE",
    "bands",
    "dose",
    "dots",
    "figure",
    "points",
    "stack",
    "style",
    "svg",
    "table_fit",
]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
"""The colours of Okabe and Ito, told apart with any colour vision; yellow last, as it is faint on white."""
SIZE = (8.2, 4.6)
"""Width and height in inches."""
STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": "#333333",
    "axes.labelsize": 10,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 10,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "svg.fonttype": "none",
    "svg.hashsalt": "metastable",
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}
_MOST_LINES, _MOST_POINTS = 24, 400  # faint lines of single seeds: more make the file large and the picture no clearer


@contextmanager
def style() -> Iterator[None]:
    """Draw in the kit's style within the block."""
    import matplotlib as mpl
    from cycler import cycler

    settings: Any = {**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with mpl.rc_context(settings):
        yield


def figure(
    rows: int = 1, columns: int = 1, title: str = "", size: tuple[float, float] = SIZE, sharex: bool = False
) -> "tuple[Figure, Any]":
    """Return an empty figure in the kit's style with its axes (one, or an array of them)."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with style():
        made = Figure(figsize=size)
        FigureCanvasSVG(made)
        axes = made.subplots(rows, columns, sharex=sharex)
        first = axes if rows == columns == 1 else np.ravel(axes)[0]
        first.set_title(title)
    return made, axes


def svg(made: "Figure") -> str:
    """Return a figure as an SVG element: the same bytes for the same figure, without date or XML header."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    out = io.StringIO()
    with style():
        FigureCanvasSVG(made).print_svg(out, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :].strip()


def bands(
    runs: "Mapping[str, Runs]",
    column: str,
    *,
    title: str = "",
    ylabel: str = "",
    onset: float | Mapping[str, float] | None = None,
    limits: tuple[float, float] | None = None,
    axes: "Axes | None" = None,
) -> "Figure":
    """Draw one column of several runs over the optimiser step: mean, 10-90 % band and faint single seeds.

    ``onset`` marks a detected transition with a dashed line, one for all or one a label. With ``axes`` the picture is
    drawn there.
    """
    with style():
        made, ax = _place(axes, title)
        for index, (label, block) in enumerate(runs.items()):
            colour = COLOURS[index % len(COLOURS)]
            steps, values = np.asarray(block["step"][0]), np.asarray(block[column], dtype=np.float64)  # [T], [S, T]
            thin = slice(None, None, max(1, len(steps) // _MOST_POINTS))
            for row in values[:_MOST_LINES]:
                ax.plot(steps[thin], row[thin], color=colour, alpha=0.12, linewidth=0.7)
            low, high = np.nanquantile(values, [0.1, 0.9], axis=0)
            ax.fill_between(steps[thin], low[thin], high[thin], color=colour, alpha=0.18, linewidth=0)
            name = f"{label} (n={len(values)})"
            ax.plot(steps[thin], np.nanmean(values, axis=0)[thin], color=colour, label=name)
            when = onset.get(label) if isinstance(onset, Mapping) else onset if index == 0 else None
            if when is not None and np.isfinite(when):
                ax.axvline(when, color=colour if isinstance(onset, Mapping) else "#555555", linestyle="--", linewidth=1)
        ax.set_xlabel("optimiser step")
        ax.set_ylabel(ylabel or column)
        if limits is not None:
            ax.set_ylim(*limits)
        # In the legend rather than the label: it must fit a panel of half the width.
        ax.legend(title="line: mean; band: 10-90 % of seeds", title_fontsize=8, alignment="left")
    return made


def dose(
    doses: Sequence[float],
    outcomes: Sequence[ArrayLike],
    *,
    predicted: tuple[ArrayLike, ArrayLike] | None = None,
    title: str = "",
    xlabel: str = "dose",
    ylabel: str = "share of seeds",
    log: bool = False,
) -> "Figure":
    """Draw the share of seeds with an event at each dose, ``outcomes[dose]`` bool [n], with 95 % Wilson intervals.

    ``predicted`` is a curve (doses, shares) of theory, drawn beneath.
    """
    with style():
        made, ax = _place(None, title)
        counts = [(int(np.sum(arm)), np.size(arm)) for arm in outcomes]
        if predicted is not None:
            ax.plot(*predicted, color=COLOURS[1], label="predicted")
        shares = np.array([count / n for count, n in counts])
        ends = np.array([wilson(count, n) for count, n in counts])
        reach = np.abs(ends.T - shares)
        ax.errorbar(doses, shares, yerr=reach, fmt="o", color=COLOURS[0], capsize=0, linewidth=1.6, label="measured")
        sizes = sorted({n for _, n in counts})
        ax.set_xlabel(f"{xlabel} (n={', '.join(map(str, sizes))} seeds a dose; 95 % Wilson interval)")
        ax.set_ylabel(ylabel)
        ax.set_ylim(-0.04, 1.04)
        if log:
            ax.set_xscale("log")
        if predicted is not None:
            ax.legend()
    return made


def dots(
    labels: Sequence[str],
    estimates: ArrayLike,
    lows: ArrayLike,
    highs: ArrayLike,
    *,
    region: Region | None = None,
    predicted: ArrayLike | None = None,
    title: str = "",
    unit: str = "",
    interval: str = "95 % interval",
) -> "Figure":
    """Draw estimates with intervals, one row a label, the first on top; the region of the claim is shaded."""
    values, low, high = (np.asarray(a, dtype=np.float64) for a in (estimates, lows, highs))
    rows = np.arange(len(labels))[::-1]
    with style():
        made, ax = _place(None, title)
        if region is not None:
            span = np.concatenate([low, high, region.boundaries])
            pad = 0.08 * (np.nanmax(span) - np.nanmin(span) or 1.0)
            least, most = float(np.nanmin(span) - pad), float(np.nanmax(span) + pad)
            ax.axvspan(max(region.low, least), min(region.high, most), color=COLOURS[2], alpha=0.12, linewidth=0)
            ax.set_xlim(least, most)
        ax.hlines(rows, low, high, color=COLOURS[0], linewidth=2)
        ax.plot(values, rows, "o", color=COLOURS[0], label="measured")
        if predicted is not None:
            ax.plot(predicted, rows, "D", color=COLOURS[1], markerfacecolor="none", label="predicted")
            ax.legend()
        ax.set_yticks(rows, labels)
        ax.set_ylim(-0.6, len(labels) - 0.4)
        ax.set_xlabel(f"{unit} ({interval})" if unit else interval)
    return made


def points(
    measured: Mapping[str, Mapping[float, ArrayLike]],
    *,
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    log: str = "",
    axes: "Axes | None" = None,
) -> "Figure":
    """Draw a number measured at several settings, ``measured[label][setting]`` [n], as median and range over seeds.

    ``curves`` are lines of theory, (settings, numbers), in the colour of the points of the same label, or in one of their
    own. ``log`` names the axes on a log scale: "x", "y" or "xy". With ``axes`` the picture is drawn there.
    """
    with style():
        made, ax = _place(axes, title)
        lines = curves or {}
        colour = dict(zip(dict.fromkeys([*measured, *lines]), COLOURS, strict=False))
        for label, line in lines.items():
            ax.plot(*line, color=colour[label], label=None if label in measured else label, zorder=1)
        for label, found in measured.items():
            values = [np.asarray(v, dtype=np.float64) for v in found.values()]
            middle = np.array([np.median(v) for v in values])
            reach = np.array([[m - v.min(), v.max() - m] for m, v in zip(middle, values, strict=True)]).T
            name = f"{label} (n={len(values[0])})"
            ax.errorbar(
                list(found), middle, yerr=reach, fmt="o", color=colour[label], markersize=5, linewidth=1.4, label=name
            )
        ax.set_xlabel(xlabel)
        ax.set_ylabel(ylabel)
        _log_axes(ax, log)
        ax.legend(
            title="dots: median and range" + ("; lines: theory" if lines else ""), title_fontsize=8, alignment="left"
        )
    return made


def stack(
    steps: ArrayLike, shares: Mapping[str, ArrayLike], *, title: str = "", n: int | None = None, ylabel: str = "share"
) -> "Figure":
    """Draw how a whole divides, such as trajectories by workflow, over the optimiser step: ``shares[name]`` [T]."""
    with style():
        made, ax = _place(None, title)
        series = [np.asarray(share, dtype=np.float64) for share in shares.values()]
        ax.stackplot(np.asarray(steps), *series, labels=list(shares), colors=COLOURS, alpha=0.85, linewidth=0)
        ax.set_ylim(0, max(1.0, float(np.sum(series, axis=0).max())))
        ax.margins(x=0)
        ax.set_xlabel("optimiser step" + (f" (mean over n={n} seeds)" if n else ""))
        ax.set_ylabel(ylabel)
        handles, names = ax.get_legend_handles_labels()
        ax.legend(handles[::-1], names[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5))
    return made


def table_fit(observed: "TurnTable", model: "TurnTable", *, title: str = "") -> "Figure":
    """Draw a published table by turn against a model of it: circles published, lines the model, a colour a row.

    Left the accuracy by the end of each turn, right the share that searches at it.
    """
    with style():
        made, axes = figure(1, 2, title=title)
        for ax, name, label in (
            (axes[0], "accuracy", "solved by the end of the turn"),
            (axes[1], "search_share", "searches at the turn"),
        ):
            for index, row in enumerate(observed.checkpoints):
                colour = COLOURS[index % len(COLOURS)]
                seen, fitted = getattr(observed, name)[index], getattr(model, name)[index]
                turns = np.arange(len(seen))
                ax.plot(turns, fitted, "-", color=colour, label=f"{row}, model")
                ax.plot(
                    turns, seen, "o", color=colour, markerfacecolor="white", markersize=8, label=f"{row}, published"
                )
            ax.set_xticks(turns)
            ax.set_xlabel("turn")
            ax.set_ylabel(f"share of rollouts: {label}")
        axes[0].legend()
    return made


def _log_axes(ax: "Axes", names: str) -> None:
    """Put the named axes ("x", "y", "xy") on a log scale with plain numbers: a decade or two, not powers of ten."""
    from matplotlib.ticker import LogFormatter

    for name in names:
        getattr(ax, f"set_{name}scale")("log")
        axis = getattr(ax, f"{name}axis")
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.6)))


def _place(axes: "Axes | None", title: str) -> "tuple[Figure, Axes]":
    if axes is None:
        made, axes = figure(title=title)
        return made, axes
    if title:
        axes.set_title(title)
    return axes.get_figure(root=True), axes  # type: ignore[return-value]
