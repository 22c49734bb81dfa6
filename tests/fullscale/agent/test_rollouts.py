"""Batches of episodes on a tiny model: what is carried, what is marked, what a rerun gives."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.rollouts import play
from fullscale.agent.scoring import ScoringModel
from fullscale.engine.protocol import Spoken, Turn
from minimodel.agent.collect import Draws
from sim.records.tables import Outcome
from tests.fullscale.agent.small import QUESTIONS, dialogue, engine, environment, model, settings, tokenizer

DRAWS = Draws(3, "test")


def batch(**options):
    env = environment()
    return play(engine(), env, dialogue(env), QUESTIONS, 4, settings(env), DRAWS, 0, **options)


class Scripted:
    """An engine that writes what it is told, turn by turn, in every episode."""

    def __init__(self, *turns):
        self.turns = [tokenizer().encode(text, add_special_tokens=False) for text in turns]

    def play(self, prompts, reply, settings, uniforms, between=None):
        return [self._episode(row, list(prompt), reply) for row, prompt in enumerate(prompts)]

    def _episode(self, row, ids, reply):
        marks, of, turns = [False] * len(ids), [0] * len(ids), []
        for k, wrote in enumerate(self.turns):
            turns.append(Turn(tuple(wrote), tokenizer().decode(wrote), "stop"))
            ids, marks, of = ids + wrote, marks + [True] * len(wrote), of + [k] * len(wrote)
            (said,) = reply([row], [turns[-1]])
            if said.ids is None:
                return self._spoken(ids, marks, of, turns, "over")
            ids, marks, of = ids + list(said.ids), marks + [False] * len(said.ids), of + [k] * len(said.ids)
        return self._spoken(ids, marks, of, turns, "context")

    def _spoken(self, ids, marks, of, turns, ended):
        sampled = np.array(marks)
        zeros = np.zeros(len(ids), np.float32)
        return Spoken(
            np.array(ids),
            sampled,
            zeros,
            zeros,
            np.where(sampled, 0, -1),
            np.array(of),
            np.zeros(len(ids), np.int64),
            tuple(turns),
            ended,
        )


def scripted(*turns, **world):
    env = environment(**world)
    return play(Scripted(*turns), env, dialogue(env), QUESTIONS[:1], 2, settings(env), DRAWS, 0), env


def test_a_search_and_a_right_answer_by_hand():
    found, env = scripted("<search>capital of France</search>", "So. <answer>Paris</answer>")
    assert found.taken.tolist() == [[2, 2]]
    assert [env.actions[a] for a in found.action[0, 0, :2]] == ["search", "answer"]
    assert found.action[0, 0, 2] == -1
    assert found.reward.tolist() == [[1, 1]]
    assert found.outcome.tolist() == [[Outcome.SOLVED] * 2]
    assert found.correct[0, 0].tolist() == [False, True, False]
    assert found.hit[0, 0].tolist() == [True, True, False]
    assert not found.guessed.any()
    assert [env.contexts[c] for c in found.context[0, 0, :2]] == ["start", "fresh"]
    read = tokenizer().decode(found.ids[0, 0][(~found.sampled & (found.turn == 0))[0, 0]])
    assert "capital of France" in read
    assert "<information>Doc 1 (Title: Paris)" in read
    prompt = len(dialogue(env).prompt(QUESTIONS[0]))
    told = (found.turn[0, 0] == 0) & ~found.sampled[0, 0] & (np.arange(found.ids.shape[-1]) < found.length[0, 0])
    assert found.tool_tokens[0, 0, 0] == told.sum() - prompt > 5
    assert found.tool_tokens[0, 0, 1] == 0


def test_a_guess_a_wrong_answer_and_too_many_turns():
    found, _ = scripted("<answer>Oslo</answer>", "no tag", "<search>France</search>")
    assert found.taken.tolist() == [[3, 3]]
    assert found.guessed.all()
    assert found.outcome.tolist() == [[Outcome.TURN_LIMIT] * 2]
    assert found.action[0, 0, 1] == -1
    assert found.reward.tolist() == [[0, 0]]


def test_an_episode_that_finds_no_room_is_truncated():
    found, _ = scripted("<search>France</search>")
    assert found.outcome.tolist() == [[Outcome.TRUNCATED] * 2]
    assert found.reward.tolist() == [[0, 0]]
    assert found.arrived.all()


def test_a_tool_that_fails_leaves_the_group():
    env = environment()

    def broken(query, k):
        raise OSError("no route to the index")

    env.retriever.search = broken
    env.toolbox = type(env.toolbox)(type(env.toolbox.patience)(attempts=1))
    found = play(Scripted("<search>France</search>"), env, dialogue(env), QUESTIONS[:1], 2, settings(env), DRAWS, 0)
    assert found.outcome.tolist() == [[Outcome.INFRASTRUCTURE_FAILURE] * 2]
    assert np.isnan(found.reward).all()
    assert not found.arrived.any()


def test_what_the_learner_scores_is_what_the_engine_wrote():
    """Known faults 8 and 9: ids as sampled, one temperature, one shift."""
    found = batch()
    ids, where = (torch.from_numpy(x.reshape(-1, x.shape[-1])) for x in (found.ids, found.sampled))
    with torch.no_grad():
        scored = LanguagePolicy(ScoringModel(model()), 0.9).scalars(ids, {"logp", "entropy"}, None, where)
    assert where.sum() > 100
    for name in ("logp", "entropy"):
        gap = (scored[name] - torch.from_numpy(getattr(found, name).reshape(ids.shape))).abs()
        assert gap.max() < 1e-3, name
        assert gap[where].mean() < 1e-4
    rolled = LanguagePolicy(ScoringModel(model()), 0.9).scalars(ids.roll(1, 1), {"logp"}, None, where)["logp"]
    assert (rolled - scored["logp"]).abs()[where].mean() > 0.1


def test_masks_lengths_and_turns_agree():
    found = batch()
    T = found.ids.shape[-1]
    inside = np.arange(T) < found.length[..., None]
    assert not (found.sampled & ~inside).any()
    assert (found.version[found.sampled] == 0).all()
    assert (found.version[~found.sampled] == -1).all()
    assert (found.logp[~found.sampled] == 0).all()
    assert (found.logp[found.sampled] < 0).all()
    for q, g in np.ndindex(found.taken.shape):
        turns = np.unique(found.turn[q, g][found.sampled[q, g]])
        assert turns.tolist() == list(range(found.taken[q, g]))
        assert (found.why[q, g] != "").sum() == found.taken[q, g]
    assert (found.sampled.sum(-1) + found.tool_tokens.sum(-1) < found.length).all()  # and a prompt


def test_episodes_of_a_group_differ_and_a_rerun_does_not():
    """Known fault 28: luck of its own for every episode, whatever order they end in."""
    once, again = batch(), batch()
    for f in fields(once):
        np.testing.assert_array_equal(getattr(once, f.name), getattr(again, f.name))
    assert len({tuple(row) for row in once.ids[0]}) == 4
    other = play(
        engine(), environment(), dialogue(environment()), QUESTIONS, 4, settings(environment()), Draws(4, "test"), 0
    )
    assert not np.array_equal(other.ids[..., :20], once.ids[..., :20]) or other.ids.shape != once.ids.shape


def test_greedy_episodes_of_a_group_are_the_same():
    found = batch(greedy=True)
    assert (found.ids == found.ids[:, :1]).all()


def test_weights_published_on_the_way_stamp_what_they_wrote():
    """Known fault 22."""
    env, playing, newer = environment(), engine(3), model(seed=1)

    def between(step):
        if step == 5:
            playing.publish(4, newer)

    found = play(playing, env, dialogue(env), QUESTIONS, 2, settings(env), DRAWS, 0, between=between)
    first = found.version[0, 0][found.sampled[0, 0]]
    assert first[:5].tolist() == [3] * 5
    assert set(first[5:].tolist()) == {4}


def test_an_engine_that_lets_go_too_early_is_an_error():
    class Early(Scripted):
        def _spoken(self, ids, marks, of, turns, ended):
            return super()._spoken(ids, marks, of, turns, "over")

    env = environment()
    with pytest.raises(RuntimeError, match="before it was over"):
        play(Early("<search>x</search>"), env, dialogue(env), QUESTIONS[:1], 1, settings(env), DRAWS, 0)
