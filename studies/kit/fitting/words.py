"""A fit in words, line by line, for the terminal."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from studies.kit.fitting.forecast import INTERVALS, Forecast
from studies.kit.fitting.mechanisms import Constant
from studies.kit.fitting.rank import TIE_NATS, Ranked, Ranking
from studies.kit.fitting.registration import Checked
from studies.kit.fitting.world import CHOSEN, EARLY, HELD, LATE, LEFT_OPEN_POINTS
from studies.kit.intervals import wilson
from studies.kit.words import interval, number

__all__ = ["LIMITS", "checked_words", "forecast_words", "ranking_words", "report", "world_words"]

LIMITS = (
    "A mechanism that stands first is sufficient in the fitted world; it need not be what moved this run.",
    "Scores compare these rivals only. Weights assume that exactly these could be true, and alike beforehand.",
    "Mean and noise of a step are those of private weights, one rate for all, and advantages over the group's spread.",
    "The world is fitted to all steps used, those that are scored among them; only the motion is predicted a step ahead.",
    "The hit rate on known questions is not identified: mechanisms that hang on it are averaged over the rates that fit.",
    "Intervals assume rollouts that decide independently at the first turn, and that nothing new begins but a push.",
)
"""What a fit does not show."""

_NEVER_AGAIN = 0.9  # P(answer | failed) from which a wrong answer may as well be the end
_STILL = 0.05
_POOR_POINTS = 5.0  # a residual beyond what chance and pooling leave on a thousand rollouts a step, percentage points


def report(ranking: Ranking, foreseen: Forecast, later_steps: int) -> list[str]:
    """Return all that a fit has to say."""
    o = ranking.observed
    head = f"{o.name}: {len(o)} steps, {o.steps[0]} to {o.steps[-1]}, {foreseen.rollouts} rollouts a step"
    if later_steps:
        head += f"; {later_steps} later steps were at hand and were not used"
    return [
        head, "", *world_words(ranking), "", *ranking_words(ranking), "", *forecast_words(ranking, foreseen), "",
        "What this does not show", *(f"  {line}" for line in LIMITS),
    ]  # fmt: skip


def world_words(ranking: Ranking) -> list[str]:
    """Return the world: what was fitted, what was chosen, and how well it fits."""
    fitted = ranking.fitted
    best = fitted.best
    early, late = fitted.pooled_steps
    rows = [
        (
            name,
            number(value),
            "" if math.isclose(low, high, abs_tol=5e-4) else f"{number(low)} to {number(high)} left open",
        )
        for name, value, low, high in fitted.quantities()
    ]
    quality = (
        f"  largest residual {number(best.max_residual_points)} points, root mean square {number(best.rms_points)}; "
        f"{len(fitted.fits)} of {fitted.tried} hit rates on known questions fit within {LEFT_OPEN_POINTS} points"
    )
    head = f"World, fitted to two tables by turn ({early} early steps pooled, {late} late ones)"
    lines = [head, *_table(rows), quality]
    if best.max_residual_points > _POOR_POINTS:
        lines.append(
            "  THE WORLD DOES NOT FIT: this run is not search and answer with retries after a wrong answer, "
            "and what follows rests on it"
        )
    if abs(float(np.diff(fitted.table.search_share[:, 0])[0])) < _STILL:
        lines.append(
            "  The share that does not search first moved by less than 5 points between the two tables: what a guess earns "
            "is hardly seen, and every rival hangs on it"
        )
    if min(float(found) for found in best.policies[:, 2]) > _NEVER_AGAIN:
        lines.append(
            "  Hardly any rollout searches after a wrong answer. If a wrong answer ends an episode in this run, the fitted "
            "world lets it go on in vain: what a length weight or a loss of long rollouts does there is not what it does"
        )
    chosen = [(words, number(float(getattr(best.world, name))), "1 value tried") for name, words in CHOSEN]
    chosen.append(("hit rate on known questions", ", ".join(map(number, HELD)), f"{len(HELD)} values tried"))
    chosen.append(("steps pooled, most", f"{EARLY} and {LATE}", "1 value tried"))
    chosen.append(("steps of warm-up", str(ranking.warm), "1 value tried"))
    return [*lines, "Chosen, not fitted", *_table(chosen), *_table(_constants(ranking))]


def ranking_words(ranking: Ranking) -> list[str]:
    """Return the rivals in their order, and what may be said of it."""
    rows = [
        ("", "first decision", "later ones", "behind", "weight", "settings that the counts leave"),
        *map(_row, ranking.rows),
    ]
    rows += [_row(row, yardstick=True) for row in ranking.yardsticks]
    first = ranking.rows[0]
    said = [f"  {first.name}: {first.mechanism.says}"]
    said += [f"  {row.name}: {row.mechanism.excluded}" for row in ranking.rows if row.filtered is None]
    return [
        f"Rivals, by log P of {ranking.scored} steps, each predicted from those before it (nats)",
        *_table(rows), *said, *(f"  {line}" for line in _verdict(ranking)),
    ]  # fmt: skip


def forecast_words(ranking: Ranking, foreseen: Forecast) -> list[str]:
    """Return the next steps: what all rivals together foresee, and the first two by themselves."""
    names = [row.name for row in ranking.rows[:2] if row.filtered is not None]
    fans = {fan.name: fan for fan in foreseen.each}
    rows: list[Sequence[str]] = [("step", "median", "50 %", "90 %", *names)]
    for h, step in enumerate(foreseen.steps):
        together = foreseen.together
        ends = [interval(*(float(x) for x in together.counted[h, i])) for i in range(len(INTERVALS))]
        alone = [number(float(fans[name].median[h]), 2) for name in names]
        rows.append((str(int(step)), number(float(together.median[h]), 2), *ends, *alone))
    return [
        "Forecast: share of rollouts that do not search first, all rivals by weight; then the median of single rivals",
        *_table(rows),
    ]


def checked_words(content: Mapping[str, Any], found: Checked) -> list[str]:
    """Return how a registered forecast fared."""
    data = content["data"]
    made = f"forecast of {content['registered_at']} from steps {data['first_step']} to {data['last_step']}"
    came = f"{len(found.steps)} steps, {found.steps[0]} to {found.steps[-1]}"
    lines = [f"{content['run']}: {made}, held against {came}"]
    if data["later_steps_at_hand"]:
        lines.append(
            f"  {data['later_steps_at_hand']} later steps were at hand when it was made: not a forecast in the dark"
        )
    for coverage, (count, n) in found.inside.items():
        lines.append(
            f"  {100 * coverage:.0f} % interval: {count} of {n} steps inside, {interval(*wilson(count, n))} if steps were "
            "independent, which they are not"
        )
    best = max(found.scores.values())
    rows = [("log P of what came", "nats", "behind")]
    rows += [(name, number(s, 4), number(best - s)) for name, s in sorted(found.scores.items(), key=lambda kv: -kv[1])]
    return [*lines, *_table(rows)]


def _verdict(ranking: Ranking) -> list[str]:
    first, tied = ranking.rows[0].name, [row.name for row in ranking.tied[1:]]
    lines = []
    if tied:
        lines.append(f"These data do not tell {first} from {' or '.join(tied)}: within {number(TIE_NATS)} nats.")
    if not ranking.informative:
        lines.append(
            f"{ranking.yardsticks[0].name.capitalize()}, one parameter and no mechanism, predicts as well: these steps are "
            "uninformative about mechanisms."
        )
    elif not tied:
        lines.append(
            f"{first.capitalize()} is sufficient in the fitted world and predicts better than the other rivals here."
        )
    return lines


def _row(row: Ranked, yardstick: bool = False) -> Sequence[str]:
    name = f"({row.name})" if yardstick else row.name
    if row.filtered is None:
        return (name, "no room", "", "", "", "")
    behind = number(row.behind) + (f" +- {number(row.spread, 2)}" if row.spread is not None else "")
    setting = ", ".join(f"{key} {number(low, 2)} to {number(high, 2)}" for key, (_, low, high) in row.setting.items())
    return (
        name,
        number(row.first, 4),
        number(row.later, 4),
        behind,
        "" if yardstick else number(row.weight, 2),
        setting,
    )


def _constants(ranking: Ranking) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = []
    for row in (*ranking.rows, *ranking.yardsticks):
        rows += [(f"{row.name}: {c.name}", *_tried(c)) for c in row.mechanism.constants]
    return rows


def _tried(constant: Constant) -> tuple[str, str]:
    n, unit = len(constant.values), f" {constant.unit}" if constant.unit else ""
    if n == 1:
        return f"{number(constant.values[0])}{unit}", "1 value tried"
    return (
        f"{number(min(constant.values))} to {number(max(constant.values))}{unit}",
        f"{n} values, weighed by the counts",
    )


def _table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Align columns, two spaces between."""
    every = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in every) for i in range(len(every[0]))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in every]
