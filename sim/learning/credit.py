"""Credit: from the rewards of a group of rollouts of one task to an advantage for each.

Groups are keyed by task (and role), never by trajectory: the last axis of ``reward`` *is* the group. Functions accept
numpy or torch arrays with any leading axes.
"""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.records.config import config

__all__ = ["Advantage", "Credit", "GroupCredit", "returns_to_go"]


@dataclass(frozen=True, eq=False)
class Advantage:
    """Advantages of a batch, and which groups gave no signal."""

    value: Any
    """A, [..., Q, G]; 0 in degenerate groups and where a rollout is excluded."""
    degenerate: Any
    """Whether a group has no two usable rewards that differ, [..., Q], bool."""


@runtime_checkable
class Credit(Protocol):
    """Anything that turns rewards into advantages."""

    def __call__(self, reward: Any, valid: Any = None) -> Advantage:
        """Return the advantages of rewards [..., Q, G] over the rollouts `valid` [..., Q, G] (bool; None for all)."""
        ...


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

    def __post_init__(self) -> None:
        if self.ddof not in (0, 1):
            raise ValueError(f"ddof = {self.ddof} must be 0 or 1")
        if self.epsilon < 0:
            raise ValueError(f"epsilon = {self.epsilon} must be at least 0")

    def __call__(self, reward: Any, valid: Any = None) -> Advantage:
        """Return the advantages; `valid` marks the rollouts that count (None for all).

        Raises
        ------
        ValueError
            When a usable reward is not finite.
        """
        xp = array_namespace(reward)
        most, least = _extremes(reward, valid)
        if not bool(xp.all(xp.isfinite(most) & xp.isfinite(least))):
            raise ValueError("a usable reward is NaN or infinite; mark the rollout invalid or repair the reward")
        if valid is None:
            count: Any = reward.shape[-1]
            centred = reward - xp.sum(reward, axis=-1, keepdims=True) / count
            freedom: Any = max(count - self.ddof, 1)
        else:
            zero = xp.zeros_like(reward)
            count = xp.clip(xp.sum(xp.astype(valid, reward.dtype), axis=-1, keepdims=True), min=1.0)
            mean = xp.sum(xp.where(valid, reward, zero), axis=-1, keepdims=True) / count
            centred = xp.where(valid, reward - mean, zero)
            freedom = xp.clip(count - self.ddof, min=1.0)
        # Equal rewards are told by comparison: their mean may be off by a rounding, and so would be their spread.
        degenerate = most == least
        scale = xp.ones_like(most)
        if self.std:
            scale = xp.sqrt(xp.sum(centred * centred / freedom, axis=-1)) + self.epsilon
        scale = xp.where(degenerate, xp.full_like(scale, xp.inf), scale)
        return Advantage(centred / scale[..., None], degenerate)


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


def returns_to_go(reward: Any, mask: Any, gamma: float = 1.0) -> Any:
    """Return the discounted sum of rewards from each sampled token on, [..., T]; 0 at masked ones.

    Observation tokens carry rewards backwards but add no discount: decay counts the agent's own tokens, so an action
    before a tool call is credited as if the observation took no time.

    Raises
    ------
    ValueError
        When gamma lies outside [0, 1].
    """
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma = {gamma} must lie in [0, 1]")
    xp = array_namespace(reward)
    steps = reward.shape[-1]
    to_go = [xp.zeros_like(reward[..., 0])] * (steps + 1)
    for t in range(steps - 1, -1, -1):
        sampled = mask[..., t]
        carried = to_go[t + 1]
        to_go[t] = xp.where(sampled, reward[..., t] + gamma * carried, reward[..., t] + carried)
    found = xp.stack(to_go[:-1], axis=-1)
    return xp.where(mask, found, xp.zeros_like(found))
