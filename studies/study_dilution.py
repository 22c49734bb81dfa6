"""Token statistics dilute what a decision does by the number of content tokens (H14).

Why. A trajectory has n_d decisions, about three, and L content tokens. The share of clipped tokens is
(n_d f_d + L f_c) / (n_d + L): where content keeps to its band, f_c = 0, it falls as 1 / L whatever the decision does. The
mean |rho - 1| over tokens falls as 1 / L too, but only to the floor that content's own moves set, sqrt(c) |h| / 2 for a
step h of the shared direction: from there on it is a statistic of content.

Design. DRIVE runs, in which the start decision is pushed from search to guessing; statistics are averaged over the steps
of the push. Content is an analytic overlay of L binary tokens at a squared coupling c to the push, so L changes what is
measured and not what happens: all arms are the same runs. What is measured, then, is how many decisions a trajectory has,
how often they leave the band of 1 +- .2, and whether content does.

Prediction. :mod:`sim.mdp.theory.dilution`.
"""

import numpy as np

from sim.learning.presets import drive
from sim.learning.setup import Content
from sim.mdp.theory.dilution import content_distance, token_mean
from sim.records.config import replace
from studies.kit import Prediction, above, below, claim, figures, identity, mean, median
from studies.kit.slopes import power

SEEDS = 8
LENGTHS, ENDS = (50, 250, 1250, 6250), (50, 6250)
COUPLING, STRONG = 5e-4, 1.0
LONG = 1250
OUTSIDE, DISTANCE = "outside", "distance"
CAPTION = "Means over the 40 steps of the push and over seeds."


@claim(
    "token-clip-fraction-falls-as-one-over-length",
    says="The share of clipped tokens falls as one over their number while the start decision is pushed over.",
    kind=identity(0.05, target=-1.0),
    unit="slope of log clip fraction against log L",
    predicts=Prediction(-0.988, source="n_d f_d / (n_d + L) with three decisions, L of 50 to 6250"),
    expect="supported",
    source="H14; theory T7",
    reverses="content.coupling: at 1 content leaves the band itself and the share is its own at every L",
)
@claim(
    "token-ratio-has-a-floor-set-by-content",
    says="Among 1,250 content tokens less than a tenth of the mean token |rho - 1| is due to decisions.",
    kind=median(),
    region=below(0.1),
    unit="share of mean |rho - 1| that is due to decisions",
    predicts=Prediction(0.02, source="of the order of n_d d_d = .1 over L sqrt(c) |h| / 2, which is .026 at h = .28"),
    seeds=SEEDS,
    expect="supported",
    source="H14; theory T7",
    reverses="content.coupling: at c = 0 all of it is due to decisions",
)
def study_dilution(study):
    arms = {COUPLING: LENGTHS, STRONG: ENDS, 0.0: (LONG,)}
    runs = study.sweep({f"L {L}, c {c:g}": at(L, c) for c, lengths in arms.items() for L in lengths})
    clipped = {c: {L: level(runs[f"L {L}, c {c:g}"], "token", OUTSIDE) for L in arms[c]} for c in (COUPLING, STRONG)}
    guess = runs[f"L {LONG}, c 0"]["decision/share/start/answer"]
    moved = guess.max(1) > 0.5
    study.conclude("token-clip-fraction-falls-as-one-over-length", value=power(clipped[COUPLING]).mean(), moved=moved)
    study.control(
        "token-clip-fraction-falls-as-one-over-length",
        "content coupled so strongly that it leaves the band",
        kind=mean(symmetric=True),
        region=above(-0.7),
        differences=power(clipped[STRONG]),
    )
    due = due_to_decisions(runs[f"L {LONG}, c {COUPLING:g}"])
    study.conclude("token-ratio-has-a-floor-set-by-content", values=due, moved=moved)
    study.control(
        "token-ratio-has-a-floor-set-by-content",
        "among 50 content tokens",
        region=above(0.1),
        values=due_to_decisions(runs[f"L {LENGTHS[0]}, c {COUPLING:g}"]),
    )
    show(study, runs, clipped)


def at(tokens, coupling):
    """DRIVE, 32 x 8 rollouts, to the end of the push."""
    base = drive()
    end = base.drive.start + base.drive.duration
    return replace(base, {"prompts": 32, "steps": end, "content": Content(tokens, coupling)})


def pushed(runs, column):
    """A column at the steps of the push, [seeds, steps]."""
    push = runs.config.drive
    return runs[column][:, push.start : push.start + push.duration]


def level(runs, unit, statistic):
    """A ratio statistic, mean over the push, [seeds]."""
    return pushed(runs, f"drift/ratio/{unit}/{statistic}").mean(1)


def due_to_decisions(runs):
    """Share of the mean |rho - 1| over tokens that decisions contribute, n_d d_d / ((n_d + L) d), [seeds]."""
    n = pushed(runs, "train/turns")
    decisions = token_mean(n, runs.config.content.tokens, pushed(runs, "drift/ratio/turn/distance"))
    return decisions.mean(1) / level(runs, "token", DISTANCE)


def show(study, runs, clipped):
    """Figures and tables."""
    weak = [runs[f"L {L}, c {COUPLING:g}"] for L in LENGTHS]
    n = pushed(weak[0], "train/turns").mean()
    fine = np.geomspace(LENGTHS[0], LENGTHS[-1], 50)
    alone = level(weak[0], "turn", OUTSIDE).mean()
    made, ax = figures.figure(title="The share of clipped tokens falls as 1 / L; that of clipped decisions stays")
    for c, each in clipped.items():
        ax.plot(list(each), np.mean(list(each.values()), 1), "o", label=f"all tokens, c = {c:g}")
    ax.plot(LENGTHS, [alone] * len(LENGTHS), "s-", label="decisions alone")
    ax.plot(fine, token_mean(n, fine, alone), ":", color="#555555", label="predicted, content in its band")
    study.figure("token-clip-fraction-falls-as-one-over-length", _axes(made, ax, "share outside 1 ± .2"), CAPTION)
    alone = level(weak[0], "turn", DISTANCE).mean()
    floor = content_distance(np.diff(pushed(weak[0], "policy/shared_shift"), axis=1), COUPLING).mean()
    made, ax = figures.figure(title="The mean token ratio has a floor that content sets")
    ax.plot(LENGTHS, [level(r, "token", DISTANCE).mean() for r in weak], "o", label=f"all tokens, c = {COUPLING:g}")
    ax.plot(LENGTHS, [alone] * len(LENGTHS), "s-", color=figures.COLOURS[2], label="decisions alone")
    ax.plot(fine, token_mean(n, fine, alone, floor), ":", color="#555555", label="predicted")
    ax.plot(fine, token_mean(n, fine, alone), "--", color="#999999", label="predicted, content at rest")
    study.figure("token-ratio-has-a-floor-set-by-content", _axes(made, ax, "mean |rho - 1|"), CAPTION)
    study.table(
        "token-clip-fraction-falls-as-one-over-length",
        ("L", "clip fraction", "x L", "its peak", "decisions outside, peak", "mean |rho - 1|", "due to decisions"),
        [
            (
                L,
                float(level(r, "token", OUTSIDE).mean()),
                float(level(r, "token", OUTSIDE).mean() * L),
                float(pushed(r, "drift/ratio/token/outside").max(1).mean()),
                float(pushed(r, "drift/ratio/turn/outside").max(1).mean()),
                float(level(r, "token", DISTANCE).mean()),
                float(due_to_decisions(r).mean()),
            )
            for L, r in zip(LENGTHS, weak, strict=True)
        ],
        caption=f"Coupling {COUPLING:g}; means over seeds, over the push unless it says peak.",
    )


def _axes(made, ax, ylabel):
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel(f"content tokens a trajectory (mean of n={SEEDS} seeds)")
    ax.set_ylabel(ylabel)
    ax.legend(loc="lower left")
    return made
