"""The expected course of one log-odds under Adam: the optimiser fed with the moments of its gradient, not with samples.

Adam's speed at a place depends on the way there: its second moment remembers larger gradients for 1 / (1 - b2) steps. So
there is no field dz/dt = f(z), and the course is iterated. Ours; Adam as in Kingma and Ba (arXiv 1412.6980).
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sim.learning.optimisers import Adam, OptimiserState

__all__ = ["expected_course"]

F64 = NDArray[np.float64]


def expected_course(
    mean: Callable[[float], float],
    variance: Callable[[float], float],
    *,
    start: float,
    push: F64,
    optimiser: Adam,
) -> F64:
    """Return z, [T + 1]: z(t + 1) = z(t) + alpha m / (sqrt(v) + epsilon) + push(t), m and v the expected moments.

    Both are bias-corrected. The first is fed with the mean of the gradient at z, the second with mean^2 + variance. The
    expectation of the ratio is taken as the ratio of the expectations, so it is right where either the mean or the
    averaging over steps dominates; with a variance of 0 it is Adam itself.

    Parameters
    ----------
    mean, variance
        Of one update's gradient, uphill, as functions of z.
    start
        Log-odds at step 0.
    push
        What is added from outside at each step, logits, [T].
    optimiser
        Adam with its constants.
    """
    z = np.empty(len(push) + 1)
    z[0], state, active = start, OptimiserState.zeros((1, 1)), np.ones(1, np.bool_)
    for t, pushed in enumerate(push):
        g = np.array([[mean(z[t])]])
        change, state = optimiser.move(state, g, g**2 + variance(z[t]), active)
        z[t + 1] = z[t] + change[0, 0] + pushed
    return z
