"""Episodes written by several versions, in legs; contexts that are replaced; and what is left when something ends early."""

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given as for_any
from hypothesis import settings as examples
from hypothesis import strategies as st

from fullscale.agent.compaction import Compaction
from fullscale.agent.handed import Scorable
from fullscale.agent.record import to_rollouts
from fullscale.engine.protocol import Reply, Spoken
from sim.records.tables import Outcome
from tests.fullscale.agent.small import (
    ASKED,
    Noted,
    alone,
    batch,
    dialogue,
    engine,
    environment,
    model,
    moved,
    settings,
    taught,
)

Q, G, K = 4, 4, 3
PROMPT = len(dialogue(environment()).prompt(ASKED[0]))
SAME = (
    "ids",
    "sampled",
    "turn",
    "segment",
    "length",
    "taken",
    "action",
    "outcome",
    "reward",
    "why",
    "decision",
    "tool_tokens",
)
EPISODES = ("plain", "compacted", "short of room", "compacted short of room", "short turns")
HOW = {
    "plain": {},
    "compacted": {"how": {"compaction": Compaction(at_tokens=PROMPT + 40)}, "context_tokens": PROMPT + 160},
    "short of room": {"context_tokens": PROMPT + 70},
    "compacted short of room": {"how": {"compaction": Compaction(at_tokens=PROMPT + 4)}, "context_tokens": PROMPT + 90},
    "short turns": {"turn_tokens": 4},
}


def versions_of(*path):
    return np.broadcast_to(np.array(path), (Q, G, K)).copy()


def same(a, b):
    """Names of what differs between two batches, log-probs and versions apart."""
    return [name for name in SAME if not np.array_equal(getattr(a, name), getattr(b, name))]


@pytest.fixture(scope="module")
def network():
    return taught()


@pytest.mark.parametrize("kind", EPISODES)
def test_one_version_throughout_is_no_versions_at_all(kind, network):
    a, b = batch(network, **HOW[kind]), batch({0: network}, versions=versions_of(0), **HOW[kind])
    for f in fields(a):
        if f.name not in ("questions", "latency_s"):
            np.testing.assert_array_equal(getattr(a, f.name), getattr(b, f.name), f.name)


@pytest.mark.parametrize("kind", EPISODES)
def test_legs_of_the_same_weights_are_the_same_episodes(kind, network):
    """Luck has its place, contexts are carried, and what ends an episode ends it at the edge of a leg as well."""
    whole = batch(network, **HOW[kind])
    cut = batch(dict.fromkeys(range(3), network), versions=versions_of(0, 1, 2), **HOW[kind])
    assert same(cut, whole) == []
    np.testing.assert_allclose(cut.logp, whole.logp, atol=2e-5)
    written = cut.sampled & (np.arange(cut.ids.shape[-1]) < cut.length[..., None])
    assert (cut.version[written] == cut.turn[written]).all()
    assert whole.taken.max() > 1


@examples(max_examples=4)
@for_any(st.integers(0, 2**31), st.sampled_from(EPISODES))
def test_whatever_paths_the_versions_take(seed, kind):
    network = taught()
    rng = np.random.default_rng(seed)
    versions = np.sort(rng.integers(0, 3, (Q, G, K)), -1)
    whole, cut = batch(network, **HOW[kind]), batch(dict.fromkeys(range(3), network), versions=versions, **HOW[kind])
    assert same(cut, whole) == []
    by_token = np.take_along_axis(versions, np.minimum(cut.turn, K - 1), -1)
    assert (cut.version == np.where(cut.sampled, by_token, -1)).all()


def check_conditioning(found, by_version, temperature=1.0, within=2e-4):
    """Every log-prob is that of its version's weights, given exactly the tokens before it in its segment."""
    checked = 0
    for q, g in np.ndindex(found.reward.shape):
        n = int(found.length[q, g])
        for s in range(found.segment[q, g, :n].max() + 1):
            inside = np.flatnonzero(found.segment[q, g, :n] == s)
            assert (np.diff(inside) == 1).all()
            ids, sampled = found.ids[q, g, inside], found.sampled[q, g, inside]
            version, logp = found.version[q, g, inside], found.logp[q, g, inside]
            for v in np.unique(version[sampled]):
                own = alone(by_version[int(v)], ids, temperature)
                at = np.flatnonzero(sampled & (version == v))
                true = own[at - 1, ids[at]].numpy()
                np.testing.assert_allclose(logp[at], true, atol=within)
                checked += len(at)
    assert checked == found.sampled.sum() > 50


@pytest.mark.parametrize("kind", ["plain", "compacted"])
def test_each_turn_is_written_by_its_own_version(kind, network):
    by_version = {v: moved(network, 0.1 * v, seed=v) for v in (0, 1, 2)}
    found = batch(by_version, versions=versions_of(0, 1, 2), **HOW[kind])
    assert set(np.unique(found.version)) == {-1, 0, 1, 2}
    check_conditioning(found, by_version)
    wrong = batch(by_version[0], **HOW[kind])
    assert same(wrong, found) != []


def test_rollouts_of_different_ages_in_one_batch(network):
    by_version = {v: moved(network, 0.1 * v, seed=v) for v in (0, 1, 2)}
    versions = np.sort(np.random.default_rng(1).integers(0, 3, (Q, G, K)), -1)
    found = batch(by_version, versions=versions)
    check_conditioning(found, by_version)
    assert len(np.unique(versions.reshape(-1, K), axis=0)) > 4


def test_temperature_is_that_of_all_legs(network):
    by_version = {v: moved(network, 0.1 * v, seed=v) for v in (0, 1, 2)}
    found = batch(by_version, versions=versions_of(0, 1, 2), temperature=0.6)
    check_conditioning(found, by_version, 0.6)


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_prompt_that_fills_the_context_leaves_nothing_to_say(network):
    found = batch(network, questions=ASKED[:2], group=2, context_tokens=PROMPT - 3)
    assert (found.outcome == Outcome.TRUNCATED).all()
    assert (found.reward == 0).all()
    assert found.arrived.all()
    assert not found.sampled.any()
    kept = to_rollouts(found, 0)
    assert kept.trajectories.outcome.tolist() == [Outcome.TRUNCATED] * 4
    assert kept.tokens.id.size == found.length.sum()
    assert not kept.tokens.train.any()


@pytest.mark.parametrize("versions", [None, (0, 1, 2)])
@pytest.mark.parametrize("room", [1, 3, 8, 20, 45, 60, 75])
def test_no_context_is_longer_than_it_may_be(room, versions, network):
    written_by = None if versions is None else versions_of(*versions)
    found = batch(dict.fromkeys(range(3), network), context_tokens=PROMPT + room, versions=written_by)
    prompts = [len(dialogue(environment()).prompt(q)) for q in found.questions]  # these are as long as they are
    assert (found.length.max(-1) <= np.maximum(PROMPT + room, prompts)).all()
    over = found.outcome == Outcome.TRUNCATED
    assert over.any()
    assert (found.reward[over] == 0).all()
    assert (found.taken[found.outcome == Outcome.TURN_LIMIT] == K).all()


def test_turns_that_the_model_ends_itself():
    """The end-of-turn token is sampled and trained on; what follows is a turn of the user's."""
    found = batch(model(), temperature=0.9, turn_tokens=40)
    q, g, k = np.argwhere((found.why == "eos") & (np.arange(K) < found.taken[..., None] - 1))[0]
    here = np.flatnonzero(found.sampled[q, g] & (found.turn[q, g] == k))
    end = dialogue(environment()).tokenizer.eos_token_id
    assert found.ids[q, g, here[-1]] == end
    read = found.ids[q, g][(found.turn[q, g] == k) & (np.arange(found.ids.shape[-1]) > here[-1])]
    text = dialogue(environment()).tokenizer.decode(read)
    assert text.startswith("\n<|im_start|>user\n<information>")
    assert "<|im_start|>assistant\n" in text
    assert (found.ids[q, g][found.sampled[q, g]] == end).sum() >= 1
    cut = batch(dict.fromkeys(range(3), model()), temperature=0.9, turn_tokens=40, versions=versions_of(0, 1, 2))
    assert same(cut, found) == []


class Failing:
    """An engine that loses some rows of its n-th call, before or after some of their tokens."""

    def __init__(self, of, call, rows, keep):
        self.of, self.call, self.rows, self.keep, self.calls = of, call, rows, keep, 0

    def publish(self, *given):
        self.of.publish(*given)

    def play(self, prompts, reply, settings, uniforms, between=None):
        self.calls += 1
        if self.calls - 1 != self.call:
            return self.of.play(prompts, reply, settings, uniforms, between)
        alive = [i for i in range(len(prompts)) if i not in self.rows]
        found = dict(
            zip(
                alive,
                self.of.play(
                    [prompts[i] for i in alive],
                    lambda rows, turns: reply([alive[r] for r in rows], turns),
                    settings,
                    None if uniforms is None else lambda r, place: uniforms(alive[r], place),
                    between,
                ),
                strict=True,
            )
        )
        return [found[i] if i in found else self._lost(prompts[i]) for i in range(len(prompts))]

    def _lost(self, prompt):
        n, m = len(prompt), self.keep
        wrote = np.arange(n + m) >= n
        return Spoken(
            ids=np.array([*prompt, *[9] * m]),
            sampled=wrote,
            logp=np.where(wrote, -1, 0).astype(np.float32),
            entropy=np.where(wrote, 1, 0).astype(np.float32),
            version=np.where(wrote, self.call, -1),
            turn=np.zeros(n + m, np.int64),
            segment=np.zeros(n + m, np.int64),
            turns=(),
            ended="failed",
            reason="the server went away",
        )


@pytest.mark.parametrize("keep", [0, 3])
@pytest.mark.parametrize("call", [0, 1])
def test_an_engine_that_fails_leaves_what_it_wrote_and_no_reward(call, keep, network):
    playing = Failing(engine(of=network), call, {1, 2}, keep)
    whole = batch(network)
    found = batch(dict.fromkeys(range(3), network), versions=versions_of(0, 1, 2), playing=playing)
    lost = found.outcome == Outcome.INFRASTRUCTURE_FAILURE
    assert lost.sum() == 2
    assert np.isnan(found.reward[lost]).all()
    assert (found.reason[lost] == "the server went away").all()
    assert (found.reason[~lost] == "").all()
    assert not found.arrived[lost].any()
    assert (found.taken[lost] == call).all()
    for name in ("ids", "sampled", "turn"):
        a, b = getattr(found, name)[~lost], getattr(whole, name)[~lost]
        T = min(a.shape[-1], b.shape[-1])
        np.testing.assert_array_equal(a[:, :T], b[:, :T])
    kept = to_rollouts(found, 2)
    assert kept.trajectories.outcome.tolist().count(Outcome.INFRASTRUCTURE_FAILURE) == 2
    assert kept.tokens.sampled.sum() == found.sampled.sum()
    train = kept.tokens.train.sum()
    assert train == found.sampled[~lost].sum() > 0


def test_luck_is_named_by_turn_and_place(network):
    """The third turn's first token has the luck of place 2 x turn_tokens, whichever leg it is in."""
    asked = []

    class Listening(Noted):
        def play(self, prompts, reply, settings, uniforms, between=None):
            def heard(row, place):
                asked[-1].append((row, place, uniforms(row, place)))
                return asked[-1][-1][-1]

            asked.append([])
            return self.of.play(prompts, reply, settings, heard, between)

    batch(network, playing=Listening(engine(of=network)), turn_tokens=4)
    luck = {(row, place): value for row, place, value in asked[0]}
    asked.clear()
    batch(
        dict.fromkeys(range(3), network),
        versions=versions_of(0, 1, 2),
        playing=Listening(engine(of=network)),
        turn_tokens=4,
    )
    assert len(asked) == 3
    rows = {value: row for (row, _), value in luck.items()}
    for k, leg in enumerate(asked):
        for _, place, value in leg:
            assert luck[rows[value], 4 * k + place] == value
    assert sum(map(len, asked)) == len(luck) > 100


def test_a_reply_may_be_empty(network):
    """A protocol that reads nothing between two turns goes on from its own last token."""
    env = environment()
    talk = dialogue(env)
    said = []

    def reply(rows, turns):
        said.extend(turns)
        return [Reply(()) if len(said) < 3 else Reply(None) for _ in rows]

    (spoken,) = engine(of=network).play([talk.prompt(ASKED[0])], reply, settings(env, turn_tokens=4), None)
    lengths = [len(turn.ids) for turn in said]
    assert spoken.turn[spoken.sampled].tolist() == np.repeat([0, 1, 2], lengths).tolist()
    own = alone(network, spoken.ids, 0.9)
    at = np.flatnonzero(spoken.sampled)
    np.testing.assert_allclose(spoken.logp[at], own[at - 1, spoken.ids[at]].numpy(), atol=2e-4)


def test_lengths_are_rounded_up_and_no_longer_than_the_batch(network):
    found = batch(network)
    scorable = Scorable.of(found, 64)
    assert (scorable.taken >= found.length).all()
    assert (scorable.taken - found.length < 64).all()
    assert scorable.taken.max() == found.ids.shape[-1]
    assert len(np.unique(scorable.taken)) > 1
