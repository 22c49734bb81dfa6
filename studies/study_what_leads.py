"""What warns of the flip in a network: first actions, later KL, hardly clips and ratios over tokens (H15, H13, A6).

Why. The KL of decisions to the start is flat where guessing is as common as at the start, and counts less guessing as
well as more. Controls teach guessing away, which costs up to -ln(1 - p0) nats; to clear that, guessing must reach the p at
which p ln(p / p0) + (1 - p) ln((1 - p) / (1 - p0)) = -ln(1 - p0): .16 from p0 = .06, and e p0 from a small p0.
Content drifts in controls as in flips, and steps are of about one size whether or not a habit is about to change.

Design. The flip under a sequence mean; controls are the same recipe and length with a token mean, which restores. One
detector: two steps in a row beyond a threshold that at most 5 % of whole control runs reach, set on 21 controls; false
alarms are counted on 21 others. Every signal is watched from step 5 on, as Adam's first steps are larger than any later one.
Starts are shared by three seeds and by no two of flips, calibration and counting, so intervals are those of seven clusters.
Twelve neutral runs more, a sequence mean where the enumerated gap is zero (hit rate .46), on two starts of their own: what
alarms there has seen a habit wander. Onset: the first of three evaluations in a row, on held-out questions, in which .15 or
more of the first actions are guesses; half-way: .5. Lead is that step minus the alarm's, which is the second of its two;
what does not happen by the end counts as the end.

Prediction. The equation above, and a prototype with three controls, other starts (3 guesses in 100) and eight flips; it
labelled no onset, and its alarm of first actions stands in for one. Four pilot flips and two pilot controls, used for
nothing else, chose 36 steps and the wait of five. The note on ties and what the caption says of neutral runs came after a
look at the recorded seeds; no claim, region or threshold did.
"""

import numpy as np

from minimodel import presets
from minimodel.agent.setup import Evaluation
from minimodel.forecast import drawn_gap
from sim.learning.normalisers import TokenMean
from sim.records.config import replace
from sim.signals.monitors import Level, calibrate
from sim.signals.onsets import first_passages, halfway
from studies.kit import Prediction, above, below, claim, figures, median, rate

GUESS = "decision/share/start/answer"
STEPS, WAIT, RATE = 36, 5, 0.05
SEEDS, SHARED = 21, 3
NEUTRAL, NEUTRAL_SHARED = 12, 6
EXACT, COUNTED = "first actions, exact", "first actions, counted"
DECISIONS, TRAJECTORY = "KL of decisions", "KL of trajectories"
CLIP, DISTANCE = "clip fraction", "mean |ratio - 1|"
SIGNALS = {
    EXACT: lambda r: r[GUESS],
    COUNTED: lambda r: 1 - r["behaviour/search_share/turn0"],
    "number of workflows": lambda r: r["behaviour/effective_workflows"],
    "entropy of the first decision": lambda r: r["entropy/decision/turn0"],
    DECISIONS: lambda r: r["drift/kl_decisions"],
    TRAJECTORY: lambda r: r["drift/kl_trajectory"],
    CLIP: lambda r: r["update/clip/outside"],
    DISTANCE: lambda r: r["drift/ratio/token/distance"],
    "mean |ratio - 1|, decisions": lambda r: r["drift/ratio/decision/distance"],
    "mean |ratio - 1| in updates": lambda r: r["update/ratio/distance"],
    "log-likelihood of winners (falling)": lambda r: -r["update/logp_positive"],
    "reward (falling)": lambda r: -r["train/reward"],
}


def arms():
    """Return the runs: flips, controls that restore, and neutral ones; only flips are evaluated."""
    plain = {"start.script.guess": 0.06, "steps": STEPS, "evaluation": None, "starts_shared_by": SHARED}
    quiet = replace(presets.retry(), plain | {"rule.normaliser": TokenMean()})
    return {
        "flips": replace(presets.retry(), plain | {"evaluation": Evaluation(every=1, prompts=64, group=4)}),
        "controls": quiet,
        "neutral": replace(presets.retry(hit=0.46), plain | {"starts_shared_by": NEUTRAL_SHARED}),
    }


@claim(
    "decision-kl-alarms-before-half-way",
    says="The KL of decisions to the start alarms before half of the first actions are guesses.",
    kind=median(),
    region=above(0),
    predicts=Prediction(11, source="prototype, median of seven flips"),
    unit="steps from the alarm to the half-way point",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="A6; H13",
    reverses="the start: where it guesses in one of five, controls that fall to 0 clear what a half would",
)
@claim(
    "first-actions-alarm-before-decision-kl",
    says="First actions counted in the training batch alarm before the KL of decisions does.",
    kind=median(),
    region=above(0),
    predicts=Prediction(4.5, source="prototype, median of eight flips"),
    unit="steps from the alarm of first actions to that of KL",
    seeds=SEEDS,
    expect="undecided",
    rungs=("minimodel",),
    long=True,
    source="H15; H13",
    reverses="the controls: where guessing does not die out in them, KL has nothing to clear",
)
@claim(
    "kl-does-not-warn-before-the-onset",
    says="Neither the KL of decisions nor that of trajectories alarms before evaluation shows three guesses in twenty.",
    kind=rate(),
    region=below(0.5),
    predicts=Prediction(0.0, source="KL clears its controls where .16 of first actions are guesses"),
    unit="share of flips in which either alarms before the onset",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="A6; H13",
    reverses="the controls",
)
@claim(
    "clips-and-ratios-do-not-warn-before-the-onset",
    says="Neither the clip fraction nor the mean |ratio - 1| over tokens alarms before the onset.",
    kind=rate(),
    region=below(0.5),
    predicts=Prediction(1 / 7, source="prototype: before its first actions alarmed, one of seven flips"),
    unit="share of flips in which either alarms before the onset",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="A5; H15",
    reverses="the share of tokens that decide: of decisions alone, |ratio - 1| is not diluted",
)
def study_what_leads(study):
    points = arms()
    gaps = {label: drawn_gap(config, 0) for label, config in points.items()}
    if not gaps["flips"] < -0.02 < abs(gaps["neutral"]) < 0.002 < 0.02 < gaps["controls"]:
        raise ValueError(f"the drawn worlds' gaps are {gaps}; flips below 0, controls above, neutral about 0")
    seeds = study.seeds()
    first = -(-seeds.stop // SHARED) * SHARED  # controls begin with a start of their own
    apart = range(first, first + 2 * SEEDS)
    first = -(-apart.stop // NEUTRAL_SHARED) * NEUTRAL_SHARED
    runs = study.sweep({"flips": points["flips"]}, seeds=seeds)["flips"]
    controls = study.sweep({"controls": points["controls"]}, seeds=apart)["controls"]
    neutral = study.sweep({"neutral": points["neutral"]}, seeds=range(first, first + NEUTRAL))["neutral"]

    guessing = 1 - runs["eval/search_share/turn0"]
    onset = first_passages(guessing, 0.15, persistence=3)
    half = halfway(guessing, np.zeros(len(guessing)), np.ones(len(guessing)), persistence=3)
    found = {name: _watch(signal, runs, controls, neutral) for name, signal in SIGNALS.items()}
    alarm = {name: seen[0] for name, seen in found.items()}
    starts, moved = np.array(seeds) // SHARED, runs["update/moved"][:, -1] > 0
    shared = {"clusters": starts, "moved": moved}
    before = {name: at < _by_end(onset) for name, at in alarm.items()}  # no alarm, NaN, is before nothing
    end = {name: _by_end(at) for name, at in alarm.items()}

    leads, first_of_all = "decision-kl-alarms-before-half-way", "first-actions-alarm-before-decision-kl"
    study.conclude(leads, values=_by_end(half) - end[DECISIONS], **shared)
    study.conclude(first_of_all, values=end[DECISIONS] - end[COUNTED], **shared)
    others = np.array(apart)[SEEDS:] // SHARED
    for claimed, name in ((leads, DECISIONS), (first_of_all, COUNTED)):
        study.control(
            claimed,
            "controls that were not used for the threshold alarm seldom",
            kind=rate(),
            region=below(0.5),
            outcomes=found[name][1],
            clusters=others,
        )
    for claimed, one, other in (
        ("kl-does-not-warn-before-the-onset", DECISIONS, TRAJECTORY),
        ("clips-and-ratios-do-not-warn-before-the-onset", CLIP, DISTANCE),
    ):
        study.conclude(claimed, outcomes=before[one] | before[other], **shared)
        study.control(
            claimed,
            "counted first actions alarm before half-way",
            region=above(0.5),
            outcomes=alarm[COUNTED] < _by_end(half),
            clusters=starts,
        )
    sooner = end[DECISIONS] - end[COUNTED]
    at_once = (sooner == 0) & (end[COUNTED] == WAIT + 1)
    study.note(
        first_of_all,
        f"First actions were earlier in {int((sooner > 0).sum())} flips, as early in {int((sooner == 0).sum())} and later "
        f"in {int((sooner < 0).sum())}. Of those as early, {int(at_once.sum())} alarmed by both at the first step that can.",
    )
    _show(study, found, onset, half, starts, gaps, neutral[GUESS])


def _watch(signal, runs, controls, neutral):
    """Return (alarms of the flips [S], alarmed of the other controls [S], alarmed of the neutral runs, threshold)."""
    watched, quiet, wandering = (signal(r)[:, WAIT:] for r in (runs, controls, neutral))
    monitor = calibrate(Level(persistence=2), quiet[:SEEDS], RATE)
    # Counted here and not by `evaluate`, which takes two runs whose clip fraction is 0 throughout for one and the same.
    false, wandered = (np.isfinite(monitor.alarms(x)) for x in (quiet[SEEDS:], wandering))
    return monitor.alarms(watched) + WAIT, false, wandered, monitor.threshold


def _by_end(step):
    """Return steps [S]; what did not happen, NaN, counts as the end of the run."""
    return np.where(np.isfinite(step), step, STEPS)


def _show(study, found, onset, half, starts, gaps, wandering):
    """Put up the table of all signals and the figure of their leads."""
    claimed = "first-actions-alarm-before-decision-kl"
    rows = [
        (
            name,
            threshold,
            f"{int(np.isfinite(at).sum())} of {SEEDS}",
            f"{int((at < _by_end(onset)).sum())} of {SEEDS}",
            _middle(onset - at),
            _middle(half - at),
            f"{int(false.sum())} of {SEEDS}",
            f"{int(wandered.sum())} of {NEUTRAL}",
        )
        for name, (at, false, wandered, threshold) in found.items()
    ]
    header = (
        "signal",
        "threshold",
        "alarmed",
        "before the onset",
        "lead to onset",
        "lead to half-way",
        "false alarms",
        "neutral runs",
    )
    study.table(
        claimed,
        header,
        rows,
        caption=f"Leads: median of the flips that alarmed, steps. Onset in {int(np.isfinite(onset).sum())} of {SEEDS} flips "
        f"(median step {_middle(onset)}), half-way in {int(np.isfinite(half).sum())} (median step {_middle(half)}). "
        f"{int((wandering > 0.5).any(1).sum())} of {NEUTRAL} neutral runs came to guess first more often than not; "
        f"their largest share of guesses: {np.median(wandering.max(1)):.2f} in the median, {wandering.max():.2f} at most. "
        f"Enumerated gaps: {gaps['flips']:+.3f} (flips), {gaps['controls']:+.3f} (controls), "
        f"{gaps['neutral']:+.4f} (neutral).",
    )
    leads = [_by_end(half) - _by_end(at) for at, *_ in found.values()]
    clusters = np.array([[np.median(lead[starts == c]) for c in np.unique(starts)] for lead in leads])
    study.figure(
        claimed,
        figures.dots(
            list(found),
            np.median(clusters, 1),
            clusters.min(1),
            clusters.max(1),
            title="How long before half-way each signal alarms",
            unit="steps from the alarm to the half-way point",
            interval="range of the medians of seven starts",
        ),
        caption=f"{SEEDS} flips on {len(clusters[0])} starts; thresholds at one false-alarm rate, {RATE:.0%} of whole "
        "control runs. No alarm by the end counts as one at the end.",
    )


def _middle(values):
    seen = values[np.isfinite(values)]
    return float(np.median(seen)) if len(seen) else "-"
