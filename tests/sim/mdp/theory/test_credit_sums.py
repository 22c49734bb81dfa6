import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim.learning.credit import GreedyBaseline, GroupCredit, RunningBaseline
from sim.learning.step_credit import RewardToGo, StateGroups
from sim.mdp.policy import tables
from sim.mdp.theory.credit_sums import comparisons, compositions, counted, multinomial
from sim.mdp.theory.ways import ways_of
from sim.mdp.worlds import seed_a


@given(st.integers(0, 6), st.lists(st.floats(0.01, 1), min_size=1, max_size=4))
def test_multinomial(n, weights):
    p = np.array(weights) / sum(weights)
    counts = compositions(n, len(p))
    found = multinomial(counts, p[None])[0]
    np.testing.assert_allclose(found, stats.multinomial(n, p).pmf(counts), rtol=1e-9)
    assert found.sum() == pytest.approx(1)


def test_a_class_that_does_not_occur():
    assert multinomial(compositions(2, 2), np.array([[1.0, 0.0]])).tolist() == [[0.0, 0.0, 1.0]]


def test_rows_of_sums():
    found = counted(compositions(1, 2), compositions(2, 2), compositions(3, 2))
    assert found.tolist() == [[0, 1, 2], [1, 2, 3]]


def test_too_many_compositions_are_counted_and_refused():
    with pytest.raises(ValueError, match="63 other rollouts fall into 8 classes in 1198774720 ways; at most 200000"):
        compositions(63, 8)


@pytest.fixture
def searching():
    graph = seed_a().graph().compiled()
    return ways_of(graph), tables(graph, np.array([-2.0, 3.0, -3.0]))


def test_rewards_0_and_1_are_a_binomial(searching):
    (part,) = comparisons(GroupCredit(std=False), searching[0], 4, searching[1])
    assert part.value.shape == (1, 2, 4)
    np.testing.assert_allclose(part.value[0, 0], [0, -1 / 4, -2 / 4, -3 / 4][::-1])  # from three successes to none
    np.testing.assert_allclose(part.value[0, 1], [0, 1 / 4, 2 / 4, 3 / 4])
    assert (part.entry[~searching[0].running] == -1).all()


def test_baselines_from_outside_the_group_differ_between_kinds_or_not(searching):
    ways, policy = searching
    value = ways.by_kind(ways.probability(policy) * ways.reward)
    (running,) = comparisons(RunningBaseline(), ways, 3, policy)
    np.testing.assert_allclose(running.value[:, 1, 0], 1 - ways.graph.share @ value)
    (greedy,) = comparisons(GreedyBaseline(), ways, 3, policy)
    assert np.ptp(greedy.value[:, 1, 0]) > 0.5
    assert np.ptp(greedy.value, axis=2).max() == 0  # whatever the others earned


def test_classes_of_a_discounted_return_and_of_the_visits_to_a_state(searching):
    ways, policy = searching
    (to_go,) = comparisons(RewardToGo(0.5), ways, 3, policy)
    assert to_go.classes == 5  # 0, and right after one to four turns
    episode, *steps = comparisons(StateGroups(gamma=0.5), ways, 3, policy)
    assert episode.classes == 2
    found = [np.unique(ways.nodes[part.entry >= 0]) for part in steps]
    assert all(len(nodes) == 1 for nodes in found)
    # the states of which no part is left can be reached in the last turn only, where nothing is right any more
    silent = set(range(ways.graph.states)) - {int(nodes[0]) for nodes in found}
    assert not any(ways.reward[(ways.nodes == node).any(1)].any() for node in silent)


def test_steps_at_the_start_by_hand(searching):
    """Return 1/2 against 0, 1/4: mean 1/4, sd 1/4; alone with equals it is 0."""
    ways, policy = searching
    start = int(ways.graph.initial[0])
    part = next(
        p
        for p in comparisons(StateGroups(gamma=0.5, omega=3.0), ways, 3, policy)[1:]
        if ((p.entry >= 0) == (ways.nodes == start)).all()
    )
    label = {
        (int(t), r): int(x) for t, r, x in zip(ways.turns, ways.reward, part.label, strict=True)
    }  # by turns and reward
    counts = np.bincount([label[4, 0.0], label[3, 1.0]], minlength=part.classes)
    composition = compositions(2, part.classes).tolist().index(counts.tolist())
    own = part.entry[(ways.turns == 2) & (ways.reward == 1), 0]
    assert len(set(own.tolist())) == 1
    assert part.value[0, own[0], composition] == pytest.approx(3 * (1 / 2 - 1 / 4) / (1 / 4))
    same = compositions(2, part.classes).tolist().index((2 * np.eye(part.classes, dtype=int)[label[2, 1.0]]).tolist())
    assert part.value[0, own[0], same] == 0
