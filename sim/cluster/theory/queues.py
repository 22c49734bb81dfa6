"""Open queues: several servers, one server with any service law, and an engine that decodes many sequences at once.

An engine with continuous batching takes a + b n seconds for a step when n sequences are active, and each of them gets one
token: processor sharing whose total rate n / (a + b n) grows with n. Its stationary law depends on the lengths by their
mean alone.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from sim.cluster.theory._checks import count, non_negative, positive, stable

__all__ = ["OpenEngine", "Servers", "erlang_c", "mg1_wait_s", "ps_sojourn_s", "turn_rate_bound"]

F64 = NDArray[np.float64]


def erlang_c(offered: float, servers: int) -> float:
    """Return the probability that an arrival finds all c servers busy (Erlang 1917).

        C = B / (1 - (A / c)(1 - B)),   1 / B(c) = 1 + (c / A) / B(c - 1),   B(0) = 1

    with A = lambda E[S] the load offered and B Erlang's loss probability.

    Parameters
    ----------
    offered
        A = lambda E[S], erlang.
    servers
        c.

    Raises
    ------
    ValueError
        When A / c >= 1.

    >>> round(erlang_c(2.0, 3), 12)  # 4 / 9
    0.444444444444
    """
    count(servers=servers)
    non_negative(offered=offered)
    load = stable(offered / servers, "offered / servers")
    if offered == 0:
        return 0.0
    blocked = 1.0
    for c in range(1, servers + 1):
        blocked = offered * blocked / (c + offered * blocked)
    return blocked / (1 - load * (1 - blocked))


@dataclass(frozen=True)
class Servers:
    """M/M/c: Poisson arrivals, c servers with exponential times, one line in order of arrival."""

    arrivals_per_s: float
    """lambda."""
    service_s: float
    """E[S], mean time with a server."""
    servers: int = 1
    """c."""

    def __post_init__(self) -> None:
        non_negative(arrivals_per_s=self.arrivals_per_s)
        positive(service_s=self.service_s)
        count(servers=self.servers)
        stable(self.load, "load = arrivals_per_s service_s / servers")

    @property
    def load(self) -> float:
        """Load rho = lambda E[S] / c: the share of time a server is busy."""
        return self.arrivals_per_s * self.service_s / self.servers

    def waits(self) -> float:
        """Return the probability that an arrival has to wait."""
        return erlang_c(self.arrivals_per_s * self.service_s, self.servers)

    def wait_s(self) -> float:
        """Return the mean time in line, over all arrivals: C E[S] / (c (1 - rho)), s."""
        return self.waits() * self.service_s / (self.servers * (1 - self.load))

    def queue(self) -> float:
        """Return the mean number in line, C rho / (1 - rho): lambda times the wait.

        >>> round(Servers(0.75, 1.0).queue(), 12)
        2.25
        """
        return self.waits() * self.load / (1 - self.load)

    def sojourn_s(self) -> float:
        """Return the mean time from arrival to departure, s."""
        return self.wait_s() + self.service_s


def mg1_wait_s(arrivals_per_s: float, service_s: float, variance_s2: float) -> float:
    """Return the mean time in line at one server with any service law: lambda E[S^2] / (2 (1 - rho)), s.

    Pollaczek 1930, Khinchine 1932. Infinite when the variance is.

    Parameters
    ----------
    arrivals_per_s
        lambda, Poisson.
    service_s, variance_s2
        Mean and variance of the service time, s and s^2.

    Raises
    ------
    ValueError
        When rho = lambda E[S] >= 1.

    >>> mg1_wait_s(0.5, 1.0, 0.0), mg1_wait_s(0.5, 1.0, 1.0)  # constant service waits half as long as exponential
    (0.5, 1.0)
    """
    non_negative(arrivals_per_s=arrivals_per_s)
    positive(service_s=service_s)
    if not variance_s2 >= 0:
        raise ValueError(f"variance_s2 = {variance_s2} must be at least 0")
    load = stable(arrivals_per_s * service_s, "load = arrivals_per_s service_s")
    return arrivals_per_s * (service_s**2 + variance_s2) / (2 * (1 - load))


def ps_sojourn_s(arrivals_per_s: float, service_s: float) -> float:
    """Return the mean sojourn when one server of constant rate is shared equally: E[S] / (1 - rho), s, for any law."""
    non_negative(arrivals_per_s=arrivals_per_s)
    positive(service_s=service_s)
    return service_s / (1 - stable(arrivals_per_s * service_s, "load = arrivals_per_s service_s"))


@dataclass(frozen=True)
class OpenEngine:
    """A decoding engine with Poisson arrivals: M/G/1 processor sharing whose total rate is n / (a + b n) tokens/s.

    With q = lambda E[L] b the number of active sequences is negative binomial,

        p_n = C(n + a / b, n) q^n (1 - q)^(1 + a / b),

    (Poisson of mean lambda E[L] a for b = 0), whatever the law of L. Source: generalised processor sharing, Cohen, "The
    multiple phase service network with generalized processor sharing" (Acta Informatica 1979); the form for this rate is
    ours.
    """

    arrivals_per_s: float
    """lambda, sequences per s."""
    mean_tokens: float
    """E[L], tokens of a sequence."""
    step_s: float
    """a, the part of a step's time that does not depend on how many sequences are active, s."""
    step_per_sequence_s: float
    """b, what each active sequence adds to a step's time, s."""

    def __post_init__(self) -> None:
        non_negative(
            arrivals_per_s=self.arrivals_per_s, step_s=self.step_s, step_per_sequence_s=self.step_per_sequence_s
        )
        positive(mean_tokens=self.mean_tokens, a_and_b=self.step_s + self.step_per_sequence_s)
        stable(self.load, "load = arrivals_per_s mean_tokens step_per_sequence_s")

    @property
    def load(self) -> float:
        """Load q = lambda E[L] b: tokens asked for over the 1 / b tokens/s that no number of sequences can exceed."""
        return self.arrivals_per_s * self.mean_tokens * self.step_per_sequence_s

    def pmf(self, most: int) -> F64:
        """Return p_n for n = 0 .. `most`, [most + 1]: the stationary law of the number of active sequences."""
        n = np.arange(most + 1)
        work = self.arrivals_per_s * self.mean_tokens
        if work == 0:
            return (n == 0).astype(float)
        if self.step_per_sequence_s == 0:
            return np.exp(n * math.log(work * self.step_s) - work * self.step_s - gammaln(n + 1))
        r, q = self.step_s / self.step_per_sequence_s, self.load
        ways = gammaln(n + 1 + r) - gammaln(n + 1) - gammaln(1 + r)
        return np.exp(ways + n * math.log(q) + (1 + r) * math.log1p(-q))

    def mean_number(self) -> float:
        """Return E[n], lambda times the mean sojourn."""
        return self.arrivals_per_s * self.sojourn_s()

    def sojourn_s(self, tokens: float | None = None) -> float:
        """Return the mean time of a sequence of `tokens` tokens, x (a + b) / (1 - q), s; None for E[L] of them.

        Every size is slowed down by the same factor.

        >>> engine = OpenEngine(0.5, 10.0, 0.125, 0.125)  # q = .625
        >>> round(engine.sojourn_s(), 12), round(engine.sojourn_s(3.0), 12)
        (6.666666666667, 2.0)
        """
        x = self.mean_tokens if tokens is None else tokens
        return x * (self.step_s + self.step_per_sequence_s) / (1 - self.load)


def turn_rate_bound(slots: int, alone_s: float, think_s: float, demand_s: float) -> float:
    """Return the most turns per second a closed loop can do: min(W / (R0 + Z), 1 / D).

    The asymptotic bounds of Muntz and Wong 1974: no turn is faster than one that is alone, and no station works faster
    than at full rate. For an engine of step time a + b n: R0 = E[L] (a + b) and D = E[L] b.

    Parameters
    ----------
    slots
        W, loops that run at once.
    alone_s
        R0, time of a turn at the stations when nobody else is there, s.
    think_s
        Z, time of a turn spent where nobody waits, s.
    demand_s
        D, time of a turn at the busiest station at its full rate, s; 0 where no station saturates.
    """
    count(slots=slots)
    non_negative(alone_s=alone_s, think_s=think_s, demand_s=demand_s)
    positive(turn_s=alone_s + think_s)
    alone = slots / (alone_s + think_s)
    return min(alone, 1 / demand_s) if demand_s > 0 else alone
