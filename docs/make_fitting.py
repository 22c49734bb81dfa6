"""Print the tables of docs/fitting.md: ``python docs/make_fitting.py [RUNS] [PROCESSES]``, some minutes at 20 runs.

Seeds 10,000 and on, which no choice was made on.
"""

import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from sim.learning.presets import length_window
from sim.mdp.worlds import World
from studies.kit.figures import svg
from studies.kit.fitting.figure import draw
from studies.kit.fitting.forecast import forecast
from studies.kit.fitting.rank import rank
from studies.kit.fitting.trials import TRUE, Outcome, carry_out, confusion, coverage, quiet, trials
from studies.kit.intervals import wilson

FIRST = 10_000


def outcomes(task: tuple[str, int, int, World | None]) -> list[Outcome]:
    """Return what fits make of so many runs of one mechanism at one size of batch, in the world of its preset or another."""
    truth, runs, prompts, world = task
    return [carry_out(trial) for trial in trials(truth, runs, prompts=prompts, first=FIRST, world=world)]


def table(found: list[Outcome], rollouts: int) -> str:
    """Return the confusion matrix, the ties and the coverages of one size of batch, as Markdown."""
    lines = [
        f"| {rollouts} rollouts a step | " + " | ".join(TRUE) + " | in the tie | told apart | by first alone | steps |"
    ]
    lines.append("|---" * (len(TRUE) + 5) + "|")
    for truth, row in confusion(found).items():
        mine = [o for o in found if o.truth == truth]
        tied = sum(truth in o.tied for o in mine)
        alone = sum(o.tied == (truth,) for o in mine)
        by_first = sum(o.by_first == truth for o in mine)
        steps = f"{np.median([o.steps for o in mine]):.0f}"
        cells = (*row.values(), tied, alone, by_first, steps)
        lines.append(f"| {truth} | " + " | ".join(map(str, cells)) + " |")
    right = sum(o.order[0] == o.truth for o in found)
    low, high = wilson(right, len(found))
    lines.append(f"\nThe true one first: {right} of {len(found)} (95 % interval {low:.2f} to {high:.2f}).")
    return "\n".join(lines)


def coverages(found: list[Outcome]) -> str:
    """Return how often the next ten steps lay inside the intervals, with the run as the unit, as Markdown."""
    lines = []
    for truth in (*TRUE, "all"):
        mine = [o for o in found if truth in (o.truth, "all")]
        cells = [coverage(mine, nominal, true) for nominal in (0.5, 0.9) for true in (False, True)]
        lines.append(f"| {truth} | " + " | ".join(f"{share:.2f} +- {error:.2f}" for share, error in cells) + " |")
    return "\n".join(lines)


def controls(runs: int) -> str:
    """Return what fits make of runs in which nothing happens."""
    found = [rank(seen) for seen in quiet(runs, first=FIRST)]
    alone = [r for r in found if len(r.tied) == 1]
    said = [r.rows[0].name for r in alone if r.informative]
    firsts = ", ".join(f"{name} {n}" for name, n in Counter(r.rows[0].name for r in found).most_common())
    return (
        f"Nothing happens, {runs} runs: {sum(r.informative for r in found)} said to be informative; one rival two nats "
        f"ahead of all others in {len(alone)}, of which {len(said)} said to be informative ({', '.join(said) or 'none'}); "
        f"first: {firsts}."
    )


def picture() -> None:
    """Write docs/fitting.svg: the first pushed run."""
    (trial,) = trials("push", 1, first=FIRST)
    ranking = rank(trial.seen)
    path = Path(__file__).with_name("fitting.svg")
    drawn = svg(draw(ranking, forecast(ranking), trial.came)).replace("<svg ", '<svg style="background: white" ', 1)
    path.write_text(drawn, encoding="utf-8")


def main(runs: int = 20, processes: int = 2) -> None:
    """Print both tables for each size of batch, then for all truths in one world, then the controls."""
    one = length_window().world
    for prompts, world in ((128, None), (32, None), (128, one)):
        with ProcessPoolExecutor(processes) as pool:
            tasks = [(truth, runs, prompts, world) for truth in TRUE]
            found = [o for part in pool.map(outcomes, tasks) for o in part]
        print("" if world is None else "All in the world of the length window", flush=True)  # noqa: T201
        print(table(found, 8 * prompts), "\n")  # noqa: T201
        print(coverages(found), "\n", flush=True)  # noqa: T201
    print(controls(2 * runs))  # noqa: T201
    picture()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
