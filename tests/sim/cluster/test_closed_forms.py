"""The simulator against closed forms, through its public interface.

An estimate is a mean over independent seeds, corrected by a mean that is known (of tokens or latencies drawn). The closed
form must lie in its 99 % interval, and the interval must be as narrow as the test says: n is chosen for that. Seeds are
fixed, so a test that passes passes always. The tests marked long are the same with more seeds and narrower bounds.
"""

import numpy as np
import pytest

from sim.cluster.events import Kind
from sim.cluster.run import simulate
from sim.cluster.scheduling import Arrivals, FixedWidth, Rounds, greedy
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.statistics.intervals import replicated
from sim.cluster.statistics.pairs import control_variate
from sim.cluster.theory.cycle import synchronous_step_s
from sim.cluster.theory.networks import agent_loop
from sim.cluster.theory.order import exponential_mean_max, pareto_mean_max
from sim.cluster.theory.queues import OpenEngine, Servers, mg1_wait_s
from sim.cluster.theory.retries import Retries
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import CappedPareto, Constant, Exponential, LogNormal, mean_min_s, survival

A, B = 0.05, 0.01  # of a decode step, s


def agrees(found, theory, within):
    """The interval holds the closed form and is no wider than `within` of it on either side."""
    assert found.low < theory < found.high, (found.low, theory, found.high)
    assert (found.high - found.low) / 2 < within * theory
    assert abs(found.mean / theory - 1) < within


# --- a closed network -------------------------------------------------------------------------------------------------


def turn_rate(slots, tokens, latency, rollouts, seed):
    """Turns per s of loops that write and call for ever, after a tenth of them; and mean tokens and latency drawn."""
    turns = 50
    cluster = Cluster(
        workload=Workload(
            task=Chain(turns=turns, tools=("search",)), group=1, tokens=(("search", tokens), ("answer", tokens))
        ),
        engines=Engines(base_s=A, per_sequence_s=B),
        tools=(ToolPool("tools", ("search", "answer"), latency),),
        admission=FixedWidth(slots, "running"),
        slots=slots,
        order=greedy(),
        learner=Learner(batch=10),
        sync=Sync("in_place"),
        steps=rollouts // 10,
    )
    run = simulate(cluster, seed, engine="simpy", record=True)
    ended_s = run.log.t_s[run.log.kind == Kind.TOOL_END]
    first = len(ended_s) // 10
    rate = (len(ended_s) - 1 - first) / (ended_s[-1] - ended_s[first])
    started = run.books.rollouts.tool_s[
        : rollouts - slots
    ]  # those that started first: not chosen by how long they took
    return rate, started.sum() / (turns * len(started))


@pytest.mark.parametrize(
    ("slots", "tokens", "latency", "rollouts", "seeds", "within"),
    [
        (16, Constant(20.0), CappedPareto(1.0, 1.6, 100.0), 200, 12, 0.003),
        pytest.param(
            *(16, Constant(20.0), CappedPareto(1.0, 1.6, 100.0), 400, 60, 0.001),
            marks=pytest.mark.long,
        ),
        pytest.param(
            *(64, LogNormal(15.0, 0.5), CappedPareto(4.0, 1.6, 400.0), 400, 60, 0.002),
            marks=pytest.mark.long,
        ),
    ],
    ids=["16 slots", "16 slots, longer", "64 slots, random lengths"],
)
def test_a_closed_network_of_an_engine_and_tools(slots, tokens, latency, rollouts, seeds, within):
    """BCMP: the rate of turns depends on the heavy-tailed latency through its mean alone."""
    theory = agent_loop(slots, tokens.mean_s(), A, B, latency.mean_s())
    assert 0.2 * slots < theory.at_engine < 0.8 * slots  # both matter
    rates, means = zip(*(turn_rate(slots, tokens, latency, rollouts, seed) for seed in range(seeds)), strict=True)
    agrees(control_variate(rates, means, latency.mean_s(), alpha=0.01), theory.turns_per_s, within)


# --- open queues ------------------------------------------------------------------------------------------------------


def arrivals(interval, rollouts, seed, **options):
    """Books of rollouts that arrive one by one, without the first and the last tenth."""
    cluster = Cluster(
        admission=Arrivals(interval),
        order=greedy(),
        learner=Learner(batch=rollouts // 10),
        sync=Sync("in_place"),
        steps=10,
        **options,
    )
    r = simulate(cluster, seed, engine="simpy").books.rollouts
    kept = slice(rollouts // 10, rollouts - rollouts // 10)
    assert not r.aborted[kept].any()
    return (r.end_s - r.start_s)[kept], r.tokens[kept], r.tool_s[kept]


def tokens_of(law):
    return Workload(task=Chain(turns=1), group=1, tokens=(("answer", law),))


OPEN = [
    (Exponential(100.0), 0.5),
    (LogNormal(60.0, 1.0), 0.5),
]


@pytest.mark.parametrize(("law", "load"), OPEN, ids=["exponential", "lognormal"])
@pytest.mark.parametrize(
    ("rollouts", "seeds", "within"), [(4000, 10, 0.03), pytest.param(20000, 40, 0.01, marks=pytest.mark.long)]
)
def test_an_open_engine(law, load, rollouts, seeds, within):
    """Processor sharing whose speed depends on its load: E[T] = E[L] (a + b) / (1 - q), whatever the law of tokens."""
    rate = load / (law.mean_s() * B)
    theory = OpenEngine(rate, law.mean_s(), A, B)
    times, tokens = [], []
    for seed in range(seeds):
        sojourn, written, _ = arrivals(
            Exponential(1 / rate), rollouts, seed, workload=tokens_of(law), engines=Engines(base_s=A, per_sequence_s=B)
        )
        times.append(sojourn.mean())
        tokens.append(written.mean())
    agrees(control_variate(times, tokens, law.mean_s(), alpha=0.01), theory.sojourn_s(), within)


def test_an_open_engine_slows_every_size_down_alike():
    """n = 20,000: the slowdown (a + b) / (1 - q) of the short half and of the long half."""
    law, rate = Exponential(100.0), 0.5
    parts = []
    for seed in range(5):
        sojourn, tokens, _ = arrivals(
            Exponential(1 / rate), 5000, seed, workload=tokens_of(law), engines=Engines(base_s=A, per_sequence_s=B)
        )
        long = tokens > 70
        parts.append([sojourn[which].sum() / tokens[which].sum() for which in (long, ~long)])
    theory = OpenEngine(rate, 100.0, A, B).sojourn_s(1.0)
    for slowdown in zip(*parts, strict=True):
        found = replicated(slowdown, alpha=0.01)
        assert found.low < theory < found.high
        assert found.high - found.low < 0.2 * theory


def calling(**options):
    """Rollouts that write nothing and call once."""
    nothing = Constant(0.0)
    return Workload(task=Chain(turns=2), group=1, tokens=(("tool", nothing), ("answer", nothing)), **options)


@pytest.mark.parametrize(
    ("law", "servers", "load", "within"),
    [
        (Exponential(1.0), 1, 0.6, 0.12),
        (Exponential(1.0), 4, 0.6, 0.25),  # few wait, so that the mean wait varies more
        (Constant(1.0), 1, 0.7, 0.12),
        (LogNormal(0.6, 0.8), 1, 0.5, 0.12),
    ],
    ids=["M/M/1", "M/M/4", "M/D/1", "M/G/1"],
)
@pytest.mark.parametrize(
    ("rollouts", "seeds", "narrower"), [(4000, 10, 1), pytest.param(20000, 40, 4.5, marks=pytest.mark.long)]
)  # 20 times as many: sqrt(20) = 4.5
def test_calls_wait_for_servers_as_customers_do(law, servers, load, within, rollouts, seeds, narrower):
    """Poisson arrivals at a pool: Erlang's C for several servers, Pollaczek and Khinchine for one of any law."""
    mean, variance = law.mean_s(), law.variance()
    rate = load * servers / mean
    theory = Servers(rate, mean, servers).wait_s() if isinstance(law, Exponential) else mg1_wait_s(rate, mean, variance)
    waits, work = [], []
    for seed in range(seeds):
        sojourn, _, served = arrivals(
            Exponential(1 / rate), rollouts, seed, workload=calling(), tools=(ToolPool("t", ("tool",), law, servers),)
        )
        waits.append((sojourn - served).mean())
        work.append(served.sum() / sojourn.size if variance else 0.0)
    if variance:
        agrees(control_variate(waits, work, mean, alpha=0.01), theory, within / narrower)
    else:
        found = replicated(waits, alpha=0.01)
        assert found.low < theory < found.high
        assert (found.high - found.low) / 2 < within / narrower * theory


# --- rounds, retries --------------------------------------------------------------------------------------------------


def rounds(law, n, steps, **changes):
    return Cluster(
        workload=calling(),
        tools=(ToolPool("tool", ("tool",), law),),
        learner=Learner(batch=n, base_s=3.0),
        sync=Sync("interrupt", 1.0),
        order=greedy(),
        steps=steps,
        **{"admission": Rounds()} | changes,
    )


@pytest.mark.parametrize(
    ("law", "theory", "within"),
    [
        (Exponential(6.0), exponential_mean_max(6.0, 8), 0.08),
        (CappedPareto(2.0, 2.5, None), pareto_mean_max(2.0, 2.5, 8), 0.2),
    ],
    ids=["exponential", "Pareto"],
)
def test_a_synchronous_round_takes_as_long_as_its_longest(law, theory, within):
    """Of 8, on every path; 600 of them have the mean of the largest of 8."""
    steps = 600
    books = simulate(rounds(law, 8, steps), 1, engine="simpy").books
    longest = books.rollouts.tool_s[: 8 * steps].reshape(steps, 8).max(axis=1)
    assert books.steps.waited_s == pytest.approx(longest)
    found = replicated(longest, alpha=0.01)
    assert found.low < theory < found.high
    assert (found.high - found.low) / 2 < within * theory
    assert books.steps.published_s[-1] / steps == pytest.approx(synchronous_step_s(longest.mean(), 3.0, 1.0))


@pytest.mark.parametrize("retries", [0, 2, 30])
def test_a_timeout_with_retries(retries):
    """n = 8,000 independent calls: time until the answer or until they are given up, attempts, and share given up."""
    law, tau, n = LogNormal(2.0, 1.0), 3.0, 8000
    pool = ToolPool(
        "tool", ("tool",), law, timeout_s=tau, retries=retries, failure=0.2, backoff_s=0.5, backoff_factor=1.3
    )
    cluster = Cluster(
        workload=calling(least_valid=0.0, prompts=n),
        tools=(pool,),
        admission=Arrivals(Constant(1.0)),
        order=greedy(),
        learner=Learner(batch=1),
        steps=n,
        horizon_s=n + 10000.0,
    )
    books = simulate(cluster, 2, engine="simpy").books
    r, pools = books.rollouts, books.pools
    theory = Retries(mean_min_s(law, tau), 1 - survival(law, tau), 0.2, 0.5, 1.3, retries)
    found = replicated(r.end_s - r.start_s, alpha=0.01)
    assert found.low < theory.total_s() < found.high
    assert (found.high - found.low) / 2 < 0.05 * theory.total_s()
    assert len(r) == n
    assert pools.attempts[0] / n == pytest.approx(theory.attempts(), rel=0.03)
    assert np.mean(~r.valid) == pytest.approx(theory.given_up(), abs=3 * np.sqrt(0.25 / n))
    assert pools.answered[0] == np.sum(r.valid)
