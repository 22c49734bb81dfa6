import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit

from sim.mdp.theory.passage import first_passage_probability

# --- first passage ----------------------------------------------------------------------------------------------------

START, SD = -4.14, 0.6


def monte_carlo(drift, steps, n=20_000):
    """The share of n chains z' = z + drift(z) + sd x N(0, 1) that reach 0 within the steps."""
    rng = np.random.default_rng(0)
    z = np.full(n, START)
    passed = np.zeros(n, bool)
    for _ in range(steps):
        z = z + drift(z) + SD * rng.normal(size=n)
        passed |= z >= 0
    return passed.mean(), 4 * np.sqrt(passed.mean() * (1 - passed.mean()) / n)


@pytest.mark.parametrize(
    ("drift", "steps"),
    [(np.zeros_like, 40), (lambda z: -0.48 * expit(z) * expit(-z), 80), (lambda z: np.full_like(z, 0.05), 30)],
    ids=["noise", "noise and restoring drift", "noise and drive"],
)
def test_first_passage_is_that_of_the_same_chain(drift, steps):
    grid = np.linspace(-20, 0, 1001)
    share, tolerance = monte_carlo(drift, steps)
    assert share > 0.05
    assert first_passage_probability(START, SD, drift(grid), steps, grid=grid) == pytest.approx(share, abs=tolerance)
    # the mutation: twenty per cent more steps are told apart
    assert abs(first_passage_probability(START, SD, drift(grid), steps * 6 // 5, grid=grid) - share) > tolerance


def test_first_passage_of_pure_noise_is_the_reflection_principle():
    """P(max of Brownian motion > a) = 2 Phi(-a / sqrt T), at fine steps; watched at steps of sd, a is longer by .5826 sd."""
    grid = np.linspace(-5, 0, 1001)
    for sd, steps in ((0.1, 100), (0.05, 400)):
        a = 1.0 + 0.5826 * sd
        found = first_passage_probability(-1.0, sd, None, steps, grid=grid)
        assert found == pytest.approx(2 * stats.norm.cdf(-a / (sd * np.sqrt(steps))), abs=2e-3)
        assert abs(found - 2 * stats.norm.cdf(-1.0 / (sd * np.sqrt(steps)))) > 6e-3  # without the correction it is off


def test_one_step_is_one_normal():
    grid = np.linspace(-10, 0, 2001)
    assert first_passage_probability(-1.0, 0.8, None, 1, grid=grid) == pytest.approx(stats.norm.sf(1 / 0.8), abs=1e-6)
    spread = np.full(2001, 0.8)  # a spread at each point of the grid
    assert first_passage_probability(-1.0, spread, None, 1, grid=grid) == pytest.approx(
        stats.norm.sf(1 / 0.8), abs=1e-6
    )
    assert first_passage_probability(-1.0, 0.8, None, 0, grid=grid) == pytest.approx(0, abs=1e-12)


def test_what_would_leave_at_the_lower_end_stays():
    """A grid that ends just below the start: one step up is as likely as on a long one, and in the end all pass."""
    short = np.linspace(-1.5, 0, 1501)
    assert first_passage_probability(-1.0, 0.8, None, 1, grid=short) == pytest.approx(stats.norm.sf(1 / 0.8), abs=1e-3)
    few, many = (first_passage_probability(-1.0, 0.2, None, n, grid=short[::10]) for n in (5, 2000))
    assert few < 0.05
    assert many == pytest.approx(1, abs=1e-3)


@given(st.floats(-3, -0.5), st.floats(0.2, 1), st.integers(1, 30))
def test_more_time_noise_or_nearness_makes_passage_likelier(start, sd, steps):
    grid = np.linspace(-9, 0, 181)
    p = first_passage_probability(start, sd, None, steps, grid=grid)
    assert 0 <= p <= 1
    assert first_passage_probability(start, sd, None, steps + 5, grid=grid) >= p - 1e-12
    assert first_passage_probability(start + 0.2, sd, None, steps, grid=grid) >= p - 1e-12
    assert first_passage_probability(start, sd * 1.2, None, steps, grid=grid) >= p - 1e-12


def test_first_passage_refuses():
    grid = np.linspace(-5, 0, 51)
    with pytest.raises(ValueError, match=r"sd = 0.0 must be positive: without noise use passage_steps"):
        first_passage_probability(-1.0, 0.0, None, 5, grid=grid)
    with pytest.raises(ValueError, match=r"the grid ends at 0.0, not at the level 1.0"):
        first_passage_probability(-1.0, 0.1, None, 5, grid=grid, level=1.0)
