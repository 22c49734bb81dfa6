"""A batch of the tiny transformer as the project's record: the form that is kept, read and shown at every rung."""

import numpy as np
import torch

from minimodel.agent.collect import Collected
from minimodel.agent.policy import TinyPolicy
from minimodel.agent.protocols import Flags
from minimodel.tasks.environment import Environment
from minimodel.tasks.layout import PROMPT, Layout
from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome, Tokens

__all__ = ["to_rollouts"]

Scores = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Log-probabilities under sampler, learner and reference, [Q, G, T] each."""


@torch.no_grad()
def _logp(policy: TinyPolicy, batch: Collected) -> np.ndarray:
    """Return log pi of every token, [Q, G, T]; 0 at the first."""
    ids = torch.from_numpy(batch.ids.reshape(-1, batch.ids.shape[-1]))
    return policy.scalars(ids, {"logp"})["logp"].numpy().reshape(batch.ids.shape)


def to_rollouts(
    batch: Collected,
    environment: Environment,
    step: int,
    proximal: TinyPolicy,
    reference: TinyPolicy,
    arrived: Flags | None = None,
) -> Rollouts:
    """Return a batch as rollouts with every token: ids as sampled, versions, and three log-probabilities each.

    Parameters
    ----------
    step
        Optimiser step; it numbers the tasks, step x Q + q, and is the version that takes the batch.
    proximal, reference
        The learner before the update, and the reference.
    arrived
        Episodes that the update may use, [Q, G]; None for all. The others are kept, and no learner took them.
    """
    there = np.ones(batch.reward.shape, np.bool_) if arrived is None else arrived
    scored = batch.logp, _logp(proximal, batch), _logp(reference, batch)
    Q, G = batch.reward.shape
    return Rollouts.from_trajectories(
        [
            _trajectory(batch, environment.task.layout, scored, step, q, g, there[q, g])
            for q in range(Q)
            for g in range(G)
        ]
    )


def _trajectory(batch: Collected, layout: Layout, scored: Scores, step: int, q: int, g: int, there: bool) -> Trajectory:
    """Return one episode; `there` says whether a learner took it."""
    versions = batch.version[q, g][batch.sampled[q, g]]
    segment = Segment(
        turns=tuple(_turn(batch, layout, scored, q, g, k, there) for k in range(int(batch.taken[q, g]))),
        version_oldest=int(versions.min()),
        version_newest=int(versions.max()),
        start=0.0,
        end=float(batch.latency_s[q, g].sum()),
        take_version=step if there else -1,
    )
    return Trajectory(
        task=step * len(batch.question) + q,
        segments=(segment,),
        reward=float(batch.reward[q, g]),
        outcome=Outcome(int(batch.outcome[q, g])),
        start=0.0,
        end=segment.end,
    )


def _turn(batch: Collected, layout: Layout, scored: Scores, q: int, g: int, k: int, there: bool) -> Turn:
    """Return turn k of an episode, with the prompt before it where it is the first."""
    first = 0 if k == 0 else PROMPT + k * layout.turn
    last = min(PROMPT + (k + 1) * layout.turn, layout.length(int(batch.taken[q, g])))
    at, decision = (q, g, slice(first, last)), (q, g, int(layout.decisions[k]))
    sampled = batch.sampled[at]
    logp = dict(zip(("logp_behaviour", "logp_proximal", "logp_reference"), scored, strict=True))
    return Turn(
        action=int(batch.action[q, g, k]),
        index=k,
        context=int(batch.context[q, g, k]),
        state_id=int(batch.node[q, g, k]),
        generated=int(sampled.sum()),
        observed=int((~sampled).sum()) - (PROMPT if k == 0 else 0),
        entropy=float(batch.entropy[at][sampled].mean()),
        **{name: float(x[decision]) for name, x in logp.items()},
        tokens=Tokens(
            id=batch.ids[at],
            sampled=sampled,
            train=sampled & there,
            version=batch.version[at],
            **{name: np.where(sampled, x[at].astype(float), np.nan) for name, x in logp.items()},
        ),
    )
