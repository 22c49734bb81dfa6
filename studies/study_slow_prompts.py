"""A bound on age may train none of the slow prompts; admission control trains the source, a requeue served first most of it.

Why. Where every rollout of a prompt outlives the bound, discarding what is too old never trains on that prompt, whoever
plays it. Admission control limits what is started and drops nothing: taken first in, first out, that is the source itself.
The requeue is served first: slots fill with slow prompts until the learner has to wait for them. A requeue to the end of an
endless source would never train them.

Design. Half the prompts take one step of a learner with a clock, half three, and two versions are the bound. Groups of one.

Prediction. None of the slow half; exactly the source; one half, less what the slow prompts held at the end take from it. A
first look on other seeds set the regions, the number of versions, and the 96 held here: with 64 the fast ones ran out on
one seed of eight, the learner waited, and two slow prompts of 240 came through.
"""

from studies.kit import Control, Prediction, above, agreement, claim, identity, mean, within
from studies.late_rules import BATCH, CLOCK_STEPS, FAULT, counted, slow_share, version_s, with_a_clock


@claim(
    "a-bound-may-train-no-slow-prompt",
    says="Half the prompts take one step, half three: discarding beyond two versions trains none of the slow half.",
    kind=identity(0.0),
    predicts=Prediction(0.0, source="each slow rollout sees its third version before it ends"),
    unit="share of slow prompts trained on, all seeds",
    seeds=8,
    expect="supported",
    source=FAULT,
    reverses="drop: None at the same width",
    controls=(Control("nothing dropped", within(0.4, 0.6)),),
)
@claim(
    "admission-trains-the-source",
    says="Admission control, oldest first: what the source holds is trained on.",
    kind=agreement(1e-12),
    predicts=Prediction(0.0, source="first in, first out takes the first prompts of the source, all of them"),
    unit="share of slow prompts trained on minus that in the source, largest over seeds",
    seeds=8,
    expect="supported",
    source=FAULT,
    reverses="discard in place of admission",
    controls=(Control("discard", above(0.3)),),
)
@claim(
    "requeue-first-trains-the-slow-half",
    says="Played again before anything new, the slow half is trained on.",
    kind=mean(symmetric=True),
    region=above(0.25),
    predicts=Prediction(
        0.35, 0.35, 0.5, source="1/2 - 96 / (2 x 320) where all 96 held at the end are slow, 1/2 where none is"
    ),
    unit="share of slow prompts trained on",
    seeds=8,
    expect="supported",
    source=FAULT,
    reverses="then: discard trains none",
)
def study_slow_prompts(study):
    runs = study.sweep(with_a_clock(), run=counted)
    slow = {label: slow_share(r) for label, r in runs.items()}
    source = runs["admission"]["source"][:, 0]
    name = "a-bound-may-train-no-slow-prompt"
    study.conclude(name, value=slow["discard"])
    study.control(name, "nothing dropped", kind=mean(symmetric=True), differences=slow["nothing dropped"])
    study.conclude("admission-trains-the-source", value=slow["admission"], reference=source)
    study.control("admission-trains-the-source", "discard", value=slow["discard"], reference=source)
    study.conclude("requeue-first-trains-the-slow-half", differences=slow["requeue"])
    header = ("rule", "slow share trained on", "s a version, second half", "rollouts started")
    rows = [(label, slow[label].mean(), version_s(r).mean(), r["rollouts"][:, 0].mean()) for label, r in runs.items()]
    note = f"Means of n={len(source)} seeds, {CLOCK_STEPS} versions of {BATCH}; training 1 s, a search 1.1 s, three if slow."
    study.table(name, header, rows, caption=note)
