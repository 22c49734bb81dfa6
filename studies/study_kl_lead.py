"""Does trajectory KL warn before the share of guessing does? Only of a push that moves content and nothing else does (H13).

Why. The KL of the decision itself is convex in the share of guessing and lags it. Content tokens are many and not
saturated: where they share the direction that pushes the decision, their KL grows from the first step of a push. But its
alarm has to clear what content does by itself in an ordinary run, and an exact share of guessing moves with the same push.

Design. DRIVE runs; content is an analytic overlay of 250 tokens a trajectory at a squared coupling c to the shared
directions, which learn and wander under gradient noise in controls and driven runs alike (.024 logits a step, ours). One
detector for all signals: two steps in a row beyond a threshold that at most 5 % of whole control runs (same recipe and
length, no drive, other seeds) reach; false alarms are counted on other controls, and on the steps before the drive.
Lead = alarm of the guess share minus alarm of trajectory KL, both from the drive's first step on and both read as exact
decision distributions; the table also has the guess share as counted in the training batch, which is what a person
reading rollouts would see. Onset and half-way point are labelled on separate evaluation rollouts.

The predictions come from a prototype in which nothing but the push moved content, with thresholds of four standard
deviations of each run's own baseline. Content that only the push moves is the control: there trajectory KL does lead.
"""

import numpy as np

from sim.learning.optimisers import Sgd
from sim.learning.presets import drive
from sim.learning.setup import Evaluation, Features, GradientNoise
from sim.records.config import replace
from sim.signals.drift import content_kl
from sim.signals.monitors import Level, calibrate, evaluate
from sim.signals.onsets import first_passages, halfway
from studies.kit import Control, Prediction, above, below, claim, figures, median, rate

GUESS = "decision/share/start/answer"
SEEDS, CONTROLS = 64, 300
TOKENS = 250
COUPLINGS = (0.0, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2)
RATE = 0.05
START = 60
NOISE = 0.02


@claim(
    "trajectory-kl-leads-under-strong-coupling",
    says="Trajectory KL alarms before the guess share when content is strongly coupled to the decision (c = .01).",
    kind=median(),
    region=above(0),
    predicts=Prediction(2.3, source="prototype, four standard deviations of each run's own baseline, twice"),
    unit="steps of lead",
    seeds=SEEDS,
    expect="refuted",
    source="seed A, A6; H13",
    reverses="what moves content: where only the push does, it leads by a step",
)
@claim(
    "trajectory-kl-lags-under-weak-coupling",
    says="At a weaker coupling (c = .0005) trajectory KL alarms after the guess share.",
    kind=median(),
    region=below(0),
    predicts=Prediction(-2.3, source="the same prototype"),
    unit="steps of lead",
    seeds=SEEDS,
    expect="supported",
    source="seed A, A6; H13",
    reverses="the coupling",
)
@claim(
    "decision-kl-lags-the-guess-share",
    says="Without coupled content the KL of the trajectory's decisions alarms after the guess share.",
    kind=median(),
    region=below(0),
    predicts=Prediction(-6.7, source="the same prototype"),
    unit="steps of lead",
    seeds=SEEDS,
    expect="supported",
    source="H13",
    reverses="coupled content that only the push moves",
    controls=(Control("content that only the push moves: share in which KL is first", above(0.5)),),
)
def study_kl_lead(study):
    driven, quiet = arms()
    seeds = study.seeds()
    runs = study.sweep({"drive": driven}, seeds=seeds)["drive"]
    # Other seeds: a control must not share its luck with a watched run.
    apart = range(seeds.stop, seeds.stop + CONTROLS)
    controls = study.sweep({"control": quiet}, seeds=apart)["control"]

    guess = _watch(runs, controls, lambda r: r[GUESS])
    kl = {c: _watch(runs, controls, lambda r, c=c: _trajectory_kl(r, c)) for c in COUPLINGS}
    lead = {c: guess[0] - kl[c][0] for c in COUPLINGS}
    study.conclude("trajectory-kl-leads-under-strong-coupling", values=lead[1e-2])
    study.conclude("trajectory-kl-lags-under-weak-coupling", values=lead[5e-4])
    study.conclude("decision-kl-lags-the-guess-share", values=lead[0.0])
    still, learning = _leads(study, pushed_only()), _leads(study, arms(0.0))
    study.control(
        "decision-kl-lags-the-guess-share",
        "content that only the push moves: share in which KL is first",
        kind=rate(),
        outcomes=still[1e-2] > 0,
    )
    study.table(
        "trajectory-kl-leads-under-strong-coupling",
        ("what moves content", *(f"c = {c:g}" for c in COUPLINGS)),
        [
            (label, *(float(np.median(found[c])) for c in COUPLINGS))
            for label, found in (
                ("the push alone", still),
                ("the push and learning", learning),
                ("the push, learning and noise", lead),
            )
        ],
        caption="Median lead, steps, by what moves content and how strongly it is coupled.",
    )

    names = {"guess share, exact": guess, "guess share, counted": _watch(runs, controls, _counted)}
    names |= {f"trajectory KL, c = {c:g}": kl[c] for c in COUPLINGS}
    names["start entropy"] = _watch(runs, controls, lambda r: r["decision/entropy/start"])
    names["reward (falling)"] = _watch(runs, controls, lambda r: -r["train/reward"])
    study.table(
        "trajectory-kl-leads-under-strong-coupling",
        ("signal", "alarmed", "before the drive", "false alarms", "lead to onset", "lead to half-way"),
        [
            (
                name,
                f"{int(np.isfinite(after).sum())} of {SEEDS}",
                f"{early} of {SEEDS}",
                f"{e.false_alarms} of {e.controls}",
                _middle(onset - after),
                _middle(half - after),
            )
            for name, (after, early, e, onset, half) in names.items()
        ],
        caption="Medians, steps. Onset: evaluated guess share above .1 for three steps; half-way: above .5.",
    )
    study.figure(
        "trajectory-kl-leads-under-strong-coupling",
        _figure({"the push alone": still, "the push and learning": learning, "the push, learning and noise": lead}),
        caption=f"Median over seeds ({SEEDS} with noise, 32 otherwise), whole steps. c = 0 is drawn at the left edge.",
    )
    study.note("trajectory-kl-lags-under-weak-coupling", _crossing([float(np.median(still[c])) for c in COUPLINGS]))
    study.note(
        "trajectory-kl-leads-under-strong-coupling",
        "Where false alarms on fresh controls exceed the 5 % of the calibration, the threshold is low for that signal and "
        "its alarms come early; the table says for which. On the recorded seeds that favours KL.",
    )


def _leads(study, pair):
    """Lead by coupling in another pair of driven run and control, on fewer seeds."""
    seeds = study.seeds(32)
    apart = range(seeds.stop, seeds.stop + 100)
    runs = study.sweep({"drive": pair[0]}, seeds=seeds)["drive"]
    controls = study.sweep({"control": pair[1]}, seeds=apart)["control"]
    guess = _watch(runs, controls, lambda r: r[GUESS])[0]
    return {c: guess - _watch(runs, controls, lambda r, c=c: _trajectory_kl(r, c))[0] for c in COUPLINGS}


def pushed_only():
    """The driven run and its control when the start decision learns through a private weight alone."""
    driven = replace(drive(), {"drive.start": START, "steps": START + 40, "evaluation": Evaluation()})
    return driven, replace(driven, {"drive": None, "evaluation": None})  # no onset to label in a control


def arms(sd=NOISE):
    """The same when it learns through shared directions as well, which content loads, under gradient noise."""
    shared = {
        "features": Features(shared=4),
        "optimiser": Sgd(1.2),  # private and shared weights together pull as one of rate 2.4 would
        "noise": GradientNoise(sd),
    }
    return tuple(replace(config, shared) for config in pushed_only())


def _counted(runs):
    return 1 - runs["behaviour/search_share/turn0"]


def _trajectory_kl(runs, coupling):
    return runs["drift/kl_decisions"] + content_kl(runs["policy/shared_shift"], TOKENS, coupling)


def _watch(runs, controls, signal):
    """(alarm from the drive on [S], alarms before it, evaluation on other controls, onset [S], half-way [S])."""
    quiet, watched = signal(controls), signal(runs)
    monitor = calibrate(Level(persistence=2), quiet[: len(quiet) // 2], RATE)
    guessing = 1 - runs["eval/search_share/turn0"]
    onset = first_passages(guessing, 0.1, persistence=3)
    half = halfway(guessing, np.zeros(len(guessing)), np.ones(len(guessing)), persistence=3)
    found = evaluate(monitor, watched, onset, half, quiet[len(quiet) // 2 :])
    early = int(np.isfinite(monitor.alarms(watched[:, :START])).sum())
    return monitor.alarms(watched[:, START:]) + START, early, found, onset, half


def _middle(values):
    seen = values[np.isfinite(values)]
    return float(np.median(seen)) if len(seen) else "no alarm"


def _figure(leads):
    made, ax = figures.figure(title="Trajectory KL leads only where nothing but the push moves content")
    shown = np.maximum(COUPLINGS, 5e-5)
    for marker, (label, found) in zip("os^", leads.items(), strict=True):
        ax.plot(shown, [float(np.median(found[c])) for c in COUPLINGS], marker=marker, label=label)
    ax.axhline(0, color="#555555", linewidth=1, linestyle=":")
    ax.set_xscale("log")
    ax.set_xlabel("squared coupling of content to the decision, c")
    ax.set_ylabel("lead over the guess share, steps")
    ax.legend(title="what moves content")
    return made


def _crossing(middle):
    lags = [c for c, m in zip(COUPLINGS, middle, strict=True) if m < 0]
    ties = [c for c, m in zip(COUPLINGS, middle, strict=True) if m == 0]
    leads = [c for c, m in zip(COUPLINGS, middle, strict=True) if m > 0]

    def span(values):
        return f"{min(values):g} to {max(values):g}" if values else "none"

    where = "Where only the push moves content, couplings on the grid at which the median"
    return f"{where} lags: {span(lags)}; ties: {span(ties)}; leads: {span(leads)}."
