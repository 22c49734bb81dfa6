"""Reward shaping: terms added to the reward before credit is assigned, of a whole rollout or token by token.

A rule sums them: rollout terms join the reward; token terms join it as their sum over the rollout, or stay at their tokens
where the credit tells tokens apart.
"""

from typing import Any, ClassVar, Protocol, runtime_checkable

from sim.learning.arrays import array_namespace
from sim.learning.batch import Batch, Reads, require, usable
from sim.learning.credit import Per
from sim.learning.penalties import Estimator, check_strength, kl_estimate
from sim.learning.view import log_ratio
from sim.records.config import config

__all__ = ["Efficiency", "KlInReward", "LengthReward", "Overlong", "Process", "Shaping"]


@runtime_checkable
class Shaping(Protocol):
    """Anything that adds to the reward."""

    per: ClassVar[Per]
    """Whether it gives one term for a rollout, [..., Q, G], or one for each token, [..., Q, G, T]."""

    def __call__(self, batch: Batch) -> Any:
        """Return the terms; those of excluded rollouts and masked tokens are not looked at."""
        ...


def _lengths(batch: Batch) -> Any:
    """Return the length of each rollout, [..., Q, G], tokens (turns, in the simulator, unless it counts tokens)."""
    xp = array_namespace(batch.reward)
    if batch.mask is None:
        raise ValueError("a length needs Batch(mask=...): which tokens were sampled")
    each = xp.astype(batch.mask, batch.reward.dtype)
    return xp.sum(each if batch.lengths is None else each * batch.lengths, axis=-1)


def _range(x: Any, batch: Batch) -> tuple[Any, Any]:
    """Return the least and largest `x` among the usable rollouts of a group, [..., Q, 1] each."""
    xp = array_namespace(x)
    used = usable(batch) > 0
    least = xp.min(xp.where(used, x, xp.full_like(x, xp.inf)), axis=-1, keepdims=True)
    most = xp.max(xp.where(used, x, xp.full_like(x, -xp.inf)), axis=-1, keepdims=True)
    return least, most


@config
class LengthReward:
    """weight x l for a right rollout and weight x min(0, l) for a wrong one, l = 1/2 - (len - min) / (max - min).

    Minimum and maximum are over the group; 0 where all have one length. Source: Kimi K1.5, arXiv 2501.12599 (which switches
    it on after a warm-up); the weight is ours.
    """

    weight: float = 0.5
    """Weight, in units of the reward."""
    right: float = 0.5
    """Rewards above this count as right."""
    per: ClassVar[Per] = "rollout"

    def __call__(self, batch: Batch) -> Any:
        """Return the terms, [..., Q, G]."""
        xp = array_namespace(batch.reward)
        length = _lengths(batch)
        least, most = _range(length, batch)
        width = xp.where(most > least, most - least, xp.ones_like(most))
        term = xp.where(most > least, 0.5 - (length - least) / width, xp.zeros_like(length))
        return self.weight * xp.where(batch.reward > self.right, term, xp.minimum(term, xp.zeros_like(term)))


@config
class Overlong:
    """penalty x clip((limit - buffer - len) / buffer, -1, 0): nothing up to limit - buffer, -penalty from the limit on.

    The limit is in the run's unit of length: in the simulator's turns the default never bites. Source: DAPO, arXiv
    2503.14476, equation 13.
    """

    limit: float = 20480
    """Longest rollout (L), in the units of the batch's lengths."""
    buffer: float = 4096
    """Length before it over which the penalty grows (B)."""
    penalty: float = 1.0
    """Penalty at the limit, in units of the reward."""
    per: ClassVar[Per] = "rollout"

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= self.limit:
            raise ValueError(f"buffer = {self.buffer} must lie in (0, limit = {self.limit}]")

    def __call__(self, batch: Batch) -> Any:
        """Return the terms, [..., Q, G]."""
        xp = array_namespace(batch.reward)
        over = (self.limit - self.buffer - _lengths(batch)) / self.buffer
        return self.penalty * xp.clip(over, min=-1.0, max=0.0)


@config
class Process:
    """weight x judgements of single steps, ``Batch.process_reward``: a bad tool call, say, or a mixed language.

    Source: MiniMax Forge, arXiv 2605.26494 (alpha r_process); the weight is not printed, so it is ours.
    """

    weight: float = 0.1
    """Weight, in units of the reward."""
    per: ClassVar[Per] = "token"
    reads: ClassVar[tuple[Reads, ...]] = ("process_reward",)

    def __call__(self, batch: Batch) -> Any:
        """Return the terms, [..., Q, G, T]."""
        return self.weight * require(batch, "process_reward", self)


@config
class Efficiency:
    """weight x clip(1 - duration / median duration of the group, -1, 1): quick rollouts gain what slow ones lose.

    Source: MiniMax Forge, arXiv 2605.26494, beta h(T_done / T_base) with h decreasing; h, base and weight are ours.
    """

    weight: float = 0.1
    """Weight, in units of the reward."""
    per: ClassVar[Per] = "rollout"
    reads: ClassVar[tuple[Reads, ...]] = ("duration_s",)

    def __call__(self, batch: Batch) -> Any:
        """Return the terms, [..., Q, G]."""
        xp = array_namespace(batch.reward)
        duration, used = require(batch, "duration_s", self), usable(batch) > 0
        ordered = xp.sort(xp.where(used, duration, xp.full_like(duration, xp.inf)), axis=-1)
        count = xp.sum(xp.astype(used, xp.int64), axis=-1, keepdims=True)
        place = xp.arange(duration.shape[-1], device=ordered.device)
        middle = (place >= (count - 1) // 2) & (place <= count // 2)
        weight = xp.astype(middle, ordered.dtype)
        share = weight / xp.clip(xp.sum(weight, axis=-1, keepdims=True), min=1.0)
        median = xp.sum(xp.where(middle, ordered, xp.zeros_like(ordered)) * share, axis=-1, keepdims=True)
        base = xp.where((median > 0) & xp.isfinite(median), median, xp.ones_like(median))
        return self.weight * xp.clip(1 - duration / base, min=-1.0, max=1.0)


@config
class KlInReward:
    """- strength x an estimate of KL(mu || reference) at each sampled token, with the log-probs it was sampled with.

    Summed over the rollout for a credit per rollout. With :class:`~sim.learning.step_credit.RewardToGo` every token bears
    the KL it leads to; on policy k1 then gives the gradient of the trajectory KL times 1 - 1/G, as every group mean does.
    """

    strength: float
    """beta, in units of the reward."""
    estimator: Estimator = "k1"
    """Which estimate."""
    per: ClassVar[Per] = "token"
    reads: ClassVar[tuple[Reads, ...]] = ("reference",)

    def __post_init__(self) -> None:
        check_strength(self.strength)

    def __call__(self, batch: Batch) -> Any:
        """Return the terms, [..., Q, G, T]; 0 at masked tokens."""
        d = log_ratio(batch.behaviour, require(batch, "reference", self), batch.mask)
        return -self.strength * kl_estimate(d, self.estimator)[0]()
