"""Does trajectory KL warn before the share of guessing does? Only if content moves with the decision (H13).

Why. The KL of the decision itself is convex in the share of guessing and lags it. Content tokens are many and not
saturated: where they share the direction that pushes the decision, their KL grows with the square of the push from its
first step. So the lead measures the coupling, not the signal.

Design. DRIVE runs; content is an analytic overlay of 250 tokens a trajectory at a squared coupling c. One detector for all
signals: two steps in a row beyond a threshold that at most 5 % of whole control runs (same recipe and length, no drive,
other seeds) reach; false alarms counted on other controls. Lead = alarm of the guess share minus alarm of trajectory KL.
The guess share is the one counted in the training batch, as a person reading rollouts would see it; KL is exact at the
states visited. Behaviour is labelled on separate evaluation rollouts.

The prediction that a lag begins below c = .0005 came from a detector of four standard deviations of each run's own
baseline, at no common false-alarm rate. At one rate the sign changes at a coupling several times weaker.
"""

import numpy as np

from sim.learning.presets import drive
from sim.learning.setup import Evaluation
from sim.records.config import replace
from sim.signals.drift import content_kl
from sim.signals.monitors import Level, calibrate, evaluate
from sim.signals.onsets import first_passages, halfway
from studies.kit import Prediction, above, below, claim, figures, median

GUESS = "decision/share/start/answer"
SEEDS, CONTROLS = 64, 200
TOKENS = 250
COUPLINGS = (0.0, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
RATE = 0.05


@claim(
    "trajectory-kl-leads-under-strong-coupling",
    says="Trajectory KL alarms before the guess share when content is strongly coupled to the decision (c = .01).",
    kind=median(),
    region=above(0),
    predicts=Prediction(2.3, source="prototype, four standard deviations twice"),
    unit="steps of lead",
    seeds=SEEDS,
    expect="supported",
    source="seed A, A6; H13",
    reverses="the coupling",
)
@claim(
    "trajectory-kl-lags-under-weak-coupling",
    says="At a weaker coupling (c = .0005) it alarms after the guess share.",
    kind=median(),
    region=below(0),
    predicts=Prediction(-2.3, source="prototype, four standard deviations twice"),
    unit="steps of lead",
    seeds=SEEDS,
    expect="refuted",
    source="seed A, A6; H13",
    reverses="the coupling",
)
@claim(
    "decision-kl-does-not-lead",
    says="Without coupled content the KL of the trajectory's decisions does not alarm before the guess share.",
    kind=median(),
    region=below(0.5),
    predicts=Prediction(-6.7, source="prototype, four standard deviations twice"),
    unit="steps of lead",
    seeds=SEEDS,
    expect="supported",
    source="H13",
    reverses="the coupling",
)
def study_kl_lead(study):
    driven = replace(drive(), {"drive.start": 60, "steps": 100, "evaluation": Evaluation()})
    quiet = replace(driven, {"drive": None, "evaluation": None})
    seeds = study.seeds()
    runs = study.sweep({"drive": driven}, seeds=seeds)["drive"]
    apart = range(
        seeds.stop, seeds.stop + CONTROLS
    )  # other seeds: a control must not share its luck with a watched run
    controls = study.sweep({"control": quiet}, seeds=apart)["control"]

    guess = _watch(runs, controls, lambda r: 1 - r["behaviour/search_share/turn0"])
    kl = {c: _watch(runs, controls, lambda r, c=c: _trajectory_kl(r, c)) for c in COUPLINGS}
    lead = {c: guess[0] - kl[c][0] for c in COUPLINGS}
    study.conclude("trajectory-kl-leads-under-strong-coupling", values=lead[1e-2])
    study.conclude("trajectory-kl-lags-under-weak-coupling", values=lead[5e-4])
    study.conclude("decision-kl-does-not-lead", values=lead[0.0])

    names = {"guess share, counted": guess, "guess share, exact": _watch(runs, controls, lambda r: r[GUESS])}
    names |= {f"trajectory KL, c = {c:g}": kl[c] for c in COUPLINGS}
    names["start entropy"] = _watch(runs, controls, lambda r: r["decision/entropy/start"])
    names["reward (falling)"] = _watch(runs, controls, lambda r: -r["train/reward"])
    study.table(
        "trajectory-kl-leads-under-strong-coupling",
        ("signal", "alarmed", "false alarms", "lead to onset, median", "lead to half-way, median"),
        [
            (
                name,
                f"{e.alarmed} of {e.runs}",
                f"{e.false_alarms} of {e.controls}",
                float(np.nanmedian(e.lead_to_onset)),
                float(np.nanmedian(e.lead_to_halfway)),
            )
            for name, (_, e) in names.items()
        ],
        caption="Onset: evaluated guess share above .1 for three steps; half-way: above .5. Thresholds at 5 % false alarms.",
    )
    middle = [float(np.median(lead[c])) for c in COUPLINGS]
    spread = np.array([np.percentile(lead[c], [10, 90]) for c in COUPLINGS])
    study.figure(
        "trajectory-kl-leads-under-strong-coupling",
        figures.dots(
            [f"c = {c:g}" for c in COUPLINGS],
            middle,
            spread[:, 0],
            spread[:, 1],
            title="Whether trajectory KL leads depends on how strongly content is coupled",
            unit="steps by which trajectory KL alarms before the guess share",
            interval="10-90 % of seeds",
        ),
        caption=f"Median and 10-90 % range over {SEEDS} seeds.",
    )
    study.note("trajectory-kl-lags-under-weak-coupling", _crossing(middle))


def _trajectory_kl(runs, coupling):
    return runs["drift/kl_decisions"] + content_kl(runs["policy/shared_shift"], TOKENS, coupling)


def _watch(runs, controls, signal):
    quiet = signal(controls)
    monitor = calibrate(Level(persistence=2), quiet[: CONTROLS // 2], RATE)
    guessing = 1 - runs["eval/search_share/turn0"]
    onset = first_passages(guessing, 0.1, persistence=3)
    half = halfway(guessing, np.zeros(len(guessing)), np.ones(len(guessing)), persistence=3)
    watched = signal(runs)
    return monitor.alarms(watched), evaluate(monitor, watched, onset, half, quiet[CONTROLS // 2 :])


def _crossing(middle):
    signs = np.sign(middle)
    changes = np.flatnonzero((signs[:-1] < 0) & (signs[1:] >= 0))
    if not len(changes):
        return "The median lead does not change sign on the grid of couplings."
    i = int(changes[0])
    return f"The median lead changes sign between c = {COUPLINGS[i]:g} and c = {COUPLINGS[i + 1]:g}."
