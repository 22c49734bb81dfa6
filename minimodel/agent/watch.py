"""What a run writes down at every step; what the simulator also has bears the simulator's name.

Values of the policy (``decision/``, ``entropy/``, ``drift/kl*``) are those *before* the step's update. ``drift/ratio*``
compares the policy after the update with the one that sampled the batch: what a second pass over the batch would see;
``update/`` is what the updates themselves saw. A column is NaN where there was nothing to measure.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from minimodel.agent.collect import Collected
from minimodel.agent.learner import Forward, minibatches
from minimodel.agent.policy import TinyPolicy
from minimodel.tasks.environment import Environment
from minimodel.tasks.layout import PROMPT
from sim.signals.behaviour import TurnCounts, effective_number

__all__ = [
    "CLIP_BAND",
    "Probe",
    "Row",
    "behaviour",
    "counts",
    "decisions",
    "drift",
    "ratios",
    "staleness",
    "training",
    "updates",
]

F64 = NDArray[np.float64]
Flags = NDArray[np.bool_]
Row = dict[str, float]

CLIP_BAND = 0.2
"""Half-width of the band that ``drift/ratio/*/outside`` counts against, whatever the rule clips at."""


def _mean(x: NDArray[np.generic], where: Flags) -> float:
    """Return the mean of `x` where `where`; NaN when nothing is there."""
    count = int(where.sum())
    return float(np.asarray(x, float)[where].sum() / count) if count else float("nan")


def behaviour(prefix: str, batch: Collected, environment: Environment) -> Row:
    """Return what the episodes did, by turn: shares of *all* episodes, finished ones included."""
    found, counted = Row(), counts(batch, environment)
    shares = {"accuracy": counted.accuracy()}
    shares |= {f"{name}_share": counted.action_share(a) for a, name in enumerate(environment.graph.actions)}
    for name, by_turn in shares.items():
        found |= {f"{prefix}/{name}/turn{t}": value for t, value in enumerate(by_turn.tolist())}
    return found


def training(batch: Collected, reward: F64, environment: Environment, arrived: Flags, degenerate: float) -> Row:
    """Return what the batch was worth and what it cost."""
    A, K = len(environment.graph.actions), batch.action.shape[-1]
    running = batch.running
    digit = np.where(running, batch.action + 2, 0)  # 0: over, 1: invalid, then the actions
    codes = digit.reshape(-1, K) @ (A + 2) ** np.arange(K)
    _, counts = np.unique(codes, return_counts=True)
    searched = ((batch.action == environment.graph.actions.index("search")) & running).any(-1)
    return {
        "train/reward": float(batch.reward.mean()),
        "train/shaped_reward": float(reward.mean()),
        "train/turns": float(batch.taken.mean()),
        "train/degenerate_share": degenerate,
        "train/invalid_share": _mean(batch.action == -1, running),
        "train/arrived_share": float(arrived.mean()),
        "train/tool_tokens": float(batch.tool_tokens.sum(-1).mean()),
        "train/latency_s": float(batch.latency_s.sum(-1).mean()),
        "behaviour/effective_workflows": float(effective_number(counts / counts.sum())),
        "behaviour/no_search_share": float(1 - searched.mean()),
    }


def decisions(batch: Collected, environment: Environment, logp: NDArray[np.float32], rows: Flags) -> Row:
    """Return the mean probability of each action by context, of episodes in `rows` [Q, G].

    `logp` are log-probabilities of the decision tokens, [Q, G, K, A]: exact, not counted, over the whole vocabulary.
    """
    graph, known = environment.graph, environment.facts.known[batch.question]
    share, here = np.exp(logp.astype(float)), batch.running & rows[..., None]
    found: Row = {}
    for c, context in enumerate(graph.contexts):
        visited = here & (batch.context == c)
        for a in np.flatnonzero(graph.offered[c]):
            name = f"decision/share/{context}/{graph.actions[a]}"
            found[name] = _mean(share[..., a], visited)
            if context == "start" and graph.actions[a] == "answer":
                found[f"{name}/known"] = _mean(share[..., a], visited & known[:, None, None])
                found[f"{name}/unknown"] = _mean(share[..., a], visited & ~known[:, None, None])
    return found


class Probe:
    """The watched episodes of a batch, scored with whole distributions."""

    def __init__(self, batch: Collected, environment: Environment, members: int) -> None:
        self.batch, self.environment, self.layout = batch, environment, environment.task.layout
        self.rows = np.zeros(batch.taken.shape, np.bool_)
        self.rows[:, :members] = True
        self.ids = torch.from_numpy(batch.ids[self.rows])  # [W, T]
        self.sampled = torch.from_numpy(batch.sampled[self.rows])
        at = np.zeros(self.ids.shape[1], np.bool_)
        at[self.layout.decisions] = True
        self.decision = torch.from_numpy(at)

    @torch.no_grad()
    def log_probs(self, policy: TinyPolicy) -> Tensor:
        """Return the distribution of every token, [W, T - 1, V]; entry i is that of token i + 1."""
        return policy.log_probs(self.ids)

    def decision_logp(self, logp: Tensor) -> NDArray[np.float32]:
        """Return log-probabilities of the decision tokens as in a batch, [Q, G, K, A]; 0 at episodes not watched."""
        found = np.zeros(self.batch.decision.shape, np.float32)
        names = list(self.environment.task.decisions)
        found[self.rows] = logp[:, self.layout.decisions - 1][..., names].numpy()
        return found

    def per_turn(self, values: Tensor, where: Tensor) -> list[float]:
        """Return the mean of values [W, T - 1] by turn over sampled tokens in `where` [T], NaN where none, [K]."""
        mask = (self.sampled & where)[:, 1:]
        turn = torch.from_numpy(self.layout.turn_of)[1:]
        K = self.layout.turns
        total = torch.zeros(K, dtype=torch.float64).index_add_(0, turn, (values * mask).sum(0).double())
        count = torch.zeros(K, dtype=torch.float64).index_add_(0, turn, mask.sum(0).double())
        per_turn: list[float] = (total / torch.where(count > 0, count, torch.nan)).tolist()
        return per_turn


def drift(probe: Probe, now: Tensor, reference: Tensor) -> Row:
    """Return exact KL to the reference and entropies, by turn, at decisions and at content.

    KL of a trajectory is the sum over its sampled tokens, by the chain rule; along the trajectories of the policy that
    sampled.
    """
    p = now.exp()
    kl, entropy = (p * (now - reference)).sum(-1), -(p * now).sum(-1)  # [W, T - 1]
    decision, content = probe.decision, ~probe.decision
    layout, found = probe.layout, Row()
    offset = (torch.arange(len(decision)) - PROMPT) % layout.turn
    parts = {"decision": decision, "thinking": offset < layout.thinking, "argument": offset > layout.thinking}
    for t, value in enumerate(probe.per_turn(kl, decision)):
        found[f"drift/kl_decision/turn{t}"] = value
    for t, value in enumerate(probe.per_turn(kl, content)):
        found[f"drift/kl_content/turn{t}"] = value
    for name, where in parts.items():
        for t, value in enumerate(probe.per_turn(entropy, where)):
            found[f"entropy/{name}/turn{t}"] = value
    action = torch.from_numpy(probe.batch.action[probe.rows])  # [W, K]
    of_token = action[:, torch.from_numpy(layout.turn_of)]  # [W, T]
    for a, name in enumerate(probe.environment.graph.actions):
        first = parts["argument"] & (offset == layout.thinking + 1)
        for t, value in enumerate(probe.per_turn(entropy, first & (of_token == a))):
            found[f"entropy/argument/turn{t}/{name}"] = value
    mask = probe.sampled[:, 1:]
    found["drift/kl_decisions"] = float((kl * (mask & decision[1:])).sum(-1).mean())
    found["drift/kl_content"] = float((kl * (mask & content[1:])).sum(-1).mean())
    found["drift/kl_trajectory"] = found["drift/kl_decisions"] + found["drift/kl_content"]
    return found


def ratios(probe: Probe, after: Tensor) -> Row:
    """Return how far the policy after the update is from the one that sampled: by token and by whole episode.

    ``distance`` is the mean of |rho - 1| as it is, ``clamped`` that of rho clamped to the band, ``outside`` the share
    beyond it.
    """
    logp = after.gather(-1, probe.ids[:, 1:, None])[..., 0]
    mask, decision = probe.sampled[:, 1:], probe.decision[1:]
    behaviour = torch.from_numpy(probe.batch.logp[probe.rows])[:, 1:]
    gap = torch.where(mask, logp - behaviour, torch.zeros(()))
    distance, whole = torch.expm1(gap).abs(), torch.expm1(gap.sum(-1)).abs()
    found: Row = {}
    levels = {"token": mask, "decision": mask & decision, "content": mask & ~decision}
    parts = {name: distance[where] for name, where in levels.items()} | {"episode": whole}
    for name, values in parts.items():
        found[f"drift/ratio/{name}/distance"] = float(values.mean())
        found[f"drift/ratio/{name}/clamped"] = float(values.clamp(max=CLIP_BAND).mean())
        found[f"drift/ratio/{name}/outside"] = float((values > CLIP_BAND).float().mean())
    for name, where in (("decision", probe.decision), ("content", ~probe.decision)):
        for t, value in enumerate(probe.per_turn(distance, where)):
            found[f"drift/ratio/{name}/distance/turn{t}"] = value
    return found


def updates(forwards: list[Forward], norms: list[float], decision: Tensor) -> Row:
    """Return what the step's updates saw: the means over them of clip fractions, distances, and log-likelihoods."""
    sums: dict[str, list[float]] = {
        f"update/{name}": []
        for name in ("clip/binding", "clip/outside", "clip/decision", "ratio/distance", "logp_positive")
    }

    def put(name: str, flags: Tensor, where: Tensor) -> None:
        if bool(where.any()):
            sums[f"update/{name}"].append(float(flags[where].double().mean()))

    for seen in forwards:
        mask = seen.prepared.mask & seen.scored[..., None]
        binding = _joined(seen, "binding", mask)
        outside = _joined(seen, "outside", mask)
        ratio = torch.expm1(torch.where(mask, seen.logp - seen.prepared.behaviour, torch.zeros(()))).abs()
        put("ratio/distance", ratio, mask)
        if binding is not None and outside is not None:
            put("clip/binding", binding, mask)
            put("clip/outside", outside, mask)
            put("clip/decision", outside, mask & decision)
        advantage = seen.prepared.advantage.value.expand(mask.shape)
        put("logp_positive", seen.logp, mask & (advantage > 0))
    found = {name: float(np.mean(values)) if values else float("nan") for name, values in sums.items()}
    found["update/gradient_norm"] = float(np.mean(norms)) if norms else float("nan")
    return found


def _joined(seen: Forward, name: str, mask: Tensor) -> Tensor | None:
    """Return a flag of the weights over all micro-batches, [Q, G, T]; None where the rule has no bound."""
    parts = [getattr(c.weights, name) for c in seen.coefficients]
    if any(part is None for part in parts):
        return None
    pieces = minibatches(len(mask), len(parts))
    return torch.cat([part.expand(mask[piece].shape) for part, piece in zip(parts, pieces, strict=True)])


def staleness(batch: Collected, update: int) -> Row:
    """Return how many steps behind the tokens were written: the oldest, the newest, and the mean over tokens."""
    lag = update - batch.version[batch.sampled]
    return {
        "staleness/oldest": float(lag.max()),
        "staleness/newest": float(lag.min()),
        "staleness/token_mean": float(lag.mean()),
    }


def counts(batch: Collected, environment: Environment) -> TurnCounts:
    """Return the batch as counts by turn, context and action; invalid turns are in no action's count."""
    graph, K = environment.graph, batch.action.shape[-1]
    found = np.zeros((K, len(graph.contexts), len(graph.actions)), np.int64)
    turn = np.broadcast_to(np.arange(K), batch.action.shape)
    valid = batch.running & (batch.action >= 0)
    np.add.at(found, (turn[valid], batch.context[valid], batch.action[valid]), 1)
    solved = (np.cumsum(batch.correct & batch.running, -1) > 0).sum((0, 1))
    return TurnCounts(found, solved, batch.reward.size)
