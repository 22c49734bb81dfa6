from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimodel.agent.record import to_rollouts
from sim.learning.loop import train
from sim.learning.presets import null, verify
from sim.records.tables import Outcome
from studies.kit.episodes import Turn, from_rollouts
from studies.kit.reading import fold as module
from studies.kit.reading.columns import OTHERS
from studies.kit.reading.fold import fold
from studies.kit.reading.statistics import MOST_TURNS
from tests.minimodel.agent.small import TASK, environment_of, facts_of, moved, play, policy_of
from tests.studies.kit.reading.hand import Stream, episode


def read(*episodes, keep=100, **account):
    return fold(Stream(episodes, **account), keep)


# --- a case by hand ---------------------------------------------------------------------------------------------------

HAND = (
    episode("search answer", step=3, task="a", reward=1.0),
    episode("answer", step=3, task="a", reward=0.0),
    episode("answer search answer", step=3, task="b", reward=1.0),
    episode("search none search", step=3, task="b", reward=1.0, outcome=Outcome.TURN_LIMIT),
    episode("answer", step=5, task="c", reward=1.0),
    episode("answer", step=5, task="c", reward=1.0),
)


def test_a_small_run_by_hand():
    found = read(*HAND)
    steps = found.steps
    assert found.step.tolist() == [3, 5]
    assert found.rollouts.tolist() == [4, 2]
    assert found.actions == ("search", "answer")
    assert found.turns == 3
    by_turn = {
        "search_share": [[0.5, 0.0], [0.25, 0.0], [0.25, 0.0]],
        "answer_share": [[0.5, 1.0], [0.25, 0.0], [0.25, 0.0]],
        "accuracy": [[0.0, 1.0], [0.25, 1.0], [0.5, 1.0]],
    }
    for name, values in by_turn.items():
        for t, value in enumerate(values):
            assert steps[f"behaviour/{name}/turn{t}"].tolist() == value, (name, t)
    assert steps["behaviour/no_search_share"].tolist() == [0.25, 1.0]
    assert steps["behaviour/solved_share"].tolist() == [0.5, 1.0]
    assert steps["behaviour/effective_workflows"].tolist() == [pytest.approx(4), 1.0]
    assert steps["train/turns"].tolist() == [2.25, 1.0]
    assert steps["train/reward"].tolist() == [0.75, 1.0]
    assert steps["train/invalid_share"].tolist() == [pytest.approx(1 / 9), 0.0]
    assert steps["train/degenerate_share"].tolist() == [0.5, 1.0]
    assert found.workflows == ("guess", "guess-search-answer", "search-answer", "search-none-search")
    assert found.shares.tolist() == [[0.25] * 4, [1, 0, 0, 0]]


def test_what_cannot_be_told_is_absent_with_a_reason_and_has_no_column():
    found = read(episode("browse answer", reward=None))
    assert set(found.absent) == {
        *("reward", "accuracy", "groups", "tokens", "log-probabilities", "KL", "importance ratios", "entropy"),
        "staleness",
        "share that never searches",
    }
    assert "there are browse, answer" in found.absent["share that never searches"]
    assert not any(name.startswith(("drift/", "entropy/", "token/", "staleness/")) for name in found.steps.names)
    assert "behaviour/accuracy/turn0" not in found.steps
    assert "behaviour/no_search_share" not in found.steps
    assert not any(np.isnan(found.steps[name]).any() for name in found.steps.names)


def test_the_readers_own_reason_is_the_one_that_is_told():
    found = read(episode(), absent={"KL": "this layout has none", "accuracy": "rewards are neither 0 nor 1"})
    assert found.absent["KL"] == "this layout has none"
    assert "behaviour/accuracy/turn0" not in found.steps  # as the reader said
    assert "behaviour/accuracy/turn0" in read(episode()).steps


def test_rollouts_of_unknown_outcome_are_told_of():
    found = read(episode("answer"), episode("answer", reward=None))
    assert found.steps["behaviour/accuracy/turn0"].tolist() == [0.5]
    assert any("1 rollouts do not say how they ended" in note for note in found.notes)


def test_a_task_solved_without_an_answer_counts_from_its_last_turn():
    found = read(episode("edit run"), episode("edit answer", reward=0.0))
    assert found.steps["behaviour/accuracy/turn0"].tolist() == [0.0]
    assert found.steps["behaviour/accuracy/turn1"].tolist() == [0.5]
    assert any("solved without an answer" in note for note in found.notes)


def test_a_group_of_which_one_reward_is_known_has_no_signal():
    found = read(episode(task=1), episode(task=1, reward=None), episode(task=2), episode(task=2, reward=0.0))
    assert found.steps["train/degenerate_share"].tolist() == [0.5]
    assert found.steps["train/rewarded"].tolist() == [3]


def test_a_rollout_of_a_step_at_which_the_main_role_has_none_is_not_shown():
    found = read(episode("answer", step=1), episode("open", step=2, role="reader"))
    assert found.step.tolist() == [1]
    assert [each.step for each in found.episodes] == [1]
    assert "1 of 2 rollouts are kept to be read" in found.notes[-1]


def test_columns_are_of_the_main_role():
    found = read(episode("search answer"), episode("open open", role="reader"), episode("open", role="reader"))
    assert found.rollouts.tolist() == [1]
    assert found.actions == ("search", "answer")
    assert any("2 rollouts of 'reader'" in note for note in found.notes)
    alone = read(episode("open", role="reader"), episode("answer", role="writer"), episode("open", role="reader"))
    assert alone.rollouts.tolist() == [2]


def test_turns_that_name_no_action_have_no_shares():
    found = read(episode(turns=(Turn("none"), Turn("none")), reward=None))
    assert found.actions == ()
    assert not any("_share/turn" in name for name in found.steps.names)
    assert "actions" in found.absent


def test_what_is_beyond_the_limits_is_told(monkeypatch):
    monkeypatch.setattr(module, "MOST_WORKFLOWS", 2)
    monkeypatch.setattr(module, "MOST_ACTIONS", 1)
    long = episode("search " * MOST_TURNS + "answer")
    found = read(long, episode("open answer"), episode("look answer"), *[episode("search answer")] * 2)
    assert found.workflows == ("search-answer", "look-answer", OTHERS)
    assert found.shares.sum() == pytest.approx(1)
    assert found.actions == ("search", "answer")
    assert found.turns == MOST_TURNS
    assert found.steps["train/turns"].tolist() == [(MOST_TURNS + 1 + 4 * 2) / 5]
    assert f"behaviour/accuracy/turn{MOST_TURNS}" not in found.steps
    assert found.steps["behaviour/solved_share"].tolist() == [1.0]
    assert found.steps[f"behaviour/accuracy/turn{MOST_TURNS - 1}"].tolist() == [0.8]
    assert any("2 more actions occur" in note for note in found.notes)
    assert any(f"turns go up to {MOST_TURNS + 1}" in note for note in found.notes)


def test_nothing_is_an_error():
    with pytest.raises(ValueError, match="no episodes"):
        read()


def test_progress_tells_episodes_and_steps():
    told = []
    fold(Stream([episode(step=i // 300) for i in range(600)]), 0, lambda *at: told.append(at))
    assert told == [(256, 1), (512, 2)]


# --- properties -------------------------------------------------------------------------------------------------------

SOME = st.builds(
    episode,
    st.lists(st.sampled_from(["search", "verify", "answer", "none"]), max_size=4).map(" ".join),
    step=st.integers(0, 3),
    task=st.integers(0, 2),
    reward=st.none() | st.floats(0, 1),
    prompt=st.sampled_from(["p", "q"]),
)


@given(st.lists(SOME, min_size=1, max_size=40), st.randoms(use_true_random=False), st.integers(0, 12))
def test_the_order_of_episodes_changes_nothing(episodes, order, keep):
    first = read(*episodes, keep=keep)
    shuffled = list(episodes)
    order.shuffle(shuffled)
    second = read(*shuffled, keep=keep)
    assert first.steps.equals(second.steps)
    assert (first.actions, first.workflows, first.episodes) == (second.actions, second.workflows, second.episodes)
    assert (first.absent, first.notes) == (second.absent, second.notes)


@given(st.lists(SOME, min_size=1, max_size=40))
def test_shares_are_shares_of_all_rollouts(episodes):
    found = read(*episodes)
    assert found.rollouts.sum() == len(episodes)
    assert np.allclose(found.shares.sum(1), 1)
    for t in range(found.turns):
        taken = sum(found.steps[f"behaviour/{name}_share/turn{t}"] for name in found.actions) if found.actions else 0
        assert np.all(np.asarray(taken) <= 1 + 1e-12)
    if "behaviour/accuracy/turn0" in found.steps:
        accuracy = np.stack([found.steps[f"behaviour/accuracy/turn{t}"] for t in range(found.turns)])
        assert (np.diff(accuracy, axis=0) >= 0).all()
        assert accuracy[-1].tolist() == found.steps["behaviour/solved_share"].tolist()


# --- agreement with the columns of our own loops ----------------------------------------------------------------------


@pytest.mark.parametrize("preset", [null, verify])
def test_the_simulators_rollouts_give_the_columns_that_its_loop_wrote(preset):
    config = replace(preset(), steps=4, prompts=32, keep_rollouts=3, lag=2, watch_workflows=True)
    runs = train(config, (0, 5), study="fold")
    for row, seed in enumerate((0, 5)):
        found = read(*from_rollouts(runs.rollouts[seed], 3, config.graph().actions))
        same = [name for name in runs.names if name.startswith(("behaviour/", "train/"))]
        assert {"behaviour/search_share/turn1", "train/degenerate_share", "behaviour/effective_workflows"} <= {*same}
        for name in same:
            wrote = runs[name][row, 3]
            if name in found.steps:
                assert found.steps[name][0] == pytest.approx(wrote, rel=1e-12), name
            else:
                assert wrote == 0, name  # a turn that no rollout of this batch had
        assert 0 < found.steps["train/reward"][0] < 1
        assert found.steps["behaviour/effective_workflows"][0] > 1


def test_the_transformers_rollouts_give_the_columns_that_its_loop_wrote():
    from minimodel.agent import watch

    environment, policies = environment_of(TASK), {v: moved(policy_of(), 0.05 * v, seed=v) for v in range(3)}
    versions = np.broadcast_to(np.minimum(np.arange(8)[:, None] % 3 + np.arange(3), 2), (6, 8, 3)).copy()
    batch = play(policies, questions=6, group=8, versions=versions)
    record = to_rollouts(batch, environment, 7, policies[2], policies[0])
    found = read(*from_rollouts(record, 7, environment.graph.actions))
    silent = float(np.mean(np.ptp(batch.reward, axis=1) == 0))
    wrote = watch.behaviour("behaviour", batch, environment)
    wrote |= watch.training(batch, batch.reward, environment, np.ones(batch.reward.shape, bool), silent)
    wrote |= watch.staleness(batch, 7)
    other = {"train/shaped_reward", "train/arrived_share", "train/tool_tokens", "train/latency_s"}  # of no file
    for name in wrote.keys() - other:
        assert found.steps[name][0] == pytest.approx(wrote[name], rel=1e-12), name
    assert found.steps["train/invalid_share"][0] > 0
    assert 0 < wrote["behaviour/accuracy/turn2"] < 1
    assert not {"KL", "staleness", "importance ratios", "entropy"} & found.absent.keys()


def test_sampled_kl_is_an_unbiased_estimate_of_the_exact_one():
    from minimodel.agent import watch

    environment, policies = environment_of(TASK), {0: policy_of(), 1: moved(policy_of(), 2.0, seed=1)}
    questions = np.tile(facts_of(TASK).train, 4)
    batch = play({1: policies[1]}, questions=questions, group=8, versions=np.ones((len(questions), 8, 3), int))
    record = to_rollouts(batch, environment, 1, policies[1], policies[0])
    found = read(*from_rollouts(record, 1, environment.graph.actions)).steps
    probe = watch.Probe(batch, environment, 8)
    exact = watch.drift(probe, probe.log_probs(policies[1]), probe.log_probs(policies[0]))
    for name in ("drift/kl_trajectory", "drift/kl_decisions", "drift/kl_decision/turn0"):
        sampled = name.replace("kl_decision/", "kl_decision_sampled/") if "/turn" in name else f"{name}_sampled"
        assert exact[name] > 0.05
        assert found[sampled][0] == pytest.approx(exact[name], rel=0.2), name
