"""What schedules, drives, changes, baselines and monitors do to a run."""

import math
from dataclasses import replace as with_fields

import numpy as np
import pytest
import torch

from minimodel.agent import run as run_module
from minimodel.agent.learner import rule_batch
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import AdamW, Sgd
from minimodel.agent.schedule import Completion, InFlight, Lag
from minimodel.agent.setup import Change, Drive
from sim.learning import family
from sim.learning.credit import GroupCredit, RunningBaseline
from sim.learning.normalisers import SequenceMean
from sim.learning.penalties import KlPerState, KlToGo
from sim.learning.rule import Rule
from sim.learning.weights import ppo_clip
from tests.minimodel.agent.small import (
    TASK,
    WORLD,
    begin,
    facts_of,
    of,
    same_columns,
    training,
)

LAYOUT = TASK.layout
BETTER = with_fields(WORLD, hit_known=1.0, hit_unknown=1.0)


# --- schedules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [Lag(), Lag(2), InFlight(2)])
def test_every_token_is_written_by_the_version_it_names(schedule, batches):
    """Log-probs as sampled are those of a whole forward under the version each token carries, and of no other."""
    config = training(schedule=schedule, steps=5, optimiser=AdamW(3e-3))
    run = begin(config)
    run.go()
    policies = {}
    for u, batch, used in of(batches, "train"):
        policies |= {v: p for v, p in used.items() if v not in policies}
        expected = schedule.versions(u, batch.action.shape)
        turn_of = np.broadcast_to(LAYOUT.turn_of, batch.version.shape)
        assert np.array_equal(batch.version, np.where(batch.sampled, np.take_along_axis(expected, turn_of, -1), -1))
        ids = torch.from_numpy(batch.ids.reshape(-1, batch.ids.shape[-1]))
        for v, policy in used.items():
            logp = policy.scalars(ids, {"logp"})["logp"].numpy().reshape(batch.ids.shape)
            gap = np.abs(logp - batch.logp)
            assert gap[batch.version == v].max() < 1e-5
            if (batch.version >= 0).any() and (batch.version[batch.sampled] != v).any():
                assert gap[batch.sampled & (batch.version != v)].max() > 1e-3
    assert len(policies) == 5 - (schedule.steps if isinstance(schedule, Lag) else 0)
    assert sorted(run.versions) == list(range(4 - schedule.reach, 5))  # those that will be asked for, and no more
    oldest = [row["staleness/oldest"] for row in run.rows]
    assert oldest == [min(u, schedule.steps) for u in range(5)]
    newest = [row["staleness/newest"] for row in run.rows]
    assert newest == (oldest if isinstance(schedule, Lag) else [0] * 5)


def test_a_lag_lets_the_ratio_leave_one():
    still = {"steps": 4, "optimiser": AdamW(3e-3)}
    at_once, late = (begin(training(schedule=Lag(k), **still)).go() for k in (0, 2))
    assert at_once["update/ratio/distance"].max() < 1e-5
    assert (late["update/ratio/distance"][1:] > 1e-3).all()
    assert late["update/clip/outside"][1:].mean() > 0


def test_losses_follow_the_lengths(batches, monkeypatch):
    drawn, shipped = [], Completion.arrives
    monkeypatch.setattr(Completion, "arrives", lambda self, taken, u: drawn.append(u) or shipped(self, taken, u))
    columns = begin(training(schedule=Completion(0.4), prompts=18, group=16, steps=2)).go()
    for u, batch, _ in of(batches, "train"):
        expected = 0.6 ** (batch.taken - 1.0)
        spread = math.sqrt((expected * (1 - expected)).sum()) / expected.size
        assert abs(columns["train/arrived_share"][u] - expected.mean()) < 4 * spread
        assert 0.3 < expected.mean() < 0.7
    assert not np.isin(drawn[1], drawn[0]).any()  # every step has its own luck


def test_the_baseline_over_all_or_over_what_arrived(batches, monkeypatch):
    given = []
    monkeypatch.setattr(run_module, "rule_batch", lambda *a, **k: given.append(rule_batch(*a, **k)) or given[-1])
    for over in ("arrived", "all"):
        begin(training(schedule=Completion(0.4, over=over), steps=1)).go()
    arrived, everything = given
    assert everything.valid is None
    assert not arrived.valid.all()
    assert torch.equal(arrived.mask, everything.mask)  # one seed, one fate
    assert torch.equal(arrived.mask.any(-1), arrived.valid)
    rule = Rule(GroupCredit(std=False))
    for batch, weight in ((everything, torch.ones_like(arrived.reward)), (arrived, arrived.valid.float())):
        mean = (batch.reward * weight).sum(-1, keepdim=True) / weight.sum(-1, keepdim=True).clamp(min=1)
        torch.testing.assert_close(rule.prepare(batch).advantage.value[..., 0], (batch.reward - mean) * weight)


# --- drive and changes ------------------------------------------------------------------------------------------------


def test_what_a_lag_samples_is_what_a_later_drive_samples():
    """Rate 0: only the drive moves, and every version keeps what had been added by then."""
    still = {"optimiser": Sgd(0.0), "steps": 4}
    behind = begin(training(schedule=Lag(1), drive=Drive(1.4, duration=2), **still)).go()
    later = begin(training(drive=Drive(1.4, start=1, duration=2), **still)).go()
    undriven = begin(training(**still)).go()
    names = [n for n in later if n.startswith(("train/", "behaviour/"))]
    assert all(np.array_equal(behind[n], later[n]) for n in names)
    assert not np.array_equal(later["behaviour/answer_share/turn0"], undriven["behaviour/answer_share/turn0"])


def test_a_drive_by_hand():
    """0.5 a step from step 2 on, for 4 steps: what has been added before each step."""
    run = begin(training(drive=Drive(0.5, start=2, duration=4)))
    assert [run._push(u).logits for u in range(9)] == [0, 0, 0, 0.5, 1.0, 1.5, 2.0, 2.0, 2.0]


def test_a_drive_pushes_the_start_and_nothing_else():
    """Rate 0: the odds of answering at the start grow by the push exactly, on the same states."""
    run = begin(training(optimiser=Sgd(0.0), drive=Drive(0.5, start=1, duration=2), steps=5, schedule=Lag(9)))
    columns = run.go()
    assert (columns["update/moved"] == 0).all()
    pushed = columns["drift/kl_decision/turn0"]
    assert pushed[:2].tolist() == [0, 0]
    assert 0 < pushed[2] < pushed[3]
    assert pushed[3] == pytest.approx(pushed[4], rel=0.5)  # other episodes, the same push
    for name in ("drift/kl_decision/turn1", "drift/kl_content/turn0", "drift/kl_content/turn1"):
        assert (columns[name] == 0).all()
    share = columns["decision/share/start/answer"]
    assert share[1] < share[2] < share[3]


def test_a_world_changes_at_its_step_and_not_before(batches):
    same, changed = (
        begin(training(changes=changes, steps=3, prompts=18, group=8)) for changes in ((), (Change(2, world=BETTER),))
    )
    before, after = same.go(), changed.go()
    everything = [n for n in before if not n.startswith("eval/")]
    assert same_columns({n: before[n][:2] for n in everything}, {n: after[n][:2] for n in everything})
    _, batch, _ = of(batches, "train")[-1]
    graph = changed.environment(2).graph
    searched = (batch.action == graph.actions.index("search"))[..., :-1] & batch.running[..., 1:]
    documents = batch.ids[..., LAYOUT.decisions[:-1] + 4]
    right = documents == TASK.vocabulary.answer(facts_of(TASK).answer[batch.question])[:, None, None]
    asked = batch.ids[..., LAYOUT.decisions[:-1] + 1] == batch.ids[..., [2]]
    asked &= batch.ids[..., LAYOUT.decisions[:-1] + 2] == batch.ids[..., [3]]
    assert (searched & asked).sum() > 20
    assert right[searched & asked].all()  # every search that asks for the question hits now
    assert changed.environment(1).task.world == WORLD
    assert changed.environment(2).task.world == BETTER


def test_a_rule_changes_at_its_step():
    """From GRPO to CISPO: the runs part where the rule changes."""
    columns = [begin(training(changes=c)).go() for c in ((), (Change(1, rule=family.cispo()),))]
    moved = [c["update/moved"] for c in columns]
    assert moved[0][0] == moved[1][0]
    assert (moved[0][1:] != moved[1][1:]).all()


# --- what a rule reads ------------------------------------------------------------------------------------------------


def test_a_greedy_baseline_is_a_greedy_episode_of_each_question(batches, monkeypatch):
    """Greedy ones search at first; driven hard, they guess, and the monitor has its say about that."""
    given = []
    monkeypatch.setattr(run_module, "rule_batch", lambda *a, **k: given.append(rule_batch(*a, **k)) or given[-1])
    monitor = EvidenceFirst(penalty=0.25)
    run = begin(training(rule=family.remax(), monitor=monitor, drive=Drive(30.0, duration=1), prompts=18, steps=2))
    run.go()
    for u in range(2):
        (_, batch, used), (_, beside, same) = of(batches, "train")[u], of(batches, "greedy")[u]
        assert np.array_equal(beside.question, batch.question)
        assert beside.ids.shape[1] == 1
        assert list(used) == list(same) == [u]
        first = beside.ids[:, 0, 4 : 4 + LAYOUT.written]
        with torch.no_grad():
            logp = same[u].log_probs(torch.from_numpy(beside.ids[:, 0]))
        assert np.array_equal(first, logp[:, 3 : 3 + LAYOUT.written].argmax(-1))
        np.testing.assert_allclose(given[u].greedy_reward, np.where(beside.guessed, -0.25, beside.reward)[:, 0])
    assert 0 < given[0].greedy_reward.mean() < 1
    assert given[1].greedy_reward.mean() == -0.25


def test_a_running_baseline_runs():
    """b <- decay b + (1 - decay) mean reward, from 0; the first batch has none."""
    run = begin(training(rule=Rule(RunningBaseline(0.8), ppo_clip(), SequenceMean()), steps=4))
    assert run.running_reward is None
    b = 0.0
    for u in range(4):
        run.advance()
        b = 0.8 * b + 0.2 * run.rows[u]["train/reward"]
        assert run.running_reward.item() == pytest.approx(b, rel=1e-5)
    assert b > 0


def test_a_monitor_shapes_what_is_trained_on_and_not_what_is_reported(batches):
    columns = begin(training(monitor=EvidenceFirst(penalty=0.5), steps=2, prompts=18)).go()
    for u, batch, _ in of(batches, "train"):
        assert columns["train/reward"][u] == batch.reward.mean()
        assert columns["train/shaped_reward"][u] == np.where(batch.guessed, -0.5, batch.reward).mean()
        assert columns["train/shaped_reward"][u] < columns["train/reward"][u]
    ending = begin(training(monitor=EvidenceFirst(ends=True), steps=1, prompts=18))
    ending.go()
    assert ending.environment(0).ends_on_guess


@pytest.mark.parametrize(
    "rule",
    [
        family.gigpo(), family.llds(), family.gspo(), family.kimi_k2(), family.m2po(), family.tis(), family.decoupled_ppo(),
        Rule(GroupCredit(), ppo_clip(), SequenceMean(), (KlPerState(0.1), KlToGo(0.1))),
    ],
)  # fmt: skip
def test_rules_of_every_kind_run(rule):
    config = training(rule=rule, steps=2, micro=2, proximal="learner", schedule=Lag(1))
    columns = begin(config).go()
    assert (columns["update/moved"] > 0).all()
    assert np.isfinite(columns["update/gradient_norm"]).all()
