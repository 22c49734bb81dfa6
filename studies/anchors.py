"""Published systems as clusters to be simulated: what their sources print, what is ours, and what theory says beforehand.

One model of time serves every row. An engine decodes n sequences in 10 ms + .1 ms n a token (ours: .1 ms is 2 x 7.6 GFLOP
at 148 TFLOP/s). A rollout is one turn of log-normal length, sd .5 of the log within a prompt and .3 between prompts: the
pair that a prototype chose out of four with verl's whole table in view. One number is fitted, the median length, to one
printed wait; no other row has a constant of its own beyond its schedule. Sources are in docs/published_clusters.md.

Theory here counts in tokens. Sequences that start together decode V tokens each in the time a V + b (tokens written by one
engine), so that order statistics of lengths are order statistics of time (:func:`clock_s`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from sim.cluster.measures import measure
from sim.cluster.run import ClusterRun
from sim.cluster.scheduling import Capacity, FixedWidth, Rounds, greedy
from sim.cluster.spec import Cluster, Engines, Learner, Sync
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Capped, LogNormal

BASE_S, PER_SEQUENCE_S = 0.010, 0.0001
"""a and b of an engine, s."""
WITHIN, BETWEEN = 0.5, 0.3
"""Standard deviations of the log of a length within a prompt and between prompts."""
MEDIAN = 2006.0
"""Median length, tokens, at which :func:`streamed_wait_s` gives the wait printed at threshold 0. The one fitted number."""


@dataclass(frozen=True)
class Row:
    """A row of verl's ablation of the staleness threshold, 128 GPUs."""

    wait_s: float
    """Printed "gen", s: the learner's wait for samples."""
    step_s: float
    """Printed "step", s."""

    @property
    def train_s(self) -> float:
        """What is left of a step: four updates and all else the learner does, s. An input of every row."""
        return self.step_s - self.wait_s


VERL = {0.0: Row(128.47, 231.34), 0.1: Row(58.17, 171.30), 0.3: Row(38.88, 146.11), 0.5: Row(33.14, 150.63)}
"""By threshold, means over 400 steps. The run at .5 is printed again over 300 steps with a wait of 25.62 s."""
CONTROL_SYNC, CONTROL_ASYNC = Row(52.939, 484.623), Row(52.622, 489.953)
"""verl's negative control, 16 GPUs colocated against 8:8, at most 10K tokens."""
CONTROL_MEDIAN = 361.0
"""Median length at which :func:`colocated_s` gives the generation printed for 16 GPUs: the control has a fit of its own."""
AREAL_GAIN, APRIL_GAIN, ROLLPACKER_GAIN = {"1.5B": 1.12, "7B": 1.17}, (1.225, 1.44), (2.03, 2.56)
"""Published ratios: interrupts over drains; APRIL's mean and best; RollPacker's range over veRL."""

ROLLPACKER_TRAIN_S = 37.4
"""What is not rollout in a synchronous step of RollPacker: three sevenths of :func:`colocated_s`, rollouts being 70 %."""


def lengths(median: float = MEDIAN, cap: float = 28672.0, group: int = 16, extra: int = 0) -> Workload:
    """One turn of log-normal length, at most `cap` tokens."""
    law = Capped(LogNormal(median, WITHIN), cap)
    return Workload(Chain(turns=1), group=group, extra=extra, tokens=(("answer", law),), prompt_length_sigma=BETWEEN)


def engines(count: int) -> Engines:
    """So many engines of the one law; prefilling a token costs a fiftieth of decoding it (ours)."""
    return Engines(count=count, base_s=BASE_S, per_sequence_s=PER_SEQUENCE_S, prefill=0.02)


def verl(threshold: float, part: float = 1.0, steps: int = 8, train_s: float | None = None) -> Cluster:
    """Verl's fully asynchronous trainer on 64 + 64 GPUs; `part` of the engines and prompts leaves every engine's load.

    Printed: 512 prompts x 16, four mini-batches of 128 complete groups a version, at most (1 + threshold) 512 prompts,
    interrupted by new weights, weights loaded in .12 s, at most 28K tokens, the time of the updates.
    """
    prompts = round(512 * part)
    spent = VERL[threshold].train_s if train_s is None else train_s
    return Cluster(
        workload=lengths(),
        engines=engines(round(64 * part)),
        admission=Capacity(threshold),
        slots=2**20,
        order=greedy(),
        learner=Learner(batch=16 * prompts, minibatches=4, base_s=spent / 4),
        sync=Sync("interrupt", 0.12),
        steps=steps,
    )


def control(asynchronous: bool, part: float = 1.0, steps: int = 4, faster: float = 1.0) -> Cluster:
    """Verl's control: the same trainer on 8 + 8 GPUs, or all 16 in turn; updates `faster` times as fast as printed."""
    prompts = round(512 * part)
    row = CONTROL_ASYNC if asynchronous else CONTROL_SYNC
    parts = 4 if asynchronous else 1
    return Cluster(
        workload=lengths(CONTROL_MEDIAN, cap=10240.0),
        engines=engines(round((8 if asynchronous else 16) * part)),
        admission=Capacity(0.5) if asynchronous else Rounds(),
        slots=2**20,
        order=greedy(),
        learner=Learner(
            batch=16 * prompts, minibatches=parts, base_s=row.train_s / parts / faster, colocated=not asynchronous
        ),
        sync=Sync("interrupt", 0.12),
        steps=steps,
    )


def areal(mode: str, in_flight: float = 0.25, steps: int = 10) -> Cluster:
    """AReaL's ablation of interrupts, an eighth of its 24 generating GPUs and of its batch of 2,048 rollouts.

    Printed: batch, at most 27K tokens, four nodes. Ours: three of four GPUs generate, as many rollouts run at once as make
    up `in_flight` of a batch, each is trained on by itself, and the learner takes no time, so that generation is measured.
    """
    batch = 2048 // 8
    return Cluster(
        workload=lengths(cap=27648.0, group=1),
        engines=engines(3),
        admission=FixedWidth(round(in_flight * batch), of="running"),
        slots=2**20,
        order=greedy(),
        learner=Learner(batch=batch),
        sync=Sync(mode, 0.12),
        steps=steps,
    )


def in_rounds(work: Workload, prompts: int, rounds: Rounds, train_s: float, steps: int) -> Cluster:
    """Colocated rounds on 8 GPUs."""
    return Cluster(
        workload=work,
        engines=engines(8),
        admission=rounds,
        slots=2**20,
        order=greedy(),
        learner=Learner(batch=prompts * work.group, base_s=train_s, colocated=True),
        sync=Sync("interrupt", 0.12),
        steps=steps,
    )


def april(over: float, steps: int = 10) -> Cluster:
    """APRIL with slime's example of 32 prompts x 8 of 64 launched (over = 1); 0 is synchronous. Generation alone."""
    return in_rounds(lengths(group=8), 32, Rounds(over=over), 0.0, steps)


def rollpacker(over: float, train_s: float, steps: int = 10) -> Cluster:
    """RollPacker as its repository's run on 8 GPUs at 8K tokens: 32 prompts x 8, with over = .25 of 40 x 10 launched."""
    return in_rounds(squeezed(over), 32, Rounds(over=over, late="tail"), train_s, steps)


def squeezed(over: float) -> Workload:
    """Groups of which the first 8 of 8 (1 + over) count."""
    return lengths(group=8, extra=round(8 * over), cap=8192.0)


def times(run: ClusterRun) -> dict[str, np.ndarray]:
    """When each version's training ended and how long the learner waited for it, s, [steps] each."""
    return {"time_s": run.books.steps.ended_s, "wait_s": run.books.steps.waited_s}


timed = partial(measure, columns=times)
"""Simulates one run a seed for a sweep."""


def rate(time_s: np.ndarray, skip: int) -> np.ndarray:
    """Versions per second after the first `skip`, from the times at which they ended, [seeds, steps] to [seeds]."""
    start = time_s[:, skip - 1] if skip else 0.0
    return (time_s.shape[1] - skip) / (time_s[:, -1] - start)


# --- theory -----------------------------------------------------------------------------------------------------------


def drawn(rng: np.random.Generator, work: Workload, prompts: int, shared: np.ndarray | None = None) -> np.ndarray:
    """Lengths of the rollouts of some prompts, [prompts, members]; `shared` [prompts] is the luck of the prompts."""
    ((_, law),) = work.tokens
    assert isinstance(law, Capped)
    assert isinstance(law.uncapped, LogNormal)
    z = rng.standard_normal(prompts) if shared is None else shared
    factor = np.exp(BETWEEN * z[:, None] - BETWEEN**2 / 2)
    own = np.exp(WITHIN * rng.standard_normal((prompts, work.members)))
    return np.minimum(law.uncapped.median * factor * own, law.cap)


def clock_s(tokens: np.ndarray, at: np.ndarray, count: int) -> np.ndarray:
    """Time at which sequences that began together have decoded `at` tokens each, on `count` engines loaded alike."""
    ordered = np.sort(tokens, axis=None)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    k = np.searchsorted(ordered, at)
    written = sums[k] + at * (ordered.size - k)
    return BASE_S * at + PER_SEQUENCE_S * written / count


def streamed_wait_s(median: float, train_s: float, rng: np.random.Generator, versions: int = 400) -> float:
    """Mean wait at threshold 0: all groups start together, the learner takes a quarter of them at a time."""
    waits = np.zeros(versions)
    for v in range(versions):
        tokens = drawn(rng, lengths(median), 512)
        ready = clock_s(tokens, np.sort(tokens.max(1))[127::128], 64)
        now = 0.0
        for at in ready:
            waits[v] += max(at - now, 0.0)
            now = max(at, now) + train_s / 4
    return float(waits.mean())


def queue_waits(
    law: Callable[[np.random.Generator, int], np.ndarray], threshold: float, train_s: float, versions: int = 60
) -> float:
    """Mean wait were every group served by itself, its time `law(rng, groups)`: a queue with one number, its scale."""
    rng, now, waits = np.random.default_rng(1), 0.0, np.zeros(versions)
    due = law(rng, 512 + int(512 * threshold))
    for v in range(versions):
        for _ in range(4):
            due = np.sort(due)
            waits[v] += max(due[127] - now, 0.0)
            now, due = max(due[127], now) + train_s / 4, due[128:]
        due = np.concatenate((due, now + law(rng, 512)))
    return float(waits[5:].mean())


def rate_wait_s(batch_s: float, threshold: float, train_s: float) -> float:
    """Wait were groups made one after the other at a constant rate, a batch in `batch_s`, while there is capacity.

    The maker stands still for what is left of the last update once it is threshold batches ahead.
    """
    still = max(train_s / 4 - threshold * batch_s, 0.0)
    return max(batch_s + still - train_s, 0.0)


def one_number_queues() -> dict[str, dict[float, float]]:
    """Waits by threshold of three such queues, their one number fitted to the wait at 0."""
    laws = {
        "every group takes as long": lambda _, n: np.full(n, 128.5),
        "exponential rollouts": lambda rng, n: 21.2 * rng.exponential(size=(n, 16)).max(1),
    }
    found = {name: {s: queue_waits(law, s, row.train_s) for s, row in VERL.items()} for name, law in laws.items()}
    return found | {"constant rate of groups": {s: rate_wait_s(205.6, s, row.train_s) for s, row in VERL.items()}}


def colocated_s(work: Workload, prompts: int, count: int, rng: np.random.Generator, rounds: int = 400) -> float:
    """Mean time to generate a synchronous batch."""
    times = []
    for _ in range(rounds):
        tokens = drawn(rng, work, prompts)
        times.append(float(clock_s(tokens, tokens.max(keepdims=True)[0], count)[0]))
    return float(np.mean(times))


def resumed_s(over: float, rng: np.random.Generator, rounds: int = 400) -> float:
    """Mean round of APRIL: the first 32 of 32 (1 + over) groups; the others go on in the next round where they stopped."""
    held, times = np.empty((0, 8)), []
    for _ in range(rounds):
        left = np.concatenate((held, drawn(rng, lengths(group=8), round(32 * (1 + over)) - len(held))))
        longest = left.max(1)
        end = np.sort(longest)[31]
        times.append(float(clock_s(left, np.array([end]), 8)[0]))
        held = np.maximum(left[longest > end] - end, 0.0)
    return float(np.mean(times[10:]))


def tail_batched_s(over: float, rng: np.random.Generator, rounds: int = 400) -> float:
    """Mean round of RollPacker: the first 32 of 32 (1 + over) prompts by their eighth rollout; 32 late ones make a round."""
    work, tail, times = squeezed(over), np.empty(0), []
    for _ in range(rounds):
        long = len(tail) >= 32
        shared = tail[:32] if long else rng.standard_normal(round(32 * (1 + over)))
        tail = tail[32:] if long else tail
        tokens = drawn(rng, work, len(shared), shared)
        eighth = np.sort(tokens, 1)[:, 7]
        end = np.sort(eighth)[31]
        times.append(float(clock_s(np.minimum(tokens, eighth[:, None]), np.array([end]), 8)[0]))
        tail = np.concatenate((tail, shared[eighth > end]))
    return float(np.mean(times[10:]))


def drain_gain(in_flight: float, part: float = 1 / 8, count: int = 24, batch: int = 2048) -> float:
    """Rate of generation with interrupts over that with drains, for slots that have run for long.

    What the slots write at full width takes tau = (B / E) E[L] (a + b n) / n a batch. A drain writes what is left of the
    n E rollouts that run, R each, in a V + b n E[R] and not in (a + b n) E[R], so it loses a (V - E[R]), V the longest of
    all that is left. An interrupt costs the prefill of what was written, as much in the mean as is left.
    """
    rng = np.random.default_rng(0)
    n = in_flight * batch / count
    L = drawn(rng, lengths(cap=27648.0, group=1), 400_000)[:, 0]
    left = rng.choice(L, L.size, p=L / L.sum()) * rng.random(L.size)
    running = round(n * count * part)
    longest = left[: left.size // running * running].reshape(-1, running).max(1).mean()
    tau = batch / count * L.mean() * (BASE_S + PER_SEQUENCE_S * n) / n + 0.12
    lost = BASE_S * (longest - left.mean())
    refill = 0.02 * left.mean() * (BASE_S + PER_SEQUENCE_S * n)
    return float((tau + lost) / (tau + refill))
