import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sim.learning.batch import Batch
from sim.learning.credit import Credit, GroupCredit
from sim.learning.step_credit import returns_to_go
from sim.records.config import ConfigError

REWARDS = st.floats(-10, 10, allow_nan=False).map(lambda x: round(x, 3))
GROUPS = hnp.arrays(float, hnp.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6), elements=REWARDS)
CREDITS = st.builds(GroupCredit, std=st.booleans(), ddof=st.sampled_from((0, 1)))


def values(credit, reward, valid=None):
    """The advantages, [..., Q, G]."""
    return credit(Batch(reward, valid=valid)).value[..., 0]


def advantage(*rewards, valid=None, **options):
    valid = None if valid is None else np.array([valid])
    found = GroupCredit(**options)(Batch(np.array([rewards], float), valid=valid))
    return found.value[0, :, 0], bool(found.degenerate[0])


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_centred_only():
    A, degenerate = advantage(1, 0, 0, 0, std=False)
    assert pytest.approx([0.75, -0.25, -0.25, -0.25]) == A
    assert not degenerate


@pytest.mark.parametrize(("ddof", "first"), [(1, 1.5), (0, np.sqrt(3))])
def test_divided_by_the_spread(ddof, first):
    A, _ = advantage(1, 0, 0, 0, ddof=ddof)  # deviations .75, -.25 x 3: their squares sum to .75
    assert pytest.approx([first, -first / 3, -first / 3, -first / 3]) == A


def test_epsilon_is_added_to_the_spread():
    A, _ = advantage(1, 0, ddof=0, epsilon=0.5)  # .5 / (.5 + .5)
    assert pytest.approx([0.5, -0.5]) == A


def test_a_group_of_equal_rewards_gives_no_signal():
    A, degenerate = advantage(0.3, 0.3, 0.3)
    assert A.tolist() == [0, 0, 0]
    assert degenerate


def test_an_excluded_rollout_leaves_numerator_and_denominator():
    A, degenerate = advantage(1, 0, np.nan, 0, valid=(True, True, False, True), std=False)
    assert pytest.approx([2 / 3, -1 / 3, 0, -1 / 3]) == A
    assert not degenerate


@pytest.mark.parametrize("reward", [0.1, 0.3, 0.35, 0.4, 0.7, 1 / 3])
def test_equal_usable_rewards_are_degenerate_whatever_their_mean_rounds_to(reward):
    for count in range(1, 9):  # (.1 + .1 + .1) / 3 is not .1
        valid = np.arange(8) < count
        A, degenerate = advantage(*np.where(valid, reward, 9.0), valid=valid)
        assert degenerate, f"{count} usable rewards of {reward}"
        assert A.tolist() == [0] * 8


def test_a_usable_reward_must_be_finite():
    with pytest.raises(ValueError, match="NaN or infinite; mark the rollout invalid"):
        advantage(1, np.nan)
    with pytest.raises(ValueError, match="NaN or infinite"):
        advantage(np.inf, np.nan, valid=(True, False))


@pytest.mark.parametrize(("options", "message"), [({"ddof": 2}, "ddof = 2"), ({"epsilon": -1.0}, "epsilon = -1")])
def test_refusals_name_the_value(options, message):
    with pytest.raises(ConfigError, match=message):
        GroupCredit(**options)


def test_it_is_a_credit():
    assert isinstance(GroupCredit(), Credit)
    assert not isinstance(np.zeros(1), Credit)
    assert not isinstance(lambda batch: batch, Credit)  # it must say whether it is per rollout or per token


# --- properties -------------------------------------------------------------------------------------------------------


@given(GROUPS, CREDITS)
def test_advantages_of_a_group_sum_to_zero(reward, credit):
    found = credit(Batch(reward))
    assert np.abs(found.value.sum(-2)).max() < 1e-9
    assert np.array_equal(found.degenerate, (reward == reward[..., :1]).all(-1))


@given(GROUPS, CREDITS, st.randoms(use_true_random=False))
def test_permuting_a_group_permutes_its_advantages(reward, credit, random):
    order = list(range(reward.shape[-1]))
    random.shuffle(order)
    np.testing.assert_allclose(
        values(credit, reward[..., order]), values(credit, reward)[..., order], rtol=1e-9, atol=1e-12
    )


@given(GROUPS, CREDITS, st.integers(-8, 8))
def test_shifting_rewards_changes_nothing(reward, credit, shift):
    np.testing.assert_allclose(values(credit, reward + shift), values(credit, reward), rtol=1e-6, atol=1e-9)


@given(GROUPS, CREDITS, st.sampled_from((0.25, 0.5, 2.0, 64.0)))
def test_scaling_rewards_scales_only_without_std(reward, credit, scale):
    expected = values(credit, reward) * (1 if credit.std else scale)
    np.testing.assert_allclose(values(credit, reward * scale), expected, rtol=1e-9, atol=1e-12)


@given(GROUPS, CREDITS)
def test_with_std_the_spread_of_advantages_is_one(reward, credit):
    assume(credit.std)
    found = credit(Batch(reward))
    live = found.value[~found.degenerate][..., 0]
    assume(live.size)
    assert np.std(live, axis=-1, ddof=credit.ddof) == pytest.approx(1, abs=1e-9)


@given(GROUPS, CREDITS, st.data())
def test_an_excluded_rollout_is_as_if_it_had_not_been(reward, credit, data):
    reward = reward.reshape(-1, reward.shape[-1])[:1]
    valid = data.draw(hnp.arrays(bool, reward.shape))
    assume(valid.any())
    found = credit(Batch(np.where(valid, reward, np.nan), valid=valid))
    alone = credit(Batch(reward[valid][None]))
    assert found.degenerate[0] == alone.degenerate[0]
    np.testing.assert_allclose(found.value[valid], alone.value[0], rtol=1e-9, atol=1e-12)
    assert np.all(found.value[~valid] == 0)


@given(GROUPS, CREDITS)
def test_groups_do_not_see_each_other(reward, credit):
    whole = values(credit, reward)
    for index in np.ndindex(reward.shape[:-1]):
        assert np.array_equal(values(credit, reward[index][None])[0], whole[index])


# --- returns to go ----------------------------------------------------------------------------------------------------


def test_an_observation_costs_no_discount():
    got = returns_to_go(np.array([0.0, 0, 1]), np.array([True, False, True]), gamma=0.5)
    assert got.tolist() == [0.5, 0, 1]


def test_a_penalty_on_each_action_is_not_discounted_across_observations():
    # two actions of cost 1 with two observation tokens between them, gamma .9: -1 - .9
    got = returns_to_go(np.array([-1.0, 0, 0, -1]), np.array([True, False, False, True]), gamma=0.9)
    assert got == pytest.approx([-1.9, 0, 0, -1])


@given(hnp.arrays(float, (3, 7), elements=REWARDS), hnp.arrays(bool, (3, 7)), st.floats(0, 1))
def test_returns_to_go_by_definition(reward, mask, gamma):
    got = returns_to_go(reward, mask, gamma)
    for row in range(3):
        for t in range(7):
            own = 0.0
            decay = 1.0
            for s in range(t, 7):
                own += decay * reward[row, s]
                decay *= gamma if mask[row, s] else 1.0
            assert got[row, t] == pytest.approx(own if mask[row, t] else 0.0, abs=1e-9)


@given(hnp.arrays(float, (2, 5), elements=REWARDS), hnp.arrays(bool, (2, 5)))
def test_without_discount_a_return_is_a_plain_sum(reward, mask):
    expected = np.where(mask, reward[:, ::-1].cumsum(1)[:, ::-1], 0)
    np.testing.assert_allclose(returns_to_go(reward, mask), expected, atol=1e-9)


@pytest.mark.parametrize("gamma", [-0.1, 1.1, np.nan])
def test_gamma_outside_the_unit_interval_is_refused(gamma):
    with pytest.raises(ValueError, match=r"gamma = .* must lie in \[0, 1\]"):
        returns_to_go(np.ones(2), np.ones(2, bool), gamma)
