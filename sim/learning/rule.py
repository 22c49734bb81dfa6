"""The update rule: one objective of the GRPO family as a function from arrays to coefficients.

The update direction of every member is a vector-Jacobian product of a few per-token scalars of the network,

    sum_t  g_t grad log pi_t  +  h_t grad H_t  +  k_t grad KL_t ,

so a rule returns one coefficient array per scalar it uses, uphill and with nothing in it to differentiate. Advantages,
masks and normalisers are computed once per batch (:meth:`Rule.prepare`); :meth:`Rule.coefficients` is called after every
forward with the current log-probs, detached. Written against the array API standard: numpy here, torch above.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sim.learning.arrays import array_namespace
from sim.learning.credit import Advantage, Credit, GroupCredit
from sim.learning.normalisers import BatchMean, Normaliser
from sim.learning.penalties import Penalty, ScalarKey
from sim.learning.weights import PpoClip, Scope, Weight, Weights
from sim.records.config import config

__all__ = ["Batch", "Coefficients", "Prepared", "Rule"]


@dataclass(frozen=True, eq=False)
class Batch:
    """What a rule sees of a batch of rollouts; ``rollouts.padded()`` gives these views."""

    reward: Any
    """Reward of each rollout, [..., Q, G]; may be NaN where not valid."""
    mask: Any
    """What the loss may touch: sampled tokens (turns, in the simulator), [..., Q, G, T], bool."""
    behaviour: Any
    """log mu of what was sampled, at sampling, [..., Q, G, T]."""
    valid: Any = None
    """Rollouts that count, [..., Q, G], bool; None for all."""
    lengths: Any = None
    """Length each entry stands for, [..., Q, G, T]; None for 1 each."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A batch with everything that does not change from one forward to the next."""

    advantage: Advantage
    """Advantages and degenerate groups."""
    mask: Any
    """The one effective mask: sampled, and of a valid rollout, [..., Q, G, T], bool."""
    sampled: Any
    """The same as 1 and 0 in the dtype of the log-probs."""
    factor: Any
    """The normaliser's factors, broadcastable against the mask."""
    behaviour: Any
    """log mu, [..., Q, G, T]."""

    def rollouts(self, index: Any) -> "Prepared":
        """Return the micro-batch of the groups `index` (an index of axis -3 of the mask)."""

        def cut(x: Any) -> Any:
            return x[..., index, :, :] if x.shape[-3] > 1 or self.mask.shape[-3] == 1 else x

        return replace(
            self,
            advantage=Advantage(self.advantage.value[..., index, :], self.advantage.degenerate[..., index]),
            mask=self.mask[..., index, :, :],
            sampled=self.sampled[..., index, :, :],
            factor=cut(self.factor),
            behaviour=self.behaviour[..., index, :, :],
        )


@dataclass(frozen=True, eq=False)
class Coefficients:
    """What a rule returns for one forward."""

    scalars: Mapping[ScalarKey, Any]
    """Coefficient of each scalar used, [..., Q, G, T], uphill; exactly 0 at masked entries."""
    weights: Weights
    """The weights, with the unclamped ratio and the two clip counts."""


@config
class Rule:
    """Credit, weight, normaliser and penalties, composed."""

    credit: Credit = GroupCredit()
    """From rewards to advantages."""
    weight: Weight = PpoClip()
    """Off-policy weight of each token."""
    normaliser: Normaliser = BatchMean()
    """What the sum is divided by."""
    penalties: tuple[Penalty, ...] = ()
    """Terms on other scalars."""

    @property
    def scope(self) -> Scope:
        """The unit that must be in one micro-batch when coefficients are computed."""
        return self.weight.scope

    def prepare(self, batch: Batch) -> Prepared:
        """Return what is fixed for the batch: advantages, the effective mask, normaliser factors.

        Raises
        ------
        ValueError
            When the shapes do not fit or a usable reward is not finite.
        """
        xp = array_namespace(batch.reward)
        if batch.mask.shape[:-1] != batch.reward.shape or batch.behaviour.shape != batch.mask.shape:
            raise ValueError(
                f"reward {batch.reward.shape}, mask {batch.mask.shape} and behaviour {batch.behaviour.shape} do not fit; "
                "expected [..., Q, G], [..., Q, G, T] and [..., Q, G, T]"
            )
        mask = batch.mask if batch.valid is None else batch.mask & batch.valid[..., None]
        sampled = xp.astype(mask, batch.behaviour.dtype)
        lengths = sampled if batch.lengths is None else sampled * batch.lengths
        advantage = self.credit(batch.reward, batch.valid)
        return Prepared(advantage, mask, sampled, self.normaliser(lengths), batch.behaviour)

    def coefficients(self, prepared: Prepared, logp: Any) -> Coefficients:
        """Return the coefficients at the current log-probs `logp` [..., Q, G, T], which carry no gradient."""
        advantage = prepared.advantage.value[..., None]
        weights = self.weight(logp, prepared.behaviour, advantage, prepared.mask)
        g = prepared.sampled * (weights.value * (advantage * prepared.factor))
        scalars: dict[ScalarKey, Any] = {"logp": g}
        for penalty in self.penalties:
            c = penalty(prepared.mask, prepared.factor)
            scalars[penalty.scalar] = scalars[penalty.scalar] + c if penalty.scalar in scalars else c
        return Coefficients(scalars, weights)
