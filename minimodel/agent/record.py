"""A batch of the tiny transformer as the project's record: the form that is kept, read and shown at every rung."""

import numpy as np
import torch

from minimodel.agent.collect import Collected
from minimodel.agent.policy import TinyPolicy
from minimodel.agent.protocols import Flags
from minimodel.tasks.environment import Environment
from minimodel.tasks.layout import PROMPT
from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome, Tokens

__all__ = ["to_rollouts"]


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
    now, before = _logp(proximal, batch), _logp(reference, batch)
    layout, Q = environment.task.layout, len(batch.question)
    trajectories = []
    for q in range(Q):
        for g in range(batch.reward.shape[1]):
            turns, n = [], int(batch.taken[q, g])
            for k in range(n):
                first = 0 if k == 0 else PROMPT + k * layout.turn
                last = min(PROMPT + (k + 1) * layout.turn, layout.length(n))
                at = slice(first, last)
                sampled = batch.sampled[q, g, at]
                decision = int(layout.decisions[k])

                def noted(x: np.ndarray, sampled: np.ndarray = sampled) -> np.ndarray:
                    return np.where(sampled, x.astype(float), np.nan)

                turns.append(
                    Turn(
                        action=int(batch.action[q, g, k]),
                        index=k,
                        context=int(batch.context[q, g, k]),
                        state_id=int(batch.node[q, g, k]),
                        generated=int(sampled.sum()),
                        observed=int((~sampled).sum()) - (PROMPT if k == 0 else 0),
                        logp_behaviour=float(batch.logp[q, g, decision]),
                        logp_proximal=float(now[q, g, decision]),
                        logp_reference=float(before[q, g, decision]),
                        entropy=float(batch.entropy[q, g, at][sampled].mean()),
                        tokens=Tokens(
                            id=batch.ids[q, g, at],
                            sampled=sampled,
                            train=sampled & there[q, g],
                            version=batch.version[q, g, at],
                            logp_behaviour=noted(batch.logp[q, g, at]),
                            logp_proximal=noted(now[q, g, at]),
                            logp_reference=noted(before[q, g, at]),
                        ),
                    )
                )
            versions = batch.version[q, g][batch.sampled[q, g]]
            segment = Segment(
                turns=tuple(turns),
                version_oldest=int(versions.min()),
                version_newest=int(versions.max()),
                start=0.0,
                end=float(batch.latency_s[q, g].sum()),
                take_version=step if there[q, g] else -1,
            )
            trajectories.append(
                Trajectory(
                    task=step * Q + q,
                    segments=(segment,),
                    reward=float(batch.reward[q, g]),
                    outcome=Outcome(int(batch.outcome[q, g])),
                    start=0.0,
                    end=segment.end,
                )
            )
    return Rollouts.from_trajectories(trajectories)
