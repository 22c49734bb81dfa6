"""What the second rung's learner is handed, and how a whole batch is scored."""

import numpy as np
import pytest
import torch

from fullscale.agent.handed import Scorable, given, scored
from fullscale.agent.setup import Model
from minimodel.agent.schedule import Lag
from sim.learning.family import grpo
from tests.fullscale.agent.small import batch, policy_of, taught, training

LOGP = frozenset({"logp", "entropy"})


@pytest.fixture(scope="module")
def played():
    return batch(taught())


@pytest.mark.parametrize("pieces", [2, 3, 99])
def test_pieces_change_memory_and_not_what_is_scored(played, pieces):
    policy, whole = policy_of(taught()), Scorable.of(played)
    forwards, shipped = [], policy.scalars

    def counted(ids, *args, **more):
        forwards.append(ids.numel())
        return shipped(ids, *args, **more)

    policy.scalars = counted
    at_once = scored(policy, whole, LOGP)
    largest, n = max(forwards), len(forwards)
    cut = scored(policy, whole, LOGP, pieces=pieces)
    assert len(forwards) > 2 * n or max(forwards[n:]) < largest
    assert float(at_once["logp"].abs().max()) > 0.1
    for name in LOGP:
        torch.testing.assert_close(cut[name], at_once[name], atol=2e-5, rtol=0)


def test_a_watched_member_is_scored_as_in_the_whole_and_in_no_smaller_pieces(played):
    policy, whole = policy_of(taught()), Scorable.of(played)
    every = scored(policy, whole, LOGP)
    first = scored(policy, whole, LOGP, members=1, pieces=whole.taken.shape[1])
    torch.testing.assert_close(first["logp"], every["logp"][:, :1], atol=2e-5, rtol=0)


def test_lengths_are_rounded_up_and_never_beyond_the_batch(played):
    whole = Scorable.of(played, 64)
    T = played.ids.shape[-1]
    assert (whole.taken >= played.length).all()
    assert ((whole.taken % 64 == 0) | (whole.taken == T)).all()
    assert (Scorable.of(played, 1).taken == played.length).all()


def test_a_question_without_its_baseline_leaves_whatever_its_episodes_did(played):
    Q, G = played.reward.shape
    based = np.arange(Q) > 0
    made = given(
        played, Scorable.of(played), played.reward, grpo(kl=0.0), arrived=np.ones((Q, G), np.bool_), based=based
    )
    assert made.valid.tolist() == [[b] * G for b in based.tolist()]
    assert not made.mask[0].any()
    assert made.mask[1:].any()


def test_an_engine_samples_with_the_learners_weights_only_where_both_compute_alike():
    assert training().live
    assert not training(schedule=Lag(1)).live
    assert not training(model=Model(source="tiny", products="bfloat16")).live
