"""The mean pull on a decision whose batch an older policy sampled, with and without PPO's clip.

z is the log-odds of action against alternative now, z' those of the policy that sampled, g and q the shares. Without a clip
the importance ratio undoes the lag but for the group's baseline. The clip drops, of what is left, every term that would
carry the policy further from the one that sampled: it is a drag on movement, whichever way the return points.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

__all__ = ["lagged_pull"]

F64 = NDArray[np.float64]


def lagged_pull(
    share: F64, action: F64, alternative: F64, advantage: Callable[[int, float], float], clip: float | None = 0.2
) -> Callable[[F64, F64], F64]:
    """Return the expected gradient of z as a function of (z now, z of the policy that sampled), [N] each.

        sum over kinds, the two actions and the two rewards of
        P(kind) q_a P(r | kind, a) rho_a [not clipped] E[A | r] d log pi_a / dz

    with rho_a = pi_a / q_a. PPO drops the term of a ratio above 1 + clip for a reward of 1 (A > 0) and that of a ratio
    below 1 - clip for a reward of 0 (A < 0). Assumes rewards of 0 and 1, later decisions with a ratio of 1, and group
    members that succeed at the mean rate of the policy that sampled. Without lag it is - Delta g (1 - g). Ours.

    Parameters
    ----------
    share
        Share of each question kind, [K].
    action, alternative
        P(success | kind) once the action, or the alternative, is taken, [K] each.
    advantage
        E[A | own reward] where each other member of the group succeeds with a given probability.
    clip
        Half-width of the band; None for no clip.
    """
    at = np.linspace(0, 1, 401)  # both of a success rate and of q, in which what is tabulated is smooth
    lost, won = (np.array([advantage(reward, float(p)) for p in at]) for reward in (0, 1))
    mean = at[:, None] * action + (1 - at[:, None]) * alternative
    terms = [
        tuple((share * p * np.interp(mean, at, a)).sum(1) for p, a in ((success, won), (1 - success, lost)))
        for success in (action, alternative)
    ]

    def pull(z: F64, behaviour: F64) -> F64:
        q, total = expit(behaviour), np.zeros(len(z))
        for sign, (gains, losses) in zip((1, -1), terms, strict=True):
            ratio = np.exp(np.logaddexp(0, -sign * behaviour) - np.logaddexp(0, -sign * z))
            gain, loss = np.interp(q, at, gains), np.interp(q, at, losses)
            if clip is not None:
                gain, loss = gain * (ratio <= 1 + clip), loss * (ratio >= 1 - clip)
            total += sign * (gain + loss)
        found: F64 = expit(z) * expit(-z) * total  # q_a rho_a d log pi_a / dz = +- g (1 - g)
        return found

    return pull
