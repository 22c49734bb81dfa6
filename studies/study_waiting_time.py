"""How long a behaviour that pays waits to emerge: SGD like 1 / p0, the natural gradient and Adam like its logarithm (H11).

Why. Under SGD a behaviour used with probability p moves at eta D p (1 - p): what is not tried is not learnt, and the wait
from p0 to one half is 2 (|z0| + sinh |z0|) / (eta D), about 1 / (p0 eta D). The natural gradient divides by p (1 - p) and
Adam by the size of the gradient; their log-odds move at a speed that does not know p0, and the wait is |z0| / speed.
The width of the S-curve, from 10 to 90 %, does not depend on p0 in either case, so the ratio of wait to width tells SGD
from the others without knowing speed or gap (T5).

Design. The verify world, where verifying pays .18 of reward; advantages not divided by the group's spread, so that the gap
is nearly constant. Four p0 from .1 to .003, the same seeds in every arm; 512 rollouts a batch. The measure is the slope of
log T50 on log p0 for each seed. For Adam the prediction iterates its expected moments: its second moment lags behind a
growing gradient, which makes it quicker, and noise makes it slower; constant speed gives -.28.
"""

import numpy as np

from sim.learning.credit import GroupCredit
from sim.learning.optimisers import Adam, Natural, Sgd
from sim.learning.presets import verify
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.theory.waiting import adam, natural, power_of_ratio, sgd
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Control, Prediction, above, below, claim, figures, mean, median, within
from studies.kit.slopes import power

VERIFY = "decision/share/fresh/verify"
SEEDS = 12
P0 = (0.1, 0.03, 0.01, 0.003)
RARE = P0[-1]
OPTIMISERS = {"SGD": Sgd(6.0), "natural": Natural(0.3), "Adam": Adam(0.1)}
STEPS = {
    "SGD": (40, 80, 190, 520),
    "natural": (80, 120, 150, 280),
    "Adam": (50, 90, 160, 400),
}  # the last to 90 %; a few wander


@claim(
    "sgd-waits-for-one-over-p0",
    says="Under SGD the wait for a behaviour that pays grows nearly as one over how often it is used at first.",
    kind=median(),
    region=within(-1.1, -0.8),
    predicts=Prediction(-0.93, source="2 (|z0| + sinh |z0|) / (eta D) at the four p0; -1 in the limit"),
    unit="slope of log T50 on log p0",
    seeds=SEEDS,
    expect="supported",
    source="H11; theory T5",
    reverses="the optimiser: the natural gradient and Adam wait for the logarithm",
    controls=(Control("natural", above(-0.6)),),
)
@claim(
    "natural-gradient-waits-for-the-logarithm",
    says="Under the natural gradient the wait grows about as the logarithm of 1 / p0, far more slowly than 1 / p0.",
    kind=median(),
    region=within(-0.45, -0.1),
    predicts=Prediction(-0.275, source="|z0| / (eta D) at the four p0"),
    unit="slope of log T50 on log p0",
    seeds=SEEDS,
    expect="supported",
    source="H11; theory T5",
    reverses="the optimiser: SGD",
    controls=(Control("SGD", below(-0.6)),),
)
@claim(
    "adam-waits-for-the-logarithm",
    says="Under Adam the wait grows about as the logarithm of 1 / p0, far more slowly than 1 / p0.",
    kind=median(),
    region=within(-0.45, -0.1),
    predicts=Prediction(-0.3, source="expected moments of Adam at 512 rollouts"),
    unit="slope of log T50 on log p0",
    seeds=SEEDS,
    expect="supported",
    source="H11; theory T5",
    reverses="the optimiser: SGD",
    controls=(Control("SGD", below(-0.6)),),
)
@claim(
    "wait-over-width-tells-the-optimiser",
    says="From three uses in a thousand, the ratio of wait to width is more than twice as large under SGD.",
    kind=mean(scale="log"),
    region=above(2),
    predicts=Prediction(
        5.3, source="13 for SGD against 2.4 for Adam (expected moments) and 1.3 for the natural gradient"
    ),
    unit="wait / width, SGD over the larger of natural and Adam",
    seeds=SEEDS,
    expect="supported",
    source="H11; theory T5",
    reverses="p0: at one use in ten the wait is half the width whatever the optimiser",
)
def study_waiting_time(study):
    runs = study.sweep({f"{name}, p0 = {p0:g}": c for name in OPTIMISERS for p0, c in arms(name).items()})
    waits = {name: {p0: wait(runs[f"{name}, p0 = {p0:g}"]) for p0 in P0} for name in OPTIMISERS}
    slope = {name: power(found) for name, found in waits.items()}
    ratio = {name: found[RARE] / width(runs[f"{name}, p0 = {RARE:g}"]) for name, found in waits.items()}
    study.conclude("sgd-waits-for-one-over-p0", values=slope["SGD"])
    study.control("sgd-waits-for-one-over-p0", "natural", values=slope["natural"])
    study.conclude("natural-gradient-waits-for-the-logarithm", values=slope["natural"])
    study.control("natural-gradient-waits-for-the-logarithm", "SGD", values=slope["SGD"])
    study.conclude("adam-waits-for-the-logarithm", values=slope["Adam"])
    study.control("adam-waits-for-the-logarithm", "SGD", values=slope["SGD"])
    study.conclude(
        "wait-over-width-tells-the-optimiser",
        treated=ratio["SGD"],
        control=np.maximum(ratio["natural"], ratio["Adam"]),
    )
    _show(study, runs, waits, ratio)


def arms(name, **changes):
    """The verify world under one optimiser, by p0."""
    return {
        p0: replace(verify(p0), {"optimiser": OPTIMISERS[name], "prompts": 64, "steps": steps} | changes)
        for p0, steps in zip(P0, STEPS[name], strict=True)
    }


def wait(runs):
    """T50: steps to a share of one half, [seeds]; NaN where it is not reached."""
    return first_passages(runs[VERIFY], 0.5)


def width(runs):
    """Steps from a share of 10 % to 90 %, [seeds]."""
    return first_passages(runs[VERIFY], 0.9) - first_passages(runs[VERIFY], 0.1)


def gap(config):
    """D, the gap in favour of verifying where training starts."""
    graph = config.graph()
    return -effective_gap(
        graph, tables(graph, config.policy().z0), Objective(GroupCredit(std=False)), logit="fresh/verify"
    )


def _show(study, runs, waits, ratio):
    D = gap(verify(RARE))
    theory = {
        "SGD": sgd(OPTIMISERS["SGD"].rate, D),
        "natural": natural(OPTIMISERS["natural"].rate, D),
        "Adam": adam(OPTIMISERS["Adam"].rate),
    }
    fine = np.geomspace(0.0025, 0.11, 30)
    made, axes = figures.figure(columns=2, size=(9.2, 4.0))
    figures.points(
        waits,
        curves={name: (fine, [found.wait(p) for p in fine]) for name, found in theory.items()},
        title="SGD waits for 1 / p0",
        xlabel="share at first, p0",
        ylabel="steps to one half",
        log="xy",
        axes=axes[0],
    )
    figures.bands(
        {name: runs[f"{name}, p0 = {RARE:g}"] for name in OPTIMISERS},
        VERIFY,
        title=f"from p0 = {RARE:g}: long wait, short rise",
        ylabel="P(verify | fresh evidence)",
        axes=axes[1],
    )
    caption = f"{SEEDS} seeds an arm, 512 rollouts a batch. Lines left: closed forms, with D = {D:.3f}."
    study.figure("sgd-waits-for-one-over-p0", made, caption=caption)
    study.table(
        "sgd-waits-for-one-over-p0",
        ("optimiser", "p0", "T50, median", "least", "most", "closed form"),
        [
            (name, p0, float(np.median(t)), float(t.min()), float(t.max()), theory[name].wait(p0))
            for name, found in waits.items()
            for p0, t in found.items()
        ],
    )
    study.table(
        "wait-over-width-tells-the-optimiser",
        ("optimiser", "wait / width, median", "closed form", "power it points to", "its own"),
        [
            (
                name,
                float(np.median(found)),
                theory[name].ratio(RARE),
                power_of_ratio(float(np.median(found)), RARE),
                theory[name].power,
            )
            for name, found in ratio.items()
        ],
        caption="dz/dt = speed x (p (1 - p))^power: 1 is SGD, 0 a speed that does not know p. Adam lies between as it gains "
        "speed while the gradient grows.",
    )
