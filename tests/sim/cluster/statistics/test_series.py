import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.signal import lfilter

from sim.cluster.statistics.series import batch_means, mser5


def autoregression(rng, shape, phi):
    """Stationary AR(1) of variance 1 along the last axis."""
    noise = rng.standard_normal(shape)
    noise[..., 1:] *= math.sqrt(1 - phi**2)
    return lfilter([1.0], [1.0, -phi], noise, axis=-1)


def below_by_chance(share, n, level=0.95):
    """Three binomial standard errors below the level."""
    return share > level - 3 * math.sqrt(level * (1 - level) / n)


# --- warm-up ----------------------------------------------------------------------------------------------------------


def mser_by_definition(x):
    z = np.reshape(x[: len(x) // 5 * 5], (-1, 5)).mean(axis=1)
    m = len(z)
    scores = [((z[d:] - z[d:].mean()) ** 2).sum() / (m - d) ** 2 for d in range(m - 4)]
    return 5 * int(np.argmin(scores))


def test_a_step_is_cut_where_it_ends():
    """40 batches; 7 of them 10 too high, on a ripple that every batch shares."""
    x = np.tile([0.0, 1, 2, 3, 4, 4, 3, 2, 1, 1], 20)
    x[:35] += 10
    assert mser5(x) == 35
    assert mser5(np.full(200, 0.1)) == 0


@given(st.integers(0, 10_000), st.floats(0, 20), st.floats(2, 40))
def test_the_cut_is_the_one_of_the_definition(seed, height, decay):
    n = 403
    x = autoregression(np.random.default_rng(seed), n, 0.5) + height * np.exp(-np.arange(n) / decay)
    expected = mser_by_definition(x)
    if expected > 200:
        with pytest.raises(ValueError, match="not enough data"):
            mser5(x)
    else:
        assert mser5(x) == expected


def test_an_autoregression_loses_its_transient():
    """200 series of 2000, phi = .7, a start 20 too high that falls by e every 40: the bias goes from .40 to below .03."""
    shift = 20 * np.exp(-np.arange(2000) / 40)
    series = autoregression(np.random.default_rng(5), (200, 2000), 0.7) + shift
    cuts = np.array([mser5(x) for x in series])
    kept = np.array([x[d:].mean() for x, d in zip(series, cuts, strict=True)])
    assert series.mean() == pytest.approx(0.40, abs=0.03)
    assert abs(kept.mean()) < 0.03
    assert 100 <= np.median(cuts) <= 250  # the transient is 20 e^-2.5 = 1.6 at 100, .04 at 250


def test_a_stationary_series_keeps_nearly_all():
    """300 series of 1000: the median cut is below 5 %."""
    series = autoregression(np.random.default_rng(6), (300, 1000), 0.5)
    cuts = []
    for x in series:
        try:
            cuts.append(mser5(x))
        except ValueError:
            cuts.append(1000)
    assert np.median(cuts) < 50


def test_a_ramp_never_warms_up():
    with pytest.raises(ValueError, match=r"would delete 35 of 40 batches, bound 20: not enough data to see the end"):
        mser5(np.linspace(0, 1, 200))
    with pytest.raises(ValueError, match="at least 50 values"):
        mser5(np.arange(49.0))


# --- batches ----------------------------------------------------------------------------------------------------------


def test_batches_by_hand():
    """Ten batches of two with means 1, 2, 1, 2, ...; one value in front is left over."""
    found = batch_means([99.0, *[0.0, 2.0, 1.0, 3.0] * 5], 10)
    assert (found.mean, found.batches, found.size) == (1.5, 10, 2)
    assert found.lag1 == pytest.approx(-0.9)  # nine products of -1/4 over ten squares of 1/4
    assert found.high - 1.5 == pytest.approx(stats.t.ppf(0.975, 9) * math.sqrt(2.5 / 9 / 10))
    assert not found.correlated
    assert found.effective == 10


def test_batches_cover_an_autoregression():
    """1000 series of 4000, phi = .8 (each value tells 1/9 of one), 20 batches of 200."""
    series = autoregression(np.random.default_rng(7), (1000, 4000), 0.8)
    hits, refused, naive = 0, 0, 0
    for x in series:
        naive += abs(x.mean()) < 1.96 * x.std() / math.sqrt(4000)
        try:
            found = batch_means(x)
        except ValueError:
            refused += 1
            continue
        hits += found.low < 0 < found.high
    assert refused < 30  # 1 in 100 by design
    assert below_by_chance(hits / (1000 - refused), 1000)
    assert naive < 600  # without batches two thirds of the error go unseen


def test_short_batches_are_flagged_or_refused():
    """200 series, phi = .99: means of 100 have a lag-1 autocorrelation of about .54, those of 10 one of about .93."""
    series = autoregression(np.random.default_rng(8), (200, 4000), 0.99)
    flagged, refused = flags(series, 40)
    assert flagged > 80
    assert flagged + refused > 160
    flagged, refused = flags(series[:, :200], 20)
    assert flagged == 0  # what 20 batches can tell from chance leaves fewer than 10 effective ones
    assert refused > 150


def flags(series, batches):
    """How many series are flagged as correlated, and how many are refused for it."""
    flagged = refused = 0
    for x in series:
        try:
            found = batch_means(x, batches)
        except ValueError as error:
            refused += "independent ones, bound 10; run longer" in str(error)
        else:
            assert found.correlated == (found.effective < batches)
            flagged += found.correlated
    return flagged, refused


def test_what_batches_refuse():
    with pytest.raises(ValueError, match="batches = 9 must be at least 10"):
        batch_means(np.arange(100.0), 9)
    with pytest.raises(ValueError, match=r"\(19,\) must be an array \[n\] of at least 20"):
        batch_means(np.arange(19.0))
    with pytest.raises(ValueError, match=r"all 20 batch means are 3\.0"):
        batch_means(np.full(100, 3.0))
    with pytest.raises(ValueError, match="tail_index = 2"):
        batch_means(np.arange(100.0), tail_index=2)
