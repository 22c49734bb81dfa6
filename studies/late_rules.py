"""Clusters with rules for late groups, and what is counted of them: who was started, who was trained on, with what luck.

A prompt has a latency (or length) factor of its own; the third with the largest factors is slow. In the setting with a clock
the slow half is the one whose questions need three searches.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sim.cluster.measures import factors, measure, survivorship, trained
from sim.cluster.run import ClusterRun
from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Rounds, fifo, greedy
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Constant, LogNormal
from sim.mdp.worlds import World
from sim.records.config import replace
from sim.records.run import Runs

__all__ = [
    "BATCH",
    "BOUND",
    "CLOCK_STEPS",
    "CUT",
    "FAULT",
    "FORESEEN",
    "HELD",
    "NEEDED",
    "NOBODY",
    "OVER",
    "OWN",
    "STEPS",
    "WIDTH",
    "Foreseen",
    "arms",
    "at_end",
    "base",
    "counted",
    "counts",
    "gained",
    "in_flight",
    "late_half",
    "ratio",
    "rounds",
    "slow_share",
    "tail_rounds",
    "version_s",
    "with_a_clock",
]

F64 = NDArray[np.float64]

OWN, NOBODY = 0.5, 1e-6
"""Share of the log's variance that belongs to the prompt: half, or (as good as) none."""
NEEDED, OVER, WIDTH, BOUND, STEPS = 16, 0.5, 64, 4, 40
"""Prompts a version; share started beyond them; slots in use; versions a rollout may be old; versions made."""
BATCH, HELD, CLOCK_STEPS = 8, 96, 40
"""Prompts a version, prompts held and versions made in the setting with a clock."""
CUT = float(ndtri(2 / 3))
"""A third of the prompts have a higher score, in standard deviations of the log of their factor."""
FAULT = "tinker-cookbook 822, marin 8955: slow prompts never trained"
"""Where slow prompts were lost in practice."""


class Foreseen(NamedTuple):
    """What theory says of one rule."""

    ratio: float
    """Share of slow prompts among those trained on over that among those started."""
    luck: float
    """Mean of the log of a rollout's own draw among those trained on, in standard deviations."""


FORESEEN = {
    "cancel": Foreseen(0.532, -0.373),
    "requeue": Foreseen(1.0, -0.308),
    "resume": Foreseen(1.0, 0.0),
    "tail": Foreseen(1.0, -0.248),
    "old: kept": Foreseen(1.0, 0.0),
    "old: discard": Foreseen(0.557, -0.346),
    "old: requeue": Foreseen(1.0, -0.300),
    "cancel, length": Foreseen(0.532, -0.373),
    "cancel, rollout's": Foreseen(1.0, -0.527),
    "old: discard, rollout's": Foreseen(1.0, -0.490),
}
"""By rule, from order statistics, a Poisson number of completions, and the balance of flow."""


# Configs --------------------------------------------------------------------------------------------------------------


def arms() -> dict[str, Cluster]:
    """Every rule where half the variance is the prompt's, two where none is, one where prompts differ in length."""
    tokens = (("answer", LogNormal(1e4 * math.exp(OWN / 2), math.sqrt(1 - OWN))),)
    by_length = Workload(Chain(1), group=1, prompt_length_sigma=math.sqrt(OWN), tokens=tokens)
    return {
        "cancel": rounds("cancel"),
        "requeue": rounds("requeue"),
        "resume": rounds("resume"),
        "tail": rounds("tail"),
        "old: kept": in_flight(None),
        "old: discard": in_flight("discard"),
        "old: requeue": in_flight("requeue"),
        "cancel, length": replace(rounds("cancel"), {"workload": by_length, "tools": ()}),
        "cancel, rollout's": rounds("cancel", NOBODY),
        "old: discard, rollout's": in_flight("discard", NOBODY),
    }


def rounds(late: str, own: float = OWN) -> Cluster:
    """Rounds that launch 24 and close when 16 are complete; `late` is what becomes of the others."""
    return replace(base(own), {"admission": Rounds(over=OVER, late=late)})


def in_flight(then: str | None, own: float = OWN) -> Cluster:
    """64 slots always in use; what is more than four versions old is dropped, unless `then` is None."""
    drop = None if then is None else MaxStaleness(BOUND, then=then)
    return replace(base(own), {"admission": FixedWidth(WIDTH, "running"), "drop": drop})


def base(own: float) -> Cluster:
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


def with_a_clock() -> dict[str, Cluster]:
    """A learner that takes 1 s a version; of every two prompts one needs a search of 1.1 s, the other three."""
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


# A run ----------------------------------------------------------------------------------------------------------------


def counts(run: ClusterRun) -> dict[str, NDArray[np.generic]]:
    """Count by version: arrays [versions], or a number that is the same at every one.

    Counts up to and with a version: ``started`` and ``trained`` prompts, the same of slow ones under ``/slow``, and
    ``missing``, slow prompts started and not trained on. Means over what a version is trained on: ``luck``, ``factor``,
    ``again`` (played before). ``time_s``, the end of a version. Of the whole run: ``survivorship`` of slow prompts among
    those whose end is known, ``rollouts`` started, and ``source``, the slow share of the first prompts of the source, as
    many as are trained on.
    """
    steps, r, g = run.cluster.steps, run.books.rollouts, run.books.groups
    ended_s = run.books.steps.ended_s
    of = _groups(run)
    mine, fresh = np.flatnonzero(trained(run)), np.flatnonzero(g.play == 0)  # groups are of one: a rollout is a group
    at, begun = g.take_version[mine], np.searchsorted(ended_s, r.start_s[fresh])
    many = np.bincount(at, minlength=steps)
    found: dict[str, NDArray[np.generic]] = {"time_s": ended_s}
    for name, values in (("luck", of.luck), ("factor", of.factor), ("again", (g.play > 0).astype(float))):
        found[name] = np.bincount(at, values[mine], steps) / many
    started, begun_slow = (np.bincount(begun, w, steps + 1)[:steps].cumsum() for w in (None, of.slow[fresh]))
    taken, taken_slow = (np.bincount(at, w, steps).cumsum() for w in (None, of.slow[mine]))
    return found | {
        "started": started.astype(float),
        "started/slow": begun_slow,
        "trained": taken.astype(float),
        "trained/slow": taken_slow,
        "missing": begun_slow - taken_slow,
        "survivorship": np.array(of.survived),
        "rollouts": np.array(len(r)),
        "source": of.slow[fresh][: steps * BATCH].mean(),
    }


counted = partial(measure, columns=counts)
"""Simulates a block of seeds for a sweep and counts."""


class _Groups(NamedTuple):
    """What the prompts of a run are like, by group, and how the slow ones fared."""

    slow: F64
    """1 where the prompt is slow, [groups]."""
    luck: F64
    """Log of the rollout's own draw in standard deviations, [groups]."""
    factor: F64
    """Latency (or length) factor of the prompt, [groups]."""
    survived: float
    """Survivorship of slow prompts among those whose end is known."""


def _groups(run: ClusterRun) -> _Groups:
    """Return who is slow and how lucky; with a clock luck is 0, factors are 1, and survivorship is not counted: 0."""
    work, tools, r, prompt = run.cluster.workload, run.cluster.tools, run.books.rollouts, run.books.groups.prompt
    if isinstance(work.task, World):
        return _Groups((r.kind == 1).astype(float), np.zeros(len(prompt)), np.ones(len(prompt)), 0.0)
    factor = factors(run)[1 if tools else 0]
    sigma = max(work.prompt_latency_sigma, work.prompt_length_sigma)  # one of them is 0
    slow = np.log(factor) / sigma + sigma / 2 > CUT
    law, drawn = (tools[0].latency, r.tool_s) if tools else (work.tokens[0][1], r.tokens)
    assert isinstance(law, LogNormal)
    with np.errstate(divide="ignore"):  # not begun
        luck = np.log(drawn / factor[prompt] / law.median) / law.sigma
    survived = survivorship(run, slow.astype(np.int64), ("other", "slow"))[1].ratio
    return _Groups(slow[prompt].astype(float), luck, factor[prompt], survived)


# Columns [seeds, versions] to numbers [seeds] -------------------------------------------------------------------------


def gained(column: F64) -> F64:
    """Return what a cumulative column gains in the second half."""
    return column[:, -1] - column[:, column.shape[1] // 2 - 1]


def at_end(column: F64) -> F64:
    """Return what a cumulative column comes to over the whole run."""
    return column[:, -1]


def ratio(runs: Runs, of: Callable[[F64], F64] = gained) -> F64:
    """Return the share of slow prompts among those trained on over that among those started."""
    return of(runs["trained/slow"]) / of(runs["trained"]) / (of(runs["started/slow"]) / of(runs["started"]))


def slow_share(runs: Runs) -> F64:
    """Return the share of slow prompts among all that were trained on."""
    return at_end(runs["trained/slow"]) / at_end(runs["trained"])


def late_half(column: F64) -> F64:
    """Return the mean over the second half."""
    mean: F64 = column[:, column.shape[1] // 2 :].mean(1)
    return mean


def version_s(runs: Runs) -> F64:
    """Return the time of a version in the second half, s."""
    return gained(runs["time_s"]) / (runs["time_s"].shape[1] // 2)


def tail_rounds(runs: Runs) -> dict[str, F64]:
    """Return the mean latency factor in rounds of prompts that were late before (treated), and in the others (control)."""
    late = runs["again"] > 0.5
    sides = {"treated": late, "control": ~late}
    return {side: np.nanmean(np.where(which, runs["factor"], np.nan), 1) for side, which in sides.items()}
