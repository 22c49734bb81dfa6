import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.special import expit, logit

from sim.mdp.theory.waiting import (
    Emergence,
    adam,
    adam_in_noise,
    adam_steps,
    clock,
    natural,
    power_of_ratio,
    sgd,
)

POWERS = st.one_of(st.sampled_from((0.0, 0.5, 1.0)), st.floats(-0.5, 1.5))


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_sgd_by_hand():
    """p0 = .01: z0 = -ln 99, sinh(ln 99) = (99 - 1/99) / 2; ln 9 likewise for the width."""
    found = sgd(2.0, 0.25)
    assert found.wait(0.01) == pytest.approx(4 * (np.log(99) + (99 - 1 / 99) / 2))
    assert found.width == pytest.approx(8 * (np.log(9) + (9 - 1 / 9) / 2))
    assert found.width == pytest.approx(26.57 / 0.5, rel=1e-3)


def test_a_speed_that_does_not_know_p_is_logistic():
    assert natural(0.5, 0.4).wait(0.01) == pytest.approx(np.log(99) / 0.2)
    assert natural(0.5, 0.4).width == pytest.approx(4.394 / 0.2, rel=1e-3)
    assert adam(0.1).wait(0.01) == pytest.approx(np.log(99) / 0.1)  # the gap does not enter


def test_adam_in_noise_waits_for_the_root():
    """4 sinh(|z0| / 2) = 2 (sqrt 99 - 1 / sqrt 99), at a speed of 2 alpha snr; the width is 8 sinh(ln 3) = 32 / 3."""
    found = adam_in_noise(0.1, 0.5)
    assert found.wait(0.01) == pytest.approx(2 * (np.sqrt(99) - 1 / np.sqrt(99)) / 0.1)
    assert found.width == pytest.approx(32 / 3 / 0.1)
    assert found.wait(1e-6) / found.wait(1e-4) == pytest.approx(10, rel=1e-3)


def test_the_laws_as_p0_goes_to_0():
    steep, flat = sgd(1.0, 1.0), natural(1.0, 1.0)
    assert steep.wait(1e-5) * 1e-5 == pytest.approx(1, rel=1e-3)
    assert steep.wait(1e-5) / steep.wait(1e-3) == pytest.approx(100, rel=0.02)
    assert flat.wait(1e-6) / flat.wait(1e-3) == pytest.approx(2, rel=1e-3)


# --- against integration ----------------------------------------------------------------------------------------------


@given(POWERS, st.floats(0.2, 3), st.floats(0.002, 0.45))
def test_the_wait_is_that_of_the_differential_equation(power, speed, p0):
    passed = lambda t, z: z[0]  # noqa: E731
    passed.terminal = True
    solved = solve_ivp(
        lambda t, z: speed * (expit(z) * expit(-z)) ** power,
        (0, 1e7),
        [logit(p0)],
        events=passed,
        rtol=1e-9,
        atol=1e-10,
    )
    assert Emergence(speed, power).wait(p0) == pytest.approx(solved.t_events[0][0], rel=1e-5)


@given(st.sampled_from((0.0, 0.5, 1.0)), st.floats(-6, 6))
def test_the_closed_clocks_are_the_integral(power, z):
    nearby = clock(z, power + 1e-9)  # close to, but not, a power with a closed form: goes through quad
    assert clock(z, power) == pytest.approx(nearby, rel=1e-6, abs=1e-9)
    assert clock(-z, power) == pytest.approx(-clock(z, power))


@given(POWERS, st.floats(0.01, 0.4), st.floats(0.1, 10))
def test_the_ratio_and_the_slope_do_not_know_the_speed(power, p0, speed):
    one, other = Emergence(1.0, power), Emergence(speed, power)
    assert one.ratio(p0) == pytest.approx(other.ratio(p0))
    h = 1e-5
    numeric = (np.log(one.wait(p0 * (1 + h))) - np.log(one.wait(p0 * (1 - h)))) / (2 * h)
    assert other.slope(p0) == pytest.approx(numeric, rel=1e-4)


def test_slopes_tend_to_minus_the_power():
    assert [Emergence(1.0, q).slope(1e-8) for q in (0.5, 1.0)] == pytest.approx([-0.5, -1.0], abs=1e-3)
    assert -0.06 < natural(1.0, 1.0).slope(1e-8) < -0.05  # 1 / ln(1e-8)


@given(st.floats(-0.5, 1.5), st.floats(0.001, 0.05))
def test_the_ratio_gives_the_power_back(power, p0):
    assert power_of_ratio(Emergence(3.0, power).ratio(p0), p0) == pytest.approx(power, abs=1e-6)


def test_the_ratio_separates_the_classes_by_more_the_rarer_the_start():
    ratios = [(sgd(1, 1).ratio(p0), adam_in_noise(1, 1).ratio(p0), natural(1, 1).ratio(p0)) for p0 in (0.03, 0.003)]
    assert ratios[1] == pytest.approx((12.95, 3.4, 1.32), rel=0.02)
    assert ratios[0][0] / ratios[0][2] < 2 < 9 < ratios[1][0] / ratios[1][2]
    assert sgd(1, 1).ratio(0.1) == pytest.approx(natural(1, 1).ratio(0.1))  # from one in ten nothing is told


# --- Adam in noise ----------------------------------------------------------------------------------------------------


def test_adam_between_its_limits():
    z = float(logit(0.001))
    assert adam_steps(0.1, 1e4, z) == pytest.approx(adam(0.1).wait(0.001), rel=1e-3)
    assert adam_steps(0.1, 0.01, z) == pytest.approx(adam_in_noise(0.1, 0.01).wait(0.001), rel=1e-3)
    middle = adam_steps(0.1, 1.0, z)
    assert middle > max(adam(0.1).wait(0.001), adam_in_noise(0.1, 1.0).wait(0.001))


@given(st.floats(0.1, 20), st.floats(-7, -0.5), st.floats(-0.4, 4))
def test_adams_steps_are_those_of_its_speed(snr, start, end):
    grid = np.linspace(start, end, 20_001)
    r = snr * 2 * np.sqrt(expit(grid) * expit(-grid))
    assert adam_steps(0.1, snr, start, end) == pytest.approx(np.trapezoid(np.sqrt(1 + r**-2), grid) / 0.1, rel=1e-6)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"speed = -0.5 must be positive; the gap is the one in favour"):
        sgd(1.0, -0.5)
    with pytest.raises(ValueError, match=r"p0 = 0.5 must lie in \(0, .5\)"):
        natural(1.0, 1.0).wait(0.5)
    with pytest.raises(ValueError, match=r"snr = 0 must be positive"):
        adam_steps(0.1, 0, -3.0)
    with pytest.raises(ValueError, match=r"p0 = 0.1 must lie in \(0, .1\)"):
        power_of_ratio(3.0, 0.1)
    with pytest.raises(ValueError, match=r"ratio 1000000000.0 lies outside 0.61\d to 29.8"):
        power_of_ratio(1e9, 0.01)
