"""Laws with caps and tails, mixtures and replayed traces."""

import json
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats
from scipy.integrate import quad

from sim.mdp.latency import (
    Capped,
    CappedPareto,
    Constant,
    Empirical,
    Exponential,
    LogNormal,
    Mixture,
    mean_min_s,
    percentile_s,
    quantiles_s,
    survival,
    survivals,
)
from sim.records.config import canonical_json, config, from_dict, to_dict

SECONDS = st.one_of(st.just(0.0), st.floats(0.01, 20))
SIMPLE = st.one_of(
    st.builds(Constant, SECONDS),
    st.builds(Exponential, st.floats(0.01, 20)),
    st.builds(LogNormal, st.floats(0.01, 20), st.floats(0, 1.5)),
    st.builds(
        lambda scale, alpha, reach: CappedPareto(scale, alpha, scale * reach),
        st.floats(0.01, 5),
        st.floats(0.2, 4),
        st.floats(1, 100),
    ),
    st.builds(Empirical, st.lists(SECONDS, min_size=1, max_size=8).map(tuple)),
)


def _mixture(laws: list, weights: list[int]) -> Mixture:
    used = weights[: len(laws)]
    return Mixture(tuple((w / sum(used), law) for w, law in zip(used, laws, strict=True)))


def _composed(inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.one_of(
        st.builds(Capped, inner, st.floats(0.1, 30)),
        st.builds(
            _mixture, st.lists(inner, min_size=1, max_size=3), st.lists(st.integers(1, 5), min_size=3, max_size=3)
        ),
    )


LAWS = st.recursive(SIMPLE, _composed, max_leaves=4)


def law_of_the_draw(law, t: float, n: int = 10_000) -> float:
    """The share of the draws of n evenly spread uniforms that exceed t."""
    return float(np.mean(quantiles_s(law, (np.arange(n) + 0.5) / n) > t))


# --- by hand ----------------------------------------------------------------------------------------------------------

TWO = Mixture(((0.25, Constant(8.0)), (0.75, CappedPareto(1.0, 1.0, 4.0))))


@pytest.mark.parametrize(
    ("law", "mean", "variance"),
    [
        (CappedPareto(2.0, 3.0, None), 3.0, 3.0),
        (CappedPareto(1.0, 1.0, math.e), 2.0, 2 * math.e - 1 - 4),  # the exponent 1: E = 1 + log r, E[T^2] = 2 r - 1
        (CappedPareto(1.0, 2.0, 2.0), 1.5, 1 + 2 * math.log(2) - 2.25),
        (CappedPareto(1.0, 0.5, 9.0), 5.0, 1 + 2 * (27 - 1) / 1.5 - 25),
        (CappedPareto(3.0, 2.0, 3.0), 3.0, 0.0),
        (
            Capped(Exponential(2.0), 2.0),
            2 * (1 - math.exp(-1)),
            8 * (1 - 2 / math.e) - 4 * (1 - 1 / math.e) ** 2,
        ),
        (Mixture(((0.5, Constant(1.0)), (0.5, Constant(3.0)))), 2.0, 1.0),
        (Mixture(((0.5, Exponential(1.0)), (0.5, Exponential(3.0)))), 2.0, 6.0),
        (Empirical((6.0, 0.0, 3.0)), 3.0, 6.0),
    ],
    ids=str,
)
def test_means_and_variances_by_hand(law, mean, variance):
    assert law.problem() is None
    assert law.mean_s() == pytest.approx(mean)
    assert law.variance() == pytest.approx(variance, abs=1e-12)


def test_what_would_exceed_the_cap_takes_the_cap():
    """An atom, not the truncated law: below the cap nothing changes."""
    free, capped = CappedPareto(1.0, 1.5, None), CappedPareto(1.0, 1.5, 4.0)
    assert survival(capped, 3.999) == survival(free, 3.999) == pytest.approx(3.999**-1.5)
    assert survival(capped, 4.0) == 0
    assert capped.quantile_s(0.87) == free.quantile_s(0.87) < 4  # 1 - 4^-1.5 = 0.875
    assert capped.quantile_s(0.88) == 4
    assert law_of_the_draw(capped, 3.999) == pytest.approx(0.125, abs=1e-3)


def test_moments_that_are_infinite_are_said_to_be():
    assert CappedPareto(1.0, 1.5, math.inf).mean_s() == pytest.approx(3.0)
    assert CappedPareto(1.0, 1.5, math.inf).variance() == math.inf
    assert CappedPareto(1.0, 2.0, math.inf).variance() == math.inf
    assert CappedPareto(1.0, 2.1, math.inf).variance() == pytest.approx(2.1 / (1.1**2 * 0.1))
    assert CappedPareto(1.0, 0.9, math.inf).mean_s() == CappedPareto(1.0, 0.9, math.inf).variance() == math.inf
    assert Mixture(((0.9, Constant(1.0)), (0.1, CappedPareto(1.0, 1.5, None)))).variance() == math.inf
    assert Mixture(((1.0, Constant(1.0)), (0.0, CappedPareto(1.0, 1.5, None)))).variance() == 0


def test_a_part_is_chosen_where_the_uniform_falls_and_drawn_where_in_its_share():
    assert TWO.quantile_s(0.1) == 8.0
    assert TWO.quantile_s(0.25) == 1.0  # the second share begins
    assert TWO.quantile_s(0.625) == pytest.approx(2.0)  # half of it: the median of the Pareto law
    assert TWO.quantile_s(0.999) == 4.0
    assert percentile_s(TWO, 0.5) == pytest.approx(3.0)  # 0.75 (1 - 1/t) = 0.5
    assert percentile_s(TWO, 0.7) == 4.0
    assert percentile_s(TWO, 0.9) == 8.0


def test_a_part_of_weight_0_is_never_drawn():
    law = Mixture(((0.0, Constant(1.0)), (1.0, Constant(2.0)), (0.0, Constant(3.0))))
    assert {law.quantile_s(u) for u in (0.0, 0.5, 1 - 2.0**-53)} == {2.0}


def test_a_replay_draws_number_floor_u_n_of_the_sorted_values():
    law = Empirical((5.0, 1.0, 3.0, 3.0))
    assert law.values == (1.0, 3.0, 3.0, 5.0)
    assert [law.quantile_s(u) for u in (0.0, 0.2499, 0.25, 0.74, 0.75, 1 - 2.0**-53)] == [1, 1, 3, 3, 5, 5]
    assert survivals(law, [0.9, 1.0, 2.0, 3.0, 5.0]).tolist() == [1.0, 0.75, 0.75, 0.25, 0.0]
    assert mean_min_s(law, 2.0) == 1.75


# --- properties -------------------------------------------------------------------------------------------------------


@given(LAWS)
def test_the_law_of_the_draw_is_the_law(law):
    """At every decile, from both sides of a jump."""
    for u in (0.1, 0.3, 0.5, 0.7, 0.9):
        t = percentile_s(law, u)
        for at in (t * (1 - 1e-9), t * (1 + 1e-9)):
            assert law_of_the_draw(law, at) == pytest.approx(survival(law, at), abs=2e-3)


@given(LAWS)
def test_mean_and_variance_are_those_of_the_draws(law):
    """The variance up to the 99th percentile only: beyond it evenly spread uniforms see too little."""
    u = (np.arange(20_000) + 0.5) / 20_000
    spread = math.sqrt(law.variance())
    assert quantiles_s(law, u).mean() == pytest.approx(law.mean_s(), rel=1e-9, abs=0.01 * spread)
    tau = percentile_s(law, 0.99)
    capped = Capped(law, tau)
    assert quantiles_s(capped, u).var() == pytest.approx(capped.variance(), rel=0.02, abs=1e-4 * tau**2)


@given(LAWS, st.floats(0, 40), st.floats(0, 40))
def test_a_timeout_only_shortens(law, a, b):
    low, high = sorted((a, b))
    assert 0 <= mean_min_s(law, low) <= mean_min_s(law, high) * (1 + 1e-12) <= law.mean_s() * (1 + 1e-11)
    assert mean_min_s(law, low) <= low * (1 + 1e-12)
    assert survival(law, low) >= survival(law, high) - 1e-15


@given(LAWS, st.floats(0.1, 30), st.floats(0, 40))
def test_a_capped_law_is_the_minimum(law, cap, t):
    capped = Capped(law, cap)
    assert capped.mean_s() == mean_min_s(law, cap)
    assert survival(capped, t) == (survival(law, t) if t < cap else 0)
    assert Capped(capped, 2 * cap).mean_s() == capped.mean_s()
    assert 0 <= capped.variance() <= cap**2 / 4 + 1e-9  # Popoviciu: the most a law on [0, cap] can vary


@given(st.floats(0.1, 5), st.floats(1.1, 4), st.floats(1, 50))
def test_a_capped_pareto_is_a_pareto_capped(scale, alpha, reach):
    direct, composed = (
        CappedPareto(scale, alpha, scale * reach),
        Capped(CappedPareto(scale, alpha, None), scale * reach),
    )
    assert direct.mean_s() == composed.mean_s() > 0
    assert direct.variance() == composed.variance()
    u = np.linspace(0, 1, 50, endpoint=False)
    np.testing.assert_allclose(quantiles_s(direct, u), quantiles_s(composed, u), rtol=1e-12)


@given(st.floats(0.1, 5), st.floats(-1e-6, 1e-6))
def test_the_exponent_1_is_no_jump(scale, epsilon):
    near = CappedPareto(scale, 1 + epsilon, 20 * scale)
    assert near.mean_s() == pytest.approx(scale * (1 + math.log(20)), rel=1e-5)


@given(LAWS, st.lists(st.floats(0, 1 - 2.0**-24), min_size=1, max_size=5))
def test_many_quantiles_are_those_asked_for_one_by_one(law, u):
    np.testing.assert_allclose(quantiles_s(law, u), [law.quantile_s(x) for x in u], rtol=1e-12)
    assert quantiles_s(law, [[0.25], [0.75]]).shape == (2, 1)


@given(SIMPLE, st.floats(0.001, 0.999))
def test_a_percentile_is_the_quantile_where_that_is_one(law, p):
    assume(not isinstance(law, Empirical))  # floor(u n) takes the right of a jump, the percentile its left
    assert percentile_s(law, p) == pytest.approx(law.quantile_s(p), rel=1e-6, abs=1e-9)


@given(LAWS)
def test_a_law_survives_a_record(law):
    held = Held(law, (law,))
    again = from_dict(json.loads(canonical_json(held)))
    assert again == held
    assert canonical_json(again) == canonical_json(held)
    assert type(again.law) is type(law)
    assert hash(again) == hash(held)


@config
class Held:
    law: Exponential | Constant | LogNormal | CappedPareto | Capped | Mixture | Empirical
    more: tuple[object, ...]


# `from_dict` builds classes of the project's packages only: lend it one of this file.
Held.__module__, Held.__qualname__ = "sim.mdp.latency", "Held"


@pytest.fixture(autouse=True)
def _lend(monkeypatch):
    monkeypatch.setattr("sim.mdp.latency.Held", Held, raising=False)


def test_no_cap_is_written_as_none_since_json_has_no_infinity():
    law = CappedPareto(1.0, 1.5, math.inf)
    assert law == CappedPareto(1.0, 1.5, None)
    assert law.top == math.inf
    assert to_dict(law)["cap"] is None
    assert from_dict(to_dict(law)) == law


# --- agreement --------------------------------------------------------------------------------------------------------


@given(st.floats(0.1, 5), st.floats(2.1, 6), st.floats(0, 0.999))
def test_a_pareto_without_a_cap_is_that_of_scipy(scale, alpha, u):
    law, theirs = CappedPareto(scale, alpha, None), stats.pareto(alpha, scale=scale)
    assert law.mean_s() == pytest.approx(theirs.mean())
    assert law.variance() == pytest.approx(theirs.var())
    assert law.quantile_s(u) == pytest.approx(theirs.ppf(u))
    assert survival(law, 2 * scale) == pytest.approx(theirs.sf(2 * scale))


@given(LAWS, st.floats(0.5, 40), st.sampled_from((1, 2)))
def test_what_a_timeout_leaves_is_the_integral_of_the_survival(law, tau, k):
    """E[min(T, tau)^k] = integral of k t^(k-1) P(T > t) dt over [0, tau], by 10^5 midpoints."""
    t = (np.arange(100_000) + 0.5) * tau / 100_000
    found = np.mean(k * t ** (k - 1) * survivals(law, t)) * tau
    assert found == pytest.approx(law.moment_min(k, tau), rel=1e-3, abs=1e-3 * tau**k)
    assert (law.mean_s() == 0) == (law.moment_min(k, tau) == 0)


@pytest.mark.parametrize(
    "law",
    [
        CappedPareto(0.5, 1.3, 60.0),
        Capped(LogNormal(2.0, 1.2), 10.0),
        Mixture(((0.9, LogNormal(1.0, 0.8)), (0.1, CappedPareto(4.0, 1.2, 300.0)))),
    ],
    ids=lambda law: type(law).__name__,
)
def test_draws_are_of_the_law(law):
    """20,000 draws below the atom: the Kolmogorov-Smirnov distance exceeds 1.95 / sqrt(n) by chance once in 1000."""
    drawn = np.sort(quantiles_s(law, np.random.default_rng(7).random(20_000)))
    below = drawn[drawn < drawn[-1]]
    ranks = np.arange(1, len(below) + 1) / len(drawn)
    assert len(below) > 15_000
    assert np.abs(ranks - (1 - survivals(law, below))).max() < 1.95 / math.sqrt(len(drawn))


def test_the_mean_of_a_capped_log_normal_is_the_integral_of_its_density():
    law, theirs = Capped(LogNormal(2.0, 1.2), 10.0), stats.lognorm(1.2, scale=2.0)
    inside, _ = quad(lambda t: t * theirs.pdf(t), 0, 10)
    second, _ = quad(lambda t: t**2 * theirs.pdf(t), 0, 10)
    mean = inside + 10 * theirs.sf(10)
    assert law.mean_s() == pytest.approx(mean, rel=1e-7)
    assert law.variance() == pytest.approx(second + 100 * theirs.sf(10) - mean**2, rel=1e-6)


@given(LAWS)
def test_a_good_law_has_no_problem(law):
    assert law.problem() is None
