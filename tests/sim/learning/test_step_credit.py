"""Credit token by token and degenerate groups, by hand; leave-one-out against GRPO's mean."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.batch import Batch
from sim.learning.credit import Advantage, GroupCredit, LeaveOneOut
from sim.learning.rule import Rule
from sim.learning.shaping import Process
from sim.learning.step_credit import RewardToGo, StateGroups, returns_to_go


def grid(*rows):
    """Rows of one group, [1, G, T]."""
    return np.array(rows, float)[None]


# --- rewards to go ----------------------------------------------------------------------------------------------------


def test_returns_to_go_pass_through_observations():
    """F7: an action before a tool call is credited; the observation between adds no decay and cuts nothing off."""
    reward, mask = grid([0, 0, 1]), np.array([[[1, 0, 1]]], bool)
    assert returns_to_go(reward, mask, 0.5).ravel().tolist() == [0.5, 0, 1]
    assert returns_to_go(reward, np.ones((1, 1, 3), bool), 0.5).ravel().tolist() == [0.25, 0.5, 1]
    # F6: KL of 1 a token, kept to the sampled ones before it is summed
    kl = np.where(np.array([[[1, 0, 0, 1]]], bool), -1.0, 0.0)
    assert returns_to_go(kl, kl != 0, 0.9).ravel().tolist() == pytest.approx([-1.9, 0, 0, -1])


def test_reward_to_go_with_process_rewards():
    # outcomes 1 and 0; process rewards .2 on the first token of the first, -.4 on the second's last; token 1 is observed
    mask = np.array([[[1, 0, 1], [1, 0, 1]]], bool)
    step = grid([0.2, 9.0, 0], [0, 9.0, -0.4])
    batch = Batch(np.array([[1.0, 0.0]]), mask, step_reward=step)
    # to go: (1.2, 1) and (-.4, -.4); whole returns 1.2 and -.4, mean .4
    assert RewardToGo()(batch).value[0] == pytest.approx(np.array([[0.8, 0, 0.6], [-0.8, 0, -0.8]]))
    # gamma 1/2: to go (.2 + .5, 1) and (-.2, -.4); mean of .7 and -.2 is .25
    assert RewardToGo(0.5)(batch).value[0] == pytest.approx(np.array([[0.45, 0, 0.75], [-0.45, 0, -0.65]]))


def test_a_rule_weighs_process_rewards_into_steps_or_into_the_sum():
    mask = np.array([[[1, 1], [1, 1]]], bool)
    batch = Batch(np.array([[1.0, 0.0]]), mask, np.zeros((1, 2, 2)), process_reward=grid([1, 0], [0, 2]))
    per_token = Rule(RewardToGo(), shaping=(Process(0.1),)).prepare(batch).advantage.value[0]
    # to go: (1.1, 1) and (.2, .2); mean of 1.1 and .2 is .65
    assert per_token == pytest.approx(np.array([[0.45, 0.35], [-0.45, -0.45]]))
    summed = Rule(GroupCredit(std=False), shaping=(Process(0.1),)).prepare(batch).advantage.value[0]
    assert summed == pytest.approx(np.array([[0.45], [-0.45]]))


def test_without_process_rewards_it_is_the_centred_reward():
    rng = np.random.default_rng(0)
    reward = rng.normal(size=(3, 4))
    mask = np.arange(5) < rng.integers(1, 6, (3, 4, 1))
    found, plain = RewardToGo()(Batch(reward, mask)), GroupCredit(std=False)(Batch(reward))
    np.testing.assert_allclose(found.value, np.where(mask, plain.value, 0), rtol=1e-12, atol=1e-15)


# --- identical states -------------------------------------------------------------------------------------------------


def test_state_groups_by_hand():
    """Three rollouts of one question, gamma 1/2, no division by spreads.

    states 5 6 / 5 5 / 7, outcomes 1 / 0 / 2 with the last turn. Returns to go: (.5, 1) / (0, 0) / (2).
    State 5 is met three times (.5, 0, 0; mean 1/6), 6 and 7 once: 0. Episodes: 1, 0, 2 about their mean 1: 0, -1, 1.
    """
    mask = np.array([[[1, 1], [1, 1], [1, 0]]], bool)
    state = np.array([[[5, 6], [5, 5], [7, 7]]])
    batch = Batch(np.array([[1.0, 0, 2]]), mask, state=state)
    credit = StateGroups(GroupCredit(std=False), omega=0.3, gamma=0.5, std=False)
    expected = np.array([[0 + 0.3 * (1 / 3), 0], [-1 - 0.3 / 6, -1 - 0.3 / 6], [1, 0]])
    assert credit(batch).value[0] == pytest.approx(expected)
    # with spreads: sd of (.5, 0, 0) is sqrt((1/9 + 2/36) / 2) = sqrt(1/12); that of (1, 0, 2) is 1
    scaled = StateGroups(omega=0.3, gamma=0.5)(batch).value[0]
    sd = math.sqrt(1 / 12)
    expected = np.array([[0.3 / 3 / sd, 0], [-1 - 0.3 / 6 / sd, -1 - 0.3 / 6 / sd], [1, 0]])
    assert scaled == pytest.approx(expected)


def test_state_groups_of_tokens_are_those_of_their_turns():
    """Turns of two and one tokens with an observation between: every token of a turn has the turn's advantage."""
    by_turn = Batch(np.array([[1.0, 0]]), np.ones((1, 2, 2), bool), state=np.array([[[5, 6], [5, 6]]]))
    turn = np.array([[[0, 0, 0, 1], [0, 0, 0, 1]]])
    by_token = Batch(
        by_turn.reward,
        np.array([[[1, 1, 0, 1]] * 2], bool),
        state=np.where(turn == 0, 5, 6),
        turn=turn,
    )
    credit = StateGroups(gamma=0.5)
    a, b = credit(by_turn), credit(by_token)
    assert b.value[0, :, [0, 1, 3]].T.tolist() == a.value[0][:, [0, 0, 1]].tolist()
    assert not b.value[0, :, 2].any()
    assert np.abs(a.value).min() > 1  # both comparisons count


def test_states_are_compared_within_a_question_and_among_the_usable():
    mask = np.ones((2, 2, 1), bool)
    state = np.full((2, 2, 1), 5)
    batch = Batch(np.array([[1.0, 0], [3.0, 3.0]]), mask, state=state)
    credit = StateGroups(GroupCredit(std=False), std=False)
    assert credit(batch).value[..., 0].tolist() == [[1, -1], [0, 0]]
    assert credit(batch).degenerate.tolist() == [False, True]
    out = Batch(batch.reward, mask, state=state, valid=np.array([[True, False], [True, True]]))
    assert not credit(out).value.any()


# --- groups without signal --------------------------------------------------------------------------------------------


def test_degenerate_shares_by_question_and_by_rollout():
    """Two of three questions give no signal, on 1 + 2 of the 6 rollouts that count: 2/3 and 1/2."""
    reward = np.array([[1.0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    valid = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 0, 0]], bool)
    found = GroupCredit()(Batch(reward, valid=valid))
    assert found.degenerate.tolist() == [True, False, True]
    by_question, by_rollout = found.degenerate_shares(valid)
    assert by_question == pytest.approx(2 / 3)
    assert by_rollout == pytest.approx(1 / 2)
    assert found.degenerate_shares() == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    nothing = Advantage(np.zeros((3, 4, 1)), np.ones(3, bool)).degenerate_shares(np.zeros((3, 4), bool))
    assert nothing == (1, 0)


# --- leave one out ----------------------------------------------------------------------------------------------------


@given(
    hnp.arrays(float, (3, 5), elements=st.floats(-10, 10)),
    hnp.arrays(bool, (3, 5)),
)
def test_leave_one_out_is_the_centred_reward_times_g_over_g_minus_1(reward, valid):
    batch = Batch(reward, valid=valid)
    n = valid.sum(1)[:, None, None]
    scale = np.where(n > 1, n / np.maximum(n - 1, 1), 0)
    found = LeaveOneOut()(batch).value
    np.testing.assert_allclose(found, scale * GroupCredit(std=False)(batch).value, rtol=1e-9, atol=1e-12)
    assert not found[~valid].any()


def test_leave_one_out_by_hand():
    batch = Batch(np.array([[1.0, 0, 0, 0]]))
    assert LeaveOneOut()(batch).value.ravel() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3])
    # others of the second: 1 0 0, mean 1/3, sd sqrt(1/3); the first's are equal and it is not divided
    assert LeaveOneOut(std=True)(batch).value.ravel() == pytest.approx([1, *[-1 / math.sqrt(3)] * 3])
