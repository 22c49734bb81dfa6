import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from sim.cluster.statistics.intervals import replicated
from sim.cluster.theory.order import (
    exponential_mean_max,
    lognormal_mean_max,
    mean_kth,
    mean_max,
    pareto_mean_max,
    slot_use,
)

COUNTS = st.integers(1, 2000)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_pareto_by_hand():
    """alpha = 2, n = 2: 2! Gamma(1/2) / Gamma(5/2) = 2 / (3/4) = 8/3."""
    assert pareto_mean_max(1.0, 2.0, 2) == pytest.approx(8 / 3)
    assert pareto_mean_max(3.0, 2.0, 1) == pytest.approx(6)
    assert pareto_mean_max(1.0, 2.5, 8) == pytest.approx(3.466 + 0.007, abs=0.014)  # a simulated 3.466 +- .014


def test_exponential_by_hand():
    assert exponential_mean_max(1.0, 4) == pytest.approx(25 / 12)
    assert exponential_mean_max(2.0, 1) == 2


def test_a_batch_with_a_long_tail_leaves_its_slots_idle():
    """Means of the longest over the mean for sigma .6, 1, 1.5 and 8 or 512 slots, as published with two digits."""
    for sigma, eight, many in ((0.6, 2.1, 5.3), (1.0, 3.1, 13.7), (1.5, 4.4, 37)):
        mean = np.exp(sigma**2 / 2)
        assert lognormal_mean_max(1.0, sigma, 8) / mean == pytest.approx(eight, rel=0.03)
        assert lognormal_mean_max(1.0, sigma, 512) / mean == pytest.approx(many, rel=0.03)
    assert slot_use(np.exp(0.5), lognormal_mean_max(1.0, 1.0, 512)) == pytest.approx(0.073, abs=0.001)


# --- against other ways to compute ------------------------------------------------------------------------------------


@given(st.floats(1.1, 10), COUNTS)
def test_quadrature_agrees_with_pareto(tail, n):
    upper = lambda s: s ** (-1 / tail)  # noqa: E731
    found = mean_max(lambda u: (1 - u) ** (-1 / tail), n, upper=upper)
    assert found == pytest.approx(pareto_mean_max(1.0, tail, n), rel=1e-6)


@given(st.integers(1, 300), st.data())
def test_quadrature_agrees_with_spacings(n, data):
    """The k-th of n exponential times: 1/n + ... + 1/(n - k + 1); of n uniform ones: k / (n + 1)."""
    k = data.draw(st.integers(1, n))
    spacings = (1 / np.arange(n - k + 1, n + 1)).sum()
    assert mean_kth(lambda u: -np.log1p(-u), k, n) == pytest.approx(spacings, rel=1e-7)
    assert mean_kth(lambda u: u, k, n) == pytest.approx(k / (n + 1), rel=1e-9)


@pytest.mark.parametrize(("k", "n"), [(1, 1), (3, 5), (8, 8), (48, 64)])
def test_quadrature_agrees_with_adaptive_integration(k, n):
    law, weight = stats.gamma(0.7), stats.beta(k, n - k + 1)
    expected, _ = integrate.quad(lambda u: law.ppf(u) * weight.pdf(u), 0, 1, limit=400)
    assert expected > 0.1
    assert mean_kth(law.ppf, k, n, upper=law.isf) == pytest.approx(expected, rel=1e-6)


def test_lognormal_agrees_with_the_general_form():
    law = stats.lognorm(0.8, scale=3.0)
    assert lognormal_mean_max(3.0, 0.8, 20) == pytest.approx(mean_max(law.ppf, 20, upper=law.isf), rel=1e-8)


def test_a_cap_is_a_kink_and_does_no_harm():
    """min(exponential, 2), the longest of 3: int_0^2 1 - (1 - e^-t)^3 dt."""
    expected, _ = integrate.quad(lambda t: 1 - (1 - np.exp(-t)) ** 3, 0, 2)
    assert mean_max(lambda u: np.minimum(-np.log1p(-u), 2.0), 3) == pytest.approx(expected, rel=1e-6)


def test_keeping_the_first_of_more_against_draws():
    """40 means of 500 batches: 12 log-normal times, the batch ends with the tenth."""
    values = []
    for seed in range(40):
        drawn = np.random.default_rng(seed).lognormal(0.0, 1.0, (500, 12))
        values.append(np.sort(drawn, axis=1)[:, 9].mean())
    found, law = replicated(values, alpha=0.01), stats.lognorm(1.0)
    assert found.low < mean_kth(law.ppf, 10, 12) < found.high
    assert found.high - found.low < 0.1
    assert mean_kth(law.ppf, 10, 12) < mean_max(law.ppf, 10) / 1.4  # what over-provisioning is for


# --- properties -------------------------------------------------------------------------------------------------------


@given(st.floats(0.05, 2), COUNTS)
def test_larger_batches_wait_longer_and_use_less(sigma, n):
    mean, one, more = np.exp(sigma**2 / 2), lognormal_mean_max(1.0, sigma, n), lognormal_mean_max(1.0, sigma, n + 1)
    assert mean * (1 - 1e-9) <= one < more
    assert slot_use(mean, more) < slot_use(mean, one) <= 1 + 1e-9


@given(st.integers(1, 40), st.integers(0, 40))
def test_spares_shorten_the_wait(kept, spares):
    waits = [mean_kth(lambda u: -np.log1p(-u), kept, kept + s) for s in (spares, spares + 1)]
    assert waits[1] < waits[0] <= exponential_mean_max(1.0, kept) * (1 + 1e-9)


@pytest.mark.parametrize("n", [2, 7, 30])
def test_ranks_add_up_to_the_mean(n):
    law = stats.lognorm(0.7)
    assert sum(mean_kth(law.ppf, k, n) for k in range(1, n + 1)) == pytest.approx(n * np.exp(0.245), rel=1e-7)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_means_that_do_not_exist():
    with pytest.raises(ValueError, match=r"tail = 1.0 must be above 1"):
        pareto_mean_max(1.0, 1.0, 8)
    with pytest.raises(ValueError, match=r"give Q\(1 - s\) as `upper`"):
        mean_max(lambda u: (1 - u) ** (-1 / 1.2), 8)
    with pytest.raises(ValueError, match="infinite or nearly"):
        mean_max(lambda u: (1 - u) ** -1.0, 8, upper=lambda s: s**-1.0)
    with pytest.raises(ValueError, match=r"k = 9 must be one of 1 .. n = 8"):
        mean_kth(lambda u: u, 9, 8)
    with pytest.raises(ValueError, match=r"longest_s = 1.0 must be at least mean_s = 2.0"):
        slot_use(2.0, 1.0)
