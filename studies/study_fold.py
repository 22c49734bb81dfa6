"""A constant push meets a fold: below it guessing rests at a predicted share, above it passage has a bottleneck (H9).

Why. A push of v logits a step works against the restoring drift F(z) = eta Delta g (1 - g), which is bounded by
v_c = eta Delta / 4. Below v_c the share of guessing rests at g* = (1 - sqrt(1 - v / v_c)) / 2, at one half at the most;
above it nothing is at rest, and just above it z lingers where the drift is strongest: T = integral of dz / (v - F(z)),
which grows as (v - v_c)^(-1/2), while distance over speed would hardly notice v_c (T4).

Design. Seed A's world, SGD 2.4, one push from the first step to the last; v_c with the exact gap at z = 0. The arms differ
in v / v_c. Share at rest: mean over the second half of the run. Passage: the first step with a share of one half. The gap
shrinks from .46 to .39 as guessing spreads; the prediction of the share is what that does to the closed form, and the
prediction of the passage is what sampling noise does to the integral (median of the scalar chain
z' = z + v - F(z) + sd(z) N(0, 1), which knows nothing of the loop).
"""

import numpy as np
from scipy.special import expit, logit

from sim.learning.optimisers import Sgd
from sim.learning.presets import null
from sim.learning.setup import Drive
from sim.mdp.theory.drift import Objective, gap_along
from sim.mdp.theory.fold import Fold
from sim.records.config import replace
from sim.signals.onsets import first_passages
from studies.kit import Control, Prediction, above, below, claim, figures, mean, median, rate, within
from studies.kit.slopes import power

GUESS = "decision/share/start/answer"
SEEDS = 16
PROMPTS = 64
BELOW = {0.3: 80, 0.5: 80, 0.7: 100, 0.8: 140, 0.9: 200}  # push over v_c: steps; rest comes later near the fold
ABOVE = {1.1: 120, 1.25: 60, 1.5: 60, 2.0: 60}


@claim(
    "share-at-rest-follows-the-fold",
    says="Under a push below the fold guessing rests within .05 of (1 - sqrt(1 - v / v_c)) / 2.",
    kind=median(),
    region=below(0.05),
    predicts=Prediction(0.025, source="the same with the gap as it changes with the share, at v = .9 v_c"),
    unit="largest distance of the share from g*, over five pushes from .3 to .9 v_c",
    seeds=SEEDS,
    expect="supported",
    source="H9; theory T4",
    reverses="the optimiser: Adam's pull does not shrink with the share, so it has no fold at eta Delta / 4",
    controls=(Control("1.25 v_c: share of seeds with more than half guessing at the end", above(0.7)),),
)
@claim(
    "passage-above-the-fold-takes-the-integral",
    says="A push of 1.1 v_c takes the steps that the integral through the bottleneck gives, within 20 %.",
    kind=mean(scale="log"),
    region=within(0.8, 1.2),
    predicts=Prediction(
        0.97, source="median of the scalar chain with sampling noise, 50 steps, over the integral, 51.4"
    ),
    unit="steps to one half, as a ratio to the integral",
    seeds=SEEDS,
    expect="supported",
    source="H9; theory T4",
    reverses="the optimiser: Adam passes at the push's own speed less alpha",
)
@claim(
    "passage-slows-as-the-fold-nears",
    says="As the push comes down to v_c, passage slows as a bottleneck does and not as distance over speed.",
    kind=median(),
    region=below(-0.4),
    predicts=Prediction(-0.615, source="the integral at the same four pushes; distance over speed gives -.26"),
    unit="slope of log steps on log(v / v_c - 1), over 1.1 to 2 v_c",
    seeds=SEEDS,
    expect="supported",
    source="H9; theory T4",
    reverses="the restoring pull: without it the slope is that of distance over speed",
    controls=(Control("the same pushes without a pull", above(-0.4)),),
)
def study_fold(study):
    fold, exact = folds(null())
    runs = study.sweep({f"{x:g} v_c": pushed(x, fold) for x in (*BELOW, *ABOVE)})
    at_rest = {x: runs[f"{x:g} v_c"][GUESS][:, steps // 2 :].mean(1) for x, steps in BELOW.items()}
    stable = {x: fold.fixed_point(x * fold.critical_drive) for x in BELOW}
    study.conclude(
        "share-at-rest-follows-the-fold",
        values=np.max([np.abs(at_rest[x] - stable[x]) for x in BELOW], axis=0),
        moved=np.ptp(runs["0.3 v_c"][GUESS], axis=1) > 0,
    )
    study.control(
        "share-at-rest-follows-the-fold",
        "1.25 v_c: share of seeds with more than half guessing at the end",
        kind=rate(),
        outcomes=runs["1.25 v_c"][GUESS][:, -1] > 0.5,
    )

    steps = {x: passages(runs[f"{x:g} v_c"]) for x in ABOVE}
    integral = {x: exact.passage_steps(x * fold.critical_drive, start(null())) for x in ABOVE}
    study.conclude(
        "passage-above-the-fold-takes-the-integral",
        treated=steps[1.1],
        control=np.full(len(steps[1.1]), integral[1.1]),
    )
    study.control(
        "passage-above-the-fold-takes-the-integral",
        "0.8 v_c: share of seeds that pass",
        kind=rate(),
        region=below(0.3),
        outcomes=np.isfinite(passages(runs["0.8 v_c"])),
    )
    study.conclude("passage-slows-as-the-fold-nears", values=slowing(steps))
    free = study.sweep({f"{x:g} v_c, no pull": pushed(x, fold, rate=0.0) for x in ABOVE}, seeds=study.seeds(6))
    study.control(
        "passage-slows-as-the-fold-nears",
        "the same pushes without a pull",
        values=slowing({x: passages(free[f"{x:g} v_c, no pull"]) for x in ABOVE}),
    )
    _show(study, fold, exact, at_rest, steps, integral)


def folds(config):
    """The fold with the gap at z = 0, and with the gap as a function of z."""
    gap = _gap(config)
    return Fold(config.optimiser.rate, gap(0.0)), Fold(config.optimiser.rate, gap)


def _gap(config):
    """Delta of z. A member's success is linear in g, so Delta is a polynomial of degree G - 1 in g: G values give it."""
    G = config.group
    share = (1 - np.cos(np.pi * (np.arange(G) + 0.5) / G)) / 2
    gaps = gap_along(config.graph(), config.policy().z0, logit(share), Objective(group=G))
    found = np.polynomial.Polynomial.fit(share, gaps, G - 1)
    return lambda z: float(found(expit(z)))


def start(config):
    return dict(config.habit)["start/answer"]


def pushed(times, fold, rate=2.4):
    """The plain learner under `times` the critical drive from the first step to the last, long enough to pass."""
    steps = (BELOW | ABOVE)[times]
    drive = Drive(rate=times * fold.critical_drive, start=0, duration=steps)
    return replace(null(), {"drive": drive, "steps": steps, "prompts": PROMPTS, "optimiser": Sgd(rate)})


def passages(runs):
    return first_passages(runs[GUESS], 0.5)


def slowing(steps):
    """Slope of log steps on log(v / v_c - 1) for each seed; NaN where a push did not pass."""
    return power({x - 1: found for x, found in steps.items()})


def _show(study, fold, exact, at_rest, steps, integral):
    critical, z0 = fold.critical_drive, start(null())
    made, axes = figures.figure(columns=2, size=(8.2, 3.8))
    under, over = np.linspace(0, 1, 61), np.geomspace(1.06, 2.2, 40)
    figures.points(
        {"measured": at_rest},
        curves={
            "constant gap": (under, [fold.fixed_point(x * critical) for x in under]),
            "gap as it changes": (under, [exact.fixed_point(x * critical) for x in under]),
        },
        title="Below the fold guessing rests",
        xlabel="push, v / v_c",
        ylabel="share of guessing at rest",
        axes=axes[0],
    )
    figures.points(
        {"measured": steps},
        curves={
            "integral": (over, [exact.passage_steps(x * critical, z0) for x in over]),
            "distance over speed": (over, -z0 / (over * critical)),
        },
        title="above it passage has a bottleneck",
        xlabel="push, v / v_c",
        ylabel="steps to one half",
        axes=axes[1],
    )
    caption = f"{SEEDS} seeds an arm; v_c = {critical:.4f} logits a step."
    study.figure("share-at-rest-follows-the-fold", made, caption=caption)
    study.table(
        "share-at-rest-follows-the-fold",
        ("v / v_c", "share at rest, median", "least", "most", "constant gap", "gap as it changes"),
        [(x, *_range(at_rest[x]), fold.fixed_point(x * critical), exact.fixed_point(x * critical)) for x in BELOW],
    )
    study.table(
        "passage-above-the-fold-takes-the-integral",
        ("v / v_c", "steps, median", "least", "most", "integral", "constant gap", "distance / speed", "bottleneck / 2"),
        [
            (
                x,
                *_range(steps[x]),
                integral[x],
                fold.passage_steps(x * critical, start(null())),
                -start(null()) / (x * critical),
                fold.bottleneck_steps(x * critical) / 2,
            )
            for x in ABOVE
        ],
    )


def _range(values):
    return float(np.median(values)), float(values.min()), float(values.max())
