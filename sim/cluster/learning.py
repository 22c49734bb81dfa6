"""A policy that learns while rollouts are in flight: the update rule of every rung, on the cluster's clock.

Each decision is taken by the version then on its engine, so one rollout may be written by several. The learner takes what
the scheduler gives it, looks up the log-probs of every decision under the version that took it (behaviour), under its own
policy as the batch begins (proximal, where the run asks for it) and now, and makes the updates of
:class:`sim.learning.loop.Block`; the new policy becomes the next version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.draws import Draws
from sim.cluster.measures import step_columns
from sim.cluster.plan import action_thresholds, plan
from sim.cluster.run import ClusterRun, EngineName, run_plan
from sim.cluster.spec import Cluster
from sim.learning.lookup import Lookup, as_record
from sim.learning.loop import Block
from sim.learning.setup import Training
from sim.learning.tabular import rule_batch
from sim.mdp.policy import tables
from sim.mdp.sampling import Sample
from sim.records.config import config
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs

__all__ = ["ClusterTraining", "train", "train_one"]

F64 = NDArray[np.float64]


@config
class ClusterTraining:
    """A training run on a cluster. What both configs say must agree; the lag is what the schedule makes it."""

    training: Training
    """World, habit, rule, optimiser, and what is watched."""
    cluster: Cluster
    """Who plays it, when."""

    def __post_init__(self) -> None:
        t, c = self.training, self.cluster
        pairs = (
            ("workload.task", c.workload.task, "world", t.world),
            ("workload.habit", c.workload.habit, "habit", t.habit),
            ("workload.group", c.workload.group, "group", t.group),
            ("learner.batch", c.learner.batch, "prompts x group", t.prompts * t.group),
            ("steps", c.steps, "steps", t.steps),
        )
        for name, there, mine, here in pairs:
            if there != here:
                raise ValueError(f"cluster.{name} = {there} and training.{mine} = {here} must be the same")
        if t.lag:
            raise ValueError(f"training.lag = {t.lag} must be 0: on a cluster the schedule makes the lag")
        if c.learner.whatever_is_complete:
            raise ValueError(
                "learner.whatever_is_complete makes batches of unequal size, which the signals do not take"
            )
        if t.keep_rollouts is not None:
            raise ValueError("training.keep_rollouts is not for clusters: keep the event log instead")


class _Learner:
    """One policy and all its versions."""

    def __init__(self, config: ClusterTraining, seed: int, study: str) -> None:
        self.config, self.block = config.training, Block(config.training, (seed,), study)
        b = self.block
        self.graph = b.graph
        z = b.logits()
        self.now = self.reference = tables(self.graph, z)
        b.watch.policy(0, z, b.shift())
        self.engines = [b.engine(z, self.now, 0)]  # each version as the engines have it

    def thresholds(self) -> F64:
        """Return the action thresholds of the newest version."""
        return action_thresholds(self.graph, self.engines[-1].probability[0])

    def learn(self, groups: Sequence[Any], version: int) -> F64:
        """Train on `groups`, the batch of step `version`, and return the thresholds of the next version."""
        b, c = self.block, self.config
        sample, valid, written_by, duration_s = self._sample(groups)
        lookup = Lookup.of(sample, b.decisions)
        b.evaluate(self.now, version)
        batch = rule_batch(
            b.sampler, sample, lookup, self.now, c.length_unit, reference=self.reference, reads=c.rule.reads
        )
        behaviour = as_record(self._behaviour(sample, written_by), *sample.reward.shape[1:])
        proximal = batch.behaviour if c.proximal == "learner" else None
        batch = replace(batch, behaviour=behaviour, proximal=proximal)
        if not valid.all():
            batch = replace(batch, valid=valid)
        if "duration_s" in c.rule.reads:
            batch = replace(batch, duration_s=duration_s)
        before = self.now
        b.update(b.with_baselines(batch, before, version), None, before, self.reference, lookup, version)
        b.push(version)
        z = b.logits()
        self.now = tables(self.graph, z)
        b.watch.policy(version + 1, z, b.shift())
        b.watch.batch(version, sample, lookup, b.sampler, self.now, before)
        self.engines.append(b.engine(z, self.now, version + 1))
        return self.thresholds()

    def _sample(self, groups: Sequence[Any]) -> tuple[Sample, NDArray[np.bool_], NDArray[np.int64], F64]:
        """Return the groups as a batch, which of its rollouts count, who took each decision, and how long each ran.

        Groups stand in the order in which they started, whatever the order in which they were taken.
        """
        g = self.graph
        K, A, H, G, Q = g.turns, len(g.actions), len(g.share), self.config.group, len(groups)
        node = np.full((K + 1, G, Q), g.states)  # once over: any end, the first, until the true one is known
        action, version = np.zeros((2, K, G, Q), np.int64)
        reward, valid, duration_s = np.zeros((Q, G)), np.zeros((Q, G), np.bool_), np.zeros((Q, G))
        kind = np.zeros(Q, np.int64)
        for q, group in enumerate(sorted(groups, key=lambda group: group.id)):
            members = [traj for traj in group.members if not traj.cancelled]
            for i, traj in enumerate(members):
                n = len(traj.nodes)
                node[:n, i, q], action[:n, i, q], version[:n, i, q] = traj.nodes, traj.actions, traj.versions
                duration_s[q, i] = traj.end_s - traj.start_s
                kind[q] = traj.luck.kind
                if traj.valid:
                    reward[q, i], valid[q, i] = traj.reward, True
                    node[n:, i, q] = traj.node
        place = (node * H + kind).reshape(K + 1, 1, G * Q)
        sample = Sample(place, place[:-1] * A + action.reshape(K, 1, G * Q), reward[None], kind[None])
        return sample, valid[None], version.reshape(K, 1, G * Q), duration_s[None]

    def _behaviour(self, sample: Sample, written_by: NDArray[np.int64]) -> F64:
        """Return log mu of every decision under the version that took it, 0 once the episode is over, [K, 1, N]."""
        table = np.stack([engine.log_probability[0] for engine in self.engines])  # [versions, C, A]
        b = self.block
        running, nodes = b.sampler.running(sample), b.sampler.nodes(sample)[:-1]
        context = np.where(running, self.graph.context[nodes], 0)
        found: F64 = np.where(running, table[written_by, context, b.sampler.actions(sample)], 0.0)
        return found


def train_one(
    config: ClusterTraining,
    seed: int,
    *,
    study: str,
    engine: EngineName = "auto",
    record: bool = False,
    on_version: Callable[[int], None] | None = None,
) -> tuple[ClusterRun, dict[str, NDArray[np.generic]]]:
    """Return a run on the cluster and what was watched of the policy at every step, [1, steps] each."""
    made = plan(config.cluster)
    learner = _Learner(config, seed, study)
    made = replace(made, initial=learner.thresholds())
    run = run_plan(made, Draws(made, seed, study), engine, record=record, learn=learner.learn, on_version=on_version)
    columns = {name: x for name, x in learner.block.watch.columns().items() if not name.startswith("drift/ratio/")}
    return run, columns | {f"cluster/{name}": x[None] for name, x in step_columns(run).items()}


def train(config: ClusterTraining, seeds: tuple[int, ...], *, study: str, engine: EngineName = "auto") -> Runs:
    """Train one policy per seed on the cluster; columns are those of the simulator's loop and ``cluster/...``.

    The run must reach its last version: a horizon that comes before is an error here.
    """
    parts = [train_one(config, int(seed), study=study, engine=engine)[1] for seed in seeds]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return Runs(config, tuple(int(s) for s in seeds), study, "sim", code_fingerprint("sim"), columns)
