"""The further a push went, the exponentially longer the way back; Adam's way back depends on its memory (H10).

Why. Where nearly all rollouts guess, nearly none is left to show that searching pays: the restoring drift
eta Delta g (1 - g) falls as exp(-z). Under SGD the return from log-odds z_m therefore takes
T = 2 (s(z_m) - s(z_end)) / (eta Delta), s(z) = z + sinh z, a logit further e times as long in the limit (T4). Adam divides
by the size of the gradient. Started out there, it has seen only small gradients and comes back at constant speed. Pushed
there, it has passed the middle, where gradients are largest; its second moment remembers them for a thousand steps, and
it lies between the two.

Design. Seed A's world. Pushes of a few steps, three a seed; z_m is the log-odds of guessing when a push ends, and the
return lasts until the share is below .2. The measure is the slope of log T on z_m. The same for an Adam that starts at
z_m = 4, 5, 6. Predictions iterate the exact expected update (for Adam its expected moments), without the loop.
"""

import numpy as np
from scipy.special import expit

from sim.learning.optimisers import Adam, Sgd
from sim.learning.presets import null
from sim.learning.setup import Drive
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.adam import expected_course
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.theory.fold import recovery_steps
from sim.records.config import replace
from sim.signals.onsets import Direction, first_passages
from studies.kit import Control, Prediction, above, below, claim, figures, median, within
from studies.kit.slopes import slope

GUESS, LOGIT = "decision/share/start/answer", "policy/logit/start/answer"
SEEDS = 12
BACK = 0.2
SGD, ADAM = Sgd(6.0), Adam(0.1)
SGD_PUSHES = {(1.65, 6): 100, (1.8, 6): 200, (1.95, 6): 500}  # logits a step, steps pushed: steps in all
ADAM_PUSHES = {(1.0, 9): 110, (1.0, 10): 150, (1.0, 11): 300}
STARTS = {4.0: 100, 5.0: 140, 6.0: 300}  # log-odds at first: steps; a few seeds wander off before they come back


@claim(
    "overshoot-lengthens-the-return-exponentially",
    says="Under SGD, log time to return grows by about one for every logit that the push went further.",
    kind=median(),
    region=within(0.7, 1.1),
    predicts=Prediction(0.88, source="expected updates after the three pushes, z_m 3.9 to 6; 1 in the limit"),
    unit="slope of log steps to return on z_m",
    seeds=SEEDS,
    expect="supported",
    source="H10; theory T4",
    reverses="the optimiser: Adam that starts out there comes back at constant speed",
    controls=(Control("Adam that starts out there", below(0.4)),),
)
@claim(
    "adam-started-far-out-returns-at-constant-speed",
    says="An Adam that starts far out comes back in a time that hardly depends on how far.",
    kind=median(),
    region=below(0.4),
    predicts=Prediction(0.16, source="expected moments, from z = 4, 5, 6; constant speed gives the same"),
    unit="slope of log steps to return on z_m",
    seeds=SEEDS,
    expect="supported",
    source="H10; theory T5",
    reverses="the optimiser: SGD",
    controls=(Control("SGD", above(0.4)),),
)
@claim(
    "adam-remembers-the-push",
    says="Pushed out there, the same Adam returns by a steeper law than when it starts there: it remembers the passage.",
    kind=median(),
    region=above(0.1),
    predicts=Prediction(0.29, source="expected moments: .45 pushed to z_m 4 to 5.9, .16 started at 4 to 6"),
    unit="slope of log steps to return on z_m, pushed minus started",
    seeds=SEEDS,
    expect="supported",
    source="H10",
    reverses="the push: one that jumps over the middle in a single step leaves nothing to remember",
)
def study_overshoot(study):
    runs = study.sweep(pushes(SGD, SGD_PUSHES) | pushes(ADAM, ADAM_PUSHES) | starts(ADAM))
    found = {
        "SGD, pushed": [returns(runs[f"Sgd, pushed {v:g} x {n}"], n) for v, n in SGD_PUSHES],
        "Adam, pushed": [returns(runs[f"Adam, pushed {v:g} x {n}"], n) for v, n in ADAM_PUSHES],
        "Adam, started there": [returns(runs[f"Adam, started at {z:g}"], 0) for z in STARTS],
    }
    law = {label: slopes(ways) for label, ways in found.items()}
    study.conclude("overshoot-lengthens-the-return-exponentially", values=law["SGD, pushed"])
    study.control(
        "overshoot-lengthens-the-return-exponentially",
        "Adam that starts out there",
        values=law["Adam, started there"],
    )
    study.conclude("adam-started-far-out-returns-at-constant-speed", values=law["Adam, started there"])
    study.control("adam-started-far-out-returns-at-constant-speed", "SGD", values=law["SGD, pushed"])
    study.conclude("adam-remembers-the-push", values=law["Adam, pushed"] - law["Adam, started there"])
    _show(study, found)


def base():
    """Plain GRPO on seed A's world, 64 questions a batch."""
    return replace(null(), {"prompts": 64})


def pushes(optimiser, lengths):
    """One run a push (logits a step, steps), from the first step on; the label is its optimiser and its push."""
    return {
        f"{type(optimiser).__name__}, pushed {v:g} x {n}": replace(
            base(), {"optimiser": optimiser, "steps": steps, "drive": Drive(rate=v, start=0, duration=n)}
        )
        for (v, n), steps in lengths.items()
    }


def starts(optimiser):
    """One run a starting point, without a push."""
    others = [(name, z) for name, z in base().habit if name != "start/answer"]
    return {
        f"Adam, started at {z:g}": replace(
            base(), {"optimiser": optimiser, "steps": steps, "habit": (("start/answer", z), *others)}
        )
        for z, steps in STARTS.items()
    }


def returns(runs, end):
    """z_m and the steps from there to a share below .2, [seeds] each; the push ends at step `end`."""
    return runs[LOGIT][:, end], first_passages(runs[GUESS][:, end:], BACK, direction=Direction.DOWN)


def slopes(ways):
    """Slope of log steps on z_m over the arms, for each seed; NaN where a run did not return."""
    z, steps = zip(*ways, strict=True)
    return slope(z, np.log(steps))


def expected_returns(optimiser, pushes):
    """Steps to return by Adam's expected moments, with the gap at z = 0 throughout; (z_m, steps) for each push."""
    config = base()
    graph = config.graph()
    gap = effective_gap(graph, tables(graph, free_logits(graph, config.habit, start__answer=0.0)), Objective())
    noise = 0.5 / (config.prompts * config.group)  # mean squared advantage, over rollouts
    found = []
    for v, n in pushes:
        z = expected_course(
            lambda z: -gap * expit(z) * expit(-z),
            lambda z: noise * expit(z) * expit(-z),
            start=dict(config.habit)["start/answer"],
            push=np.where(np.arange(500) < n, v, 0.0),
            optimiser=optimiser,
        )
        found.append((z[n], float(first_passages(expit(z[n:]), BACK, direction=Direction.DOWN))))
    return gap, np.array(found).T


def _show(study, found):
    gap, adam = expected_returns(ADAM, ADAM_PUSHES)
    far = np.linspace(3.5, 6.2, 40)
    low = float(np.log(BACK / (1 - BACK)))
    figure = figures.points(
        {label: {float(np.median(z)): steps for z, steps in ways} for label, ways in found.items()},
        curves={
            "SGD, pushed": (far, [recovery_steps(SGD.rate, gap, z, low) for z in far]),
            "Adam, pushed": adam,
            "Adam, started there": (far, (far - low) / ADAM.rate),
        },
        title="SGD pays for overshoot exponentially, Adam for what it remembers",
        xlabel="log-odds of guessing when the push ended, z_m (median)",
        ylabel="steps to a share below .2",
        log="y",
    )
    study.figure(
        "overshoot-lengthens-the-return-exponentially",
        figure,
        caption=f"{SEEDS} seeds an arm. Lines: 2 (s(z_m) - s(z_end)) / (eta Delta); expected moments of Adam after the same "
        "push; constant speed alpha.",
    )
    study.table(
        "overshoot-lengthens-the-return-exponentially",
        ("arm", "z_m, median", "steps, median", "least", "most"),
        [
            (label, float(np.median(z)), float(np.median(t)), float(t.min()), float(t.max()))
            for label, ways in found.items()
            for z, t in ways
        ],
    )
