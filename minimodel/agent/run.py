"""One run of the tiny transformer: collect -> coefficients -> backward -> record, step by step.

Step u: the versions that the schedule names write a batch; rewards become advantages and, with every forward, coefficients;
autograd and the optimiser move the policy to version u + 1.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT, SIGTERM, raise_signal
from typing import Any

import numpy as np
import torch

from minimodel.agent import watch
from minimodel.agent.checkpoint import Checkpoint
from minimodel.agent.collect import Collected, Draws, choose, collect
from minimodel.agent.engine import LocalEngine
from minimodel.agent.learner import Forward, Minibatch, backward, minibatches, rule_batch, score
from minimodel.agent.policy import Push, TinyPolicy
from minimodel.agent.record import to_rollouts
from minimodel.agent.running import stopping_between_steps
from minimodel.agent.setup import Training
from minimodel.model.threads import one_thread
from minimodel.model.vocabulary import ANSWER
from minimodel.pretrain.cache import obtain
from minimodel.tasks.environment import Environment
from sim.learning.credit import GreedyBaseline, RunningBaseline
from sim.records.config import replace
from sim.records.rollouts import Rollouts

__all__ = ["Run"]

_log = logging.getLogger(__name__)

SAVE_EVERY = 10
"""Steps between checkpoints: a few seconds of work, and a save costs milliseconds."""


class Run:
    """One seed of one config.

    Parameters
    ----------
    checkpoint
        Where to save and to go on from; None for neither.
    """

    def __init__(
        self, config: Training, seed: int, study: str, folder: Path, checkpoint: Checkpoint | None = None
    ) -> None:
        self.config, self.seed, self.study, self.checkpoint = config, seed, study, checkpoint
        model, _, self.facts = obtain(
            config.task,
            config.size,
            config.start,
            seed // config.starts_shared_by,
            folder / "starts",
            asks=config.asks,
        )
        self.now = TinyPolicy(model, config.temperature, bfloat16=config.precision == "bfloat16")
        self.reference = TinyPolicy(model, config.temperature).frozen()
        self._environment: Environment | None = None
        self.optimiser = config.optimiser.build(self.now.parameters())
        self.updates_made = 0
        self.engine = LocalEngine(compiled=config.decode == "compiled")
        self.versions: dict[int, TinyPolicy] = {}
        self.draws, self.held_out = Draws(seed, study), Draws(seed, study, "eval")
        self.running_reward: torch.Tensor | None = None
        self.rows: list[watch.Row] = []
        self.kept: Rollouts | None = None
        self.step = 0

    # The loop ---------------------------------------------------------------------------------------------------------

    def go(self, report: Callable[[int], None] | None = None) -> dict[str, np.ndarray]:
        """Run to the end and return the columns, [steps]."""
        with one_thread(), stopping_between_steps() as asked:
            self._resume()
            while self.step < self.config.steps:
                self.advance()
                if report is not None:
                    report(self.step)
                signal = asked()  # once: one that comes during the save is for the next step
                over = self.step == self.config.steps
                if self.checkpoint is not None and (signal or over or self.step % SAVE_EVERY == 0):
                    self.checkpoint.save(self.state())
                if signal:
                    raise self._stopped(signal)
        names = list(self.rows[0]) if self.rows else ["step"]
        return {name: np.array([row[name] for row in self.rows]) for name in names}

    def advance(self) -> None:
        """Make one step."""
        c, u = self.config, self.step
        environment = self.environment(u)
        self.now.push = self._push(u)
        self.keep_version(u)
        question = choose(self.draws, u, self.facts.train, c.prompts)
        shape = (c.prompts, c.group, c.task.layout.turns)
        batch = collect(
            self.engine, environment, question, c.group, c.schedule.versions(u, shape), self.publish, self.draws, u
        )
        arrived = c.schedule.arrives(batch.taken, self.draws.block("arrival", u, c.prompts, c.group))
        reward = batch.reward if c.monitor is None else c.monitor(batch)
        row: watch.Row = {"step": u}
        probe = watch.Probe(batch, environment, c.watched)
        before = probe.log_probs(self.now)
        synchronous = c.schedule.reach == 0
        row |= watch.decisions(
            batch,
            environment,
            batch.decision if synchronous else probe.decision_logp(before),
            np.ones_like(probe.rows) if synchronous else probe.rows,
        )
        row |= watch.drift(probe, before, probe.log_probs(self.reference))
        row |= self._evaluation(environment, u)
        if u == c.keep_rollouts:
            self.kept = to_rollouts(batch, environment, u, self.now, self.reference, arrived)
        forwards, norms, degenerate = self._learn(batch, reward, arrived, environment)
        row |= watch.training(batch, reward, environment, arrived, degenerate)
        row |= watch.behaviour("behaviour", batch, environment)
        row |= watch.staleness(batch, u)
        row |= watch.ratios(probe, probe.log_probs(self.now))
        row |= watch.updates(forwards, norms, probe.decision)
        row["update/moved"] = self._moved()
        self.rows.append(row)
        self.step += 1

    def _learn(
        self, batch: Collected, reward: np.ndarray, arrived: np.ndarray, environment: Environment
    ) -> tuple[list[Forward], list[float], float]:
        """Make the step's updates; return what they saw, gradient norms, and the share of groups without signal."""
        c, rule, layout = self.config, self.config.rule_at(self.step), self.config.task.layout
        given = rule_batch(
            batch, reward, rule, layout, arrived=None if arrived.all() else arrived, over=c.schedule.baseline,
            **self._beside(batch, environment),
        )  # fmt: skip
        if isinstance(rule.credit, RunningBaseline):
            self.running_reward = rule.credit.after(rule.shaped(given))
        parts = [Minibatch.of(rule, batch, given, part) for part in minibatches(c.prompts, c.minibatches)]
        degenerate = torch.cat([p.prepared.advantage.degenerate for p in parts]).double().mean()
        if c.proximal == "learner":
            parts = [part.recomputed(self.now, rule, layout, c.micro) for part in parts]
        seen, norms = [], []
        for part in parts * c.epochs:
            self.optimiser.zero_grad(set_to_none=True)
            forward = backward(self.now, layout, rule, part, self.reference, c.micro)
            seen.append(forward)
            if forward.signal or c.on_zero_signal == "step":
                norms.append(self._update())
        return seen, norms, float(degenerate)

    def _update(self) -> float:
        """Move the parameters by their gradients; return the gradient's norm before it is bounded."""
        o = self.config.optimiser
        parameters = list(self.now.parameters())
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = torch.nn.utils.clip_grad_norm_(parameters, o.clip if o.clip > 0 else float("inf"))
        self.updates_made += 1
        for group in self.optimiser.param_groups:
            group["lr"] = o.rate * min(1.0, self.updates_made / max(o.warmup, 1))
        self.optimiser.step()
        return float(norm)

    def _beside(self, batch: Collected, environment: Environment) -> dict[str, Any]:
        """Return what the rule reads beside rewards, masks and the sampler's log-probs."""
        c, rule = self.config, self.config.rule_at(self.step)
        found: dict[str, Any] = {}
        if "reference" in rule.reads:
            ids, taken = torch.from_numpy(batch.ids), torch.from_numpy(batch.taken)
            with torch.no_grad():
                scored = score(self.reference, c.task.layout, ids, taken, frozenset({"logp"}))
            found["reference"] = scored.whole("logp", torch.zeros(ids.shape))
        if isinstance(rule.credit, GreedyBaseline):
            shape = (c.prompts, 1, c.task.layout.turns)
            versions = c.schedule.versions(self.step, shape)
            draws = Draws(self.seed, self.study, "greedy")
            beside = collect(
                self.engine, environment, batch.question, 1, versions, self.publish, draws, self.step, greedy=True
            )
            reward = beside.reward if c.monitor is None else c.monitor(beside)
            found["greedy_reward"] = torch.from_numpy(reward[:, 0].astype(np.float32))
        if isinstance(rule.credit, RunningBaseline):
            found["running_reward"] = self.running_reward
        return found

    def _stopped(self, signal: int) -> BaseException:
        """Return what ends a run that was asked to stop, with a word on how to go on.

        A request to terminate is passed on to whoever would have had it; by default that is the end of the process, where
        nobody reads an exception, so the word is logged.
        """
        word = f"{self.study}, seed {self.seed}: stopped after step {self.step} of {self.config.steps}"
        if self.checkpoint is not None:
            word += "; saved, and the same command goes on from there"
        if signal == SIGTERM:
            _log.warning(word)
            raise_signal(SIGTERM)
        stop = KeyboardInterrupt() if signal == SIGINT else SystemExit(128 + signal)
        stop.add_note(word)
        return stop

    # Versions ---------------------------------------------------------------------------------------------------------

    def keep_version(self, u: int) -> None:
        """Keep the policy as it is before update `u`, and forget versions that no schedule will ask for."""
        self.versions[u] = self.now.frozen() if self.config.schedule.reach else self.now
        for old in [v for v in self.versions if v < u - self.config.schedule.reach]:
            del self.versions[old]

    def publish(self, version: int) -> None:
        """Give a version to the engine."""
        self.engine.publish(version, self.versions[version])

    def environment(self, step: int) -> Environment:
        """Return the environment of a step, the last one again while the world stays."""
        c = self.config
        world = c.world_at(step)
        if self._environment is None or self._environment.task.world != world:
            ends = c.monitor is not None and c.monitor.ends
            self._environment = Environment(replace(c.task, {"world": world}), self.facts, ends_on_guess=ends)
        return self._environment

    def _push(self, step: int) -> Push | None:
        drive = self.config.drive
        if drive is None:
            return None
        added = drive.rate * min(max(step - drive.start, 0), drive.duration)  # before this step
        return Push(int(self.config.task.layout.decisions[0]), ANSWER, added)

    # Watching ---------------------------------------------------------------------------------------------------------

    def _evaluation(self, environment: Environment, u: int) -> watch.Row:
        e, c = self.config.evaluation, self.config
        if e is None:
            return {}
        if u % e.every:
            return {name: float("nan") for name in self.rows[0] if name.startswith("eval/")}
        question = choose(self.held_out, u, self.facts.held_out, e.prompts)
        versions = np.full((e.prompts, e.group, c.task.layout.turns), u)
        batch = collect(self.engine, environment, question, e.group, versions, self.publish, self.held_out, u)
        every = np.ones(batch.taken.shape, np.bool_)
        found = watch.behaviour("eval", batch, environment)
        found |= {
            name.replace("decision/", "eval/decision/", 1): value
            for name, value in watch.decisions(batch, environment, batch.decision, every).items()
        }
        return found | {"eval/reward": float(batch.reward.mean()), "eval/turns": float(batch.taken.mean())}

    @torch.no_grad()
    def _moved(self) -> float:
        """Return the distance of the parameters from the start, relative to their norm there."""
        pairs = list(zip(self.now.parameters(), self.reference.parameters(), strict=True))
        moved = sum(float((a - b).double().square().sum()) for a, b in pairs)
        return float(np.sqrt(moved / sum(float(b.double().square().sum()) for _, b in pairs)))

    # Going on ---------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything the rest of the run depends on."""
        return {
            "step": self.step,
            "updates_made": self.updates_made,
            "model": self.now.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "versions": {v: p.model.state_dict() for v, p in self.versions.items()},
            "running_reward": self.running_reward,
            "rows": self.rows,
            "kept": None if self.kept is None else torch.frombuffer(bytearray(self.kept.to_bytes()), dtype=torch.uint8),
        }

    def _resume(self) -> None:
        state = None if self.checkpoint is None else self.checkpoint.load()
        if state is None:
            return
        self.step, self.updates_made, self.rows = state["step"], state["updates_made"], state["rows"]
        self.now.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.running_reward = state["running_reward"]
        if self.config.schedule.reach:
            for version, weights in state["versions"].items():
                past = self.now.frozen()
                past.model.load_state_dict(weights)
                past.push = self._push(version)
                self.versions[version] = past
        if state["kept"] is not None:
            self.kept = Rollouts.from_bytes(state["kept"].numpy().tobytes())
