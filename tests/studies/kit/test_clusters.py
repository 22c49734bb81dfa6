import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit import DataError, above, below, mean, median, rate, rate_difference, time
from studies.kit.clusters import effective, members, reduced
from studies.kit.intervals import clopper_pearson, mcnemar
from studies.kit.verdict import judge

STARTS = np.repeat(np.arange(6), 2)  # 12 seeds of 6 starts


def test_members_by_hand():
    assert members("x", 6, ["b", "b", "a", "c", "a", "d"]).tolist() == [0, 0, 1, 2, 1, 3]
    assert reduced(np.array([1.0, 3, 10, 7, 20, 9]), members("x", 6, list("bbacad"))).tolist() == [2, 15, 7, 9]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean(symmetric=True).estimate(differences=np.arange(8.0), clusters=[0] * 4 + [1] * 2 + [2] * 2),
         "differences comes from 3 clusters; the interval needs 4 or more"),
        (lambda: rate().estimate(outcomes=[True] * 8, clusters=list("aaabbbcc")), "outcomes comes from 3 .* 4 or more"),
        (lambda: rate_difference().estimate(treated=[True] * 8, control=[False] * 8, clusters=[1] * 8),
         "treated comes from 1 .* 4 or more"),
        (lambda: median().estimate(values=np.arange(8.0), clusters=[0, 0, 1, 1, 2, 3, 4, 4]),
         "values comes from 5 .* 6 or more"),
        (lambda: time().estimate(times=np.arange(8.0), censored_at=9, clusters=[0, 0, 1, 1, 2, 3, 4, 4]),
         "times comes from 5 .* 6 or more"),
        (lambda: rate().estimate(outcomes=[True] * 8, clusters=[1] * 7), r"shape \(7,\) and outcomes has \(8,\)"),
    ],
)  # fmt: skip
def test_too_few_clusters_are_refused_with_the_bound(call, message):
    with pytest.raises(DataError, match=message):
        call()


# What clusters are worth ---------------------------------------------------------------------------------------------


def test_seeds_that_agree_inside_every_cluster_count_once():
    flipped = np.repeat([True, True, False, True, False, True], 2)
    found = rate().estimate(outcomes=flipped, clusters=STARTS)
    alone = rate().estimate(outcomes=flipped[::2])
    assert (found.n, found.effect) == (6, 4 / 6)
    assert found.interval(0.05) == pytest.approx(alone.interval(0.05))
    assert np.ptp(found.interval(0.05)) > np.ptp(rate().estimate(outcomes=flipped).interval(0.05))
    assert found.detail == {"count": "8/12", "clusters": "12 seeds in 6"}


def test_seeds_that_never_or_always_flip_count_once_a_cluster():
    # Nothing shows that the two seeds of a start differ at all.
    for value, ends in ((False, clopper_pearson(0, 6)), (True, clopper_pearson(6, 6))):
        found = rate().estimate(outcomes=[value] * 12, clusters=STARTS)
        assert (found.n, found.interval(0.05)) == (6, ends)


def test_seeds_that_disagree_inside_every_cluster_count_each():
    # Exactly one of two in every start: less alike than strangers.
    found = rate().estimate(outcomes=[True, False] * 6, clusters=STARTS)
    assert (found.n, found.interval(0.05)) == (12, clopper_pearson(6, 12))


def test_the_effective_number_by_hand():
    # 4 clusters of 3 with sums 0, 3, 3, 1; p = 7/12. Between: 3 [2 (5/12)^2 + (7/12)^2 + (1/4)^2] / 3 = .75;
    # within: 3 (1/3)(2/3) / 8 = 1/12; F = 9, over its lower 2.5 % point of .06878: rho is at most 129.9 / 132.9.
    outcomes = np.array([0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0], dtype=float)
    of = np.repeat(np.arange(4), 3)
    rho = (9 / 0.068776 - 1) / (9 / 0.068776 + 2)
    assert rho == pytest.approx(0.9774, abs=1e-4)
    assert effective(of, outcomes) == math.floor(12 / (1 + 2 * rho)) == 4
    # Eight times the clusters bound it more closely, from above: F = .75 x 24/31 x 12, its lower point .5227.
    rho = (0.75 * 24 / 31 * 12 / 0.52268 - 1) / (0.75 * 24 / 31 * 12 / 0.52268 + 2)
    assert 0.7 < rho < 0.85
    many = np.tile(outcomes.reshape(4, 3), (8, 1)).ravel()
    assert effective(np.repeat(np.arange(32), 3), many) == math.floor(96 / (1 + 2 * rho))


def test_clusters_of_unequal_size_count_by_their_weight():
    of = np.array([0, 0, 0, 0, 1, 1, 2, 3])  # n^2 / sum k^2 = 64 / 22
    assert effective(of, np.array([1.0, 1, 1, 1, 0, 0, 0, 1])) == 2
    assert effective(np.arange(8), np.eye(8)[0]) == 8


def test_pairs_that_agree_inside_every_cluster_count_once():
    treated, control = np.repeat([1, 1, 1, 1, 1, 0, 1, 1], 2) > 0, np.repeat([0, 0, 1, 0, 0, 0, 0, 0], 2) > 0
    found = rate_difference().estimate(treated=treated, control=control, clusters=np.repeat(np.arange(8), 2))
    alone = rate_difference().estimate(treated=treated[::2], control=control[::2])
    assert (found.n, found.effect) == (8, 6 / 8)
    assert found.interval(0.05) == pytest.approx(alone.interval(0.05))
    assert judge(found, above(0)).p == pytest.approx(mcnemar(6, 0), rel=1e-6)
    # All pairs as seeds: 12 discordant ones, as if they were independent.
    assert judge(rate_difference().estimate(treated=treated, control=control), above(0)).p < 0.001


def test_mcnemar_between_whole_counts():
    assert mcnemar(3, 1) < mcnemar(3, 1.5) < mcnemar(3, 2)
    assert mcnemar(5.5, 0) == pytest.approx(2 * 0.5**5.5)


def test_numbers_are_reduced_to_one_a_cluster():
    values = np.array([1.0, 5, 2, 2, 9, 1, 4, 8, 10, 6, 7, 7])  # medians of pairs are their means: 3 2 5 6 8 7
    found = median().estimate(values=values, clusters=STARTS)
    assert (found.n, found.effect, found.interval(0.05)) == (6, 5.5, (2.0, 8.0))
    assert found.how.endswith("of 6, coverage .969, cluster medians")
    assert mean(symmetric=True).estimate(differences=values, clusters=STARTS).effect == pytest.approx(values.mean())


def test_a_cluster_that_is_partly_censored_is_bounded_on_both_sides():
    times = [10.0, 20, 30, math.nan, 40, 50, 60, 70, 80, 90, math.nan, math.nan]
    found = time().estimate(times=times, censored_at=100, clusters=STARTS)
    # Least: 15, 65, 45, 65, 85, 100; most: 15, inf, 45, 65, 85, inf.
    assert found.interval(0.05) == (15.0, math.inf)
    assert found.effect == 75.0
    assert judge(found, above(14)).verdict == "supported"
    # The cluster counts as late as its runs may be: with 7 of 7 starts early, two censored runs change nothing.
    early = time().estimate(times=[1.0, 2, math.nan] * 7, censored_at=100, clusters=np.repeat(np.arange(7), 3))
    assert early.interval(0.05) == (2.0, 2.0)


def test_seeds_still_needed_are_counted_in_seeds():
    values = np.array([-1.0, -1, 4, 4, 5, 5, 6, 6])
    clustered = mean(symmetric=True).estimate(differences=values, clusters=np.repeat(np.arange(4), 2))
    alone = mean(symmetric=True).estimate(differences=np.array([-1.0, 4, 5, 6, 3.5, 3.5]))
    assert clustered.seeds_a_unit == 2
    assert alone.seeds_a_unit == 1
    judged = judge(clustered, above(0))
    low = clustered.interval(0.05)[0]
    units = math.ceil(4 * ((3.5 - low) / 3.5) ** 2) - 4  # the end moves as one over the root of the units
    assert judged.more == 2 * units
    half = judge(rate().estimate(outcomes=[True] * 12, clusters=STARTS), above(0.7))
    # Of one a cluster .7 needs 11 units of 11 (.715): 5 more clusters, 10 more seeds.
    assert (half.verdict, half.more) == ("undecided", 10)


def test_a_claim_that_seeds_would_settle_and_starts_do_not():
    outcomes = np.zeros(12, bool)
    assert judge(rate().estimate(outcomes=outcomes), below(0.3)).verdict == "supported"  # upper limit .26
    assert judge(rate().estimate(outcomes=outcomes, clusters=STARTS), below(0.3)).verdict == "undecided"  # .46


# Properties ----------------------------------------------------------------------------------------------------------

OUTCOMES = st.lists(st.booleans(), min_size=12, max_size=12)


@given(OUTCOMES)
def test_clusters_never_narrow_an_interval_and_never_count_for_less_than_one_each(outcomes):
    found = rate().estimate(outcomes=outcomes, clusters=STARTS)
    assert 6 <= found.n <= 12
    low, high = rate().estimate(outcomes=outcomes).interval(0.05)
    assert found.interval(0.05)[0] <= low + 1e-12
    assert found.interval(0.05)[1] >= high - 1e-12


@given(OUTCOMES, OUTCOMES)
def test_a_seed_of_its_own_in_each_cluster_changes_nothing(one, other):
    alone, own = {"treated": one, "control": other}, {"clusters": [f"start {i}" for i in range(12)]}
    numbers = np.array(one) * 1.5 + np.arange(12.0)
    for kind, data in (
        (rate(), {"outcomes": one}),
        (rate_difference(), alone),
        (median(), {"values": numbers}),
        (mean(symmetric=True), {"differences": numbers}),
        (time(), {"times": np.where(other, math.nan, numbers), "censored_at": 40}),
    ):
        before, after = kind.estimate(**data), kind.estimate(**data, **own)
        assert (before.n, before.effect) == (after.n, pytest.approx(after.effect))
        assert before.interval(0.05) == pytest.approx(after.interval(0.05))


@given(OUTCOMES, st.permutations(range(12)))
def test_order_and_names_of_clusters_play_no_part(outcomes, order):
    first = rate().estimate(outcomes=outcomes, clusters=STARTS)
    again = rate().estimate(outcomes=[outcomes[i] for i in order], clusters=[f"start {9 - STARTS[i]}" for i in order])
    assert (first.n, first.interval(0.05)) == (again.n, pytest.approx(again.interval(0.05)))
