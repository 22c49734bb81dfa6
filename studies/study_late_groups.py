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

In a second setting half the prompts take one step of a learner with a clock, half three, and two versions are the bound. The
requeue is served first: slots fill with slow prompts until the learner has to wait for them. A requeue to the end of an
endless source would never train them. A first look on other seeds set the regions, the number of versions, and the 96 held
here: with 64 the fast ones ran out on one seed of eight, the learner waited, and two slow prompts of 240 came through.
"""

import math

import numpy as np
from scipy.special import ndtri

from sim.cluster.measures import factors, survivorship, trained
from sim.cluster.run import simulate
from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Rounds, fifo, greedy
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Constant, LogNormal
from sim.mdp.worlds import World
from sim.records.config import replace
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs
from studies.kit import Control, Prediction, above, agreement, below, claim, figures, identity, mean, within
from studies.kit.intervals import paired_t

OWN, NOBODY = 0.5, 1e-6  # share of the log's variance that belongs to the prompt
NEEDED, OVER, WIDTH, BOUND, STEPS = 16, 0.5, 64, 4, 40
BATCH, HELD, CLOCK_STEPS = 8, 96, 40  # of the setting with a clock
CUT = float(ndtri(2 / 3))  # a third of the prompts have a higher score
FORESEEN = {  # ratio of the slow class, and luck of what is trained on
    "cancel": (0.532, -0.373), "requeue": (1.0, -0.308), "resume": (1.0, 0.0), "tail": (1.0, -0.248),
    "old: kept": (1.0, 0.0), "old: discard": (0.557, -0.346), "old: requeue": (1.0, -0.300),
    "cancel, length": (0.532, -0.373), "cancel, rollout's": (1.0, -0.527), "old: discard, rollout's": (1.0, -0.490),
}  # fmt: skip
LOSES = {"cancel-loses-slow-prompts": "cancel", "cancel-loses-long-prompts": "cancel, length",
         "old-discarded-loses-slow-prompts": "old: discard"}  # fmt: skip
KEEPS = {f"{label}-keeps-slow-prompts": label for label in ("resume", "requeue", "tail")}
KEEPS["old-requeued-keeps-slow-prompts"] = "old: requeue"
QUICK = {"requeue-draws-quickly": "requeue", "old-requeued-draws-quickly": "old: requeue"}
FAULT = "tinker-cookbook 822, marin 8955: slow prompts never trained"
ROUND, FLOW = "order statistics: the 16 first of 24", "what circulates is bounded, so as many leave as enter"
POISSON = "a Poisson number of completions within 4 to 5 versions, stationary"
AS_STARTED, FEWER = within(0.9, 1.1), below(0.75)
FREE, CANCEL = Control("latency of the rollout alone", AS_STARTED), Control("cancel", FEWER)
RESUME, KEPT = Control("resume", within(-0.1, 0.1)), Control("nothing dropped", within(0.4, 0.6))
RATIO, LUCK = (
    "share of slow prompts, trained over started",
    "luck of what is trained on, standard deviations of the log",
)


def stated(name, says, region, predicts, source, unit, reverses, *controls, kind=mean(symmetric=True), why="ours"):  # noqa: B008
    foreseen = Prediction(*np.ravel(predicts).tolist(), source=source)
    return claim(name, says=says, region=region, predicts=foreseen, unit=unit, reverses=reverses, controls=controls,
                 kind=kind, source=why, seeds=8, expect="supported")  # fmt: skip


def loses(name, says, source):
    reverses = "prompt sigma 0: latency belongs to the rollout"
    return stated(name, says, FEWER, FORESEEN[LOSES[name]][0], source, RATIO, reverses, FREE, why=FAULT)


def keeps(name, says):
    return stated(name, says, AS_STARTED, 1.0, FLOW, RATIO, "late or then: dropped for good", CANCEL)


def draws_quickly(name, says, source):
    return stated(name, says, below(-0.2), FORESEEN[QUICK[name]][1], source, LUCK, "late: resume", RESUME)


@loses("cancel-loses-slow-prompts", "A round that cancels who is late trains too few slow prompts.", ROUND)
@loses("cancel-loses-long-prompts", "A round that cancels who is late trains too few prompts with long answers.", ROUND)
@loses("old-discarded-loses-slow-prompts", "Discarding what is too old trains too few slow prompts.", POISSON)
@keeps("resume-keeps-slow-prompts", "A round that resumes who is late trains all classes as they were started.")
@keeps("requeue-keeps-slow-prompts", "A round that plays late prompts again trains all classes as they were started.")
@keeps("tail-keeps-slow-prompts", "With rounds of their own for late prompts all classes are trained as started.")
@keeps("old-requeued-keeps-slow-prompts", "Playing again what is too old trains all classes as they were started.")
@draws_quickly("requeue-draws-quickly", "A round that plays late prompts again trains on quick draws.",
               "the threshold at which 24 plays make 16, stationary")  # fmt: skip
@draws_quickly("old-requeued-draws-quickly", "Playing again what is too old trains on quick draws.", POISSON)
@stated("old-requeued-takes-longer", "Playing again what is too old costs more time a version than dropping nothing.",
        above(1.1), 1.36, "flow through 64 slots, each prompt played 1 / P(kept) times, stationary",
        "time of a version, over that without drops", "then: discard", kind=mean(scale="log"))  # fmt: skip
@stated("cancel-trains-on-quick-prompts", "Batches of a round that cancels are of quick prompts.",
        below(0.85), 0.719, ROUND, "mean latency factor of what is trained on; 1 in the source", "late: resume",
        Control("resume", AS_STARTED))  # fmt: skip
@stated("tail-rounds-gather-slow-prompts", "Rounds of their own make batches of slow prompts among batches of quick ones.",
        above(1.5), 2.17, ROUND + ", and the eight left over",
        "mean latency factor in rounds of late prompts, over that in the others", "prompt sigma 0: all factors are 1",
        kind=mean(scale="log"))  # fmt: skip
@stated("a-bound-may-train-no-slow-prompt",
        "Half the prompts take one step, half three: discarding beyond two versions trains none of the slow half.",
        None, 0.0, "each slow rollout sees its third version before it ends", "share of slow prompts trained on, all seeds",
        "drop: None at the same width", KEPT, kind=identity(0.0), why=FAULT)  # fmt: skip
@stated("admission-trains-the-source", "Admission control, oldest first: what the source holds is trained on.",
        None, 0.0, "first in, first out takes the first prompts of the source, all of them",
        "share of slow prompts trained on minus that in the source, largest over seeds", "discard in place of admission",
        Control("discard", above(0.3)), kind=agreement(1e-12), why=FAULT)  # fmt: skip
@stated("requeue-first-trains-the-slow-half", "Played again before anything new, the slow half is trained on.",
        above(0.25), (0.35, 0.35, 0.5), "1/2 - 96 / (2 x 320) where all 96 held at the end are slow, 1/2 where none is",
        "share of slow prompts trained on", "then: discard trains none", why=FAULT)  # fmt: skip
def study_late_groups(study):
    runs = study.sweep(arms(), run=counted)
    ratios = {label: ratio(r) for label, r in runs.items()}
    luck, factor = ({label: late_half(r[name]) for label, r in runs.items()} for name in ("luck", "factor"))
    took = {label: version_s(r) for label, r in runs.items()}
    for name, label in (LOSES | KEEPS | QUICK).items():
        measured = luck if name in QUICK else ratios
        held = FREE if name in LOSES else CANCEL if name in KEEPS else RESUME
        where = label.removesuffix(", length") + ", rollout's" if held is FREE else held.label
        study.conclude(name, differences=measured[label])
        study.control(name, held.label, differences=measured[where])
    study.conclude("old-requeued-takes-longer", treated=took["old: requeue"], control=took["old: kept"])
    study.conclude("cancel-trains-on-quick-prompts", differences=factor["cancel"])
    study.control("cancel-trains-on-quick-prompts", "resume", differences=factor["resume"])
    study.conclude("tail-rounds-gather-slow-prompts", **tail_rounds(runs["tail"]))
    _show(study, runs, ratios)
    header = ("rule", "ratio", "over the run", "known ends only", "luck", "foreseen", "factor", "s a version")
    rows = [(label, ratios[label].mean(), ratio(r, lambda x: x[:, -1]).mean(), r["survivorship"][:, 0].mean(),
             luck[label].mean(), FORESEEN[label][1], factor[label].mean(), took[label].mean())
            for label, r in runs.items()]  # fmt: skip
    note = f"Means of n={len(took['tail'])} seeds, second half of the run; columns three and four: the whole run."
    study.table("requeue-draws-quickly", header, rows, caption=note)
    _clock(study)


def _clock(study):
    runs, name = study.sweep(with_a_clock(), run=counted), "a-bound-may-train-no-slow-prompt"
    slow = {label: r["trained/slow"][:, -1] / r["trained"][:, -1] for label, r in runs.items()}
    source = runs["admission"]["source"][:, 0]
    study.conclude(name, value=slow["discard"])
    study.control(name, "nothing dropped", kind=mean(symmetric=True), differences=slow["nothing dropped"])
    study.conclude("admission-trains-the-source", value=slow["admission"], reference=source)
    study.control("admission-trains-the-source", "discard", value=slow["discard"], reference=source)
    study.conclude("requeue-first-trains-the-slow-half", differences=slow["requeue"])
    rows = [(label, slow[label].mean(), version_s(r).mean(), r["rollouts"][:, 0].mean()) for label, r in runs.items()]
    header = ("rule", "slow share trained on", "s a version, second half", "rollouts started")
    note = f"Means of n={len(source)} seeds, {CLOCK_STEPS} versions of {BATCH}; training 1 s, a search 1.1 s, three if slow."
    study.table(name, header, rows, caption=note)


def _show(study, runs, ratios):
    study.figure(
        "cancel-loses-slow-prompts",
        figures.dots(
            list(runs),
            [ratios[label].mean() for label in runs],
            *np.array([paired_t(ratios[label]) for label in runs]).T,
            predicted=[FORESEEN[label][0] for label in runs],
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


def arms():
    """Every rule where half the variance is the prompt's, two where none is, one where prompts differ in length."""
    tokens = (("answer", LogNormal(1e4 * math.exp(OWN / 2), math.sqrt(1 - OWN))),)
    by_length = Workload(Chain(1), group=1, prompt_length_sigma=math.sqrt(OWN), tokens=tokens)
    return {
        **{late: rounds(late) for late in ("cancel", "requeue", "resume", "tail")},
        "old: kept": in_flight(None),
        "old: discard": in_flight("discard"),
        "old: requeue": in_flight("requeue"),
        "cancel, length": replace(rounds("cancel"), {"workload": by_length, "tools": ()}),
        "cancel, rollout's": rounds("cancel", NOBODY),
        "old: discard, rollout's": in_flight("discard", NOBODY),
    }


def rounds(late, own=OWN):
    """Rounds that launch 24 and close when 16 are complete."""
    return replace(base(own), {"admission": Rounds(over=OVER, late=late)})


def in_flight(then, own=OWN):
    """64 slots always in use; what is more than four versions old is dropped, if anything is."""
    drop = None if then is None else MaxStaleness(BOUND, then=then)
    return replace(base(own), {"admission": FixedWidth(WIDTH, "running"), "drop": drop})


def base(own):
    """Prompts of one rollout whose one call has median 1 s and log-variance 1, of which `own` belongs to the prompt."""
    law = LogNormal(math.exp(own / 2), math.sqrt(1 - own))  # a factor has mean 1, so median exp(-own / 2)
    return Cluster(
        workload=Workload(Chain(2, generated=1), group=1, prompt_latency_sigma=math.sqrt(own)),
        engines=Engines(base_s=1e-4),
        tools=(ToolPool("tool", ("tool",), law),),
        slots=4096,
        order=greedy(),
        learner=Learner(batch=NEEDED),
        sync=Sync("in_place"),
        steps=STEPS,
    )


def with_a_clock():
    """A learner that takes 1 s a version; of every two prompts one needs a search, the other three."""
    world = World(known=0.5, hit_known=1.0, hit_unknown=0.0, icc=0.0, unknown_kinds=1, may_guess=False, turns=6)
    tokens = (("search", Constant(1.0)), ("answer", Constant(1.0)))
    changes = {
        "workload": Workload(world, (("fresh/answer", 40.0), ("failed/answer", -40.0)), group=1, tokens=tokens),
        "tools": (ToolPool("search", ("search",), Constant(1.1)),),
        "learner": Learner(batch=BATCH, base_s=1.0),
        "admission": FixedWidth(HELD),
        "steps": CLOCK_STEPS,
    }
    kept = replace(base(OWN), changes)
    return {
        "nothing dropped": kept,
        "admission": replace(kept, {"admission": Capacity(2), "order": fifo()}),
        "discard": replace(kept, {"drop": MaxStaleness(2)}),
        "requeue": replace(kept, {"drop": MaxStaleness(2, then="requeue")}),
    }


def counted(config, seeds, *, study):
    """Return prompts started and trained on, all and slow, and luck and factor of what is trained on, by version."""
    parts = [_counted(simulate(config, seed, study=study)) for seed in seeds]
    columns = {name: np.stack([np.broadcast_to(part[name], config.steps) for part in parts]) for name in parts[0]}
    return Runs(config, tuple(seeds), study, "sim", code_fingerprint("sim"), columns)


def _counted(run):
    b, steps, r, g = run.books, run.cluster.steps, run.books.rollouts, run.books.groups
    slow, own, factor, survived = _slow(run)
    mine, fresh = np.flatnonzero(trained(run)), np.flatnonzero(g.play == 0)
    at, begun = g.take_version[mine], np.searchsorted(b.steps.ended_s, r.start_s[fresh])
    found = {name: np.bincount(at, values[mine], steps) / np.bincount(at, minlength=steps)
             for name, values in (("luck", own), ("factor", factor), ("again", g.play > 0))}  # fmt: skip
    for name, weight in (("", np.ones(len(g))), ("/slow", slow)):
        found["started" + name] = np.cumsum(np.bincount(begun, weight[fresh], steps + 1)[:steps])
        found["trained" + name] = np.cumsum(np.bincount(at, weight[mine], steps))
    found |= {"survivorship": survived, "missing": found["started/slow"] - found["trained/slow"], "rollouts": len(r)}
    return found | {"step": np.arange(steps), "time_s": b.steps.ended_s, "source": slow[fresh][: steps * BATCH].mean()}


def _slow(run):
    """Return which groups are slow, their luck and factor, [groups], and the ratio among prompts whose end is known."""
    work, tools, r, prompt = run.cluster.workload, run.cluster.tools, run.books.rollouts, run.books.groups.prompt
    if isinstance(work.task, World):
        return (r.kind == 1).astype(float), np.zeros(len(prompt)), np.ones(len(prompt)), 0.0
    factor = factors(run)[1 if tools else 0]
    sigma = max(work.prompt_latency_sigma, work.prompt_length_sigma)  # one of them is 0
    slow = np.log(factor) / sigma + sigma / 2 > CUT
    law, time = (tools[0].latency, r.tool_s) if tools else (work.tokens[0][1], r.tokens)
    with np.errstate(divide="ignore"):  # not begun
        luck = np.log(time / factor[prompt] / law.median) / law.sigma
    survived = survivorship(run, slow.astype(int), ("other", "slow"))[1].ratio
    return slow[prompt].astype(float), luck, factor[prompt], survived


def gained(column):
    """What a cumulative column gains in the second half."""
    return column[:, -1] - column[:, column.shape[1] // 2 - 1]


def ratio(runs, of=gained):
    """Share of slow prompts among those trained on over that among those started."""
    return of(runs["trained/slow"]) / of(runs["trained"]) / (of(runs["started/slow"]) / of(runs["started"]))


def late_half(column):
    return column[:, column.shape[1] // 2 :].mean(1)


def version_s(runs):
    return gained(runs["time_s"]) / (runs["time_s"].shape[1] // 2)


def tail_rounds(runs):
    """Mean latency factor in rounds of prompts that were late before, and in the others."""
    late = runs["again"] > 0.5
    sides = {"treated": late, "control": ~late}
    return {side: np.nanmean(np.where(which, runs["factor"], np.nan), 1) for side, which in sides.items()}
