import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from studies.kit.intervals import (
    auroc,
    auroc_interval,
    clopper_pearson,
    geometric_rank,
    mcnemar,
    newcombe_paired,
    order_statistic,
    order_statistic_coverage,
    paired_t,
    sign_flip_floor,
    trend_permutation,
    wilson,
)

COUNTS = st.integers(1, 60).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


def test_wilson_by_hand():
    # At 0 of n the upper limit is z^2 / (n + z^2) = 3.8415 / 67.8415.
    assert wilson(0, 64) == (0.0, pytest.approx(0.0566, abs=5e-5))
    assert wilson(0, 64)[1] == pytest.approx(3.841459 / 67.841459, rel=1e-6)
    low, high = wilson(8, 16)  # at a half the centre stays: 1/2 +- z sqrt(1/64 + z^2/1024) / (1 + z^2/16)
    assert low + high == pytest.approx(1.0)
    assert high == pytest.approx(0.5 + 1.959964 * math.sqrt(1 / 64 + 3.841459 / 1024) / (1 + 3.841459 / 16), rel=1e-6)


@given(COUNTS)
def test_wilson_solves_its_equation(counts):
    count, n = counts
    for end in wilson(count, n):
        assert (count / n - end) ** 2 == pytest.approx(3.841459 * end * (1 - end) / n, abs=1e-7)


def test_clopper_pearson_by_hand():
    # At 0 of n the upper limit solves (1 - p)^n = .025.
    assert clopper_pearson(0, 64) == (0.0, pytest.approx(1 - 0.025 ** (1 / 64)))
    assert clopper_pearson(8, 8) == (pytest.approx(0.025 ** (1 / 8)), 1.0)


@given(COUNTS)
def test_clopper_pearson_inverts_the_binomial_tails(counts):
    count, n = counts
    low, high = clopper_pearson(count, n)
    assert low <= count / n <= high
    if count:
        assert stats.binom.sf(count - 1, n, low) == pytest.approx(0.025)
    if count < n:
        assert stats.binom.cdf(count, n, high) == pytest.approx(0.025)


@given(COUNTS)
def test_limits_mirror(counts):
    count, n = counts
    for limits in (wilson, clopper_pearson):
        low, high = limits(count, n)
        assert limits(n - count, n) == (pytest.approx(1 - high), pytest.approx(1 - low))


@pytest.mark.parametrize(
    ("b", "c", "p"), [(6, 0, 2 / 64), (5, 0, 2 / 32), (8, 0, 2 / 256), (4, 1, 12 / 32), (0, 0, 1.0)]
)
def test_mcnemar_is_a_fair_coin_on_the_discordant_pairs(b, c, p):
    assert mcnemar(b, c) == pytest.approx(p)
    assert mcnemar(c, b) == pytest.approx(p)


def test_newcombe_on_his_own_example():
    # 48 of 50 against 38 of 50, 36 pairs both and 2 only in the second: .0569 to .3404 by method 10.
    assert newcombe_paired(36, 12, 2, 0, limits=wilson) == (
        pytest.approx(0.0569, abs=5e-5),
        pytest.approx(0.3404, abs=5e-5),
    )


def test_newcombe_by_hand():
    # 8 seeds, all treated flip and no control does: phi is 0, so the ends are 1 - sqrt(l^2 + l^2) and 1.
    reach = 1 - wilson(8, 8)[0]
    assert newcombe_paired(0, 8, 0, 0, limits=wilson) == (pytest.approx(1 - math.sqrt(2) * reach), 1.0)
    # 36/12/2/0: phi = -2 * 12 / sqrt(48 * 2 * 38 * 12), below 0 and so not corrected.
    low, _ = newcombe_paired(36, 12, 2, 0, limits=wilson)
    phi = -24 / math.sqrt(48 * 2 * 38 * 12)
    one, other = 0.96 - wilson(48, 50)[0], wilson(38, 50)[1] - 0.76
    assert low == pytest.approx(0.2 - math.sqrt(one**2 - 2 * phi * one * other + other**2))


@given(*[st.integers(0, 12)] * 4)
def test_newcombe_turns_round_with_the_arms_and_holds_the_difference(a, b, c, d):
    assume(a + b + c + d >= 6)
    low, high = newcombe_paired(a, b, c, d)
    assert -1 - 1e-9 <= low <= (b - c) / (a + b + c + d) <= high <= 1 + 1e-9
    assert newcombe_paired(a, c, b, d) == (pytest.approx(-high), pytest.approx(-low))


def test_paired_t_by_hand():
    # 1..6: mean 3.5, sd sqrt(3.5), t(5) at .975 = 2.5706.
    low, high = paired_t(np.arange(1.0, 7.0))
    assert (low + high) / 2 == pytest.approx(3.5)
    assert high - 3.5 == pytest.approx(2.570582 * math.sqrt(3.5 / 6), rel=1e-6)


def test_order_statistics_by_hand():
    assert order_statistic(np.arange(1.0, 9.0)) == (1.0, 8.0)  # n=8: least and greatest
    assert order_statistic(np.arange(1.0, 21.0)) == (6.0, 15.0)  # n=20: x6 and x15
    assert order_statistic_coverage(8) == 1 - 2 / 2**8
    # P(Binomial(20, 1/2) <= 5) = (1 + 20 + 190 + 1140 + 4845 + 15504) / 2^20.
    assert order_statistic_coverage(20) == pytest.approx(1 - 2 * 21700 / 2**20)
    assert [geometric_rank(n) for n in (5, 6, 8, 9, 20)] == [0, 1, 1, 2, 6]


def test_five_seeds_settle_nothing():
    assert order_statistic(np.arange(5.0)) == (-math.inf, math.inf)
    assert sign_flip_floor(5) == 0.0625
    assert sign_flip_floor(6) < 0.05


def test_an_infinite_time_is_an_end_like_any_other():
    values = np.array([1.0, 2, 3, 4, 5, 6, 7, math.inf])
    assert order_statistic(values) == (1.0, math.inf)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.lists(st.integers(0, 5), min_size=1, max_size=9))
def test_auroc_counts_pairs(positive, negative):
    pairs = [(p > n) + (p == n) / 2 for p, n in itertools.product(positive, negative)]
    assert auroc(np.array(positive, float), np.array(negative, float)) == pytest.approx(np.mean(pairs))


@given(st.floats(0, 1), st.integers(6, 30), st.integers(6, 30), st.floats(1e-6, 0.999999))
def test_auroc_interval_holds_the_area_and_mirrors(area, m, n, alpha):
    low, high = auroc_interval(area, m, n, alpha)
    assert 0 <= low <= area <= high <= 1
    assert auroc_interval(1 - area, m, n, alpha) == (
        pytest.approx(1 - high, abs=1e-6),
        pytest.approx(1 - low, abs=1e-6),
    )


def test_a_perfect_area_still_has_a_lower_end():
    low, high = auroc_interval(1.0, 8, 8)
    assert high == 1.0
    assert low == pytest.approx(0.674, abs=1e-3)
    t, s = stats.t.ppf(0.975, 7), 7
    variance = low * (1 - low) * (1 + s * (1 - low) / (2 - low) + s * low / (1 + low)) / 64
    assert 1 - low == pytest.approx(t * math.sqrt(variance))


def brute_trend(outcomes):
    """Every way of handing each seed's successes to its arms, equally likely."""
    arms = outcomes.shape[1]
    per_seed = [list(itertools.combinations(range(arms), int(row.sum()))) for row in outcomes]
    totals = np.array([sum(sum(chosen) for chosen in world) for world in itertools.product(*per_seed)])
    observed = (outcomes * np.arange(arms)).sum()
    return min(1.0, 2 * min((totals >= observed).mean(), (totals <= observed).mean()))


@given(st.integers(0, 2**32 - 1), st.integers(2, 4), st.integers(2, 4))
def test_trend_p_is_an_exact_permutation_p(seed, n, arms):
    outcomes = np.random.default_rng(seed).random((n, arms)) < 0.5
    assert trend_permutation(outcomes) == pytest.approx(brute_trend(outcomes))


def test_a_trend_over_two_arms_is_mcnemar():
    outcomes = np.array([[False, True]] * 6 + [[True, True]] * 2)
    assert trend_permutation(outcomes) == mcnemar(6, 0)
