import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean, SequenceMean
from sim.mdp.exact import expected_return, policy_gradient
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.bounds import can_flip, drag, least_coupling, least_return_rate, metric, return_rate
from sim.mdp.theory.drift import Objective, expected_gradient
from sim.mdp.worlds import seed_a
from sim.records.config import replace

GRAPH = seed_a().graph().compiled()
VECTORS = st.lists(st.floats(-2, 2), min_size=3, max_size=3).map(np.array)
LOGITS = st.lists(st.floats(-4, 4), min_size=3, max_size=3).map(np.array)
FEATURES = st.lists(st.lists(st.floats(-2, 2), min_size=5, max_size=5), min_size=3, max_size=3).map(np.array)


def objective(kind, group=8):
    """The objectives these tests tell apart: unbiased, divided by the group's spread, and weighted by length."""
    return Objective(GroupCredit(std=kind != "plain"), SequenceMean() if kind == "length" else BatchMean(), group)


def away_from_0(x):
    return np.linalg.norm(x) > 0.1


# --- T2: monotonicity -------------------------------------------------------------------------------------------------


@given(LOGITS, FEATURES, st.integers(2, 12))
def test_no_sharing_of_features_lets_the_unbiased_field_lower_the_return(z, features, G):
    policy = tables(GRAPH, z)
    field = expected_gradient(GRAPH, policy, objective("plain", G))  # the loop's own, (1 - 1/G) dJ/dz
    rate = return_rate(GRAPH, policy, field, metric(features))
    assert rate >= -1e-15
    assert rate == pytest.approx((1 - 1 / G) * np.sum((features.T @ policy_gradient(GRAPH, policy)) ** 2))


@given(LOGITS, FEATURES, VECTORS)
def test_the_rate_is_the_derivative_of_the_exact_return(z, features, field):
    M = metric(features)
    rate, h = return_rate(GRAPH, tables(GRAPH, z), field, M), 1e-5
    up, down = (expected_return(GRAPH, tables(GRAPH, z + s * h * M @ field)) for s in (1, -1))
    assert rate == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-6)


def test_a_length_weight_lowers_the_return_inside_its_window_and_std_does_not():
    """Where 35 % are known and a search finds 60 % of those, the length-weighted field points the wrong way."""
    world = replace(seed_a(), {"known": 0.35, "hit_known": 0.6})
    graph = world.graph().compiled()
    policy = tables(graph, free_logits(graph, start__answer=-4.14, fresh__answer=7.0, failed__answer=-7.0))
    fields = {kind: expected_gradient(graph, policy, objective(kind)) for kind in ("plain", "std", "length")}
    start = np.diag([1.0, 0.0, 0.0])  # only the start decision has a weight
    rates = {name: return_rate(graph, policy, field, start) for name, field in fields.items()}
    assert rates["length"] < 0 < rates["plain"] < rates["std"]


@given(VECTORS.filter(away_from_0), VECTORS.filter(away_from_0), FEATURES.filter(away_from_0))
def test_the_least_rate_bounds_every_metric_and_is_reached(gradient, field, features):
    M = metric(features)
    M = M / np.trace(M)
    least = least_return_rate(gradient, field)
    assert gradient @ M @ field >= least - 1e-9
    _, vectors = np.linalg.eigh(np.outer(gradient, field) + np.outer(field, gradient))
    worst = np.outer(vectors[:, 0], vectors[:, 0])
    assert gradient @ worst @ field == pytest.approx(least, abs=1e-9)


def test_only_the_gradient_itself_is_safe_under_every_metric():
    g = np.array([3.0, 4.0])
    assert least_return_rate(g, 2 * g) == pytest.approx(0)
    assert least_return_rate(g, np.array([4.0, -3.0])) == pytest.approx(-12.5)  # orthogonal: -|g||f| / 2
    assert least_return_rate(g, -g) == pytest.approx(-25)


def test_the_std_field_can_lower_the_return_where_questions_differ():
    """Where known and unknown questions are told apart at the start, std weighs the two unlike J, if by little."""
    graph = replace(seed_a(), {"known_visible": True}).graph().compiled()
    policy = tables(graph, free_logits(graph, fresh__answer=-3.0, failed__answer=-1.0))
    gradient = policy_gradient(graph, policy)
    plain, std = (expected_gradient(graph, policy, objective(kind)) for kind in ("plain", "std"))
    assert least_return_rate(gradient, plain) == pytest.approx(0, abs=1e-12)
    lowest = least_return_rate(gradient, std)
    assert -0.01 < lowest / (np.linalg.norm(gradient) * np.linalg.norm(std)) < -0.001
    _, vectors = np.linalg.eigh(np.outer(gradient, std) + np.outer(std, gradient))
    sharing = np.outer(vectors[:, 0], vectors[:, 0])
    assert return_rate(graph, policy, std, sharing) == pytest.approx(lowest)
    assert lowest < 0 < return_rate(graph, policy, std)


def test_what_is_no_metric_is_refused():
    policy = tables(GRAPH, np.zeros(3))
    with pytest.raises(ValueError, match=r"lowest eigenvalue is -1, must be at least 0"):
        return_rate(GRAPH, policy, np.ones(3), np.diag([1.0, -1.0, 1.0]))
    with pytest.raises(ValueError, match=r"not symmetric"):
        return_rate(GRAPH, policy, np.ones(3), np.triu(np.ones((3, 3))))
    with pytest.raises(ValueError, match=r"field \(2,\) and metric \(3, 3\) do not fit the 3 free logits"):
        return_rate(GRAPH, policy, np.ones(2))


def test_a_preconditioner_enters_the_metric():
    F = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])
    np.testing.assert_allclose(metric(F), [[2, 1], [1, 2]])
    np.testing.assert_allclose(metric(F, np.diag([1.0, 2.0, 3.0])), [[4, 3], [3, 5]])


# --- T3: one-shot drag ------------------------------------------------------------------------------------------------


def test_the_drag_by_hand():
    K = np.array([[1.0, 0.5], [0.5, 2.0]])
    assert drag(K, driver=1, passenger=0, travel=8.0) == pytest.approx(2.0)
    assert drag(K, driver=0, passenger=1, travel=8.0) == pytest.approx(4.0)
    assert can_flip(K, 0, 1, travel=8.0, start=-4.0)
    assert not can_flip(K, 0, 1, travel=8.0, start=-4.14)


def test_seven_logits_do_not_flip_seed_as_start_below_a_coupling_of_six_tenths():
    assert least_coupling(-4.14, 7.0) == pytest.approx(0.591, abs=1e-3)
    for c, flips in ((0.5, False), (0.6, True)):
        assert can_flip(np.array([[1.0, c], [c, 1.0]]), driver=1, passenger=0, travel=7.0, start=-4.14) is flips
    assert least_coupling(1.0, 7.0) == 0  # there already


@given(FEATURES, st.floats(0.1, 2), st.floats(0, 2), st.floats(-5, -3))
def test_no_path_drags_further_than_the_bound(features, gain, restoring, start):
    """The coupled flow itself: c learns at a rate that dies out, s is pulled back by its own gradient throughout."""
    K = metric(features[:2])
    if min(K[0, 0], K[1, 1]) < 0.05:
        K = K + 0.05 * np.eye(2)
    z, dt = np.array([start, -2.0]), 0.02
    for _ in range(400):
        s, c = expit(z)
        z = z + dt * K @ np.array([-restoring * s * (1 - s), gain * c * (1 - c)])
    travelled = z[1] + 2.0
    bound = drag(K, driver=1, passenger=0, travel=travelled)
    assert z[0] - start <= bound + 1e-9
    if restoring == 0:
        assert z[0] - start == pytest.approx(bound, abs=1e-9)
    assert expit(z[0]) < 0.5 or can_flip(K, 1, 0, travelled, start)


def test_the_bound_is_exact_without_a_restoring_force():
    K, z = np.array([[1.0, 0.3], [0.3, 2.0]]), np.array([logit(0.016), -2.0])
    start = z[0]
    for _ in range(1000):
        c = expit(z[1])
        z = z + 0.05 * K @ np.array([0.0, c * (1 - c)])
    assert z[0] - start > 0.5
    assert z[0] - start == pytest.approx(drag(K, 1, 0, z[1] + 2.0))


def test_a_drag_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"kernel\[1, 1\] = 0: this behaviour has no weight"):
        drag(np.diag([1.0, 0.0]), 1, 0, 7.0)
    with pytest.raises(ValueError, match=r"lowest eigenvalue is -1"):
        drag(np.array([[1.0, 2.0], [2.0, 1.0]]), 1, 0, 7.0)
    with pytest.raises(ValueError, match=r"travel = 0 must be positive"):
        least_coupling(-4.14, 0)
