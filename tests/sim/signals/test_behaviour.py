import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.signals.behaviour import TurnCounts, effective_number, entropy, hazards, total_variation, workflow_shares

COUNTS = hnp.arrays(np.int64, (2, 3, 2, 3), elements=st.integers(0, 20))  # [S, K, C, A]
DISTRIBUTION = hnp.arrays(float, 5, elements=st.floats(0, 1)).filter(lambda p: p.sum() > 0.1).map(lambda p: p / p.sum())


# --- counts by turn: four rollouts, two turns, contexts start and later, actions search and answer ----------------------

# Three search first; one answers at once and is right. Then two answer (one is right) and one searches again.
STORY = TurnCounts(
    decision=np.array([[[3, 1], [0, 0]], [[0, 0], [1, 2]]]), solved=np.array([1, 2]), rollouts=4
)  # fmt: skip


def test_shares_have_all_rollouts_in_the_denominator():
    assert STORY.action_share(0).tolist() == [0.75, 0.25]  # of 4, although 3 were left at the second turn
    assert STORY.action_share(1).tolist() == [0.25, 0.5]
    assert STORY.accuracy().tolist() == [0.25, 0.5]
    assert STORY.turns() == 7 / 4


def test_the_empirical_policy_is_by_context():
    np.testing.assert_allclose(STORY.policy(), [[0.75, 0.25], [1 / 3, 2 / 3]])
    unseen = TurnCounts(np.array([[[3, 1], [0, 0]]]), np.array([0]), 4)
    assert np.isnan(unseen.policy()[1]).all()
    assert np.isfinite(unseen.policy()[0]).all()


@given(COUNTS)
def test_shares_add_up_to_those_still_running(decision):
    counts = TurnCounts(decision, np.zeros((2, 3), np.int64), 100)
    shares = sum(counts.action_share(a) for a in range(3))
    np.testing.assert_allclose(shares, decision.sum((-2, -1)) / 100)
    np.testing.assert_allclose(shares.sum(-1), counts.turns())
    visited = decision.sum((1, 3)) > 0
    np.testing.assert_allclose(counts.policy().sum(-1)[visited], 1)


@given(COUNTS)
def test_seeds_are_apart(decision):
    solved = decision[..., 0, 0]
    both = TurnCounts(decision, solved, 50)
    for s in range(2):
        alone = TurnCounts(decision[s], solved[s], 50)
        np.testing.assert_array_equal(both.action_share(1)[s], alone.action_share(1))
        np.testing.assert_array_equal(both.accuracy()[s], alone.accuracy())
        np.testing.assert_array_equal(both.policy()[s], alone.policy())
        assert both.turns()[s] == alone.turns()


# --- hazards ----------------------------------------------------------------------------------------------------------


def test_hazards_by_hand():
    """Turn 1: 75 % search, 25 % answer and 15 % are right. Turn 2: 85 % are left, 35 % search, so 50 % answer."""
    search, correct = hazards([0.15, 0.45], [0.75, 0.35])
    assert search == pytest.approx([0.75, 0.35 / 0.85])
    assert correct == pytest.approx([0.15 / 0.25, 0.30 / 0.50])


def test_a_published_table_gives_equal_hazards():
    """Seed A's two checkpoints: the third-turn search hazard of those unsolved is .985 and .279 at the first turn."""
    search, _ = hazards([[0.0, 0.4707], [0.1455, 0.2822]], [[0.9843, 0.0078], [0.3232, 0.4863]])
    assert search[:, 0] == pytest.approx([0.9843, 0.3232])
    assert search[:, 1] == pytest.approx([0.0078, 0.4863 / 0.8545])  # not .4863: 14.55 % are done


def test_nobody_left_is_no_hazard():
    search, correct = hazards([1.0, 1.0], [0.0, 0.0])
    assert search[0] == 0
    assert correct[0] == 1
    assert np.isnan(search[1])
    assert np.isnan(correct[1])


@given(st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(0, 0.99)), min_size=1, max_size=5))
def test_hazards_are_what_the_columns_were_made_of(turns):
    solved, accuracy, share = 0.0, [], []
    for search, correct in turns:
        alive = 1 - solved
        share.append(alive * search)
        solved += alive * (1 - search) * correct
        accuracy.append(solved)
    found = hazards(accuracy, share)
    np.testing.assert_allclose(found[0], [s for s, _ in turns], rtol=1e-6)
    np.testing.assert_allclose(found[1], [c for _, c in turns], rtol=1e-6, atol=1e-6)


# --- workflows and distributions --------------------------------------------------------------------------------------


def test_workflow_shares_by_hand():
    codes = np.array([[0, 2, 2, 1], [2, 2, 2, 2]])
    assert workflow_shares(codes, 4).tolist() == [[0.25, 0.25, 0.5, 0], [0, 0, 1, 0]]


@given(hnp.arrays(np.intp, (3, 12), elements=st.integers(0, 6)))
def test_workflow_shares_are_distributions(codes):
    shares = workflow_shares(codes, 7)
    np.testing.assert_allclose(shares.sum(1), 1)
    for s, c in np.ndindex(3, 7):
        assert shares[s, c] == pytest.approx((codes[s] == c).mean())


@pytest.mark.parametrize(("p", "h"), [([1, 0, 0], 0.0), ([0.5, 0.5, 0], np.log(2)), ([0.25] * 4, np.log(4))])
def test_entropy_by_hand(p, h):
    assert entropy(np.array(p, float)) == pytest.approx(h)
    assert effective_number(np.array(p, float)) == pytest.approx(np.exp(h))


@given(DISTRIBUTION)
def test_entropy_lies_between_zero_and_log_n(p):
    assert -1e-12 <= entropy(p) <= np.log(5) + 1e-12
    assert 1 - 1e-12 <= effective_number(p) <= 5 + 1e-9
    assert entropy(p) == pytest.approx(entropy(p[::-1]))


@given(DISTRIBUTION, DISTRIBUTION, DISTRIBUTION)
def test_total_variation_is_a_distance(p, q, r):
    assert total_variation(p, p) == 0
    assert total_variation(p, q) == total_variation(q, p)
    assert 0 <= total_variation(p, q) <= 1 + 1e-12
    assert total_variation(p, r) <= total_variation(p, q) + total_variation(q, r) + 1e-12
    events = [abs(sum(p[i] - q[i] for i in range(5) if mask >> i & 1)) for mask in range(32)]
    assert total_variation(p, q) == pytest.approx(max(events))  # the largest difference any event shows


def test_total_variation_by_hand():
    assert total_variation(np.array([1.0, 0]), np.array([0.4, 0.6])) == pytest.approx(0.6)
