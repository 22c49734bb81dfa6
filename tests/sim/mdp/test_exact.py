import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.mdp.exact import expected_return, occupancy, policy_gradient, return_function, trajectories, values
from sim.mdp.policy import tables
from sim.mdp.worlds import PRESETS

SMALL = settings(max_examples=30)


def drawn(graphs, data):
    """A random graph and a policy on it."""
    graph = data.draw(graphs).compiled()
    D = len(graph.free_names)
    z = np.array(data.draw(st.lists(st.floats(-4, 4), min_size=D, max_size=D)))
    return graph, z


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_the_tiny_graph_by_hand(tiny):
    """Searching at the start with 1/2, again with 1/4; kinds .4 and .6 answer right with .05, .15 and .97, .9 if found."""
    graph = tiny.compiled()
    policy = tables(graph, np.array([0.0, -np.log(3)]))
    guess, found = 0.4 * 0.05 + 0.6 * 0.15, 0.4 * 0.97 + 0.6 * 0.9
    assert expected_return(graph, policy) == pytest.approx(0.5 * guess + 0.5 * (0.75 * found - 0.25))
    where = occupancy(graph, policy)
    assert where.decision[0].tolist() == [[0.5, 0.5], [0, 0]]
    np.testing.assert_allclose(where.decision[1], [[0, 0], [0.375, 0.125]])
    np.testing.assert_allclose(where.solved, [0.5 * guess, 0.5 * guess + 0.375 * found])
    np.testing.assert_allclose(where.action_share(1), [0.5, 0.125])
    V, Q = values(graph, policy)
    np.testing.assert_allclose(Q[0, :, 0, 0], [0.05, 0.15])
    np.testing.assert_allclose(Q[1, :, 1], [[0.97, -1], [0.9, -1]])
    np.testing.assert_allclose(V[1, 1, 1], 0.75 * 0.9 - 0.25)
    # dJ/dz = p (1 - p) x (value of searching - value of the other)
    search = 0.75 * found - 0.25
    np.testing.assert_allclose(policy_gradient(graph, policy), [0.25 * (search - guess), 0.5 * 3 / 16 * (-1 - found)])


def test_all_ways_through_the_tiny_graph(tiny):
    graph = tiny.compiled()
    found = [t for t in trajectories(graph, tables(graph, np.zeros(2))) if t.kind == 0]
    ways = {(t.nodes, t.actions): (t.probability, t.reward, t.turns) for t in found}
    assert ways == {
        ((0, 2), (0,)): (pytest.approx(0.5 * 0.05), 1, 1),
        ((0, 3), (0,)): (pytest.approx(0.5 * 0.95), 0, 1),
        ((0, 1, 2), (1, 0)): (pytest.approx(0.25 * 0.97), 1, 2),
        ((0, 1, 3), (1, 0)): (pytest.approx(0.25 * 0.03), 0, 2),
        ((0, 1, 1), (1, 1)): (pytest.approx(0.25), -1, 2),
    }


# --- against brute force ----------------------------------------------------------------------------------------------


@SMALL
@given(st.data())
def test_the_recursions_agree_with_the_list_of_trajectories(graphs, data):
    graph, z = drawn(graphs, data)
    policy = tables(graph, z)
    found = trajectories(graph, policy)
    per_kind = np.zeros(len(graph.share))
    state = np.zeros((graph.turns + 1, len(graph.share), len(graph.context)))
    decision = np.zeros((graph.turns, *graph.offered.shape))
    solved = np.zeros(graph.turns)
    J = 0.0
    for t in found:
        p = graph.share[t.kind] * t.probability
        per_kind[t.kind] += t.probability
        J += p * t.reward
        for k in range(graph.turns + 1):
            state[k, t.kind, t.nodes[min(k, t.turns)]] += t.probability
        for k, (node, action) in enumerate(zip(t.nodes, t.actions, strict=False)):
            decision[k, graph.context[node], action] += p
        if graph.solved[t.nodes[-1]]:
            solved[t.turns - 1 :] += p
    where = occupancy(graph, policy)
    np.testing.assert_allclose(per_kind, 1, rtol=1e-12)
    np.testing.assert_allclose(where.state, state, atol=1e-12)
    np.testing.assert_allclose(where.decision, decision, atol=1e-12)
    np.testing.assert_allclose(where.solved, solved, atol=1e-12)
    assert expected_return(graph, policy) == pytest.approx(J, abs=1e-12)
    for action in range(len(graph.actions)):
        np.testing.assert_allclose(where.action_share(action), decision[:, :, action].sum(1), atol=1e-12)


@SMALL
@given(st.data())
def test_the_return_of_many_policies_is_that_of_each(graphs, data):
    graph, z = drawn(graphs, data)
    many = z * np.array([-1.0, 0.0, 0.3, 1.0, 2.0, 9.0]).reshape(2, 3, 1)
    found = return_function(graph)(many)
    assert found.shape == (2, 3)
    for index in np.ndindex(2, 3):
        assert found[index] == pytest.approx(expected_return(graph, tables(graph, many[index])), abs=1e-12)


@pytest.mark.parametrize("name", PRESETS)
def test_the_return_of_many_policies_of_presets(name):
    graph = PRESETS[name]().graph().compiled()
    z = np.random.default_rng(0).uniform(-4, 4, (5, len(graph.free_names)))
    found = return_function(graph)(z)
    expected = [expected_return(graph, tables(graph, each)) for each in z]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert np.ptp(found) > 0.05
    assert return_function(graph)(z[0]) == pytest.approx(expected[0])


@SMALL
@given(st.data())
def test_visitation_is_a_distribution(graphs, data):
    graph, z = drawn(graphs, data)
    where = occupancy(graph, tables(graph, z))
    np.testing.assert_allclose(where.state.sum(-1), 1, rtol=1e-12)
    going = where.decision.sum((1, 2))  # the share still running at each turn
    assert going[0] == pytest.approx(1)
    assert np.all(np.diff(going) <= 1e-12)
    assert np.all(np.diff(where.solved) >= -1e-12)
    assert np.all(where.solved[:-1] <= 1 - going[1:] + 1e-12)


@SMALL
@given(st.data())
def test_the_policy_gradient_is_the_slope_of_the_return(graphs, data):
    graph, z = drawn(graphs, data)
    h = 1e-5
    slope = np.array([
        (expected_return(graph, tables(graph, z + h * e)) - expected_return(graph, tables(graph, z - h * e))) / (2 * h)
        for e in np.eye(len(z))
    ])  # fmt: skip
    np.testing.assert_allclose(policy_gradient(graph, tables(graph, z)), slope.reshape(-1), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", PRESETS)
def test_the_policy_gradient_of_presets(name):
    graph = PRESETS[name]().graph().compiled()
    rng = np.random.default_rng(3)
    for scale in (0.5, 3.0):
        z = rng.normal(0, scale, len(graph.free_names))
        h = 1e-5
        slope = [
            (expected_return(graph, tables(graph, z + h * e)) - expected_return(graph, tables(graph, z - h * e)))
            / (2 * h)
            for e in np.eye(len(z))
        ]
        assert np.abs(slope).max() > 1e-3
        np.testing.assert_allclose(policy_gradient(graph, tables(graph, z)), slope, rtol=1e-5, atol=1e-9)


@SMALL
@given(st.data())
def test_values_are_consistent_from_turn_to_turn(graphs, data):
    graph, z = drawn(graphs, data)
    policy = tables(graph, z)
    V, Q = values(graph, policy)
    for n in range(graph.states):
        pi = policy.probability[graph.context[n]]
        np.testing.assert_allclose(V[:-1, :, n], Q[:, :, n] @ pi, atol=1e-12)
    np.testing.assert_allclose(
        V[:, :, graph.states :], np.broadcast_to(graph.reward[graph.states :], V[:, :, graph.states :].shape)
    )


@SMALL
@given(st.data())
def test_going_uphill_gains(graphs, data):
    """A small step along the gradient raises the return (by its squared length, to first order)."""
    graph, z = drawn(graphs, data)
    g = policy_gradient(graph, tables(graph, z))
    eps = 1e-4
    gain = expected_return(graph, tables(graph, z + eps * g)) - expected_return(graph, tables(graph, z))
    assert gain == pytest.approx(eps * (g @ g), rel=1e-2, abs=1e-12)


@pytest.mark.parametrize("extreme", [-800.0, 800.0])
@pytest.mark.parametrize("name", PRESETS)
def test_deterministic_policies_have_finite_values(name, extreme):
    graph = PRESETS[name]().graph().compiled()
    policy = tables(graph, np.full(len(graph.free_names), extreme))
    assert 0 <= expected_return(graph, policy) <= 1
    assert np.isfinite(policy_gradient(graph, policy)).all()
    assert sum(t.probability for t in trajectories(graph, policy)) == pytest.approx(len(graph.share))
