"""What holds of every run: luck that belongs to the rollout, laws of conservation, repetition, more slots."""

from collections import Counter

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sim.cluster.conservation import violations
from sim.cluster.events import PAIRS, Kind
from sim.cluster.run import simulate
from sim.cluster.scheduling import Capacity, MaxStaleness, greedy
from sim.cluster.spec import Cluster, Engines, Failures, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import CappedPareto, Exponential
from sim.records.config import replace
from tests.sim.cluster import configs

SEEDS = st.integers(0, 50)


def clusters():
    """Small clusters of every kind, stopped after 300 s: a head may starve behind a pool that serves the last first."""
    return configs.clusters().map(lambda cluster: replace(cluster, {"horizon_s": cluster.horizon_s or 300.0}))


def recorded(cluster, seed=0):
    return simulate(cluster, seed, engine="simpy", record=True)


# --- luck -------------------------------------------------------------------------------------------------------------


def by_rollout(run):
    """What a rollout owns, by (prompt, play, member): its kind, states and actions, whether it ended, tokens and reward."""
    r, g = run.books.rollouts, run.books.groups
    return {
        (g.prompt[group], g.play[group], r.member[i]): (
            r.kind[i],
            r.action[i][r.action[i] >= 0].tolist(),
            r.node[i][r.node[i] >= 0].tolist(),
            not r.aborted[i] and bool(r.valid[i]),
            r.tokens[i],
            r.reward[i],
        )
        for i, group in enumerate(r.group)
    }


OTHERWISE = {
    "engines": Engines(count=3, base_s=0.03, failures=Failures(Exponential(20.0), Exponential(2.0))),
    "admission": Capacity(2),
    "slots": 40,
    "order": greedy(),
    "drop": MaxStaleness(1, "newest", then="requeue"),
    "learner": Learner(batch=8, base_s=3.0),
    "sync": Sync("in_place", 1.0),
    "horizon_s": 300.0,
}


@given(clusters(), SEEDS)
def test_what_a_rollout_does_does_not_depend_on_when_or_where(cluster, seed):
    """On other engines, at other times, under other rules: the policy is fixed, so is what each rollout does."""
    one, other = (by_rollout(simulate(c, seed, engine="simpy")) for c in (cluster, replace(cluster, OTHERWISE)))
    for key in one.keys() & other.keys():
        (kind, actions, nodes, whole, tokens, reward), (*same, whole2, tokens2, reward2) = one[key], other[key]
        some = min(len(actions), len(same[1]))
        assert (kind, actions[:some], nodes[:some]) == (same[0], same[1][:some], same[2][:some])
        if whole and whole2:
            assert len(actions) == len(same[1])
            assert reward == reward2
            assert abs(tokens - tokens2) <= 1e-9 * (1 + tokens)  # a sum over chunks


def test_these_rollouts_are_not_all_alike():
    work = Workload(
        task=Chain(turns=3, tools=("a", "b")), group=2, tokens=(("a", Exponential(20.0)), ("b", Exponential(9.0)))
    )
    one, other = (
        by_rollout(simulate(Cluster(workload=work, learner=Learner(batch=64), steps=2, **c), 0, engine="simpy"))
        for c in ({}, {"slots": 12, "engines": Engines(count=3), "admission": Capacity(2), "order": greedy()})
    )
    assert len(one.keys() & other.keys()) >= 128
    assert len({(*actions, tokens) for _, actions, _, _, tokens, _ in one.values()}) > 120
    assert {tuple(actions[:2]) for _, actions, *_ in one.values()} >= {(0, 0), (0, 1), (1, 0), (1, 1)}


# --- laws of conservation ---------------------------------------------------------------------------------------------


def conserved(run):
    servers = {i: pool.servers for i, pool in enumerate(run.cluster.tools)}
    return violations(run.log, servers=servers, max_sequences=run.cluster.engines.max_sequences)


@given(clusters(), SEEDS)
def test_no_law_is_broken(cluster, seed):
    assert conserved(recorded(cluster, seed)) == []


def failing(cluster):
    """The same on engines that fail."""
    return replace(cluster, {"engines.failures": Failures(Exponential(20.0), Exponential(2.0))})


@given(clusters().map(failing), SEEDS)
def test_every_start_has_one_end(cluster, seed):
    """Under failures, drops, late groups, and when the run stops in the middle."""
    run = recorded(cluster, seed)
    assert conserved(run) == []
    log = run.log
    for opens in (Kind.TRAJ_START, Kind.GEN_START, Kind.TOOL_START):
        started = Counter(log.traj[log.kind == opens].tolist())
        assert started == Counter(log.traj[log.of_kind(*PAIRS[opens])].tolist())
        assert opens != Kind.TRAJ_START or set(started.values()) == {1}
    assert log.t_s[-1] <= cluster.horizon_s
    assert (log.kind == Kind.STOP).sum() == 1


def test_the_clusters_drawn_do_something():
    """The properties above would hold of runs in which nothing happens."""
    seen = set()

    @settings(max_examples=150)
    @given(st.one_of(clusters(), clusters().map(failing)))
    def look(cluster):
        seen.update(recorded(cluster).log.kind.tolist())

    look()
    rare = {Kind.GEN_PREEMPT, Kind.GROUP_HOLD, Kind.GROUP_RESUME}
    assert seen >= set(Kind) - rare


# --- the run itself ---------------------------------------------------------------------------------------------------


@given(clusters(), SEEDS)
def test_a_run_repeats_and_recording_changes_nothing(cluster, seed):
    one, again, unseen = recorded(cluster, seed), recorded(cluster, seed), simulate(cluster, seed, engine="simpy")
    assert one.log == again.log
    assert one.books == again.books == unseen.books
    assert unseen.log is None


def on_slots(slots, seed, rollouts=40, **changes):
    """Rollouts that do not slow each other down, started in one order as slots become free."""
    law = Exponential(30.0)
    cluster = Cluster(
        workload=Workload(task=Chain(turns=2), group=1, tokens=(("tool", law), ("answer", law)), prompts=rollouts),
        tools=(ToolPool("tool", ("tool",), CappedPareto(0.5, 1.2, 60.0)),),
        admission=Capacity(10**6),
        order=greedy(),
        slots=slots,
        learner=Learner(batch=1),
        sync=Sync("in_place"),
        steps=rollouts,
    )
    return simulate(replace(cluster, changes), seed, engine="simpy").books


@given(slots=st.integers(1, 12), seed=st.integers(0, 1000))
@example(slots=1, seed=0)
def test_one_slot_more_starts_and_ends_no_rollout_later(slots, seed):
    """Durations are fixed and starts follow one list, so that every start can only move forward."""
    fewer, more = on_slots(slots, seed), on_slots(slots + 1, seed)
    slack = 1e-9 * fewer.end_s
    assert (more.rollouts.start_s <= fewer.rollouts.start_s + slack).all()
    assert (np.sort(more.rollouts.end_s) <= np.sort(fewer.rollouts.end_s) + slack).all()
    assert more.end_s <= fewer.end_s + slack
    if slots == 1:
        assert more.end_s < 0.8 * fewer.end_s


@given(clusters(), SEEDS)
def test_books_agree_with_the_log(cluster, seed):
    """Tokens and attempts counted twice."""
    run = recorded(cluster, seed)
    log, r = run.log, run.books.rollouts
    kept = log.of_kind(Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT)
    assume(len(kept) > 0)
    tokens = np.bincount(log.traj[kept], log.value[kept], len(r))
    assert np.allclose(tokens, r.tokens)
    assert np.bincount(log.traj[log.kind == Kind.GEN_END], minlength=len(r)).tolist() == r.turns.tolist()
    starts = log.entity[log.kind == Kind.TOOL_START]
    assert np.bincount(starts, minlength=len(cluster.tools)).tolist() == run.books.pools.attempts.tolist()
