"""Which rules for late groups bias the data: those that drop lose slow prompts, those that draw afresh lose slow rollouts.

Why. Durations are log-normal; half of the log's variance belongs to the prompt. A rule that drops who is late drops slow
prompts. One that plays the prompt again keeps it: what circulates is bounded, so as many slow prompts leave as enter. But
it is trained on with a quick draw. One that resumes loses neither.

Design. Groups of one and a learner that takes no time, so that the calculation is exact or nearly. The third of the prompts
with the largest factors is *slow*. Its ratio is its share of what was trained on over that of what was started, both in the
second half of a run: over a whole run, what is under way at the end is slow, and 64 slots make .9 out of 1, while leaving
it out makes 1 of any rule that never drops. *Luck* is the log of a rollout's own draw, in standard deviations.

Prediction, before the first run. A round keeps the 16 first of 24 (order statistics). A rollout is too old when it outlives
four to five versions, a Poisson number of completions, whose rate follows from the flow. A requeued prompt is played
1 / P(kept) times in stationary flow. The slowest are long in coming round: 1.36 is 1.24 in 40 versions, 1.31 in 2,000.
A first look on other seeds set the regions and the number of versions.
"""

import numpy as np

from studies.kit import Control, Prediction, above, below, claim, figures, mean, within
from studies.kit.intervals import paired_t
from studies.late_rules import FAULT, FORESEEN, NEEDED, arms, at_end, counted, late_half, ratio, tail_rounds, version_s

LOSES = {
    "cancel-loses-slow-prompts": "cancel",
    "cancel-loses-long-prompts": "cancel, length",
    "old-discarded-loses-slow-prompts": "old: discard",
}
KEEPS = {
    "resume-keeps-slow-prompts": "resume",
    "requeue-keeps-slow-prompts": "requeue",
    "tail-keeps-slow-prompts": "tail",
    "old-requeued-keeps-slow-prompts": "old: requeue",
}
QUICK = {"requeue-draws-quickly": "requeue", "old-requeued-draws-quickly": "old: requeue"}
ROUND = "order statistics: the 16 first of 24"
FLOW = "what circulates is bounded, so as many leave as enter"
POISSON = "a Poisson number of completions within 4 to 5 versions, stationary"
RATIO = "share of slow prompts, trained over started"
LUCK = "luck of what is trained on, standard deviations of the log"
AS_STARTED, FEWER = within(0.9, 1.1), below(0.75)
FREE = Control("latency of the rollout alone", AS_STARTED)
CANCEL = Control("cancel", FEWER)
RESUME = Control("resume", within(-0.1, 0.1))


@claim(
    "cancel-loses-slow-prompts",
    says="A round that cancels who is late trains too few slow prompts.",
    kind=mean(symmetric=True),
    region=FEWER,
    predicts=Prediction(0.532, source=ROUND),
    unit=RATIO,
    seeds=8,
    expect="supported",
    source=FAULT,
    reverses="prompt sigma 0: latency belongs to the rollout",
    controls=(FREE,),
)
@claim(
    "cancel-loses-long-prompts",
    says="A round that cancels who is late trains too few prompts with long answers.",
    kind=mean(symmetric=True),
    region=FEWER,
    predicts=Prediction(0.532, source=ROUND),
    unit=RATIO,
    seeds=8,
    expect="supported",
    source=FAULT,
    reverses="prompt sigma 0: latency belongs to the rollout",
    controls=(FREE,),
)
@claim(
    "old-discarded-loses-slow-prompts",
    says="Discarding what is too old trains too few slow prompts.",
    kind=mean(symmetric=True),
    region=FEWER,
    predicts=Prediction(0.557, source=POISSON),
    unit=RATIO,
    seeds=8,
    expect="supported",
    source=FAULT,
    reverses="prompt sigma 0: latency belongs to the rollout",
    controls=(FREE,),
)
@claim(
    "resume-keeps-slow-prompts",
    says="A round that resumes who is late trains all classes as they were started.",
    kind=mean(symmetric=True),
    region=AS_STARTED,
    predicts=Prediction(1.0, source=FLOW),
    unit=RATIO,
    seeds=8,
    expect="supported",
    source="ours",
    reverses="late or then: dropped for good",
    controls=(CANCEL,),
)
@claim(
    "requeue-keeps-slow-prompts",
    says="A round that plays late prompts again trains all classes as they were started.",
    kind=mean(symmetric=True),
    region=AS_STARTED,
    predicts=Prediction(1.0, source=FLOW),
    unit=RATIO,
    seeds=8,
    expect="supported",
    source="ours",
    reverses="late or then: dropped for good",
    controls=(CANCEL,),
)
@claim(
    "tail-keeps-slow-prompts",
    says="With rounds of their own for late prompts all classes are trained as started.",
    kind=mean(symmetric=True),
    region=AS_STARTED,
    predicts=Prediction(1.0, source=FLOW),
    unit=RATIO,
    seeds=8,
    expect="supported",
    source="ours",
    reverses="late or then: dropped for good",
    controls=(CANCEL,),
)
@claim(
    "old-requeued-keeps-slow-prompts",
    says="Playing again what is too old trains all classes as they were started.",
    kind=mean(symmetric=True),
    region=AS_STARTED,
    predicts=Prediction(1.0, source=FLOW),
    unit=RATIO,
    seeds=8,
    expect="supported",
    source="ours",
    reverses="late or then: dropped for good",
    controls=(CANCEL,),
)
@claim(
    "requeue-draws-quickly",
    says="A round that plays late prompts again trains on quick draws.",
    kind=mean(symmetric=True),
    region=below(-0.2),
    predicts=Prediction(-0.308, source="the threshold at which 24 plays make 16, stationary"),
    unit=LUCK,
    seeds=8,
    expect="supported",
    source="ours",
    reverses="late: resume",
    controls=(RESUME,),
)
@claim(
    "old-requeued-draws-quickly",
    says="Playing again what is too old trains on quick draws.",
    kind=mean(symmetric=True),
    region=below(-0.2),
    predicts=Prediction(-0.300, source=POISSON),
    unit=LUCK,
    seeds=8,
    expect="supported",
    source="ours",
    reverses="late: resume",
    controls=(RESUME,),
)
@claim(
    "old-requeued-takes-longer",
    says="Playing again what is too old costs more time a version than dropping nothing.",
    kind=mean(scale="log"),
    region=above(1.1),
    predicts=Prediction(1.36, source="flow through 64 slots, each prompt played 1 / P(kept) times, stationary"),
    unit="time of a version, over that without drops",
    seeds=8,
    expect="supported",
    source="ours",
    reverses="then: discard",
)
@claim(
    "cancel-trains-on-quick-prompts",
    says="Batches of a round that cancels are of quick prompts.",
    kind=mean(symmetric=True),
    region=below(0.85),
    predicts=Prediction(0.719, source=ROUND),
    unit="mean latency factor of what is trained on; 1 in the source",
    seeds=8,
    expect="supported",
    source="ours",
    reverses="late: resume",
    controls=(Control("resume", AS_STARTED),),
)
@claim(
    "tail-rounds-gather-slow-prompts",
    says="Rounds of their own make batches of slow prompts among batches of quick ones.",
    kind=mean(scale="log"),
    region=above(1.5),
    predicts=Prediction(2.17, source=ROUND + ", and the eight left over"),
    unit="mean latency factor in rounds of late prompts, over that in the others",
    seeds=8,
    expect="supported",
    source="ours",
    reverses="prompt sigma 0: all factors are 1",
)
def study_late_groups(study):
    runs = study.sweep(arms(), run=counted)
    ratios = {label: ratio(r) for label, r in runs.items()}
    luck, factor = ({label: late_half(r[name]) for label, r in runs.items()} for name in ("luck", "factor"))
    took = {label: version_s(r) for label, r in runs.items()}
    for name, label in LOSES.items():
        study.conclude(name, differences=ratios[label])
        study.control(name, FREE.label, differences=ratios[label.removesuffix(", length") + ", rollout's"])
    for name, label in KEEPS.items():
        study.conclude(name, differences=ratios[label])
        study.control(name, "cancel", differences=ratios["cancel"])
    for name, label in QUICK.items():
        study.conclude(name, differences=luck[label])
        study.control(name, "resume", differences=luck["resume"])
    study.conclude("old-requeued-takes-longer", treated=took["old: requeue"], control=took["old: kept"])
    study.conclude("cancel-trains-on-quick-prompts", differences=factor["cancel"])
    study.control("cancel-trains-on-quick-prompts", "resume", differences=factor["resume"])
    study.conclude("tail-rounds-gather-slow-prompts", **tail_rounds(runs["tail"]))
    _show(study, runs, ratios)
    header = ("rule", "ratio", "over the run", "known ends only", "luck", "foreseen", "factor", "s a version")
    rows = [
        (
            label,
            ratios[label].mean(),
            ratio(r, at_end).mean(),
            r["survivorship"][:, 0].mean(),
            luck[label].mean(),
            FORESEEN[label].luck,
            factor[label].mean(),
            took[label].mean(),
        )
        for label, r in runs.items()
    ]
    note = f"Means of n={len(took['tail'])} seeds, second half of the run; columns three and four: the whole run."
    study.table("requeue-draws-quickly", header, rows, caption=note)


def _show(study, runs, ratios):
    study.figure(
        "cancel-loses-slow-prompts",
        figures.dots(
            list(runs),
            [ratios[label].mean() for label in runs],
            *np.array([paired_t(ratios[label]) for label in runs]).T,
            predicted=[FORESEEN[label].ratio for label in runs],
            title="Dropping loses slow prompts; playing again or resuming does not",
            unit=f"{RATIO}, second half of the run, n={len(ratios['cancel'])} seeds",
        ),
        caption="rollout's: latency belongs to the rollout alone. Diamonds: order statistics, or flow balance.",
    )
    study.figure(
        "requeue-keeps-slow-prompts",
        figures.bands(
            {label: runs[label] for label in ("cancel", "old: discard", "old: requeue", "requeue", "resume", "tail")},
            "missing",
            title="Dropped prompts add up; those that wait to come round do not",
            ylabel="slow prompts started, not trained on",
        ),
        caption=f"{NEEDED} prompts a version, a third of them slow.",
    )
