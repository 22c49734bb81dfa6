"""From a batch that was played to updates of a policy: the second rung's minibatches and backward, and an optimiser."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fullscale.agent.handed import Scorable, given, scored
from fullscale.agent.marked import MarkedPolicy
from fullscale.agent.rollouts import Played
from fullscale.agent.setup import Training
from minimodel.agent.learner import Forward, Minibatch, backward, minibatches
from sim.learning.credit import RunningBaseline

__all__ = ["Learned", "Learner", "number"]

F64 = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Learned:
    """What a step's updates saw."""

    forwards: list[tuple[Forward, Tensor]]
    """What each saw, and the decision tokens of its minibatch, [Q', G, T]."""
    norms: list[float]
    """Norm of each gradient before it was bounded."""
    degenerate: float
    """Share of groups without signal."""


class Learner:
    """Moves a policy.

    Parameters
    ----------
    now, reference
        What is trained, and what it is kept near.
    """

    def __init__(self, config: Training, now: MarkedPolicy, reference: MarkedPolicy) -> None:
        self.config, self.now, self.reference = config, now, reference
        self.optimiser = config.optimiser.build(now.parameters())
        self.updates_made = 0
        self.running_reward: Tensor | None = None

    def step(self, batch: Played, reward: F64, arrived: Flags, over: str, greedy: F64 | None = None) -> Learned:
        """Make a step's updates.

        Parameters
        ----------
        reward
            Reward that is trained on, [Q, G].
        arrived
            Rollouts that are there, [Q, G].
        over
            What the baseline is over: ``"all"``, or those that ``"arrived"``.
        greedy
            Reward of the likeliest episode of each question, [Q]; NaN where its infrastructure failed: that question has no
            baseline then, and leaves the step.
        """
        c, rule = self.config, self.config.rule
        whole = Scorable.of(batch, c.bucket_tokens)
        layout: Any = whole.layout
        based = None if greedy is None else ~np.isnan(greedy)
        made = given(batch, whole, reward, rule, arrived=arrived, over=over, based=based, **self._beside(whole, greedy))
        if isinstance(rule.credit, RunningBaseline):
            self.running_reward = rule.credit.after(rule.shaped(made))
        slices = list(minibatches(len(batch.questions), c.minibatches))
        parts = [Minibatch.of(rule, whole, made, part) for part in slices]  # type: ignore[arg-type]
        degenerate = torch.cat([p.prepared.advantage.degenerate for p in parts]).double().mean()
        if c.proximal == "learner":
            parts = [part.recomputed(self.now, rule, layout, c.micro) for part in parts]
        seen, norms = [], []
        for part, where in zip(parts * c.epochs, slices * c.epochs, strict=True):
            self.optimiser.zero_grad(set_to_none=True)
            forward = backward(self.now, layout, rule, part, self.reference, c.micro)
            seen.append((forward, torch.from_numpy(batch.decision[where])))
            if forward.signal or c.on_zero_signal == "step":
                norms.append(self._update())
        return Learned(seen, norms, float(degenerate))

    def _update(self) -> float:
        """Move the parameters by their gradients; return the gradient's norm before it is bounded."""
        o = self.config.optimiser
        parameters = list(self.now.parameters())
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
        norm = number(torch.nn.utils.clip_grad_norm_(parameters, o.clip if o.clip > 0 else float("inf")))
        if not np.isfinite(norm):
            raise FloatingPointError(
                f"the gradient of update {self.updates_made} has norm {norm}; nothing was updated. Look at the last "
                "steps' ratios and entropies, lower the rate, or compute products in float32"
            )
        self.updates_made += 1
        for group in self.optimiser.param_groups:
            group["lr"] = o.rate * min(1.0, self.updates_made / max(o.warmup, 1))
        self.optimiser.step()
        return norm

    def _beside(self, whole: Scorable, greedy: F64 | None) -> dict[str, Any]:
        """Return what the rule reads beside rewards, masks and the sampler's log-probs."""
        rule, found = self.config.rule, dict[str, Any]()
        if "reference" in rule.reads:
            found["reference"] = scored(self.reference, whole, frozenset({"logp"}), pieces=self.config.pieces)["logp"]
        if greedy is not None:
            found["greedy_reward"] = torch.from_numpy(np.nan_to_num(greedy).astype(np.float32))
        if isinstance(rule.credit, RunningBaseline):
            found["running_reward"] = self.running_reward
        return found


def number(x: Any) -> float:
    """Return a scalar that may be spread over ranks as a number."""
    return float(x.full_tensor() if hasattr(x, "full_tensor") else x)
