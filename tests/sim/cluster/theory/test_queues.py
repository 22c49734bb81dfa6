import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.statistics.intervals import replicated
from sim.cluster.theory.queues import OpenEngine, Servers, erlang_c, mg1_wait_s, ps_sojourn_s, turn_rate_bound

LOADS = st.floats(0.02, 0.95)


def birth_death(births, deaths):
    """Stationary law of a birth-death chain, [N + 1], one balance equation after another: p(n) birth = p(n + 1) death."""
    logs = np.r_[0.0, np.cumsum(np.log(births) - np.log(deaths))]
    p = np.exp(logs - logs.max())
    return p / p.sum()


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_one_exponential_server_by_hand():
    """rho = 3/4: Lq = rho^2 / (1 - rho) = 9/4, W = 1 / (mu - lambda) = 4."""
    found = Servers(0.75, 1.0)
    assert found.waits() == pytest.approx(0.75)
    assert found.queue() == pytest.approx(2.25)
    assert found.wait_s() == pytest.approx(3)
    assert found.sojourn_s() == pytest.approx(4)


def test_erlang_c_by_hand():
    """A = 2, c = 3: 4 / (1 + 2 + 2 + 4) = 4/9. A = 4, c = 5: (128/3) / (1 + 4 + 8 + 32/3 + 32/3 + 128/3)."""
    assert erlang_c(2, 3) == pytest.approx(4 / 9)
    assert erlang_c(4, 5) == pytest.approx((128 / 3) / 77)
    assert erlang_c(4, 5) == pytest.approx(0.5541, abs=5e-5)
    assert Servers(2.0, 1.0, 3).queue() == pytest.approx(8 / 9)  # C rho / (1 - rho)


def test_pollaczek_khinchine_by_hand():
    """S is 1 or 3 with equal chance, so mean 2, variance 1; lambda = 1/4: (1/4) 5 / (2 (1/2)) = 5/4."""
    assert mg1_wait_s(0.25, 2.0, 1.0) == pytest.approx(1.25)
    assert mg1_wait_s(0.75, 1.0, 1.0) == pytest.approx(Servers(0.75, 1.0).wait_s())
    assert mg1_wait_s(0.25, 2.0, np.inf) == np.inf


def test_an_engine_by_hand():
    """a = b: r = 1, p_n = (n + 1) q^n (1 - q)^2 with q = 1/2."""
    engine = OpenEngine(0.5, 10.0, 0.1, 0.1)
    assert engine.load == pytest.approx(0.5)
    assert engine.pmf(3) == pytest.approx([1 / 4, 1 / 4, 3 / 16, 1 / 8])
    assert engine.mean_number() == pytest.approx(2)
    assert engine.sojourn_s() == pytest.approx(4)
    assert engine.sojourn_s(30.0) == pytest.approx(12)


def test_the_two_limits_of_an_engine():
    """b = 0: nobody slows anybody down (Poisson); a = 0: one server shared (geometric)."""
    free = OpenEngine(0.3, 10.0, 0.5, 0.0)
    assert free.pmf(2) == pytest.approx(np.exp(-1.5) * np.array([1, 1.5, 1.125]))
    assert free.sojourn_s() == pytest.approx(5)
    shared = OpenEngine(0.3, 10.0, 0.0, 0.25)
    assert shared.pmf(3) == pytest.approx(0.25 * 0.75 ** np.arange(4))
    assert shared.sojourn_s() == pytest.approx(ps_sojourn_s(0.3, 2.5)) == pytest.approx(10)


def test_bounds_by_hand():
    assert turn_rate_bound(10, 1.0, 4.0, 0.25) == pytest.approx(2)  # 10 / 5 < 4
    assert turn_rate_bound(100, 1.0, 4.0, 0.25) == pytest.approx(4)
    assert turn_rate_bound(100, 1.0, 4.0, 0.0) == pytest.approx(20)


# --- against balance equations and a simulation -----------------------------------------------------------------------


@given(LOADS, st.integers(1, 12), st.floats(0.1, 10))
def test_servers_against_balance_equations(load, servers, service_s):
    rate, N = load * servers / service_s, 2000
    n = np.arange(N + 1)
    p = birth_death(np.full(N, rate), np.minimum(n[1:], servers) / service_s)
    found = Servers(rate, service_s, servers)
    assert found.waits() == pytest.approx(p[servers:].sum(), rel=1e-8)
    assert found.queue() == pytest.approx(np.maximum(n - servers, 0) @ p, rel=1e-8)
    assert found.queue() == pytest.approx(rate * found.wait_s())  # Little
    assert found.sojourn_s() * rate == pytest.approx(n @ p, rel=1e-8)


@given(LOADS, st.floats(1, 500), st.floats(0, 1), st.floats(0.05, 1))
def test_an_engine_against_balance_equations(load, tokens, a, b):
    rate, N = load / (tokens * b), 4000
    n = np.arange(1, N + 1)
    p = birth_death(np.full(N, rate), n / (tokens * (a + b * n)))
    engine = OpenEngine(rate, tokens, a, b)
    assert engine.pmf(N) == pytest.approx(p, abs=1e-9)
    assert engine.pmf(N).sum() == pytest.approx(1, abs=1e-9)
    assert engine.mean_number() == pytest.approx(n @ p[1:], rel=1e-6)


def shared_engine(rng, rate, lengths, a, b):
    """Mean slow-down per token, T / x, of arrivals 500 on, in an engine that is simulated by the work each has got."""
    arrivals = np.cumsum(rng.exponential(1 / rate, len(lengths)))
    active, work, now, slow, i = [], 0.0, 0.0, [], 0
    while i < len(lengths):
        n = len(active)
        leaves = now + (active[0][0] - work) * (a + b * n) if n else np.inf
        then = min(leaves, arrivals[i])
        work += (then - now) / (a + b * n) if n else 0.0
        now = then
        if leaves <= arrivals[i]:
            _, born = heapq.heappop(active)
            if born >= 500:
                slow.append((now - arrivals[born]) / lengths[born])
        else:
            heapq.heappush(active, (work + lengths[i], i))
            i += 1
    return np.mean(slow)


@pytest.mark.parametrize("law", ["constant", "two sizes"])
def test_an_engine_slows_all_sizes_down_by_the_same_factor(law):
    """20 runs of 3000 arrivals at q = .5; T / x has the mean (a + b) / (1 - q) = .6, which no other size weighting gives."""
    values = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        lengths = np.full(3000, 10.0) if law == "constant" else rng.choice([2.0, 50.0], 3000, p=[5 / 6, 1 / 6])
        values.append(shared_engine(rng, 0.25, lengths, 0.1, 0.2))
    found = replicated(values, alpha=0.01)
    expected = OpenEngine(0.25, 10.0, 0.1, 0.2).sojourn_s(1.0)
    assert expected == pytest.approx(0.6)
    assert found.low < expected < found.high
    assert found.high - found.low < 0.06


def test_pollaczek_khinchine_against_lindley():
    """60 runs of 20,000 arrivals, two-point service; the wait is the height of a random walk above its least value."""
    values = []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        walk = np.cumsum(rng.choice([0.5, 4.0], 20_000, p=[6 / 7, 1 / 7]) - rng.exponential(2.0, 20_000))
        values.append((walk - np.minimum.accumulate(np.minimum(walk, 0)))[1000:].mean())
    found = replicated(values, alpha=0.01)
    expected = mg1_wait_s(0.5, 1.0, 1.5)
    assert expected == pytest.approx(1.25)
    assert found.low < expected < found.high
    assert found.high - found.low < 0.1


# --- properties -------------------------------------------------------------------------------------------------------


@given(LOADS, st.integers(1, 40))
def test_more_load_waits_more_and_one_line_beats_many(load, servers):
    low, high = (Servers(x * servers, 1.0, servers) for x in (load, load + 0.04))
    assert 0 < low.waits() < high.waits() < 1
    assert low.wait_s() < high.wait_s()
    assert low.wait_s() <= Servers(load, 1.0).wait_s() * (1 + 1e-12)  # the same load on a server of one's own


@given(LOADS, st.floats(0, 2), st.floats(0.05, 1))
def test_more_load_slows_an_engine(load, a, b):
    low, high = (OpenEngine(x / (10 * b), 10.0, a, b) for x in (load, load + 0.04))
    assert 10 * (a + b) < low.sojourn_s() < high.sojourn_s()
    assert low.sojourn_s(2.0) == pytest.approx(low.sojourn_s() / 5)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_unstable_loads_are_named():
    with pytest.raises(ValueError, match=r"load = arrivals_per_s service_s / servers = 1 must be below 1"):
        Servers(3.0, 1.0, 3)
    with pytest.raises(ValueError, match=r"offered / servers = 1\.5 must"):
        erlang_c(3.0, 2)
    with pytest.raises(ValueError, match=r"load = arrivals_per_s mean_tokens step_per_sequence_s = 1\.25 must"):
        OpenEngine(0.5, 10.0, 0.1, 0.25)
    with pytest.raises(ValueError, match="= 1 must be below 1"):
        mg1_wait_s(1.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="= 2 must be below 1"):
        ps_sojourn_s(1.0, 2.0)
    with pytest.raises(ValueError, match="nan"):
        Servers(0.5, float("nan"))


def test_no_arrivals():
    assert erlang_c(0.0, 3) == 0
    assert OpenEngine(0.0, 10.0, 0.1, 0.1).pmf(2).tolist() == [1, 0, 0]
