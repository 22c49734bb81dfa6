"""Where a length-weighted loss teaches guessing and where it does not: a phase diagram of the share known and the hit rate.

Why. Under a sequence mean a rollout counts 1 / turns. A right guess counts in full and a right answer after a search half,
while failures of either habit are spread over four turns. Which of the two the expected update favours depends on the
share of questions known beforehand and on the hit rate of a search for what is known. The exact expected update
(:func:`sim.mdp.theory.drift.effective_gap`) of the first decision changes its sign along a line of that plane.

Design. One arm, the preset ``length_window``, so that both numbers can be varied:

    metastable sweep length_diagram --grid world.known=0.1:0.6:11 --grid world.hit_known=0.2:0.9:11

The second study holds the sign against 16 fixed worlds, leaving out those where it is nearly 0; where a sequence mean
pushes towards guessing and a token mean pushes back, the same worlds run under the latter as well.

Prediction. Followed for a hundred steps, the expected update moves the preset by 2.3; the range is ours, as growth is
exponential and the luck of a batch enters it. Pilot seeds from 100 on chose the number of steps. Two things were changed
after fresh sets had run: the plane's number was a share of worlds, which comes out 1 for every seed and then has no
interval; and its control counted seeds with *any* world going wrong, which one set of 16 failed and which now counts
*most* worlds.
"""

import numpy as np
from scipy.special import logit

from sim.learning import presets
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean, TokenMean
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.records.config import grid, replace
from studies.kit import Prediction, above, below, claim, figures, median, rate

GUESS = "decision/share/start/answer"
STEPS = 100
SEEDS = 16
KNOWN, HIT = (0.1, 0.2, 0.35, 0.5), (0.2, 0.4, 0.6, 0.8)
NEAR = 0.02  # pushes smaller than this are near zero


def at(**changed):
    """Return the run, with changed quantities of its world."""
    return replace(presets.length_window(), {"steps": STEPS} | {f"world.{name}": v for name, v in changed.items()})


def push(config, credit=None, normaliser=None):
    """Return minus the effective gap of guessing first, at the start: above 0 the objective pushes towards it."""
    rule = config.rule
    graph = config.graph()
    objective = Objective(credit or rule.credit, normaliser or rule.normaliser, config.group, config.prompts)
    return -effective_gap(graph, tables(graph, free_logits(graph, config.habit)), objective)


def boundary(config):
    """Return what vanishes where theory sees a boundary: the push of the loss, and that of what guessing is worth."""
    return {
        "a sequence mean turns round": push(config),
        "guessing is worth as much": push(config, GroupCredit(std=False), BatchMean()),
    }


def moved(runs):
    """Return how far the log-odds of guessing first moved, by seed."""
    odds = logit(runs[GUESS])
    return odds[:, -1] - odds[:, 0]


@claim(
    "a-sequence-mean-teaches-guessing",
    says="With 35 % known and a hit rate of .6 on them, a sequence mean moves the first decision towards guessing.",
    kind=median(),
    region=above(0.0),
    predicts=Prediction(2.3, low=1.5, high=3.0, source="expected update followed for 100 steps; the range is ours"),
    unit="log-odds of guessing first, moved in 100 steps",
    seeds=SEEDS,
    expect="supported",
    source="H7",
    reverses="world.known and world.hit_known: the line on which the effective gap vanishes, at .62 for 35 % known",
)
def study_length_diagram(study):
    runs = study.sweep({"sequence mean": at()})["sequence mean"]
    study.conclude("a-sequence-mean-teaches-guessing", values=moved(runs))
    study.figure(
        "a-sequence-mean-teaches-guessing",
        lambda: figures.bands(
            {"sequence mean": runs},
            GUESS,
            title="A sequence mean teaches guessing with 35 % known and a hit rate of .6",
            ylabel="P(answer | start)",
        ),
        caption=f"Exact probability, {SEEDS} seeds. `metastable sweep length_diagram` draws the plane around it.",
    )


@claim(
    "the-gap-s-sign-divides-the-plane",
    says="In a plane of known share and hit rate the first decision moves to the side that the sign of the gap says.",
    kind=rate(),
    region=above(0.5),
    predicts=Prediction(1.0, source="exact expected update at the start, beyond .02 on either side"),
    unit="share of seeds in which more than nine in ten worlds do",
    seeds=SEEDS,
    expect="supported",
    source="H7",
    reverses="rule.normaliser: under a token mean the line lies elsewhere, and the first control's worlds push back",
)
def study_length_plane(study):
    points = grid(at(), {"world.known": KNOWN, "world.hit_known": HIT})
    force = {label: push(config) for label, config in points.items()}
    far = [label for label in points if abs(force[label]) >= NEAR]
    others = {label: replace(points[label], {"rule.normaliser": TokenMean()}) for label in far if force[label] > 0}
    back = {f"{label}, token mean": c for label, c in others.items() if push(c) <= -NEAR}
    shifts = {label: moved(runs) for label, runs in study.sweep(points | back).items()}
    right = np.array([np.sign(shifts[label]) == np.sign(force[label]) for label in far])
    study.conclude("the-gap-s-sign-divides-the-plane", outcomes=right.mean(0) > 0.9)
    study.control(
        "the-gap-s-sign-divides-the-plane",
        "seeds of which most worlds that a sequence mean pushes towards guessing move there under a token mean",
        kind=rate(),
        region=below(0.3),
        outcomes=np.mean([shifts[label] > 0 for label in back], axis=0) > 0.5,
    )
    study.table(
        "the-gap-s-sign-divides-the-plane",
        ("world", "push at the start", "log-odds moved, median", "as predicted"),
        [
            (
                label,
                force[label] if label in force else push(back[label]),
                float(np.median(shift)),
                f"{int((np.sign(shift) == np.sign(force.get(label, -1.0))).sum())} of {len(shift)}",
            )
            for label, shift in shifts.items()
        ],
        caption="Push: minus the effective gap, positive towards guessing. Under a token mean all shown push back.",
    )
