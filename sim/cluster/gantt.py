"""A window of a run as a picture: what engines, tools and the learner do, and what becomes of the trajectories.

Four panels over one clock. Engines: a row each, shaded by the number of active sequences, hatched while weights are loaded.
Tools: calls in service by pool, dashed those that wait. Learner: training and waiting. Trajectories: a row each, groups
together; chunks in the colour of the version that wrote them, with a mark where a chunk has another version than the one
before, tool attempts as lines in the colour of their pool; from a group's completion to its being taken, a dotted line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.events import EventLog, Kind
from sim.cluster.spans import Names, Spans, buffered, count, queued, spans, window

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["SIZE", "gantt"]

F64 = NDArray[np.float64]
SIZE = (9.0, 7.0)
"""Width and height in inches."""
_POOLS = ("#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#0072B2")  # Okabe and Ito's, told apart by anybody
_TRAIN, _WAIT, _FAIL, _INK = "#D55E00", "#E3E3E3", "#D55E00", "#333333"
_STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#555555",
    "axes.labelcolor": _INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "hatch.linewidth": 0.7,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
}
_BINS = 600  # columns of the shading, over which the number of sequences is averaged: about a pixel each
_MOST_ROWS = 80  # trajectories drawn; of more, every second, third, .. group
_GAP = 0.7  # between groups, in rows
_MOST_GROUPS = 40  # for which the wait in the buffer is drawn


def gantt(
    log: EventLog,
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    names: Names | None = None,
    title: str = "",
    size: tuple[float, float] = SIZE,
) -> Figure:
    """Return the picture of a window, made without pyplot.

    Parameters
    ----------
    log
        The whole log: what the window shows may have begun before it.
    start_s, end_s
        Edges of the window, s; None for the beginning and the end of the run.
    names
        Names of engines and pools.
    title
        What is to be seen, in words.
    size
        Width and height in inches.

    Raises
    ------
    ValueError
        For an empty window.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    edges = window(log, start_s, end_s)
    with mpl.rc_context(_STYLE):
        made = Figure(figsize=size, layout="constrained")
        engines = max(_count_of(log, Kind.GEN_START, Kind.ENGINE_FAIL, Kind.SYNC_START), 1)
        heights = (0.6 + 0.25 * min(engines, 8), 1.3, 0.45, 4.5)
        grid = made.subplots(4, 2, sharex="col", width_ratios=(30, 1), height_ratios=heights)
        grid[0, 0].set_title(title)
        _engines(grid[0], log, edges, names or Names(), engines)
        _tools(grid[1], log, edges, names or Names())
        _learner(grid[2], log, edges)
        _trajectories(grid[3], log, edges)
        for ax in grid[:, 0]:
            for row in log.of_kind(Kind.VERSION).tolist():
                ax.axvline(log.t_s[row], color="#999999", linewidth=0.6, linestyle=(0, (1, 2)), zorder=0.5)
            ax.set_xlim(*edges)
            ax.tick_params(labelbottom=ax is grid[3, 0])
        for ax in (grid[1, 1], grid[2, 1]):
            ax.axis("off")
        grid[3, 0].set_xlabel("time, s")
    return made


def _engines(axes: Any, log: EventLog, edges: tuple[float, float], names: Names, engines: int) -> None:
    from matplotlib.ticker import MaxNLocator

    ax, bar = axes
    every, loads, down = (spans(log, kind) for kind in (Kind.GEN_START, Kind.SYNC_START, Kind.ENGINE_FAIL))
    columns = np.linspace(*edges, _BINS + 1)
    active = np.array([_mean_count(every.at(engine), columns) for engine in range(engines)]).reshape(engines, _BINS)
    most = max(float(active.max(initial=0)), 1.0)
    shade = ax.pcolormesh(
        columns, np.arange(engines + 1) - 0.5, active, cmap="Blues", vmin=0, vmax=most, rasterized=True
    )
    shade.set_gid("active")
    for gid, of, hatch, colour in (("loads", loads, "/////", _INK), ("down", down, "xxxx", _FAIL)):
        of = of.within(*edges)
        rows = [range(engines) if e < 0 else (e,) for e in log.entity[of.start].tolist()]  # -1: all of them
        bars = [(a, b, e) for a, b, mine in zip(of.start_s, of.end_s, rows, strict=True) for e in mine]
        _bars(ax, gid, bars, 1.0, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=0)
    ax.set_ylim(engines - 0.5, -0.5)
    ticks = range(0, engines, max(1, -(-engines // 8)))
    ax.set_yticks(list(ticks), [names.engine(e) for e in ticks])
    ax.tick_params(axis="y", length=0)
    ax.figure.colorbar(shade, cax=bar, ticks=MaxNLocator(3, integer=True))
    bar.set_ylabel("active\nsequences", fontsize=8)
    bar.tick_params(labelsize=7)


def _tools(axes: Any, log: EventLog, edges: tuple[float, float], names: Names) -> None:
    ax, side = axes
    every, waiting = spans(log, Kind.TOOL_START), queued(log)
    for pool in range(_count_of(log, Kind.TOOL_START, Kind.TOOL_ENQUEUE)):
        colour = _POOLS[pool % len(_POOLS)]
        for gid, of, dashes in (("busy", every.at(pool), "-"), ("waiting_calls", waiting.at(pool), (0, (2, 1)))):
            (line,) = ax.plot(
                *_steps(of, edges), color=colour, linestyle=dashes, linewidth=1.1, drawstyle="steps-post", gid=gid
            )
            if gid == "busy":
                line.set_label(names.pool(pool))
    ax.set_ylabel("tool calls")
    ax.set_ylim(bottom=0)
    ax.locator_params(axis="y", nbins=4, integer=True)
    side.plot([], [], color="#777777", linestyle=(0, (2, 1)), linewidth=1.1, label="waiting")
    handles = ax.get_legend_handles_labels()[0] + side.get_legend_handles_labels()[0]
    side.legend(handles=handles, loc="center left", bbox_to_anchor=(-1.2, 0.5), borderaxespad=0, handlelength=1.2)


def _learner(axes: Any, log: EventLog, edges: tuple[float, float]) -> None:
    ax, side = axes
    steps = spans(log, Kind.TRAIN_START)
    since, until = np.r_[0.0, steps.end_s], np.r_[steps.start_s, log.t_s[-1]]
    waits = [(a, b, 0) for a, b in zip(since, until, strict=True) if a < b and a < edges[1] and b > edges[0]]
    _bars(ax, "waiting", waits, 0.9, facecolor=_WAIT, label="waiting")
    shown = steps.within(*edges)
    bars = [(a, b, 0) for a, b in zip(shown.start_s, shown.end_s, strict=True)]
    _bars(ax, "training", bars, 0.9, facecolor=_TRAIN, edgecolor="white", linewidth=0.8, label="training")
    ax.set_ylim(-0.5, 0.5)
    ax.set_yticks([0], ["learner"])
    ax.tick_params(axis="y", length=0)
    handles = ax.get_legend_handles_labels()[0][::-1]
    side.legend(handles=handles, loc="center left", bbox_to_anchor=(-1.2, 0.5), borderaxespad=0, handlelength=1.2)


def _trajectories(axes: Any, log: EventLog, edges: tuple[float, float]) -> None:
    from matplotlib import colormaps
    from matplotlib.colors import BoundaryNorm, ListedColormap

    ax, bar = axes
    every = spans(log, Kind.TRAJ_START)
    shown, of = _some_groups(log, every.within(*edges))
    height = np.arange(len(shown)) + _GAP * np.unique(log.entity[shown.start], return_inverse=True)[1]
    place = dict(zip(log.traj[shown.start].tolist(), height.tolist(), strict=True))
    least, most = (float(height.min()), float(height.max())) if len(height) else (0.0, 0.0)

    def rows(of: Spans) -> tuple[Spans, list[float]]:
        of = of.of(np.isin(log.traj[of.start], list(place))).within(*edges)
        return of, [place[traj] for traj in log.traj[of.start].tolist()]

    ax.hlines(height, shown.start_s, shown.end_s, color="#BBBBBB", linewidth=0.5, zorder=1).set_gid("lives")
    attempts, at = rows(spans(log, Kind.TOOL_START))
    inks = [_POOLS[pool % len(_POOLS)] for pool in log.entity[attempts.start].tolist()]
    ax.hlines(at, attempts.start_s, attempts.end_s, color=inks, linewidth=1.2, zorder=2).set_gid("attempts")
    chunks, at = rows(spans(log, Kind.GEN_START))
    versions = log.version[chunks.start]
    first, last = (int(versions.min()), int(versions.max())) if len(versions) else (0, 0)
    bars = list(zip(chunks.start_s, chunks.end_s, at, strict=True))
    colours = ListedColormap(
        colormaps["viridis"](np.linspace(0.08, 0.92, last - first + 1))
    )  # both ends are hard to see
    norm = BoundaryNorm(np.arange(first, last + 2) - 0.5, last - first + 1)
    drawn = _bars(ax, "chunks", bars, 0.8, array=versions, cmap=colours, norm=norm, zorder=3)
    changes = _changes(log, chunks)
    marks = {"color": "#D55E00", "marker": "|", "linestyle": "none", "markeredgewidth": 1.4, "zorder": 4}
    size = min(max(220.0 / (most - least + 1), 3.0), 12.0)
    ax.plot(chunks.start_s[changes], np.array(at)[changes], markersize=size, gid="changes", **marks)
    _waits_of_groups(ax, log, shown, place, edges)
    ax.set_ylim(most + 0.7, least - 0.7)
    ax.set_yticks([])
    ax.set_ylabel(f"trajectories ({'by group' if of == 1 else f'1 group in {of}'})")
    _version_bar(bar, drawn, first, last)


def _version_bar(bar: Axes, drawn: Any, first: int, last: int) -> None:
    """Say which colour is which version; all are named as long as there is room for them."""
    ticks = list(range(first, last + 1, max(1, -(-(last - first) // 8))))
    colours = bar.get_figure().colorbar(drawn, cax=bar, ticks=ticks)  # type: ignore[union-attr]
    colours.ax.set_yticklabels([str(tick) for tick in ticks])
    colours.minorticks_off()
    bar.set_ylabel("version (| changes inside, ◆ group taken)", fontsize=8)
    bar.tick_params(labelsize=7, length=2)


def _waits_of_groups(
    ax: Axes, log: EventLog, shown: Spans, place: dict[int, float], edges: tuple[float, float]
) -> None:
    """Draw the time from completion to being taken beside the middle of each group, if they are few."""
    groups = np.unique(log.entity[shown.start])
    waits = buffered(log).within(*edges)
    waits = waits.of(np.isin(log.entity[waits.start], groups))
    if len(groups) > _MOST_GROUPS:
        return
    middle = {group: np.mean([place[t] for t in log.traj[shown.at(group).start].tolist()]) for group in groups.tolist()}
    at = np.array([middle[group] for group in log.entity[waits.start].tolist()])
    ax.hlines(at, waits.start_s, waits.end_s, color=_INK, linewidth=0.9, linestyle=(0, (1, 1.5)), zorder=2).set_gid(
        "waits"
    )
    taken = np.array([log.kind[end] == Kind.TRAIN_TAKE for end in waits.end.tolist()], np.bool_)
    ax.plot(
        waits.end_s[taken], at[taken], color=_TRAIN, marker="D", markersize=3.5, linestyle="none", gid="takes", zorder=5
    )


def _some_groups(log: EventLog, shown: Spans) -> tuple[Spans, int]:
    """Trajectories by group, of every k-th group where there are too many, and k."""
    groups = np.unique(log.entity[shown.start])
    every = max(1, -(-len(shown) // _MOST_ROWS))
    shown = shown.of(np.isin(log.entity[shown.start], groups[::every]))
    order = np.lexsort((shown.start, log.entity[shown.start]))
    return Spans(log, shown.start[order], shown.end[order]), every


def _changes(log: EventLog, chunks: Spans) -> NDArray[np.bool_]:
    """Which chunks have another version than their trajectory's chunk before, [n]."""
    every = log.of_kind(Kind.GEN_START)
    every = every[np.argsort(log.traj[every], kind="stable")]
    follows = log.traj[every][1:] == log.traj[every][:-1]
    changed = every[1:][follows & (log.version[every][1:] != log.version[every][:-1])]
    return np.isin(chunks.start, changed)


def _bars(ax: Axes, gid: str, bars: Sequence[tuple[float, float, float]], height: float, **look: Any) -> Any:
    """Draw bars (start, end, row) as one collection."""
    from matplotlib.collections import PolyCollection

    half = height / 2
    corners = [[(a, y - half), (b, y - half), (b, y + half), (a, y + half)] for a, b, y in bars]
    return ax.add_collection(PolyCollection(corners, gid=gid, **look), autolim=False)


def _count_of(log: EventLog, *kinds: Kind) -> int:
    return int(log.entity[log.of_kind(*kinds)].max(initial=-1)) + 1


def _steps(of: Spans, edges: tuple[float, float]) -> tuple[F64, F64]:
    """Times, s, and how many are open from then on, between the edges."""
    rows, number = count(of)
    times = of.log.t_s[rows]
    first, last = np.searchsorted(times, edges)
    before = float(number[first - 1]) if first else 0.0
    values = np.r_[before, number[first:last]].astype(np.float64)
    return np.r_[edges[0], times[first:last], edges[1]], np.r_[values, values[-1]]


def _mean_count(of: Spans, columns: F64) -> F64:
    """How many are open on average between each two of these times, [len(columns) - 1]."""
    times, number = _steps(of, (float(columns[0]), float(columns[-1])))
    total = np.r_[0.0, np.cumsum(number[:-1] * np.diff(times))]
    return np.diff(np.interp(columns, times, total)) / np.diff(columns)
