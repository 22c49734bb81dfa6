import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from sim.mdp.latency import Constant, Exponential, LogNormal, mean_min_s, quantiles_s, survival, survivals
from sim.records.config import ConfigError

LAWS = st.one_of(
    st.builds(Constant, st.floats(0, 100)),
    st.builds(Exponential, st.floats(0, 100)),
    st.builds(LogNormal, st.floats(0, 100), st.floats(0, 1.5)),
)


@pytest.mark.parametrize(
    ("law", "mean", "median"),
    [
        (Constant(3.0), 3.0, 3.0),
        (Exponential(2.0), 2.0, 2 * math.log(2)),
        (LogNormal(0.8, 0.6), 0.8 * math.exp(0.18), 0.8),
        (LogNormal(0.8, 0.0), 0.8, 0.8),
    ],
)
def test_by_hand(law, mean, median):
    assert law.mean_s() == pytest.approx(mean)
    assert law.quantile_s(0.5) == pytest.approx(median)


@given(LAWS)
def test_the_mean_is_the_integral_of_the_quantiles(law):
    """E[T] = integral of Q(u) du, over u = Phi(x) so that the tails are seen."""
    found, _ = quad(lambda x: law.quantile_s(stats.norm.cdf(x)) * stats.norm.pdf(x), -8, 8, limit=200)
    assert found == pytest.approx(law.mean_s(), rel=1e-6, abs=1e-12)


@given(LAWS, st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_quantiles_rise_and_are_not_negative(law, u, v):
    low, high = sorted((u, v))
    assert 0 <= law.quantile_s(low) <= law.quantile_s(high) < math.inf


@given(st.floats(0.01, 10), st.floats(0.01, 2), st.floats(0.001, 0.999))
def test_quantiles_are_those_of_scipy(scale, sigma, u):
    assert Exponential(scale).quantile_s(u) == pytest.approx(stats.expon(scale=scale).ppf(u))
    assert LogNormal(scale, sigma).quantile_s(u) == pytest.approx(stats.lognorm(sigma, scale=scale).ppf(u))


@given(st.floats(0.01, 10), st.floats(0.01, 2))
def test_variances_are_those_of_scipy(scale, sigma):
    assert Constant(scale).variance() == 0
    assert Exponential(scale).variance() == pytest.approx(stats.expon(scale=scale).var())
    assert LogNormal(scale, sigma).variance() == pytest.approx(stats.lognorm(sigma, scale=scale).var())


@given(st.floats(0.01, 10), st.floats(0.01, 2), st.floats(0, 20))
def test_survival_is_that_of_scipy(scale, sigma, t):
    assert survival(Exponential(scale), t) == pytest.approx(stats.expon(scale=scale).sf(t))
    assert survival(LogNormal(scale, sigma), t) == pytest.approx(stats.lognorm(sigma, scale=scale).sf(t))


def test_a_call_back_at_the_very_timeout_is_back():
    assert survival(Constant(3.0), 3.0) == 0
    assert survival(Constant(3.0), math.nextafter(3.0, 0)) == 1
    assert survivals(Constant(3.0), [2.0, 3.0, 4.0]).tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("law", "tau", "expected"),
    [
        (Constant(3.0), 2.0, 2.0),
        (Exponential(2.0), 2.0, 2 * (1 - math.exp(-1))),
        (LogNormal(0.8, 0.0), 0.5, 0.5),
        (LogNormal(1.0, 1.0), 1.0, math.exp(0.5) * stats.norm.cdf(-1) + 0.5),
    ],
)
def test_what_a_timeout_leaves_of_the_mean_by_hand(law, tau, expected):
    assert mean_min_s(law, tau) == pytest.approx(expected)


@given(LAWS, st.floats(0, 50))
def test_what_a_timeout_leaves_is_the_integral_of_the_survival(law, tau):
    """E[min(T, tau)] = integral of P(T > t) dt over [0, tau]."""
    corners = sorted(min(law.quantile_s(u), tau) for u in (1e-6, 0.001, 0.1, 0.5, 0.9, 0.999, 1 - 1e-6))
    found, _ = quad(lambda t: survival(law, t), 0, tau, points=corners, limit=400)
    assert found == pytest.approx(mean_min_s(law, tau), rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("tau", [-1.0, math.nan])
def test_a_timeout_before_the_call_is_refused(tau):
    for asked in (survival, mean_min_s):
        with pytest.raises(ValueError, match=f"tau = {tau}; a time to wait is at least 0"):
            asked(Exponential(1.0), tau)


def test_a_log_normal_so_wide_that_its_mean_overflows_still_has_one_under_a_timeout():
    wide = LogNormal(1.0, 40.0)
    with pytest.raises(OverflowError):
        wide.mean_s()
    assert mean_min_s(wide, 10.0) == pytest.approx(quad(lambda t: survival(wide, t), 0, 10)[0], rel=1e-6)


@given(LAWS, st.lists(st.floats(0, 1 - 2.0**-24), min_size=1, max_size=5))
def test_many_quantiles_are_those_asked_for_one_by_one(law, u):
    found = quantiles_s(law, np.array(u, np.float32))
    expected = [law.quantile_s(float(x)) for x in np.array(u, np.float32)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert quantiles_s(law, [[0.25], [0.75]]).shape == (2, 1)


@pytest.mark.parametrize("law", [Constant(1.0), Exponential(1.0), LogNormal(1.0, 0.5)])
def test_the_quantile_of_a_uniform_at_the_edge_of_its_range_is_a_time(law):
    """Uniforms come from [0, 1), in steps of 2**-24: 0 is one of them."""
    for u in (0.0, 2.0**-24, 1 - 2.0**-24):
        assert 0 <= law.quantile_s(u) < math.inf


def test_a_law_reads_float32_uniforms():
    u = np.float32(0.25)
    assert LogNormal(2.0, 0.5).quantile_s(float(u)) == pytest.approx(2 * math.exp(0.5 * stats.norm.ppf(0.25)))


@pytest.mark.parametrize(
    ("law", "problem"),
    [
        (Constant(-1.0), "seconds = -1.0 is not a finite number of at least 0"),
        (Exponential(-2.0), "mean = -2.0"),
        (LogNormal(-3.0, 0.5), "median = -3.0"),
        (LogNormal(1.0, -0.5), "sigma = -0.5"),
    ],
)
def test_problems_are_named(law, problem):
    assert problem in law.problem()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Exponential(math.nan), "Exponential.mean = nan: input should be a finite number"),
        (lambda: Exponential(math.inf), "Exponential.mean = inf: input should be a finite number"),
        (lambda: LogNormal(math.inf, 0.5), "LogNormal.median = inf"),
        (lambda: LogNormal(1.0, math.nan), "LogNormal.sigma = nan"),
        (lambda: Constant("3"), "Constant.seconds = '3'"),
        (lambda: LogNormal(1.0, spread=2.0), "LogNormal has no field 'spread'"),
    ],
)
def test_what_is_no_number_is_refused_before_there_is_a_law(build, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build()


@given(LAWS)
def test_a_good_law_has_no_problem(law):
    assert law.problem() is None
