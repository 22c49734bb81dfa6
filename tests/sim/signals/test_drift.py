from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import expit

from sim.mdp.exact import occupancy, trajectories
from sim.mdp.policy import tables
from sim.signals.drift import bernoulli_kl, content_kl, decision_kl, ratio_levels, trajectory_kl, trajectory_ratio

X = st.floats(-6, 6)


# --- KL ---------------------------------------------------------------------------------------------------------------


def test_decision_kl_by_hand(tiny):
    p, q = (tables(tiny.compiled(), np.array(z)) for z in ([np.log(3), 0.0], [0.0, 0.0]))
    kl = decision_kl(p.probability, p.log_probability, q.log_probability)
    assert kl == pytest.approx([0.75 * np.log(1.5) + 0.25 * np.log(0.5), 0])


@settings(max_examples=30)
@given(st.data())
def test_the_chain_rule_over_trajectories(graphs, data):
    """KL of two distributions over trajectories, summed one by one, is the sum of visits x KL of the decisions met."""
    graph = data.draw(graphs).compiled()
    D = len(graph.free_names)
    p, q = (tables(graph, np.array(data.draw(st.lists(X, min_size=D, max_size=D)))) for _ in range(2))

    def law(policy):
        found = defaultdict(float)
        for t in trajectories(graph, policy):
            found[t.kind, t.nodes, t.actions] += graph.share[t.kind] * t.probability
        return found

    mine, theirs = law(p), law(q)
    brute = sum(a * np.log(a / theirs[key]) for key, a in mine.items())
    visits = occupancy(graph, p).decision.sum((0, 2))
    kl = decision_kl(p.probability, p.log_probability, q.log_probability)
    assert trajectory_kl(kl, visits) == pytest.approx(brute, abs=1e-10)


@given(hnp.arrays(float, (2, 4, 3), elements=st.floats(0, 5)), hnp.arrays(float, (2, 4, 3), elements=st.floats(0, 5)))
def test_seeds_and_steps_are_apart(kl, visits):
    both = trajectory_kl(kl, visits)
    assert both.shape == (2, 4)
    for index in np.ndindex(2, 4):
        assert both[index] == trajectory_kl(kl[index], visits[index])


@given(X, X)
def test_bernoulli_kl_is_that_of_two_coins(x, y):
    p, q = expit(x), expit(y)
    expected = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
    assert bernoulli_kl(np.array(x), np.array(y)) == pytest.approx(expected, abs=1e-9)
    assert bernoulli_kl(np.array(x), np.array(y)) >= -1e-14
    assert bernoulli_kl(np.array(-x), np.array(-y)) == pytest.approx(bernoulli_kl(np.array(x), np.array(y)), abs=1e-12)


@pytest.mark.parametrize(
    ("x", "y", "kl"), [(800.0, 0.0, np.log(2)), (-800.0, 0.0, np.log(2)), (0.0, 800.0, 400 - np.log(2))]
)
def test_bernoulli_kl_of_certainties_is_finite(x, y, kl):
    assert bernoulli_kl(np.array(x), np.array(y)) == pytest.approx(kl)


def test_content_kl_by_hand():
    assert content_kl(np.array(0.0), 250, 0.01) == 0
    # one token of log-odds ln 3: .75 ln 1.5 + .25 ln .5
    assert content_kl(np.array(np.log(3)), 4, 1.0) == pytest.approx(4 * (0.75 * np.log(1.5) + 0.25 * np.log(0.5)))
    small = content_kl(np.array(0.3), 250, 0.01)
    assert small == pytest.approx(250 * 0.01 * 0.3**2 / 8, rel=1e-3)


@given(st.floats(-8, 8), st.integers(0, 500), st.floats(0, 1))
def test_content_kl_grows_with_tokens_and_not_with_the_sign(shift, tokens, coupling):
    kl = content_kl(np.array(shift), tokens, coupling)
    assert kl >= -1e-10
    assert content_kl(np.array(-shift), tokens, coupling) == pytest.approx(kl, abs=1e-9)
    assert content_kl(np.array(shift), 2 * tokens, coupling) == pytest.approx(2 * kl, abs=1e-9)


# --- ratios -----------------------------------------------------------------------------------------------------------

# One context, two actions: 30 of 40 decisions were the first; their ratios are now .9 and 1.5.
LOG_RATIO, COUNTS = np.log([[0.9, 1.5]]), np.array([[30, 10]])


def test_ratios_of_decisions_by_hand():
    found = ratio_levels(LOG_RATIO, COUNTS, rollouts=20, epsilon=0.2)
    assert found.decision_distance == pytest.approx((30 * 0.1 + 10 * 0.5) / 40)
    assert found.decision_outside == pytest.approx(10 / 40)
    assert found.token_distance == found.decision_distance  # no content


def test_content_dilutes_what_tokens_show():
    """20 rollouts of 98 content tokens that do not move: 40 decisions among 2,000 tokens."""
    still = (np.array(0.3), np.array(0.3))
    found = ratio_levels(LOG_RATIO, COUNTS, 20, 0.2, content=still, content_tokens=98)
    assert found.decision_distance == pytest.approx(0.2)
    assert found.token_distance == pytest.approx(0.2 * 40 / 2000)
    assert found.token_outside == pytest.approx(10 / 2000)


def test_content_that_moves_by_hand():
    """Content tokens from 1/2 to 3/4: ratios 1.5 and .5, each with probability 1/2 under the old policy."""
    moved = (np.array(0.0), np.array(np.log(3)))
    found = ratio_levels(np.zeros((1, 2)), COUNTS, 20, 0.2, content=moved, content_tokens=2)
    assert found.token_distance == pytest.approx(0.5 * 40 / 80)
    assert found.token_outside == pytest.approx(1.0 * 40 / 80)
    assert found.decision_distance == 0


@given(X, X, st.floats(0.05, 0.5))
def test_content_statistics_are_expectations_over_the_old_coin(x, y, epsilon):
    p, q = expit(x), expit(y)
    ratios, weights = np.array([q / p, (1 - q) / (1 - p)]), np.array([p, 1 - p])
    found = ratio_levels(np.zeros((1, 2)), COUNTS, 20, epsilon, (np.array(x), np.array(y)), 2)
    assert found.token_distance * 2 == pytest.approx((weights * np.abs(ratios - 1)).sum(), abs=1e-9)
    if np.abs(np.abs(ratios - 1) - epsilon).min() > 1e-9:
        assert found.token_outside * 2 == pytest.approx((weights * (np.abs(ratios - 1) > epsilon)).sum(), abs=1e-9)


@pytest.mark.parametrize(("x", "y"), [(60.0, 61.0), (-60.0, -59.0), (900.0, 800.0), (0.0, 900.0)])
def test_content_that_is_certain_has_finite_ratios(x, y):
    found = ratio_levels(LOG_RATIO, COUNTS, 20, 0.2, (np.array(x), np.array(y)), 98)
    assert 0 <= found.token_distance <= 1
    assert 0 <= found.token_outside <= 1


@given(
    hnp.arrays(float, (3, 2, 2), elements=st.floats(-1, 1)), hnp.arrays(np.int64, (3, 2, 2), elements=st.integers(1, 9))
)
def test_levels_are_averages_over_what_was_sampled(log_ratio, counts):
    found = ratio_levels(log_ratio, counts, 5, 0.2)
    for s in range(3):
        sampled = np.repeat(log_ratio[s].ravel(), counts[s].ravel())
        distance = np.abs(np.exp(sampled) - 1)
        assert found.decision_distance[s] == pytest.approx(distance.mean())
        if np.abs(distance - 0.2).min() > 1e-9:
            assert found.decision_outside[s] == pytest.approx((distance > 0.2).mean())


def test_trajectory_ratios_multiply():
    """Two rollouts, two turns: 1.1 x 1.1 = 1.21 is out although neither turn is; .9 and a masked turn is in."""
    log_ratio = np.log(np.array([[1.1, 0.9], [1.1, 1.0]]))[:, None]
    distance, outside = trajectory_ratio(log_ratio, 0.2)
    assert distance == pytest.approx([(0.21 + 0.1) / 2])
    assert outside.tolist() == [0.5]


@given(hnp.arrays(float, (3, 2, 5), elements=st.floats(-1, 1)))
def test_trajectory_ratios_by_definition(log_ratio):
    distance, outside = trajectory_ratio(log_ratio, 0.2)
    rho = np.exp(log_ratio).prod(0)
    np.testing.assert_allclose(distance, np.abs(rho - 1).mean(1), rtol=1e-9, atol=1e-12)
    if np.abs(np.abs(rho - 1) - 0.2).min() > 1e-9:
        np.testing.assert_allclose(outside, (np.abs(rho - 1) > 0.2).mean(1))
