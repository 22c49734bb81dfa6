"""The training loop of the simulator, vectorised over seeds.

    world -> rollouts -> credit -> coefficients -> update -> signals

One step: the policy as it was `lag` steps ago samples Q questions x G rollouts; the rule turns rewards and log-probs into
coefficients; the analytic gradient of the softmax tables turns those into a gradient of the weights, to which noise may
be added; the optimiser steps; the drive pushes. Every draw is indexed by (seed, stream, step), so a seed's run is the
same bits alone or in a block, in any process.
"""

from collections import deque
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sim.learning.batch import Batch
from sim.learning.credit import GreedyBaseline, RunningBaseline
from sim.learning.lookup import Lookup, as_record
from sim.learning.optimisers import OptimiserState
from sim.learning.record import to_rollouts
from sim.learning.rule import Coefficients
from sim.learning.setup import Training
from sim.learning.tabular import draw, gradient, greedy, rule_batch, scalar_values
from sim.learning.watch import Watch
from sim.mdp.policy import PolicyTables, fisher, tables
from sim.mdp.sampling import Sample, Sampler
from sim.records.fingerprint import code_fingerprint
from sim.records.rng import BlockStream
from sim.records.rollouts import Rollouts
from sim.records.run import Runs

__all__ = ["Block", "train"]

F64 = NDArray[np.float64]

BLOCK = 32
"""Seeds computed together: enough to spread the cost of a call, few enough for their arrays to stay in cache."""


def train(config: Training, seeds: tuple[int, ...], *, study: str, block: int = BLOCK) -> Runs:
    """Train one policy per seed and return what was watched at every step.

    Parameters
    ----------
    config
        The run.
    seeds
        One run each.
    study
        Namespace of the random streams: claims do not share their luck, arms of one study do.
    block
        Seeds computed together; it changes speed and memory, not one bit of the result.
    """
    if isinstance(seeds, int):
        raise TypeError(f"seeds = {seeds}: give the seeds themselves, as in tuple(range({seeds}))")
    seeds = tuple(int(s) for s in seeds)
    if not seeds or block < 1:
        raise ValueError(f"{len(seeds)} seeds in blocks of {block}: give at least one seed and a block of at least 1")
    # glibc hands memory above a threshold back to the system at every free, and the threshold follows the largest array
    # freed so far. Without this one a tenth of a step is page faults; elsewhere it does nothing.
    np.empty(24 << 20, np.uint8)
    parts, kept = [], {}
    for first in range(0, len(seeds), block):
        made = Block(config, seeds[first : first + block], study)
        parts.append(made.run())
        kept.update(made.kept)
    columns = {name: np.concatenate([p.pop(name) for p in parts]) for name in list(parts[0])}
    return Runs(config, seeds, study, "sim", code_fingerprint("sim"), columns, rollouts=kept)


class Block:
    """Policies of a block of seeds while they learn; a loop with another clock drives it as :func:`train` does."""

    def __init__(self, config: Training, seeds: tuple[int, ...], study: str) -> None:
        self.config = config
        self.policy = config.policy()
        self.graph = self.policy.graph
        self.sampler = Sampler(self.graph)
        self.decisions = self.sampler.decisions
        self.seeds, self.names = len(seeds), seeds
        self.kept: dict[int, Rollouts] = {}

        def stream(name: str) -> BlockStream:
            return BlockStream(seeds, f"{study}/{name}")

        self.training, self.noise = (stream("question"), stream("turn")), stream("noise")
        self.greedy, self.engine_noise = (stream("question"), stream("greedy-turn")), stream("engine")
        self.held_out = (stream("eval-question"), stream("eval-turn"))
        P = self.policy.features.shape[1]
        self.w = np.zeros((self.seeds, P))
        self.offset = 0.0  # what the drive has added to the logits in `features.on`, the same for every seed
        self.state = OptimiserState.zeros((self.seeds, P))
        self.running_reward: F64 | None = None
        self.loads, self.noisy = config.loads(), config.noisy()
        self.watch = Watch(config, self.seeds)

    def logits(self) -> F64:
        """Return the free logits as they are now, [S, D]."""
        return self.policy.logits(self.w) + self.offset * self.loads

    def shift(self) -> F64:
        """Return how far the shared weights and the drive have moved the logits that load them, [S]."""
        shared: F64 = self.w[:, len(self.loads) :].sum(1) / np.sqrt(max(self.config.features.shared, 1))
        return shared + self.offset

    def run(self) -> dict[str, NDArray[np.generic]]:
        """Train for all steps and return what was watched."""
        z = self.logits()
        now = reference = tables(self.graph, z)
        past = deque([(z, now)] * (self.config.lag + 1), maxlen=self.config.lag + 1)
        self.watch.policy(0, z, self.shift())
        for step in range(self.config.steps):
            stale = past[0][1]
            behaviour = self.engine(*past[0], step)
            sample, lookup = self.collect(behaviour, step)
            if step == self.config.keep_rollouts:
                self.keep(sample, lookup, (behaviour, now, reference), step)
            self.evaluate(now, step)
            proximal = now if self.config.proximal == "learner" else stale
            batch = self.batch(sample, lookup, (behaviour, proximal, reference), step)
            self.update(batch, behaviour, now, reference, lookup, step)
            self.push(step)
            z = self.logits()
            now = tables(self.graph, z)
            self.watch.policy(step + 1, z, self.shift())
            self.watch.batch(step, sample, lookup, self.sampler, now, behaviour)
            past.append((z, now))
        return self.watch.columns()

    def engine(self, z: F64, learner: PolicyTables, step: int) -> PolicyTables:
        """Return the policy as the sampling engine has it: the learner's, or that with noise on its logits."""
        if self.config.mismatch == 0:
            return learner
        return tables(self.graph, z + self.config.mismatch * self.engine_noise.normals(step, z.shape[1:]))

    def collect(self, behaviour: PolicyTables, step: int) -> tuple[Sample, Lookup]:
        """Return the batch that a policy plays at a step."""
        c = self.config
        sample = draw(self.sampler, behaviour, self.training, step, c.prompts, c.group)
        return sample, Lookup.of(sample, self.decisions)

    def batch(
        self, sample: Sample, lookup: Lookup, policies: tuple[PolicyTables, PolicyTables, PolicyTables], step: int
    ) -> Batch:
        """Return what the rule sees; `policies` are behaviour, proximal and reference."""
        c = self.config
        behaviour, proximal, reference = policies
        batch = rule_batch(
            self.sampler,
            sample,
            lookup,
            behaviour,
            c.length_unit,
            proximal=proximal,
            reference=reference,
            reads=c.rule.reads,
        )
        return self.with_baselines(batch, behaviour, step)

    def with_baselines(self, batch: Batch, behaviour: PolicyTables, step: int) -> Batch:
        """Return the batch with the baseline rewards that its credit reads: a greedy rollout's, a running mean."""
        c, credit = self.config, self.config.rule.credit
        if isinstance(credit, GreedyBaseline):
            beside = draw(self.sampler, greedy(behaviour), self.greedy, step, c.prompts, 1)
            batch = replace(batch, greedy_reward=beside.reward[..., 0])
        if isinstance(credit, RunningBaseline):
            batch = replace(batch, running_reward=self.running_reward)
            self.running_reward = credit.after(c.rule.shaped(batch))
        return batch

    def update(
        self,
        batch: Batch,
        behaviour: PolicyTables | None,
        now: PolicyTables,
        reference: PolicyTables,
        lookup: Lookup,
        step: int,
    ) -> None:
        """Make the updates on one batch; `behaviour` is None where several policies sampled it."""
        c = self.config
        prepared = c.rule.prepare(batch)
        self.watch.degenerate(step, prepared.advantage.degenerate)
        for inner in range(c.inner_updates):
            logp = batch.behaviour
            if now is not behaviour:
                logp = as_record(lookup.gather(now.log_probability), c.prompts, c.group)
            values = scalar_values(now, reference, lookup, logp, c.rule.reads)
            coefficients = c.rule.coefficients(prepared, logp, values)
            dw = self.policy.pull_back(gradient(self.policy, now, reference, lookup, coefficients))
            if self.noisy.any():
                index = step * c.inner_updates + inner
                dw = dw + self.noise.normals(index, (len(self.noisy),)) * self.noisy
            active = self.active(coefficients)
            metric = None
            if c.optimiser.needs_fisher:
                metric = fisher(self.policy, now, lookup.visits(now.probability.shape))
            change, self.state = c.optimiser.step(self.state, dw, active, metric)
            self.w = self.w + change
            if inner + 1 < c.inner_updates:
                now = tables(self.graph, self.logits())

    def active(self, coefficients: Coefficients) -> NDArray[np.bool_]:
        """Return which seeds update: all, or those with any signal."""
        if self.config.on_zero_signal == "step":
            return np.ones(self.seeds, bool)
        found: NDArray[np.bool_] = np.any(
            [np.any(v != 0, axis=(1, 2, 3)) for v in coefficients.scalars.values()], axis=0
        )
        return found

    def keep(
        self, sample: Sample, lookup: Lookup, policies: tuple[PolicyTables, PolicyTables, PolicyTables], step: int
    ) -> None:
        """Keep the rollouts of a step."""
        version = max(step - self.config.lag, 0)
        for row, seed in enumerate(self.names):
            self.kept[seed] = to_rollouts(self.sampler, sample, lookup, policies, row, step=step, version=version)

    def push(self, step: int) -> None:
        """Let the drive push."""
        drive = self.config.drive
        if drive is not None and drive.start <= step < drive.start + drive.duration:
            self.offset += drive.rate

    def evaluate(self, now: PolicyTables, step: int) -> None:
        """Evaluate the policy on held-out questions, at steps where that is due."""
        e = self.config.evaluation
        if e is not None and step % e.every == 0:
            sample = draw(self.sampler, now, self.held_out, step, e.prompts, e.group)
            self.watch.held_out(step, sample, Lookup.of(sample, self.decisions), self.sampler)
