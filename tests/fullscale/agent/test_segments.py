"""Contexts that are replaced by shorter ones: what is seen, what is scored, what is recorded."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fullscale.agent.marked import mark
from fullscale.agent.record import to_rollouts
from sim.records.tables import Reason
from tests.fullscale.agent.small import alone, batch, dialogue, environment, learners_logp, policy_of, taught
from tests.fullscale.agent.test_legs import HOW, check_conditioning

Q, G = 4, 4


@pytest.fixture(scope="module")
def network():
    return taught()


@pytest.fixture(scope="module")
def compacted(network):
    found = batch(network, **HOW["compacted"])
    assert found.segment.max() >= 1
    return found


def test_a_segment_sees_nothing_of_those_before_it(compacted, network):
    check_conditioning(compacted, {0: network})
    whole = policy_of(network)
    scored = learners_logp(whole, compacted)
    np.testing.assert_allclose(scored, compacted.logp, atol=2e-4)
    later = compacted.sampled & (compacted.segment > 0)
    assert later.sum() > 20
    other = replace(compacted, ids=np.where(compacted.segment == 0, (compacted.ids + 1) % 300, compacted.ids))
    np.testing.assert_array_equal(learners_logp(whole, other)[later], scored[later])
    first = compacted.sampled & (compacted.segment == 0)
    assert np.abs(learners_logp(whole, other)[first] - scored[first]).mean() > 0.1
    unmarked = replace(compacted, segment=np.zeros_like(compacted.segment))
    assert np.abs(learners_logp(whole, unmarked)[later] - scored[later]).mean() > 1e-2


def test_a_segment_begins_with_the_question_what_was_done_and_what_was_read(compacted):
    talk = dialogue(environment())
    q, g = np.argwhere(compacted.segment.max(-1) > 0)[0]
    inside = compacted.segment[q, g] == 1
    text = talk.tokenizer.decode(compacted.ids[q, g][inside & ~compacted.sampled[q, g]])
    assert compacted.questions[q].text in text
    assert "Earlier turns were left out" in text
    assert compacted.turn[q, g][inside].min() == 1 + compacted.turn[q, g][compacted.segment[q, g] == 0].max()


def test_the_record_of_a_compaction(compacted):
    found = to_rollouts(compacted, 5)
    s = found.segments
    of_batch = sum(len(np.unique(compacted.segment[q, g][compacted.sampled[q, g]])) for q, g in np.ndindex(Q, G))
    assert len(s.parent) == of_batch > Q * G
    later = s.parent >= 0
    assert (s.reason[later] == Reason.COMPACTION).all()
    assert (s.reason[~later] == Reason.START).all()
    assert (s.parent[later] == np.flatnonzero(later) - 1).all()
    assert (~later).sum() == Q * G
    assert found.tokens.id.size == compacted.length.sum()
    assert found.tokens.sampled.sum() == compacted.sampled.sum()


@pytest.mark.parametrize(
    ("segment", "begins"),
    [([0, 0, 0], [0, 0, 0]), ([0, 1, 1], [0, 1, 0]), ([0, 0, 1, 2, 2, 0, 0], [0, 0, 1, 1, 0, 0, 0])],
)
def test_marks_by_hand(segment, begins):
    """The padding after the last segment, which is of segment 0 again, begins nothing."""
    ids, segment = np.arange(5, 5 + len(segment)), np.array(segment)
    sampled = ids % 2 == 0
    marked = mark(ids, sampled, segment)
    assert (marked & (2**40 - 1)).tolist() == ids.tolist()
    assert (marked >> 40 & 1).tolist() == sampled.astype(int).tolist()
    assert (marked >> 41).tolist() == begins


def test_segments_that_are_cut_apart_come_back_to_their_place(network):
    """Rows of one, two and three segments, with padding: each token's scalar stands where the token does."""
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 300, (3, 12))
    segment = np.array([[0] * 12, [0] * 5 + [1] * 7, [0] * 3 + [1] * 4 + [2] * 3 + [0] * 2])
    sampled = rng.random((3, 12)) < 0.6
    sampled[:, 0] = sampled[1, 5] = sampled[2, 3] = sampled[2, 7] = False
    sampled[2, 10:] = False
    marked = torch.from_numpy(mark(ids, sampled, segment))
    with torch.no_grad():
        found = policy_of(network).scalars(marked, {"logp", "entropy"})
    for row in range(3):
        for s in range(segment[row].max() + 1):
            inside = np.flatnonzero((segment[row] == s) & (np.arange(12) < (10 if row == 2 else 12)))
            own = alone(network, ids[row, inside])
            for i, t in enumerate(inside):
                true = (own[i - 1, ids[row, t]], -(own[i - 1].exp() * own[i - 1]).sum()) if sampled[row, t] else (0, 0)
                assert float(found["logp"][row, t]) == pytest.approx(float(true[0]), abs=1e-4)
                assert float(found["entropy"][row, t]) == pytest.approx(float(true[1]), abs=1e-4)
