import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.mdp.exact import occupancy, trajectories
from sim.mdp.policy import tables
from sim.mdp.theory.ways import ways_of
from sim.mdp.worlds import seed_a


@settings(max_examples=40)
@given(st.data())
def test_they_are_the_trajectories(graphs, data):
    graph = data.draw(graphs).compiled()
    D = len(graph.free_names)
    policy = tables(graph, np.array(data.draw(st.lists(st.floats(-4, 4), min_size=D, max_size=D))))
    ways = ways_of(graph)
    found = {}
    for i, (p, n) in enumerate(zip(ways.probability(policy), ways.turns, strict=True)):
        key = (
            int(ways.kind[i]),
            tuple(ways.nodes[i, :n].tolist()),
            tuple(ways.actions[i, :n].tolist()),
            ways.reward[i],
        )
        found[key] = found.get(key, 0.0) + p
    expected = {}
    for t in trajectories(graph, policy):
        key = (t.kind, t.nodes[: t.turns], t.actions, t.reward)
        expected[key] = expected.get(key, 0.0) + t.probability
    assert found.keys() == expected.keys()
    assert found == pytest.approx(expected, abs=1e-14)
    np.testing.assert_allclose(ways.by_kind(ways.probability(policy)), 1)


def test_decisions_add_up_to_the_visits():
    graph = seed_a().graph().compiled()
    policy = tables(graph, np.array([-1.0, 2.0, 0.5]))
    ways = ways_of(graph)
    weight = (graph.share[ways.kind] * ways.probability(policy))[:, None] * np.ones(graph.turns)
    np.testing.assert_allclose(ways.by_decision(weight), occupancy(graph, policy).decision.sum(0), atol=1e-14)


def test_lengths_in_turns_and_tokens(tiny):
    ways = ways_of(tiny.compiled())  # answering generates 2 tokens, searching 3
    pairs = {(int(t), int(n)) for t, n in zip(ways.turns, ways.lengths("token").sum(-1), strict=True)}
    assert pairs == {(1, 2), (2, 5), (2, 6)}
    np.testing.assert_array_equal(ways.lengths("turn").sum(-1), ways.turns)


def test_a_policy_may_never_act():
    """The ways are those of the environment; what the policy leaves out has probability 0."""
    graph = seed_a().graph().compiled()
    probability = ways_of(graph).probability(tables(graph, np.array([-800.0, 0.0, 0.0])))
    assert (probability == 0).any()
    assert np.isfinite(probability).all()


def test_scores_are_slopes_of_what_is_along_the_way(tiny):
    graph, z, h = tiny.compiled(), np.array([0.3, -0.8]), 1e-6
    ways = ways_of(graph)

    def log_pi(z):
        return ways.along(tables(graph, z).log_probability)

    slope = np.stack([(log_pi(z + e) - log_pi(z - e)) / (2 * h) for e in h * np.eye(2)], -1)
    found = ways.scores(tables(graph, z))
    np.testing.assert_allclose(found, slope, atol=1e-9)
    assert np.abs(found).max() > 0.5
    assert not found[~ways.running].any()
    np.testing.assert_allclose(ways.chance * np.exp(log_pi(z).sum(1)), ways.probability(tables(graph, z)), rtol=1e-12)
