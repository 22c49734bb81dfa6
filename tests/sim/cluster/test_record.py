import numpy as np
import pytest

from sim.cluster.measures import trained
from sim.cluster.presets import april, areal, pipeline_rl
from sim.cluster.record import to_rollouts
from sim.cluster.run import simulate
from sim.cluster.scheduling import FixedWidth, greedy
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Constant
from sim.mdp.worlds import SEED_A_HABIT, seed_a
from sim.records.config import replace
from sim.records.staleness import staleness
from sim.records.tables import Outcome, Reason

SMALL = {"steps": 5, "learner.batch": 16, "workload.group": 4, "engines.count": 2}


def recorded(cluster, **changes):
    return simulate(replace(cluster, SMALL | changes), 3, record=True)


def test_by_hand():
    """One rollout of ten tokens at 1 s each; another of one, trained on for 4 s: its weights come after five tokens."""
    tokens = (("answer", Constant(10.0)),)
    cluster = Cluster(
        workload=Workload(Chain(1, solved=1.0), group=1, tokens=tokens),
        engines=Engines(base_s=1.0, max_sequences=1),
        admission=FixedWidth(2),
        order=greedy(),
        learner=Learner(batch=1, base_s=5.0),
        sync=Sync("in_place", 0.0),
        steps=2,
    )
    run = simulate(cluster, 0, record=True)
    (first,) = (to_rollouts(run, 0).trajectory(0),)
    assert [segment.version_newest for segment in first.segments] == [0]
    second = to_rollouts(run, 1).trajectory(0)
    assert [(s.version_oldest, s.reason, s.turns[0].index) for s in second.segments] == [
        (0, Reason.START, 0),
        (1, Reason.RESUME, 0),
    ]
    assert [s.turns[0].generated for s in second.segments] == [5, 5]
    assert [(s.start, s.end) for s in second.segments] == [(10.0, 15.0), (15.0, 20.0)]
    assert second.outcome == Outcome.SOLVED
    found = staleness(to_rollouts(run, 1))
    assert (found.oldest, found.newest, found.token_mean, found.coverage) == (1, 0, 0.5, 1)


@pytest.mark.parametrize("preset", [areal, pipeline_rl, april])
def test_it_agrees_with_the_books(preset):
    run = recorded(preset())
    mine, b = trained(run), run.books
    for step in (1, 4):
        found = to_rollouts(run, step)
        taken = np.flatnonzero(mine & (b.groups.take_version[b.rollouts.group] == step))
        assert len(found) == len(taken) == 16
        assert found.turns.generated.sum() == pytest.approx(b.rollouts.tokens[taken].sum(), abs=len(taken))
        assert staleness(found).oldest == (step - b.rollouts.oldest[taken]).max()
        assert staleness(found).newest == (step - b.rollouts.newest[taken]).min()
        assert sorted(found.trajectories.reward) == sorted(b.rollouts.reward[taken])


def test_an_interruption_divides_a_turn_and_tools_are_pauses():
    found = to_rollouts(recorded(pipeline_rl()), 4)
    resumed = found.segments.reason == Reason.RESUME
    assert resumed.any()
    assert (found.segments.parent[resumed] >= 0).all()
    assert len(found.pauses) > 0
    assert (found.pauses.end > found.pauses.start).all()


def test_outcomes_are_those_of_the_task():
    """In seed A's world a right answer ends the episode with 1, and what is cut at the turn limit has 0."""
    work = Workload(seed_a(), SEED_A_HABIT, group=4)
    tools = (ToolPool("search", ("search",), Constant(1.0)),)
    found = to_rollouts(recorded(areal(), workload=work, tools=tools, **{"learner.batch": 64}), 2)
    outcome, reward = found.trajectories.outcome, found.trajectories.reward
    assert set(outcome) == {Outcome.SOLVED, Outcome.TURN_LIMIT}
    assert np.array_equal(outcome == Outcome.SOLVED, reward == 1)


def test_failures_of_infrastructure_have_no_reward():
    pool = replace(areal(), {}).tools[0]
    tools = (replace(pool, {"failure": 0.05}),)
    found = to_rollouts(recorded(areal(), tools=tools, **{"workload.least_valid": 0.0}), 2)
    failed = found.trajectories.outcome == Outcome.INFRASTRUCTURE_FAILURE
    assert failed.any()
    assert np.array_equal(np.isnan(found.trajectories.reward), failed)


def test_what_cannot_be_recorded_is_said():
    with pytest.raises(ValueError, match=r"the run has no log.*record=True"):
        to_rollouts(simulate(replace(areal(), SMALL), 3), 0)
    with pytest.raises(ValueError, match="nothing was taken at step 9; the run began 5 steps, 0 to 4"):
        to_rollouts(recorded(areal()), 9)
