from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimodel.model.vocabulary import Vocabulary
from minimodel.tasks.facts import draw_facts
from minimodel.tasks.script import Script
from minimodel.tasks.task import Task, played_world
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import SequenceMean
from sim.mdp.policy import free_logits, tables
from sim.mdp.theory.drift import Objective, effective_gap
from sim.mdp.worlds import World, seed_a

DEFAULT = Vocabulary()
HARD = World(known=0.21, hit_known=0.13, hit_unknown=0.56, icc=0.6, retry_known=0.6, anchoring=0.3)


@settings(max_examples=25)
@given(st.integers(0, 2**40), st.floats(0.05, 0.9), st.floats(0.1, 0.9), st.floats(0.1, 0.6), st.floats(0.2, 0.5))
def test_the_world_is_drawn_exactly(seed, known, hit, icc, held_out):
    """In both splits each kind has its share to within one question, and the mean hit rate is the world's."""
    world = World(known=known, hit_unknown=hit, icc=icc, unknown_kinds=3)
    facts = draw_facts(world, DEFAULT, held_out, seed)
    asked, rates = (np.array(x) for x in list(zip(*world.kinds(), strict=True))[1:])
    for split in ("train", "held_out"):
        shares, n = facts.shares(split), len(facts.split(split))
        assert shares.sum() == pytest.approx(1)
        assert np.abs(shares - asked).max() < 1 / n
        assert abs(shares[0] - known) <= 0.5 / n + 1e-9
        assert rates @ shares == pytest.approx(rates @ asked, abs=0.01)
    assert facts.known.mean() == pytest.approx(known, abs=1 / 384)


@pytest.mark.parametrize("world", [seed_a(), HARD, replace(seed_a(), known=0.0), replace(seed_a(), known=1.0)])
def test_every_question_is_there_once(world):
    facts = draw_facts(world, DEFAULT, 1 / 3, 5)
    assert len(set(zip(facts.entity.tolist(), facts.relation.tolist(), strict=True))) == 384
    assert (facts.entity.max(), facts.relation.max(), facts.answer.max()) == (47, 7, 63)
    assert set(np.bincount(facts.answer).tolist()) == {6}
    assert (len(facts.train), len(facts.held_out)) == (256, 128)
    assert sorted([*facts.train, *facts.held_out]) == list(range(384))
    assert facts.known.sum() == round(384 * world.known)


def test_worlds_that_differ_in_retrieval_share_their_facts():
    one, other = (draw_facts(w, DEFAULT, 1 / 3, 3) for w in (World(known=0.21, icc=0.0, unknown_kinds=1), HARD))
    for name in ("answer", "known", "train", "held_out"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.kind.max() == 1 < other.kind.max()


def test_another_seed_is_another_world():
    one, other, again = (draw_facts(HARD, DEFAULT, 1 / 3, seed) for seed in (3, 4, 3))
    assert (one.answer != other.answer).mean() > 0.9
    assert (one.known != other.known).any()
    np.testing.assert_array_equal(one.kind, again.kind)


def test_the_graph_has_the_shares_as_drawn():
    facts, world = draw_facts(HARD, DEFAULT, 1 / 3, 0), played_world(Task(world=HARD))
    graph, asked = facts.graph(world, "held_out"), world.graph().compiled()
    np.testing.assert_allclose(graph.share, np.bincount(facts.kind[facts.held_out]) / 128)
    assert 0 < np.abs(graph.share - asked.share).max() < 1 / 128
    np.testing.assert_allclose(graph.probability, asked.probability)


def test_a_split_too_small_for_its_kinds_is_refused():
    with pytest.raises(
        ValueError, match=r"4 questions to split 'held_out' hold none of kind 'unknown hit 0\.\d+', whose share"
    ):
        draw_facts(seed_a(), Vocabulary(entities=10), 0.05, 0)
    with pytest.raises(ValueError, match=r"held_out = 1.0 must lie in \[0, 1\)"):
        draw_facts(seed_a(), DEFAULT, 1.0, 0)


def test_without_a_held_out_split_there_is_none_to_ask_for():
    facts = draw_facts(seed_a(), DEFAULT, 0.0, 0)
    assert facts.shares().sum() == pytest.approx(1)
    with pytest.raises(ValueError, match="the split 'held_out' is empty"):
        facts.shares("held_out")
    with pytest.raises(ValueError, match="no split 'test'"):
        facts.shares("test")


@pytest.mark.parametrize("other", [World(known=0.3, icc=0.0, unknown_kinds=1), World(known=0.0, unknown_kinds=10)])
def test_a_graph_of_another_world_is_refused(other):
    with pytest.raises(ValueError, match="facts of 10 kinds do not fit a world of"):
        draw_facts(HARD, DEFAULT, 1 / 3, 0).graph(other)


def test_a_graph_of_a_world_with_other_shares_is_refused():
    """As many kinds, but a mean hit rate of .3 where .56 was drawn: it is in the shares of the kinds."""
    with pytest.raises(ValueError, match=r"facts with shares \[0.211 .*\] do not fit a world whose kinds have \[0.21 "):
        draw_facts(HARD, DEFAULT, 1 / 3, 0).graph(replace(HARD, hit_unknown=0.3))
    assert draw_facts(HARD, DEFAULT, 1 / 3, 0).graph(replace(HARD, hit_known=0.3)).probability[0, 0, 0, 0] == 0.3


# --- the drift of the world that was drawn ----------------------------------------------------------------------------


def gap(hit: float, guess: float = 0.02) -> float:
    """Pull of a sequence mean against guessing at the start; the script's habit, one quarter known."""
    world = World(known=0.25, hit_known=hit, hit_unknown=hit, icc=0.0, unknown_kinds=1, retry_known=1.0, anchoring=1.0)
    task = Task(world=world)
    graph = draw_facts(world, task.vocabulary, task.held_out, 0).graph(played_world(task))
    chance = Script(guess=guess).probabilities(graph)
    odds = np.log(guess / (1 - guess))
    policy = tables(graph, free_logits(graph, start__answer=odds, fresh__answer=800.0, failed__answer=-800.0))
    np.testing.assert_allclose(policy.probability, chance, atol=1e-12)
    return effective_gap(graph, policy, Objective(normaliser=SequenceMean(), credit=GroupCredit(std=True)))


def test_the_length_weighted_drift_changes_sign_with_the_hit_rate():
    """Towards guessing at a hit rate of .35, where it is worse by .06; against it at .5."""
    assert gap(0.35) == pytest.approx(-0.063, abs=0.003)
    assert gap(0.5) == pytest.approx(0.0135, abs=0.003)
