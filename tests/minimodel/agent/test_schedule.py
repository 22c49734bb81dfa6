import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimodel.agent.schedule import Completion, InFlight, Lag, OnCluster, Schedule
from sim.cluster.presets import areal
from sim.cluster.run import simulate
from sim.cluster.scheduling import Capacity
from sim.cluster.workload import Chain
from sim.records.config import replace
from sim.records.rng import uniforms

SHAPE = (2, 3, 4)


def one(schedule, update):
    """Versions of the turns of one rollout; all rollouts have the same."""
    found = schedule.versions(update, SHAPE)
    assert found.shape == SHAPE
    assert (found == found[0, 0]).all()
    return found[0, 0].tolist()


def test_versions_by_hand():
    assert one(Lag(), 5) == [5, 5, 5, 5]
    assert one(Lag(2), 5) == [3, 3, 3, 3]
    assert one(Lag(2), 1) == [0, 0, 0, 0]
    assert one(InFlight(3), 10) == [7, 8, 9, 10]
    assert one(InFlight(1), 10) == [9, 10, 10, 10]
    assert one(InFlight(6), 10) == [4, 5, 6, 7]
    assert one(InFlight(3), 2) == [0, 0, 1, 2]
    assert one(InFlight(0), 4) == [4, 4, 4, 4]
    assert one(Completion(0.2, lag=3), 4) == [1, 1, 1, 1]


@given(
    st.one_of(
        st.builds(Lag, st.integers(0, 8)),
        st.builds(InFlight, st.integers(0, 8)),
        st.builds(Completion, st.floats(0, 0.9), lag=st.integers(0, 8)),
    ),
    st.integers(0, 30),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9)),
)
def test_versions_are_never_newer_than_the_update_within_reach_and_never_fall(schedule, update, shape):
    assert isinstance(schedule, Schedule)
    found = schedule.versions(update, shape)
    assert found.shape == shape
    assert found.min() >= max(update - schedule.reach, 0)
    assert found.max() <= update
    assert (np.diff(found, axis=-1) >= 0).all()


@pytest.mark.parametrize("schedule", [Lag(), Lag(3), InFlight(2)])
def test_without_losses_all_arrive(schedule):
    taken = np.array([[1, 4], [2, 3]])
    assert schedule.arrives(taken, np.full((2, 2), 1 - 2**-24, np.float32)).all()
    assert schedule.baseline == "all"


def test_arrivals_by_hand():
    """drop 1/4: 1, 3/4, 9/16 for one, two and three turns."""
    taken = np.array([[1, 2, 2, 3, 3]])
    u = np.array([[0.999, 0.74, 0.76, 0.56, 0.57]], np.float32)
    assert Completion(0.25).arrives(taken, u).tolist() == [[True, True, False, True, False]]
    assert Completion(0.0).arrives(taken, u).all()


def test_arrivals_follow_the_law():
    """200,000 rollouts of each length; the share that arrives within four standard errors of (1 - d)^(n - 1)."""
    n, drop = 200_000, 0.15
    taken = np.repeat([1, 2, 4, 8], n).reshape(4, n)
    share = Completion(drop).arrives(taken, uniforms(0, "tests/arrival", 0, (4, n))).mean(1)
    law = (1 - drop) ** (np.array([1, 2, 4, 8]) - 1)
    assert share[0] == 1
    assert (np.abs(share - law)[1:] < 4 * np.sqrt(law * (1 - law) / n)[1:]).all()
    assert law[-1] == pytest.approx(0.3206, abs=1e-4)


def test_bounds_are_named():
    with pytest.raises(ValueError, match="steps = -1 must be at least 0"):
        Lag(-1)
    with pytest.raises(ValueError, match="steps = -2 must be at least 0"):
        InFlight(-2)
    with pytest.raises(ValueError, match=r"drop = 1.0 must lie in \[0, 1\)"):
        Completion(1.0)
    with pytest.raises(ValueError, match="over = 'some' must be 'arrived' or 'all'"):
        Completion(0.1, over="some")
    with pytest.raises(ValueError, match="lag = -1"):
        Completion(0.1, lag=-1)


# --- the schedule of a simulated cluster ------------------------------------------------------------------------------

CLUSTER = replace(
    areal(eta=2),
    {
        "workload.task": Chain(turns=3, tools=("search",)),
        "workload.group": 2,
        "learner.batch": 8,
        "engines.count": 2,
        "steps": 12,
    },
)


def test_a_clusters_schedule_is_the_books_of_its_run():
    """Of the four groups that the learner took at step 7, the versions are those under which each turn was chosen."""
    found = OnCluster(CLUSTER, seed=3).versions(7, (4, 2, 3))
    books = simulate(CLUSTER, 3, study="schedule", engine="simpy").books
    taken = np.flatnonzero(books.groups.take_version == 7)
    of_group = [books.rollouts.version[books.rollouts.group == group] for group in taken]
    assert np.array_equal(found, np.stack(of_group))
    assert (7 - found).mean() == pytest.approx(2, abs=0.5)
    assert found.min() >= 7 - OnCluster(CLUSTER, seed=3).reach


def test_a_capacity_of_nothing_ahead_is_synchronous():
    schedule = OnCluster(replace(CLUSTER, {"admission": Capacity(0)}))
    assert schedule.reach == 0
    assert (schedule.versions(5, (4, 2, 3)) == 5).all()


def test_a_clusters_versions_never_fall_along_turns_and_some_rollouts_mix_them():
    schedule = OnCluster(replace(CLUSTER, {"sync.mode": "in_place"}))
    all_of_them = np.stack([schedule.versions(step, (4, 2, 3)) for step in range(12)])
    assert (np.diff(all_of_them, axis=-1) >= 0).all()
    assert (np.diff(all_of_them, axis=-1) > 0).any()


@pytest.mark.parametrize(
    ("step", "shape", "names"),
    [
        (12, (4, 2, 3), "step 12 is beyond the 12 versions of the cluster; raise cluster.steps"),
        (0, (4, 2, 4), r"batches have \(4, 2, 3\) .* and the run's \(4, 2, 4\)"),
    ],
)
def test_a_cluster_that_does_not_fit_the_run_is_refused(step, shape, names):
    with pytest.raises(ValueError, match=names):
        OnCluster(CLUSTER).versions(step, shape)
