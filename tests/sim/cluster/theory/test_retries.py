import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.statistics.intervals import replicated
from sim.cluster.theory.retries import Retries

SHARES = st.floats(0.05, 1)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_without_limit_by_hand():
    """Two attempts of 3 s on average, and half a wait... of 1 s, then 1 s: sum r^j = 1."""
    assert Retries(3.0, 0.5).total_s() == pytest.approx(6)
    assert Retries(3.0, 0.5, backoff_s=1.0).total_s() == pytest.approx(7)
    assert Retries(3.0, 0.75, failure=1 / 3).total_s() == pytest.approx(6)  # errors count as misses
    assert Retries(3.0, 0.5).given_up() == 0


def test_two_retries_by_hand():
    """r = 1/2: attempts 1 + 1/2 + 1/4; waits 2 (1/2) + 6 (1/4)."""
    call = Retries(4.0, 0.5, backoff_s=2.0, factor=3.0, retries=2)
    assert call.attempts() == pytest.approx(1.75)
    assert call.total_s() == pytest.approx(7 + 2.5)
    assert call.given_up() == pytest.approx(1 / 8)


def test_a_tool_that_never_answers_in_time():
    call = Retries(5.0, 0.0, backoff_s=1.0, factor=2.0, retries=3)
    assert call.total_s() == pytest.approx(20 + 1 + 2 + 4)
    assert call.given_up() == 1


def test_a_tool_that_always_answers():
    call = Retries(5.0, 1.0, backoff_s=1.0, factor=9.0)
    assert (call.attempts(), call.total_s(), call.given_up()) == (1, 5, 0)


# --- against draws ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [2, None])
def test_against_draws(limit):
    """40 means of 2000 calls of a Pareto tool (tail 1.5, least 1 s, so infinite variance before the cut), tau = 4 s."""
    tau, failure, base, factor = 4.0, 0.1, 0.5, 1.5
    totals, lost = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        time, alive = np.zeros(2000), np.ones(2000, bool)
        for attempt in range(400 if limit is None else limit + 1):
            if attempt:
                time[alive] += base * factor ** (attempt - 1)
            x = rng.uniform(size=2000) ** (-1 / 1.5)
            time[alive] += np.minimum(x, tau)[alive]
            alive &= (x > tau) | (rng.uniform(size=2000) < failure)
            if not alive.any():
                break
        totals.append(time.mean())
        lost.append(alive.mean())
    in_time = 1 - tau**-1.5
    cut = 1 + (1 - tau**-0.5) / 0.5  # 1 + int_1^tau t^-1.5 dt
    call = Retries(cut, in_time, failure, base, factor, limit)
    found = replicated(totals, alpha=0.01)
    assert found.low < call.total_s() < found.high
    assert found.high - found.low < 0.06
    if limit is not None:
        given_up = replicated(lost, alpha=0.01)
        assert given_up.low < call.given_up() < given_up.high


# --- properties -------------------------------------------------------------------------------------------------------


@given(SHARES, st.floats(0, 0.9), st.floats(0, 5), st.floats(0, 3), st.integers(0, 30))
def test_more_retries_take_longer_and_give_up_less(in_time, failure, backoff, factor, retries):
    less, more = (Retries(2.0, in_time, failure, backoff, factor, r) for r in (retries, retries + 1))
    assert 2 <= less.total_s() <= more.total_s()
    assert 0 <= more.given_up() <= less.given_up() < 1
    extra = less.given_up() * (2.0 + backoff * factor**retries)  # who would have given up waits and tries once more
    assert more.total_s() - less.total_s() == pytest.approx(extra, rel=1e-6, abs=1e-9 * more.total_s())


@given(SHARES, st.floats(0, 0.5), st.floats(0.1, 5), st.floats(0, 1))
def test_many_retries_are_no_limit(in_time, failure, backoff, factor):
    limited, unlimited = (Retries(2.0, in_time, failure, backoff, factor, r) for r in (5000, None))
    assert limited.total_s() == pytest.approx(unlimited.total_s())
    assert unlimited.attempts() == pytest.approx(1 / unlimited.success)


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals():
    with pytest.raises(ValueError, match="no attempt succeeds; limit the retries"):
        Retries(1.0, 0.0)
    with pytest.raises(ValueError, match=r"\(1 - p\) factor = 1 must be below 1"):
        Retries(1.0, 0.5, backoff_s=1.0, factor=2.0).total_s()
    with pytest.raises(ValueError, match=r"in_time = 1.5 must lie from 0 to 1"):
        Retries(1.0, 1.5)
    with pytest.raises(ValueError, match="retries = -1"):
        Retries(1.0, 0.5, retries=-1)
