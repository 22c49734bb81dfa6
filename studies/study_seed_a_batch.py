"""Both columns of seed A's table in one run of a network, and what decides whether the second is reached (A1, H7, H17).

Why. In seed A's table the first decision turns from searching to guessing and nothing else changes. Under a sequence mean
the enumerated push of the first update points to guessing where what is known is what the retriever misses, and it
vanishes at some share of guessing: there, if theory's private weights are anything like the network's, the flip should
come to rest. The published second column has a share of .68.

Design. Seed A's batch: 128 questions x 8 episodes of four turns, a wrong answer may be retried, plain GRPO, no KL, two
updates a step. Two worlds that both fit the first column and that theory tells apart by where the push vanishes, .60 and
.28; six fact bases, each with a supervised start shared by both worlds and by two reinforcement seeds. A batch *meets* a
column if the root mean square over the eight numbers is at most 5 points. That was fixed beforehand: of sampled batches of
a world and policy fitted to both columns, 95 in 100 are within 4.8 (first) and 4.4 points (second) of the published ones.
The first column is held against the batch of step 0, the second against the first batch that meets it, not the nearest.

What was chosen, and how often. From the table: the share known (.21), the accuracy of a first answer on evidence (.47), the
habit (.016); one value each. By enumeration, without training: hit rate on known questions, correlation, anchoring and the
factor after a failed answer, 88 worlds in all; the world that rests at .60 is the one with round numbers that fits best.
The other, of rate .13, correlation .6 and anchoring .3, fits both columns better (.7 and 1.6 points when the start alone is
moved, against 1.8 and 3.2) and was tried first. Its pilot runs, three with a rate of 1e-4 (of 1e-4 and 2e-4) and at most
60 steps, went up to .4 and back and did not meet the second column, which is what sent us to enumerate where it rests. So
the second world was found after a look at pilot runs of the first, and then had two of its own, which chose the length.
After the record runs one claim was put more carefully, its region as before: where the push vanishes at .28 no batch of 45
steps meets the second column, but momentum carries some runs to shares of .55, one is still rising, and two never set out.
A prediction lost a range that was its region itself, and the one-number claim got its control.
"""

import numpy as np
from scipy.optimize import brentq

from minimodel.agent.optimiser import AdamW
from minimodel.agent.setup import Training
from minimodel.forecast import drawn_gap
from minimodel.pretrain.start import Start
from minimodel.tasks.facts import draw_facts
from minimodel.tasks.script import Script
from minimodel.tasks.task import Task, played_world
from sim.learning.family import grpo
from sim.mdp.exact import occupancy
from sim.mdp.policy import tables
from sim.mdp.published import SEED_A, TurnTable
from sim.mdp.worlds import World
from sim.records.config import replace
from sim.signals.onsets import Direction, first_passages
from studies.kit import Prediction, above, below, claim, figures, median, rate, time, within

GUESS = "decision/share/start/answer"
OTHERS = tuple(
    f"decision/share/{context}/{action}" for context in ("fresh", "failed") for action in ("answer", "search")
)
PUBLISHED = 100 * np.stack([SEED_A.accuracy, SEED_A.search_share], 1)  # [checkpoints, 2, K], percent
NEAR = 5.0  # percentage points, root mean square over a column's eight numbers
STEPS, LAST = 45, 20
SEEDS, A_START = 12, 2  # seeds in all, and of each start
FAR, SHORT = "rests at .60", "rests at .28"


def arms():
    """Return the runs: seed A's batch in two worlds that differ in retrieval alone."""
    world = World(known=0.21, hit_known=0.05, retry_known=0.6, hit_unknown=0.581, icc=0.75, anchoring=0.45)
    far = Training(
        task=Task(world=world),
        start=Start(script=Script(guess=0.016), steps=600, batch=96),
        rule=grpo(kl=0.0),
        optimiser=AdamW(rate=1e-4),
        prompts=128,
        steps=STEPS,
        evaluation=None,
        watched=1,
        starts_shared_by=A_START,
    )
    other = {"hit_known": 0.13, "hit_unknown": 0.56, "icc": 0.6, "anchoring": 0.3}
    return {FAR: far, SHORT: replace(far, {f"task.world.{name}": value for name, value in other.items()})}


@claim(
    "one-run-meets-both-columns",
    says="In a world whose push vanishes at .60, one run starts at the first published column and meets the second.",
    kind=rate(),
    region=above(0.5),
    predicts=Prediction(1.0, source="the enumerated push vanishes at a share of .60; the column has .68"),
    unit="share of runs, by step 45",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="seed A, A1; H7",
    reverses="the share at which the push vanishes: at .28 the second column is not met",
)
@claim(
    "the-second-column-is-not-met-where-the-push-vanishes-early",
    says="In a world that fits both columns better, but whose push vanishes at .28, runs do not meet the second.",
    kind=median(),
    region=above(NEAR),
    predicts=Prediction(21.0, source="the exact column at a share of .28; what runs beyond it is nearer"),
    unit="percentage points, nearest batch of 45 steps",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H7; theory T1",
    reverses="the share at which the push vanishes",
)
@claim(
    "the-second-column-comes-within-thirty-steps",
    says="Where both are met, the second column follows the first within thirty steps; the published run took nineteen.",
    kind=time(),
    region=below(30),
    predicts=Prediction(19, source="seed A's table, steps 278 and 297; the learning rate was not tuned to it"),
    unit="steps (of two updates) from the first batch to one that meets the second column",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="seed A, A1",
    reverses="the learning rate",
)
@claim(
    "guessing-rests-where-the-push-vanishes",
    says="After the flip the share of guesses stays around the one at which the enumerated push vanishes.",
    kind=median(),
    region=within(0.5, 0.7),
    predicts=Prediction(0.60, source="zero of the enumerated gap of the drawn world"),
    unit="P(answer | start), mean of the last twenty steps",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="theory T1",
    reverses="the world: in the other one the push vanishes at .28",
)
@claim(
    "the-networks-flip-changes-the-start",
    says="Between the batches that meet the two columns the first decision changes by more than one half.",
    kind=median(),
    region=above(0.5),
    predicts=Prediction(0.66, source="hazards of turn 0 in the published table"),
    unit="total variation",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H17",
    reverses="the share at which the push vanishes",
)
@claim(
    "the-networks-flip-spares-the-other-contexts",
    says="The decisions on fresh evidence and after a failed answer change by less than .1 meanwhile.",
    kind=median(),
    region=below(0.1),
    predicts=Prediction(0.05, source="hazards of later turns in the published table"),
    unit="total variation, larger of the two",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H17",
    reverses="the context: at the start it changes by more than one half",
)
@claim(
    "one-number-moved-fits-as-well",
    says="The world enumerated with nothing but the first decision moved is as near to the second column as the network.",
    kind=median(),
    region=below(1.0),
    predicts=Prediction(-0.4, source="3.2 points without sampling, 3.6 with it"),
    unit="percentage points: distance of the one-parameter model minus that of the batch which meets the column",
    seeds=SEEDS,
    expect="supported",
    rungs=("minimodel",),
    long=True,
    source="H17",
    reverses="the other decisions: had they moved, one number would not do",
)
def study_seed_a_batch(study):
    points = arms()
    rests = {label: at_rest(config) for label, config in points.items()}
    if not (abs(rests[FAR] - 0.60) < 0.02 and abs(rests[SHORT] - 0.28) < 0.02):
        raise ValueError(f"the drawn worlds' pushes vanish at {rests}; they must do so at .60 and .28")
    runs = study.sweep(points)
    starts = np.array(runs[FAR].seeds) // A_START
    columns = {label: batches(r) for label, r in runs.items()}
    away = {label: distance(found, PUBLISHED[1]) for label, found in columns.items()}  # [S, T]
    first = {label: distance(found[:, 0], PUBLISHED[0]) for label, found in columns.items()}  # [S]
    met = {label: first_passages(d, NEAR, direction=Direction.DOWN) for label, d in away.items()}
    both = {label: np.isfinite(met[label]) & (first[label] <= NEAR) for label in runs}
    data = {"moved": runs[FAR]["update/moved"][:, -1] > 0, "clusters": starts}
    name, out = "one-run-meets-both-columns", "the-second-column-is-not-met-where-the-push-vanishes-early"
    study.conclude(name, outcomes=both[FAR], **data)
    elsewhere = "where the push vanishes at .28 none does"
    study.control(name, elsewhere, region=below(0.5), outcomes=both[SHORT], clusters=starts)
    study.conclude(out, values=away[SHORT].min(1), moved=runs[SHORT]["update/moved"][:, -1] > 0, clusters=starts)
    study.control(out, "at .60 it is met", region=below(NEAR), values=away[FAR].min(1), clusters=starts)
    study.conclude("the-second-column-comes-within-thirty-steps", times=met[FAR], censored_at=STEPS, **data)
    rest = {label: r[GUESS][:, -LAST:].mean(1) for label, r in runs.items()}
    name = "guessing-rests-where-the-push-vanishes"
    study.conclude(name, values=rest[FAR], **data)
    study.control(name, "lower where it vanishes at .28", region=below(0.5), values=rest[SHORT], clusters=starts)
    there = np.where(np.isfinite(met[FAR]), met[FAR], away[FAR].argmin(1)).astype(int)  # the nearest, if none meets it
    r, by_seed = runs[FAR], np.arange(len(starts))
    change = {column: np.abs(r[column][by_seed, there] - r[column][:, 0]) for column in (GUESS, *OTHERS)}
    study.conclude("the-networks-flip-changes-the-start", values=change[GUESS], **data)
    name = "the-networks-flip-spares-the-other-contexts"
    study.conclude(name, values=np.max([change[column] for column in OTHERS], 0), **data)
    study.control(name, "at the start it changes", region=above(0.1), values=change[GUESS], clusters=starts)
    name, reached = "one-number-moved-fits-as-well", away[FAR][by_seed, there]
    model, still = (
        distance(np.array([one_number(points[FAR], r, i, step) for i, step in enumerate(steps)]), PUBLISHED[1])
        for steps in (there, np.zeros_like(there))
    )
    study.conclude(name, values=model - reached, **data)
    study.control(name, "with none moved it does not", region=above(1.0), values=still - reached, clusters=starts)
    before, after = (np.median(c, 0) / 100 for c in (columns[FAR][:, 0], columns[FAR][by_seed, there]))
    middle = TurnTable(np.stack([before[0], after[0]]), np.stack([before[1], after[1]]), SEED_A.checkpoints)
    _figures(study, runs, rests, middle)
    _tables(study, runs, points, rests, {"first": first, "away": away, "met": met})


def batches(runs):
    """Return the eight numbers of every batch, percent, [S, T, 2, K]."""
    turns = range(SEED_A.accuracy.shape[1])
    rows = [[100 * runs[f"behaviour/{name}/turn{t}"] for t in turns] for name in ("accuracy", "search_share")]
    return np.moveaxis(np.array(rows), (0, 1), (-2, -1))


def distance(columns, other):
    """Return the root mean square over a column's eight numbers, percentage points."""
    return np.sqrt(((columns - other) ** 2).mean((-2, -1)))


def at_rest(config):
    """Return the share of guessing at which the enumerated push on the first decision vanishes."""
    if drawn_gap(config, 0) >= 0:
        raise ValueError(f"the drawn world's gap is {drawn_gap(config, 0):+.3f}; it must point towards guessing")
    return float(
        brentq(lambda g: drawn_gap(replace(config, {"start.script.guess": float(g)}), 0), 0.05, 0.95, xtol=1e-3)
    )


def one_number(config, runs, i, step):
    """Return the exact column of the drawn world: the first decision as at a step, the others as at step 0, [2, K]."""
    task = config.task
    graph = draw_facts(task.world, task.vocabulary, task.held_out, 0).graph(played_world(task))
    z = np.zeros(len(graph.free_names))
    for context, at in (("start", step), ("fresh", 0), ("failed", 0)):
        chance = np.clip(runs[f"decision/share/{context}/answer"][i, at], 1e-6, 1 - 1e-6)
        z[graph.free_names.index(f"{context}/answer")] = np.log(chance / (1 - chance))
    found = occupancy(graph, tables(graph, z))
    return 100 * np.stack([found.solved, found.action_share(graph.actions.index("search"))])


def _figures(study, runs, rests, middle):
    made = figures.bands(
        runs, GUESS, title="The flip goes to where the enumerated push vanishes", ylabel="P(answer | start)"
    )
    for level, colour in zip(rests.values(), figures.COLOURS, strict=False):
        made.axes[0].axhline(level, color=colour, linestyle=":", linewidth=1)
    study.figure(
        "guessing-rests-where-the-push-vanishes",
        made,
        caption=f"Exact probability; {SEEDS} runs a world on six starts. Dotted: where the enumerated push vanishes.",
    )
    study.figure(
        "one-run-meets-both-columns",
        figures.table_fit(SEED_A, middle, title="Both columns of the published table, in one run of a network"),
        caption=f"Circles: published. Lines ('model'): medians over {SEEDS} runs, at step 0 and at the first batch that "
        "meets the second column.",
    )


def _tables(study, runs, points, rests, found):
    """Show every run, and what one number would do."""
    known, unknown = (f"{GUESS}/{kind}" for kind in ("known", "unknown"))
    rows = []
    for label, r in runs.items():
        for i, seed in enumerate(r.seeds):
            away, met = found["away"][label][i], found["met"][label][i]
            at = int(met) if np.isfinite(met) else int(away.argmin())
            rows.append(
                (
                    label,
                    f"{seed // A_START}, {seed % A_START}",
                    float(found["first"][label][i]),
                    at if np.isfinite(met) else f"({at})",
                    float(away[at]),
                    float(distance(one_number(points[label], r, i, at), PUBLISHED[1])),
                    float(r[GUESS][i, at]),
                    float(r[known][i, at] - r[unknown][i, at]),
                    f"{away.min():.2f} at {away.argmin()}",
                    float(r[GUESS][i].max()),
                )
            )
    header = ("world", "start, seed", "first column, step 0", "second met at (nearest)", "distance there")
    header += ("one number moved", "P(answer | start)", "known minus unknown", "nearest", "largest share")
    gaps = ", ".join(f"{label}: {drawn_gap(config, 0):+.3f}" for label, config in points.items())
    study.table(
        "one-run-meets-both-columns",
        header,
        rows,
        caption=f"Distances in percentage points. Enumerated gaps of the first update: {gaps}; they vanish at "
        "{:.2f} and {:.2f}. The nearest batch is for information.".format(*rests.values()),
    )
