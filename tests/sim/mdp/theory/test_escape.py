import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import erf, expit, ndtr

from sim.mdp.theory.escape import (
    WATCHED,
    Diffusion,
    adam_diffusion,
    chain_passage_steps,
    kramers_steps,
    mean_passage_steps,
    momentum_walks,
    natural_distance,
    plain_survival,
    survival,
)
from sim.mdp.theory.passage import first_passage_probability


def diffusion(low, high, drift, sd=1.0, points=2001):
    grid = np.linspace(low, high, points)
    return Diffusion(grid, np.broadcast_to(drift(grid) if callable(drift) else drift, grid.shape), np.full(points, sd))


def simulated_passages(d, start, steps, n=4000):
    """First passage of n simulated chains to the upper end, reflected into the lowest cell; steps + 1 if not seen."""
    rng = np.random.default_rng(1)
    z, when = np.full(n, start), np.full(n, steps + 1)
    for t in range(1, steps + 1):
        z = z + np.interp(z, d.grid, d.drift) + np.interp(z, d.grid, d.sd) * rng.standard_normal(n)
        z = np.maximum(z, d.grid[0])
        when = np.where((z >= d.grid[-1]) & (when > steps), t, when)
    return when


# --- the mean time, by quadrature -------------------------------------------------------------------------------------


@given(st.floats(-4, -0.5), st.floats(0.05, 0.5), st.floats(0.3, 1.5))
@settings(max_examples=30, deadline=None)
def test_a_brownian_motion_with_drift_takes_distance_over_drift(start, speed, sd):
    """From the floor up T = a / mu - (sd^2 / 2 mu^2) e^(-2 mu (start - floor) / sd^2) (1 - e^(-2 mu a / sd^2))."""
    floor, a = -6.0, -start
    far = np.exp(-2 * speed * (start - floor) / sd**2) * (1 - np.exp(-2 * speed * a / sd**2))
    exact = a / speed - sd**2 / (2 * speed**2) * far
    assert mean_passage_steps(diffusion(floor, 0, speed, sd), start) == pytest.approx(exact, rel=1e-3)


def test_pure_noise_over_a_floor_takes_a_squared_over_variance():
    """T = (L^2 - x^2) / sd^2 at height x above the floor, and so grows without bound with the floor."""
    for L in (4, 40):
        assert mean_passage_steps(diffusion(-L, 0, 0.0, 0.6), -4.0) == pytest.approx(
            (L**2 - (L - 4) ** 2) / 0.36, rel=1e-6
        )


@pytest.mark.parametrize(("start", "level"), [(0.0, 1.0), (-1.0, 2.0)])
def test_an_ornstein_uhlenbeck_process(start, level):
    """dz = -z dt + sqrt 2 dW: T = sqrt(2 pi) integral of e^(y^2 / 2) Phi(y) dy (Siegert 1951)."""
    exact, _ = quad(lambda y: np.sqrt(2 * np.pi) * np.exp(y**2 / 2) * ndtr(y), start, level)
    assert mean_passage_steps(diffusion(-9, level, lambda z: -z, np.sqrt(2)), start) == pytest.approx(exact, rel=1e-3)


def test_noise_that_grows_with_z_enters_as_ito():
    """Geometric: drift 0, sd = c z. In y = log z the drift is -c^2 / 2: Ito; Stratonovich would give none."""
    grid = np.linspace(1, np.e, 2001)
    found = mean_passage_steps(Diffusion(grid, np.zeros(2001), 0.1 * grid), 1.0)
    mu, L = -0.005, 1.0  # of log z, from a reflecting floor at 0 to 1, sd 0.1
    exact = L / mu - 0.01 / (2 * mu**2) * (1 - np.exp(-2 * mu * L / 0.01))
    assert found == pytest.approx(exact, rel=1e-3)


def test_passage_downwards_is_that_of_the_mirror_image():
    d = diffusion(-2, 3, lambda z: -0.1 - 0.02 * z)
    up = diffusion(-3, 2, lambda y: 0.1 - 0.02 * y)
    assert mean_passage_steps(d.mirrored(), -1.0) == pytest.approx(mean_passage_steps(up, -1.0), rel=1e-9)
    assert mean_passage_steps(up, -1.0) > 10


# --- the chain --------------------------------------------------------------------------------------------------------


def test_the_chain_is_the_diffusion_watched_once_a_step():
    """With a level farther off by .5826 sd and a floor as much lower, the quadrature gives the chain's time."""
    for sd in (0.1, 0.3):
        chain = chain_passage_steps(diffusion(-3, 0, -0.2 * sd**2, sd, 901), -1.0)
        plain = mean_passage_steps(diffusion(-3, 0, -0.2 * sd**2, sd), -1.0)
        watched = mean_passage_steps(diffusion(-3 - WATCHED * sd, WATCHED * sd, -0.2 * sd**2, sd), -1.0)
        assert chain == pytest.approx(watched, rel=0.02)
        assert chain > 1.04 * plain  # without the correction it is told apart


def test_the_chain_and_its_survival_are_those_of_simulated_chains():
    d = diffusion(-4, 0, lambda z: -0.3 * expit(z) * expit(-z), 0.6, 401)
    when = simulated_passages(d, -2.0, 600)
    assert (when > 600).mean() < 0.01
    assert chain_passage_steps(d, -2.0) == pytest.approx(when.mean(), rel=0.05)
    left = survival(d, -2.0, 100)
    for n in (1, 5, 20, 100):
        assert left[n] == pytest.approx((when > n).mean(), abs=0.025)
    assert 0.05 < left[100] < 0.5


@given(st.floats(-5, -0.5), st.integers(1, 40), st.floats(0.2, 1))
@settings(max_examples=20, deadline=None)
def test_survival_is_one_minus_first_passage_at_every_step(start, steps, sd):
    d = diffusion(-9, 0, lambda z: -0.1 * expit(z), sd, 181)
    left = survival(d, start, steps)
    assert left[0] == 1
    assert (np.diff(left) <= 1e-12).all()
    for n in {1, steps // 2 or 1, steps}:
        passed = first_passage_probability(start, d.sd, d.drift, n, grid=d.grid)
        assert 1 - left[n] == pytest.approx(passed, abs=1e-12)


def test_the_mean_is_the_sum_of_the_survival():
    d = diffusion(-3, 0, 0.05, 0.5, 301)
    assert chain_passage_steps(d, -1.0) == pytest.approx(survival(d, -1.0, 2000).sum(), rel=1e-6)


# --- Kramers, and where there is no well ------------------------------------------------------------------------------


def test_kramers_closed_form_in_a_double_well():
    """drift z - z^3, sd^2 = 2 D: T = sqrt 2 pi e^(1 / 4D)."""
    for D in (0.02, 0.1):
        d = diffusion(-2.5, 2.5, lambda z: z - z**3, np.sqrt(2 * D), 5001)
        assert kramers_steps(d) == pytest.approx(np.sqrt(2) * np.pi * np.exp(1 / (4 * D)), rel=2e-3)


def test_kramers_is_the_limit_of_the_mean_time_for_high_barriers():
    errors = []
    for D in (0.1, 0.05, 0.025):
        d = diffusion(-2.5, 1, lambda z: z - z**3, np.sqrt(2 * D), 5001)
        errors.append(mean_passage_steps(d, -1.0) / kramers_steps(d) - 1)
    assert errors[0] > errors[1] > errors[2] > 0
    assert errors[2] < 0.06
    assert errors[0] > 0.1  # at a barrier of 2.5 it is not yet good


def test_kramers_with_noise_that_depends_on_z():
    """sd^2 = 2 D (1 + z^2 / 4): against the quadrature, which knows nothing of saddle points."""
    grid = np.linspace(-2.5, 1, 5001)
    d = Diffusion(grid, grid - grid**3, np.sqrt(2 * 0.02 * (1 + grid**2 / 4)))
    assert kramers_steps(d) == pytest.approx(mean_passage_steps(d, -1.0), rel=0.1)


def test_under_adam_the_potential_is_a_step_between_plains():
    grid = np.linspace(-40, 40, 8001)
    d = adam_diffusion(grid, 0.4, rate=0.6, dose=0.5, directions=10**9)
    np.testing.assert_allclose(d.potential(), 2 * 0.4 * expit(grid) / (0.6 * 0.5), atol=1e-5)
    assert np.abs(d.drift[[0, -1]]).max() < 1e-15
    for each in (d, d.mirrored(), adam_diffusion(grid, 0.4, 0.6, 0.5, 16)):
        with pytest.raises(ValueError, match="has no well with a barrier above it"):
            kramers_steps(each)


def test_adams_steps_by_hand():
    """At z = 0 with gap 4 and 1 direction the pull is 1; with dose 1 its root mean square is sqrt 2."""
    d = adam_diffusion(np.array([-1.0, 0.0, 1.0]), 4.0, rate=0.6, dose=1.0, directions=1)
    assert d.drift[1] == pytest.approx(-0.6 / np.sqrt(2))
    assert d.sd[1] == pytest.approx(0.6 / np.sqrt(2))
    d = adam_diffusion(np.array([-1.0, 0.0, 1.0]), 4.0, rate=0.6, dose=0.5, directions=4)
    assert d.drift[1] == pytest.approx(-0.6 / np.sqrt(0.5))  # r^2 = .25 + 1 / 4
    assert d.sd[1] == pytest.approx(0.3 / np.sqrt(0.5))


def test_natural_distance_by_hand():
    """Without drift the distance; with U rising by c a logit, (e^(c a) - 1) / c from the floor."""
    assert natural_distance(diffusion(-9, 0, 0.0, 0.6), -4.0) == pytest.approx(4)
    c = 2 * 0.1 / 0.25
    assert natural_distance(diffusion(-3, 0, -0.1, 0.5), -3.0) == pytest.approx((np.exp(3 * c) - 1) / c, rel=1e-4)


def test_plain_survival_without_a_step_is_the_reflection_principle():
    d = diffusion(-60, 0, 0.0, 0.5)
    for steps in (10, 1000):
        assert plain_survival(d, -4.0, steps) == pytest.approx(erf(4 / (0.5 * np.sqrt(2 * steps))))
    assert plain_survival(d, -4.0, 0) == 1


def test_plain_survival_is_that_of_the_chain_in_the_long_run():
    """An end 60 logits away, out of sight: survival falls as the root of time, h / (sd sqrt(pi T / 2))."""
    sd, start = 0.3, -4.0
    watched, chain = (
        adam_diffusion(np.linspace(-60, end, 601), 0.4, rate=sd, dose=1.0, directions=16) for end in (WATCHED * sd, 0)
    )
    left = survival(chain, start, 6000)
    late = [plain_survival(watched, start, n) / left[n] - 1 for n in (1000, 6000)]
    assert 0.09 > late[0] > late[1] > 0  # the step has a width, of which the formula knows nothing
    assert late[1] < 0.04
    assert left[6000] < 0.3
    assert np.log2(left[6000] / left[3000]) == pytest.approx(-0.5, abs=0.07)
    h = natural_distance(watched, start)
    assert h > 1.4 * 4.17  # the step counts
    ages = 10**8
    assert plain_survival(watched, start, ages) == pytest.approx(h / (sd * np.sqrt(np.pi * ages / 2)), rel=1e-2)


# --- momentum ---------------------------------------------------------------------------------------------------------


def test_without_momentum_the_walk_is_the_chain():
    d = adam_diffusion(np.linspace(-40, 40, 801), 0.4, rate=0.6, dose=0.5, directions=16)
    paths = momentum_walks(d.field, -3.0, 0.0, 101, 4000, np.random.default_rng(0))
    up = Diffusion(d.grid[:401], d.drift[:401], d.sd[:401])
    passed = (paths >= 0).any(1).mean()
    assert passed > 0.2
    assert passed == pytest.approx(1 - survival(up, -3.0, 100)[-1], abs=4 * np.sqrt(passed / 4000))


def test_the_variance_of_a_walk_with_momentum_is_the_sum_over_its_steps():
    """Noise of step i enters with sum over k >= i of (1 - b1) b1^(k - i) / (1 - b1^k): Adam's first ones count double."""
    steps, b1, sd = 40, 0.9, 0.5
    k = np.arange(1, steps)
    weights = np.array([((1 - b1) * b1 ** (k[k >= i] - i) / (1 - b1 ** k[k >= i])).sum() for i in k])
    assert weights[0] > 2
    paths = momentum_walks(diffusion(-9, 9, 0.0, sd).field, 1.0, b1, steps, 8000, np.random.default_rng(0))
    assert paths[:, -1].std() == pytest.approx(sd * np.sqrt((weights**2).sum()), rel=0.03)
    assert (paths[:, 0] == 1).all()
    assert paths[:, -1].mean() == pytest.approx(1, abs=4 * paths[:, -1].std() / np.sqrt(8000))


def test_momentum_makes_passage_rarer_and_stays_longer():
    d = adam_diffusion(np.linspace(-40, 40, 801), 0.4, rate=0.6, dose=0.5, directions=16)
    crossed = [
        (momentum_walks(d.field, -3.0, b1, 300, 1000, np.random.default_rng(0)) >= 0).any(1).mean() for b1 in (0, 0.9)
    ]
    assert crossed[1] < crossed[0] - 0.05


def test_a_lagged_field_sees_the_past():
    """drift = -(behaviour), no noise to speak of, lag 2: z = 1, 0, -1, -2, -2, -1 (each step minus z two steps ago)."""

    def field(z, behaviour):
        return -behaviour, np.full(len(z), 1e-12)

    path = momentum_walks(field, 1.0, 0.0, 6, 1, np.random.default_rng(0), lag=2)[0]
    np.testing.assert_allclose(path, [1, 0, -1, -2, -2, -1], atol=1e-9)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals():
    grid = np.linspace(-1, 0, 11)
    with pytest.raises(ValueError, match="must rise in equal steps"):
        Diffusion(np.array([0.0, 1.0, 3.0]), np.zeros(3), np.ones(3))
    with pytest.raises(ValueError, match=r"drift has shape \(3,\)"):
        Diffusion(grid, np.zeros(3), np.ones(11))
    with pytest.raises(ValueError, match=r"sd = 0\.0 must be positive"):
        Diffusion(grid, np.zeros(11), np.zeros(11))
    d = Diffusion(grid, np.zeros(11), np.ones(11))
    for f in (mean_passage_steps, chain_passage_steps, natural_distance):
        with pytest.raises(ValueError, match="must lie on the grid"):
            f(d, 0.5)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\)"):
        momentum_walks(d.field, 0.0, 1.0, 2, 2, np.random.default_rng(0))
