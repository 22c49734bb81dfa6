"""Laws in use: calls that time out and are tried again, and laws that are refused."""

import math
import re

import numpy as np
import pytest

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
)
from sim.records.config import ConfigError

# --- a timeout and another try ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "tau"),
    [
        (LogNormal(1.0, 1.0), 2.0),
        (CappedPareto(0.5, 1.2, 100.0), 3.0),
        (Mixture(((0.95, Exponential(1.0)), (0.05, Constant(60.0)))), 4.0),
    ],
    ids=lambda x: type(x).__name__,
)
def test_a_timeout_and_another_try_cost_what_the_closed_form_says(law, tau):
    """E = E[min(X, tau)] / P(X <= tau), within 4 standard errors of 50,000 calls played out try by try."""
    rng, spent, open_ = np.random.default_rng(11), np.zeros(50_000), np.ones(50_000, bool)
    while open_.any():
        x = quantiles_s(law, rng.random(int(open_.sum())))
        spent[open_] += np.minimum(x, tau)
        open_[open_] = x > tau
    expected = mean_min_s(law, tau) / (1 - survival(law, tau))
    assert spent.mean() == pytest.approx(expected, abs=4 * spent.std() / math.sqrt(len(spent)))
    assert expected != pytest.approx(law.mean_s(), rel=0.05)  # the timeout does matter here


def test_with_a_timeout_a_call_that_hangs_costs_less_than_one_that_is_waited_for():
    hangs = Mixture(((0.95, Exponential(1.0)), (0.05, Constant(60.0))))
    assert hangs.mean_s() == pytest.approx(3.95)
    assert mean_min_s(hangs, 5.0) / (1 - survival(hangs, 5.0)) == pytest.approx(
        1 + 0.05 * 5 / (0.95 * (1 - math.exp(-5)))
    )


# --- what it refuses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "problem"),
    [
        (CappedPareto(1.0, 1.0, None), "alpha = 1.0 without a cap has an infinite mean; give a finite cap"),
        (CappedPareto(1.0, 0.7, math.inf), "alpha = 0.7 without a cap has an infinite mean"),
        (CappedPareto(0.0, 2.0, 1.0), "scale = 0.0 of a Pareto law must be above 0"),
        (CappedPareto(1.0, -2.0, 1.0), "alpha = -2.0 of a Pareto law must be above 0"),
        (CappedPareto(3.0, 2.0, 1.0), "cap = 1.0 lies below the scale 3.0"),
        (Capped(Exponential(1.0), -1.0), "cap = -1.0 is not a finite number of at least 0"),
        (Capped(Exponential(-1.0), 1.0), "mean = -1.0"),
        (Mixture(((0.5, Constant(1.0)), (0.4, Constant(2.0)))), "weights of the 2 parts sum to 0.9, not 1"),
        (Mixture(((1.5, Constant(1.0)), (-0.5, Constant(2.0)))), "weight -0.5 of part 1 is negative"),
        (Mixture(((0.5, Constant(1.0)), (0.5, CappedPareto(1.0, 0.9, None)))), "part 1: latency alpha = 0.9"),
        (Mixture(()), "weights of the 0 parts sum to 0, not 1"),
        (Empirical(()), "0 recorded durations"),
        (Empirical((1.0, -2.0, -3.0)), "2 of 3 negative) = -3.0"),
    ],
)
def test_problems_are_named(law, problem):
    assert problem in law.problem()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: CappedPareto(1.0, 2.0, math.nan), "CappedPareto.cap = nan"),
        (lambda: CappedPareto(math.inf, 2.0, 3.0), "CappedPareto.scale = inf"),
        (lambda: Capped(Exponential(1.0), math.inf), "Capped.cap = inf"),
        (lambda: Capped(3.0, 1.0), "Capped.uncapped = 3.0: input should be an instance of Latency"),
        (lambda: Capped(Exponential, 1.0), "Capped was given the class Exponential; call it"),
        (lambda: Mixture(((math.nan, Constant(1.0)),)), "Mixture.parts.0.0 = nan"),
        (lambda: Empirical((1.0, math.nan)), "Empirical.values.1 = nan"),
    ],
)
def test_what_is_no_number_or_no_law_is_refused_at_once(build, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build()


@pytest.mark.parametrize("p", [-0.1, 1.0, math.nan])
def test_a_percentile_outside_its_range_is_refused(p):
    with pytest.raises(ValueError, match=re.escape(f"p = {p} is outside [0, 1)")):
        percentile_s(Exponential(1.0), p)
