import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit, logit

from sim.learning.optimisers import Adam, OptimiserState
from sim.mdp.theory.adam import expected_course
from sim.mdp.theory.waiting import adam, adam_steps

D = 0.16


def mean(z):
    return D * expit(z) * expit(-z)


def silent(z):
    return 0.0


@given(st.floats(-6, 2), st.floats(0.01, 0.5), st.sampled_from((0.0, 0.9)), st.sampled_from((0.5, 0.99, 0.999)))
def test_without_noise_it_is_adam_itself(start, rate, b1, b2):
    push = 0.02 * np.cos(np.arange(60))
    z, state, w = [start], OptimiserState.zeros((1, 1)), start
    optimiser = Adam(rate, b1, b2)
    for pushed in push:
        change, state = optimiser.step(state, np.array([[mean(w)]]), np.ones(1, bool), None)
        w = w + change[0, 0] + pushed
        z.append(w)
    found = expected_course(mean, silent, start=start, push=push, optimiser=Adam(rate, b1, b2))
    np.testing.assert_allclose(found, z, atol=1e-9)


def test_the_first_step_has_full_size():
    assert expected_course(mean, silent, start=-4.0, push=np.zeros(1), optimiser=Adam(0.1))[1] == pytest.approx(-3.9)
    assert (
        expected_course(lambda z: 0.0, silent, start=-4.0, push=np.full(2, 0.5), optimiser=Adam(0.1))[2] == -3.0
    )  # no signal


@pytest.mark.parametrize("snr", [0.3, 3.0])
def test_with_a_short_memory_it_takes_the_steps_of_the_field(snr):
    """A second moment of ten steps forgets fast enough for dz/dt = alpha r / sqrt(1 + r^2)."""
    variance = lambda z: (D / (2 * snr)) ** 2 * expit(z) * expit(-z)  # noqa: E731
    z = expected_course(mean, variance, start=-4.0, push=np.zeros(20_000), optimiser=Adam(0.002, b2=0.9))
    assert np.argmax(z >= 0) == pytest.approx(adam_steps(0.002, snr, -4.0), rel=0.02)


def test_a_growing_gradient_makes_a_long_memory_fast():
    p0 = 0.003
    course = expected_course(mean, silent, start=float(logit(p0)), push=np.zeros(400), optimiser=Adam(0.03))
    waited = np.argmax(course >= 0)
    assert 0.5 < waited / adam(0.03).wait(p0) < 0.85


def test_a_push_through_the_middle_slows_the_way_back_and_a_jump_does_not():
    def back(push):
        z = expected_course(lambda z: -mean(z), silent, start=-4.0, push=push, optimiser=Adam(0.1))
        end = np.flatnonzero(push)[-1] + 1
        return z[end], np.argmax(z[end:] < 0)

    slowly, jump = np.zeros(600), np.zeros(600)
    slowly[:10], jump[0] = 1.0, 9.1
    (high, long), (far, short) = back(slowly), back(jump)
    assert far == pytest.approx(high, abs=0.2)
    assert short == pytest.approx(far / 0.1, rel=0.2)
    assert long > 1.4 * short
