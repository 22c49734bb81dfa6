"""The learner: from a collected batch to updates of a policy, by the one update rule.

    coefficients = rule(rewards, masks, log-probs);   loss = - sum of coefficient x scalar;   autograd does the rest

Minibatches are updates of their own, along questions, each with its own normaliser. Micro-batches cut one update into
pieces that fit; their gradients add up to the same. Episodes are bucketed by their number of turns, so that a short one is
not scored at the length of a long one, and those whose coefficients are 0 for certain are not scored at all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minimodel.agent.collect import Collected
from minimodel.agent.protocols import Policy
from minimodel.tasks.layout import Layout
from sim.learning.batch import Batch
from sim.learning.penalties import ScalarKey
from sim.learning.rule import Coefficients, Prepared, Rule

__all__ = ["Forward", "Minibatch", "Scored", "backward", "minibatches", "rule_batch", "score"]


@dataclass(frozen=True, eq=False)
class Scored:
    """Scalars of a batch at one policy, bucket by bucket."""

    buckets: tuple[tuple[Tensor, dict[ScalarKey, Tensor]], ...]
    """(episodes of the flat batch [n], {scalar: [n, length]}), with gradients where asked for."""

    def whole(self, scalar: ScalarKey, fill: Tensor) -> Tensor:
        """Return a scalar of the whole batch without gradient, [Q, G, T]; `fill` where nothing was scored."""
        full = fill.detach().clone()
        flat = full.view(-1, full.shape[-1])
        for rows, scalars in self.buckets:
            value = scalars[scalar].detach()
            flat[rows, : value.shape[1]] = value
        return full

    def dot(self, coefficients: Mapping[ScalarKey, Tensor]) -> Tensor:
        """Return the sum of coefficient x scalar over the batch, each coefficient [Q, G, T]."""
        total = torch.zeros(())
        for scalar, coefficient in coefficients.items():
            flat = coefficient.reshape(-1, coefficient.shape[-1])
            for rows, scalars in self.buckets:
                value = scalars[scalar]
                total = total + (flat[rows, : value.shape[1]] * value).sum()
        return total


def score(
    policy: Policy,
    layout: Layout,
    ids: Tensor,
    taken: Tensor,
    wanted: frozenset[ScalarKey],
    reference: Policy | None = None,
    needed: Tensor | None = None,
) -> Scored:
    """Return scalars of ids [Q, G, T] under `policy`, in buckets by turns `taken` [Q, G]; of the `needed` [Q, G] alone."""
    flat, turns = ids.reshape(-1, ids.shape[-1]), taken.reshape(-1)
    chosen = torch.ones_like(turns, dtype=torch.bool) if needed is None else needed.reshape(-1)
    buckets = []
    for n in torch.unique(turns[chosen]).tolist():
        rows = ((turns == n) & chosen).nonzero()[:, 0]
        buckets.append((rows, dict(policy.scalars(flat[rows, : layout.length(n)], wanted, reference))))
    return Scored(tuple(buckets))


def rule_batch(
    batch: Collected,
    reward: np.ndarray,
    rule: Rule,
    layout: Layout,
    *,
    arrived: np.ndarray | None = None,
    over: str = "all",
    **more: Any,
) -> Batch:
    """Return what the rule is given, in torch, [Q, G, T].

    Parameters
    ----------
    reward
        Reward that is trained on, [Q, G].
    arrived
        Rollouts that are there, [Q, G]; None for all.
    over
        Whether the baseline is over ``"all"`` rollouts or those that ``"arrived"``.
    more
        Other fields of the batch: proximal, reference, greedy_reward, running_reward.
    """
    mask, valid = batch.sampled, None
    if arrived is not None:
        mask = mask & arrived[..., None]
        valid = None if over == "all" else torch.from_numpy(arrived)
    reads, (Q, G, T) = rule.reads, mask.shape
    if "turn" in reads:
        more["turn"] = torch.from_numpy(np.broadcast_to(layout.turn_of, (Q, G, T)).copy())
    if "state" in reads:
        more["state"] = torch.from_numpy(np.take_along_axis(batch.node, np.broadcast_to(layout.turn_of, (Q, G, T)), -1))
    if "duration_s" in reads:
        more["duration_s"] = torch.from_numpy(batch.latency_s.sum(-1).astype(np.float32))
    return Batch(
        reward=torch.from_numpy(np.asarray(reward, np.float32)),
        mask=torch.from_numpy(mask),
        behaviour=torch.from_numpy(batch.logp),
        valid=valid,
        **more,
    )


def minibatches(questions: int, count: int) -> Iterator[slice]:
    """Yield the questions of each of `count` updates, as equal as they come."""
    edges = np.linspace(0, questions, count + 1).round().astype(int)
    for first, last in pairwise(edges):
        yield slice(int(first), int(last))


@dataclass(frozen=True, eq=False)
class Forward:
    """What one update saw: for signals."""

    prepared: Prepared
    """The minibatch."""
    logp: Tensor
    """log pi of what was sampled when the update began, [Q, G, T]; as sampled where it was not scored."""
    coefficients: tuple[Coefficients, ...]
    """The rule's, micro-batch by micro-batch."""
    scored: Tensor
    """Episodes that were scored, [Q, G], bool."""
    signal: bool
    """Whether any coefficient is not 0."""


@dataclass(frozen=True, eq=False)
class Minibatch:
    """The questions of one update."""

    ids: Tensor
    """Tokens, [Q, G, T]."""
    taken: Tensor
    """Turns, [Q, G]."""
    prepared: Prepared
    """What the rule made of rewards and masks."""

    @classmethod
    def of(cls, rule: Rule, batch: Collected, given: Batch, part: slice) -> "Minibatch":
        """Return the questions in `part` as an update of its own, with its own normaliser."""
        fields = {name: x if x is None or x.ndim == 0 else x[part] for name, x in vars(given).items()}
        ids, taken = torch.from_numpy(batch.ids[part]), torch.from_numpy(batch.taken[part])
        return cls(ids, taken, rule.prepare(Batch(**fields)))

    def needed(self, rule: Rule) -> Tensor:
        """Return the episodes whose coefficients are not 0 for certain, [Q, G].

        With nothing but the reward's term in the loss, an episode whose advantages are all 0 has no gradient. A rule that
        looks beyond the episode may still read its log-probs.
        """
        prepared = self.prepared
        if rule.penalties or rule.scope in ("group", "batch"):
            return prepared.mask.any(-1)
        return (prepared.signal != 0).any(-1)

    def recomputed(self, policy: Policy, rule: Rule, layout: Layout, micro: int = 1) -> "Minibatch":
        """Return the minibatch with log pi_old as the learner has it now, rather than as the sampler had it.

        Scored in the same pieces and buckets as the update will be, so that ratios are exactly 1 until something moves.
        """
        needed, old = self.needed(rule), self.prepared.behaviour
        pieces = minibatches(len(self.ids), 1 if rule.scope == "batch" else micro)
        with torch.no_grad():
            found = [
                score(policy, layout, self.ids[p], self.taken[p], frozenset({"logp"}), None, needed[p]).whole(
                    "logp", old[p]
                )
                for p in pieces
            ]
        return replace(self, prepared=replace(self.prepared, proximal=torch.cat(found)))


def backward(
    policy: Policy, layout: Layout, rule: Rule, batch: Minibatch, reference: Policy | None = None, micro: int = 1
) -> Forward:
    """Add the gradient of one update to the parameters and return what it saw.

    Parameters
    ----------
    reference
        For an exact KL.
    micro
        Pieces, along questions, that are scored and differentiated one after the other. A rule that must see the whole batch
        gets a scoring pass without gradients first.
    """
    prepared, needed = batch.prepared, batch.needed(rule)
    wanted: frozenset[ScalarKey] = frozenset(
        {"logp"} | {p.scalar for p in rule.penalties} | ({("kl", "ref")} if "kl" in rule.reads else set())
    )

    def forward(part: slice) -> Scored:
        return score(policy, layout, batch.ids[part], batch.taken[part], wanted, reference, needed[part])

    def coefficients(scored: Scored, piece: Prepared) -> tuple[Tensor, Coefficients]:
        logp = scored.whole("logp", piece.behaviour)
        values = {s: scored.whole(s, torch.zeros_like(piece.behaviour)) for s in wanted - {"logp"}}
        return logp, rule.coefficients(piece, logp, values)

    ahead: Coefficients | None = None
    if micro > 1 and rule.scope == "batch":
        with torch.no_grad():
            _, ahead = coefficients(forward(slice(None)), prepared)
    logps, found, signal = [], [], False
    for part in minibatches(len(batch.ids), micro):
        scored = forward(part)
        if ahead is None:
            logp, made = coefficients(scored, prepared if micro == 1 else prepared.cut("groups", part))
            scalars = made.scalars
        else:
            logp, made = scored.whole("logp", prepared.behaviour[part]), ahead
            scalars = ahead.cut("groups", part)
        shape = batch.ids[part].shape
        whole = {scalar: c.to(logp.dtype).expand(shape) for scalar, c in scalars.items()}
        signal |= any(bool((c != 0).any()) for c in whole.values())
        loss = -scored.dot(whole)
        if loss.requires_grad:
            loss.backward()
        logps.append(logp)
        found.append(made)
    return Forward(prepared, torch.cat(logps), tuple(found if ahead is None else found[:1]), needed, signal)
