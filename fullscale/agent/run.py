"""One run of a language model: collect -> coefficients -> backward -> record, step by step.

Step u: the versions that the schedule names write a batch; rewards become advantages and, with every forward, coefficients;
autograd and the optimiser move the policy to version u + 1. The update rule, its minibatches and its backward are those of
the second rung. On several ranks each plays its share of the questions and every rank then has the whole batch.
"""

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGINT, SIGTERM, raise_signal
from typing import Any

import numpy as np
import torch

from fullscale.agent import sharding, watch
from fullscale.agent.beside import Beside
from fullscale.agent.collecting import Collector
from fullscale.agent.learner import Learner, number
from fullscale.agent.marked import MarkedPolicy
from fullscale.agent.parts import assembled
from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.ranks import Ranks, ShardedScorer
from fullscale.agent.record import Scores, to_rollouts
from fullscale.agent.rollouts import Played
from fullscale.agent.schedules import Asynchronous
from fullscale.agent.setup import Training
from fullscale.agent.versions import Versions, spread
from fullscale.rollout.staleness import staleness
from minimodel.agent.checkpoint import Checkpoint
from minimodel.agent.running import stopping_between_steps
from sim.learning.credit import GreedyBaseline
from sim.records.rollouts import Rollouts

__all__ = ["Run"]

_log = logging.getLogger(__name__)
LOGP, WATCHED = frozenset({"logp"}), frozenset({"logp", "entropy", watch.KL})


class Run:
    """One seed of one config.

    Parameters
    ----------
    folder
        Where published weights are kept.
    checkpoint
        Where to save and to go on from; None for neither.
    device
        Where the network is.
    progress
        Called as ``progress(done, total)`` while the start is made.
    starts
        Where starts are kept; default: ``folder / "starts"``.
    """

    def __init__(
        self,
        config: Training,
        seed: int,
        study: str,
        folder: Path,
        checkpoint: Checkpoint | None = None,
        *,
        device: str = "cpu",
        progress: Callable[[int, int], None] | None = None,
        starts: Path | None = None,
    ) -> None:
        self.config, self.seed, self.study, self.checkpoint, self.device = config, seed, study, checkpoint, device
        self.ranks = Ranks.here()
        self.parts = assembled(config, seed, starts or folder / "starts", device=device, progress=progress)
        self.policy = policy = self.parts.policy
        reference = policy.frozen() if self.ranks.world == 1 else spread(config, self.ranks, device, policy)
        self.now, self.reference = self._marked(policy), self._marked(reference)
        self._before = _start(policy, reference)
        self.learner = Learner(config, self.now, self.reference)
        self.versions = Versions(config, self.ranks, device, policy)
        kind = Beside if isinstance(config.schedule, Asynchronous) else Collector
        self.collector = kind(config, self.parts, seed, study, folder, self.ranks, self.versions.__getitem__)
        self.rows: list[watch.Row] = []
        self.kept: Rollouts | None = None
        self.step = 0
        self.seconds: dict[str, float] = defaultdict(float)
        """CPU time of each part of the steps so far, s: of all threads, so of episodes that are played beside it as well."""

    # The loop ---------------------------------------------------------------------------------------------------------

    def go(self, report: Callable[[watch.Row], None] | None = None) -> dict[str, np.ndarray]:
        """Run to the end and return the columns, [steps].

        Parameters
        ----------
        report
            Called with what was written down, after every step.
        """
        with self.collector, stopping_between_steps() as asked:
            self._resume()
            while self.step < self.config.steps:
                self.advance()
                if report is not None:
                    report(self.rows[-1])
                signal = self.ranks.most(asked())  # once: one that comes during the save is for the next step
                over = self.step == self.config.steps
                if self.checkpoint is not None and (signal or over or self.step % self.config.save_every == 0):
                    self._save(self.checkpoint)
                if signal:
                    raise self._stopped(signal)
        names = list(self.rows[0]) if self.rows else ["step"]
        return {name: np.array([row[name] for row in self.rows]) for name in names}

    def advance(self) -> None:
        """Make one step."""
        c, u = self.config, self.step
        self.keep_version(u)
        with self._timed("evaluate"):
            evaluated = self._evaluation(u)
        with self._timed("collect"):
            batch, arrived = self.collector.batch(u)
            reward, judged = self.collector.reward(batch)
        row: watch.Row = {"step": u}
        probe = watch.Probe(batch, c.watched, c.bucket_tokens, c.pieces)
        with self._timed("watch"):
            before = probe.scored(self.now, WATCHED, self.reference)
            row |= watch.drift(probe, before) | evaluated
            row |= self._mismatch(probe, before["logp"])
        greedy = self._greedy(batch)
        if u == c.keep_rollouts:
            based = True if greedy is None else ~np.isnan(greedy)[:, None]
            self.kept = self._record(batch, arrived & based)
        with self._timed("learn"):
            learned = self.learner.step(batch, reward, arrived, self.collector.baseline, greedy)
        environment = self.parts.environment
        row |= judged | watch.training(batch, reward, environment, arrived, learned.degenerate)
        row |= watch.behaviour("behaviour", batch, environment)
        row |= staleness(batch.version, batch.sampled, u)
        with self._timed("watch"):
            row |= watch.ratios(probe, probe.scored(self.now, LOGP)["logp"])
        row |= watch.updates(learned.forwards, learned.norms) | self.collector.counts()
        row["update/moved"] = self._moved()
        self.rows.append(row)
        self.step += 1

    def _greedy(self, batch: Played) -> np.ndarray | None:
        """Return the reward of the likeliest episode of each question, [Q], for a rule that subtracts it."""
        if not isinstance(self.config.rule.credit, GreedyBaseline):
            return None
        return self.collector.greedy(batch.questions, self.step)[:, 0]

    def _stopped(self, signal: int) -> BaseException:
        """Return what ends a run that was asked to stop, with a word on how to go on."""
        word = f"{self.study}, seed {self.seed}: stopped after step {self.step} of {self.config.steps}"
        if self.checkpoint is not None:
            word += "; saved, and the same command goes on from there"
        if signal == SIGTERM:
            _log.warning(word)
            self.collector.close()  # nothing of this process comes after the signal
            raise_signal(SIGTERM)
        stop = KeyboardInterrupt() if signal == SIGINT else SystemExit(128 + signal)
        stop.add_note(word)
        return stop

    def keep_version(self, u: int) -> None:
        """Keep the weights as they are before update `u`, and publish them."""
        self.versions.keep(u)
        self.collector.published(u)

    def _marked(self, policy: LanguagePolicy) -> MarkedPolicy:
        return MarkedPolicy(ShardedScorer(policy, self.ranks))

    # Watching ---------------------------------------------------------------------------------------------------------

    def _mismatch(self, probe: watch.Probe, now: np.ndarray) -> watch.Row:
        """Return how engine and learner differ, on tokens of the newest version that wrote any of the batch."""
        newest = int(probe.batch.version[probe.batch.sampled].max(initial=-1))
        if newest == self.step:
            return watch.mismatch(probe, now, newest)
        old = self.versions.scorer(newest)
        scored = None if old is None else probe.scored(MarkedPolicy(old), LOGP)["logp"]
        found = self.ranks.from_first(scored)
        if found is None:
            return watch.mismatch(probe, now, -2)  # nothing to compare with: absent, not 0
        return watch.mismatch(probe, found, newest)

    def _evaluation(self, u: int) -> watch.Row:
        e = self.config.evaluation
        if e is None:
            return {}
        if u % e.every:
            return {name: float("nan") for name in self.rows[0] if name.startswith("eval/")}
        batch = self.collector.held_out(u, e.prompts, e.group)
        found = watch.behaviour("eval", batch, self.parts.environment)
        there = batch.arrived
        found["eval/reward"] = float(batch.reward[there].mean()) if there.any() else float("nan")
        found["eval/turns"] = float(batch.taken.mean())
        known = self.collector.known(batch.questions)
        asked = known[~np.isnan(known)]
        return found | {"eval/closed_book": float(asked.mean()) if asked.size else float("nan")}

    def _record(self, batch: Played, arrived: np.ndarray) -> Rollouts:
        """Return the batch as the record, with the log-probs of learner and reference."""
        every = watch.Probe(batch, self.config.group, self.config.bucket_tokens, self.config.pieces)
        mine, theirs = (every.scored(p, LOGP)["logp"].astype(np.float32) for p in (self.now, self.reference))
        return to_rollouts(batch, self.step, Scores(mine, theirs), arrived)

    @torch.no_grad()
    def _moved(self) -> float:
        """Return the distance of the trained parameters from the start, relative to their norm there."""
        pairs = list(zip(self.now.parameters(), self._before, strict=True))
        moved = sum(number((a - b.to(a)).float().square().sum()) for a, b in pairs)
        norm = sum(number(b.float().square().sum()) for _, b in pairs)
        return float(np.sqrt(moved / norm)) if norm else float(np.sqrt(moved))

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self.seconds[part] += time.process_time() - began

    # Going on ---------------------------------------------------------------------------------------------------------

    def _save(self, checkpoint: Checkpoint) -> None:
        """Save what the rest of the run depends on; with several ranks the first writes."""
        state = self.state()
        if self.ranks.rank == 0:
            checkpoint.save(state)
        self.ranks.most(0)  # nobody goes on before it is written

    def state(self) -> dict[str, Any]:
        """Return everything the rest of the run depends on; to be called on all ranks."""
        return {
            "step": self.step,
            "updates_made": self.learner.updates_made,
            "weights": sharding.whole(self.policy.scoring),
            "optimiser": sharding.whole_optimiser(self.policy.scoring, self.learner.optimiser),
            "versions": self.versions.state(),
            "running_reward": self.learner.running_reward,
            "rows": self.rows,
            "seconds": dict(self.seconds),
            "collector": self.collector.state(),
            "kept": None if self.kept is None else torch.frombuffer(bytearray(self.kept.to_bytes()), dtype=torch.uint8),
        }

    def _resume(self) -> None:
        state = None
        if self.checkpoint is not None and self.ranks.rank == 0:
            state = self.checkpoint.load()
        large = ("weights", "optimiser", "versions")  # the first rank spreads these, a parameter at a time
        small = None
        if state is not None:
            small = {name: x for name, x in state.items() if name not in large}
            small |= {"optimised": bool(state["optimiser"]), "older": sorted(state["versions"])}
        small = self.ranks.from_first(small)
        if small is None:
            return
        state = (state or {name: {} for name in large}) | small
        self.step, self.rows = state["step"], state["rows"]
        self.seconds.update(state["seconds"])
        optimiser = self.learner.optimiser
        sharding.load(self.policy.scoring, optimiser, state["weights"], state["optimiser"], state["optimised"])
        self.learner.updates_made = state["updates_made"]
        self.learner.running_reward = state["running_reward"]
        self.versions.restore(state["older"], state["versions"])
        self.collector.restore(state["collector"])
        if state["kept"] is not None:
            self.kept = Rollouts.from_bytes(state["kept"].numpy().tobytes())


def _start(policy: LanguagePolicy, reference: LanguagePolicy) -> list[torch.Tensor]:
    """Return the trained parameters as they start: the reference's own where it is a copy."""
    if reference.scoring is policy.scoring:
        return [p.detach().clone() for p in policy.parameters()]
    pairs = zip(policy.scoring.parameters(), reference.scoring.parameters(), strict=True)
    return [b for a, b in pairs if a.requires_grad]
