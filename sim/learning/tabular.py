"""One batch of the simulator, from policies and uniforms to what a rule sees, and from coefficients to a gradient."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sim.learning.batch import Batch, Reads
from sim.learning.lookup import Lookup, as_record
from sim.learning.penalties import ScalarKey
from sim.learning.rule import Coefficients
from sim.mdp.policy import PolicyTables, SoftmaxPolicy
from sim.mdp.sampling import Sample, Sampler
from sim.records.rng import BlockStream

__all__ = ["draw", "gradient", "greedy", "rule_batch", "scalar_values"]

F64 = NDArray[np.float64]


def draw(
    sampler: Sampler,
    policy: PolicyTables,
    streams: tuple[BlockStream, BlockStream],
    step: int,
    prompts: int,
    group: int,
) -> Sample:
    """Return one batch of rollouts; `streams` give the questions and the turns."""
    question, turn = streams
    kind = sampler.kinds(question.uniforms(step, (prompts,)))
    return sampler(policy.probability, kind, turn.uniforms(step, (sampler.graph.turns, 2, group, prompts)))


def greedy(policy: PolicyTables) -> PolicyTables:
    """Return the policy that always takes the likeliest action; the first of equally likely ones."""
    best = np.zeros_like(policy.probability)
    np.put_along_axis(best, policy.probability.argmax(-1)[..., None], 1.0, axis=-1)
    return PolicyTables(best, np.where(best > 0, 0.0, policy.log_probability))


def rule_batch(
    sampler: Sampler,
    sample: Sample,
    lookup: Lookup,
    behaviour: PolicyTables,
    unit: str = "turn",
    *,
    proximal: PolicyTables | None = None,
    reference: PolicyTables | None = None,
    reads: frozenset[Reads] = frozenset(),
) -> Batch:
    """Return what a rule sees of `sample`; entries along T are turns.

    Parameters
    ----------
    sampler, sample, lookup
        The batch.
    behaviour
        The policy that sampled.
    unit
        What normalisers count: ``"turn"`` (every turn 1) or ``"token"`` (the tokens its action generates).
    proximal
        pi_old; None for `behaviour`.
    reference
        pi_ref, looked up where the rule reads it.
    reads
        What the rule reads beyond rewards and log-probs. The simulator has no ``process_reward``.
    """
    _, Q, G = sample.reward.shape
    K = sample.choice.shape[0]

    def look_up(policy: PolicyTables) -> F64:
        return as_record(lookup.gather(policy.log_probability), Q, G)

    per_choice = np.repeat(sampler.graph.generated, sampler.kinds_of_question, 0).ravel().astype(float)
    mask = as_record(sampler.running(sample), Q, G)
    duration = None
    if "duration_s" in reads:
        nodes, actions = sampler.nodes(sample)[:-1], sampler.actions(sample)
        taken = np.where(sampler.running(sample), sampler.graph.latency_s[nodes, actions], 0.0)
        duration = as_record(taken, Q, G).sum(-1)
    return Batch(
        sample.reward,
        mask,
        look_up(behaviour),
        lengths=as_record(per_choice.take(sample.choice % len(per_choice)), Q, G) if unit == "token" else None,
        proximal=None if proximal is None or proximal is behaviour else look_up(proximal),
        reference=look_up(reference) if reference is not None and "reference" in reads else None,
        turn=np.broadcast_to(np.arange(K), mask.shape) if "turn" in reads else None,
        state=as_record(sampler.nodes(sample)[:-1], Q, G) if "state" in reads else None,
        duration_s=duration,
    )


def scalar_values(
    now: PolicyTables, reference: PolicyTables, lookup: Lookup, like: F64, reads: frozenset[Reads]
) -> Mapping[ScalarKey, F64]:
    """Return the exact KL to the reference at every visited state, shaped as `like` [S, Q, G, K], where it is read."""
    if "kl" not in reads:
        return {}
    per_context = (now.probability * (now.log_probability - reference.log_probability)).sum(-1, keepdims=True)
    table = np.broadcast_to(per_context, now.probability.shape)
    return {("kl", "ref"): as_record(lookup.gather(table), *like.shape[1:3])}


def gradient(
    policy: SoftmaxPolicy, now: PolicyTables, reference: PolicyTables, lookup: Lookup, coefficients: Coefficients
) -> F64:
    """Return sum_t g grad log pi + h grad H + k grad KL with respect to the free logits, [S, D].

    d log pi(b|c) / d z(a|c) = [a = b] - pi(a); dH / dz(a) = -pi(a) (log pi(a) + H); dKL / dz(a) = pi(a) (log pi(a) -
    log ref(a) - KL).
    """
    g = policy.graph
    shape = now.probability.shape
    pi, log_pi = now.probability, now.log_probability
    total = np.zeros(shape)
    for scalar, value in coefficients.scalars.items():
        by_decision = lookup.scatter(value, shape)
        by_context = by_decision.sum(-1, keepdims=True)
        if scalar == "logp":
            total += by_decision - pi * by_context
        elif scalar == "entropy":
            entropy = -(pi * log_pi).sum(-1, keepdims=True)
            total -= by_context * pi * (log_pi + entropy)
        elif scalar == ("kl", "ref"):
            gap = log_pi - reference.log_probability
            total += by_context * pi * (gap - (pi * gap).sum(-1, keepdims=True))
        else:
            raise ValueError(f"the simulator has no scalar {scalar!r}; it has 'logp', 'entropy' and ('kl', 'ref')")
    return total[:, g.free_context, g.free_action]
