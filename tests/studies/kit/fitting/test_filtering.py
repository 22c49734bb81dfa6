"""The filter: against a dense grid that knows neither Gaussians nor linearisation, against closed forms, and sums to one."""

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import binom, norm

from sim.mdp.theory.escape import momentum_walks
from sim.mdp.worlds import SEED_A_HABIT, seed_a
from studies.kit.fitting.fields import GRID, plain
from studies.kit.fitting.filtering import Motion, filtered
from tests.studies.kit.fitting.runs import motion, run_of

FINE = np.linspace(-12, 8, 2001)


def on_a_grid(chain, counts, rollouts):
    """Return log P of each count by a dense hidden Markov chain over z and the regimes."""
    z = FINE
    chances, width = chain.chances(), z[1] - z[0]
    p = np.zeros((len(chances), len(z)))
    p[0] = norm.pdf(z, -2.0, 3.0) * width
    kernels = []
    for pushing in chain.pushing:
        drift, _, sd = chain.at(z, np.zeros(len(z), np.int64), np.ones(len(z)))
        kernels.append(norm.pdf(z[None], (z + drift + pushing * chain.push[0])[:, None], sd[:, None]) * width)
    found = []
    for t, count in enumerate(counts):
        if t:
            p = chances.T @ p
            p = np.stack([row @ kernel for row, kernel in zip(p, kernels, strict=True)])
        p = p * binom.pmf(count, rollouts, expit(z))
        found.append(np.log(p.sum()))
        p /= p.sum()
    return np.array(found), p


COUNTS = [3, 4, 2, 5, 8, 14, 22, 40, 66, 90, 110, 118]


def test_a_walk_against_the_dense_grid():
    chain = motion(sd=0.3)
    exact, p = on_a_grid(chain, COUNTS, 200)
    found = filtered(chain, run_of(COUNTS), 4)
    np.testing.assert_allclose(found.first, exact, atol=0.1)
    assert found.first.sum() == pytest.approx(exact.sum(), abs=0.2)
    z = FINE
    assert found.state.z[0, 0] == pytest.approx((p[0] * z).sum(), abs=0.01)
    assert found.first.sum() < -30


def test_a_gradient_that_bends_against_the_dense_grid():
    field = plain(seed_a(), SEED_A_HABIT, 200)
    stay = np.zeros((1, len(GRID), 2))
    chain = Motion(field.mean[None], field.sd[None], np.zeros(1, np.int64), np.full(1, 4.0), np.zeros(1), stay, stay)
    dense = Motion(
        4 * field.mean[None], 4 * field.sd[None] + 1e-3, np.zeros(1, np.int64), np.ones(1), np.zeros(1), stay, stay
    )
    falling = [180, 172, 160, 150, 128, 110, 84, 66, 50, 41, 30, 25]
    exact, _ = on_a_grid(dense, falling, 200)
    np.testing.assert_allclose(filtered(chain, run_of(falling), 4).first, exact, atol=0.06)


def test_a_push_that_begins_and_ends_against_the_dense_grid():
    chain = motion(sd=0.1, push=0.5, switch=(0.05, 0.1))
    exact, p = on_a_grid(chain, COUNTS, 200)
    found = filtered(chain, run_of(COUNTS), 4)
    np.testing.assert_allclose(found.first, exact, atol=0.15)
    assert found.first.sum() == pytest.approx(exact.sum(), abs=0.3)
    np.testing.assert_allclose(found.state.regime[:, 0], p.sum(1), atol=0.1)
    assert found.state.regime[0, 0] < 0.01  # it has begun


def test_probabilities_of_all_next_counts_add_up_to_one():
    chain = motion(sd=0.3, push=0.2, switch=(0.1, 0.1))
    logs = [filtered(chain, run_of([5, 6, 9, k], 20), 1).first[-1] for k in range(21)]
    assert np.exp(logsumexp(logs)) == pytest.approx(1, abs=2e-3)


def test_settings_are_weighed_by_what_they_predict():
    flat = np.zeros((1, len(GRID)))
    stay = np.zeros((1, len(GRID), 2))
    slopes = np.array([-0.2, 0.0, 0.2, 0.4])
    chain = Motion(flat, flat + 1e-3, np.zeros(4, np.int64), np.ones(4), slopes, stay, stay)
    z = -3 + 0.2 * np.arange(15)
    found = filtered(chain, run_of(np.rint(1000 * expit(z)), 1000), 4)
    assert found.weight.argmax() == 2
    assert found.weight[2] > 0.99
    assert found.state.z[0, 2] == pytest.approx(z[-1], abs=0.1)


def test_a_step_that_is_not_observed_is_walked_through():
    chain = motion(sd=0.3, push=0.1)
    skipping = filtered(chain, run_of([10, 20], steps=[0, 3]), 1)
    three = motion(sd=0.3 * np.sqrt(3), push=0.3)
    once = filtered(three, run_of([10, 20]), 1)
    assert skipping.first[1] == pytest.approx(once.first[1], abs=1e-9)


def test_memory_spreads_as_momentum_walks_do():
    """Far from any count the variance of z after n steps is that of Adam's reduced model."""
    chain = motion(sd=0.5, memory=0.9)
    many = 10**6
    seen = filtered(chain, run_of([many // 2], many), 1)  # z is known to be 0, m is at its stationary spread
    n = 12
    from studies.kit.fitting.filtering import _moved

    state = seen.state
    for _ in range(n):
        state = _moved(chain, state)
    walks = momentum_walks(lambda z, _: (0 * z, 0 * z + 0.5), 0.0, 0.9, 300 + n, 4000, np.random.default_rng(0))
    moved = walks[:, -1] - walks[:, -1 - n]
    assert state.zz[0, 0] == pytest.approx(moved.var(), rel=0.08)
    assert state.zz[0, 0] > 0.5


def test_with_memory_it_is_kalmans_filter_where_counts_are_many():
    """Log-odds of 1e5 rollouts are all but Gaussian, so the exact filter of (z, m) is linear."""
    decay, sd, rollouts = 0.9, 1.0, 100_000
    z = np.cumsum(np.array([0.1, 0.14, 0.05, -0.1, -0.04, 0.08, 0.2, 0.24, 0.15, 0.1]))
    counts = np.rint(rollouts * expit(z)).astype(int)
    found = filtered(motion(sd=sd, memory=decay), run_of(counts, rollouts), 4).state
    x = np.array([-2.0, 0.0])
    cov = np.diag([9.0, sd**2 * (1 - decay) / (1 + decay)])
    for t, seen in enumerate(np.log(counts / (rollouts - counts))):
        if t:
            step = np.array([[1.0, decay], [0.0, decay]])
            x, cov = step @ x, step @ cov @ step.T + ((1 - decay) * sd) ** 2
        g = expit(seen)
        gain = cov[:, 0] / (cov[0, 0] + 1 / (rollouts * g * (1 - g)))
        x, cov = x + gain * (seen - x[0]), cov - np.outer(gain, cov[0])
    assert (found.z.item(), found.m.item()) == pytest.approx(tuple(x), abs=1e-3)
    assert (found.zz.item(), found.zm.item(), found.mm.item()) == pytest.approx((*cov[0], cov[1, 1]), rel=0.02)


def test_later_decisions_move_by_the_gradient_or_by_its_sign():
    field = plain(seed_a(), SEED_A_HABIT, 1024)
    u, z = np.array([[4.85], [-4.2]]), np.array([-2.0])

    def steps(**more):
        parts = (field.mean[None], field.sd[None], np.zeros(1, np.int64), np.full(1, 2.0), np.zeros(1))
        chain = Motion(*parts, field.later[None], field.later_sd[None], **more)
        return chain.later_step(z, u)

    mean, sd = steps()
    by_size, _ = steps(signal_sized=True)
    r = mean / sd
    np.testing.assert_allclose(by_size, 2.0 * r / np.sqrt(1 + r**2), rtol=1e-6)
    assert mean[0, 0] > 0 > mean[1, 0]  # answers on evidence and searches after a failure grow surer
