import numpy as np
import pytest

from sim.learning.credit import GreedyBaseline, LeaveOneOut, NoBaseline
from sim.learning.normalisers import ConstantLength, SequenceMean, TokenMean
from sim.learning.step_credit import RewardToGo
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective
from sim.mdp.theory.spread import gradient_covariance
from tests.sim.learning.definitions import DEFINITIONS, G, Z, advantages, normalisers, outcomes


@pytest.mark.parametrize("credit", ["centred", "std, ddof 1", "leave one out, std", "no baseline", "log partition"])
@pytest.mark.parametrize("normaliser", ["BatchMean", "SequenceMean", "ConstantLength"])
@pytest.mark.parametrize(("Q", "unit"), [(1, "token"), (2, "turn")])
def test_over_all_batches(tiny, credit, normaliser, Q, unit):
    graph, x = tiny.compiled(), outcomes(Q)
    shipped, definition = normalisers(Q)[normaliser]
    terms = (advantages(Q, credit)[..., None] * x.score).sum(2)
    per_batch = definition(terms, x.tokens if unit == "token" else x.turns)
    centred = per_batch - x.probability @ per_batch
    exact = np.einsum("m,md,me->de", x.probability, centred, centred)
    found = gradient_covariance(
        graph, tables(graph, np.array(Z)), Objective(DEFINITIONS[credit][0], shipped, G, Q, unit)
    )
    np.testing.assert_allclose(found, exact, atol=1e-12)
    assert np.abs(exact).min() > 1e-5


def test_it_shrinks_with_the_number_of_questions(tiny):
    graph = tiny.compiled()
    policy = tables(graph, np.array(Z))
    one, many = (gradient_covariance(graph, policy, Objective(prompts=Q)) for Q in (1, 64))
    np.testing.assert_allclose(many, one / 64)
    assert np.linalg.eigvalsh(one).min() > 0


def test_what_has_no_sum_is_named(tiny):
    graph = tiny.compiled()
    policy = tables(graph, np.zeros(2))
    for credit in (RewardToGo(), GreedyBaseline()):
        with pytest.raises(ValueError, match=f"{type(credit).__name__}: the covariance is known for"):
            gradient_covariance(graph, policy, Objective(credit))
    with pytest.raises(ValueError, match="TokenMean: the covariance is known for BatchMean"):
        gradient_covariance(graph, policy, Objective(normaliser=TokenMean()))
    for fine in (
        Objective(LeaveOneOut()),
        Objective(NoBaseline(), SequenceMean()),
        Objective(normaliser=ConstantLength(2)),
    ):
        assert gradient_covariance(graph, policy, fine).shape == (2, 2)
