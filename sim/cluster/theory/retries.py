"""A tool call with a timeout, tried again: how long it takes in all and how often it is given up."""

import math
from dataclasses import dataclass

from sim.cluster.theory._checks import non_negative, share

__all__ = ["Retries"]


@dataclass(frozen=True)
class Retries:
    """Independent attempts, each cut at the timeout tau, until one succeeds or R retries are used up.

    An attempt lasts min(X, tau). It succeeds with probability p = P(X <= tau) (1 - f), where f is the chance that an answer
    in time is an error. Before retry j = 1, 2, ... the caller waits backoff factor^(j - 1). With r = 1 - p attempt j happens
    with probability r^j, independently of how long it would last, so

        E[time] = E[min(X, tau)] sum_{j = 0}^{R} r^j + backoff sum_{j = 1}^{R} r^j factor^(j - 1),   P(given up) = r^(R + 1).

    Without limit, backoff and errors this is E[min(X, tau)] / P(X <= tau). Ours.
    """

    attempt_s: float
    """E[min(X, tau)], s."""
    in_time: float
    """P(X <= tau)."""
    failure: float = 0.0
    """f, the chance that an answer in time is an error."""
    backoff_s: float = 0.0
    """Wait before the first retry, s."""
    factor: float = 1.0
    """What each further wait is multiplied by."""
    retries: int | None = None
    """R, attempts after the first; None for no limit."""

    def __post_init__(self) -> None:
        non_negative(attempt_s=self.attempt_s, backoff_s=self.backoff_s, factor=self.factor)
        share(in_time=self.in_time, failure=self.failure)
        if self.retries is not None and self.retries < 0:
            raise ValueError(f"retries = {self.retries} must be at least 0, or None for no limit")
        if self.retries is None and self.success == 0:
            raise ValueError(
                f"in_time = {self.in_time} and failure = {self.failure}: no attempt succeeds; limit the retries"
            )

    @property
    def success(self) -> float:
        """Probability p = P(X <= tau) (1 - f), of one attempt."""
        return self.in_time * (1 - self.failure)

    def attempts(self) -> float:
        """Return the mean number of attempts.

        >>> Retries(1.0, 0.5).attempts(), Retries(1.0, 0.5, retries=1).attempts()
        (2.0, 1.5)
        """
        return _geometric(1 - self.success, None if self.retries is None else self.retries + 1)

    def total_s(self) -> float:
        """Return the mean time from the first attempt to success or to giving up, waits included, s.

        Raises
        ------
        ValueError
            When waits grow faster than attempts become rare, (1 - p) factor >= 1, and nothing limits the retries.

        >>> Retries(2.0, 0.5, backoff_s=1.0, factor=1.5).total_s()  # 4 + .5 / (1 - .75)
        6.0
        """
        r = 1 - self.success
        waits = 0.0
        if self.backoff_s > 0:
            if self.retries is None and r * self.factor >= 1:
                raise ValueError(
                    f"(1 - p) factor = {r * self.factor:.4g} must be below 1: the mean wait is infinite; limit the retries"
                )
            waits = self.backoff_s * r * _geometric(r * self.factor, self.retries)
        return self.attempt_s * self.attempts() + waits

    def given_up(self) -> float:
        """Return the probability that the call ends without an answer."""
        return 0.0 if self.retries is None else (1 - self.success) ** (self.retries + 1)


def _geometric(ratio: float, terms: int | None) -> float:
    """1 + ratio + ... to so many terms, None for all."""
    if terms is None:
        return 1 / (1 - ratio)
    if ratio == 1:
        return float(terms)
    # -expm1 keeps the digits of 1 - ratio^terms for a ratio near 1
    top = -math.expm1(terms * math.log(ratio)) if ratio > 0 else float(terms > 0)
    return top / (1 - ratio)
