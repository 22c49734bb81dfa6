"""The picture of one behavioural flip, drawn so that it needs no text beside it."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from studies.kit.figures import COLOURS, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sim.mdp.published import TurnTable
    from sim.records.run import Runs

__all__ = ["flip"]

F64 = NDArray[np.float64]


def flip(runs: "Runs", table: "TurnTable", pushed: tuple[int, int], title: str) -> "Figure":
    """Draw search share by turn and reward over training, and beside them the published columns before and after.

    Parameters
    ----------
    runs
        Seeds of one run with held-out evaluation at every step.
    table
        Two published checkpoints: before and after.
    pushed
        First and last step of the drive.
    title
        The finding in words.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    turns = table.search_share.shape[1]
    share = np.stack([runs[f"eval/search_share/turn{t}"] for t in range(turns)])  # [K, S, T]
    mean = share.mean(1)
    before = pushed[0]
    after = before + int(np.argmin(np.abs(mean[0, before : pushed[1] + 1] - table.search_share[1, 0])))
    with style():
        made = Figure(figsize=(8.2, 5.4))
        FigureCanvasSVG(made)
        grid = made.add_gridspec(2, 2, width_ratios=(2.5, 1), height_ratios=(2.2, 1))
        top = made.add_subplot(grid[0, 0])
        low = made.add_subplot(grid[1, 0], sharex=top)
        made.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
        _shares(top, share, pushed, (before, after))
        _reward(low, runs["eval/reward"], pushed)
        for row, (step, when) in enumerate(zip(table.checkpoints, (before, after), strict=True)):
            ax = made.add_subplot(grid[row, 1])
            _column(
                ax, table.search_share[row], mean[:, when], f"{'before' if row == 0 else 'after'}: {step}", row == 0
            )
    return made


def _shares(ax: Any, share: F64, pushed: tuple[int, int], marked: tuple[int, int]) -> None:
    steps = np.arange(share.shape[2])
    for t, values in enumerate(share):
        lo, hi = np.quantile(values, [0.1, 0.9], axis=0)
        ax.fill_between(steps, lo, hi, color=COLOURS[t], alpha=0.18, linewidth=0)
        ax.plot(steps, values.mean(0), color=COLOURS[t], label=f"turn {t}")
    ax.axvspan(*pushed, color="#999999", alpha=0.15, linewidth=0)
    for when in marked:
        ax.axvline(when, color="#555555", linestyle=":", linewidth=1)
    ax.set_ylim(-0.03, 1.22)
    ax.set_yticks([0, 0.5, 1])
    middle = (pushed[0] + pushed[1]) / 2
    words: dict[str, Any] = {"va": "top", "fontsize": 8.5, "color": "#444444"}
    ax.text(middle, 1.2, "pushed", ha="center", **words)
    ax.text(pushed[1] + 7, 1.2, "guess, search, answer", **words)
    ax.text(len(steps) - 1, 1.2, "search, answer: by itself again", ha="right", **words)
    ax.set_ylabel(f"share that searches (n={share.shape[1]})")
    ax.legend(ncols=4, loc="lower left", bbox_to_anchor=(0.0, 0.99), borderaxespad=0.2)
    ax.tick_params(labelbottom=False)


def _reward(ax: Any, reward: F64, pushed: tuple[int, int]) -> None:
    steps = np.arange(reward.shape[1])
    lo, hi = np.quantile(reward, [0.1, 0.9], axis=0)
    ax.fill_between(steps, lo, hi, color="#555555", alpha=0.2, linewidth=0)
    ax.plot(steps, reward.mean(0), color="#333333")
    ax.axvspan(*pushed, color="#999999", alpha=0.15, linewidth=0)
    ax.set_ylim(0, 0.75)
    ax.set_ylabel("reward")
    ax.set_xlabel("optimiser step (line: mean; band: 10-90 % of seeds)")


def _column(ax: Any, published: F64, simulated: F64, title: str, named: bool) -> None:
    turns = np.arange(len(published))
    ax.plot(turns, simulated, color="#333333", marker=".", label="simulated")
    ax.plot(turns, published, "o", color=COLOURS[1], markerfacecolor="none", markersize=9, label="published")
    ax.set_title(title, fontsize=9.5, fontweight="normal")
    ax.set_ylim(-0.05, 1.15)
    ax.set_yticks([0, 0.5, 1])
    ax.set_xticks(turns)
    ax.set_xlabel("turn")
    if named:
        ax.legend(loc="upper right", fontsize=8)
