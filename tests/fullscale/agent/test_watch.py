"""What is written down at a step, on a batch of two episodes that was written down by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from fullscale.agent import watch
from fullscale.agent.compaction import Compaction
from fullscale.agent.record import Scores, to_rollouts
from fullscale.agent.rollouts import Played, joined
from fullscale.world.questions import Question
from sim.records.staleness import staleness
from sim.records.tables import Outcome
from tests.fullscale.agent.small import batch, environment, learners_logp, model, policy_of, taught

KL = ("kl", "ref")
NAN = math.nan
SEARCH, ANSWER = 0, 1
A = [0, 0, 1, 2, 2, 3, 0, 0, 2, 3, 3]  # thinks, searches, asks; reads; answers, says what
B = [0, 0, 1, 1, 0, 2, 2, 2, 3, 0, 0]  # writes; reads; answers, says what; and is over
"""What each token is: 0 read or nothing, 1 thought, 2 of the tag that decides, 3 its text."""
TURN_A = [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1]
TURN_B = [0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0]


def by_hand():
    """One question. Episode A searches and answers; B writes no action, then answers at once. Three turns at most."""
    kind = np.array([[A, B]])
    sampled = kind > 0
    return Played(
        questions=(Question("q", "?", ("!",)),),
        ids=np.arange(22).reshape(1, 2, 11),
        length=np.array([[11, 9]]),
        sampled=sampled,
        logp=np.where(sampled, -0.5, 0).astype(np.float32),
        entropy=np.where(sampled, 1.5, 0).astype(np.float32),
        version=np.where(sampled, np.array([[TURN_A, TURN_B]]) + 3, -1),
        turn=np.array([[TURN_A, TURN_B]]),
        segment=np.zeros((1, 2, 11), np.int64),
        decision=kind == 2,
        taken=np.array([[2, 2]]),
        action=np.array([[[SEARCH, ANSWER, -1], [-1, ANSWER, -1]]]),
        context=np.array([[[0, 1, 0], [0, 0, 0]]]),
        correct=np.array([[[False, True, False], [False, False, False]]]),
        hit=np.array([[[True, True, False], [False, False, False]]]),
        latency_s=np.array([[[2.0, 1.0, 0], [0, 1.0, 0]]]),
        tool_tokens=np.array([[[2, 0, 0], [1, 0, 0]]]),
        reward=np.array([[1.0, 0.0]]),
        outcome=np.array([[Outcome.SOLVED, Outcome.WRONG]]),
        guessed=np.array([[False, True]]),
        why=np.array([[["stop", "stop", ""], ["length", "stop", ""]]]),
        reason=np.array([["", ""]]),
    )


PROBE = watch.Probe(by_hand(), 2)
VALUES = np.arange(22.0).reshape(1, 2, 11)
"""0 .. 10 in A, 11 .. 21 in B."""


def same(found, expected):
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-12, nan_ok=True), name


def test_tokens_by_what_they_are():
    parts = PROBE.parts
    for name, kind in (("thinking", 1), ("decision", 2), ("argument", 3)):
        np.testing.assert_array_equal(parts[name][0], [np.array(A) == kind, np.array(B) == kind], name)


def test_kl_and_entropy_by_turn():
    """Turn 0: A decides at 3 and 4, thinks at 2, asks at 5; B writes 13 and 14, which decide nothing. Turn 1: A decides at 8
    and answers 9, 10; B decides at 16, 17, 18 and answers 19. Turn 2: nobody."""
    found = watch.drift(PROBE, {KL: VALUES, "entropy": 100 + VALUES})
    same(
        found,
        {
            "drift/kl_decision/turn0": 3.5,
            "drift/kl_decision/turn1": (8 + 16 + 17 + 18) / 4,
            "drift/kl_decision/turn2": NAN,
            "drift/kl_content/turn0": (2 + 5 + 13 + 14) / 4,
            "drift/kl_content/turn1": (9 + 10 + 19) / 3,
            "drift/kl_content/turn2": NAN,
            "entropy/decision/turn0": 103.5,
            "entropy/thinking/turn0": 100 + (2 + 13 + 14) / 3,
            "entropy/argument/turn0": 105,
            "entropy/thinking/turn1": NAN,
            "entropy/argument/turn1": 100 + (9 + 10 + 19) / 3,
            "drift/kl_decisions": (3 + 4 + 8 + 16 + 17 + 18) / 2,
            "drift/kl_content": (2 + 5 + 9 + 10 + 13 + 14 + 19) / 2,
            "drift/kl_trajectory": (2 + 3 + 4 + 5 + 8 + 9 + 10 + 13 + 14 + 16 + 17 + 18 + 19) / 2,
            "drift/kl_token": (2 + 3 + 4 + 5 + 8 + 9 + 10 + 13 + 14 + 16 + 17 + 18 + 19) / 13,
        },
    )


def test_what_stands_at_tokens_that_were_read_is_in_no_number():
    wild = np.where(PROBE.sampled, VALUES, np.nan)
    found = watch.drift(
        PROBE, {KL: np.where(PROBE.sampled, VALUES, 1e9), "entropy": np.where(PROBE.sampled, VALUES, 1e9)}
    )
    same(found, {k: v for k, v in watch.drift(PROBE, {KL: VALUES, "entropy": VALUES}).items() if not math.isnan(v)})
    after = np.where(PROBE.sampled, -0.5, np.nan)
    assert watch.ratios(PROBE, after)["drift/ratio/episode/distance"] == 0
    assert np.isfinite(watch.mismatch(PROBE, np.where(PROBE.sampled, wild, -1e9), 3)["mismatch/max"])


def test_ratios_by_token_and_by_episode():
    """All tokens of A half as likely again, all of B a tenth less: (3/2)^7 and .9^6 for the episodes."""
    factor = np.array([1.5, 0.9])[None, :, None]
    found = watch.ratios(PROBE, np.where(PROBE.sampled, -0.5 + np.log(factor), 0.0))
    same(
        found,
        {
            "drift/ratio/token/distance": (7 * 0.5 + 6 * 0.1) / 13,
            "drift/ratio/token/clamped": (7 * 0.2 + 6 * 0.1) / 13,
            "drift/ratio/token/outside": 7 / 13,
            "drift/ratio/decision/distance": (3 * 0.5 + 3 * 0.1) / 6,
            "drift/ratio/content/outside": 4 / 7,
            "drift/ratio/episode/distance": ((1.5**7 - 1) + (1 - 0.9**6)) / 2,
            "drift/ratio/episode/clamped": 0.2,
            "drift/ratio/episode/outside": 1.0,
            "drift/ratio/decision/distance/turn0": 0.5,
            "drift/ratio/decision/distance/turn1": (0.5 + 3 * 0.1) / 4,
            "drift/ratio/content/distance/turn0": (2 * 0.5 + 2 * 0.1) / 4,
            "drift/ratio/content/distance/turn2": NAN,
        },
    )


def test_mismatch_is_of_tokens_of_one_version():
    """Turn 0 was written by version 3 (4 + 2 tokens), turn 1 by version 4; gaps are .1 and .3."""
    gap = np.where(PROBE.batch.version == 3, 0.1, -0.3)
    learner = PROBE.batch.logp + gap
    same(
        {k: round(v, 6) for k, v in watch.mismatch(PROBE, learner, 3).items()},
        {
            "mismatch/mean": 0.1,
            "mismatch/max": 0.1,
            "mismatch/kl": round(math.expm1(0.1) - 0.1, 6),
            "mismatch/coverage": round(6 / 13, 6),
        },
    )
    found = watch.mismatch(PROBE, learner, 4)
    assert found["mismatch/mean"] == pytest.approx(0.3)
    assert found["mismatch/kl"] == pytest.approx(math.expm1(-0.3) + 0.3)
    assert math.isnan(watch.mismatch(PROBE, learner, 5)["mismatch/mean"])


def test_behaviour_and_what_it_cost():
    env, played = environment(), by_hand()
    same(
        watch.behaviour("b", played, env),
        {
            "b/search_share/turn0": 0.5,
            "b/answer_share/turn0": 0.0,
            "b/answer_share/turn1": 1.0,
            "b/accuracy/turn0": 0.0,
            "b/accuracy/turn1": 0.5,
            "b/accuracy/turn2": 0.5,
            "b/policy/start/search": 0.5,
            "b/policy/start/answer": 0.5,
            "b/policy/fresh/answer": 1.0,
            "b/policy/failed/answer": NAN,
            "b/tool_share": 0.5,
            "b/solved_share": 0.5,
            "b/hit_share": 0.5,
        },
    )
    found = watch.training(played, np.array([[1.0, -0.5]]), env, np.array([[True, False]]), 0.25)
    same(
        found,
        {
            "train/reward": 0.5,
            "train/shaped_reward": 0.25,
            "train/turns": 2,
            "train/degenerate_share": 0.25,
            "train/invalid_share": 0.25,
            "train/arrived_share": 0.5,
            "train/failed_share": 0.0,
            "train/tool_tokens": 1.5,
            "train/latency_s": 2.0,
            "train/tokens": 10,
            "train/sampled_tokens": 6.5,
            "train/context_share": 0.0,
            "train/segments": 1.0,
            "behaviour/no_search_share": 0.5,
        },
    )
    lost = replace(
        played, outcome=np.array([[Outcome.SOLVED, Outcome.INFRASTRUCTURE_FAILURE]]), reward=np.array([[1.0, NAN]])
    )
    found = watch.training(lost, np.array([[1.0, -0.5]]), env, np.ones((1, 2), np.bool_), 0.0)
    same(
        found, {"train/reward": 1.0, "train/shaped_reward": 1.0, "train/failed_share": 0.5, "train/arrived_share": 0.5}
    )


def test_the_record_by_hand():
    played = by_hand()
    proximal = np.where(played.sampled, -0.25, 0).astype(np.float32)
    found = to_rollouts(played, 6, Scores(proximal=proximal), np.array([[True, False]]), seconds=10.0)
    t, turns, tokens = found.trajectories, found.turns, found.tokens
    assert t.reward.tolist() == [1, 0]
    assert t.outcome.tolist() == [Outcome.SOLVED, Outcome.WRONG]
    assert (t.start.tolist(), t.end.tolist()) == ([10, 10], [13, 11])
    s = found.segments
    assert (s.version_oldest.tolist(), s.version_newest.tolist()) == ([3, 3], [4, 4])
    assert s.take_version.tolist() == [6, -1]
    assert turns.action.tolist() == [SEARCH, ANSWER, -1, ANSWER]
    assert turns.index.tolist() == [0, 1, 0, 1]
    assert turns.context.tolist() == [0, 1, 0, 0]
    assert turns.generated.tolist() == [4, 3, 2, 4]
    assert turns.observed.tolist() == [2, 0, 1, 0]
    np.testing.assert_allclose(turns.logp_behaviour, [-1.0, -0.5, NAN, -1.5])  # 2, 1, none, 3 tokens of a tag
    np.testing.assert_allclose(turns.logp_proximal, [-0.5, -0.25, NAN, -0.75])
    assert np.isnan(turns.logp_reference).all()
    assert turns.entropy.tolist() == [1.5] * 4
    assert tokens.id.tolist() == [*range(11), *range(11, 20)]
    assert tokens.sampled.sum() == 13
    assert tokens.train.sum() == 7
    assert (tokens.train & ~tokens.sampled).sum() == 0
    assert np.isnan(tokens.logp_behaviour[~tokens.sampled]).all()
    lag = staleness(found)
    assert (lag.oldest, lag.newest) == (3, 2)


def test_joined_batches_are_padded():
    a, b = by_hand(), by_hand()
    per_token = ("ids", "sampled", "logp", "entropy", "version", "turn", "segment", "decision")
    short = replace(b, **{name: getattr(b, name)[..., :9] for name in per_token})
    found = joined([a, short])
    assert found.ids.shape == (2, 2, 11)
    assert found.version[1, 1, 9:].tolist() == [-1, -1]
    assert not found.sampled[1, :, 9:].any()
    assert len(found.questions) == 2
    with pytest.raises(ValueError, match="no batches"):
        joined([])


# --- on the network ---------------------------------------------------------------------------------------------------


def test_scores_of_a_probe_are_the_learners_at_the_watched_episodes():
    """Of the first two of each group, segments and all; the KL of a trajectory is that of its whole text, by the chain."""
    for how in ({}, {"how": {"compaction": Compaction(at_tokens=280)}, "context_tokens": 400}):
        played = batch(taught(), **how)
        now, reference = policy_of(taught()), policy_of(model(seed=1, scale=2.0))
        probe = watch.Probe(played, 2)
        found = probe.scored(now, frozenset({"logp", "entropy", KL}), reference)
        np.testing.assert_allclose(found["logp"], learners_logp(now, played)[:, :2], atol=2e-4)
        np.testing.assert_allclose(found["entropy"], played.entropy[:, :2], atol=2e-3)
        np.testing.assert_allclose(found[KL], learners_logp(now, played, KL, reference)[:, :2], atol=2e-3)
        row = watch.drift(probe, found)
        assert row["drift/kl_trajectory"] == pytest.approx(found[KL].sum(-1).mean(), rel=1e-6)
        assert row["drift/kl_trajectory"] > 1
        assert row["entropy/token"] > 0.1


def test_the_kl_of_a_batch_to_itself_is_none():
    played = batch(taught())
    probe, now = watch.Probe(played, 4), policy_of(taught())
    row = watch.drift(probe, probe.scored(now, frozenset({"entropy", KL}), policy_of(taught())))
    assert abs(row["drift/kl_trajectory"]) < 1e-3
    assert torch.is_grad_enabled()
