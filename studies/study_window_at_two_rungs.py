"""One claim at two rungs: in one world a length-weighted loss makes guessing first common, in a table and in a network (H7).

Why. A sequence mean counts a rollout 1 / turns, so a right guess counts twice a right answer after a search, and the blame
of a wrong one is spread over four turns. With a quarter of the questions known and a hit rate of .35, the enumerated update
of the first decision points towards guessing (gap -.06) although guessing earns .52 and searching .58.

Design. The same world, rule (GRPO without a KL), batch (32 questions x 8 episodes) and habit (6 guesses in 100) at both
rungs. Below, a table of three private weights under SGD; above, a decoder of 119,360 parameters under AdamW, which has a
fact base and a supervised start of its own for every seed. How fast either goes is a matter of its optimiser, so what is
compared is a share of seeds: those that end with more than twice the guesses they began with. As a control, the same under
a token mean, whose enumerated gap is +.03.

Prediction. The sign of the gap: all seeds, and none in the control; written before measuring. The number of steps was chosen
on seeds 100 to 115 of the table and on a network of seed 100, used for nothing else. At the second rung the share of the
first is the prediction. Carried there (docs/ladder.md), six of eight networks did, which is undecided: in two the guesses
died out within twenty steps. A second attempt, with seeds added until decided, had eight of eight.
"""

import numpy as np
from scipy.special import logit

from sim.learning.family import grpo
from sim.learning.normalisers import TokenMean
from sim.learning.optimisers import Sgd
from sim.learning.setup import Training
from sim.mdp.worlds import World
from sim.records.config import replace
from studies.kit import Prediction, above, below, claim, figures, rate

GUESS = "decision/share/start/answer"
HABIT = 0.06
CHANCE = 1 / 64  # a guess out of nothing is one of 64 answers


def table():
    """Return the first rung's run: the world of ``minimodel.presets.retry`` as its tokens play it."""
    world = World(
        known=0.25,
        guess_unknown=CHANCE,
        hit_known=0.35,
        retry_known=1.0,
        hit_unknown=0.35,
        icc=0.0,
        unknown_kinds=1,
        anchoring=1.0,
        stale=CHANCE,
    )
    habit = (("start/answer", float(logit(HABIT))), ("fresh/answer", 7.0), ("failed/answer", -7.0))
    return Training(world=world, habit=habit, rule=grpo(kl=0.0), optimiser=Sgd(6.0), prompts=32, group=8, steps=150)


def network():
    """Return the second rung's run; the preset needs torch, which the first rung does not."""
    from minimodel import presets

    return replace(presets.retry(), {"start.script.guess": HABIT, "steps": 40, "evaluation": None, "watched": 1})


@claim(
    "length-weighting-teaches-guessing-at-two-rungs",
    says="Inside its window a sequence mean more than doubles guessing first in most runs, of a table and of a network.",
    kind=rate(),
    region=above(0.5),
    predicts=Prediction(1.0, source="enumerated gap, -.06"),
    unit="share of seeds that end with more than twice the guesses they began with",
    seeds={"sim": 16, "minimodel": 8},
    expect={"sim": "supported", "minimodel": None},
    rungs=("sim", "minimodel"),
    long=("minimodel",),
    source="H7",
    reverses="the average: a token mean; or the hit rate, whose enumerated gap vanishes near .46",
)
def study_window_at_two_rungs(study):
    base = table() if study.rung == "sim" else network()
    runs = study.sweep({"sequence mean": base, "token mean": replace(base, {"rule.normaliser": TokenMean()})})
    doubled = {label: r[GUESS][:, -1] > 2 * r[GUESS][:, 0] for label, r in runs.items()}
    study.conclude("length-weighting-teaches-guessing-at-two-rungs", outcomes=doubled["sequence mean"])
    study.control(
        "length-weighting-teaches-guessing-at-two-rungs",
        "under a token mean few do",
        region=below(0.5),
        outcomes=doubled["token mean"],
    )
    study.figure(
        "length-weighting-teaches-guessing-at-two-rungs",
        figures.bands(
            runs, GUESS, title="A sequence mean teaches guessing; a token mean does not", ylabel="P(answer | start)"
        ),
        caption="Exact probability of guessing first, mean over the questions of a batch (mean and 10-90 % band of seeds).",
    )
    rows = [
        (label, int(doubled[label].sum()), len(doubled[label]), float(np.median(r[GUESS][:, 0])),
         float(np.median(r[GUESS][:, -1])))
        for label, r in runs.items()
    ]  # fmt: skip
    header = ("loss", "seeds that doubled", "of", "share at the start, median", "share at the end, median")
    study.table("length-weighting-teaches-guessing-at-two-rungs", header, rows)
