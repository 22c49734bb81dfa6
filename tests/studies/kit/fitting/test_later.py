"""The later decisions: recovered from counts, moved as asked, and probabilities that add up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, logsumexp

from studies.kit.fitting.later import Later, began, later_log_odds, moved, seen


def one(u, sd=0.1):
    return Later(np.array(u, float)[:, None], np.diag([sd**2, sd**2])[..., None])


def test_log_odds_from_expected_counts():
    fresh, failed = np.array([[900, 100], [500, 400]]), np.array([[50, 600], [300, 300]])
    q = expit(-np.array([3.0, -2.0]))
    searches = fresh * q[0] + failed * q[1]
    u, variance = later_log_odds(fresh, failed, searches)
    np.testing.assert_allclose(u, [3.0, -2.0], atol=0.02)
    # as many decisions as there were, each a Bernoulli
    np.testing.assert_allclose(variance, [1 / (1900 * q[0] * (1 - q[0])), 1 / (1250 * q[1] * (1 - q[1]))], rtol=0.03)


def test_a_context_that_is_never_seen_stays_wide_open():
    u, variance = later_log_odds(np.array([[100]]), np.array([[0]]), np.array([[10]]))
    assert u[0] == pytest.approx(np.log(9), abs=0.1)
    assert variance[1] > 3


@given(
    u=st.tuples(st.floats(-4, 4), st.floats(-4, 4)),
    fresh=st.integers(0, 30),
    failed=st.integers(0, 30),
    sd=st.floats(0.05, 0.5),
)
@settings(max_examples=60, deadline=None)
def test_the_probabilities_of_all_counts_add_up_to_one(u, fresh, failed, sd):
    n = fresh + failed
    if n == 0:
        return
    logs = [seen(one(u, sd), np.array([fresh]), np.array([failed]), np.array([k]))[1][0] for k in range(n + 1)]
    # the Gaussian's tails beyond 0 and n are lost, never gained
    assert np.exp(logsumexp(logs)) <= 1 + 1e-9
    if (fresh * expit(u[0]) * expit(-u[0]) + failed * expit(u[1]) * expit(-u[1])) > 4:
        assert np.exp(logsumexp(logs)) > 0.9


def test_a_count_moves_what_it_is_about():
    more_searches, _ = seen(one([2.0, -2.0]), np.array([1000]), np.array([0]), np.array([200]))
    assert more_searches.u[0, 0] < 1.9  # 119 were expected
    assert more_searches.u[1, 0] == -2.0
    assert more_searches.cov[0, 0, 0] < 0.1**2
    # the information of a thousand decisions: n q (1 - q)
    q = expit(-2.0)
    expected = 1 / (1 / 0.1**2 + 1000 * q * (1 - q))
    assert more_searches.cov[0, 0, 0] == pytest.approx(expected, rel=0.01)


def test_moving_adds_mean_and_variance():
    later = moved(one([2.0, -2.0], 0.3), np.array([[0.1], [-0.2]]), np.array([[0.4], [0.0]]))
    np.testing.assert_allclose(later.u[:, 0], [2.1, -2.2])
    np.testing.assert_allclose(np.diag(later.cov[..., 0]), [0.25, 0.09])


def test_an_odd_turn_cannot_decide():
    _, log_p = seen(one([5.0, -5.0], 0.05), np.array([1000]), np.array([0]), np.array([1000]))
    assert log_p[0] == pytest.approx(np.log(0.01 / 1001), abs=1e-6)


def test_the_start_is_one_policy_at_every_setting():
    later = began(np.full((8, 1), 500), np.full((8, 1), 500), np.full((8, 1), 490), 3)
    assert later.u.shape == (2, 3)
    assert np.ptp(later.u, axis=1).max() == 0
