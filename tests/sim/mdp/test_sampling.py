import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sim.mdp.exact import occupancy
from sim.mdp.graph import Action, Outcome, State, Terminal, ToolGraph
from sim.mdp.policy import tables
from sim.mdp.sampling import Sampler
from sim.mdp.worlds import PRESETS, seed_a, verify_world
from sim.records.rng import uniforms


def play(graph, z, Q=4, G=3, S=1, seed=0):
    """Return the sampler and rollouts of S equal policies at free logits z."""
    sampler = Sampler(graph)
    kind = np.stack([sampler.kinds(uniforms(seed + s, "sampling/question", 0, (Q,))) for s in range(S)])
    u = np.stack([uniforms(seed + s, "sampling/turn", 0, (graph.turns, 2, G, Q)) for s in range(S)])
    return sampler, sampler(tables(graph, np.tile(z, (S, 1))).probability, kind, u)


def decoded(sampler, sample):
    """Yield (seed, question, member, [(kind, node, action)] while it runs, last node) of every rollout."""
    H, running, action = len(sampler.graph.share), sampler.running(sample), sampler.actions(sample)
    Q = sample.kind.shape[1]
    node = sampler.nodes(sample)
    for s, i in np.ndindex(sample.place.shape[1:]):
        turns = int(running[:, s, i].sum())
        assert running[:turns, s, i].all()  # an episode that is over stays so
        kind = [int(sample.place[t, s, i]) % H for t in range(turns)]
        steps = [(kind[t], int(node[t, s, i]), int(action[t, s, i])) for t in range(turns)]
        yield s, i % Q, i // Q, steps, int(node[-1, s, i])


def decisions(sampler, sample):
    """context * A + action of every turn that takes place, [K, S, N]; C * A once solved, C * A + 1 once over otherwise."""
    graph = sampler.graph
    context = graph.context[sampler.nodes(sample)[:-1]]
    before = np.concatenate([np.zeros_like(sampler.solved(sample)[:1]), sampler.solved(sample)[:-1]])
    over = graph.offered.size + ~before
    return np.where(sampler.running(sample), context * len(graph.actions) + sampler.actions(sample), over)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_each_turn_is_read_off_two_uniforms(tiny):
    """Searching has probability 1/2 at the start and 1/4 with a document; kind 0 answers right with .05 and .97."""
    graph = tiny.compiled()
    sampler = Sampler(graph)
    probability = tables(graph, np.array([[0.0, -np.log(3)]])).probability
    #          turn 1: act, what comes back; turn 2: act, what comes back
    rollouts = np.array([
        [[0.49, 0.04], [0.9, 0.9]],  # answers, right
        [[0.49, 0.06], [0.1, 0.1]],  # answers, wrong
        [[0.51, 0.99], [0.74, 0.96]],  # searches, answers, right
        [[0.51, 0.00], [0.74, 0.98]],  # searches, answers, wrong
        [[0.51, 0.50], [0.76, 0.10]],  # searches twice, out of turns
    ], np.float32)  # fmt: skip
    u = rollouts.transpose(1, 2, 0)[None, :, :, :, None]  # [S, K, 2, G, Q]
    sample = sampler(probability, np.array([[0]]), u)
    assert sample.reward.tolist() == [[[1, 0, 1, 0, -1]]]
    assert decisions(sampler, sample)[:, 0].T.tolist() == [[0, 4], [0, 5], [1, 2], [1, 2], [1, 3]]
    assert sampler.actions(sample)[:, 0].T.tolist() == [[0, 0], [0, 0], [1, 0], [1, 0], [1, 1]]
    assert sampler.running(sample)[:, 0].T.tolist() == [[True, False]] * 2 + [[True, True]] * 3
    assert (sample.place[:, 0] // 2).T.tolist() == [[0, 2, 2], [0, 3, 3], [0, 1, 2], [0, 1, 3], [0, 1, 1]]
    assert sampler.solved(sample)[:, 0].T.tolist() == [
        [True, True],
        [False] * 2,
        [False, True],
        [False] * 2,
        [False] * 2,
    ]
    assert sampler.solved_at_end(sample)[0].tolist() == [True, False, True, False, False]
    easy = sampler(probability, np.array([[1]]), u)  # .15 and .9: the second and third rollout turn
    assert easy.reward.tolist() == [[[1, 1, 0, 0, -1]]]


def test_kinds_are_read_off_one_uniform_each(tiny):
    sampler = Sampler(tiny.compiled())
    u = np.array([[0.0, 0.39, 0.41, 0.999]], np.float32)
    assert sampler.kinds(u).tolist() == [[0, 0, 1, 1]]


def test_the_lower_edge_of_each_part_belongs_to_it(make_tiny):
    """Uniforms include 0 and exclude 1: what has probability 0 never happens."""
    halves = Sampler(make_tiny(shares=(0.5, 0.5)).compiled())
    below = np.nextafter(np.float32(0.5), np.float32(0))
    assert halves.kinds(np.array([[0.0, below, 0.5]], np.float32)).tolist() == [[0, 0, 1]]
    graph = make_tiny(shares=(0.0, 1.0), guess=(0.0, 0.0)).compiled()
    assert Sampler(graph).kinds(np.zeros((1, 1), np.float32)).tolist() == [[1]]
    zeros = np.zeros((1, 2, 2, 1, 1), np.float32)
    guessing, searching = tables(graph, np.array([[-800.0, 0.0], [800.0, 0.0]])).probability[:, None]
    assert Sampler(graph)(guessing, np.array([[1]]), zeros).reward.item() == 0  # right has probability 0
    sampler = Sampler(graph)
    assert sampler.actions(sampler(searching, np.array([[1]]), zeros))[:, 0, 0].tolist() == [1, 0]


@pytest.mark.parametrize("outcomes", [1, 2])
@pytest.mark.parametrize("actions", [1, 2])
def test_the_smallest_graphs_can_be_played(outcomes, actions):
    """One action only, or one outcome of each."""
    ends = tuple(Terminal(f"end {i}", float(i)) for i in range(outcomes))
    offered = tuple(Action(f"a{i}", tuple(Outcome(e.name, 1 / outcomes) for e in ends)) for i in range(actions))
    graph = ToolGraph(
        "smallest", (("all", 1.0),), ("here",), (State("here", "here", offered),), ends,
        tuple(a.name for a in offered), turn_limit=1,
    ).compiled()  # fmt: skip
    sampler, sample = play(graph, np.zeros(actions - 1), Q=8, G=8)
    assert len(np.unique(sample.reward)) == outcomes
    assert len(np.unique(sampler.actions(sample))) == actions


# --- properties -------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.data())
def test_every_rollout_is_a_walk_on_the_graph(graphs, data):
    graph = data.draw(graphs).compiled()
    z = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=len(graph.free_names), max_size=len(graph.free_names))))
    sampler, sample = play(graph, z, S=2)
    for s, q, g, steps, last in decoded(sampler, sample):
        assert steps[0][1] == graph.initial[sample.kind[s, q]]
        following = [node for _, node, _ in steps[1:]] + [last]
        for (kind, node, action), to in zip(steps, following, strict=True):
            assert kind == sample.kind[s, q]
            assert graph.offered[graph.context[node], action]
            assert graph.probability[kind, node, action][graph.target[node, action] == to].sum() > 0
        assert last >= graph.states or len(steps) == graph.turns
        assert sample.reward[s, q, g] == graph.reward[last]


def test_an_episode_that_is_over_stays_where_it_ended(tiny):
    graph = tiny.compiled()
    sampler, sample = play(graph, np.array([-1.0, -1.0]), Q=40, G=10)
    ended = ~sampler.running(sample)[1, 0]
    assert 100 < ended.sum() < 400
    assert np.array_equal(sample.place[1, 0][ended], sample.place[2, 0][ended])
    assert np.array_equal(sampler.solved(sample)[0, 0][ended], sampler.solved_at_end(sample)[0][ended])
    assert sampler.actions(sample)[1, 0][ended].max() == 0
    assert sampler.solved_at_end(sample).sum() == (sample.reward == 1).sum() > 20


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(["seed-a", "read-more"]))
def test_a_policy_does_not_depend_on_its_company(seed, name):
    graph = PRESETS[name]().graph().compiled()
    z = np.random.default_rng(seed).normal(size=len(graph.free_names))
    _, block = play(graph, z, S=3, seed=seed)
    _, alone = play(graph, z, S=1, seed=seed + 2)
    choices = len(graph.context) * len(graph.share) * len(graph.actions)
    assert np.array_equal(block.choice[:, 2] - 2 * choices, alone.choice[:, 0])
    assert np.array_equal(block.reward[2], alone.reward[0])
    assert np.array_equal(block.kind[2], alone.kind[0])


def test_arms_stay_aligned_when_their_episodes_end_at_different_turns():
    """Another policy at the start changes a rollout only from where it acts otherwise."""
    graph = seed_a().graph().compiled()
    (_, a), (_, b) = (play(graph, np.array([z, 0.0, 0.0]), Q=50, G=8) for z in (-1.0, 0.0))
    same_start = a.choice[0] == b.choice[0]
    assert 0 < (~same_start).sum() < same_start.sum()
    assert np.array_equal(a.choice[:, same_start], b.choice[:, same_start])


# --- against the exact visitation -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_counts_are_those_of_the_occupancy(name):
    """Chi-square of (turn, context, action) counts; a rollout counts once a turn, so each turn is its own multinomial."""
    graph = PRESETS[name]().graph().compiled()
    rng = np.random.default_rng(1)
    z = rng.normal(0, 1, len(graph.free_names))
    policy = tables(graph, z)
    n = 60_000
    sampler, sample = play(graph, z, Q=n, G=1)  # one rollout a question: all independent
    exact = occupancy(graph, policy)
    cells = len(graph.contexts) * len(graph.actions)
    for t in range(graph.turns):
        counts = np.bincount(decisions(sampler, sample)[t, 0], minlength=cells + 2)
        ended = [exact.solved[t - 1] if t else 0.0]
        ended.append(1 - exact.decision[t].sum() - ended[0])
        expected = n * np.array([*exact.decision[t].ravel(), *np.maximum(ended, 0)])
        seen = expected > 1e-9
        assert counts[~seen].sum() == 0
        if seen.sum() > 1:
            assert stats.chisquare(counts[seen], expected[seen], sum_check=False).pvalue > 1e-3
    share = sampler.solved_at_end(sample).sum() / n
    assert share == pytest.approx(exact.solved[-1], abs=4 * np.sqrt(exact.solved[-1] * (1 - exact.solved[-1]) / n))
    assert share > 0.1


def test_the_chi_square_sees_a_small_mistake():
    """The mutation: the occupancy of a policy .1 logits off is rejected."""
    graph = verify_world().graph().compiled()
    z = np.zeros(len(graph.free_names))
    n = 60_000
    sampler, sample = play(graph, z, Q=n, G=1)
    wrong = occupancy(graph, tables(graph, z + 0.1)).decision[1].ravel()
    counts = np.bincount(decisions(sampler, sample)[1, 0], minlength=wrong.size + 2)[: wrong.size]
    seen = wrong > 0
    assert stats.chisquare(counts[seen], n * wrong[seen], sum_check=False).pvalue < 1e-6


def test_rollouts_of_a_group_are_independent_given_the_question(tiny):
    graph = tiny.compiled()
    _, sample = play(graph, np.array([0.0, -1.0]), Q=40_000, G=2)
    solved = sample.reward[0] == 1
    for kind in (0, 1):
        a, b = solved[sample.kind[0] == kind].T.astype(float)
        assert abs(np.corrcoef(a, b)[0, 1]) < 4 / np.sqrt(len(a))
