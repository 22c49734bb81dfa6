"""Where batches come from: questions by step, versions by schedule, shares by rank, luck by name."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fullscale.agent import parts
from fullscale.agent.collecting import Collector, chosen
from fullscale.agent.ranks import Ranks
from fullscale.agent.rollouts import joined
from fullscale.agent.schedules import Asynchronous
from minimodel.agent.collect import Draws
from minimodel.agent.schedule import Completion, InFlight, Lag
from sim.learning.setup import Evaluation
from tests.fullscale.agent.small import ASKED, QUESTIONS, begin, moved, small_world, taught, training

DRAWS = Draws(0, "tests")


def collector(config=None, *, ranks=None, weights=None, seed=0, published=0, **more):
    """A collector of a run in the small world; weights by version."""
    run = begin(config or training(), seed=seed, **more)
    network = taught()
    found = Collector(
        run.config, run.parts, seed, "tests", run.collector.folder, ranks or Ranks(), weights or (lambda v: network)
    )
    found.published(published)
    return found


# --- questions --------------------------------------------------------------------------------------------------------


def test_questions_of_a_batch_are_different_and_named_by_the_step():
    batches = [[q.id for q in chosen(DRAWS, step, ASKED, 4)] for step in range(30)]
    assert all(len(set(batch)) == 4 for batch in batches)
    assert len({tuple(batch) for batch in batches}) > 25
    assert batches[7] == [q.id for q in chosen(DRAWS, 7, ASKED, 4)]
    assert batches[7] != [q.id for q in chosen(Draws(1, "tests"), 7, ASKED, 4)]
    counts = Counter(name for batch in batches for name in batch)
    assert set(counts) == {q.id for q in ASKED}
    assert max(counts.values()) < 25  # 13.3 expected, deviation 2.7


def test_all_of_them_are_a_permutation():
    assert sorted(q.id for q in chosen(DRAWS, 3, ASKED, 9)) == sorted(q.id for q in ASKED)


def test_more_than_there_are_is_refused():
    with pytest.raises(ValueError, match="10 different questions of 9; ask for fewer, or bring more"):
        chosen(DRAWS, 0, ASKED, 10)


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_is_of_the_step_and_of_nothing_before_it():
    """Played third or first, after held-out and greedy episodes or without."""
    a, b = collector(), collector()
    a.held_out(0, 2, 2)
    a.batch(0)
    a.greedy(ASKED[:2], 1)
    (played, arrived), (alone, _) = a.batch(2), b.batch(2)
    np.testing.assert_array_equal(played.ids, alone.ids)
    np.testing.assert_array_equal(played.logp, alone.logp)
    assert played.questions == alone.questions == tuple(chosen(Draws(0, "tests", "train"), 2, ASKED, 4))
    assert arrived.all()


@pytest.mark.parametrize(("schedule", "live"), [(Lag(0), True), (Lag(2), False), (InFlight(1), False)])
def test_tokens_are_written_by_the_versions_of_the_schedule(schedule, live):
    asked = []
    networks = [moved(taught(), 0.02 * (v + 1), seed=v) for v in range(4)]

    def weights(version):
        asked.append(version)
        return networks[version]

    it = collector(training(schedule=schedule), weights=weights, published=3)
    played, _ = it.batch(3)
    expected = schedule.versions(3, (4, 4, 3))
    assert it.config.live == live
    assert it.config.reach == schedule.reach
    for k in range(3):
        here = played.sampled & (played.turn == k)
        at = np.broadcast_to(expected[..., k][..., None], here.shape)
        np.testing.assert_array_equal(played.version[here], at[here])
    assert set(asked) == set(np.unique(expected).tolist())


@pytest.mark.parametrize(
    ("schedule", "baseline"),
    [(Lag(1), "all"), (Completion(0.5, over="arrived"), "arrived"), (Completion(0.5), None), (Asynchronous(), "all")],
)
def test_what_a_baseline_is_over_is_the_schedules(schedule, baseline):
    found = collector(training(schedule=schedule)).baseline
    assert found == (schedule.over if baseline is None else baseline)


def test_who_arrives_is_drawn_by_the_step():
    it = collector(training(schedule=Completion(0.5, over="arrived")))
    (played, arrived), (_, again) = it.batch(1), it.batch(1)
    np.testing.assert_array_equal(arrived, again)
    drawn = it._draws("train").block("arrival", 1, 4, 4)
    np.testing.assert_array_equal(arrived, it.config.schedule.arrives(played.taken, drawn))
    assert 0 < arrived.sum() < arrived.size


# --- beside the batches -----------------------------------------------------------------------------------------------


def test_held_out_questions_are_those_held_out_with_the_newest_weights():
    networks = {0: taught(), 5: moved(taught(), 0.3)}
    it = collector(weights=networks.__getitem__, published=5)
    found = it.held_out(0, 2, 3)
    assert {q.id for q in found.questions} == {q.id for q in QUESTIONS}
    assert found.reward.shape == (2, 3)
    assert (found.version[found.sampled] == 5).all()
    old = collector(weights=networks.__getitem__).held_out(0, 2, 3)
    assert found.ids.shape != old.ids.shape or (found.ids != old.ids).any()


def test_a_greedy_reward_is_that_of_the_likeliest_episode_in_any_company():
    it = collector()
    together = it.greedy(ASKED, 0)
    assert together.shape == (9, 1)
    alone = np.concatenate([it.greedy([q], 7) for q in ASKED])  # of no step, of no place
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("shares", [2, 3])
def test_ranks_play_the_episodes_of_one(shares):
    """Each its own questions, with the luck of their places in the whole batch; nothing crosses between them."""

    class Alone(Ranks):
        def gathered(self, mine):
            return [mine]

    whole, _ = collector().batch(1)
    pieces = []
    for rank in range(shares):
        it = collector(training(), ranks=Alone(rank, shares))
        questions = chosen(it._draws("train"), 1, ASKED, 4)
        pieces.append(it._played(questions, 4, it._draws("train"), 1, it.config.schedule.versions(1, (4, 4, 3))))
    assert [len(part.questions) for part in pieces] == ([2, 2] if shares == 2 else [2, 1, 1])
    together = joined(pieces)
    assert together.questions == whole.questions
    for name in ("ids", "sampled", "turn", "action", "outcome", "reward"):
        np.testing.assert_array_equal(getattr(together, name), getattr(whole, name), err_msg=name)
    np.testing.assert_allclose(together.logp, whole.logp, atol=2e-4)


def test_the_text_of_an_episode_is_what_was_written_and_read_after_its_prompt():
    it = collector()
    played, _ = it.batch(0)
    texts = it._texts(played)
    assert len(texts) == 16
    words = it.parts.dialogue.tokenizer
    for (q, g), text in zip(np.ndindex(4, 4), texts, strict=True):
        begins = int(np.argmax(played.sampled[q, g]))
        assert text == words.decode(played.ids[q, g, begins : played.length[q, g]].tolist())
        assert "<|im_start|>system" not in text
    silent = replace(played, sampled=np.zeros_like(played.sampled))
    assert it._texts(silent) == [""] * 16


def test_what_was_begun_is_ended_once_whatever_ends_it():
    it, ended = collector(), []
    it._ends.append(lambda: ended.append(1))
    with pytest.raises(ZeroDivisionError), it:
        raise ZeroDivisionError
    assert ended == [1]
    assert it.state() == {}


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"prompts": 12}, "12 .*of 9"), ({"evaluation": Evaluation(every=5, prompts=3, group=1)}, "3 .*of 2")],
)
def test_a_world_of_few_questions_is_refused_before_anything_is_loaded(changes, words, monkeypatch):
    with small_world():
        monkeypatch.setattr(parts, "loaded", lambda source, dtype: pytest.fail("it was loaded"))
        with pytest.raises(ValueError, match=words):
            parts.assembled(training(**changes), 0, Path("nowhere"))
