"""Two bounds on what training can do to the return and to a decision (T2, T3).

**Monotonicity.** Weights w move as dw/dt = P f_w, with P positive semi-definite. Log-odds are z = z0 + F w, so a field f
over log-odds moves them by dz/dt = M f with the metric M = F P F', and the return by

    dJ/dt = (dJ/dz)' M f .

On the unbiased on-policy field f = dJ/dz this is a quadratic form and never negative: no sharing of features, no
preconditioner chosen without looking at this gradient, can make the return fall. Any other field can be made to lower it
by some metric; :func:`least_return_rate` says by how much.

**One-shot drag.** A behaviour that travels by Delta z_c drags a coupled decision by at most (K_sc / K_cc) Delta z_c. Ours.
"""

import numpy as np
from numpy.typing import NDArray

from sim.mdp.compiled import CompiledGraph
from sim.mdp.exact import policy_gradient
from sim.mdp.policy import PolicyTables

__all__ = ["can_flip", "drag", "least_coupling", "least_return_rate", "metric", "return_rate"]

F64 = NDArray[np.float64]


def metric(features: F64, preconditioner: F64 | None = None) -> F64:
    """Return M = F P F', [D, D], from features F [D, P] and a preconditioner [P, P] (None for the identity: SGD).

    With P the identity it is the kernel K of the policy's log-odds.
    """
    P = np.eye(features.shape[1]) if preconditioner is None else preconditioner
    found: F64 = features @ P @ features.T
    return found


def return_rate(graph: CompiledGraph, policy: PolicyTables, field: F64, metric: F64 | None = None) -> float:
    """Return dJ/dt = (dJ/dz)' M f, reward per unit of time, with the exact dJ/dz of `policy`.

    Parameters
    ----------
    graph, policy
        The task, and the policy at which the return changes (tables [C, A]).
    field
        f, what the objective's expected update is with respect to the free logits, [D]:
        :func:`sim.mdp.theory.drift.expected_gradient` of any objective, or dJ/dz itself.
    metric
        M, [D, D], positive semi-definite; None for the identity.

    Raises
    ------
    ValueError
        When M is not symmetric and positive semi-definite: then the theorem does not speak.
    """
    D = len(graph.free_names)
    M = np.eye(D) if metric is None else metric
    if field.shape != (D,) or M.shape != (D, D):
        raise ValueError(f"field {field.shape} and metric {M.shape} do not fit the {D} free logits")
    _check_psd(M)
    return float(policy_gradient(graph, policy) @ M @ field)


def least_return_rate(gradient: F64, field: F64) -> float:
    """Return the lowest dJ/dt that a field f [D] can give under any metric of trace 1: (g'f - |g| |f|) / 2.

    It is the lowest eigenvalue of (g f' + f g') / 2, for g'Mf = trace(M (g f' + f g') / 2). It is 0 only where f points
    along g = dJ/dz: every other field lowers the return under some sharing of features.
    """
    return float(gradient @ field - np.linalg.norm(gradient) * np.linalg.norm(field)) / 2


def drag(kernel: F64, driver: int, passenger: int, travel: float) -> float:
    """Return (K_sc / K_cc) Delta z_c, the most that log-odds s can have moved when c has moved by `travel`, logits.

    Let updates push c by an amount u >= 0 in all, and let whatever restores s push it back by R >= 0 in all. Then
    Delta z_c = K_cc u - K_cs R and Delta z_s = K_sc u - K_ss R, so
    Delta z_s = (K_sc / K_cc) Delta z_c - (K_ss - K_sc^2 / K_cc) R, and the bracket is not negative. Equality at R = 0.
    It holds for any path and any constant kernel; not for momentum, noise, or a push on s itself.

    Parameters
    ----------
    kernel
        K = F F' (or F P F'), [D, D], positive semi-definite.
    driver
        Index of c, the behaviour that travels.
    passenger
        Index of s, the decision that is dragged.
    travel
        Delta z_c, logits.

    Raises
    ------
    ValueError
        When the kernel is not positive semi-definite, or c has no weight to travel with.
    """
    _check_psd(kernel)
    own = float(kernel[driver, driver])
    if own == 0:
        raise ValueError(f"kernel[{driver}, {driver}] = 0: this behaviour has no weight and cannot travel")
    return float(kernel[passenger, driver]) / own * travel


def can_flip(kernel: F64, driver: int, passenger: int, travel: float, start: float) -> bool:
    """Return whether the drag of one behaviour that travels once can take log-odds `start` < 0 to 0."""
    return start + drag(kernel, driver, passenger, travel) >= 0


def least_coupling(start: float, travel: float) -> float:
    """Return the ratio K_sc / K_cc below which a travel of `travel` logits cannot take log-odds `start` to 0.

    >>> round(least_coupling(-4.14, 7.0), 2)
    0.59
    """
    if travel <= 0:
        raise ValueError(f"travel = {travel} must be positive")
    return max(-start, 0.0) / travel


def _check_psd(matrix: F64) -> None:
    if not np.allclose(matrix, matrix.T):
        raise ValueError("the matrix is not symmetric; the bound needs a symmetric positive semi-definite one")
    least, most = np.linalg.eigvalsh(matrix)[[0, -1]]
    if least < -1e-9 * max(most, 1.0):
        raise ValueError(
            f"the lowest eigenvalue is {least:.4g}, must be at least 0: such a step goes against the field"
        )
