from dataclasses import replace

import numpy as np
import pytest

from minimodel.model.vocabulary import ANSWER, END, SEARCH
from minimodel.tasks.structure import compiled
from minimodel.tasks.tables import grammar, moves
from minimodel.tasks.task import Task, played_world
from sim.mdp.latency import Constant, LogNormal
from sim.mdp.worlds import PRESETS, read_more_world, seed_a

WORLDS = [played_world(Task(world=PRESETS[name]())) for name in PRESETS]


def test_the_grammar_by_hand(vocabulary):
    """Contexts of seed A: start, fresh, failed; search e r, answer a END."""
    v, words = vocabulary, grammar(compiled(seed_a()), vocabulary)
    said = np.array([
        [SEARCH, v.entity(0), v.relation(7)], [SEARCH, v.entity(15), v.relation(0)], [ANSWER, v.answer(15), END],
        [SEARCH, v.relation(7), v.entity(0)], [ANSWER, v.answer(0), v.filler(0)], [END, v.answer(0), END],
    ])  # fmt: skip
    assert words.actions(np.zeros(6, np.int64), said).tolist() == [0, 0, 1, -1, -1, -1]
    assert words.decision.tolist() == [SEARCH, ANSWER, -1]


def test_the_moves_by_hand():
    graph = compiled(WORLDS[0])
    m, names = moves(graph, WORLDS[0]), [s.name for s in graph.source.states] + ["solved"]
    start, hit, miss, failed = (names.index(n) for n in ("start", "fresh hit", "fresh miss", "failed (answered)"))
    assert [names[n] for n in m.after[start, 0]] == ["fresh miss", "fresh hit"]
    assert [names[n] for n in m.after[hit, 1]] == ["failed (answered)", "solved"]  # the graph holds the second alone
    assert [names[n] for n in m.after[miss, 1]] == ["failed (answered)", "solved"]  # and here the first
    assert [names[n] for n in m.after[failed, 1]] == ["failed (answered)", "solved"]  # a failure may repeat itself
    assert m.twin[[start, hit, miss, failed]].tolist() == [[start] * 2, [miss, hit], [miss, hit], [failed] * 2]
    np.testing.assert_allclose(m.works[0, [start, hit, failed], [0, 1, 0]], [0.8, 1, 0.4])
    assert m.observed[start].tolist() == [500, 4, 0]
    assert m.laws == (Constant(0.0), LogNormal(0.8, 0.6), LogNormal(0.01, 0.1))
    assert m.law[start].tolist() == [1, 2, 0]


@pytest.mark.parametrize("world", [*WORLDS, replace(read_more_world(), hit_known=1.0, guess_known=1.0)])
def test_the_moves_are_the_graphs_transitions(world):
    """P(next node) rebuilt from them is the graph's, in every node, for every action and kind."""
    graph = compiled(world)
    m, N = moves(graph, world), len(graph.context)
    for n in range(graph.states):
        for a in np.flatnonzero(graph.offered[graph.context[n]]):
            assert (m.after[n, a] >= 0).all(), (graph.source.states[n].name, graph.actions[a])
            for h in range(len(graph.share)):
                p = m.works[h, n, a]
                mine = np.bincount(m.after[n, a], [1 - p, p], N)
                theirs = np.bincount(graph.target[n, a], graph.probability[h, n, a], N)
                np.testing.assert_allclose(mine, theirs, atol=1e-12)
    assert (m.after[:, -1] == np.arange(N)[:, None]).all()
    assert (m.works[..., -1] == 0).all()
