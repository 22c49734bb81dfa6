import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.theory.networks import (
    Station,
    agent_loop,
    closed_network,
    delay_rates,
    engine_rates,
    loop_pmf,
    pool_rates,
)
from sim.cluster.theory.queues import turn_rate_bound

TIMES = st.floats(0.05, 5)


def stationary(states, moves):
    """Stationary law of a chain: `moves(state)` yields (next state, rate)."""
    index = {s: i for i, s in enumerate(states)}
    generator = np.zeros((len(states), len(states)))
    for s in states:
        for target, rate in moves(s):
            generator[index[s], index[target]] += rate
    generator -= np.diag(generator.sum(axis=1))
    system = np.vstack([generator.T[:-1], np.ones(len(states))])
    return np.linalg.solve(system, np.r_[np.zeros(len(states) - 1), 1.0])


def spread(parts, total):
    """All ways to spread `total` over so many parts."""
    return [s for s in itertools.product(range(total + 1), repeat=parts) if sum(s) == total]


def moved(state, out, into):
    after = list(state)
    after[out] -= 1
    after[into] += 1
    return tuple(after)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_one_loop_is_never_in_the_way():
    """Turn time E[L] (a + b) + Z = 10 (.1 + .05) + 3 = 4.5."""
    found = agent_loop(1, 10.0, 0.1, 0.05, 3.0)
    assert found.turns_per_s == pytest.approx(1 / 4.5)
    assert found.at_engine == pytest.approx(1 / 3)
    assert found.at_tools == pytest.approx(2 / 3)
    assert agent_loop(1, 10.0, 0.1, 0.05, 3.0, engines=4).turn_s == pytest.approx(4.5)


def test_two_loops_by_hand():
    """E[L] = a = b = 1, Z = 2: engine 1, 2, 3; tools 1, 2, 2; G(2) = 2 + 4 + 3 = 9, G(1) = 2 + 2 = 4."""
    assert loop_pmf(2, 1.0, 1.0, 1.0, 2.0) == pytest.approx([2 / 9, 4 / 9, 3 / 9])
    found = agent_loop(2, 1.0, 1.0, 1.0, 2.0)
    assert found.turns_per_s == pytest.approx(4 / 9)
    assert found.at_engine == pytest.approx(10 / 9)
    assert found.at_tools == pytest.approx(8 / 9)
    assert found.turn_s == pytest.approx(4.5)


def test_one_repairman_by_hand():
    """Two machines up for 4 on average, repaired one by one in 1: 1, 1, 1 against 1, 4, 8: G(2) = 13, G(1) = 5."""
    flow = closed_network([Station(pool_rates(2, 1.0, 1)), Station(delay_rates(2, 4.0))], 2)
    assert flow.loops_per_s == pytest.approx(5 / 13)
    assert flow.mean_number == pytest.approx([6 / 13, 20 / 13])
    assert flow.visit_s == pytest.approx([6 / 5, 4])


def test_rates_by_hand():
    assert engine_rates(3, 10.0, 0.1, 0.05) == pytest.approx([1 / 1.5, 2 / 2, 3 / 2.5])
    assert delay_rates(2, 4.0) == pytest.approx([0.25, 0.5])
    assert pool_rates(4, 2.0, 2) == pytest.approx([0.5, 1, 1, 1])


def test_without_tools_all_are_at_the_engine():
    found = agent_loop(5, 10.0, 0.1, 0.05, 0.0)
    assert found.at_engine == pytest.approx(5)
    assert found.turns_per_s == pytest.approx(5 / (10 * 0.35))
    alone = closed_network([Station(engine_rates(5, 10.0, 0.1, 0.05))], 5)
    assert alone.loops_per_s == pytest.approx(found.turns_per_s)


# --- against mean value analysis and chains ---------------------------------------------------------------------------


def mean_values(demands, think, slots):
    """Exact mean value analysis of load-independent stations: rate and mean numbers (Reiser and Lavenberg 1980)."""
    numbers = np.zeros(len(demands))
    for w in range(1, slots + 1):
        times = np.array(demands) * (1 + numbers)
        rate = w / (think + times.sum())
        numbers = rate * times
    return rate, numbers


@given(st.lists(TIMES, min_size=1, max_size=5), st.floats(0, 10), st.integers(1, 60))
def test_against_mean_value_analysis(demands, think, slots):
    stations = [Station(pool_rates(slots, s, 1)) for s in demands] + [Station(delay_rates(slots, think))]
    flow = closed_network(stations, slots)
    rate, numbers = mean_values(demands, think, slots)
    assert flow.loops_per_s == pytest.approx(rate, rel=1e-9)
    assert flow.mean_number[:-1] == pytest.approx(numbers, rel=1e-8)


@given(st.integers(1, 5), TIMES, TIMES, TIMES, st.floats(0.1, 0.9))
def test_three_stations_against_their_chain(slots, tokens, b, pool_s, share):
    """Engine, then with chance `share` a pool of two, else a delay of 2; the chain knows nothing of product forms."""
    a, think, servers = 0.3, 2.0, 2

    def moves(s):
        n, m, k = s
        if n:
            rate = n / (tokens * (a + b * n))
            yield moved(s, 0, 1), rate * share
            yield moved(s, 0, 2), rate * (1 - share)
        if m:
            yield moved(s, 1, 0), min(m, servers) / pool_s
        if k:
            yield moved(s, 2, 0), k / think

    states = spread(3, slots)
    numbers = stationary(states, moves) @ np.array(states)
    engine = Station(engine_rates(slots, tokens, a, b))
    pool, delay = Station(pool_rates(slots, pool_s, servers), share), Station(delay_rates(slots, think), 1 - share)
    flow = closed_network([engine, pool, delay], slots)
    assert flow.mean_number == pytest.approx(numbers, rel=1e-8)
    assert flow.loops_per_s == pytest.approx(numbers[2] / think / (1 - share), rel=1e-8)  # Little, at the delay


@pytest.mark.parametrize("again", [0.0, 0.7])
def test_engines_kept_for_a_trajectory_or_drawn_each_turn_are_the_same(again):
    """State: at engine 1, at 2, at tools and bound for 1, for 2. With chance `again` the engine is kept, else drawn."""
    slots, tokens, a, b, think = 4, 3.0, 0.2, 0.5, 1.5

    def moves(s):
        for e in (0, 1):
            if s[e]:
                yield moved(s, e, 2 + e), s[e] / (tokens * (a + b * s[e]))
            if s[2 + e]:
                out = s[2 + e] / think
                yield moved(s, 2 + e, e), out * (again + (1 - again) / 2)
                yield moved(s, 2 + e, 1 - e), out * (1 - again) / 2

    states = spread(4, slots)
    numbers = stationary(states, moves) @ np.array(states)
    found = agent_loop(slots, tokens, a, b, think, engines=2)
    assert numbers[:2] == pytest.approx([found.at_engine] * 2)
    assert numbers[2:].sum() == pytest.approx(found.at_tools)
    assert found.turns_per_s == pytest.approx(found.at_tools / think)


def test_lengths_enter_by_their_mean_alone():
    """Lengths of two exponential parts, 1 and 3 on average, against exponential ones of mean 4."""
    slots, parts, a, b, think = 5, (1.0, 3.0), 0.2, 0.5, 1.5

    def moves(s):
        each = 1 / (a + b * (s[0] + s[1])) if s[0] + s[1] else 0.0
        for out, into, rate in ((0, 1, each / parts[0]), (1, 2, each / parts[1]), (2, 0, 1 / think)):
            if s[out]:
                yield moved(s, out, into), s[out] * rate

    states = spread(3, slots)
    p = stationary(states, moves)
    law = np.bincount([s[0] + s[1] for s in states], weights=p)
    assert law == pytest.approx(loop_pmf(slots, 4.0, a, b, think))


# --- properties -------------------------------------------------------------------------------------------------------


@given(st.integers(1, 80), st.integers(1, 7), TIMES, st.floats(0, 1), st.floats(0.01, 1), st.floats(0, 30), TIMES)
def test_conservation_little_and_bounds(slots, engines, tokens, a, b, think, pool_s):
    pool = Station(pool_rates(slots + 1, pool_s, 3), 0.5)
    found, more = (agent_loop(w, tokens, a, b, think, engines=engines, tools=[pool]) for w in (slots, slots + 1))
    assert found.turns_per_s * found.turn_s == pytest.approx(slots)
    assert found.at_engine > 0
    assert found.at_tools == pytest.approx(slots - engines * found.at_engine)
    for demand in (tokens * b / engines, 0.5 * pool_s / 3):
        most = turn_rate_bound(slots, tokens * (a + b) + 0.5 * pool_s, think, demand)
        assert found.turns_per_s <= most * (1 + 1e-9)
    assert found.turns_per_s <= more.turns_per_s * (1 + 1e-9)


@given(st.integers(1, 30), st.integers(1, 6), TIMES)
def test_copies_are_stations(slots, copies, think):
    rates = engine_rates(slots, 2.0, 0.3, 0.4)
    tools = Station(delay_rates(slots, think))
    short = closed_network([Station(rates, 1 / copies, copies), tools], slots)
    long = closed_network([*[Station(rates, 1 / copies)] * copies, tools], slots)
    assert short.loops_per_s == pytest.approx(long.loops_per_s, rel=1e-9)
    assert short.mean_number[0] == pytest.approx(long.mean_number[0], rel=1e-9)
    assert short.visit_s == pytest.approx([long.visit_s[0], think])
    assert copies * short.mean_number[0] + short.mean_number[1] == pytest.approx(slots)


@given(st.integers(1, 40), TIMES)
def test_a_pool_with_a_server_for_each_is_a_delay(slots, think):
    pooled = agent_loop(slots, 3.0, 0.2, 0.1, 0.0, tools=[Station(pool_rates(slots, think, slots))])
    assert pooled.turns_per_s == pytest.approx(agent_loop(slots, 3.0, 0.2, 0.1, think).turns_per_s)


@pytest.mark.parametrize("think", [30.0, 3000.0, 100_000.0])
def test_ten_thousand_loops_keep_their_digits(think):
    """The rate from the law, from the convolution, and from Little's law at the tools agree."""
    args = (10_000, 300.0, 0.01, 0.0002, think)
    p = loop_pmf(*args)
    found = agent_loop(*args)
    assert p.sum() == pytest.approx(1, rel=1e-9)
    assert found.turns_per_s == pytest.approx(p[1:] @ engine_rates(*args[:4]), rel=1e-9)
    assert found.turns_per_s == pytest.approx(found.at_tools / think, rel=1e-8)
    assert 0.005 < found.turns_per_s * 300 * 0.0002 < 1  # not idle, and below the engine's limit


def test_many_engines_approach_a_fixed_point():
    """With 512 slots on 32 engines each is nearly an open engine fed with X / E turns per s: within 1 %."""
    found = agent_loop(512, 200.0, 0.01, 0.0005, 20.0, engines=32)
    per_engine = found.turns_per_s / 32
    open_sojourn = 200 * 0.0105 / (1 - per_engine * 200 * 0.0005)
    assert found.turn_s == pytest.approx(20 + open_sojourn, rel=0.01)
    assert found.turn_s > 20 + 200 * 0.0105


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_stations_that_do_not_fit():
    with pytest.raises(ValueError, match=r"stations \[1\] of 2 have rates for fewer than slots = 3"):
        closed_network([Station(np.ones(3)), Station(np.ones(2))], 3)
    with pytest.raises(ValueError, match=r"rates\[1\] = 0.0 must be above 0"):
        Station(np.array([1.0, 0.0]))
    with pytest.raises(ValueError, match="visits = 0"):
        Station(np.ones(2), visits=0)
    with pytest.raises(ValueError, match=r"no station of 1 can hold slots = 2"):
        closed_network([Station(delay_rates(2, 0.0))], 2)
    with pytest.raises(ValueError, match="engines = 0"):
        agent_loop(2, 1.0, 1.0, 1.0, 1.0, engines=0)
