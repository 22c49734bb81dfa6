import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minimodel.agent.collect import Draws, choose, collect
from minimodel.agent.engine import LocalEngine
from minimodel.model.vocabulary import PAD
from minimodel.tasks.layout import PROMPT
from sim.records.rng import uniforms
from sim.records.tables import Outcome
from tests.minimodel.agent.small import TASK, VERIFY_TASK, environment_of, facts_of, moved, play, policy_of

LAYOUT, K = TASK.layout, TASK.layout.turns


@pytest.fixture(scope="module")
def batch():
    return play(policy_of(), group=8)


def tokens(batch):
    return batch.ids.reshape(-1, batch.ids.shape[-1])


# --- what a batch holds -----------------------------------------------------------------------------------------------


def test_the_tests_see_every_way_an_episode_can_end(batch):
    assert set(batch.taken.ravel()) == {1, 2, 3}
    assert set(batch.outcome.ravel()) == {Outcome.SOLVED, Outcome.TURN_LIMIT}
    assert set(batch.action[batch.running]) == {-1, 0, 1}
    assert {bool(x) for x in batch.guessed.ravel()} == {True, False}


def test_prompt_turns_and_padding_stand_in_their_slots(batch):
    assert np.array_equal(batch.sampled, LAYOUT.sampled(batch.taken))
    prompts = environment_of(TASK).prompts(np.repeat(batch.question, 8))
    assert np.array_equal(tokens(batch)[:, :PROMPT], prompts)
    beyond = np.arange(LAYOUT.length()) >= np.vectorize(LAYOUT.length)(batch.taken)[..., None]
    assert beyond.any()
    assert (batch.ids[beyond] == PAD).all()
    observed = ~beyond & ~batch.sampled
    observed[..., :PROMPT] = False
    assert (batch.ids[observed] != PAD).all()
    for name, elsewhere in (("logp", 0), ("entropy", 0), ("version", -1)):
        assert (getattr(batch, name)[~batch.sampled] == elsewhere).all()
    assert (batch.version[batch.sampled] == 0).all()
    assert (batch.logp[batch.sampled] < 0).all()
    for name in ("node", "context", "latency_s", "tool_tokens", "decision"):
        assert (getattr(batch, name)[~batch.running] == 0).all()
    assert (batch.action[~batch.running] == -1).all()


@pytest.mark.parametrize("task", [TASK, VERIFY_TASK], ids=["retry", "verify"])
def test_the_environment_replays_the_tokens(task):
    """What was sampled, fed to the environment once more with the same draws, gives the same episodes."""
    batch, environment, layout = play(policy_of(task), task, group=8, step=5), environment_of(task), task.layout
    question = np.repeat(batch.question, 8)
    world = uniforms(0, "tests/train/world", 5, (layout.turns, 3, len(question)))
    episodes = environment.begin(question, world)
    flat = {name: getattr(batch, name).reshape(len(question), -1) for name in ("action", "node", "context", "correct")}
    for k in range(layout.turns):
        rows = np.flatnonzero(~episodes.done)
        at = PROMPT + k * layout.turn
        played = environment.act(episodes, rows, tokens(batch)[rows, at : at + layout.written])
        for name, found in flat.items():
            assert np.array_equal(found[rows, k], getattr(played, name))
        for name in ("latency_s", "tool_tokens"):
            assert np.array_equal(getattr(batch, name).reshape(len(question), -1)[rows, k], getattr(played, name))
        on = ~played.done
        if k + 1 < layout.turns:
            seen = tokens(batch)[rows[on], at + layout.written : at + layout.turn]
            assert np.array_equal(seen, played.observation[on])
        assert np.array_equal(batch.taken.ravel()[rows[played.done]], np.full((~on).sum(), k + 1))
    for name in ("reward", "outcome", "guessed"):
        assert np.array_equal(getattr(batch, name).ravel(), getattr(episodes, name))
    assert episodes.done.all()
    assert 0 < batch.reward.mean() < 1


def test_decisions_are_noted_where_they_are_made(batch):
    """The noted log-probability of the decision that was taken is that of the token at its position."""
    decisions = np.array(TASK.decisions)
    for k, at in enumerate(LAYOUT.decisions):
        here = batch.running[..., k] & np.isin(batch.ids[..., at], decisions)
        taken = np.argmax(batch.ids[..., at, None] == decisions, -1)
        noted = np.take_along_axis(batch.decision[..., k, :], taken[..., None], -1)[..., 0]
        assert here.any()
        assert np.array_equal(noted[here], batch.logp[..., at][here])


def test_greedy_members_differ_in_the_world_alone():
    greedy = play(policy_of(), group=4, greedy=True)
    first = slice(PROMPT, PROMPT + LAYOUT.written)
    assert (greedy.ids[..., first] == greedy.ids[:, :1, first]).all()
    assert (greedy.logp[..., first] == greedy.logp[:, :1, first]).all()
    assert not (greedy.reward == greedy.reward[:, :1]).all()


def test_several_versions_write_in_turn(batch):
    """Each turn has the version asked for; they are published in order, and only when they change."""
    policies = {v: moved(policy_of(), 0.02 * v, seed=v) for v in range(3)}
    versions = np.zeros((4, 2, K), int)
    versions[:, 1] = [0, 1, 2]
    versions[2:, 1] = [1, 1, 2]
    asked, engine = [], LocalEngine()

    def publish(v):
        asked.append(v)
        engine.publish(v, policies[v])

    question = facts_of(TASK).train[:4]
    found = collect(engine, environment_of(TASK), question, 2, versions, publish, Draws(0, "tests"), 0)
    assert asked == [0, 0, 1, 2, 1, 2]
    turn_of = np.broadcast_to(LAYOUT.turn_of, found.version.shape)
    expected = np.take_along_axis(versions, turn_of, -1)
    assert np.array_equal(found.version[found.sampled], expected[found.sampled])
    assert set(found.version[found.sampled]) == {0, 1, 2}


# --- draws ------------------------------------------------------------------------------------------------------------


def test_an_episode_does_not_depend_on_its_company(batch):
    """Other questions beside it: the same tokens, and log-probs to rounding."""
    others = facts_of(TASK).train[[0, 13, 2, 14, 4, 15, 6, 16, 8, 17, 10, 12]]
    found = play(policy_of(), questions=others, group=8)
    same = others == batch.question
    assert 0 < same.sum() < len(same)
    for name in ("ids", "taken", "reward", "latency_s"):
        assert np.array_equal(getattr(found, name)[same], getattr(batch, name)[same])
    np.testing.assert_allclose(found.logp[same], batch.logp[same], atol=1e-5)
    assert not np.array_equal(found.ids, batch.ids)


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=3)
def test_an_episode_does_not_depend_on_whom_it_is_served_with(seed):
    """Equal weights under several numbers: rows are served in other groups and another order, and write the same."""
    policy, rng = policy_of(), np.random.default_rng(seed)
    versions = np.sort(rng.integers(0, 3, (12, 4, K)), -1)
    whole, found = play(policy), play(dict.fromkeys(range(3), policy), versions=versions)
    for name in ("ids", "taken", "reward", "outcome", "latency_s", "action", "correct"):
        assert np.array_equal(getattr(whole, name), getattr(found, name))
    np.testing.assert_allclose(whole.logp, found.logp, atol=1e-5)
    turn_of = np.broadcast_to(LAYOUT.turn_of, found.version.shape)
    assert np.array_equal(found.version, np.where(found.sampled, np.take_along_axis(versions, turn_of, -1), -1))


def test_every_member_of_a_group_has_a_stream_of_its_own(batch):
    distinct = [len({row.tobytes() for row in group}) for group in batch.ids]
    assert min(distinct) > 1
    assert np.mean(distinct) > 7


def test_draws_are_named_by_seed_study_purpose_name_and_step():
    base = Draws(0, "a").block("token", 0, 500)
    assert np.array_equal(base, Draws(0, "a", "train").block("token", 0, 500))
    for other in (
        Draws(1, "a").block("token", 0, 500),
        Draws(0, "b").block("token", 0, 500),
        Draws(0, "a", "eval").block("token", 0, 500),
        Draws(0, "a").block("world", 0, 500),
        Draws(0, "a").block("token", 1, 500),
    ):
        assert np.abs(np.corrcoef(base, other)[0, 1]) < 0.2
        assert not np.isin(other, base).all()


def test_questions_are_different_and_every_one_has_its_turn():
    pool = facts_of(TASK).train
    asked = np.array([choose(Draws(0, "a"), step, pool, 6) for step in range(200)])
    assert all(len(set(row)) == 6 for row in asked)
    assert set(asked.ravel()) == set(pool)
    counts = np.bincount(np.searchsorted(pool, asked.ravel()), minlength=len(pool))
    z = (counts - 200 / 3) / np.sqrt(200 * (1 / 3) * (2 / 3))
    assert np.abs(z).max() < 4
    assert not np.array_equal(np.sort(asked[0]), asked[0])  # in random order, so minibatches are not alike


def test_arms_share_their_questions_whatever_their_group_size():
    pool = facts_of(TASK).train
    few, many = choose(Draws(3, "a"), 7, pool, 4), choose(Draws(3, "a"), 7, pool, 9)
    assert np.array_equal(few, many[:4])


def test_too_few_questions_are_refused():
    with pytest.raises(ValueError, match="19 different questions of 18"):
        choose(Draws(0, "a"), 0, facts_of(TASK).train, 19)


def test_the_next_turn_begins_with_the_last_one_as_it_was_sampled():
    """Every feed of the engine continues what was sampled before: turn k is an exact prefix of turn k + 1."""
    heard = []

    class Listening(LocalEngine):
        def open(self, prompts):
            talk = super().open(prompts)
            write, read = talk.write, talk.read
            talk.write = lambda *given: heard.append(talk.ids.clone()) or write(*given)
            talk.read = lambda *given: read(*given)
            return talk

    engine, policy = Listening(), policy_of()
    turns = np.zeros((6, 4, K), int)
    question = facts_of(TASK).train[:6]
    found = collect(
        engine, environment_of(TASK), question, 4, turns, lambda v: engine.publish(v, policy), Draws(0, "t"), 0
    )
    alive = np.arange(24)
    for k, read in enumerate(heard):
        alive = alive[found.taken.ravel()[alive] > k]
        assert torch.equal(read, torch.from_numpy(tokens(found)[alive, : PROMPT + k * LAYOUT.turn]))
    assert len(heard) == K
