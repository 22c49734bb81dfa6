"""What a run shows: speed, idleness, staleness, what a schedule does to the data.

Of rollouts, only those that were trained on count unless a function says otherwise: members of a taken group that were
neither aborted nor failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.cluster.draws import BLOCK, Draws
from sim.cluster.events import Kind
from sim.cluster.plan import plan
from sim.cluster.run import ClusterRun, replicate
from sim.cluster.spec import Cluster
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs

__all__ = [
    "Survivorship",
    "factors",
    "group_lag",
    "measure",
    "off_policy_tokens",
    "step_columns",
    "summary",
    "survivorship",
    "trained",
]

F64 = NDArray[np.float64]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


def trained(run: ClusterRun) -> Flags:
    """Return which rollouts were trained on, [n]."""
    r, g = run.books.rollouts, run.books.groups
    found: Flags = g.taken[r.group] & ~r.aborted & r.valid
    return found


def step_columns(run: ClusterRun) -> dict[str, F64]:
    """Return one value for each version made, [steps], by name.

    ``time_s`` when training on it ended; ``step_s`` since the version before; ``wait_s`` for rollouts; ``train_s``;
    ``rollouts`` and ``tokens`` trained on; ``lag_start`` mean versions between start and use; ``lag_oldest``,
    ``lag_newest``, ``lag_tokens``: means over rollouts of the lag at use of the oldest and newest version and over tokens;
    ``lag_max`` the largest of the oldest; ``group_lag_max`` (see :func:`group_lag`); ``off_policy_tokens`` the share written
    by another version than the learner's; ``turns`` and ``reward`` means; ``length_factor`` and ``latency_factor`` means of
    what belongs to prompts. NaN where a step was not reached.
    """
    b, steps = run.books, run.cluster.steps
    mine = trained(run)
    rollouts = np.flatnonzero(mine)
    r, group = b.rollouts, b.rollouts.group[rollouts]
    step = b.groups.take_version[group]
    count = np.bincount(step, minlength=steps)[:steps].astype(float)

    def mean(values: F64) -> F64:
        with np.errstate(invalid="ignore"):
            found: F64 = np.bincount(step, weights=values, minlength=steps)[:steps] / count
        return found

    def most(values: I64, at: I64) -> F64:
        found = np.full(steps, -np.inf)
        np.maximum.at(found, at, values)
        return np.where(np.isfinite(found), found, np.nan)

    def padded(values: NDArray[np.generic]) -> F64:
        found = np.full(steps, np.nan)
        found[: len(values)] = values
        return found

    ended = padded(b.steps.ended_s)
    tokens = r.tokens[rollouts]
    with np.errstate(invalid="ignore", divide="ignore"):
        written_by = np.where(tokens > 0, r.token_versions[rollouts] / tokens, r.newest[rollouts])
    taken = np.flatnonzero(b.groups.taken)
    length, latency = factors(run)
    prompt = b.groups.prompt[group]
    return {
        "time_s": ended,
        "step_s": np.diff(ended, prepend=0.0),
        "wait_s": padded(b.steps.waited_s),
        "train_s": padded(b.steps.trained_s),
        "rollouts": padded(b.steps.rollouts),
        "tokens": padded(b.steps.tokens),
        "lag_start": mean((step - r.start_version[rollouts]).astype(float)),
        "lag_oldest": mean((step - r.oldest[rollouts]).astype(float)),
        "lag_newest": mean((step - r.newest[rollouts]).astype(float)),
        "lag_tokens": mean(step.astype(float) - written_by),
        "lag_max": most(step - r.oldest[rollouts], step),
        "group_lag_max": most(group_lag(run)[taken], b.groups.take_version[taken]),
        "off_policy_tokens": off_policy_tokens(run),
        "turns": mean(r.turns[rollouts].astype(float)),
        "reward": mean(r.reward[rollouts]),
        "length_factor": mean(length[prompt]),
        "latency_factor": mean(latency[prompt]),
    }


def summary(run: ClusterRun, skip: int = 0) -> dict[str, float]:
    """Return the run in a few numbers, the first `skip` versions left out of all but those that say "whole run".

    Raises
    ------
    ValueError
        When no version would be left.
    """
    b, made = run.books, int(np.isfinite(run.books.steps.ended_s).sum())
    if not 0 <= skip < made:
        raise ValueError(f"skip = {skip} must be at least 0 and below the {made} versions that the run made")
    columns = {name: x[skip:made] for name, x in step_columns(run).items()}
    began = float(b.steps.ended_s[skip - 1]) if skip else 0.0
    span = float(b.steps.ended_s[made - 1]) - began
    engines, groups = b.engines, b.groups
    over = groups.taken | groups.dropped
    found = {
        "rollouts trained on, 1/s": float(columns["rollouts"].sum()) / span,
        "tokens trained on, 1/s": float(columns["tokens"].sum()) / span,
        "time of a version, s": float(columns["step_s"].mean()),
        "learner waits, s a version": float(columns["wait_s"].mean()),
        "learner trains, s a version": float(columns["train_s"].mean()),
        "lag between start and use, versions": float(columns["lag_start"].mean()),
        "lag over tokens, versions": float(columns["lag_tokens"].mean()),
        "largest lag, versions": float(columns["lag_max"].max()),
        "engines idle, share of the whole run": float(1 - engines.busy_s.sum() / (len(engines) * b.end_s)),
        "sequences on an engine, whole run": float(engines.sequence_s.sum() / (len(engines) * b.end_s)),
        "groups dropped, share of the whole run": float(groups.dropped.sum() / max(over.sum(), 1)),
    }
    for pool, busy_s in zip(run.cluster.tools, b.pools.busy_s, strict=True):
        found[f"calls served by {pool.name} at once, whole run"] = float(busy_s / b.end_s)
    return found


def measure(
    cluster: Cluster,
    seeds: Sequence[int],
    *,
    study: str,
    columns: Callable[[ClusterRun], Mapping[str, NDArray[np.generic]]] = step_columns,
    record: bool = False,
) -> Runs:
    """Simulate one run per seed and return columns of it as a sweep takes them.

    Parameters
    ----------
    cluster, seeds, study
        What to simulate.
    columns
        What to measure of a run: arrays [steps], or numbers that are the same at every step. For another choice, or with a
        log, give a sweep ``functools.partial(measure, columns=..., record=True)``.
    record
        Whether runs have a log to measure.
    """
    runs = replicate(cluster, seeds, study=study, record=record)
    parts = [{"step": np.arange(cluster.steps), **columns(run)} for run in runs]
    stacked = {name: np.stack([np.broadcast_to(part[name], cluster.steps) for part in parts]) for name in parts[0]}
    return Runs(cluster, tuple(seeds), study, "sim", code_fingerprint("sim"), stacked)


def factors(run: ClusterRun) -> tuple[F64, F64]:
    """Return the length and the latency factor of every prompt that was played, by number."""
    draws = Draws(plan(run.cluster), run.seed, run.study)
    most = int(run.books.groups.prompt.max(initial=0))
    blocks = [draws.prompts(block)[1:] for block in range(most // BLOCK + 1)]
    length, latency = (np.concatenate(x) for x in zip(*blocks, strict=True))
    return length, latency


def group_lag(run: ClusterRun) -> I64:
    """Return, for each group, how many groups were taken between its start and its own taking; -1 for those not taken.

    Counted from the order of events, so the run must be recorded; without a log all are -1. With N groups held and a window
    of W the largest is N + W - 2 (Forge's bound).
    """
    if run.log is None:
        return np.full(len(run.books.groups), -1)
    found = np.full(len(run.books.groups), -1)
    rows = run.log.of_kind(Kind.GROUP_ADMIT, Kind.TRAIN_TAKE)
    takes = run.log.kind[rows] == Kind.TRAIN_TAKE
    before = np.cumsum(takes) - takes  # groups taken before each row
    entity = run.log.entity[rows]
    started = np.zeros(len(found), np.int64)
    started[entity[~takes]] = before[~takes]
    found[entity[takes]] = before[takes] - started[entity[takes]]
    return found


def off_policy_tokens(run: ClusterRun) -> F64:
    """Return, for each version, the share of the tokens trained on that an older one wrote, [steps]; NaN without a log."""
    steps = run.cluster.steps
    if run.log is None:
        return np.full(steps, np.nan)
    rows = run.log.of_kind(Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT)
    traj, version, tokens = run.log.traj[rows], run.log.version[rows], run.log.value[rows]
    kept = trained(run)[traj]
    step = run.books.groups.take_version[run.books.rollouts.group[traj]]
    total = np.bincount(step[kept], weights=tokens[kept], minlength=steps)[:steps]
    old = kept & (version < step)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.bincount(step[old], weights=tokens[old], minlength=steps)[:steps] / total


@dataclass(frozen=True)
class Survivorship:
    """How often a class of rollouts is trained on, against how often it is started: 1 for an unbiased schedule."""

    name: str
    """The class."""
    started: int
    """Prompts of the class that were started and whose end is known."""
    trained: int
    """Prompts of the class trained on."""
    ratio: float
    """Share of the class among those trained on, over its share among those started."""


def survivorship(run: ClusterRun, classes: I64, names: tuple[str, ...]) -> tuple[Survivorship, ...]:
    """Return the survivorship of each class of prompts; `classes` [prompts] numbers them, by prompt.

    Prompts still under way when the run stopped are left out: started ones count once they were taken or dropped. For a rule
    that never drops the ratio is 1 by construction.
    """
    g = run.books.groups
    known = g.taken | g.dropped
    prompts = np.unique(g.prompt[known & (g.prompt < len(classes))])
    won = np.unique(g.prompt[g.taken & (g.prompt < len(classes))])
    started = np.bincount(classes[prompts], minlength=len(names))
    kept = np.bincount(classes[won], minlength=len(names))
    shares = (kept / max(kept.sum(), 1)) / np.maximum(started / max(started.sum(), 1), 1e-300)
    rows = zip(names, started, kept, shares, strict=True)
    return tuple(Survivorship(name, int(s), int(k), float(ratio)) for name, s, k, ratio in rows)
