import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.learning.arrays import array_namespace
from sim.learning.lookup import Lookup, as_record
from sim.mdp.policy import tables
from sim.mdp.sampling import Sampler
from sim.mdp.worlds import PRESETS
from sim.records.rng import BlockStream

Q, G = 3, 4


def batch(name, seeds, z=None):
    """Rollouts, their lookup, and (seed, question, member, turn, context, action) of every turn that takes place."""
    graph = PRESETS[name]().graph().compiled()
    sampler = Sampler(graph)
    z = np.zeros((len(seeds), len(graph.free_names))) if z is None else z
    kind = sampler.kinds(BlockStream(seeds, "lookup/question").uniforms(0, (Q,)))
    uniform = BlockStream(seeds, "lookup/turn").uniforms(0, (graph.turns, 2, G, Q))
    sample = sampler(tables(graph, z).probability, kind, uniform)
    node, action = sampler.nodes(sample), sampler.actions(sample)
    turns = [
        (s, n % Q, n // Q, k, graph.context[node[k, s, n]], action[k, s, n])
        for k, s, n in zip(*np.nonzero(sampler.running(sample)), strict=True)
    ]
    return graph, sampler, sample, Lookup.of(sample, sampler.decisions), turns


def test_the_records_view_by_hand():
    turn_major = np.arange(24).reshape(2, 1, 12)  # [K, S, G * Q]: the questions are innermost
    view = as_record(turn_major, Q, G)
    assert view.shape == (1, Q, G, 2)
    assert view[0, 2, 1, 0] == 1 * Q + 2
    assert view[0, 0, 3, 1] == 12 + 3 * Q
    assert np.shares_memory(view, turn_major)


@given(st.sampled_from(sorted(PRESETS)), st.integers(0, 1000))
def test_gather_reads_the_decision_of_every_turn(name, seed):
    graph, _, _, lookup, turns = batch(name, (seed, seed + 1))
    table = np.random.default_rng(seed).normal(size=(2, *graph.offered.shape))
    got = as_record(lookup.gather(table), Q, G)
    expected = np.zeros_like(got)
    for s, q, g, k, c, a in turns:
        expected[s, q, g, k] = table[s, c, a]
    np.testing.assert_array_equal(got, expected)  # 0 once the episode is over


@given(st.sampled_from(sorted(PRESETS)), st.integers(0, 1000))
def test_scatter_sums_by_decision(name, seed):
    graph, _, _, lookup, turns = batch(name, (seed, seed + 1))
    values = np.random.default_rng(seed).normal(size=(2, Q, G, graph.turns))
    expected = np.zeros((2, *graph.offered.shape))
    for s, q, g, k, c, a in turns:
        expected[s, c, a] += values[s, q, g, k]
    np.testing.assert_allclose(lookup.scatter(values, expected.shape), expected, atol=1e-12)


@given(st.sampled_from(sorted(PRESETS)), st.integers(0, 1000))
def test_gather_and_scatter_are_transposes(name, seed):
    graph, _, _, lookup, _ = batch(name, (seed, seed + 1))
    rng = np.random.default_rng(seed)
    table, values = rng.normal(size=(2, *graph.offered.shape)), rng.normal(size=(2, Q, G, graph.turns))
    there = (as_record(lookup.gather(table), Q, G) * values).sum()
    assert there == pytest.approx((table * lookup.scatter(values, table.shape)).sum())


@given(st.sampled_from(sorted(PRESETS)), st.integers(0, 1000))
def test_counts_by_turn(name, seed):
    graph, sampler, sample, lookup, turns = batch(name, (seed, seed + 1))
    counts, solved = lookup.count((2, *graph.offered.shape))
    expected = np.zeros(counts.shape)
    for s, _, _, k, c, a in turns:
        expected[s, k, c, a] += 1
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_allclose(lookup.visits((2, *graph.offered.shape)), expected.sum((1, 3)) / (Q * G))
    by_end = sampler.solved(sample).sum(-1).T  # [S, K]
    np.testing.assert_array_equal(solved, np.concatenate([np.zeros((2, 1)), by_end[:, :-1]], 1))


@given(st.integers(2, 9), st.integers(0, 1000))
def test_a_seed_reads_the_same_bits_alone_and_in_a_block(S, seed):
    seeds = tuple(range(seed, seed + S))
    graph, _, _, block, _ = batch("read-more", seeds)
    rng = np.random.default_rng(seed)
    table, values = rng.normal(size=(S, *graph.offered.shape)), rng.normal(size=(S, Q, G, graph.turns))
    for s in range(S):
        alone = batch("read-more", seeds[s : s + 1])[3]
        row = slice(s, s + 1)
        assert block.gather(table)[:, row].tobytes() == alone.gather(table[row]).tobytes()
        assert (
            block.scatter(values, table.shape)[s].tobytes() == alone.scatter(values[row], table[row].shape)[0].tobytes()
        )


def test_the_array_library_of_an_argument():
    assert array_namespace(np.zeros(1)).asarray([1.0]).dtype == np.float64
    torch = pytest.importorskip("torch")
    assert array_namespace(torch.zeros(1)).asarray([1.0]).dtype == torch.float32
    with pytest.raises(TypeError):
        array_namespace([1.0])
