"""What many content tokens do to statistics per token (T7) and to a gradient that a few decisions carry (T8).

A trajectory has n_d decision tokens and L content tokens. Content is taken as L independent binary tokens with log-odds
sqrt(c) X each, where X is how far the shared directions have moved and c the squared coupling: the overlay that
:mod:`sim.signals.drift` measures. Small-step formulas say so; ``h`` below is a step of X, in logits.

Ours, save for the length-normalised ratio.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "PER_TOKEN",
    "content_distance",
    "content_kl_near",
    "content_log_ratio",
    "content_noise",
    "decision_distance",
    "length_normalised_ratio",
    "restoring_snr",
    "token_mean",
    "tokens_for_noise",
]

F64 = NDArray[np.float64]

PER_TOKEN = 0.35
"""Standard deviation of advantage x score of one content token: .5 for a fair binary token times .70 for the advantages of
seed A's world at its habit. Divided by their group's spread they have variance 1 - 1/G where a group has signal and 0 where
it has none, 44 % of groups there. A prototype with other content tokens had .43."""


def token_mean(decisions: ArrayLike, content: ArrayLike, at_decisions: ArrayLike, at_content: ArrayLike = 0.0) -> F64:
    """Return the mean over all tokens, (n_d a_d + L a_c) / (n_d + L), of what is a_d at decisions and a_c at content.

    With shares of clipped tokens it is the clip fraction, f = (n_d f_d + L f_c) / (n_d + L); with means of |rho - 1| it is
    the mean over tokens. Exact. Once L is much larger than n_d it falls as 1 / L towards a_c.

    Parameters
    ----------
    decisions
        n_d, mean decision tokens a rollout.
    content
        L, content tokens a rollout.
    at_decisions
        Mean over decision tokens.
    at_content
        Mean over content tokens.

    Raises
    ------
    ValueError
        For a negative number of tokens, or none at all.

    >>> float(token_mean(3, 297, 0.5))
    0.005
    """
    n, L = np.asarray(decisions, float), np.asarray(content, float)
    if (n < 0).any() or (L < 0).any():
        raise ValueError(f"decisions = {n.min()} and content = {L.min()} tokens must be at least 0")
    if (n + L == 0).any():
        raise ValueError("a mean over tokens needs a token: decisions and content are both 0")
    found: F64 = (n * np.asarray(at_decisions, float) + L * np.asarray(at_content, float)) / (n + L)
    return found


def decision_distance(before: ArrayLike, after: ArrayLike) -> F64:
    """Return E|rho - 1| of a binary decision sampled before the step, 2 |p' - p|, p the probability of either action.

    Exact: sum_a p_a |p'_a / p_a - 1| = sum_a |p'_a - p_a|.

    >>> float(decision_distance(0.5, 0.625))
    0.25
    """
    return 2 * np.abs(np.asarray(after, float) - np.asarray(before, float))


def content_distance(step: ArrayLike, coupling: ArrayLike) -> F64:
    """Return E|rho - 1| of a content token, sqrt(c) |h| / 2.

    It is 2 |sigma(x + sqrt(c) h) - sigma(x)| to first order in h, at x = 0, where a coin is most easily moved: an upper
    bound elsewhere. A content token leaves a band of half-width epsilon only if sqrt(c) |h| is of epsilon's size.
    """
    return _root(coupling) * np.abs(np.asarray(step, float)) / 2


def content_kl_near(shift: ArrayLike, tokens: ArrayLike, coupling: ArrayLike) -> F64:
    """Return the content part of the KL of a trajectory, sum_t E KL_t = L c X^2 / 8 nats, for sqrt(c) X well below 1.

    Tokens add here and are not divided: KL of a trajectory is not diluted. :func:`sim.signals.drift.content_kl` has no
    restriction on X.
    """
    return np.asarray(tokens, float) * _root(coupling) ** 2 * np.asarray(shift, float) ** 2 / 8


def content_log_ratio(step: ArrayLike, tokens: ArrayLike, coupling: ArrayLike) -> tuple[F64, F64]:
    """Return mean and standard deviation of log rho of a whole trajectory's content under the policy that sampled it.

    log rho is the sum over tokens and not divided. Its mean is minus the KL, -L c h^2 / 8, its variance L c h^2 / 4, to
    second order in h at x = 0; decisions add their own log-ratios.
    """
    kl = content_kl_near(step, tokens, coupling)
    return -kl, np.sqrt(2 * kl)


def length_normalised_ratio(log_ratio: ArrayLike, tokens: ArrayLike) -> F64:
    """Return the sequence ratio rho^(1 / T) = exp(sum_t log rho_t / T), T all tokens of the trajectory.

    A decision's log-ratio enters it divided by T, so it is diluted like the mean over tokens.
    Source: Group Sequence Policy Optimization, arXiv 2507.18071, equation 7.
    """
    T = np.asarray(tokens, float)
    if (T < 1).any():
        raise ValueError(f"tokens = {T.min()}: a trajectory has at least 1")
    return np.exp(np.asarray(log_ratio, float) / T)


def content_noise(tokens: ArrayLike, rollouts: ArrayLike, per_token: float = PER_TOKEN) -> F64:
    """Return the standard deviation that L content tokens bring to a shared weight's gradient, per_token sqrt(L / N).

    The gradient is the mean over N rollouts of A x sum of scores. Assumes scores that are independent of the reward and
    of each other, and a weight that every content token loads with strength 1: only how sqrt(L / N) scales is robust.

    Parameters
    ----------
    tokens
        L.
    rollouts
        N = Q x G, rollouts a batch.
    per_token
        sd(A) x sd(score of a token).
    """
    L, N = np.asarray(tokens, float), np.asarray(rollouts, float)
    if (L < 0).any() or (N <= 0).any():
        raise ValueError(f"tokens = {L.min()} must be at least 0 and rollouts = {N.min()} positive")
    return per_token * np.sqrt(L / N)


def tokens_for_noise(sd: ArrayLike, rollouts: ArrayLike, per_token: float = PER_TOKEN) -> F64:
    """Return the L that a dose of gradient noise stands for: L = N (sd / per_token)^2, the inverse of `content_noise`.

    >>> [round(float(tokens_for_noise(s, 1024))) for s in (0.3, 0.5)]
    [752, 2090]
    """
    return np.asarray(rollouts, float) * (np.asarray(sd, float) / per_token) ** 2


def restoring_snr(
    weight: ArrayLike,
    gap: ArrayLike,
    share: ArrayLike,
    tokens: ArrayLike,
    rollouts: ArrayLike,
    per_token: float = PER_TOKEN,
) -> F64:
    """Return signal over noise of the restoring gradient on one weight: c_w Delta g (1 - g) sqrt(N) / (per_token sqrt(L)).

    Adam moves a weight by about its rate times this ratio where it is small, and by the whole rate where it is large, so
    content tokens weaken the pull and leave the size of the steps. Infinite without content. Assumes that content's
    noise exceeds the decision's own, which is left out.

    Parameters
    ----------
    weight
        c_w, how strongly the weight loads the decision's logit; 1 / sqrt(m) for each of m shared directions.
    gap
        Delta, the effective gap.
    share
        g, the share of the behaviour.
    tokens, rollouts, per_token
        As in `content_noise`.
    """
    g = np.asarray(share, float)
    if (g < 0).any() or (g > 1).any():
        raise ValueError(f"share = {g.min()} to {g.max()} must lie in [0, 1]")
    signal = np.asarray(weight, float) * np.asarray(gap, float) * g * (1 - g)
    with np.errstate(divide="ignore"):
        found: F64 = signal / content_noise(tokens, rollouts, per_token)
    return found


def _root(coupling: ArrayLike) -> F64:
    c = np.asarray(coupling, float)
    if (c < 0).any():
        raise ValueError(f"coupling = {c.min()} must be at least 0: it is a square")
    found: F64 = np.sqrt(c)
    return found
