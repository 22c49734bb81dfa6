import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit import (
    DataError,
    above,
    agreement,
    below,
    bootstrap,
    identity,
    mean,
    median,
    rank,
    rate,
    rate_difference,
    time,
    trend,
    within,
)
from studies.kit.intervals import mcnemar
from studies.kit.verdict import judge

YES, NO = [True] * 8, [False] * 8


def verdict(estimate, region):
    return judge(estimate, region).verdict


# The right number and the right side ------------------------------------------------------------------------------


def test_rate():
    found = rate().estimate(outcomes=[True] * 3 + [False] * 61)
    assert found.effect == 3 / 64
    assert found.detail["count"] == "3/64"
    none = rate().estimate(outcomes=np.zeros(64, bool))
    assert verdict(none, below(0.1)) == "supported"
    assert verdict(none, above(0.1)) == "refuted"
    assert verdict(none, below(0.05)) == "undecided"  # the upper limit is .056


def test_rate_difference_is_paired():
    found = rate_difference().estimate(treated=YES[:6] + NO[:2], control=NO)
    assert found.effect == 0.75
    judged = judge(found, above(0))
    assert judged.verdict == "supported"
    assert judged.p == pytest.approx(mcnemar(6, 0), rel=1e-6)
    # One seed fewer and McNemar's p is .0625, whatever Newcombe's interval says.
    assert verdict(rate_difference().estimate(treated=YES[:5] + NO[:3], control=NO), above(0)) == "undecided"


def test_pairing_is_used():
    paired = rate_difference().estimate(treated=[True] * 20, control=[True] * 10 + [False] * 10)
    crossed = rate_difference().estimate(treated=[True] * 15 + [False] * 5, control=[False] * 15 + [True] * 5)
    assert paired.effect == crossed.effect == 0.5
    assert np.ptp(paired.interval(0.05)) < np.ptp(crossed.interval(0.05))


def test_trend():
    arms = {0.0: NO, 1.0: YES[:4] + NO[:4], 2.0: YES}
    found = trend().estimate(arms=dict(reversed(arms.items())))  # the order of writing plays no part
    assert found.effect == 1.0
    assert judge(found, above(0)).verdict == "supported"
    # Seeds 0-3: two successes, ranks {1, 2} of {01, 02, 12}: 1/3 each; seeds 4-7: rank 2 of {0, 1, 2}: 1/3 each.
    assert judge(found, above(0)).p == pytest.approx(2 / 3**8)


def test_trend_sees_an_arm_between_equal_ends():
    found = trend().estimate(arms={0: NO, 1: YES, 2: NO})
    assert found.reason == ""
    assert found.effect == 0.0
    assert verdict(found, above(0)) == "undecided"


def test_mean():
    found = mean(symmetric=True).estimate(treated=np.arange(1.0, 7.0) + 10, control=np.full(6, 10.0))
    assert found.effect == pytest.approx(3.5)
    assert found.interval(0.05) == (pytest.approx(1.5367, abs=1e-4), pytest.approx(5.4633, abs=1e-4))
    assert verdict(found, above(1.5)) == "supported"
    assert verdict(found, above(6)) == "refuted"
    assert verdict(found, within(1.5, 5.4)) == "undecided"
    same = mean(symmetric=True).estimate(differences=np.arange(1.0, 7.0))
    assert same.interval(0.05) == pytest.approx(found.interval(0.05))


def test_mean_on_a_log_scale_is_a_ratio():
    control = np.array([1.0, 2, 4, 8, 16, 32])
    found = mean(scale="log").estimate(treated=control * [1, 2, 4, 1, 2, 4], control=control)
    assert found.effect == pytest.approx(2.0)
    low, high = found.interval(0.05)
    assert low * high == pytest.approx(4.0)  # symmetric about log 2
    assert 0 < low < 2


def test_mean_of_clusters_counts_clusters():
    values, starts = np.arange(1.0, 9.0), [0, 0, 1, 1, 2, 2, 3, 3]
    found = mean(symmetric=True).estimate(differences=values, clusters=starts)
    assert (found.n, found.effect) == (4, 4.5)
    assert np.ptp(found.interval(0.05)) > np.ptp(mean(symmetric=True).estimate(differences=values).interval(0.05))
    with pytest.raises(DataError, match="4 or more"):
        mean(symmetric=True).estimate(differences=values, clusters=[0, 0, 0, 1, 1, 1, 2, 2])


def test_median():
    found = median().estimate(values=[3.0, 9, 1, 7, 5, 11, 13, 15])
    assert (found.effect, found.interval(0.05)) == (8.0, (1.0, 15.0))
    assert "coverage .992" in found.how
    assert median().estimate(values=np.arange(1.0, 21.0)).interval(0.05) == (6.0, 15.0)


def test_time_treats_a_censored_run_as_all_that_it_may_be():
    times = [120.0, 130, 140, math.nan, math.nan, math.inf, math.nan, math.nan]
    found = time().estimate(times=times, censored_at=300)
    assert found.effect == math.inf  # beyond the run
    assert found.interval(0.05) == (120.0, math.inf)
    assert found.detail["seen"] == "3/8"
    assert verdict(found, above(100)) == "supported"
    never = time().estimate(times=[math.nan] * 8, censored_at=300)
    # Known: later than 300. Not known: later than 500.
    assert never.interval(0.05) == (300.0, math.inf)
    assert verdict(never, above(299)) == "supported"
    assert verdict(never, above(500)) == "undecided"
    assert verdict(never, below(300)) == "refuted"


def test_time_with_ends_by_seed():
    found = time().estimate(times=[1.0, 2, 3, 4, 5, 6, 7, math.nan], censored_at=[9, 9, 9, 9, 9, 9, 9, 3])
    # The censored run may have come fourth or last: the lower end takes it as 3, the upper as infinity.
    assert found.interval(0.05) == (1.0, math.inf)


def test_rank():
    found = rank().estimate(positive=np.arange(8.0) + 8, negative=np.arange(8.0))
    assert (found.effect, found.n) == (1.0, 16)
    assert verdict(found, above(0.5)) == "supported"
    clustered = rank().estimate(
        positive=np.arange(12.0), negative=np.arange(12.0) - 6, clusters=(np.arange(12) // 2, np.arange(12) // 2)
    )
    assert clustered.n == 12


def test_bootstrap():
    replicates = np.arange(1.0, 200.0)  # 199 of them: the 2.5 % points are the 5th from either end
    found = bootstrap().estimate(value=100.0, replicates=replicates)
    assert found.interval(0.05) == (5.0, 195.0)
    assert found.interval(0.005) == (-math.inf, math.inf)
    with pytest.raises(DataError, match=r"8 units.*20"):
        bootstrap().estimate(value=100.0, replicates=replicates, units=8)


def test_identity():
    exact = identity(1e-9, target=0.278)
    assert exact.estimate(value=[0.278, 0.278 + 2e-9]).effect == 0.278 + 2e-9  # the farthest counts
    slack = identity(0.1).estimate(value=1.45)
    assert slack.interval(0.05) == pytest.approx((1.35, 1.55))
    assert verdict(slack, below(1.5)) == "undecided"  # inside, but not with the tolerance to spare
    assert judge(slack, below(1.5)).more is None


def test_agreement():
    found = agreement(1e-12, relative=True).estimate(value=[2.0, 100.0], reference=[2.0, 100.0 + 1e-11])
    assert found.effect == pytest.approx(1e-13, rel=1e-3)
    absolute = agreement(1e-12).estimate(value=[2.0, 100.0], reference=[2.0, 100.0 + 1e-11])
    assert absolute.effect == pytest.approx(1e-11, rel=1e-2)


# What allows no verdict --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "found",
    [
        rate_difference().estimate(treated=YES, control=YES),
        trend().estimate(arms={0: NO, 1: NO, 2: NO}),
        mean(symmetric=True).estimate(treated=np.arange(8.0), control=np.arange(8.0)),
        mean(scale="log").estimate(treated=np.arange(1.0, 9.0), control=np.arange(1.0, 9.0)),
        mean(symmetric=True).estimate(differences=np.zeros(8)),
        median().estimate(values=np.zeros(8)),
    ],
)
def test_identical_arms_did_not_differ(found):
    judged = judge(found, above(-1))
    assert judged.verdict == "no verdict"
    assert judged.reason.endswith("the arms did not differ")
    assert judged.p is None


def test_two_zeros_agree_about_nothing():
    judged = judge(agreement(1).estimate(value=[0.0, 0], reference=[0.0, 0]), within(0, 1))
    assert (judged.verdict, judged.reason[:24]) == ("no verdict", "both computations are ze")


def test_scores_that_are_all_alike_rank_nothing():
    assert judge(rank().estimate(positive=np.ones(8), negative=np.ones(8)), above(0.4)).verdict == "no verdict"


# What a kind refuses -----------------------------------------------------------------------------------------------

SPREAD = np.arange(8.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean(symmetric=True).estimate(differences=np.array([0.0, 1, 1, 0, 1, 1, 0, 1])), "rate"),
        (lambda: mean(symmetric=True).estimate(treated=np.array(YES), control=np.array(NO)), "rate"),
        (lambda: mean(symmetric=True).estimate(treated=np.eye(8)[0], control=np.eye(8)[1]), "rate_difference"),
        (lambda: median().estimate(values=[0.0, 1, 1, 0, 1, 1, 0, 1]), "rate"),
        (lambda: median().estimate(values=[-1, 1, 1, 0, 1, 1, 0, 1]), "rate_difference"),
        (lambda: median().estimate(values=[*SPREAD, math.nan]), r"values\[8\] is nan"),
        (lambda: median().estimate(values=[*SPREAD, math.inf]), r"values\[8\] is inf.*time\(\)"),
        (lambda: median().estimate(values=SPREAD[:5]), "5 entries.*6 or more"),
        (lambda: rate().estimate(outcomes=YES[:5]), "5 entries.*6 or more"),
        (lambda: rate().estimate(outcomes=[0.0, 0.5, 1, 1, 1, 1]), "threshold"),
        (lambda: rate().estimate(outcomes=[0.0, math.nan, 1, 1, 1, 1]), "True or False"),
        (lambda: rate().estimate(outcomes=np.ones((8, 2), bool)), r"shape \(8, 2\)"),
        (lambda: rate_difference().estimate(treated=YES, control=NO[:7]), "8 seeds and control has 7"),
        (lambda: trend().estimate(arms={0: YES}), "two or more"),
        (lambda: trend().estimate(arms={0: YES, 1: NO[:7]}), "same seeds"),
        (lambda: mean(symmetric=True).estimate(treated=SPREAD, control=SPREAD[:7]), "8 seeds and control has 7"),
        (lambda: mean(symmetric=True).estimate(treated=SPREAD), "differences=, or treated= and control="),
        (lambda: mean(symmetric=True).estimate(differences=np.full(8, 3.0)), "no spread"),
        (lambda: mean(scale="log").estimate(treated=SPREAD, control=SPREAD + 1), "positive numbers, not 0.0"),
        (lambda: time().estimate(times=[*SPREAD, 301.0], censored_at=300), "after the run's end"),
        (lambda: time().estimate(times=[*SPREAD, -1.0], censored_at=300), "before step 0"),
        (lambda: time().estimate(times=SPREAD, censored_at=math.nan), "last step"),
        (lambda: rank().estimate(positive=SPREAD[:5], negative=SPREAD), "5 entries"),
        (lambda: rank().estimate(positive=SPREAD, negative=SPREAD, clusters=[1] * 8), "pair"),
        (lambda: bootstrap().estimate(value=1.0, replicates=SPREAD), "100 or more"),
        (lambda: identity(0, target=1.0).estimate(value=[1.0, math.nan]), r"value\[1\] is nan"),
        (lambda: identity(0).estimate(value=[1.0, 2.0]), "one number"),
        (lambda: agreement(0).estimate(value=[1.0], reference=[1.0, 2.0]), "shape"),
        (lambda: agreement(0, relative=True).estimate(value=[1.0, 1], reference=[1.0, 0]), "relative"),
        (lambda: agreement(0).estimate(value=[], reference=[]), "empty"),
    ],
)
def test_a_kind_refuses_what_it_cannot_serve(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize("given", [{}, {"symmetric": True, "scale": "log"}, {"scale": "cubic"}])
def test_a_mean_must_be_declared(given):
    with pytest.raises(ValueError, match=r"median\(\)|'linear' or 'log'"):
        mean(**given)


# Properties --------------------------------------------------------------------------------------------------------

NUMBERS = st.lists(st.floats(-50, 50), min_size=6, max_size=20, unique=True).map(np.array)
ALPHAS = st.tuples(st.floats(1e-6, 0.99), st.floats(1e-6, 0.99)).map(sorted)


@given(NUMBERS, ALPHAS)
def test_intervals_are_nested_and_hold_the_effect(values, alphas):
    for found in (
        mean(symmetric=True).estimate(differences=values * 1.5 + 0.25),
        median().estimate(values=values * 1.5 + 0.25),
        rate().estimate(outcomes=values > 0),
        rank().estimate(positive=values, negative=values[::-1] ** 2 % 7),
        time().estimate(times=np.where(np.abs(values) > 40, np.nan, np.abs(values)), censored_at=40),
    ):
        wide, narrow = found.interval(alphas[0]), found.interval(alphas[1])
        assert wide[0] <= narrow[0] <= found.effect
        assert found.effect <= narrow[1] <= wide[1]


@given(NUMBERS, st.floats(0.1, 10), st.floats(-10, 10))
def test_mean_and_median_move_with_the_unit(values, scale, shift):
    for kind, name in ((mean(symmetric=True), "differences"), (median(), "values")):
        before = kind.estimate(**{name: values * 1.5 + 0.25})
        after = kind.estimate(**{name: scale * (values * 1.5 + 0.25) + shift})
        ends = [scale * end + shift for end in before.interval(0.05)]
        assert after.interval(0.05) == pytest.approx(ends, abs=1e-6)


@given(st.integers(0, 2**32 - 1))
def test_rank_sees_only_the_order(seed):
    scores = np.random.default_rng(seed).normal(size=(2, 8))
    plain = rank().estimate(positive=scores[0], negative=scores[1])
    warped = rank().estimate(positive=np.exp(3 * scores[0]), negative=np.exp(3 * scores[1]))
    assert plain.effect == warped.effect
