"""A batch of the simulator as the project's record: the form that is kept, read and shown at every rung."""

import numpy as np

from sim.learning.lookup import Lookup, as_record
from sim.mdp.policy import PolicyTables
from sim.mdp.sampling import Sample, Sampler
from sim.records.padded import Padded
from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome
from sim.signals.behaviour import entropy

__all__ = ["to_rollouts"]


def to_rollouts(
    sampler: Sampler,
    sample: Sample,
    lookup: Lookup,
    policies: tuple[PolicyTables, PolicyTables, PolicyTables],
    row: int,
    *,
    step: int,
    version: int,
) -> Rollouts:
    """Return the rollouts of one seed of a batch.

    Parameters
    ----------
    sampler, sample, lookup
        The batch.
    policies
        The policy that sampled, the learner's before the update, and the reference.
    row
        Which seed of the block.
    step
        Optimiser step; question q of it is task step * Q + q.
    version
        Version of the policy that sampled.
    """
    g = sampler.graph
    _, Q, G = sample.reward.shape

    def of_seed(x: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(as_record(x, Q, G)[row])

    mask = of_seed(sampler.running(sample))
    nodes = sampler.nodes(sample)
    node = of_seed(nodes[:-1])
    end = nodes[-1, row].reshape(G, Q).T
    action = of_seed(sampler.actions(sample))
    outcome_of_end = np.where(g.solved, Outcome.SOLVED, Outcome.WRONG)
    outcome_of_end[: g.states] = Outcome.TURN_LIMIT
    context = np.maximum(g.context, 0)[node]
    behaviour, proximal, reference = (of_seed(lookup.gather(p.log_probability)) for p in policies)
    return Rollouts.from_padded(
        Padded(
            action=np.where(mask, action, -1),
            mask=mask,
            reward=sample.reward[row].copy(),
            outcome=outcome_of_end[end],
            context=np.where(mask, context, -1),
            state_id=np.where(mask, node, -1),
            generated=np.where(mask, g.generated[node, action], 0),
            observed=np.where(mask, _observed(sampler, of_seed(nodes[1:]), node, action), 0),
            logp_behaviour=behaviour,
            logp_proximal=proximal,
            logp_reference=np.where(mask, reference, 0.0),
            entropy=np.where(mask, entropy(policies[0].probability[row])[context], 0.0),
            version_oldest=np.full((Q, G), version),
            version_newest=np.full((Q, G), version),
            task=step * Q + np.arange(Q),
        )
    )


def _observed(sampler: Sampler, after: np.ndarray, node: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Return the tokens observed at each turn: those of the outcome that led to where the next turn starts."""
    g = sampler.graph
    led_there = g.target[node, action] == after[..., None]
    return np.take_along_axis(g.observed[node, action], led_there.argmax(-1)[..., None], -1)[..., 0]
