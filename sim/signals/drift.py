"""Drift between policies: exact KL per decision and per trajectory, and ratios at three levels.

A trajectory has a few *decision* tokens and many *content* tokens (queries, reasoning, prose). Statistics per token are
diluted by content; statistics of decisions are not. In the simulator content is an analytic overlay: `content_tokens`
binary tokens a trajectory, each with log-odds x, not sampled.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "RatioLevels",
    "bernoulli_kl",
    "content_kl",
    "decision_kl",
    "ratio_levels",
    "trajectory_kl",
    "trajectory_ratio",
]

F64 = NDArray[np.float64]


def decision_kl(p: F64, log_p: F64, log_q: F64) -> F64:
    """Return KL(p || q) by context, nats, [..., C], from tables [..., C, A] that hold 0 where nothing is offered."""
    result: F64 = (p * (log_p - log_q)).sum(-1)
    return result


def trajectory_kl(kl: F64, visits: F64) -> F64:
    """Return the KL of a whole trajectory's decisions, nats, [...]: sum_c visits_c KL_c.

    The chain rule: the KL of two trajectory distributions is the expected sum of the KLs of the decisions met, under the
    first policy. `visits` is the mean number of times a rollout is in context c, [..., C]. Visits of another policy give
    the KL along *its* trajectories: the training loop passes those of the policy that sampled, which a lag sets apart.
    """
    result: F64 = (kl * visits).sum(-1)
    return result


def bernoulli_kl(x: F64, y: F64) -> F64:
    """Return KL(Bernoulli(sigmoid x) || Bernoulli(sigmoid y)), nats.

    >>> float(bernoulli_kl(np.array(0.3), np.array(0.3)))
    0.0
    """
    p = _sigmoid(x)
    return p * (x - y) - np.logaddexp(0, x) + np.logaddexp(0, y)


def content_kl(shift: F64, tokens: int, coupling: float) -> F64:
    """Return the KL of a trajectory's content tokens to where they started, nats.

    They are L binary tokens, each with log-odds sqrt(coupling) x shift; for small shifts it is L coupling shift^2 / 8.
    """
    x = np.sqrt(coupling) * shift
    return tokens * bernoulli_kl(x, np.zeros_like(x))


@dataclass(frozen=True, eq=False)
class RatioLevels:
    """Mean |rho - 1| and the share outside [1 - epsilon, 1 + epsilon], [...] each."""

    token_distance: F64
    """Over all tokens, decisions and content."""
    token_outside: F64
    """Over all tokens."""
    decision_distance: F64
    """Over decisions: the level of a turn."""
    decision_outside: F64
    """Over decisions."""


def ratio_levels(
    log_ratio: F64,
    counts: F64,
    rollouts: int,
    epsilon: float,
    content: tuple[F64, F64] | None = None,
    content_tokens: int = 0,
) -> RatioLevels:
    """Return ratio statistics from tables.

    Parameters
    ----------
    log_ratio
        log(pi_new / pi_old) of each decision, [..., C, A].
    counts
        How often each was sampled under pi_old, [..., C, A].
    rollouts
        Rollouts in the batch.
    epsilon
        Half-width of the band.
    content
        Log-odds of a content token under the old and the new policy, each [...].
    content_tokens
        Content tokens per rollout.
    """
    distance = np.abs(np.expm1(log_ratio))
    n = counts.sum((-2, -1))
    d = (counts * distance).sum((-2, -1)) / n
    out = (counts * (distance > epsilon)).sum((-2, -1)) / n
    if content is None or content_tokens == 0:
        return RatioLevels(d, out, d, out)
    content_d = 2 * np.abs(_sigmoid(content[1]) - _sigmoid(content[0]))
    content_out = np.zeros_like(content_d)
    for sign in (1, -1):  # the two values a content token can take; ratios in log space, where 0 / 0 cannot arise
        ratio = np.logaddexp(0, -sign * content[0]) - np.logaddexp(0, -sign * content[1])
        content_out += _sigmoid(sign * content[0]) * (np.abs(np.expm1(ratio)) > epsilon)
    share = n / (n + rollouts * content_tokens)
    return RatioLevels(share * d + (1 - share) * content_d, share * out + (1 - share) * content_out, d, out)


def _sigmoid(x: F64) -> F64:
    return np.exp(-np.logaddexp(0, -x))


def trajectory_ratio(log_ratio: F64, epsilon: float) -> tuple[F64, F64]:
    """Return mean |rho - 1| and the share outside the band, for rho the product over a rollout's decisions.

    `log_ratio` holds the log-ratio of each decision, 0 where masked, [K, ..., N]; both results are [...].
    """
    distance = np.abs(np.expm1(log_ratio.sum(0)))
    return distance.mean(-1), (distance > epsilon).mean(-1)
