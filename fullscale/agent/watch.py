"""What a run writes down at every step; what the other rungs also have bears their names.

Values of the policy (``drift/kl*``, ``entropy/``) are those *before* the step's update, on the watched episodes of each
group. ``mismatch/`` compares the log-probs that the engine gave with those of a learner of the same weights. A column is NaN
where there was nothing to measure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fullscale.agent.handed import Scorable, scored
from fullscale.agent.rollouts import Played
from fullscale.environment import Environment
from minimodel.agent import watch
from minimodel.agent.learner import Forward
from minimodel.agent.protocols import Policy
from minimodel.agent.watch import CLIP_BAND, Row
from sim.learning.penalties import ScalarKey

__all__ = ["CLIP_BAND", "Probe", "Row", "behaviour", "drift", "mismatch", "ratios", "training", "updates"]

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
Flags = NDArray[np.bool_]
KL: ScalarKey = ("kl", "ref")


@dataclass(frozen=True, eq=False)
class Probe:
    """The watched episodes of a batch, those first in their groups, and their tokens by what they are."""

    batch: Played
    """The batch."""
    members: int
    """Episodes of each group that are watched."""
    bucket_tokens: int = 64
    """As in :class:`~fullscale.agent.handed.Scorable`."""
    pieces: int = 1
    """As in :func:`~fullscale.agent.handed.scored`."""

    @property
    def sampled(self) -> Flags:
        """Tokens that were sampled, [Q, m, T]."""
        found: Flags = self.batch.sampled[:, : self.members]
        return found

    @property
    def parts(self) -> dict[str, Flags]:
        """Sampled tokens of the tag that decided, of what was thought before it, and of what came after, [Q, m, T]."""
        decision = self.batch.decision[:, : self.members]
        turn = self.batch.turn[:, : self.members]
        place = np.arange(decision.shape[-1])
        after = np.zeros_like(decision)
        for k in range(self.batch.action.shape[-1]):
            here = decision & (turn == k)
            first = np.where(here.any(-1), here.argmax(-1), decision.shape[-1])
            after |= (turn == k) & (place > first[..., None])
        return {
            "decision": decision,
            "thinking": self.sampled & ~decision & ~after,
            "argument": self.sampled & ~decision & after,
        }

    def scored(
        self, policy: Policy, wanted: frozenset[ScalarKey], reference: Policy | None = None
    ) -> dict[ScalarKey, F64]:
        """Return scalars of the watched episodes under `policy`, [Q, m, T]; 0 at tokens that were not sampled."""
        whole = Scorable.of(self.batch, self.bucket_tokens)
        found = scored(policy, whole, wanted, reference, members=self.members, pieces=self.pieces)
        return {name: values.double().numpy() for name, values in found.items()}

    def per_turn(self, values: F64, where: Flags) -> list[float]:
        """Return the mean of values [Q, m, T] by turn over tokens in `where`; NaN where there are none, [K]."""
        turn = self.batch.turn[:, : self.members]
        return [_mean(values, where & (turn == k)) for k in range(self.batch.action.shape[-1])]


def drift(probe: Probe, scored: Mapping[ScalarKey, F64]) -> Row:
    """Return exact KL to the reference and entropies, by turn, at decisions and at content.

    KL of a trajectory is the sum over its sampled tokens, by the chain rule; along the trajectories that were sampled.
    """
    kl, entropy, parts, found = scored[KL], scored["entropy"], probe.parts, Row()
    content = parts["thinking"] | parts["argument"]
    for name, where in (("kl_decision", parts["decision"]), ("kl_content", content)):
        found |= {f"drift/{name}/turn{t}": x for t, x in enumerate(probe.per_turn(kl, where))}
    for name, where in parts.items():
        found |= {f"entropy/{name}/turn{t}": x for t, x in enumerate(probe.per_turn(entropy, where))}
    wrote = np.asarray(probe.sampled.any(-1))  # episodes
    found["drift/kl_decisions"] = _mean((kl * parts["decision"]).sum(-1), wrote)
    found["drift/kl_content"] = _mean((kl * content).sum(-1), wrote)
    found["drift/kl_trajectory"] = found["drift/kl_decisions"] + found["drift/kl_content"]
    found["drift/kl_token"] = _mean(kl, probe.sampled)
    found["entropy/token"] = _mean(entropy, probe.sampled)
    return found


def ratios(probe: Probe, after: F64) -> Row:
    """Return how far the policy after the update, log-probs [Q, m, T], is from the one that sampled: by token and episode.

    ``distance`` is the mean of |rho - 1| as it is, ``clamped`` that of rho clamped to the band, ``outside`` the share
    beyond it.
    """
    mask, decision = probe.sampled, probe.parts["decision"]
    gap = np.where(mask, after - probe.batch.logp[:, : probe.members], 0.0)
    distance, whole = np.abs(np.expm1(gap)), np.abs(np.expm1(gap.sum(-1)))
    levels = {"token": mask, "decision": decision, "content": mask & ~decision}
    parts = {name: distance[where] for name, where in levels.items()} | {"episode": whole.ravel()}
    found = Row()
    for name, values in parts.items():
        empty = not values.size
        found[f"drift/ratio/{name}/distance"] = float("nan") if empty else float(values.mean())
        found[f"drift/ratio/{name}/clamped"] = float("nan") if empty else float(np.minimum(values, CLIP_BAND).mean())
        found[f"drift/ratio/{name}/outside"] = float("nan") if empty else float((values > CLIP_BAND).mean())
    for name in ("decision", "content"):
        by_turn = probe.per_turn(distance, levels[name])
        found |= {f"drift/ratio/{name}/distance/turn{t}": x for t, x in enumerate(by_turn)}
    return found


def mismatch(probe: Probe, learner: F64, version: int) -> Row:
    """Return how the engine's log-probs differ from those of a learner with the same weights, [Q, m, T].

    Parameters
    ----------
    version
        The weights that `learner` scored with; tokens that another version wrote are left out.
    """
    here = probe.sampled & (probe.batch.version[:, : probe.members] == version)
    gap = learner - probe.batch.logp[:, : probe.members]
    size = np.abs(gap)
    return {
        "mismatch/mean": _mean(size, here),
        "mismatch/max": float(size[here].max()) if here.any() else float("nan"),
        "mismatch/kl": _mean(np.expm1(gap) - gap, here),
        "mismatch/coverage": float(here.sum() / max(probe.sampled.sum(), 1)),
    }


def behaviour(prefix: str, batch: Played, environment: Environment) -> Row:
    """Return what the episodes did by turn, shares of all of them; and the share of each action by context."""
    like: Any = SimpleNamespace(graph=environment)  # it has the actions and contexts that are read
    found = watch.behaviour(prefix, batch, like)  # type: ignore[arg-type]
    policy = watch.counts(batch, like).policy()  # type: ignore[arg-type]
    for c, context in enumerate(environment.contexts):
        for a, action in enumerate(environment.actions):
            found[f"{prefix}/policy/{context}/{action}"] = float(policy[c, a])
    tool = (batch.running & (batch.action >= 0) & (batch.action != environment.actions.index("answer"))).any(-1)
    found[f"{prefix}/tool_share"] = float(tool.mean())
    found[f"{prefix}/solved_share"] = float((batch.correct & batch.running).any(-1).mean())
    found[f"{prefix}/hit_share"] = float((batch.hit & batch.running).any(-1).mean())
    return found


def training(batch: Played, reward: F64, environment: Environment, arrived: Flags, degenerate: float) -> Row:
    """Return what the batch was worth and what it cost; rewards are means over episodes whose infrastructure held."""
    like: Any = SimpleNamespace(graph=environment)
    found = watch.training(batch, reward, like, arrived & batch.arrived, degenerate)  # type: ignore[arg-type]
    found["train/reward"] = _mean(batch.reward, batch.arrived)
    found["train/shaped_reward"] = _mean(reward, batch.arrived)
    found["train/failed_share"] = float(1 - batch.arrived.mean())
    found["train/tokens"] = float(batch.length.mean())
    found["train/sampled_tokens"] = float(batch.sampled.sum(-1).mean())
    found["train/context_share"] = float((batch.why == "context").any(-1).mean())
    found["train/segments"] = float(batch.segment.max(-1).mean() + 1)
    return found


def updates(forwards: Sequence[tuple[Forward, Tensor]], norms: list[float]) -> Row:
    """Return what the step's updates saw, each with the decision tokens of its minibatch, [Q', G, T]: means over them."""
    rows = [watch.updates([seen], norms, decision) for seen, decision in forwards]
    return {name: _nanmean([row[name] for row in rows]) for name in rows[0]}


def _nanmean(values: list[float]) -> float:
    there = [x for x in values if not np.isnan(x)]
    return float(np.mean(there)) if there else float("nan")


def _mean(x: NDArray[Any], where: Flags) -> float:
    count = int(where.sum())
    return float(np.asarray(x, float)[where].sum() / count) if count else float("nan")
