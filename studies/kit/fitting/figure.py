"""The picture of a fit: what was counted, and the fans of the first rival and of its nearest."""

from typing import TYPE_CHECKING

import numpy as np

from studies.kit.figures import COLOURS, figure, style
from studies.kit.fitting.forecast import LEVELS, Fan, Forecast
from studies.kit.fitting.rank import Ranking

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from studies.kit.fitting.data import Observed

__all__ = ["draw", "title"]


def draw(ranking: Ranking, foreseen: Forecast, came: "Observed | None" = None) -> "Figure":
    """Return the figure: the share without a search at the first turn, counted and foreseen.

    Parameters
    ----------
    ranking, foreseen
        What was fitted and what it foresees.
    came
        Later steps, drawn as hollow dots where there are any.
    """
    observed = ranking.observed
    fans = [next(fan for fan in foreseen.each if fan.name == row.name) for row in ranking.rows[:2] if row.filtered]
    made, axes = figure(title=title(ranking))
    with style():
        shown = slice(max(0, len(observed) - 6 * len(foreseen.steps)), None)
        share = observed.unsearched / observed.rollouts
        axes.plot(
            observed.steps[shown],
            share[shown],
            "o",
            color="#333333",
            markersize=3.5,
            label="counted, and used in the fit",
        )
        for colour, fan in zip(COLOURS, fans, strict=False):
            _fan(axes, foreseen, fan, colour)
        if came is not None:
            later = came.unsearched / came.rollouts
            axes.plot(
                came.steps, later, "o", color="#333333", markerfacecolor="white", markersize=4.5, label="came later"
            )
        axes.axvline(float(observed.steps[-1]) + 0.5, color="#555555", linestyle="--", linewidth=1)
        axes.set_ylim(-0.03, 1.03)
        axes.set_xlabel("optimiser step")
        axes.set_ylabel("share of rollouts without a search at first")
        axes.legend(
            loc="upper left", title=f"n={foreseen.rollouts} rollouts a step; fans: median, 50 % and 90 % of P",
            title_fontsize=8, alignment="left",
        )  # fmt: skip
    return made


def title(ranking: Ranking) -> str:
    """Return the finding in a line."""
    first, tied = ranking.rows[0].name, [row.name for row in ranking.tied[1:]]
    if not ranking.informative:
        return f"{ranking.observed.name}: {ranking.yardsticks[0].name} predicts as well as any mechanism"
    if tied:
        return f"{ranking.observed.name}: {first}, not told apart from {' and '.join(tied)}"
    return f"{ranking.observed.name}: {first} predicted each step best"


def _fan(axes: "Axes", foreseen: Forecast, fan: Fan, colour: str) -> None:
    for low, high, alpha in ((0.05, 0.95, 0.15), (0.25, 0.75, 0.25)):
        ends = [[np.interp(level, LEVELS, row) for row in fan.share] for level in (low, high)]
        axes.fill_between(foreseen.steps, ends[0], ends[1], color=colour, alpha=alpha, linewidth=0)
    axes.plot(foreseen.steps, fan.median, color=colour, label=fan.name)
