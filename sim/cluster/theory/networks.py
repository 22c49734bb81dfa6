"""Closed networks of product form: W agent loops that go round between engines and tools.

With f_i(n) = prod_{k <= n} v_i / mu_i(k) for station i of visit ratio v_i and rate mu_i(k) when k are there, the stationary
law is pi(n_1, ..., n_M) = prod f_i(n_i) / G(W), and loops complete at the rate G(W - 1) / G(W). Exact for shared engines
and infinite servers with any law of service, and for lines in order of arrival with exponential service. Sources:
Baskett, Chandy, Muntz and Palacios (J. ACM 1975); Buzen's convolution (Comm. ACM 1973). All sums are of logarithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sim.cluster.theory._checks import count, non_negative, positive

__all__ = [
    "AgentLoop",
    "Flow",
    "Station",
    "agent_loop",
    "closed_network",
    "delay_rates",
    "engine_rates",
    "loop_pmf",
    "pool_rates",
]

F64 = NDArray[np.float64]


def engine_rates(slots: int, mean_tokens: float, step_s: float, step_per_sequence_s: float) -> F64:
    """Return mu(n) = n / (E[L] (a + b n)) for n = 1 .. W, [W]: sequences per s of an engine of step time a + b n.

    Exact in a product form for any law of L of this mean, since the engine shares itself equally.
    """
    count(slots=slots)
    non_negative(step_s=step_s, step_per_sequence_s=step_per_sequence_s)
    positive(mean_tokens=mean_tokens, a_and_b=step_s + step_per_sequence_s)
    n = np.arange(1, slots + 1, dtype=float)
    return n / (mean_tokens * (step_s + step_per_sequence_s * n))


def delay_rates(slots: int, mean_s: float) -> F64:
    """Return mu(n) = n / Z for n = 1 .. W, [W]: tools that never make one wait, of any law; infinite for Z = 0."""
    count(slots=slots)
    non_negative(mean_s=mean_s)
    n = np.arange(1, slots + 1, dtype=float)
    with np.errstate(divide="ignore", over="ignore"):
        return n / mean_s


def pool_rates(slots: int, mean_s: float, servers: int) -> F64:
    """Return mu(n) = min(n, c) / E[S] for n = 1 .. W, [W]: a pool of c tool servers and one line in order of arrival.

    Of product form only for exponential service.
    """
    count(slots=slots, servers=servers)
    positive(mean_s=mean_s)
    return np.minimum(np.arange(1, slots + 1, dtype=float), servers) / mean_s


@dataclass(frozen=True)
class Station:
    """A place that loops visit."""

    rates: F64
    """mu(n), departures per s when n = 1 .. W are there, [W]; positive, infinite where nobody stays."""
    visits: float = 1.0
    """v, visits of one loop to one copy of it."""
    copies: int = 1
    """Equal stations like this one."""

    def __post_init__(self) -> None:
        positive(visits=self.visits)
        count(copies=self.copies)
        if self.rates.ndim != 1 or len(self.rates) == 0:
            raise ValueError(f"rates {self.rates.shape} must be an array [W] with one rate for each number present")
        if not (self.rates > 0).all():
            n = int(np.argmin(self.rates > 0))
            raise ValueError(f"rates[{n}] = {self.rates[n]} must be above 0: with {n + 1} present nobody would leave")


@dataclass(frozen=True)
class Flow:
    """What a closed network does in the long run."""

    loops_per_s: float
    """Rate of completed loops: departures of a station over its visits."""
    mean_number: F64
    """Loops at one copy of each station, [M]; with the copies they add up to W."""
    visit_s: F64
    """Mean time of a visit to each station, [M], by Little's law."""


def closed_network(stations: Sequence[Station], slots: int) -> Flow:
    """Return rate and mean numbers of a closed product-form network with W loops.

    Takes O(W^2) per convolution, of which M stations (M > 2) need about 3 M and c copies of one about 2 log2(c); two
    stations without copies take O(W).

    Parameters
    ----------
    stations
        The places visited, M of them; each with rates for at least W present.
    slots
        W, loops that go round.

    Raises
    ------
    ValueError
        Without a station, with fewer rates than loops, or where all rates are infinite.
    """
    count(slots=slots)
    short = [i for i, s in enumerate(stations) if len(s.rates) < slots]
    if not stations or short:
        raise ValueError(f"stations {short} of {len(stations)} have rates for fewer than slots = {slots} present")
    logs = [_power(_log_factors(s, slots), s.copies) for s in stations]
    others = _leave_one_out(logs)
    log_g = [float(logsumexp(logs[0][: w + 1] + others[0][w::-1])) for w in (slots - 1, slots)]
    if not np.isfinite(log_g[1]):
        raise ValueError(f"no station of {len(stations)} can hold slots = {slots}: give one of them finite rates")
    rate = float(np.exp(log_g[0] - log_g[1]))
    n = np.arange(slots + 1)
    numbers = np.array(
        [n @ np.exp(f + rest[::-1] - log_g[1]) / s.copies for f, rest, s in zip(logs, others, stations, strict=True)]
    )
    return Flow(rate, numbers, numbers / (rate * np.array([s.visits for s in stations])))


def _log_factors(station: Station, slots: int) -> F64:
    """Return log f(n), n = 0 .. W."""
    with np.errstate(divide="ignore"):  # the log of 0 visits per rate, where nobody stays
        steps = np.log(station.visits / station.rates[:slots])
    return np.concatenate(([0.0], np.cumsum(steps)))


def _convolve(f: F64, g: F64) -> F64:
    """Return the log of sum_k exp(f_k + g_(n - k)) for every n, both [W + 1]."""
    found = np.empty_like(f)
    for n in range(len(f)):
        terms = f[: n + 1] + g[n::-1]
        top = terms.max()
        found[n] = top + np.log(np.exp(terms - top).sum()) if np.isfinite(top) else top
    return found


def _power(f: F64, copies: int) -> F64:
    """Return the log of the `copies`-fold convolution of exp(f) with itself, by repeated squaring."""
    found: F64 | None = None
    while True:
        if copies & 1:
            found = f if found is None else _convolve(found, f)
        copies >>= 1
        if copies == 0:
            assert found is not None
            return found
        f = _convolve(f, f)


def _leave_one_out(logs: list[F64]) -> list[F64]:
    """For each station the convolution of all the others."""
    empty = np.full_like(logs[0], -np.inf)
    empty[0] = 0.0
    if len(logs) == 1:
        return [empty]
    before, after = [logs[0]], [logs[-1]]
    for f in logs[1:-1]:
        before.append(_convolve(before[-1], f))
    for f in logs[-2:0:-1]:
        after.append(_convolve(f, after[-1]))
    after.reverse()
    inner = [_convolve(b, a) for b, a in zip(before[:-1], after[1:], strict=True)]
    return [after[0], *inner, before[-1]]


def loop_pmf(slots: int, mean_tokens: float, step_s: float, step_per_sequence_s: float, think_s: float) -> F64:
    """Return the law of the number at the one engine of W agent loops, [W + 1].

        pi(n) proportional to prod_{k <= n} E[L] (a + b k) / k   Z^(W - n) / (W - n)!

    It depends on generation lengths and tool times by their means alone, also when their variance is infinite.

    Parameters
    ----------
    slots
        W, trajectories in flight.
    mean_tokens
        E[L], tokens of one turn.
    step_s, step_per_sequence_s
        a and b, s: a decoding step with n active sequences takes a + b n.
    think_s
        Z, mean time of a turn with its tools, which never make one wait, s.
    """
    engine = Station(engine_rates(slots, mean_tokens, step_s, step_per_sequence_s))
    tools = Station(delay_rates(slots, think_s))
    logs = _log_factors(engine, slots) + _log_factors(tools, slots)[::-1]
    return np.exp(logs - logsumexp(logs))


@dataclass(frozen=True)
class AgentLoop:
    """What W agent loops do in the long run."""

    turns_per_s: float
    """X, turns completed by all slots together."""
    at_engine: float
    """Mean number of sequences active at one engine."""
    at_tools: float
    """Mean number of trajectories waiting for a tool, in line or served."""
    turn_s: float
    """W / X, mean time of a turn, generation and tools, s."""


def agent_loop(
    slots: int,
    mean_tokens: float,
    step_s: float,
    step_per_sequence_s: float,
    think_s: float,
    *,
    engines: int = 1,
    tools: Sequence[Station] = (),
) -> AgentLoop:
    """Return rate and mean numbers of W trajectories that alternate between engines and tools.

    A turn goes to each of the E engines with probability 1 / E. Trajectories that keep the engine they drew at random
    when they began give the same stationary numbers (classes that switch, in the terms of the BCMP theorem). Not covered:
    engines with a fixed equal share of the slots (E loops of W / E slots each, since tools that make nobody wait do not
    couple them) and routing to the least loaded.

    Parameters
    ----------
    slots, mean_tokens, step_s, step_per_sequence_s, think_s
        As in :func:`loop_pmf`.
    engines
        E, equal engines.
    tools
        Tool stations where one may have to wait, with their visits per turn (:func:`pool_rates`).
    """
    count(slots=slots, engines=engines)
    engine = Station(engine_rates(slots, mean_tokens, step_s, step_per_sequence_s), 1 / engines, engines)
    stations = [engine, Station(delay_rates(slots, think_s)), *tools]
    flow = closed_network(stations, slots)
    at_engine = float(flow.mean_number[0])
    return AgentLoop(flow.loops_per_s, at_engine, slots - engines * at_engine, slots / flow.loops_per_s)
