import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim.cluster.statistics.intervals import replicated
from sim.cluster.statistics.pairs import control_variate, paired_difference

VALUES = st.lists(st.floats(-100, 100), min_size=5, max_size=40).filter(lambda x: np.std(x) > 1e-3)


def below_by_chance(share, n, level=0.95):
    """Three binomial standard errors below the level."""
    return share > level - 3 * math.sqrt(level * (1 - level) / n)


# --- arms -------------------------------------------------------------------------------------------------------------


def test_pairs_by_hand():
    """Differences 1, 1, 1, 1, 2: mean 1.2, variance .2; each arm has the variances 2.5 and 2.2."""
    found = paired_difference([1, 3, 2, 5, 4], [0, 2, 1, 4, 2])
    assert found.mean == pytest.approx(1.2)
    assert found.high - 1.2 == pytest.approx(2.77645 * 0.2, rel=1e-5)
    assert found.variance_reduction == pytest.approx(4.7 / 0.2)
    assert found.n == 5


@pytest.mark.parametrize("shared", [0.0, 0.75])
def test_common_draws_narrow_a_difference(shared):
    """1000 times 20 pairs: var a + var b = 2 and var(a - b) = 2 (1 - c), so the factor is 1 / (1 - c)."""
    rng = np.random.default_rng(9)
    common = rng.standard_normal((1000, 20)) * math.sqrt(shared)
    a, b = (common + rng.standard_normal((1000, 20)) * math.sqrt(1 - shared) + m for m in (1.0, 0.5))
    found = [paired_difference(x, y) for x, y in zip(a, b, strict=True)]
    assert np.median([i.variance_reduction for i in found]) == pytest.approx(1 / (1 - shared), rel=0.05)
    assert below_by_chance(np.mean([i.low < 0.5 < i.high for i in found]), 1000)


@given(VALUES)
def test_swapping_arms_changes_the_sign(values):
    a, b = np.array(values), np.array(values)[::-1] * 0.5 + 1
    if np.ptp(a - b) < 1e-6:
        return
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert (one.mean, one.low, one.high) == pytest.approx((-other.mean, -other.high, -other.low))
    assert one.variance_reduction == pytest.approx(other.variance_reduction)


def test_what_pairs_refuse():
    with pytest.raises(ValueError, match="a has 6 replicas and b has 5"):
        paired_difference(range(6), range(5))
    with pytest.raises(ValueError, match=r"all 5 differences are 0\.0: the arms do not differ"):
        paired_difference(range(5), range(5))
    with pytest.raises(ValueError, match=r"b\[0\] = nan"):
        paired_difference(range(5), [math.nan, 1, 2, 3, 4])


# --- controls ---------------------------------------------------------------------------------------------------------


def test_a_control_by_hand():
    """y = 1 + 2 x + e with e = 1, -1, -1, 1, 0 and x = -2 .. 2, orthogonal; E[x] = 1 against 0: y there is 3."""
    found = control_variate([-2, -2, 0, 4, 5], [-2, -1, 0, 1, 2], 1.0)
    assert found.slope == pytest.approx(2)
    assert found.mean == pytest.approx(3)
    assert found.high - 3 == pytest.approx(stats.t.ppf(0.975, 3) * math.sqrt(4 / 3 * (1 / 5 + 1 / 10)))
    assert found.variance_reduction == pytest.approx((44 / 4) / (4 / 3))


def test_a_control_narrows_by_its_correlation():
    """2000 times 40 pairs of correlation .8: the variance of the mean falls by 1 - .64, but for (n - 2) / (n - 3)."""
    rng = np.random.default_rng(10)
    x = rng.standard_normal((2000, 40))
    y = 5 + 0.8 * x + 0.6 * rng.standard_normal((2000, 40))
    found = [control_variate(b, a, 0.0) for a, b in zip(x, y, strict=True)]
    means = np.array([i.mean for i in found])
    assert means.mean() == pytest.approx(5, abs=3 * 0.6 / math.sqrt(80_000))
    ratio = means.var() / y.mean(axis=1).var()
    assert ratio == pytest.approx(0.36 * 38 / 37, rel=0.12)  # 2000 variances of the same draws: 3 standard errors
    assert np.median([i.variance_reduction for i in found]) == pytest.approx(1 / 0.36, rel=0.05)
    widths = np.array([(i.high - i.low) / ((p := replicated(b)).high - p.low) for i, b in zip(found, y, strict=True)])
    assert np.median(widths) == pytest.approx(0.6, rel=0.03)
    hits = np.mean([i.low < 5 < i.high for i in found])
    assert below_by_chance(hits, 2000)
    assert hits < 0.97


@given(VALUES, st.floats(-3, 3))
def test_a_control_at_its_mean_changes_nothing_but_the_width(values, slope):
    x = np.array(values)
    y = slope * x + np.cos(np.arange(len(x))) + 7
    found = control_variate(y, x, float(x.mean()))
    assert found.mean == pytest.approx(y.mean())
    shifted = control_variate(y, x, float(x.mean()) + 2)
    assert shifted.mean - found.mean == pytest.approx(2 * found.slope, abs=1e-9)
    assert shifted.high - shifted.low >= found.high - found.low


def test_what_a_control_refuses():
    with pytest.raises(ValueError, match=r"all 5 values of x are 1\.0"):
        control_variate(range(5), [1] * 5, 1.0)
    with pytest.raises(ValueError, match="y is a line in x"):
        control_variate([1, 3, 5, 7, 9], range(5), 2.0)
    with pytest.raises(ValueError, match="y has 5 values, x has 6"):
        control_variate(range(5), range(6), 2.0)
    with pytest.raises(ValueError, match="variance = inf"):
        control_variate([1, 3, 5, 7, 8], range(5), 2.0, variance=math.inf)
