import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim.cluster.statistics.intervals import (
    quantile_interval,
    relative_half_width,
    replicas_needed,
    replicated,
    tail_index,
)

VALUES = st.lists(st.floats(-100, 100), min_size=5, max_size=40).filter(lambda x: np.std(x) > 1e-3)


def below_by_chance(share, n, level=0.95):
    """Three binomial standard errors below the level."""
    return share > level - 3 * math.sqrt(level * (1 - level) / n)


# --- replicas ---------------------------------------------------------------------------------------------------------


def test_replicas_by_hand():
    """Mean 3, s^2 = 2.5, t(.975; 4) = 2.776: 3 +- 2.776 sqrt(1/2)."""
    found = replicated([1, 2, 3, 4, 5])
    assert found.value == 3
    assert found.high - 3 == pytest.approx(2.77645 * math.sqrt(0.5), rel=1e-5)
    assert (found.n, found.level) == (5, 0.95)
    assert relative_half_width(found) == pytest.approx(2.77645 * math.sqrt(0.5) / 3, rel=1e-5)


@given(VALUES, st.floats(-50, 50), st.floats(0.1, 10))
def test_an_interval_moves_and_stretches_with_its_values(values, shift, scale):
    x = np.array(values)
    plain, other = replicated(x), replicated(shift + scale * x)
    assert other.low == pytest.approx(shift + scale * plain.low, rel=1e-6, abs=1e-6)
    assert other.high == pytest.approx(shift + scale * plain.high, rel=1e-6, abs=1e-6)
    assert replicated(x, alpha=0.01).low < plain.low < plain.value < plain.high


def test_coverage_over_replicas():
    """2000 times 8 normal values."""
    draws = np.random.default_rng(1).normal(3.0, 2.0, (2000, 8))
    hits = np.mean([(i := replicated(x)).low < 3 < i.high for x in draws])
    assert below_by_chance(hits, 2000)
    assert hits < 0.97


def test_what_replicas_may_not_be():
    with pytest.raises(ValueError, match=r"\(4,\) must be an array \[n\] of at least 5"):
        replicated([1, 2, 3, 4])
    with pytest.raises(ValueError, match=r"values\[2\] = nan is not finite"):
        replicated([1, 2, math.nan, 4, 5])
    with pytest.raises(ValueError, match=r"all 5 values are 2\.0: replicas do not differ"):
        replicated([2] * 5)
    with pytest.raises(ValueError, match=r"tail_index = 1\.5 must be above 2.*use quantile_interval"):
        replicated([1, 2, 3, 4, 5], tail_index=1.5)
    with pytest.raises(ValueError, match="variance = inf must be finite"):
        replicated([1, 2, 3, 4, 5], variance=math.inf)
    assert replicated([1, 2, 3, 4, 5], tail_index=2.5, variance=3.0).value == 3
    with pytest.raises(ValueError, match="value = 0"):
        relative_half_width(replicated([-2, -1, 0, 1, 2]))


def test_a_mean_without_variance_is_what_the_refusal_is_for():
    """Pareto, tail 1.2, mean 6, 1000 times 20 values: the interval of the mean misses far too often, not the median's."""
    draws = np.random.default_rng(2).uniform(size=(1000, 20)) ** (-1 / 1.2)
    means = np.mean([(i := replicated(x)).low < 6 < i.high for x in draws])
    medians = np.mean([(i := quantile_interval(x)).low < 2 ** (1 / 1.2) < i.high for x in draws])
    assert means < 0.6
    assert below_by_chance(medians, 1000, stats.binom.cdf(14, 20, 0.5) - stats.binom.cdf(5, 20, 0.5))


# --- quantiles --------------------------------------------------------------------------------------------------------


def test_quantiles_by_hand():
    """n = 8: 1 - 2 / 256 between the least and the largest; n = 20: x6 .. x15."""
    found = quantile_interval(np.arange(8.0, 0, -1))
    assert (found.low, found.value, found.high) == (1, 4, 8)
    assert found.level == pytest.approx(1 - 2 / 256)
    assert (quantile_interval(np.arange(1, 21)).low, quantile_interval(np.arange(1, 21)).high) == (6, 15)


@given(st.integers(6, 400), st.floats(0.05, 0.95), st.sampled_from([0.01, 0.05, 0.2]))
def test_both_tails_of_a_quantile_are_within_their_half(n, q, alpha):
    x = np.arange(1, n + 1)
    try:
        found = quantile_interval(x, q, alpha=alpha)
    except ValueError:
        assert alpha / 2 < max(stats.binom.pmf(0, n, q), stats.binom.pmf(n, n, q))
        return
    law = stats.binom(n, q)
    assert law.cdf(found.low - 1) <= alpha / 2 * (1 + 1e-9) < law.cdf(found.low)
    assert law.sf(found.high - 1) <= alpha / 2 * (1 + 1e-9) < law.sf(found.high - 2)
    assert found.level == pytest.approx(law.cdf(found.high - 1) - law.cdf(found.low - 1))
    assert found.low <= found.value <= found.high


def test_a_quantile_may_be_infinite():
    found = quantile_interval([1, 2, 3, 4, 5, 6, math.inf, math.inf])
    assert (found.low, found.high) == (1, math.inf)


def test_what_it_takes_for_a_quantile():
    """The median takes 6 values at .05; the 99 % quantile takes 368: .99^368 < .025."""
    with pytest.raises(ValueError, match=r"n = 5 values give no limits for q = 0\.5 at alpha = 0\.05; need at least 6"):
        quantile_interval(range(5))
    with pytest.raises(ValueError, match="need at least 368"):
        quantile_interval(range(367), 0.99)
    assert quantile_interval(range(368), 0.99).high == 367
    with pytest.raises(ValueError, match="without NaN"):
        quantile_interval([math.nan] * 9)
    with pytest.raises(ValueError, match=r"q = 1\.0 must lie between 0 and 1"):
        quantile_interval(range(9), 1.0)


# --- how many more ----------------------------------------------------------------------------------------------------


@given(VALUES.filter(lambda x: abs(np.mean(x)) > 0.1), st.floats(0.02, 3))
def test_the_number_needed_is_the_least(values, relative):
    n = replicas_needed(values, relative)
    half = lambda m: stats.t.ppf(0.975, m - 1) * np.std(values, ddof=1) / math.sqrt(m)  # noqa: E731
    wanted = relative * abs(np.mean(values))
    assert half(n) <= wanted * (1 + 1e-9)
    assert n == len(values) or half(n - 1) > wanted * (1 - 1e-9)


def test_a_pilot_says_how_many():
    """A coefficient of variation of 1 and 2 %: (1.96 / .02)^2 = 9604, give or take the t."""
    pilot = np.array([0.0, 2.0] * 50)
    assert replicas_needed(pilot, 0.02) == pytest.approx(9604 * pilot.std(ddof=1) ** 2, rel=1e-3)
    assert replicas_needed([9, 10, 10, 10, 11], 0.5) == 5  # already there
    with pytest.raises(ValueError, match="the mean is 0"):
        replicas_needed([-1, 1, -1, 1, 0], 0.1)


# --- tails ------------------------------------------------------------------------------------------------------------


def test_hill_by_hand():
    """The three largest over the fourth: 2, 4, 8: 3 / (6 log 2)."""
    found = tail_index([0.5, 1, 2, 4, 8], 3)
    assert found.value == pytest.approx(3 / (6 * math.log(2)))
    assert found.low == pytest.approx(stats.chi2.ppf(0.025, 6) / 6 * found.value)
    assert found.high == pytest.approx(stats.chi2.ppf(0.975, 6) / 6 * found.value)


def test_hill_covers_a_pareto_tail():
    """1000 times 300 values of tail 1.5, the 60 largest: the limits are exact."""
    draws = np.random.default_rng(3).uniform(size=(1000, 300)) ** (-1 / 1.5)
    found = [tail_index(x, 60) for x in draws]
    hits = np.mean([i.low < 1.5 < i.high for i in found])
    assert below_by_chance(hits, 1000)
    assert hits < 0.98
    assert np.mean([i.may_lack_variance for i in found]) > 0.99


def test_hill_lets_a_light_tail_pass():
    times = np.random.default_rng(4).exponential(size=5000)
    assert not tail_index(times, 50).may_lack_variance
    assert tail_index(times, 20).value > tail_index(times, 2000).value  # it goes on growing


def test_what_hill_refuses():
    with pytest.raises(ValueError, match="k = 5 must be at least 2 and below n = 5"):
        tail_index([1, 2, 3, 4, 5], 5)
    with pytest.raises(ValueError, match=r"reach down to -1.0, must be above 0; take a smaller k"):
        tail_index([-2, -1, 3, 4, 5], 3)
    with pytest.raises(ValueError, match="a cap, not a tail"):
        tail_index([1, 2, 600, 600, 600, 600], 3)
