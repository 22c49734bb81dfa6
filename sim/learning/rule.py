"""The update rule: one objective of the GRPO family as a function from arrays to coefficients.

The update direction of every member is a vector-Jacobian product of a few per-token scalars of the network,

    sum_t  g_t grad log pi_t  +  h_t grad H_t  +  k_t grad KL_t ,

so a rule returns one coefficient array per scalar it uses, uphill and with nothing in it to differentiate. Advantages,
masks and normalisers are computed once per batch (:meth:`Rule.prepare`); :meth:`Rule.coefficients` is called after every
forward with the current log-probs, detached. Written against the array API standard: numpy here, torch above.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim.learning.arrays import array_namespace, detached
from sim.learning.batch import Batch, Reads
from sim.learning.credit import Advantage, Credit, GroupCredit
from sim.learning.normalisers import BatchMean, Normaliser
from sim.learning.penalties import Penalty, ScalarKey
from sim.learning.shaping import Shaping
from sim.learning.view import Scope, View, broadest
from sim.learning.weights import Weight, Weights, ppo_clip
from sim.records.config import config

__all__ = ["Batch", "Coefficients", "Prepared", "Rule"]

_FITS: dict[str, tuple[Scope, ...]] = {
    "groups": ("token", "turn", "sequence", "group"),
    "rollouts": ("token", "turn", "sequence"),
    "tokens": ("token",),
}
"""Scopes that a cut along an axis leaves whole."""

_AXIS = {"groups": -3, "rollouts": -2, "tokens": -1}


def _cut(x: Any, along: str, index: slice) -> Any:
    """Return the part of `x`, broadcastable to [..., Q, G, T]; an axis of length 1 stays."""
    axis = _AXIS[along]
    if x is None or x.ndim < -axis or x.shape[axis] == 1:
        return x
    return x[(..., index, *(slice(None),) * (-axis - 1))]


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
    signal: Any
    """Advantage x factor at sampled tokens, 0 elsewhere, [..., Q, G, T]: what a weight of 1 would give."""
    behaviour: Any
    """log mu, [..., Q, G, T]."""
    proximal: Any
    """log pi_old, [..., Q, G, T]; `behaviour` itself where there is one engine."""
    reference: Any = None
    """log pi_ref, [..., Q, G, T], or None."""
    turn: Any = None
    """Turn of each token, or None."""
    scope: Scope = "token"
    """What the rule must have in view at once."""
    fixed: dict[Hashable, Any] = field(default_factory=dict)
    """What parts of the rule computed at the first forward and need not compute again."""

    def cut(self, along: str, index: slice) -> "Prepared":
        """Return a micro-batch: the ``"groups"``, ``"rollouts"`` (within each group) or ``"tokens"`` in `index`.

        Advantages and normalisers are those of the whole batch, so the gradients of the parts add up to its gradient.

        Raises
        ------
        ValueError
            When the cut would take from the rule what it must have in view at once.
        """
        if along not in _FITS:
            raise ValueError(f"along = {along!r} must be one of {', '.join(map(repr, _FITS))}")
        if isinstance(index, int | tuple):
            raise TypeError(f"index = {index!r} must be a slice or an array of places, as in slice(0, 2)")
        if self.scope not in _FITS[along]:
            fits = " or ".join(name for name, scopes in _FITS.items() if self.scope in scopes)
            raise ValueError(
                f"this rule needs a whole {self.scope} in view and a cut along {along} would divide it; "
                + (f"cut along {fits}, or " if fits else "")
                + "compute the coefficients of the whole batch first (a scoring pass without gradients) and cut those"
            )
        value, degenerate = self.advantage.value, self.advantage.degenerate
        parts = {
            name: _cut(getattr(self, name), along, index)
            for name in ("mask", "sampled", "factor", "signal", "behaviour", "reference", "turn")
        }
        if 0 in parts["mask"].shape and 0 not in self.mask.shape:
            raise ValueError(f"index = {index} takes none of the {self.mask.shape[_AXIS[along]]} {along}")
        same = self.proximal is self.behaviour
        return replace(
            self,
            advantage=Advantage(_cut(value, along, index), degenerate[..., index] if along == "groups" else degenerate),
            proximal=parts["behaviour"] if same else _cut(self.proximal, along, index),
            fixed={},
            **parts,
        )

    def view(self, logp: Any, values: Mapping[ScalarKey, Any]) -> View:
        """Return what weights and penalties see at the current log-probs."""
        return View(
            logp,
            self.proximal,
            self.behaviour,
            self.advantage.value,
            self.mask,
            self.sampled,
            self.factor,
            self.reference,
            self.turn,
            values,
            self.fixed,
        )


@dataclass(frozen=True, eq=False)
class Coefficients:
    """What a rule returns for one forward."""

    scalars: Mapping[ScalarKey, Any]
    """Coefficient of each scalar used, [..., Q, G, T], uphill; exactly 0 at masked entries."""
    weights: Weights
    """The weights, with the unclamped ratio and the two clip counts."""

    def cut(self, along: str, index: slice) -> Mapping[ScalarKey, Any]:
        """Return the coefficients of a micro-batch, after a scoring pass over the whole batch."""
        return {scalar: _cut(value, along, index) for scalar, value in self.scalars.items()}


@config
class Rule:
    """Credit, weight, normaliser, penalties and shaping, composed."""

    credit: Credit = GroupCredit()
    """From rewards to advantages."""
    weight: Weight = ppo_clip()
    """Off-policy weight of each token."""
    normaliser: Normaliser = BatchMean()
    """What the sum is divided by."""
    penalties: tuple[Penalty, ...] = ()
    """Terms in the loss."""
    shaping: tuple[Shaping, ...] = ()
    """Terms in the reward."""

    @property
    def scope(self) -> Scope:
        """The unit that must be in view at once when coefficients are computed."""
        return broadest(self.weight.scope, *(p.scope for p in self.penalties))

    @property
    def reads(self) -> frozenset[Reads]:
        """What the rule reads beside rewards, masks and the log-probs of sampler and learner."""
        parts = (self.credit, self.weight, *self.penalties, *self.shaping)
        return frozenset(name for part in parts for name in getattr(part, "reads", ()))

    def prepare(self, batch: Batch) -> Prepared:
        """Return what is fixed for the batch: advantages, the effective mask, normaliser factors.

        Raises
        ------
        ValueError
            When a usable reward is not finite, or the batch lacks what the rule reads.
        """
        xp, batch = array_namespace(batch.reward), batch.detached()
        self._check(batch)
        mask = batch.mask if batch.valid is None else batch.mask & batch.valid[..., None]
        sampled = xp.astype(mask, batch.behaviour.dtype)
        lengths = sampled if batch.lengths is None else sampled * batch.lengths
        advantage, factor = self.credit(self.shaped(batch)), self.normaliser(lengths)
        return Prepared(
            advantage,
            mask,
            sampled,
            factor,
            sampled * (advantage.value * factor),
            batch.behaviour,
            batch.behaviour if batch.proximal is None else batch.proximal,
            batch.reference,
            batch.turn,
            self.scope,
        )

    def _check(self, batch: Batch) -> None:
        if batch.mask is None or batch.behaviour is None:
            raise ValueError(
                "a rule needs Batch(reward, mask, behaviour): which tokens were sampled, with what log-probs"
            )
        missing = sorted(name for name in self.reads - {"kl"} if getattr(batch, name) is None)
        if missing:
            supply = ", ".join(f"{name}=..." for name in missing)
            raise ValueError(f"this rule reads {' and '.join(map(repr, missing))}; supply Batch({supply})")

    def shaped(self, batch: Batch) -> Batch:
        """Return the batch with the shaping terms in its rewards."""
        xp = array_namespace(batch.reward)
        reward, steps = batch.reward, batch.step_reward
        for term in self.shaping:
            value = term(batch)
            if term.per == "rollout":
                reward = reward + value
            else:
                value = xp.where(batch.mask, value, xp.zeros_like(value))
                steps = value if steps is None else steps + value
        if steps is not None and self.credit.per == "rollout":
            reward = reward + xp.sum(xp.where(batch.mask, steps, xp.zeros_like(steps)), axis=-1)
        return batch if reward is batch.reward and steps is None else replace(batch, reward=reward, step_reward=steps)

    def coefficients(
        self, prepared: Prepared, logp: Any, values: Mapping[ScalarKey, Any] | None = None
    ) -> Coefficients:
        """Return the coefficients at the current log-probs `logp` [..., Q, G, T], which carry no gradient.

        Parameters
        ----------
        prepared
            The batch, or a micro-batch of it.
        logp
            log pi of what was sampled; a gradient it carries is not followed.
        values
            Current values of other scalars, [..., Q, G, T], where a penalty reads them.
        """
        if tuple(logp.shape) != tuple(prepared.mask.shape):
            raise ValueError(
                f"logp {tuple(logp.shape)} is not of this batch {tuple(prepared.mask.shape)}; cut both alike"
            )
        view = prepared.view(detached(logp), {scalar: detached(x) for scalar, x in (values or {}).items()})
        weights = self.weight(view)
        scalars: dict[ScalarKey, Any] = {"logp": weights.value * prepared.signal}
        for penalty in self.penalties:
            c = prepared.sampled * penalty(view)
            scalars[penalty.scalar] = scalars[penalty.scalar] + c if penalty.scalar in scalars else c
        return Coefficients(scalars, weights)
