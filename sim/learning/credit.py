"""Credit: from the rewards of a group of rollouts of one question to an advantage for each rollout.

Groups are keyed by task (and role), never by trajectory: the last axis of ``reward`` *is* the group. Credits that tell the
tokens of one rollout apart are in :mod:`sim.learning.step_credit`.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.learning.batch import Batch, Reads, require, usable
from sim.records.config import config

__all__ = [
    "Advantage",
    "Credit",
    "GreedyBaseline",
    "GroupCredit",
    "LeaveOneOut",
    "LogPartition",
    "NoBaseline",
    "RunningBaseline",
]

Per = Literal["rollout", "token"]


@dataclass(frozen=True, eq=False)
class Advantage:
    """Advantages of a batch, and which groups gave no signal."""

    value: Any
    """A, [..., Q, G, 1], or [..., Q, G, T] for a credit per token; 0 in degenerate groups and excluded rollouts."""
    degenerate: Any
    """Whether every advantage of a group is 0, [..., Q], bool."""

    def degenerate_shares(self, valid: Any = None) -> tuple[Any, Any]:
        """Return the share of questions without signal, and the share of rollouts spent on them, [...] each.

        They differ where groups differ in size: a budget that gives more rollouts to mixed questions moves the second
        and hardly the first.
        """
        xp = array_namespace(self.value)
        silent = xp.astype(self.degenerate, self.value.dtype)
        per_group = xp.sum(usable(Batch(self.value[..., 0], valid=valid)), axis=-1)
        total = xp.sum(per_group, axis=-1)
        total = xp.where(total > 0, total, xp.ones_like(total))
        return xp.mean(silent, axis=-1), xp.sum(silent * per_group, axis=-1) / total


@runtime_checkable
class Credit(Protocol):
    """Anything that turns the rewards of a batch into advantages."""

    per: ClassVar[Per]
    """Whether all tokens of a rollout share one advantage."""

    def __call__(self, batch: Batch) -> Advantage:
        """Return the advantages of the usable rollouts."""
        ...


def advantage(value: Any, batch: Batch) -> Advantage:
    """Return per-rollout values [..., Q, G] as advantages: 0 where a rollout is excluded."""
    xp = array_namespace(value)
    if batch.valid is not None:
        value = xp.where(batch.valid, value, xp.zeros_like(value))
    return Advantage(value[..., None], xp.all(value == 0, axis=-1))


def usable_rewards(batch: Batch) -> Any:
    """Return the rewards with 0 at excluded rollouts, [..., Q, G].

    Raises
    ------
    ValueError
        When a usable reward is not finite.
    """
    xp = array_namespace(batch.reward)
    reward = batch.reward
    if batch.valid is not None:
        reward = xp.where(batch.valid, reward, xp.zeros_like(reward))
    if not bool(xp.all(xp.isfinite(reward))):
        raise ValueError("a usable reward is NaN or infinite; mark the rollout invalid or repair the reward")
    return reward


def group_count(batch: Batch) -> Any:
    """Return the usable rollouts of each group, at least 1, [..., Q, 1] (a plain number where all are)."""
    if batch.valid is None:
        return batch.reward.shape[-1]
    xp = array_namespace(batch.reward)
    return xp.clip(xp.sum(usable(batch), axis=-1, keepdims=True), min=1.0)


def group_mean(batch: Batch) -> Any:
    """Return the mean usable reward of each group, [..., Q, 1]."""
    return array_namespace(batch.reward).sum(usable_rewards(batch), axis=-1, keepdims=True) / group_count(batch)


def spread(centred: Any, count: Any, ddof: int) -> Any:
    """Return the two-pass standard deviation along the last axis, kept as an axis of 1; `centred` is 0 where unused."""
    xp = array_namespace(centred)
    freedom = max(count - ddof, 1) if isinstance(count, int) else xp.clip(count - ddof, min=1.0)
    return xp.sqrt(xp.sum(centred * centred, axis=-1, keepdims=True) / freedom)


def check_ddof(ddof: int) -> None:
    """Raise where `ddof` is neither 0 nor 1."""
    if ddof not in (0, 1):
        raise ValueError(f"ddof = {ddof} must be 0 or 1")


@config
class GroupCredit:
    """Reward minus the mean of the group, which includes the rollout itself; divided by the group's spread if `std`.

    A_i = r_i - mean(r)                 (``std=False``: Dr. GRPO, arXiv 2503.20783)
    A_i = (r_i - mean(r)) / (std(r) + epsilon)   (``std=True``: GRPO, arXiv 2402.03300)

    Including itself in the mean scales the expected advantage by 1 - 1/G. The spread is two-pass. A group whose usable
    rewards are all equal, or that has fewer than two, is degenerate: advantage exactly 0, never 0/0.
    """

    std: bool = True
    """Whether to divide by the group's standard deviation."""
    ddof: int = 1
    """Degrees of freedom taken off in the standard deviation: 1 as in torch.std, 0 for the population."""
    epsilon: float = 0.0
    """Added to the standard deviation."""
    per: ClassVar[Per] = "rollout"

    def __post_init__(self) -> None:
        check_ddof(self.ddof)
        if self.epsilon < 0:
            raise ValueError(f"epsilon = {self.epsilon} must be at least 0")

    def __call__(self, batch: Batch) -> Advantage:
        """Return the centred rewards, divided by their spread."""
        xp = array_namespace(batch.reward)
        reward, count = usable_rewards(batch), group_count(batch)
        centred = reward - xp.sum(reward, axis=-1, keepdims=True) / count
        if batch.valid is not None:
            centred = xp.where(batch.valid, centred, xp.zeros_like(centred))
        # Equal rewards are told by comparison: their mean may be off by a rounding, and so would be their spread.
        most, least = _extremes(batch.reward, batch.valid)
        degenerate = most == least
        scale = xp.ones_like(most)
        if self.std:
            scale = spread(centred, count, self.ddof)[..., 0] + self.epsilon
        scale = xp.where(degenerate, xp.full_like(scale, xp.inf), scale)
        return Advantage((centred / scale[..., None])[..., None], degenerate)


def _extremes(reward: Any, valid: Any) -> tuple[Any, Any]:
    """Return the largest and smallest usable reward of each group, [..., Q]; 0 and 0 where none is usable."""
    xp = array_namespace(reward)
    if valid is None:
        return xp.max(reward, axis=-1), xp.min(reward, axis=-1)
    infinite = xp.full_like(reward, xp.inf)
    most = xp.max(xp.where(valid, reward, -infinite), axis=-1)
    least = xp.min(xp.where(valid, reward, infinite), axis=-1)
    some, zero = xp.any(valid, axis=-1), xp.zeros_like(most)
    return xp.where(some, most, zero), xp.where(some, least, zero)


@config
class LeaveOneOut:
    """Reward minus the mean of the *other* rollouts of the group; divided by their spread if `std`.

    A_i = r_i - mean(r_j, j != i) = G / (G - 1) x (r_i - mean(r))     (RLOO, arXiv 2402.14740)

    A rollout without another has advantage 0. Others that are all equal have no spread: their advantage is not divided.
    """

    std: bool = False
    """Whether to divide by the standard deviation of the others."""
    ddof: int = 1
    """Degrees of freedom taken off in it."""
    per: ClassVar[Per] = "rollout"

    def __post_init__(self) -> None:
        check_ddof(self.ddof)

    def __call__(self, batch: Batch) -> Advantage:
        """Return the advantages, pair by pair: one pass over sums would leave a spread where there is none."""
        xp = array_namespace(batch.reward)
        reward, weight = usable_rewards(batch), usable(batch)
        G = reward.shape[-1]
        other = weight[..., None, :] * (1 - xp.eye(G, dtype=reward.dtype, device=reward.device))  # [..., Q, i, j]
        count = xp.clip(xp.sum(other, axis=-1), min=1.0)
        gap = other * (reward[..., :, None] - reward[..., None, :])
        value = xp.sum(gap, axis=-1) / count
        if self.std:
            centred = other * (reward[..., None, :] - (reward - value)[..., None])
            scale = spread(centred, count[..., None], self.ddof)[..., 0]
            most, least = _extremes(xp.broadcast_to(reward[..., None, :], other.shape), other > 0)
            value = value / xp.where((most == least) | (scale == 0), xp.ones_like(scale), scale)
        return advantage(value, batch)


@config
class NoBaseline:
    """A = r: REINFORCE without a baseline, and what is left of GRPO when every rollout is its own group."""

    per: ClassVar[Per] = "rollout"

    def __call__(self, batch: Batch) -> Advantage:
        """Return the rewards."""
        return advantage(usable_rewards(batch), batch)


@config
class RunningBaseline:
    """A = r - b with b a running mean of the batches' mean rewards, one for all questions (Williams 1992)."""

    decay: float = 0.9
    """Share of b that a batch leaves."""
    initial: float = 0.0
    """b before the first batch."""
    per: ClassVar[Per] = "rollout"

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise ValueError(f"decay = {self.decay} must lie in [0, 1)")

    def __call__(self, batch: Batch) -> Advantage:
        """Return rewards minus the running mean as it was before this batch."""
        before = self.initial if batch.running_reward is None else batch.running_reward[..., None, None]
        return advantage(usable_rewards(batch) - before, batch)

    def after(self, batch: Batch) -> Any:
        """Return the running mean after the batch, [...]."""
        xp = array_namespace(batch.reward)
        weight = xp.clip(xp.sum(usable(batch), axis=(-2, -1)), min=1.0)
        mean = xp.sum(usable_rewards(batch), axis=(-2, -1)) / weight
        before = self.initial if batch.running_reward is None else batch.running_reward
        return self.decay * before + (1 - self.decay) * mean


@config
class GreedyBaseline:
    """A = r - r(greedy rollout of the same question): ReMax (arXiv 2310.10505). Not 0 for a group of one."""

    per: ClassVar[Per] = "rollout"
    reads: ClassVar[tuple[Reads, ...]] = ("greedy_reward",)

    def __call__(self, batch: Batch) -> Advantage:
        """Return rewards minus the greedy one."""
        return advantage(usable_rewards(batch) - require(batch, "greedy_reward", self)[..., None], batch)


@config
class LogPartition:
    """A = r - tau log mean exp(r / tau): with a squared log-ratio penalty the optimum is the exact tilt.

    In large groups, that is, and where the actions fix the reward.

    Source: Kimi K1.5, arXiv 2501.12599, where the plain mean stands in for it in practice.
    """

    tau: float
    """Temperature, in units of the reward."""
    per: ClassVar[Per] = "rollout"

    def __post_init__(self) -> None:
        if self.tau <= 0:
            raise ValueError(f"tau = {self.tau} must be positive")

    def __call__(self, batch: Batch) -> Advantage:
        """Return rewards minus the log-partition of the group, computed from its largest reward."""
        xp = array_namespace(batch.reward)
        reward = usable_rewards(batch)
        most, least = (x[..., None] for x in _extremes(batch.reward, batch.valid))
        weight = usable(batch) * xp.exp(xp.where(usable(batch) > 0, reward - most, xp.zeros_like(reward)) / self.tau)
        total = xp.sum(weight, axis=-1, keepdims=True)
        baseline = most + self.tau * xp.log(xp.where(total > 0, total, xp.ones_like(total)) / group_count(batch))
        return advantage(xp.where(most == least, xp.zeros_like(reward), reward - baseline), batch)
