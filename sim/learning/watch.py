"""What a run writes down at every step, under the names that mean the same at every rung.

While the run goes on only the raw material is kept: logits, counts, rewards. Everything else follows from it and is
computed once, at the end, for all steps together. Values of the policy (``decision/``, ``drift/kl*``, ``policy/``) are
those *before* the step's update, the policy that a lag of 0 samples from. ``drift/ratio*`` compares the policy after the
update with the one that sampled the batch: what a second pass over the batch would see.
"""

import numpy as np
from numpy.typing import NDArray

from sim.learning.lookup import Lookup
from sim.learning.setup import Training
from sim.mdp.policy import PolicyTables, tables
from sim.mdp.sampling import Sample, Sampler
from sim.signals.behaviour import TurnCounts, effective_number, entropy, workflow_shares
from sim.signals.drift import content_kl, decision_kl, ratio_levels, trajectory_kl, trajectory_ratio

__all__ = ["CLIP_BAND", "Watch"]

F64 = NDArray[np.float64]
Columns = dict[str, NDArray[np.generic]]

CLIP_BAND = 0.2
"""Half-width of the band that ``drift/ratio/*/outside`` counts against, whatever the rule clips at."""

_MOST_WORKFLOWS = 4096  # beyond this many codes a histogram per step costs more than the step


class Watch:
    """The raw material of a block of seeds, [steps, seeds, ...]."""

    def __init__(self, config: Training, seeds: int) -> None:
        self.config = config
        self.graph = g = config.graph()
        self.seeds, T = seeds, config.steps
        self.reference = tables(g, config.policy().z0)
        K, (C, A) = g.turns, g.offered.shape
        self.z = np.zeros((T + 1, seeds, len(g.free_context)))
        self.shift = np.zeros((T + 1, seeds))
        self.counts = np.zeros((T, seeds, K, C, A), np.int32)
        self.solved = np.zeros((T, seeds, K), np.int32)
        self.reward, self.no_signal = np.zeros((2, T, seeds))
        self.search = g.actions.index("search") if "search" in g.actions else None
        self.trajectory = np.zeros((T, seeds, 2)) if config.watch_trajectory_ratio else None
        self.workflows = np.zeros((T, seeds, 2)) if config.watch_workflows else None
        if config.watch_workflows and (A + 1) ** K > _MOST_WORKFLOWS:
            raise ValueError(
                f"watch_workflows: {(A + 1) ** K} possible workflows of {K} turns and {A} actions; at most "
                f"{_MOST_WORKFLOWS} are counted, so watch a world with fewer turns or actions"
            )
        self.evaluated: dict[int, tuple[TurnCounts, F64]] = {}

    def policy(self, step: int, z: F64, shift: F64) -> None:
        """Keep the policy before `step`."""
        self.z[step], self.shift[step] = z, shift

    def degenerate(self, step: int, degenerate: NDArray[np.bool_]) -> None:
        """Keep the share of groups without signal."""
        self.no_signal[step] = degenerate.mean(1)

    def batch(
        self, step: int, sample: Sample, lookup: Lookup, sampler: Sampler, now: PolicyTables, behaviour: PolicyTables
    ) -> None:
        """Keep what the batch did."""
        counts = self._counts(sample, lookup, sampler)
        self.counts[step], self.solved[step] = counts.decision, counts.solved
        self.reward[step] = sample.reward.mean((1, 2))
        if self.trajectory is not None:
            log_ratio = lookup.gather(now.log_probability - behaviour.log_probability)
            self.trajectory[step] = np.stack(trajectory_ratio(log_ratio, CLIP_BAND), 1)
        if self.workflows is not None:
            self.workflows[step] = self._workflows(sample, sampler)

    def held_out(self, step: int, sample: Sample, lookup: Lookup, sampler: Sampler) -> None:
        """Keep the held-out evaluation."""
        self.evaluated[step] = self._counts(sample, lookup, sampler), sample.reward.mean((1, 2))

    def _counts(self, sample: Sample, lookup: Lookup, sampler: Sampler) -> TurnCounts:
        decision, before = lookup.count((self.seeds, *self.graph.offered.shape))
        at_end = sampler.solved_at_end(sample).sum(-1)
        return TurnCounts(decision, np.concatenate([before[:, 1:], at_end[:, None]], 1), sample.choice.shape[-1])

    def _workflows(self, sample: Sample, sampler: Sampler) -> F64:
        """Return the effective number of workflows and the share of rollouts that never search, [S, 2]."""
        A, K = len(self.graph.actions), self.graph.turns
        digit = np.where(sampler.running(sample), sampler.actions(sample) + 1, 0)
        codes = np.tensordot((A + 1) ** np.arange(K), digit, 1)
        shares = workflow_shares(codes, (A + 1) ** K)
        digits = np.arange((A + 1) ** K)[:, None] // (A + 1) ** np.arange(K) % (A + 1)
        never = ~(digits == (-1 if self.search is None else self.search) + 1).any(1)
        return np.stack([effective_number(shares), shares[:, never].sum(1)], 1)

    def columns(self) -> Columns:
        """Return every column, [seeds, steps]."""
        steps = np.broadcast_to(np.arange(self.config.steps), (self.seeds, self.config.steps))
        counts = TurnCounts(self.counts, self.solved, self.config.prompts * self.config.group)
        found: Columns = {"step": steps}
        found |= self._policy_columns(counts) | self._ratio_columns(counts)
        found |= {"train/reward": self.reward, "train/turns": counts.turns(), "train/degenerate_share": self.no_signal}
        found |= self._behaviour("behaviour", counts)
        if self.workflows is not None:
            found["behaviour/effective_workflows"], found["behaviour/no_search_share"] = np.moveaxis(
                self.workflows, -1, 0
            )
        if self.config.evaluation is not None:
            found |= self._evaluation()
        return {name: steps if name == "step" else np.ascontiguousarray(x.T) for name, x in found.items()}

    def _policy_columns(self, counts: TurnCounts) -> Columns:
        g, content = self.graph, self.config.content
        z, shift = self.z[:-1], self.shift[:-1]
        now = tables(g, z)
        found: Columns = {}
        for d, name in enumerate(g.free_names):
            found[f"policy/logit/{name}"] = z[..., d]
            found[f"decision/share/{name}"] = now.probability[..., g.free_context[d], g.free_action[d]]
        kl = decision_kl(now.probability, now.log_probability, self.reference.log_probability)
        for c, context in enumerate(g.contexts):
            if g.offered[c].sum() > 1:
                found[f"decision/entropy/{context}"] = entropy(now.probability[..., c, :])
                found[f"drift/kl_decision/{context}"] = kl[..., c]
        visits = counts.decision.sum((-3, -1)) / counts.rollouts
        found["policy/shared_shift"] = shift
        found["drift/kl_decisions"] = decisions = trajectory_kl(kl, visits)
        found["drift/kl_content"] = words = content_kl(shift, content.tokens, content.coupling)
        found["drift/kl_trajectory"] = decisions + words
        return found

    def _ratio_columns(self, counts: TurnCounts) -> Columns:
        T, content = self.config.steps, self.config.content
        sampled_by = np.maximum(np.arange(T) - self.config.lag, 0)
        log_p = tables(self.graph, self.z).log_probability
        words = np.sqrt(content.coupling) * self.shift
        r = ratio_levels(
            log_p[1:] - log_p[sampled_by],
            counts.decision.sum(-3),
            counts.rollouts,
            CLIP_BAND,
            (words[sampled_by], words[1:]),
            content.tokens,
        )
        found: Columns = {
            "drift/ratio/token/distance": r.token_distance,
            "drift/ratio/token/outside": r.token_outside,
            "drift/ratio/turn/distance": r.decision_distance,
            "drift/ratio/turn/outside": r.decision_outside,
        }
        if self.trajectory is not None:
            found["drift/ratio/trajectory/distance"], found["drift/ratio/trajectory/outside"] = np.moveaxis(
                self.trajectory, -1, 0
            )
        return found

    def _behaviour(self, prefix: str, counts: TurnCounts) -> Columns:
        accuracy = counts.accuracy()
        found: Columns = {f"{prefix}/accuracy/turn{t}": accuracy[..., t] for t in range(self.graph.turns)}
        for a, action in enumerate(self.graph.actions):
            share = counts.action_share(a)
            found |= {f"{prefix}/{action}_share/turn{t}": share[..., t] for t in range(self.graph.turns)}
        return found

    def _evaluation(self) -> Columns:
        """Return the held-out columns, NaN at steps without an evaluation."""
        found: dict[str, F64] = {}
        for step, (counts, reward) in self.evaluated.items():
            for name, value in {"eval/reward": reward, **self._behaviour("eval", counts)}.items():
                found.setdefault(name, np.full((self.config.steps, self.seeds), np.nan))[step] = value
        return dict(found)
