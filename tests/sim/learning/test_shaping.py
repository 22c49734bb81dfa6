"""Terms in the reward, by hand."""

import numpy as np
import pytest

from sim.learning.batch import Batch
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import BatchMean
from sim.learning.rule import Rule
from sim.learning.shaping import Efficiency, KlInReward, LengthReward, Overlong, Process, Shaping
from sim.learning.step_credit import RewardToGo
from sim.records.config import ConfigError


def of_lengths(count, reward, **more):
    """One group of rollouts with these numbers of tokens."""
    mask = np.arange(max(count)) < np.array(count)[None, :, None]
    return Batch(np.array([reward], float), mask, **more)


def test_length_reward():
    """Kimi K1.5: l = 1/2 - (len - min) / (max - min); a wrong rollout is never paid for being short."""
    batch = of_lengths([2, 4, 6, 2, 6], [1, 1, 1, 0, 0])
    assert LengthReward(1.0)(batch)[0].tolist() == [0.5, 0, -0.5, 0, -0.5]
    assert LengthReward(0.2)(batch)[0] == pytest.approx([0.1, 0, -0.1, 0, -0.1])
    assert not LengthReward()(of_lengths([3, 3], [1, 0])).any()  # all one length
    # the longest is excluded: min 2 and max 4 of the others
    out = of_lengths([2, 4, 6], [1, 1, 1], valid=np.array([[True, True, False]]))
    assert LengthReward(1.0)(out)[0, :2].tolist() == [0.5, -0.5]


def test_lengths_are_in_tokens_where_entries_are_turns():
    batch = of_lengths([1, 2], [1, 1], lengths=np.array([[[7.0, 100], [2, 1]]]))
    assert LengthReward(1.0)(batch)[0].tolist() == [-0.5, 0.5]  # 7 tokens against 3


def test_overlong_has_three_cases():
    """DAPO, equation 13: nothing up to L - B, a slope over B, -1 from L on."""
    batch = of_lengths([5, 6, 8, 10, 14], [0] * 5)
    assert Overlong(10, 4)(batch)[0].tolist() == [0, 0, -0.5, -1, -1]
    assert Overlong(10, 4, penalty=0.2)(batch)[0] == pytest.approx([0, 0, -0.1, -0.2, -0.2])
    with pytest.raises(ConfigError, match=r"buffer = 11.0 must lie in \(0, limit = 10.0\]"):
        Overlong(10.0, 11.0)


def test_efficiency_is_about_the_median():
    batch = of_lengths([1, 1, 1, 1], [0] * 4, duration_s=np.array([[1.0, 2, 6, 100]]))
    # median (2 + 6) / 2 = 4
    assert Efficiency(1.0)(batch)[0].tolist() == [0.75, 0.5, -0.5, -1]
    out = of_lengths([1, 1, 1, 1], [0] * 4, duration_s=batch.duration_s, valid=np.array([[1, 1, 1, 0]], bool))
    assert Efficiency(1.0)(out)[0, :3].tolist() == [0.5, 0, -1]  # median 2; three times it costs 2, at most 1
    with pytest.raises(ValueError, match=r"Efficiency reads 'duration_s'"):
        Efficiency()(of_lengths([1], [0]))


def test_kl_in_the_reward_is_masked_before_it_is_summed():
    """F6: mask 1 0 0 1, KL of 1 at every token, coefficient 1, discount .9: the first token's return is -1.9."""
    mask = np.array([[[1, 0, 0, 1]]], bool)
    behaviour, reference = np.zeros((1, 1, 4)), np.full((1, 1, 4), -1.0)
    batch = Batch(np.zeros((1, 1)), mask, behaviour, reference=reference)
    assert KlInReward(1.0)(batch)[0, 0].tolist() == [-1, 0, 0, -1]
    rule = Rule(RewardToGo(0.9), normaliser=BatchMean(), shaping=(KlInReward(1.0),))
    shaped = rule.shaped(batch)
    assert shaped.step_reward[0, 0].tolist() == [-1, 0, 0, -1]
    # a credit per rollout gets the sum of the two sampled ones
    assert Rule(GroupCredit(), shaping=(KlInReward(1.0),)).shaped(batch).reward.tolist() == [[-2]]
    # k2 of d = 1 is 1/2, k3 is e^-1
    assert KlInReward(1.0, "k2")(batch)[0, 0, 0] == -0.5
    assert KlInReward(1.0, "k3")(batch)[0, 0, 0] == pytest.approx(-np.exp(-1))


def test_terms_add_up_and_nonsense_at_masked_tokens_is_not_looked_at():
    mask = np.array([[[1, 1, 0], [1, 0, 0]]], bool)
    process = np.array([[[1.0, 2.0, np.nan], [4.0, np.nan, np.nan]]])
    batch = Batch(np.array([[1.0, 0.0]]), mask, np.zeros((1, 2, 3)), process_reward=process)
    rule = Rule(GroupCredit(std=False), shaping=(Process(0.1), LengthReward(1.0)))
    # 1 + .3 - .5 and 0 + .4 + min(0, .5)
    assert rule.shaped(batch).reward[0] == pytest.approx([0.8, 0.4])
    assert rule.prepare(batch).advantage.value[0, :, 0] == pytest.approx([0.2, -0.2])
    assert rule.reads == {"process_reward"}


def test_every_term_is_a_shaping():
    for term in (LengthReward(), Overlong(), Process(), Efficiency(), KlInReward(0.1)):
        assert isinstance(term, Shaping)
    with pytest.raises(ConfigError, match="negative strength rewards what it should bound"):
        KlInReward(-1.0)
