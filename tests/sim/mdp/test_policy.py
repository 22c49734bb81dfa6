import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.mdp.exact import occupancy
from sim.mdp.policy import PolicyTables, SoftmaxPolicy, fisher, free_logits, tables
from sim.mdp.theory.ways import ways_of
from sim.mdp.worlds import PRESETS

GRAPH = PRESETS["read-more"]().graph().compiled()
D = len(GRAPH.free_names)
ANY = st.floats(-800, 800)
LOGITS = hnp.arrays(float, (D,), elements=ANY)


@pytest.fixture(scope="module")
def policy():
    """Five free logits moved by seven weights."""
    rng = np.random.default_rng(0)
    return SoftmaxPolicy(GRAPH, rng.normal(size=D), rng.normal(size=(D, 7)))


def test_the_table_by_hand(tiny):
    found = tables(tiny.compiled(), np.array([np.log(3), -np.log(4)]))
    np.testing.assert_allclose(found.probability, [[0.25, 0.75], [0.8, 0.2]])
    np.testing.assert_allclose(found.log_probability, np.log([[0.25, 0.75], [0.8, 0.2]]))


@given(LOGITS)
def test_tables_are_distributions_over_what_is_offered(z):
    found = tables(GRAPH, z)
    np.testing.assert_allclose(found.probability.sum(-1), 1, rtol=1e-12)
    assert np.all(found.probability[~GRAPH.offered] == 0)
    assert np.all(found.log_probability[~GRAPH.offered] == 0)
    assert np.isfinite(found.probability).all()
    assert np.isfinite(found.log_probability).all()
    assert np.all(found.log_probability <= 0)


@given(LOGITS)
def test_log_odds_against_the_reference_are_the_logits(z):
    found = tables(GRAPH, z).log_probability
    odds = found[GRAPH.free_context, GRAPH.free_action] - found[GRAPH.free_context, GRAPH.reference[GRAPH.free_context]]
    np.testing.assert_allclose(odds, z, rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize("z", [800.0, -800.0])
def test_extreme_logits_stay_finite(tiny, z):
    found = tables(tiny.compiled(), np.full(2, z))
    assert found.probability[0].tolist() == ([0, 1] if z > 0 else [1, 0])
    assert found.log_probability[0].tolist() == ([-800, 0] if z > 0 else [0, -800])


@given(hnp.arrays(float, (3, 2, D), elements=st.floats(-30, 30)))
def test_a_block_of_policies_is_its_policies(z):
    block = tables(GRAPH, z)
    for index in np.ndindex(3, 2):
        alone = tables(GRAPH, z[index])
        assert block.probability[index].tobytes() == alone.probability.tobytes()
        assert block.log_probability[index].tobytes() == alone.log_probability.tobytes()


@given(hnp.arrays(float, (4, 7), elements=st.floats(-9, 9)), hnp.arrays(float, (4, D), elements=st.floats(-9, 9)))
def test_pulling_back_is_the_transpose(policy, w, dz):
    forward = policy.logits(w) - policy.z0
    there, back = (forward * dz).sum(-1), (w * policy.pull_back(dz)).sum(-1)
    np.testing.assert_allclose(there, back, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(forward, np.stack([policy.features @ row for row in w]), rtol=1e-9, atol=1e-9)


@given(st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_a_row_has_the_same_bits_alone_and_in_a_block(policy, rows, seed):
    """A seed's run must not depend on the seeds it is computed with, to the last bit."""
    rng = np.random.default_rng(seed)
    w, dz = rng.normal(size=(rows, 7)), rng.normal(size=(rows, D))
    for row in range(rows):
        assert policy.logits(w)[row].tobytes() == policy.logits(w[row : row + 1])[0].tobytes()
        assert policy.pull_back(dz)[row].tobytes() == policy.pull_back(dz[row : row + 1])[0].tobytes()


def test_tables_at_weights(policy):
    w = np.full(7, 0.25)
    expected = tables(GRAPH, policy.z0 + policy.features @ w)
    np.testing.assert_allclose(policy.tables(w).probability, expected.probability, rtol=1e-12)


def test_free_logits_by_name():
    z = free_logits(GRAPH, start__answer=-4.0, fresh__verify=1.5)
    assert dict(zip(GRAPH.free_names, z.tolist(), strict=True)) == {
        "start/answer": -4.0,
        "fresh/verify": 1.5,
        "fresh/read": 0.0,
        "rejected/answer": 0.0,
        "failed/answer": 0.0,
        "read/verify": 0.0,
    }


def test_free_logits_of_a_habit_but_for_some():
    habit = (("start/answer", -4.0), ("fresh/verify", 1.5))
    np.testing.assert_array_equal(free_logits(GRAPH, habit), free_logits(GRAPH, start__answer=-4.0, fresh__verify=1.5))
    changed = free_logits(GRAPH, habit, start__answer=2.0, fresh__read=1.0)
    np.testing.assert_array_equal(changed, free_logits(GRAPH, start__answer=2.0, fresh__verify=1.5, fresh__read=1.0))


def test_an_unknown_logit_names_its_neighbours():
    with pytest.raises(ValueError, match="no free logit 'start__anwser'; did you mean start__answer"):
        free_logits(GRAPH, start__anwser=1.0)
    with pytest.raises(ValueError, match="no free logit 'start__anwser'"):
        free_logits(GRAPH, [("start/anwser", 1.0)])
    with pytest.raises(ValueError, match="no free logit 'start__search'"):  # the reference is not free
        free_logits(GRAPH, start__search=1.0)


@pytest.mark.parametrize(
    ("z0", "features", "message"),
    [
        (np.zeros(2), np.eye(2), f"do not fit the {D} free logits .* start/answer"),
        (np.zeros(D), np.eye(2), "do not fit"),
        (np.zeros(D), np.zeros(D), "do not fit"),
        (np.full(D, np.nan), np.eye(D), "must be finite"),
        (np.zeros(D), np.full((D, 1), np.inf), "must be finite"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(z0, features, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxPolicy(GRAPH, z0, features)


# --- the Fisher matrix ------------------------------------------------------------------------------------------------


def test_the_fisher_matrix_by_hand(tiny):
    """Two contexts of one free logit each, seen once and half a time, and one direction that moves both."""
    policy = SoftmaxPolicy(tiny.compiled(), np.zeros(2), np.array([[1.0, 1.0], [0.0, 2.0]]))
    now = policy.tables(np.array([np.log(3), 0.0]))  # 1/4 and 3/4 at the start, 1/2 and 1/2 after
    first, second = 3 / 16, 0.5 * 0.25
    expected = [[first, first], [first, first + 4 * second]]
    np.testing.assert_allclose(fisher(policy, now, np.array([1.0, 0.5])), expected)


def test_the_fisher_matrix_is_the_covariance_of_a_rollouts_score(policy):
    w = np.random.default_rng(1).normal(size=7)
    now, ways = policy.tables(w), ways_of(GRAPH)
    chance = GRAPH.share[ways.kind] * ways.probability(now)
    score = ways.scores(now).sum(1) @ policy.features
    found = fisher(policy, now, occupancy(GRAPH, now).decision.sum((0, 2)))
    np.testing.assert_allclose(found, np.einsum("m,mp,mq->pq", chance, score, score), atol=1e-12)
    assert np.abs(found).max() > 0.1


def test_a_block_has_the_fisher_matrices_of_its_policies(policy):
    rng = np.random.default_rng(2)
    now, visits = policy.tables(rng.normal(size=(5, 7))), rng.uniform(0, 3, (5, len(GRAPH.contexts)))
    block = fisher(policy, now, visits)
    for i in range(5):
        alone = PolicyTables(now.probability[i], now.log_probability[i])
        assert block[i].tobytes() == fisher(policy, alone, visits[i]).tobytes()
