import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.learning.credit import GroupCredit
from sim.learning.normalisers import MicrobatchMean, TokenMean
from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective, expected_gradient
from sim.mdp.theory.length_sums import micro_batches
from sim.mdp.worlds import seed_a


def test_micro_batches_by_hand():
    assert micro_batches(2, 3, 4) == {(2, ()): 2.0}  # six, all alike: a rollout of the batch is worth 12 / 6
    assert micro_batches(8, 3, 4) == {(4, ((4, 1),)): 4.0, (4, ()): 2.0}  # of two groups, then of one
    # two groups of four by threes: 3 | 1 + 2 | 2
    straddling = {(3, ()): 3 / 3, (1, ((2, 1),)): 1 / 3, (2, ((1, 1),)): 2 / 3, (2, ()): 2 / 3}
    assert micro_batches(3, 2, 4) == pytest.approx(straddling)


@given(st.integers(1, 30), st.integers(1, 5), st.integers(2, 6))
def test_every_rollout_is_in_one_micro_batch(size, prompts, group):
    found = micro_batches(size, prompts, group)
    number = -(-prompts * group // size)
    assert sum(found.values()) * number == pytest.approx(prompts * group)
    for own, others in found:
        assert own + sum(rollouts * count for rollouts, count in others) <= size


def test_groups_of_a_micro_batch_matter_by_their_lengths_only():
    """One micro-batch of two groups and two of one group differ; a batch of one group knows no difference."""
    graph = seed_a().graph().compiled()
    policy = tables(graph, np.array([-1.0, 2.0, -1.0]))

    def found(normaliser, prompts):
        return expected_gradient(graph, policy, Objective(GroupCredit(), normaliser, 4, prompts))

    np.testing.assert_allclose(found(MicrobatchMean(4), 2), found(TokenMean(), 1), atol=1e-15)
    assert np.abs(found(MicrobatchMean(8), 2) - found(MicrobatchMean(4), 2)).max() > 1e-4
    np.testing.assert_allclose(found(MicrobatchMean(8), 128), found(TokenMean(), 2), atol=1e-15)
