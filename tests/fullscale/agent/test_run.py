"""What a run does with a batch: who counts, what is compared, what is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fullscale.agent import watch
from fullscale.agent.collecting import Collector
from fullscale.agent.compaction import Compaction
from fullscale.agent.handed import Scorable, given
from fullscale.agent.setup import Sampler
from fullscale.agent.train import train
from fullscale.engine.protocol import Spoken
from fullscale.tools.toolbox import Patience
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import Sgd
from minimodel.agent.schedule import InFlight, Lag
from sim.learning import family
from sim.learning.setup import Evaluation
from sim.records.store import Store
from sim.records.tables import Outcome
from studies.kit.inspector.own import stored
from studies.kit.inspector.page import page
from tests.fullscale.agent.small import (
    ASKED,
    Words,
    batch,
    begin,
    differing,
    parameters,
    policy_of,
    small_world,
    taught,
    training,
)

GRPO = family.grpo(kl=0.0)
HOT = np.array([[1.0, 0.0, 1.0, 0.0]])


# --- who counts -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played():
    return batch(taught(), questions=ASKED[:1])


def advantages(played, reward, rule=GRPO, **how):
    how.setdefault("arrived", np.ones(played.reward.shape, np.bool_))
    prepared = rule.prepare(given(played, Scorable.of(played), np.array(reward), rule, **how))
    return prepared.advantage.value[0, :, 0].tolist(), prepared


def failing(played, *members):
    outcome, reward = played.outcome.copy(), played.reward.copy()
    for g in members:
        outcome[0, g], reward[0, g] = Outcome.INFRASTRUCTURE_FAILURE, np.nan
    return replace(played, outcome=outcome, reward=reward)


ALL_OF_FOUR = [0.866025, -0.866025, 0.866025, -0.866025]
"""Of rewards 1, 0, 1, 0: mean 1/2, deviation (with 3 in the denominator) sqrt(1/3)."""
WITHOUT_LAST = [0.577350, -1.154701, 0.577350]
"""Of rewards 1, 0, 1: mean 2/3, deviation sqrt(1/3)."""


def test_a_failed_episode_leaves_its_group(played):
    found, prepared = advantages(failing(played, 3), [[1.0, 0.0, 1.0, np.nan]])
    assert found[:3] == pytest.approx(WITHOUT_LAST, abs=1e-5)
    assert found[3] == 0
    assert not prepared.mask[0, 3].any()
    assert prepared.mask[0, :3].any(-1).all()
    assert prepared.mask.sum() == played.sampled[0, :3].sum()


@pytest.mark.parametrize("failed", ["nothing", "one more"])
def test_what_did_not_arrive_is_in_the_baseline_or_not_as_the_schedule_says(failed, played):
    arrived = np.array([[True, True, True, False]])
    if failed == "nothing":
        found, prepared = advantages(played, HOT, arrived=arrived, over="all")
        assert found == pytest.approx(ALL_OF_FOUR, abs=1e-5)
        assert not prepared.mask[0, 3].any()
        found, prepared = advantages(played, HOT, arrived=arrived, over="arrived")
        assert found[:3] == pytest.approx(WITHOUT_LAST, abs=1e-5)
    else:  # the second failed: over all that did not, rewards 1, 1, 0; over those that arrived, 1, 1
        broken, reward = failing(played, 1), [[1.0, np.nan, 1.0, 0.0]]
        found, prepared = advantages(broken, reward, arrived=arrived, over="all")
        assert found == pytest.approx([0.577350, 0, 0.577350, -1.154701], abs=1e-5)
        assert prepared.mask.any(-1).tolist() == [[True, False, True, False]]
        found, prepared = advantages(broken, reward, arrived=arrived, over="arrived")
        assert found == [0, 0, 0, 0]
        assert prepared.advantage.degenerate.tolist() == [True]
    assert prepared.mask.any(-1)[0, 3].item() is False


@pytest.mark.parametrize("members", [(0, 1, 2), (0, 1, 2, 3)])
def test_a_group_of_one_or_none_is_no_group(members, played):
    """Known fault 13."""
    found, prepared = advantages(failing(played, *members), np.where(np.isin(range(4), members), np.nan, 1.0)[None])
    assert found == [0, 0, 0, 0]
    assert prepared.advantage.degenerate.tolist() == [True]


def test_a_question_without_a_greedy_reward_leaves():
    two = batch(taught(), questions=ASKED[:2], group=2)
    rule = family.remax()
    made = given(
        two,
        Scorable.of(two),
        np.array([[1.0, 0.0], [1.0, 1.0]]),
        rule,
        arrived=np.ones((2, 2), np.bool_),
        based=np.array([True, False]),
        greedy_reward=torch.tensor([0.25, 0.0]),
    )
    prepared = rule.prepare(made)
    assert prepared.advantage.value[..., 0].tolist() == [[0.75, -0.25], [0.0, 0.0]]
    assert prepared.mask.any(-1).tolist() == [[True, True], [False, False]]


class Broken(Words):
    """A search that is down for one place."""

    def search(self, query, k):
        if "Spain" in query:
            raise OSError("no route to the index")
        return super().search(query, k)


def test_a_tool_that_fails_costs_the_run_those_episodes_alone():
    c = training(patience=Patience(attempts=1, backoff_s=0.0), steps=2, watched=4, keep_rollouts=0)
    batches, shipped = [], Collector.batch
    run = begin(c, retriever=Broken())
    run.collector.batch = lambda step: batches.append(shipped(run.collector, step)) or batches[-1]
    columns = run.go()
    for u, (played, _) in enumerate(batches):
        lost = played.outcome == Outcome.INFRASTRUCTURE_FAILURE
        assert columns["train/failed_share"][u] == lost.mean()
        assert columns["train/arrived_share"][u] == 1 - lost.mean()
        assert columns["train/reward"][u] == np.nanmean(played.reward) == columns["train/shaped_reward"][u]
        assert (played.reason[lost] != "").all()
    assert 0 < columns["train/failed_share"][0] < 1
    assert all(np.isfinite(columns[name]).all() for name in ("update/moved", "update/gradient_norm", "mismatch/mean"))
    lost = batches[0][0].outcome == Outcome.INFRASTRUCTURE_FAILURE
    assert run.kept.tokens.train.sum() == batches[0][0].sampled[~lost].sum()
    assert run.kept.tokens.sampled.sum() == batches[0][0].sampled.sum()


def test_a_run_of_which_everything_fails_stands_still():
    class Down(Words):
        def search(self, query, k):
            raise OSError("down")

    c = training(patience=Patience(attempts=1, backoff_s=0.0), steps=2, on_zero_signal="skip", optimiser=Sgd(0.1))
    run = begin(c, retriever=Down())
    run.parts.environment.grade = None  # and so is whoever judges answers
    run.parts.environment._ask["answer"] = lambda e, text: lambda: (_ for _ in ()).throw(OSError("down"))
    before = parameters(run)
    columns = run.go()
    there = columns["train/failed_share"] < 1
    assert there.any() or np.isnan(columns["train/reward"]).all()
    assert (columns["train/reward"][there] == 0).all()  # those that never wrote an action
    assert torch.equal(parameters(run), before)


class Gone:
    """An engine whose server is down."""

    def publish(self, version, network):
        pass

    def play(self, prompts, reply, settings, uniforms, between=None):
        return [self._lost(len(prompt), np.array(prompt)) for prompt in prompts]

    def _lost(self, n, ids):
        zeros, numbers = np.zeros(n, np.float32), np.zeros(n, np.int64)
        return Spoken(ids, numbers > 0, zeros, zeros, numbers - 1, numbers, numbers, (), "failed", "gone")


@pytest.mark.parametrize("rule", [GRPO, family.remax(), family.gspo()], ids=["grpo", "remax", "gspo"])
def test_a_server_that_is_down_for_a_step_costs_that_step(rule):
    """Nothing was sampled: there is nothing to learn and nothing to measure, and the run goes on."""
    run = begin(training(steps=3, prompts=2, keep_rollouts=1, rule=rule, optimiser=Sgd(0.3)))
    there, before = run.collector.engine, []

    def report(row):
        run.collector.engine = Gone() if row["step"] == 0 else there
        before.append(parameters(run))

    columns = run.go(report)
    assert columns["train/failed_share"].tolist() == [0, 1, 0]
    assert torch.equal(before[0], before[1])
    for name in ("train/reward", "mismatch/mean", "staleness/oldest", "drift/kl_token", "entropy/token"):
        assert np.isnan(columns[name]).tolist() == [False, True, False], name
    assert columns["train/sampled_tokens"][1] == 0
    assert run.kept.trajectories.outcome.tolist() == [Outcome.INFRASTRUCTURE_FAILURE] * 8
    assert np.isnan(run.kept.trajectories.reward).all()


# --- monitors ---------------------------------------------------------------------------------------------------------


def test_the_monitor_takes_the_reward_of_a_guess_and_may_end_it():
    plain = begin(training(steps=1))
    plain.keep_version(0)
    free, _ = plain.collector.batch(0)
    assert free.guessed.any()
    guess = np.argwhere(free.guessed & (free.taken > 1) & (free.action[..., 0] == 1) & ~free.correct[..., 0])
    assert len(guess), "no wrong guess in the first turn that goes on"
    watched = begin(training(steps=1, monitor=EvidenceFirst(ends=True, penalty=0.5)))
    watched.keep_version(0)
    ended, _ = watched.collector.batch(0)
    for q, g in guess:
        assert ended.taken[q, g] == 1
        assert ended.outcome[q, g] == Outcome.WRONG
    reward, said = watched.collector.reward(ended)
    assert (reward[ended.guessed] == -0.5).all()
    np.testing.assert_array_equal(reward[~ended.guessed], ended.reward[~ended.guessed])
    assert said == {}


# --- engine and learner -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [{}, {"schedule": Lag(2)}, {"schedule": InFlight(1)}, {"temperature": 0.7}], ids=["on", "lag", "flight", "T"]
)
def test_engine_and_learner_agree(how):
    """In float32 to rounding, whichever version wrote the batch; and a learner of other weights does not."""
    columns = begin(training(**({"steps": 3, "prompts": 2, "watched": 4, "optimiser": Sgd(0.3)} | how))).go()
    assert (columns["mismatch/mean"] < 1e-4).all()
    assert (columns["mismatch/max"] < 1e-3).all()
    assert (columns["mismatch/mean"] > 0).all()
    assert (np.abs(columns["mismatch/kl"]) < 1e-6).all()
    if not isinstance(how.get("schedule"), InFlight):
        assert (columns["mismatch/coverage"] == 1).all()
    if "schedule" in how:
        assert columns["staleness/oldest"].max() == how["schedule"].reach
        assert columns["drift/ratio/token/distance"][-1] > 1e-3
    assert columns["update/moved"][-1] > 1e-3


def test_where_nothing_compares_there_is_no_number():
    played = batch(taught())
    probe = watch.Probe(played, 2)
    row = watch.mismatch(probe, played.logp[:, :2].astype(float), -2)
    assert all(np.isnan(row[f"mismatch/{name}"]) for name in ("mean", "max", "kl"))
    assert row["mismatch/coverage"] == 0


def test_a_temperature_that_only_one_side_has_is_seen():
    """A guard: the probe is no tautology."""
    played = batch(taught(), temperature=0.7)
    probe = watch.Probe(played, 4)
    for temperature, least, most in ((0.7, 0.0, 1e-4), (1.0, 1e-2, 10.0)):
        scored = probe.scored(policy_of(taught(), temperature), frozenset({"logp"}))["logp"]
        assert least <= watch.mismatch(probe, scored, 0)["mismatch/mean"] < most


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compaction", [None, Compaction(at_tokens=280)])
def test_what_is_kept_opens_with_everything_else(compaction, tmp_path):
    c = training(
        steps=2, keep_rollouts=1, evaluation=Evaluation(every=2, prompts=2, group=1), schedule=Lag(1),
        sampler=Sampler(turn_tokens=16, context_tokens=600, compaction=compaction),
    )  # fmt: skip
    with small_world():
        runs = train(c, (0, 1), study="tests", folder=tmp_path)
    assert not list((tmp_path / "checkpoints").glob("*.pt"))
    store = Store(tmp_path / "store")
    for record in runs.records():
        store.save(record)
        again = store.load(record.key)
        assert again.equals(record)
        assert again.rollouts == record.rollouts
        tokens = again.rollouts.tokens
        there = tokens.sampled
        assert np.isfinite(tokens.logp_behaviour[there]).all()
        assert np.isfinite(tokens.logp_proximal[there]).all()
        assert np.isfinite(tokens.logp_reference[there]).all()
        assert np.isnan(tokens.logp_behaviour[~there]).all()
        assert (tokens.version[there] == 0).all()
        np.testing.assert_allclose(tokens.logp_reference[there], tokens.logp_behaviour[there], atol=2e-4)
        assert np.abs(tokens.logp_proximal[there] - tokens.logp_behaviour[there]).max() > 1e-3
        shown = stored(again)
        assert len(shown.episodes) == 16
        assert "capital of" in page([shown], "a run")
        text = "".join("".join(turn.pieces) for turn in shown.episodes[0].turns)
        assert "<|im_start|>user" in text
    assert np.isnan(runs["eval/reward"][:, 1]).all()
    assert np.isfinite(runs["eval/closed_book"][:, 0]).all()
    assert (runs["train/segments"] > 1).any() == (compaction is not None)


def test_seeds_differ_and_one_seed_does_not():
    a, b, other = (begin(training(steps=1), seed=seed).go() for seed in (0, 0, 1))
    assert differing(a, b) == []
    assert len(differing(a, other)) > 20


def test_watching_and_keeping_change_nothing():
    """What is looked at is not moved: with more episodes watched, evaluation and rollouts kept, the same updates."""
    plain = begin(training(steps=2, schedule=Lag(1)))
    looked = begin(
        training(steps=2, schedule=Lag(1), watched=4, keep_rollouts=1, evaluation=Evaluation(1, prompts=2, group=1))
    )
    plain.go()
    looked.go()
    assert torch.equal(parameters(plain), parameters(looked))


def test_how_an_update_is_cut_changes_nothing():
    weights = []
    for micro, bucket in ((1, 64), (2, 64), (4, 1), (1, 1000)):
        run = begin(
            training(steps=1, micro=micro, bucket_tokens=bucket, rule=family.gspo(0.5, 0.5), optimiser=Sgd(0.3))
        )
        run.go()
        weights.append(parameters(run))
    moved = (weights[0] - parameters(begin(training()))).norm()
    assert moved > 1e-3
    for other in weights[1:]:
        assert (other - weights[0]).norm() < 1e-5 * moved


def test_the_engines_rows_and_chunks_change_no_episode():
    """Known fault 28: neither company nor the order in which rows are served changes a sample."""
    found = []
    for rows, chunk in ((64, 2048), (3, 2048), (5, 40)):
        run = begin(
            training(steps=1, sampler=Sampler(turn_tokens=16, context_tokens=700, rows=rows, chunk_tokens=chunk))
        )
        run.keep_version(0)
        found.append(run.collector.batch(0)[0])
    for other in found[1:]:
        np.testing.assert_array_equal(other.ids, found[0].ids)
        np.testing.assert_allclose(other.logp, found[0].logp, atol=2e-4)
