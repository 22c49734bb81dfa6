"""Credit that tells the tokens of one rollout apart: rewards to go, and comparison at identical states."""

from dataclasses import replace
from typing import Any, ClassVar

from sim.learning.arrays import array_namespace
from sim.learning.batch import Batch, Reads, require
from sim.learning.credit import Advantage, GroupCredit, Per, check_ddof, usable_rewards
from sim.records.config import config

__all__ = ["RewardToGo", "StateGroups", "returns_to_go"]


def returns_to_go(reward: Any, mask: Any, gamma: float = 1.0) -> Any:
    """Return the discounted sum of rewards from each sampled token on, [..., T]; 0 at masked ones.

    Observation tokens carry rewards backwards but add no discount: decay counts the agent's own tokens, so an action
    before a tool call is credited as if the observation took no time.

    Raises
    ------
    ValueError
        When gamma lies outside [0, 1].
    """
    check_gamma(gamma)
    xp = array_namespace(reward)
    steps = reward.shape[-1]
    to_go = [xp.zeros_like(reward[..., 0])] * (steps + 1)
    for t in range(steps - 1, -1, -1):
        sampled = mask[..., t]
        carried = to_go[t + 1]
        to_go[t] = xp.where(sampled, reward[..., t] + gamma * carried, reward[..., t] + carried)
    found = xp.stack(to_go[:-1], axis=-1)
    return xp.where(mask, found, xp.zeros_like(found))


def check_gamma(gamma: float) -> None:
    """Raise where `gamma` is no discount."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma = {gamma} must lie in [0, 1]")


@config
class RewardToGo:
    """A_t = sum of rewards from t on (process rewards and, at the end, the outcome) minus the group's mean return.

    Source: MiniMax Forge, arXiv 2605.26494, without saying which baseline; the mean over the group of the whole return
    is ours, and so is gamma. With no process rewards and gamma 1 it is Dr. GRPO's credit.
    """

    gamma: float = 1.0
    """Discount per sampled token."""
    per: ClassVar[Per] = "token"

    def __post_init__(self) -> None:
        check_gamma(self.gamma)

    def __call__(self, batch: Batch) -> Advantage:
        """Return the advantages, [..., Q, G, T]."""
        xp = array_namespace(batch.reward)
        mask = _usable_mask(batch)
        to_go = returns_to_go(_rewards(batch, mask), mask, self.gamma)
        some = xp.any(mask, axis=-1)
        whole = xp.sum(xp.where(_ordinal(mask) == 1, to_go, xp.zeros_like(to_go)), axis=-1)
        weight = xp.astype(some, whole.dtype)
        mean = xp.sum(whole, axis=-1, keepdims=True) / xp.clip(xp.sum(weight, axis=-1, keepdims=True), min=1.0)
        value = xp.where(mask, to_go - mean[..., None], xp.zeros_like(to_go))
        return Advantage(value, xp.all(value == 0, axis=(-2, -1)))


@config
class StateGroups:
    """A = A of the episode + omega x A of the step, the latter among the turns of a question that began in one state.

    A step's value is its discounted return (gamma per turn); it is compared with the mean of all turns of the group with
    the same ``state_id``, divided by their spread if `std`. A state met once gives 0. The mean is over *steps*, so a
    rollout that comes back to a state counts more than once.

    Source: GiGPO, arXiv 2505.10978; identical states only.
    """

    episode: GroupCredit = GroupCredit()
    """Credit of the whole episode."""
    omega: float = 1.0
    """Weight of the step's advantage."""
    gamma: float = 0.95
    """Discount per turn."""
    std: bool = True
    """Whether step advantages are divided by their spread."""
    ddof: int = 1
    """Degrees of freedom taken off in it."""
    per: ClassVar[Per] = "token"
    reads: ClassVar[tuple[Reads, ...]] = ("state", "turn")

    def __post_init__(self) -> None:
        check_gamma(self.gamma)
        check_ddof(self.ddof)

    def __call__(self, batch: Batch) -> Advantage:
        """Return the advantages, [..., Q, G, T]."""
        xp = array_namespace(batch.reward)
        mask = _usable_mask(batch)
        reward, state = _rewards(batch, mask), require(batch, "state", self)
        step = _by_turn(batch.turn, mask, reward, state, self._steps)
        episode = self.episode(replace(batch, reward=xp.sum(reward, axis=-1)))
        value = xp.where(mask, episode.value + self.omega * step, xp.zeros_like(step))
        return Advantage(value, xp.all(value == 0, axis=(-2, -1)))

    def _steps(self, reward: Any, state: Any, mask: Any) -> Any:
        """Return step advantages where every entry is a turn, [..., Q, G, K]."""
        xp = array_namespace(reward)
        *lead, G, K = reward.shape
        to_go = xp.reshape(returns_to_go(reward, mask, self.gamma), (*lead, G * K))
        state, used = xp.reshape(state, (*lead, G * K)), xp.reshape(mask, (*lead, G * K))
        same = (state[..., :, None] == state[..., None, :]) & used[..., None, :] & used[..., :, None]
        weight = xp.astype(same, to_go.dtype)
        count = xp.clip(xp.sum(weight, axis=-1, keepdims=True), min=1.0)
        mean = xp.sum(weight * to_go[..., None, :], axis=-1, keepdims=True) / count
        centred = weight * (to_go[..., None, :] - mean)
        scale = xp.ones_like(mean)
        if self.std:
            freedom = xp.clip(count - self.ddof, min=1.0)
            scale = xp.sqrt(xp.sum(centred * centred, axis=-1, keepdims=True) / freedom)
        # equal returns are told by comparison: their mean may be off by a rounding
        alike = xp.all(~same | (to_go[..., None, :] == to_go[..., :, None]), axis=-1)
        own = (to_go - mean[..., 0]) / xp.where(alike | (scale[..., 0] == 0), xp.ones_like(to_go), scale[..., 0])
        return xp.reshape(xp.where(alike, xp.zeros_like(own), own), (*lead, G, K))


def _usable_mask(batch: Batch) -> Any:
    if batch.mask is None:
        raise ValueError("a credit per token needs Batch(mask=...): which tokens were sampled")
    return batch.mask if batch.valid is None else batch.mask & batch.valid[..., None]


def _ordinal(mask: Any) -> Any:
    """Return 1, 2, ... at sampled tokens, 0 elsewhere, [..., T]."""
    xp = array_namespace(mask)
    number = xp.cumulative_sum(xp.astype(mask, xp.int64), axis=-1)
    return xp.where(mask, number, xp.zeros_like(number))


def _rewards(batch: Batch, mask: Any) -> Any:
    """Return the reward of each token, the outcome at the last sampled one, [..., Q, G, T]."""
    xp = array_namespace(batch.reward)
    outcome = usable_rewards(batch)[..., None]
    number = _ordinal(mask)
    last = mask & (number == xp.max(number, axis=-1, keepdims=True))
    found = xp.where(last, xp.broadcast_to(outcome, mask.shape), xp.zeros_like(outcome))
    if batch.step_reward is not None:
        found = found + xp.where(mask, batch.step_reward, xp.zeros_like(batch.step_reward))
    return found


def _by_turn(turn: Any, mask: Any, reward: Any, state: Any, of_turns: Any) -> Any:
    """Return ``of_turns(reward, state, mask)`` of the turns, spread over their tokens, [..., T]."""
    if turn is None:
        return of_turns(reward, state, mask)
    xp = array_namespace(reward)
    turns = int(xp.max(xp.where(mask, turn, xp.zeros_like(turn)))) + 1
    here = [mask & (turn == k) for k in range(turns)]
    sums = xp.stack([xp.sum(xp.where(h, reward, xp.zeros_like(reward)), axis=-1) for h in here], axis=-1)
    least = xp.full_like(state, xp.iinfo(state.dtype).min)
    states = xp.stack([xp.max(xp.where(h, state, least), axis=-1) for h in here], axis=-1)
    found = of_turns(sums, states, xp.stack([xp.any(h, axis=-1) for h in here], axis=-1))
    value = xp.zeros_like(reward)
    for k, h in enumerate(here):
        value = xp.where(h, xp.broadcast_to(found[..., k, None], h.shape), value)
    return value
