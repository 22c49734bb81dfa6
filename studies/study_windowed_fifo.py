"""A window over the queue bounds how stale a rollout gets; mean staleness cannot tell, the mix of prompts can (Forge).

Why. MiniMax's Forge holds N rollouts and lets the learner take any complete one among the W oldest, W = .3 N. Each take
starts the next rollout, so by Little's law the mean lag, counted in takes, is N - 1 for every W (less a start-up term,
exactly): a test on the mean sees nothing. The largest lag is N + W - 2, and without a window there is none. What a window
prevents shows in the data: where some prompts take longer whoever plays them, taking rollouts as completed trains on the
quick prompts first and on the slow ones late. What it costs is time: the head blocks all that lies beyond the window.

Design. N = 64, groups of one, 768 prompts; the learner takes one rollout at a time and needs no time of its own, so that
what is seen is the queue. An episode is one call that takes exp(1.2 z - .72) s, z being the prompt's difficulty. Drift is
the mean difficulty of the first 64 rollouts taken, less that of the first 64 prompts, which first in first out takes.
Control: the same law drawn afresh for each rollout, so that difficulty has no part in it. All but the mean is measured while
the source still fills the queue. Arms share their draws.

Prediction. `queue` plays heap and window alone on draws of its own and was run first: over 40 seeds, time .856, .634 and
.126 of first in first out at W = 19, 64 and none, drift -.015, -.18 and -.69; a prototype had times .87, .67 and .13. On
equal draws it takes whom the cluster takes, as a test shows. The bound on the time that a narrow window saves was set by its
spread. After a look the claim on the mix became one on a difference: behind a narrow window most seeds do not drift at all.
"""

import heapq

import numpy as np

from sim.cluster.events import Kind
from sim.cluster.measures import factors, group_lag
from sim.cluster.run import simulate
from sim.cluster.scheduling import FixedWidth, Order
from sim.cluster.spec import Cluster, Engines, Learner, ToolPool
from sim.cluster.theory.lag import capacity_mean, windowed_lag
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Constant, LogNormal
from sim.records.config import replace
from studies.kit import Control, Prediction, above, agreement, below, claim, figures, mean, median, within

HELD, PROMPTS, SIGMA = 64, 768, 1.2
FORGE = round(0.3 * HELD)
WINDOWS = {"first in, first out": 1, "window .3 N": FORGE, "window N": HELD, "as completed": None}
FIFO, NARROW, WIDE, GREEDY = WINDOWS
FULL = PROMPTS - HELD  # takes while the source fills the queue
SEEDS = 8


@claim(
    "windowed-lag-is-held-plus-window",
    says="With N held and a window of W the largest lag is N + W - 2 takes, and it is reached.",
    kind=agreement(0.0),
    predicts=Prediction(0.0, source="windowed_lag; MiniMax, arXiv 2605.26494"),
    unit="takes, largest deviation over W = 1, 19, 64 and seeds",
    seeds=SEEDS,
    expect="supported",
    source="MiniMax Forge, windowed FIFO",
    reverses="order: without a window nothing bounds the lag",
    controls=(Control("as completed against N + N - 2", above(100.0)),),
)
@claim(
    "mean-lag-does-not-see-the-window",
    says="Whatever the window, and without one, mean lag is N - 1 takes less the start-up term (N - 1) N / (2 n).",
    kind=agreement(1e-9),
    predicts=Prediction(0.0, source="capacity_mean with eta = N - 1, B = 1; Little's law in takes"),
    unit="takes, largest deviation over four windows and seeds",
    seeds=SEEDS,
    expect="supported",
    source="Little's law",
    reverses="learner.minibatches: a batch taken at once starts nobody in between, and lags fall",
    controls=(Control("the largest lag instead of the mean", above(15.0)),),
)
@claim(
    "as-completed-trains-on-the-quick-first",
    says="Where time belongs to the prompt, taking rollouts as completed trains on easier prompts first.",
    kind=mean(symmetric=True),
    region=below(-0.4),
    predicts=Prediction(-0.69, source="queue: heap and window alone"),
    unit="standard deviations of difficulty, first 64 taken minus first 64 prompts",
    seeds=SEEDS,
    expect="supported",
    source="MiniMax Forge: greedy shifts the data",
    reverses="workload.prompt_latency_sigma: 0, times drawn afresh, and prompts do not drift",
)
@claim(
    "a-narrow-window-keeps-the-mix",
    says="A window of .3 N keeps the mix of the first 64 that taking as completed loses, by more than .4.",
    kind=mean(symmetric=True),
    region=above(0.4),
    predicts=Prediction(0.67, source="queue: heap and window alone, -.015 + .69"),
    unit="drift in standard deviations of difficulty, window .3 N minus as completed",
    seeds=SEEDS,
    expect="supported",
    source="MiniMax Forge, windowed FIFO",
    reverses="how much is looked at: the first 16 taken are easier behind a window too",
)
@claim(
    "prompts-drift-only-if-time-is-theirs",
    says="Where times are drawn afresh for each rollout, taking them as completed leaves the mix of prompts alone.",
    kind=mean(symmetric=True),
    region=within(-0.2, 0.2),
    predicts=Prediction(0.0, source="difficulty and time are independent"),
    unit="standard deviations of difficulty, first 64 taken minus first 64 prompts",
    seeds=SEEDS,
    expect="supported",
    source="a prototype: no correlation, no drift",
    reverses="workload.prompt_latency_sigma: 1.2, time belongs to the prompt",
    controls=(
        Control("time belongs to the prompt", below(-0.4)),
        Control("time of the rollouts themselves", below(-0.4)),
    ),
)
@claim(
    "a-narrow-window-saves-little-time",
    says="With so heavy a tail a window of .3 N saves less than half of the time that taking rollouts as completed saves.",
    kind=median(),
    region=below(0.5),
    predicts=Prediction(0.165, source="queue: (1 - .856) / (1 - .126)"),
    unit="share of the time saved as completed, against first in first out",
    seeds=SEEDS,
    expect="supported",
    source="MiniMax Forge: strict FIFO blocks; no number given",
    reverses="order.window: N and up saves more",
)
@claim(
    "as-completed-is-several-times-faster",
    says="With the learner never binding, taking rollouts as completed is more than four times as fast as in order.",
    kind=mean(scale="log"),
    region=above(4),
    predicts=Prediction(7.96, source="queue: 1 / .126"),
    unit="time of 704 takes, first in first out / as completed",
    seeds=SEEDS,
    expect="supported",
    source="MiniMax Forge: strict FIFO blocks",
    reverses="prompt_latency_sigma: with equal times order does nothing",
)
def study_windowed_fifo(study):
    runs = {name: study.spread(play, queued(window), study.seeds(SEEDS)) for name, window in WINDOWS.items()}
    afresh = study.spread(play, queued(None, of_prompt=False), study.seeds(SEEDS))
    most = {name: np.array([group_lag(r)[taken(r)[:FULL]].max() for r in found]) for name, found in runs.items()}
    means = {name: np.array([group_lag(r).mean() for r in found]) for name, found in runs.items()}
    time_s = {name: np.array([when(r)[FULL - 1] for r in found]) for name, found in runs.items()}
    _lags(study, most, means)
    _mix(study, runs, afresh)
    saved = (time_s[FIFO] - time_s[NARROW]) / (time_s[FIFO] - time_s[GREEDY])
    study.conclude("a-narrow-window-saves-little-time", values=saved)
    study.conclude("as-completed-is-several-times-faster", treated=time_s[FIFO], control=time_s[GREEDY])
    _show(study, runs, most, means, time_s)


def _lags(study, most, means):
    name = "windowed-lag-is-held-plus-window"
    bounded = {label: window for label, window in WINDOWS.items() if window is not None}
    found = np.array([most[label] for label in bounded])
    bound = np.array([windowed_lag(HELD, window) for window in bounded.values()])[:, None]
    study.conclude(name, value=found, reference=np.broadcast_to(bound, found.shape))
    one = most[GREEDY].min()
    study.control(name, "as completed against N + N - 2", value=one, reference=windowed_lag(HELD, HELD))
    name = "mean-lag-does-not-see-the-window"
    found = np.array([means[label] for label in WINDOWS])
    study.conclude(name, value=found, reference=np.full(found.shape, capacity_mean(HELD - 1, PROMPTS)))
    found = np.array([most[label] for label in WINDOWS])
    study.control(
        name, "the largest lag instead of the mean", value=found, reference=np.broadcast_to(most[FIFO], found.shape)
    )


def _mix(study, runs, afresh):
    drift = {label: np.array([early(difficulty(r), r) for r in found]) for label, found in runs.items()}
    study.conclude("as-completed-trains-on-the-quick-first", differences=drift[GREEDY])
    study.conclude("a-narrow-window-keeps-the-mix", treated=drift[NARROW], control=drift[GREEDY])
    name = "prompts-drift-only-if-time-is-theirs"
    study.conclude(name, differences=np.array([early(difficulty(r), r) for r in afresh]))
    study.control(name, "time belongs to the prompt", differences=drift[GREEDY])
    own = np.array([early(hardness(r.books.rollouts.tool_s), r) for r in afresh])
    study.control(name, "time of the rollouts themselves", differences=own)
    rows = [(label, *(_drifts(found, first) for first in (16, 64, 128))) for label, found in runs.items()]
    rows.append(("as completed, times afresh", *(_drifts(afresh, first) for first in (16, 64, 128))))
    header = ("order", *(f"first {first}" for first in (16, 64, 128)))
    caption = f"Difficulty of the first taken less that of as many first prompts, in sd: mean over n={SEEDS} seeds."
    study.table("a-narrow-window-keeps-the-mix", header, rows, caption=caption)


def _drifts(runs, first):
    return float(np.mean([early(difficulty(r), r, first) for r in runs]))


def _show(study, runs, most, means, time_s):
    at = dict(zip(WINDOWS, (1, FORGE, HELD, PROMPTS), strict=True))
    windows = np.arange(1, HELD + 1)
    foreseen = {at[o]: predicted(window) for o, window in WINDOWS.items()}
    made, axes = figures.figure(1, 3, size=(11.0, 4.2))
    panels = (
        ("The mean cannot tell", "lag, takes", {"largest": most, "mean": means}),
        ("In order costs time", "time / first in, first out", {"time": {o: time_s[o] / time_s[FIFO] for o in WINDOWS}}),
        (
            "As completed is easy first",
            "difficulty of the first 64 taken, sd",
            {"drift": {o: [early(difficulty(r), r) for r in runs[o]] for o in WINDOWS}},
        ),
    )
    curves = (
        {
            "largest": (windows, [windowed_lag(HELD, w) for w in windows]),
            "mean": ((1, PROMPTS), [capacity_mean(HELD - 1, PROMPTS)] * 2),
        },
        {"time": (list(foreseen), [time for time, _ in foreseen.values()])},
        {"drift": (list(foreseen), [drift for _, drift in foreseen.values()])},
    )
    for ax, (title, ylabel, measured), lines in zip(axes, panels, curves, strict=True):
        figures.points(
            {name: {at[o]: found[o] for o in WINDOWS} for name, found in measured.items()},
            curves=lines,
            title=title,
            xlabel=f"window W ({PROMPTS}: none)",
            ylabel=ylabel,
            log="xy" if ax is axes[0] else "x",
            axes=ax,
        )
    study.figure(
        "windowed-lag-is-held-plus-window",
        made,
        caption=f"N = {HELD}. Lines: left N + W - 2 and Little's law, else the queue alone (40 draws), joined.",
    )


def play(config, seeds, *, study):
    """Return one recorded run of the cluster a seed."""
    return [simulate(config, seed, study=study, record=True) for seed in seeds]


def queued(window, of_prompt=True, sigma=SIGMA):
    """N single calls held at once, whose time belongs to the prompt or is drawn afresh."""
    factor = "prompt_latency_sigma" if of_prompt else "prompt_length_sigma"
    law = Constant(1.0) if of_prompt else LogNormal(float(np.exp(-(sigma**2) / 2)), sigma)
    cluster = Cluster(
        workload=Workload(task=Chain(1, generated=1), group=1, prompts=PROMPTS),
        engines=Engines(base_s=1e-9),
        tools=(ToolPool("environment", ("answer",), law),),
        admission=FixedWidth(HELD, "unconsumed"),
        slots=HELD,
        order=Order(window),
        learner=Learner(batch=HELD, minibatches=HELD),
        steps=PROMPTS // HELD,
    )
    return replace(cluster, {f"workload.{factor}": sigma})


def taken(run):
    """Groups in the order in which they were taken, [n]."""
    return run.log.entity[run.log.of_kind(Kind.TRAIN_TAKE)]


def when(run):
    """When each take happened, s, [n]."""
    return run.log.t_s[run.log.of_kind(Kind.TRAIN_TAKE)]


def hardness(factor, sigma=SIGMA):
    """The standard normal z of exp(sigma z - sigma^2 / 2)."""
    return (np.log(factor) + sigma**2 / 2) / sigma


def difficulty(run):
    """What belongs to each prompt, as a standard normal, [prompts]: of its time, or else of its text."""
    length, latency = factors(run)
    return hardness(latency if run.cluster.workload.prompt_latency_sigma > 0 else length)


def early(value, run, first=HELD):
    """Mean of a value [groups] over the first so many taken, less that over as many that started first."""
    return float(value[np.sort(taken(run)[:first])].mean() - value[:first].mean())


def queue(latency, window):
    """Take order and times of the first takes from a queue of N, heap and window alone; each take starts the next."""
    running = [(float(x), i) for i, x in enumerate(latency[:HELD])]
    heapq.heapify(running)
    ready, order, times, gone, head, now = [], [], [], set(), 0, 0.0
    while len(order) < len(latency) - HELD:
        if ready and (window is None or ready[0] - head < window):
            i = heapq.heappop(ready)
            gone.add(i)
            while head in gone:
                head += 1
            following = HELD + len(order)
            heapq.heappush(running, (now + float(latency[following]), following))
            order.append(i)
            times.append(now)
        else:
            now, i = heapq.heappop(running)
            heapq.heappush(ready, i)
    return np.array(order), np.array(times)


def predicted(window, draws=40, sigma=SIGMA):
    """Time against first in first out, and drift, of the queue alone, in the mean over draws of its own."""
    ratio, drift = [], []
    for seed in range(draws):
        z = np.random.default_rng(seed).normal(size=PROMPTS)
        latency = np.exp(sigma * z - sigma**2 / 2)
        order, times = queue(latency, window)
        ratio.append(np.log(times[-1] / queue(latency, 1)[1][-1]))
        drift.append(z[order[:HELD]].mean() - z[:HELD].mean())
    return float(np.exp(np.mean(ratio))), float(np.mean(drift))
