"""Kimi K1.5's squared loss on a bandit: the exact tilt with the log-partition as baseline, something milder with the mean.

The group is an exact expectation: ten rollouts whose arms are in the proportions of the policy that sampled them. A squared
loss on such a batch needs no new samples as the policy moves, so gradient ascent on the rule's coefficients reaches the
minimum of the printed loss.
"""

import numpy as np
import pytest
from scipy.optimize import minimize

from sim.learning import family
from sim.learning.batch import Batch

PRIOR, REWARD = np.array([0.6, 0.2, 0.1, 0.1]), np.array([0.0, 1.0, 1.0, 0.0])
ARMS = np.repeat(np.arange(4), [6, 2, 1, 1])


def softmax(z):
    p = np.exp(z - z.max())
    return p / p.sum()


def ascend(rule, steps=4000):
    """The policy that plain gradient ascent on the rule's coefficients ends at."""
    z = np.log(PRIOR)
    behaviour = np.log(PRIOR)[ARMS].reshape(1, -1, 1)
    prepared = rule.prepare(Batch(REWARD[ARMS][None], np.ones(behaviour.shape, bool), behaviour))
    curvature = 2 * max(p.strength for p in rule.penalties)  # tau
    for _ in range(steps):
        logp = np.log(softmax(z))
        c = rule.coefficients(prepared, logp[ARMS].reshape(1, -1, 1)).scalars["logp"].ravel()
        by_arm = np.bincount(ARMS, weights=c, minlength=4)
        z = z + (by_arm - softmax(z) * by_arm.sum()) / curvature
    assert np.abs(by_arm - softmax(z) * by_arm.sum()).max() < 1e-10  # it stands still
    return softmax(z)


def tilt(tau):
    """pi_old exp(r / tau) / Z."""
    return softmax(np.log(PRIOR) + REWARD / tau)


def minimiser(tau, baseline):
    """The minimum of the printed loss, E (r - b - tau log(pi / pi_old))^2 under pi_old, by another method."""

    def loss(z):
        return PRIOR @ (REWARD - baseline - tau * (np.log(softmax(z)) - np.log(PRIOR))) ** 2

    return softmax(minimize(loss, np.log(PRIOR), tol=1e-14).x)


@pytest.mark.parametrize(("tau", "mild", "exact"), [(0.2, 0.114, 0.013), (1.0, 0.416, 0.396)])
def test_the_log_partition_gives_the_tilt_and_the_mean_does_not(tau, mild, exact):
    """What the main arm, without reward, keeps of its .6."""
    assert tilt(tau)[0] == pytest.approx(exact, abs=5e-4)
    derived, shipped = ascend(family.kimi_k15_tilt(tau)), ascend(family.kimi_k15(tau))
    np.testing.assert_allclose(derived, tilt(tau), rtol=1e-8)
    assert shipped[0] == pytest.approx(mild, abs=5e-4)
    np.testing.assert_allclose(shipped, minimiser(tau, PRIOR @ REWARD), atol=1e-5)
    np.testing.assert_allclose(derived, minimiser(tau, tau * np.log(PRIOR @ np.exp(REWARD / tau))), atol=1e-5)


def test_the_two_baselines_agree_at_large_tau():
    derived, shipped = ascend(family.kimi_k15_tilt(5.0)), ascend(family.kimi_k15(5.0))
    assert derived == pytest.approx(shipped, abs=1e-3)
    assert np.abs(derived - PRIOR).max() > 0.03
