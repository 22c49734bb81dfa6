"""Families of laws: functions from values [n] to the law of maximum likelihood, in the unit of the values.

The values are finite and at least 0; :func:`sim.cluster.fitting.fit` sees to that.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sim.mdp.latency import CappedPareto, Exponential, Latency, LogNormal, Mixture

__all__ = [
    "FAMILIES",
    "Family",
    "TraceError",
    "capped_pareto",
    "exponential",
    "log_normal",
    "log_normal_pareto",
]

F64 = NDArray[np.float64]
Family = Callable[[F64], Latency]

_STEPS = 2000
_GAIN = 1e-8  # of log-likelihood a value, at which EM stops


class TraceError(ValueError):
    """A trace, or numbers of one, that cannot be used; the message says which, why, and the way out."""


def exponential(values: F64) -> Exponential:
    """Return the exponential law of maximum likelihood: the mean of the values."""
    return Exponential(float(values.mean()))


def log_normal(values: F64) -> LogNormal:
    """Return the log-normal law of maximum likelihood: mean and standard deviation (over n) of log values."""
    logs = _logs(values, "a log-normal law")
    return LogNormal(float(np.exp(logs.mean())), float(logs.std()))


def capped_pareto(values: F64) -> CappedPareto:
    """Return the Pareto law of maximum likelihood, from the least value on and capped at the greatest.

    alpha = m / sum_i log(t_i / scale), with m the number of values below the cap: those at the cap count as censored, as
    they may have been cut there. With one value at the cap this is Hill's estimator (1975) with n - 1 for n. To fit a tail,
    use ``fit(values, capped_pareto, above=threshold)``.
    """
    logs = _logs(values, "a Pareto law")
    excess = logs - logs.min()
    alpha = np.sum(values < values.max()) / excess.sum()
    return CappedPareto(float(values.min()), float(alpha), float(values.max()))


def log_normal_pareto(values: F64, body: float = 0.9) -> Mixture:
    """Return a log-normal law mixed with a Pareto tail, by maximum likelihood (EM).

    The tail begins at the `body` quantile of the values and is capped at their greatest; the log-normal part is not cut
    there, so a long value may come from either. A value at the cap is the tail's, whose atom stands there.

    Raises
    ------
    TraceError
        For a zero, a `body` outside (0, 1), or a part that shrinks onto one value: then one family alone does as well.
    """
    logs = _logs(values, "a log-normal law")
    if not 0 < body < 1:
        raise TraceError(f"body = {body}, the share of values below the tail, is outside (0, 1)")
    start, cap = float(np.quantile(values, body, method="inverted_cdf")), float(values.max())
    if start == cap or start == values.min():
        raise TraceError(
            f"body = {body} leaves one part nothing but the value {start:g}; move it, or fit another family"
        )
    excess, at_cap = logs - np.log(start), values == cap
    tail = (values >= start).astype(np.float64)  # P(value i is the tail's), refined by EM
    likelihood = -np.inf
    for _ in range(_STEPS):
        weight, alpha = tail.mean(), tail[~at_cap].sum() / (tail * excess).sum()
        mu = np.average(logs, weights=1 - tail)
        sigma = np.sqrt(np.average((logs - mu) ** 2, weights=1 - tail))
        if not sigma > 1e-6:
            raise TraceError(
                f"the log-normal part shrinks onto the value {np.exp(mu):.6g}; take another body than {body}"
            )
        in_body = (1 - weight) * np.exp(-(((logs - mu) / sigma) ** 2) / 2) / (sigma * np.sqrt(2 * np.pi))
        in_tail = np.where(excess >= 0, weight * alpha * np.exp(-alpha * np.maximum(excess, 0)), 0.0)
        tail = np.where(at_cap, 1.0, in_tail / (in_body + in_tail))
        before, likelihood = likelihood, float(np.log((in_body + in_tail)[~at_cap]).mean())
        if abs(likelihood - before) < _GAIN:
            break
    else:
        raise TraceError(
            f"body and tail of body = {body} are not told apart after {_STEPS} steps of EM; take another body"
        )
    if tail[~at_cap].sum() < 1:
        raise TraceError(
            f"of the tail above body = {body} only the greatest value, {cap:g}, is left; log_normal does as well"
        )
    body_law = LogNormal(float(np.exp(mu)), float(sigma))
    return Mixture(((1 - float(weight), body_law), (float(weight), CappedPareto(start, float(alpha), cap))))


FAMILIES: tuple[Family, ...] = (
    exponential,
    log_normal,
    capped_pareto,
    *(partial(log_normal_pareto, body=body) for body in (0.5, 0.75, 0.9, 0.95)),
)
"""What :func:`best_fit` tries; where a tail begins is a constant chosen by the fit, so four are tried (ours)."""


def _logs(values: F64, law: str) -> F64:
    zeros = int(np.sum(values == 0))
    if zeros:
        raise TraceError(
            f"{zeros} of {len(values)} values are 0, which {law} never takes; fit those above=0.0 and give the zeros "
            "their share in a Mixture, or use exponential or replay(values)"
        )
    return np.log(values)
