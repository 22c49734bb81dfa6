import json
import math
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sim.cluster.families import FAMILIES, capped_pareto, exponential, log_normal, log_normal_pareto
from sim.cluster.fitting import BestFit, TraceError, best_fit, fit, fit_figure, ks_distance, replay
from sim.mdp.latency import CappedPareto, Constant, Empirical, Exponential, LogNormal, Mixture, quantiles_s
from sim.records.config import canonical_json, from_dict


def drawn(law, n: int, seed: int = 3) -> np.ndarray:
    return quantiles_s(law, np.random.default_rng(seed).random(n))


BODY_AND_TAIL = Mixture(((0.9, LogNormal(1.0, 0.5)), (0.1, CappedPareto(3.0, 1.2, 200.0))))


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_laws_of_maximum_likelihood_by_hand():
    values = np.array([1.0, math.e, math.e**2])
    assert exponential(values).mean == pytest.approx((1 + math.e + math.e**2) / 3)
    assert log_normal(values).median == pytest.approx(math.e)
    assert log_normal(values).sigma == pytest.approx(math.sqrt(2 / 3))
    law = capped_pareto(values)  # two below the cap, logs of the excess 0, 1, 2
    assert (law.scale, law.alpha, law.cap) == pytest.approx((1.0, 2 / 3, math.e**2))


def test_the_distance_is_found_on_both_sides_of_a_jump():
    assert ks_distance(Constant(2.0), [2.0, 2.0]) == 0
    assert ks_distance(Constant(2.0), [1.0, 2.0, 2.0, 2.0]) == 0.25
    assert ks_distance(Constant(2.0), [3.0]) == 1
    assert ks_distance(Empirical((1.0, 3.0)), [1.0, 2.0]) == 0.5
    assert ks_distance(CappedPareto(1.0, 1.0, 2.0), [1.0, 2.0]) == pytest.approx(0.5)


def test_values_at_the_cap_count_as_cut_off_there():
    """More than a third of the calls gave up after 8 s; the exponent is that of the law, not of what was seen of it."""
    values = np.minimum(drawn(CappedPareto(1.0, 0.5, 1e9), 20_000), 8.0)
    found = fit(values, capped_pareto).law
    assert np.mean(values == 8.0) == pytest.approx(8**-0.5, abs=0.01)
    assert found.cap == 8.0
    assert found.alpha == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(20_000 * (1 - 8**-0.5)))


def test_a_fit_says_how_far_off_it_is():
    found = fit(np.arange(1.0, 101.0), exponential)
    assert (found.n, found.left_out, found.law) == (100, 0, Exponential(50.5))
    assert [(p, data) for p, data, _ in found.quantiles] == [(0.5, 50), (0.9, 90), (0.99, 99)]
    assert found.quantile_error(0.5) == pytest.approx(50.5 * math.log(2) / 50 - 1)
    assert found.quantile_error(0.99) == pytest.approx(50.5 * math.log(100) / 99 - 1)
    assert found.parameters == {"mean": 50.5}
    assert found.ks_expected == pytest.approx(0.08687)
    assert found.ks == pytest.approx(1 - math.exp(-35 / 50.5) - 0.34)  # just before the 35th value
    assert found.words() == (
        "exponential: mean 50.5; n = 100; KS 0.1600 (chance alone about 0.0869); law against values at "
        "p50 -30.0%, p90 +29.2%, p99 +134.9%"
    )


def test_a_quantile_of_0_has_no_relative_error():
    found = fit(np.r_[np.zeros(30), np.ones(10)], exponential)
    assert found.quantile_error(0.5) == math.inf
    assert found.quantile_error(0.9) == pytest.approx(0.25 * math.log(10) - 1)


# --- recovery: within 4 standard errors of maximum likelihood, n = 20,000 ---------------------------------------------

N = 20_000


def test_an_exponential_is_recovered():
    found = fit(drawn(Exponential(3.0), N), exponential)
    assert found.law.mean == pytest.approx(3.0, abs=4 * 3.0 / math.sqrt(N))
    assert 0 < found.ks < 2 * found.ks_expected


def test_a_log_normal_is_recovered():
    found = fit(drawn(LogNormal(0.8, 0.6), N))
    assert math.log(found.law.median) == pytest.approx(math.log(0.8), abs=4 * 0.6 / math.sqrt(N))
    assert found.law.sigma == pytest.approx(0.6, abs=4 * 0.6 / math.sqrt(2 * N))
    assert 0 < found.ks < 2 * found.ks_expected
    assert abs(found.quantile_error(0.9)) < 0.03


def test_a_capped_pareto_is_recovered():
    found = fit(drawn(CappedPareto(2.0, 1.4, 50.0), N), capped_pareto)
    assert found.law.scale == pytest.approx(2.0, rel=1e-3)
    assert found.law.alpha == pytest.approx(1.4, abs=4 * 1.4 / math.sqrt(N * 0.98))
    assert found.law.cap == 50.0
    assert 0 < found.ks < 2 * found.ks_expected


def test_the_tail_of_something_else_is_a_pareto_above_a_threshold():
    values = drawn(BODY_AND_TAIL, N)
    found = fit(values, capped_pareto, above=10.0)
    assert (found.n, found.n + found.left_out) == (int(np.sum(values > 10)), N)
    assert 400 < found.n < 600  # 0.1 (3 / 10)^1.2 of them
    assert found.law.alpha == pytest.approx(1.2, abs=4 * 1.2 / math.sqrt(found.n))
    assert f"n = {found.n} ({found.left_out} below left out)" in found.words()


def test_body_and_tail_are_told_apart():
    """The tail fitted begins a little later than the true one, at 3 s, and holds what of that lies there."""
    found = fit(drawn(BODY_AND_TAIL, N), partial(log_normal_pareto, body=0.9))
    (_, body), (weight, tail) = found.law.parts
    assert 3 < tail.scale < 4
    assert weight == pytest.approx(0.1 * (3 / tail.scale) ** 1.2, abs=4 * math.sqrt(0.09 * 0.91 / N))
    assert (body.median, body.sigma) == pytest.approx((1.0, 0.5), rel=0.05)  # it takes in the tail of 3 s to 3.3 s
    assert tail.alpha == pytest.approx(1.2, rel=0.1)
    assert tail.cap == 200.0
    assert 0 < found.ks < 3 * found.ks_expected
    assert found.family == "log_normal_pareto(body=0.9)"


def test_each_family_is_nearest_to_its_own():
    for law, name in (
        (Exponential(3.0), "exponential"),
        (LogNormal(0.8, 0.6), "log_normal"),
        (CappedPareto(2.0, 1.4, 1e4), "capped_pareto"),
        (BODY_AND_TAIL, "log_normal_pareto"),
    ):
        by_name = {f.family: f.ks for f in best_fit(drawn(law, 5000)).tried}
        nearest = min(ks for family, ks in by_name.items() if family.startswith(name))
        others = [ks for family, ks in by_name.items() if not family.startswith((name, "log_normal_pareto"))]
        assert nearest < 0.02 < min(others), law


# --- agreement and properties -----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.01, 100), min_size=20, max_size=60, unique=True))
def test_distance_and_parameters_are_those_of_scipy(values):
    found = fit(values)
    s, _, scale = stats.lognorm.fit(values, floc=0)
    assert (found.law.sigma, found.law.median) == pytest.approx((s, scale), rel=1e-6)
    assert found.ks == pytest.approx(stats.ks_1samp(values, stats.lognorm(s, scale=scale).cdf).statistic, abs=1e-9)


@given(
    st.lists(st.floats(0.5, 100), min_size=20, max_size=60, unique=True),
    st.sampled_from((0.25, 4.0, 1024.0)),
    st.sampled_from((exponential, log_normal, capped_pareto)),
)
def test_another_unit_changes_nothing_but_the_unit(values, factor, family):
    here, there = fit(values, family), fit(np.array(values) * factor, family)
    assert there.ks == pytest.approx(here.ks, abs=1e-9)
    assert there.law.mean_s() == pytest.approx(factor * here.law.mean_s(), rel=1e-9)
    assert there.quantile_error(0.9) == pytest.approx(here.quantile_error(0.9), abs=1e-6)


@given(st.permutations(list(range(1, 31))))
def test_the_order_of_the_values_does_not_matter(values):
    for family in (exponential, log_normal, capped_pareto, partial(log_normal_pareto, body=0.75)):
        assert fit(values, family) == fit(sorted(values), family)


@given(st.lists(st.floats(0, 100), min_size=1, max_size=40))
def test_a_replay_is_at_distance_0_from_what_it_replays(values):
    law = replay(values)
    assert ks_distance(law, values) <= 1e-12
    assert law.mean_s() == pytest.approx(np.mean(values))
    assert ks_distance(law, [101.0]) == 1


def test_all_that_was_tried_is_on_record():
    found = best_fit(drawn(LogNormal(1.0, 0.8), 400))
    assert len(found.tried) + len(found.refused) == len(FAMILIES) == 7
    assert found.best == found.tried[0]
    distances = [f.ks for f in found.tried]
    assert distances == sorted(distances)
    assert 0 < distances[0] < distances[-1]
    lines = found.words().splitlines()
    assert lines[0] == "nearest by KS of 7 tried"
    assert len(lines) == 8
    again = from_dict(json.loads(canonical_json(found)))
    assert isinstance(again, BestFit)
    assert again == found


def test_zeros_refuse_the_laws_that_take_logarithms_and_no_other():
    found = best_fit(np.r_[0.0, drawn(Exponential(1.0), 100)])
    assert [f.family for f in found.tried] == ["exponential"]
    assert len(found.refused) == 6
    assert "1 of 101 values are 0" in found.words()
    assert len(best_fit(np.r_[0.0, drawn(Exponential(1.0), 100)], above=0.0).tried) >= 3


# --- what it refuses --------------------------------------------------------------------------------------------------

ONE_TO_30 = np.arange(1.0, 31.0)


@pytest.mark.parametrize(
    ("values", "family", "message"),
    [
        (ONE_TO_30[:19], log_normal, "19 values are too few for a fit, which needs 20; use replay(values)"),
        (np.full(57, 3.0), exponential, "all 57 values equal 3; use Constant(3)"),
        (np.r_[0.0, 0.0, ONE_TO_30], log_normal, "2 of 32 values are 0, which a log-normal law never takes"),
        (np.r_[0.0, ONE_TO_30], capped_pareto, "1 of 31 values are 0, which a Pareto law never takes"),
        (np.r_[ONE_TO_30, -1.0], exponential, "value 30 of 31 is -1.0, not a finite number of at least 0 (1 such)"),
        (np.r_[ONE_TO_30, np.nan], exponential, "value 30 of 31 is nan"),
        (np.ones((30, 2)), exponential, "values of shape (30, 2)"),
        ([], exponential, "values of shape (0,)"),
        (ONE_TO_30, partial(log_normal_pareto, body=1.0), "body = 1.0, the share of values below the tail, is outside"),
        (np.r_[np.ones(25), 2.0, 3.0], log_normal_pareto, "body = 0.9 leaves"),
        (np.r_[np.ones(25), 2.0, 3.0], partial(log_normal_pareto, body=0.5), "body = 0.5 leaves one part nothing but"),
        (np.r_[np.ones(20), 2 + ONE_TO_30], partial(log_normal_pareto, body=0.41), "shrinks onto the value 1;"),
        (ONE_TO_30, lambda values: Exponential(-1.0), "gives no law of 30 values: latency mean = -1.0"),
    ],
)
def test_what_cannot_be_fitted_is_refused(values, family, message):
    with pytest.raises(TraceError, match=re.escape(message)):
        fit(values, family)


def test_too_few_above_a_threshold_are_refused():
    with pytest.raises(TraceError, match=re.escape("10 values above 20.0 are too few for a fit")):
        fit(ONE_TO_30, above=20.0)


def test_a_tail_that_is_not_there_is_refused():
    with pytest.raises(TraceError, match=r"only the greatest value, .* is left; log_normal does as well"):
        fit(quantiles_s(Exponential(1.0), (np.arange(500) + 0.5) / 500), partial(log_normal_pareto, body=0.95))


def test_when_nothing_can_be_fitted_every_reason_is_given():
    with pytest.raises(TraceError, match="none of 7 families can be fitted: exponential: 3 values are too few"):
        best_fit([1.0, 2.0, 3.0])
    with pytest.raises(TraceError, match="values of shape"):
        replay([])


# --- the picture ------------------------------------------------------------------------------------------------------


def test_the_picture_shows_the_values_and_every_fit():
    values = np.r_[0.0, drawn(BODY_AND_TAIL, 500)]
    fits = best_fit(values, above=0.0).tried[:2]
    axes = fit_figure(fits, values, name="search", unit="s").axes[0]
    points, *curves = axes.lines
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "search t, s"
    assert "n = 500" in axes.get_title(loc="left")
    assert points.get_ydata()[[0, -1]].tolist() == pytest.approx([1.0, 1 / 500])
    assert [line.get_label() for line in curves] == [f"{f.family}, KS {f.ks:.3f}" for f in fits]
    for line in curves:
        at, share = line.get_data()
        assert np.interp(np.median(values), at, share) == pytest.approx(0.5, abs=0.1)


def test_zeros_that_cannot_be_drawn_are_counted():
    values = np.r_[np.zeros(5), ONE_TO_30]
    axes = fit_figure(fit(values, exponential), values).axes[0]
    assert axes.get_title(loc="left") == "duration, n = 35, 5 of them 0 and not drawn"
    assert axes.lines[0].get_ydata()[0] == pytest.approx(30 / 35)
