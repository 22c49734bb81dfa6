"""The mean drift of a behaviour under an objective, by exact sums (T1).

z is the log-odds of guessing at the start, g = sigmoid(z), eta the SGD rate, Delta the effective gap between searching
first and guessing first: under SGD and one update a batch E[dz] = -eta g (1 - g) Delta.
"""

import dataclasses
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sim.learning.batch import Batch
from sim.learning.credit import Credit, GroupCredit
from sim.learning.normalisers import BatchMean, Normaliser
from sim.learning.penalties import Penalty
from sim.learning.rule import Rule
from sim.learning.shaping import Overlong, Shaping
from sim.learning.view import View
from sim.mdp.compiled import CompiledGraph
from sim.mdp.policy import PolicyTables, tables
from sim.mdp.theory.credit_sums import Comparison, comparisons, compositions, multinomial
from sim.mdp.theory.length_sums import expected_terms
from sim.mdp.theory.ways import Unit, Ways, ways_of
from sim.records.config import config, near_misses

__all__ = ["Objective", "effective_gap", "expected_advantage", "expected_gradient", "gap_along", "ways_for"]

F64 = NDArray[np.float64]


@config
class Objective:
    """The parts of a rule that decide the mean drift on policy, and the size of a batch."""

    credit: Credit = GroupCredit()
    """From rewards to advantages."""
    normaliser: Normaliser = BatchMean()
    """What the sum is divided by."""
    group: int = 8
    """Rollouts a question (G)."""
    prompts: int = 128
    """Questions a batch (Q); it matters where lengths of several groups are added up."""
    unit: Unit = "turn"
    """What lengths count."""
    penalties: tuple[Penalty, ...] = ()
    """Terms in the loss, that look at no more than a rollout at once."""
    shaping: tuple[Shaping, ...] = ()
    """Terms in the reward: Overlong, which looks at the rollout's own length alone."""

    def __post_init__(self) -> None:
        if self.group < 2 or self.prompts < 1:
            raise ValueError(f"group = {self.group} must be at least 2 and prompts = {self.prompts} at least 1")
        for term in self.shaping:
            if not isinstance(term, Overlong):
                raise ValueError(
                    f"{type(term).__name__}: there is no exact sum for this shaping term; it is known for Overlong"
                )
        for penalty in self.penalties:
            if penalty.scope in ("group", "batch"):
                raise ValueError(
                    f"{type(penalty).__name__} looks at a whole {penalty.scope}: there is no exact sum for it; it is known "
                    "for penalties of a token, a turn or a sequence"
                )

    @classmethod
    def of(cls, rule: Rule, group: int = 8, prompts: int = 128, unit: Unit = "turn") -> "Objective":
        """Return the objective of a rule, where its batches are sampled from the policy that is updated.

        Raises
        ------
        ValueError
            For a penalty or a shaping term without an exact sum, and for a weight that is not 1 on policy.
        """
        _check_weight(rule)
        return cls(rule.credit, rule.normaliser, group, prompts, unit, rule.penalties, rule.shaping)


def _check_weight(rule: Rule) -> None:
    """Raise unless every token of an on-policy batch has weight 1."""
    logp, mask = np.full((1, 2, 2), -1.0), np.ones((1, 2, 2), np.bool_)
    weight = rule.weight(View.of(logp, logp, np.array([[[1.0], [-1.0]]]), mask)).value
    if not np.all(weight == 1):
        raise ValueError(
            f"{type(rule.weight).__name__} gives {np.unique(weight)} on policy; the sums need a weight of 1"
        )


@lru_cache(maxsize=64)
def _shaped(graph: CompiledGraph, shaping: tuple[Shaping, ...], unit: Unit) -> Ways:
    ways = ways_of(graph)
    alone = Batch(ways.reward[:, None], ways.running[:, None], lengths=ways.lengths(unit)[:, None])
    return dataclasses.replace(ways, reward=ways.reward + sum(term(alone)[:, 0] for term in shaping))


def ways_for(graph: CompiledGraph, objective: Objective) -> Ways:
    """Return the ways of a graph with the rewards that the objective's shaping makes of theirs."""
    return _shaped(graph, objective.shaping, objective.unit) if objective.shaping else ways_of(graph)


def expected_advantage(reward: int, success: float, objective: Objective) -> float:
    """Return E[A | own reward], for a 0/1 reward when each of the other G - 1 succeeds with probability `success`.

    An exact binomial sum over the number of the others that succeed, for a credit that looks at rewards alone.
    """
    wins = compositions(objective.group - 1, 2)[:, 1]
    others = np.arange(objective.group - 1) < wins[:, None]
    batch = np.concatenate([np.full((len(wins), 1), float(reward)), others], 1)
    value = objective.credit(Batch(batch)).value[:, 0, 0]
    chance = multinomial(compositions(objective.group - 1, 2), np.array([[1 - success, success]]))[0]
    return float(chance @ value)


def expected_gradient(
    graph: CompiledGraph, policy: PolicyTables, objective: Objective, reference: PolicyTables | None = None
) -> F64:
    """Return the expected update direction of one batch with respect to the free logits, [D], on policy.

    E[sum over rollouts and turns of A x factor x grad log pi], which is what ``rule.coefficients`` and
    ``sim.learning.tabular.gradient`` give on average: with the normaliser's 1 / N in it. The exact sum over kinds and
    ways of P x E[N A factor | way] x grad log pi.

    Parameters
    ----------
    graph, policy
        The task and one policy, tables [C, A].
    objective
        What is learnt from.
    reference
        pi_ref, where a penalty compares with it.

    Raises
    ------
    ValueError
        For a credit, normaliser or penalty without an exact sum, or a penalty that lacks its reference.
    """
    ways = ways_for(graph, objective)
    probability = ways.probability(policy)
    parts = comparisons(objective.credit, ways, objective.group, policy)
    terms = sum(_terms(part, ways, probability, objective) for part in parts)
    by_decision = _decisions(ways, probability, terms)
    score = by_decision - policy.probability * by_decision.sum(-1, keepdims=True)
    if objective.penalties:
        score = score + _penalised(ways, probability, policy, objective, reference)
    return score[graph.free_context, graph.free_action]


def _terms(part: Comparison, ways: Ways, probability: F64, objective: Objective) -> F64:
    """Return N x E[A_t x factor | way], [M, K]."""
    lengths = ways.lengths(objective.unit).sum(-1)
    return expected_terms(part, ways, probability, objective.normaliser, lengths, objective.prompts, objective.group)


def _decisions(ways: Ways, probability: F64, terms: F64 | int) -> F64:
    """Return the sum of terms over kinds, ways and turns, by decision, [C, A]."""
    share = (ways.graph.share[ways.kind] * probability)[:, None]
    return ways.by_decision(share * terms)


def _penalised(
    ways: Ways, probability: F64, policy: PolicyTables, objective: Objective, reference: PolicyTables | None
) -> F64:
    """Return the expected gradient of the penalties with respect to all logits, [C, A].

    N E[factor | way] is that of an advantage of 1, and the penalty itself gives the coefficient of each turn of a way.
    dH / dz(a) = -pi(a) (log pi(a) + H), dKL / dz(a) = pi(a) (log pi(a) - log ref(a) - KL), as in
    :func:`sim.learning.tabular.gradient`.
    """
    one = Comparison(np.zeros(len(ways.kind), np.int64), np.where(ways.running, 0, -1), np.ones((1, 1, 1)))
    factor = _terms(one, ways, probability, objective)
    view = _view(ways, policy, reference)
    pi, log_pi = policy.probability, policy.log_probability
    total = np.zeros_like(pi)
    for penalty in objective.penalties:
        coefficient = np.broadcast_to(penalty(view), view.mask.shape)[0]
        by_decision = _decisions(ways, probability, factor * coefficient)
        visits = by_decision.sum(-1, keepdims=True)
        if penalty.scalar == "logp":
            total += by_decision - pi * visits
        elif penalty.scalar == "entropy":
            total -= visits * pi * (log_pi - (pi * log_pi).sum(-1, keepdims=True))
        elif penalty.scalar == ("kl", "ref") and reference is not None:
            gap = log_pi - reference.log_probability
            total += visits * pi * (gap - (pi * gap).sum(-1, keepdims=True))
        else:
            raise ValueError(
                f"{type(penalty).__name__} acts on {penalty.scalar!r}; the simulator has 'logp', 'entropy' and, with "
                "expected_gradient(..., reference=...), ('kl', 'ref')"
            )
    return total


def _view(ways: Ways, policy: PolicyTables, reference: PolicyTables | None) -> View:
    """Return what a penalty sees of every way on policy, [1, M, K], at a factor of 1."""
    now, more = ways.along(policy.log_probability)[None], {}
    if reference is not None:
        gap = policy.log_probability - reference.log_probability
        kl = np.broadcast_to((policy.probability * gap).sum(-1, keepdims=True), gap.shape)
        more = {
            "reference": ways.along(reference.log_probability)[None],
            "values": {("kl", "ref"): ways.along(kl)[None]},
        }
    turn = np.broadcast_to(np.arange(now.shape[-1]), now.shape)
    return View.of(now, now, np.zeros((1, 1, 1)), ways.running[None], turn=turn, **more)


def effective_gap(
    graph: CompiledGraph,
    policy: PolicyTables,
    objective: Objective,
    logit: str = "start/answer",
    reference: PolicyTables | None = None,
) -> float:
    """Return Delta: minus the expected gradient of a free logit, divided by p (1 - p).

    Positive when the objective pushes against the action of that logit. Without std and length it is
    (1 - 1/G) x (value of the reference - value of the action), averaged over the question kinds, times the visits of its
    context in a rollout (1 at the start). It has the units of the normaliser: of a reward under BatchMean, of a reward per
    turn under SequenceMean.
    """
    if logit not in graph.free_names:
        raise ValueError(f"{logit!r} is no free logit of {graph.source.name}{near_misses(logit, graph.free_names)}")
    i = graph.free_names.index(logit)
    p = policy.probability[graph.free_context[i], graph.free_action[i]]
    return float(-expected_gradient(graph, policy, objective, reference)[i] / (p * (1 - p)))


def gap_along(
    graph: CompiledGraph, z0: F64, at: F64, objective: Objective | None = None, logit: str = "start/answer"
) -> F64:
    """Return Delta where one free logit stands at each of `at`, [N], and the others at `z0`, [D].

    Without lengths in it, Delta is a polynomial of degree G - 1 in the share of a start decision.
    """
    here = np.array(graph.free_names) == logit
    policies = (tables(graph, np.where(here, z, z0)) for z in at)
    return np.array([effective_gap(graph, p, objective or Objective(), logit) for p in policies])
