"""What the learner of the second rung is handed: its update rule, minibatches and backward are used as they are.

That learner knows a batch by the length of its episodes. There a length is a number of turns, here one of tokens, rounded up
so that episodes of much the same length are scored in one forward.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fullscale.agent.marked import mark
from fullscale.agent.rollouts import Played
from minimodel.agent.learner import minibatches, rule_batch, score
from minimodel.agent.protocols import Policy
from sim.learning.batch import Batch
from sim.learning.penalties import ScalarKey
from sim.learning.rule import Rule

__all__ = ["Layout", "Scorable", "given", "scored"]

F64 = NDArray[np.float64]
F32 = NDArray[np.float32]
I64 = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the turns of a batch stand, as the learner asks for it."""

    turn_of: I64
    """Turn of each token, [Q, G, T]."""

    def length(self, tokens: int) -> int:
        """Return the tokens of an episode of so many tokens."""
        return tokens


@dataclass(frozen=True, eq=False)
class Scorable:
    """A batch as the learner reads it; see :class:`~fullscale.agent.rollouts.Played` for what bears its names."""

    ids: I64
    """Marked ids, [Q, G, T]."""
    taken: I64
    """Tokens of each episode, rounded up, [Q, G]."""
    sampled: Flags
    logp: F32
    node: I64
    """Context of each turn, [Q, G, K]: what the rules that group by state group by."""
    latency_s: F64
    layout: Layout
    """Where its turns stand."""

    @classmethod
    def of(cls, batch: Played, bucket_tokens: int = 64) -> "Scorable":
        """Return a batch that was played.

        Parameters
        ----------
        bucket_tokens
            Lengths are rounded up to a multiple of it.
        """
        most = batch.ids.shape[-1]
        taken = np.minimum(-(-batch.length // bucket_tokens) * bucket_tokens, most)
        return cls(
            ids=mark(batch.ids, batch.sampled, batch.segment),
            taken=taken,
            sampled=batch.sampled,
            logp=batch.logp,
            node=batch.context,
            latency_s=batch.latency_s,
            layout=Layout(batch.turn),
        )


def given(
    batch: Played,
    scorable: Scorable,
    reward: F64,
    rule: Rule,
    *,
    arrived: Flags,
    over: str = "all",
    based: Flags | None = None,
    **more: Any,
) -> Batch:
    """Return what the rule is given, in torch, [Q, G, T].

    An episode in which the infrastructure failed has no reward: it leaves the statistics of its group, whatever else does.

    Parameters
    ----------
    reward
        Reward that is trained on, [Q, G]; what it is where the infrastructure failed does not matter.
    arrived
        Rollouts that the schedule lets arrive, [Q, G].
    over
        Whether the baseline is over ``"all"`` rollouts that did not fail, or those that ``"arrived"``.
    based
        Questions whose baseline is there, [Q], where a rule takes it from another episode; None for all. The others leave.
    more
        Other fields of the batch.
    """
    usable = batch.arrived if based is None else batch.arrived & based[:, None]
    there = usable & arrived
    counted = usable if over == "all" else there
    made = rule_batch(
        scorable,  # type: ignore[arg-type]  # it has what is read
        np.where(usable, reward, 0.0),
        rule,
        scorable.layout,  # type: ignore[arg-type]
        arrived=None if there.all() else there,
        over="arrived",
        **more,
    )
    return replace(made, valid=None if counted.all() else torch.from_numpy(counted))


@torch.no_grad()
def scored(
    policy: Policy,
    whole: Scorable,
    wanted: frozenset[ScalarKey],
    reference: Policy | None = None,
    *,
    members: int | None = None,
    pieces: int = 1,
) -> dict[ScalarKey, torch.Tensor]:
    """Return scalars without gradient, [Q, m, T] each; 0 at tokens that were not sampled.

    Parameters
    ----------
    members
        How many episodes of each group, its first ones; None for all.
    pieces
        Forwards are made in so many pieces along questions, as an update's are: a bound on memory.
    """
    ids, taken = (torch.from_numpy(np.ascontiguousarray(x[:, :members])) for x in (whole.ids, whole.taken))
    layout: Any = whole.layout
    found = []
    fewer = -(-pieces * taken.shape[1] // whole.taken.shape[1])  # of fewer episodes
    for part in minibatches(len(ids), min(fewer, len(ids))):
        made = score(policy, layout, ids[part], taken[part], wanted, reference)
        found.append({name: made.whole(name, torch.zeros(ids[part].shape)) for name in wanted})
    return {name: torch.cat([each[name] for each in found]) for name in wanted}
