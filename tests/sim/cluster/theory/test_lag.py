import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.theory.lag import (
    capacity_mean,
    mean_staleness,
    pipeline_staleness,
    staleness_sums,
    unsaturated_mean,
    versions_spanned,
    windowed_capacity_lag,
    windowed_lag,
)


def capacity_run(eta, batch, steps, choose, *, source=None):
    """Start versions, take versions [N] under the capacity rule; `choose(waiting, k)` picks k of the indices waiting.

    Those left over have the last version as their take.
    """
    started, taken, waiting = [], {}, []
    for version in range(steps):
        allowed = (eta + version + 1) * batch
        while len(started) < (allowed if source is None else min(allowed, source)):
            waiting.append(len(started))
            started.append(version)
        for i in choose(list(waiting), batch):
            taken[i] = version
            waiting.remove(i)
    left = np.array([i not in taken for i in range(len(started))])
    return np.array(started), np.array([taken.get(i, steps) for i in range(len(started))]), left


def first(waiting, k):
    return waiting[:k]


def last(waiting, k):
    return waiting[-k:]


# --- the identity -----------------------------------------------------------------------------------------------------


def test_the_identity_by_hand():
    """Lives 0-2, 0-0, 1-3: in flight 1, 2, 1 when versions 1, 2, 3 are published."""
    assert staleness_sums(np.array([0, 0, 1]), np.array([2, 0, 3])) == (4, 4)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=60))
def test_the_identity_holds_on_every_path(lives):
    started, taken = np.array([s for s, _ in lives]), np.array([s + d for s, d in lives])
    one, other = staleness_sums(started, taken)
    published = sum(sum(s < v <= t for s, t in zip(started, taken, strict=True)) for v in range(1, 61))
    assert one == other == published == sum(d for _, d in lives)


@given(st.lists(st.integers(0, 9), min_size=2, max_size=20), st.data())
def test_the_right_side_does_not_know_who_is_taken(starts, data):
    """Takes dealt to other trajectories, wherever that is possible, leave both sums as they are."""
    started = np.sort(starts)
    taken = started + 10
    dealt = np.array(data.draw(st.permutations(taken.tolist())))
    assert staleness_sums(started, dealt) == staleness_sums(started, taken) == (10 * len(starts),) * 2


# --- the capacity rule ------------------------------------------------------------------------------------------------


def test_capacity_by_hand():
    """eta = 1, S = 3, B = 1: starts 0, 0, 1; takes 0, 1, 2: mean 2/3."""
    assert capacity_mean(1, 3) == pytest.approx(2 / 3)
    assert capacity_mean(0, 9) == 0
    assert [round(capacity_mean(4, S), 4) for S in (24, 60)] == [3.5833, 3.8333]
    assert capacity_mean(9, 3) == capacity_mean(2, 3) == pytest.approx(1)  # all start at version 0


def test_every_order_of_a_source_that_is_used_up_has_the_same_mean():
    """All 216 ways in which four steps of two may go through the eight trajectories of eta = 1."""
    S, B, eta = 4, 2, 1
    starts = np.maximum(np.arange(S * B) // B - eta, 0)
    means, longest = [], []

    def go(version, taken):
        """Let the step of this version take any B of those there; `taken` maps index to version."""
        if version == S:
            lags = np.array([taken[i] for i in range(S * B)]) - starts
            means.append(lags.mean())
            longest.append(lags.max())
            return
        there = [i for i in range(min((eta + version + 1) * B, S * B)) if i not in taken]
        for chosen in itertools.combinations(there, B):
            go(version + 1, taken | dict.fromkeys(chosen, version))

    go(0, {})
    assert len(means) == 6**3  # two of four at each of the first three steps; the last takes what is left
    assert set(means) == {capacity_mean(eta, S)} == {0.75}
    assert (min(longest), max(longest)) == (1, 3)  # the order changes the spread alone


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_order_with_a_source_that_is_used_up(eta, batch, steps, random):
    started, taken, left = capacity_run(eta, batch, steps, random.sample, source=steps * batch)
    assert not left.any()
    assert (taken - started).mean() == pytest.approx(capacity_mean(eta, steps), abs=1e-12)


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_order_with_an_endless_source(eta, batch, steps, random):
    """With the ages of those left the sum is S eta B in every order; without them the mean is at most the formula's."""
    started, taken, left = capacity_run(eta, batch, steps, random.sample)
    assert left.sum() == eta * batch
    assert staleness_sums(started, taken) == (steps * eta * batch,) * 2
    assert (taken - started)[~left].mean() <= capacity_mean(eta, steps) + 1e-12


@given(st.integers(1, 5), st.integers(1, 4), st.integers(2, 12))
def test_two_orders_of_an_endless_source(eta, batch, steps):
    """First in first out has the mean of the formula; last in first out takes what is fresh and leaves the rest for ever."""
    started, taken, left = capacity_run(eta, batch, steps, first)
    assert (taken - started)[~left].mean() == pytest.approx(capacity_mean(eta, steps)) != 0
    started, taken, left = capacity_run(eta, batch, steps, last)
    assert (taken - started)[~left].max() == 0
    assert set((taken - started)[left]) == {steps}


def test_it_is_what_is_left_that_decides():
    """eta = 2, S = 6: passing the oldest over until the end leaves the youngest: the same mean, another spread."""
    step = itertools.count()
    started, taken, left = capacity_run(2, 1, 6, lambda waiting, k: [waiting[1 if next(step) < 5 else 0]])
    lags = (taken - started)[~left]
    assert lags.mean() == pytest.approx(capacity_mean(2, 6)) == 1.5
    assert lags.max() == 5 > 2


# --- windows ----------------------------------------------------------------------------------------------------------


def takes_with_window(in_flight, window, rounds, choose):
    """Lag in takes of each trajectory taken, where each take starts a new one."""
    started_at = dict.fromkeys(range(in_flight), 0)
    lags, head, gone = {}, 0, set()
    for take in range(rounds):
        inside = [i for i in range(head, head + window) if i in started_at and i not in gone]
        i = choose(inside)
        lags[i] = take - started_at[i]
        gone.add(i)
        while head in gone:
            head += 1
        started_at[in_flight + take] = take + 1
    return lags


@pytest.mark.parametrize(("in_flight", "window"), [(1, 1), (1, 5), (2, 4), (5, 1), (8, 3), (10, 10), (3, 9)])
def test_the_worst_order_of_a_window_attains_its_bound(in_flight, window):
    """Index N - 1 waits for the N - 1 before it and for the W - 1 after it: takes 0 .. N-2, N .. N+W-2, then N - 1."""
    victim = in_flight - 1
    lags = takes_with_window(
        in_flight, window, 4 * (in_flight + window), lambda inside: next((i for i in inside if i != victim), victim)
    )
    assert lags[victim] == windowed_lag(in_flight, window) == max(lags.values())
    if in_flight > 1:
        order = [i for i in lags if i <= victim + window - 1]
        assert order == [*range(victim), *range(in_flight, in_flight + window - 1), victim]
        assert lags[victim] == in_flight + window - 2


@given(st.integers(1, 12), st.integers(1, 12), st.randoms(use_true_random=False))
def test_no_order_of_a_window_exceeds_its_bound(in_flight, window, random):
    lags = takes_with_window(in_flight, window, 80, random.choice)
    assert max(lags.values()) <= windowed_lag(in_flight, window)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 12))
def test_the_worst_order_of_a_window_under_the_capacity_rule(eta, batch, window):
    """The last to start of a batch is passed over for as long as the window allows."""
    victim = 8 * batch - 1

    def choose(waiting, k):
        """One after another, as the window moves on with each."""
        chosen = []
        for _ in range(k):
            there = [i for i in waiting if i not in chosen]
            inside = [i for i in there if i < there[0] + window]
            chosen.append(next((i for i in inside if i != victim), there[0]))
        return chosen

    started, taken, left = capacity_run(eta, batch, 30, choose)
    assert (taken - started)[~left].max() == windowed_capacity_lag(eta, window, batch)


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 12), st.randoms(use_true_random=False))
def test_no_order_of_a_window_under_the_capacity_rule_exceeds(eta, batch, window, random):
    def choose(waiting, k):
        chosen = []
        for _ in range(k):
            there = [i for i in waiting if i not in chosen]
            chosen.append(random.choice([i for i in there if i < there[0] + window]))
        return chosen

    started, taken, left = capacity_run(eta, batch, 15, choose)
    assert (taken - started)[~left].max() <= windowed_capacity_lag(eta, window, batch)


def test_capacity_without_a_window_is_no_bound():
    """The oldest can always be passed over: here until the last of 50 steps, at eta = 1."""
    started, taken, _ = capacity_run(1, 2, 50, lambda waiting, k: [*waiting[1:], waiting[0]][:k], source=100)
    assert (taken - started)[0] == 49
    assert (taken - started).mean() == pytest.approx(capacity_mean(1, 50)) == pytest.approx(0.98)


# --- phases -----------------------------------------------------------------------------------------------------------


@given(st.floats(0, 40), st.floats(0.5, 5), st.floats(0, 1))
def test_the_unsaturated_mean_counts_publications(span, interval, busy):
    """Take at 0, publications at (busy - 1 - k) interval; 10,001 completions spread evenly over the cycle before it."""
    wait = (np.arange(10_001) + 0.5) / 10_001 * interval
    publications = (busy - 1 - np.arange(200)) * interval
    counts = len(publications) - np.searchsorted(np.sort(publications), -(span + wait))
    assert unsaturated_mean(span, interval, busy) == pytest.approx(counts.mean(), abs=2e-3)


def test_the_smaller_of_the_two_limits_rules():
    assert unsaturated_mean(30.0, 5.0, 0.8) == pytest.approx(6.8)
    assert [mean_staleness(eta, 30.0, 5.0, 0.8) for eta in (0, 4, 6, 7)] == pytest.approx([0, 4, 6, 6.8])


@given(st.floats(0, 50), st.floats(0.5, 5))
def test_versions_that_a_rollout_spans(duration, interval):
    """Publications at 0, tau, 2 tau, ... within a rollout that starts at each of 4001 phases."""
    start = (np.arange(4001) + 0.5) / 4001 * interval
    counts = np.floor((start + duration) / interval)
    found = versions_spanned(duration, interval)
    assert set(counts) <= {found.least, found.least + 1}
    assert found.mean() == pytest.approx(duration / interval)
    assert found.chance == pytest.approx((counts > found.least).mean(), abs=5e-4)
    assert found.variance() == pytest.approx(counts.var(), abs=1e-3)


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_pipeline_has_one_staleness(depth):
    """A queue of `depth` batches: a new one starts under each version, and the oldest is trained on once it is full."""
    queue, lags = [], []
    version = 0
    for start in range(40):
        queue.append(min(start, version))
        if len(queue) == depth:
            lags.append(version - queue.pop(0))
            version += 1
        if len(lags) == 0:
            version = 0  # the first batches all start under version 0
    assert set(lags[depth:]) == {pipeline_staleness(depth)} == {depth - 1}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_refusals():
    with pytest.raises(ValueError, match=r"trajectory 1 starts at version 3 and is taken at 2"):
        staleness_sums(np.array([0, 3]), np.array([1, 2]))
    with pytest.raises(ValueError, match="integers"):
        staleness_sums(np.array([0.0]), np.array([1.0]))
    with pytest.raises(ValueError, match="same N > 0"):
        staleness_sums(np.zeros(0, int), np.zeros(0, int))
    with pytest.raises(ValueError, match=r"utilisation = 1\.2"):
        unsaturated_mean(1.0, 1.0, 1.2)
    with pytest.raises(ValueError, match="steps = 0"):
        capacity_mean(1, 0)
    with pytest.raises(ValueError, match="depth = 0"):
        pipeline_staleness(0)
