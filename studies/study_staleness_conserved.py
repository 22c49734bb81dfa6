"""With the capacity rule binding, the order in which rollouts are taken moves the spread of staleness and not its mean.

Why. A rollout that starts under version s and is taken by the step that makes version t + 1 has staleness t - s. AReaL's
rule lets (eta + v + 1) B rollouts start by version v; where it binds, who starts when is fixed, and how many a step takes.
So is the sum of t - s, whoever is taken: over S steps that use up a source of S B rollouts the mean is
eta - eta (eta + 1) / (2 S). Of an endless source the sum of staleness taken and ages left is fixed, S eta B; an order that
leaves old ones shows a lower mean, by about Var(staleness) / (2 S). A mean cannot tell what bounds staleness from what does
not: first in first out within eta, a window of W groups within eta + ceil((W - 1) / B), B in groups; as completed, the
longest latency over the time of a step. Where slots bind in place of the rule, the mean is E[group's span] / tau + rho.

Design. Episodes of four turns with three calls of a tool of tail exponent 1.5, cut at 60 s, served by as many servers as a
batch has rollouts: 64, in groups of four; 16 for the exact claims. Those on slots have episodes of one call.

Shaped after a look at seeds 100 and up: the servers, with which order matters about as much as in a prototype of other size
and tails; the length of runs on slots; then, at the record's seeds, for time, fewer eta there. No prediction changed.
"""

import numpy as np

from sim.cluster.run import simulate
from sim.cluster.scheduling import Capacity, Order, fifo, greedy
from sim.cluster.spec import Cluster, Engines, Learner, ToolPool
from sim.cluster.theory.lag import capacity_mean, mean_staleness, unsaturated_mean, windowed_capacity_lag
from sim.cluster.theory.order import mean_max
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import CappedPareto, LogNormal
from sim.records.config import replace
from studies.kit import Control, Prediction, above, agreement, below, claim, figures, identity, mean, median, within

GROUP, CALLS, WINDOW = 4, 3, 16
ORDERS = {"first in, first out": fifo(), f"window of {WINDOW} groups": Order(WINDOW), "as completed": greedy()}
FIFO, WINDOWED, GREEDY = ORDERS
ETAS, EXACT_SEEDS, SEEDS = (0, 1, 2, 4), 3, 8
ETA, STEPS, BATCH = 4, 20, 64
TOOL = CappedPareto(0.5, 1.5, 60.0)
LONGEST = mean_max(TOOL.quantiles_s, STEPS * BATCH * CALLS) / (CALLS * TOOL.mean_s())  # steps in a run's longest call
LIMITS, NO_RULE, WARM = (2, 4, 6), 1000, 40  # eta in the claims on slots; as good as none; steps not counted


@claim(
    "order-leaves-mean-staleness",
    says="Where the capacity rule binds and the source is used up, the mean is eta - eta (eta + 1) / (2 S) in any order.",
    kind=agreement(1e-12),
    predicts=Prediction(0.0, source="sums of start and take versions (sim.cluster.theory.lag)"),
    unit="versions, largest deviation over four eta, three orders and seeds",
    seeds=EXACT_SEEDS,
    expect="supported",
    source="AReaL's capacity rule; sim.cluster.theory.lag",
    reverses="slots: fewer than (eta + 1) B, and starts wait for them; drop: who is played again starts later",
    controls=(Control("slots for two batches", above(0.5)),),
)
@claim(
    "staleness-taken-and-left-adds-up",
    says="Of an endless source the staleness of those taken and the ages of those left sum to S eta B in any order.",
    kind=agreement(0.0),
    predicts=Prediction(0.0, source="eta B are in flight at each of S publications"),
    unit="versions, largest deviation of the sum over three orders and seeds",
    seeds=SEEDS,
    expect="supported",
    source="sim.cluster.theory.lag",
    reverses="what is counted: those taken alone fall short of it",
    controls=(Control("those taken alone", above(100.0)),),
)
@claim(
    "as-completed-hides-the-old",
    says="Of an endless source, the mean over those taken is lower as completed than first in first out: old ones are left.",
    kind=mean(symmetric=True),
    region=below(0.0),
    predicts=Prediction(
        -0.10, source="-Var / (2 S), the variance that of the longest of four sums of three calls, in steps (sampled)"
    ),
    unit="versions, as completed minus first in first out",
    expect="supported",
    source="sim.cluster.theory.lag",
    reverses="workload.prompts: S B rollouts and no more, and the means are equal",
)
@claim(
    "a-window-bounds-staleness",
    says="First in first out no rollout is staler than eta; with a window of W groups than eta + ceil((W - 1) / B).",
    kind=identity(0.0),
    region=below(0.5),
    predicts=Prediction(0.0, source="windowed_capacity_lag: attained first in first out"),
    unit="versions, largest staleness minus the bound",
    seeds=SEEDS,
    expect="supported",
    source="MiniMax's windowed FIFO under AReaL's rule; sim.cluster.theory.lag",
    reverses="order: as completed the capacity rule bounds nothing",
    controls=(Control("as completed", above(0.5)),),
)
@claim(
    "the-capacity-rule-is-no-bound",
    says="As completed, the stalest rollout is more than twice eta behind: as long as the longest call lasts.",
    kind=median(),
    region=above(2 * ETA),
    predicts=Prediction(LONGEST, source="E[longest of a run's calls] / time of a step when servers never idle"),
    unit="versions, largest staleness of a run at eta = 4",
    expect="supported",
    source="SkyRL's documentation: not guaranteed",
    reverses="order: first in first out it is eta",
)
@claim(
    "as-completed-outruns-fifo",
    says="With as many tool servers as rollouts in a batch, taking rollouts as completed is more than 1.5 times as fast.",
    kind=mean(scale="log"),
    region=above(1.5),
    predicts=Prediction(2.1, source="a prototype of 1,000 slots at eta = 4, servers binding"),
    unit="time of 20 versions, first in first out / as completed, same draws",
    expect="supported",
    source="MiniMax Forge: strict FIFO blocks behind the slowest",
    reverses="the tail of latencies: with calls of equal length order does nothing",
)
@claim(
    "unsaturated-staleness-is-span-over-step",
    says="Where slots and not the rule limit starts, mean staleness is E[group's span] / tau + rho within 2 %.",
    kind=mean(scale="log"),
    region=within(0.98, 1.02),
    predicts=Prediction(1.0, source="unsaturated_mean; its span, step and use of the learner from the same run"),
    unit="mean staleness / formula",
    expect="supported",
    source="sim.cluster.theory.lag",
    reverses="learner.base_s: slower than generation, and complete rollouts wait",
    controls=(Control("a learner slower than generation", above(1.1)),),
)
@claim(
    "the-tighter-limit-rules",
    says="Mean staleness is the smaller of eta and the unsaturated mean, within 5 % away from where they cross.",
    kind=median(),
    region=below(0.05),
    predicts=Prediction(0.0, source="mean_staleness, for long runs"),
    unit="largest relative deviation over eta = 2, 4 and no rule",
    expect="supported",
    source="sim.cluster.theory.lag",
    reverses="where the two limits cross, both hold some starts back",
)
def study_staleness_conserved(study):
    n = study.seeds(EXACT_SEEDS)
    exact = {eta: {o: study.spread(play, used_up(eta, order), n) for o, order in ORDERS.items()} for eta in ETAS}
    endless = {o: study.spread(play, agents(ETA, order), study.seeds(SEEDS)) for o, order in ORDERS.items()}
    _exact(study, exact, endless)
    _bounds(study, exact, endless)
    _slots(study)


def _exact(study, exact, endless):
    name = "order-leaves-mean-staleness"
    found = np.array([[[staleness(r).mean() for r in exact[eta][o]] for o in ORDERS] for eta in ETAS])
    formula = np.array([capacity_mean(eta, STEPS) for eta in ETAS])[:, None, None]
    study.conclude(name, value=found, reference=np.broadcast_to(formula, found.shape))
    few = study.spread(play, replace(used_up(ETA, greedy()), {"slots": 32}), study.seeds(EXACT_SEEDS))
    off = [staleness(r).mean() for r in few]
    study.control(name, "slots for two batches", value=off, reference=[capacity_mean(ETA, STEPS)] * len(off))
    taken = np.array([[staleness(r).sum() for r in endless[o]] for o in ORDERS])
    left = np.array([[ages_left(r).sum() for r in endless[o]] for o in ORDERS])
    total = np.full(taken.shape, STEPS * ETA * BATCH)
    study.conclude("staleness-taken-and-left-adds-up", value=taken + left, reference=total)
    study.control("staleness-taken-and-left-adds-up", "those taken alone", value=taken, reference=total)
    treated, control = ([staleness(r).mean() for r in endless[o]] for o in (GREEDY, FIFO))
    study.conclude("as-completed-hides-the-old", treated=treated, control=control)


def _bounds(study, exact, endless):
    largest = {o: np.array([staleness(r).max() for r in endless[o]]) for o in ORDERS}
    bound = {o: windowed_capacity_lag(ETA, ORDERS[o].window, BATCH // GROUP) for o in (FIFO, WINDOWED)}
    study.conclude("a-window-bounds-staleness", value=float(max((largest[o] - b).max() for o, b in bound.items())))
    study.control("a-window-bounds-staleness", "as completed", value=float(largest[GREEDY].min() - bound[WINDOWED]))
    study.conclude("the-capacity-rule-is-no-bound", values=largest[GREEDY].astype(float))
    time_s = {o: np.array([r.books.end_s for r in endless[o]]) for o in ORDERS}
    study.conclude("as-completed-outruns-fifo", treated=time_s[FIFO], control=time_s[GREEDY])
    header = ("order", "mean", "formula - Var / (2 S)", "p99", "largest of all", "s a version", "servers busy")
    rows = [
        (
            o,
            float(np.mean([staleness(r).mean() for r in endless[o]])),
            float(capacity_mean(ETA, STEPS) - np.mean([staleness(r).var() for r in endless[o]]) / (2 * STEPS)),
            float(np.mean([np.quantile(staleness(r), 0.99) for r in endless[o]])),
            int(largest[o].max()),
            float(time_s[o].mean() / STEPS),
            float(np.mean([r.books.pools.busy_s[0] / (BATCH * r.books.end_s) for r in endless[o]])),
        )
        for o in ORDERS
    ]
    study.table("as-completed-hides-the-old", header, rows, f"Means of n={SEEDS} seeds, no end of prompts, eta {ETA}.")
    _show(study, exact)


def _show(study, exact):
    made, axes = figures.figure(1, 2, size=(9.4, 5.0))
    aside, grid = dict(zip(ORDERS, (-0.12, 0.0, 0.12), strict=True)), np.arange(ETAS[-1] + 1)
    formula = {"eta - eta (eta + 1) / (2 S)": (grid, [capacity_mean(e, STEPS) for e in grid])}
    bounds = {FIFO: (grid, grid), WINDOWED: (grid[1:], [windowed_capacity_lag(e, WINDOW, 4) for e in grid[1:]])}
    means = (np.mean, "mean", "One mean in every order", formula)
    peaks = (np.max, "largest of a run", "The largest is another matter", bounds)
    for ax, (measure, what, title, lines) in zip(axes, (means, peaks), strict=True):
        figures.points(
            {o: {eta + aside[o]: [measure(staleness(r)) for r in exact[eta][o]] for eta in ETAS} for o in ORDERS},
            curves=lines,
            title=title,
            xlabel="eta, batches ahead",
            ylabel=f"staleness, versions: {what}",
            axes=ax,
        )
    axes[1].set_ylim(-0.7, 24)
    study.figure("order-leaves-mean-staleness", made, f"Batches of 16, {STEPS} steps. Lines on the right: bounds.")


def _slots(study):
    name = "unsaturated-staleness-is-span-over-step"
    slots = {eta: study.spread(play, limited(eta), study.seeds(SEEDS)) for eta in (*LIMITS, NO_RULE)}
    slow = study.spread(play, limited(NO_RULE, 60, train_s=3.0), study.seeds(SEEDS))
    study.conclude(name, **against_formula(slots[NO_RULE]))
    study.control(name, "a learner slower than generation", **against_formula(slow))
    found = {eta: np.array([steady(r) for r in arm]) for eta, arm in slots.items()}
    off = [np.abs(found[eta] / [mean_staleness(eta, *cycle(r)) for r in slots[NO_RULE]] - 1) for eta in (2, 4, NO_RULE)]
    study.conclude("the-tighter-limit-rules", values=np.max(off, axis=0))
    grid = np.geomspace(1.5, 18, 60)
    least = np.minimum(grid, np.median(against_formula(slots[NO_RULE])["control"]))
    study.figure(
        "the-tighter-limit-rules",
        figures.points(
            {"measured": {eta: found[eta] for eta in LIMITS} | {16: found[NO_RULE]}},
            curves={"the smaller of eta and E[span] / tau + rho": (grid, least)},
            title="Either the capacity rule or the slots make the staleness",
            xlabel="eta, batches ahead (16: no rule)",
            ylabel="mean staleness, versions",
            log="xy",
        ),
        f"128 slots, batches of 32, steps from {WARM} on. The formula from the runs without a capacity rule.",
    )


def play(config, seeds, *, study):
    """Return one run of the cluster a seed."""
    return [simulate(config, seed, study=study) for seed in seeds]


def agents(eta, order, batch=BATCH, **changes):
    """Episodes of three calls of a tool that has as many servers as a batch rollouts."""
    cluster = Cluster(
        workload=Workload(task=Chain(CALLS + 1, ("search",)), group=GROUP),
        engines=Engines(count=4, base_s=1e-3),
        tools=(ToolPool("search", ("search",), TOOL, servers=batch),),
        admission=Capacity(eta),
        slots=(ETA + 1) * BATCH,
        order=order,
        learner=Learner(batch=batch, base_s=0.5),
        steps=STEPS,
    )
    return replace(cluster, changes)


def used_up(eta, order):
    """The same in small, with a source that holds just what is trained on."""
    return agents(eta, order, 16, **{"workload.prompts": STEPS * 16 // GROUP})


def limited(eta, steps=None, train_s=1.0):
    """Episodes of one call each on 128 slots, before the capacity rule as well where eta is small."""
    return Cluster(
        workload=Workload(task=Chain(1, generated=1), group=GROUP),
        engines=Engines(base_s=1e-6),
        tools=(ToolPool("environment", ("answer",), LogNormal(8.0, 0.5)),),
        admission=Capacity(eta),
        slots=128,
        order=greedy(),
        learner=Learner(batch=32, base_s=train_s),
        steps=steps or (100 if eta == NO_RULE else 60),
    )


def staleness(run):
    """Versions between start and use of every rollout taken, [n]."""
    r, g = run.books.rollouts, run.books.groups
    return (g.take_version[r.group] - r.start_version)[g.taken[r.group]]


def ages_left(run):
    """Versions between start and the last one of every rollout not taken, [n]."""
    r, g = run.books.rollouts, run.books.groups
    return (run.cluster.steps - r.start_version)[~g.taken[r.group]]


def steady(run):
    """Mean staleness of what is taken once the run has warmed up."""
    g = run.books.groups
    return float((g.take_version - g.start_version)[g.take_version >= WARM].mean())


def against_formula(runs):
    """Mean staleness of each run and the unsaturated mean of its own span, step and use of the learner."""
    return {"treated": [steady(r) for r in runs], "control": [unsaturated_mean(*cycle(r)) for r in runs]}


def cycle(run):
    """Mean span of a group from its start until it is complete, s; time of a step, s; share of it the learner trains."""
    b = run.books
    start = np.full(len(b.groups), np.inf)
    np.minimum.at(start, b.rollouts.group, b.rollouts.start_s)
    span = (b.groups.ready_s - start)[b.groups.take_version >= WARM].mean()
    passed = b.steps.ended_s[-1] - b.steps.ended_s[WARM - 1]
    return float(span), float(passed / (len(b.steps) - WARM)), float(b.steps.trained_s[WARM:].sum() / passed)
