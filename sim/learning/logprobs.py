"""Log-probabilities of sampled tokens from logits, with the three things that two sides of a ratio must agree on.

A ratio of two policies is only about the policies if both log-probs are at one temperature, over one support, and about the
same position. So all three are arguments here and one function serves both sides.
"""

from typing import Any

from sim.learning.arrays import array_namespace

__all__ = ["interpolated_proximal", "next_token_log_probability", "token_log_probability", "top_k", "top_p"]


def token_log_probability(logits: Any, token: Any, *, temperature: float = 1.0, support: Any = None) -> Any:
    """Return log softmax(logits / temperature)[token], renormalised over `support`.

    Parameters
    ----------
    logits
        [..., V].
    token
        Ids, [...], int.
    temperature
        The one the sampler used.
    support
        Tokens the sampler could choose from, [..., V], bool; None for all. A token outside it has log-prob -inf.

    Raises
    ------
    ValueError
        For a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature} must be positive; greedy decoding has no log-probs to compare")
    xp = array_namespace(logits)
    scaled = logits / temperature
    if support is not None:
        scaled = xp.where(support, scaled, xp.full_like(scaled, -xp.inf))
    shifted = scaled - xp.max(scaled, axis=-1, keepdims=True)
    log_partition = xp.log(xp.sum(xp.exp(shifted), axis=-1))
    return xp.take_along_axis(shifted, token[..., None], axis=-1)[..., 0] - log_partition


def next_token_log_probability(
    logits: Any, token: Any, start: Any, *, temperature: float = 1.0, support: Any = None
) -> Any:
    """Return the log-prob of each token of packed sequences, [..., T]: ``logits[..., i, :]`` predicts ``token[..., i + 1]``.

    The first token of a sequence has nothing before it: its entry is 0 and no prediction crosses from one sequence to the
    next.

    Parameters
    ----------
    logits
        [..., T, V], position by position, as a causal model returns them.
    token
        [..., T], int.
    start
        Whether a token is the first of its sequence, [..., T], bool; the very first must be.
    temperature, support
        As in :func:`token_log_probability`; `support` is at the predicting position, [..., T, V].
    """
    xp = array_namespace(logits)
    if not bool(xp.all(start[..., 0])):
        raise ValueError("start[..., 0] must be true: nothing precedes the first token, so nothing predicts it")
    kept = None if support is None else support[..., :-1, :]
    found = token_log_probability(logits[..., :-1, :], token[..., 1:], temperature=temperature, support=kept)
    whole = xp.concat([xp.zeros_like(logits[..., :1, 0]), found], axis=-1)
    return xp.where(start, xp.zeros_like(whole), whole)


def top_k(logits: Any, k: int) -> Any:
    """Return whether a token is among the `k` likeliest, [..., V], bool; ties at the edge are all kept."""
    xp = array_namespace(logits)
    size = logits.shape[-1]
    if not 1 <= k <= size:
        raise ValueError(f"k = {k} must lie in 1 .. {size}, the vocabulary")
    least = xp.sort(logits, axis=-1)[..., size - k]
    return logits >= least[..., None]


def top_p(logits: Any, p: float, *, temperature: float = 1.0) -> Any:
    """Return whether a token is in the smallest set of likeliest ones with probability at least `p`, [..., V], bool.

    Ties at the edge are all kept; p = 1 keeps every token.
    """
    if not 0 < p <= 1:
        raise ValueError(f"p = {p} must lie in (0, 1]")
    if not temperature > 0:
        raise ValueError(f"temperature = {temperature} must be positive")
    xp = array_namespace(logits)
    if p == 1:
        return xp.ones_like(logits, dtype=xp.bool)
    scaled = logits / temperature
    weight = xp.exp(scaled - xp.max(scaled, axis=-1, keepdims=True))
    probability = weight / xp.sum(weight, axis=-1, keepdims=True)
    ordered = xp.flip(xp.sort(probability, axis=-1), axis=-1)
    before = xp.cumulative_sum(ordered, axis=-1) - ordered  # mass of the likelier ones
    least = xp.min(xp.where(before < p, ordered, xp.full_like(ordered, xp.inf)), axis=-1, keepdims=True)
    return probability >= least


def interpolated_proximal(now: Any, behaviour: Any, versions: tuple[Any, Any, Any]) -> Any:
    """Return log pi_prox without a forward of its own: log mu + a (log pi - log mu), a = (v_prox - v_mu) / (v_now - v_mu).

    Tokens of the current version have a = 1. Source: AReaL's log-linear approximation of the proximal policy.

    Parameters
    ----------
    now, behaviour
        log pi now and log mu, [...].
    versions
        (v_mu, v_prox, v_now): of each token's sampler, broadcastable to [...], of the proximal policy and of the learner.

    Raises
    ------
    ValueError
        Unless v_mu <= v_prox <= v_now.
    """
    xp = array_namespace(now)
    v_mu, v_prox, v_now = (xp.asarray(v, dtype=now.dtype) for v in versions)
    if bool(xp.any(v_mu > v_prox)) or bool(xp.any(v_prox > v_now)):
        raise ValueError(f"versions {versions} must rise from sampler to proximal policy to learner")
    span = v_now - v_mu
    a = xp.where(span > 0, (v_prox - v_mu) / xp.where(span > 0, span, xp.ones_like(span)), xp.ones_like(span))
    return behaviour + a * (now - behaviour)
