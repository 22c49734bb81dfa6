"""The compiled engine against the model of record: the same events, in the same order, to the last bit."""

import numpy as np
import pytest
from hypothesis import given, note, settings

pytest.importorskip("numba")

from sim.cluster.compiled.driver import run_compiled
from sim.cluster.draws import Draws
from sim.cluster.events import Kind
from sim.cluster.model.simulation import Deadlock
from sim.cluster.plan import NEVER, plan
from sim.cluster.run import run_plan, simulate
from sim.cluster.scheduling import Aimd, Arrivals, Capacity, FixedWidth, MaxStaleness, Order, Rounds, greedy
from sim.cluster.spec import Cluster, Engines, Failures, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Capped, Constant, Exponential, LogNormal
from sim.mdp.worlds import SEED_A_HABIT, seed_a
from sim.records.config import replace
from tests.sim.cluster.configs import clusters


def outcome(cluster, engine, seed=0, **options):
    """The books and the log of a run, or why it deadlocked."""
    made = plan(cluster)
    try:
        run = run_plan(made, Draws(made, seed, "agree"), engine, record=True, **options)
    except Deadlock as deadlock:
        return str(deadlock)
    return run.books, run.log


def first_difference(ours, theirs):
    """Where two logs part, for a test that fails."""
    for i, (a, b) in enumerate(zip(ours, theirs, strict=False)):
        if a[:6] != b[:6] or not (a.value == b.value or a.value != a.value):
            return f"event {i}: {Kind(a.kind).name} {a} in the model, {Kind(b.kind).name} {b} compiled"
    return f"{len(ours)} events in the model, {len(theirs)} compiled"


def assert_equal(model, compiled):
    if isinstance(model, str) or isinstance(compiled, str):
        assert model == compiled
        return
    assert model[1] == compiled[1], first_difference(model[1], compiled[1])
    assert model[0] == compiled[0]


def agree(cluster, seed=0):
    """Assert that both engines do the same; return the log."""
    model = outcome(cluster, "simpy", seed)
    assert_equal(model, outcome(cluster, "compiled", seed))
    return model[1]


# --- any cluster --------------------------------------------------------------------------------------------------------


def check_any(cluster):
    note(repr(cluster))
    agree(cluster)


@given(cluster=clusters())
@settings(max_examples=50)
def test_engines_agree(cluster):
    check_any(cluster)


@pytest.mark.long
@given(cluster=clusters())
@settings(max_examples=500)
def test_engines_agree_on_many(cluster):
    check_any(cluster)


# --- each feature by name -----------------------------------------------------------------------------------------------


def base(changes=None):
    """Two engines, two pools with a queue, groups of two; some of everything, nothing special."""
    length, latency = Capped(LogNormal(20.0, 1.0), 100.0), Capped(LogNormal(2.0, 1.0), 10.0)
    return replace(
        Cluster(
            workload=Workload(
                task=Chain(turns=3, tools=("a", "b"), observed=5),
                group=2,
                tokens=(("a", length), ("b", length), ("answer", length)),
                prompt_tokens=30.0,
            ),
            engines=Engines(count=2, base_s=0.05, per_sequence_s=0.01),
            tools=(ToolPool("a", ("a",), latency, servers=2), ToolPool("b", ("b",), latency, servers=2)),
            admission=Capacity(1),
            slots=24,
            learner=Learner(batch=8, base_s=2.0, per_token_s=0.001, jitter=LogNormal(1.0, 0.2)),
            sync=Sync("interrupt", 0.5),
            steps=4,
        ),
        changes or {},
    )


def pool(**options):
    """One pool for both tools."""
    given = {"latency": Capped(LogNormal(2.0, 1.0), 10.0), "servers": 2} | options
    return {"tools": (ToolPool("both", ("a", "b"), **given),)}


ROUNDS = {"order": greedy(), "steps": 6}
FEATURES = {
    "capacity": ({}, (Kind.TOOL_ENQUEUE, Kind.GEN_PAUSE)),
    "eta 0": ({"admission": Capacity(0)}, (Kind.TRAIN_TAKE,)),
    "one worker": ({"slots": 2, "engines.count": 1, "engines.max_sequences": 1}, (Kind.TRAIN_TAKE,)),
    "window": ({"order": Order(3), "admission": Capacity(3)}, (Kind.TRAIN_TAKE,)),
    "as completed": ({"order": greedy(), "admission": Capacity(3)}, (Kind.TRAIN_TAKE,)),
    "fixed width, running": ({"admission": FixedWidth(10, "running")}, (Kind.TRAIN_TAKE,)),
    "fixed width, unconsumed": ({"admission": FixedWidth(10)}, (Kind.TRAIN_TAKE,)),
    "controller": (
        {"admission": Aimd(start=4, most=24, least=2, interval_s=1.0), "engines.kv_tokens": 600.0},
        (Kind.CONTROL,),
    ),
    "arrivals": ({"admission": Arrivals(Exponential(1.0)), "horizon_s": 100.0}, (Kind.TRAIN_TAKE,)),
    "blocking": ({"sync.mode": "blocking"}, (Kind.SYNC_END,)),
    "in place": ({"sync.mode": "in_place"}, (Kind.GEN_PAUSE, Kind.SYNC_END)),
    "pull": ({"sync.mode": "pull"}, (Kind.SYNC_END,)),
    "colocated": ({"learner.colocated": True}, (Kind.GEN_PAUSE,)),
    "mini-batches": ({"learner.minibatches": 2}, (Kind.TRAIN_START,)),
    "failures": ({"engines.failures": Failures(Exponential(10.0), Exponential(3.0))}, (Kind.ENGINE_UP, Kind.GEN_ABORT)),
    "all engines down": (
        {"engines.failures": Failures(Constant(9.0), Constant(4.0))},
        (Kind.ENGINE_UP, Kind.GEN_ABORT),
    ),
    "failures while pulling": (
        {"engines.failures": Failures(Exponential(6.0), Exponential(3.0)), "sync.mode": "pull"},
        (Kind.ENGINE_FAIL, Kind.SYNC_END),
    ),
    "preemption": ({"engines.kv_tokens": 360.0, "engines.prefill": 0.1, "engines.count": 1}, (Kind.GEN_PREEMPT,)),
    "prefill without a cache": ({"engines.prefill": 0.2, "engines.prefix_cache": False}, (Kind.GEN_PAUSE,)),
    "few sequences": ({"engines.max_sequences": 2, "engines.prefill": 0.1}, (Kind.GEN_PAUSE,)),
    "timeouts": (pool(timeout_s=3.0, retries=1, backoff_s=0.5), (Kind.TOOL_TIMEOUT, Kind.TOOL_RETRY)),
    "failing tools": (pool(failure=0.4, retries=2), (Kind.TOOL_FAIL, Kind.TOOL_RETRY)),
    "invalid groups": (pool(failure=0.5), (Kind.TOOL_FAIL, Kind.GROUP_DROP)),
    "cold starts": (pool(cold_start_s=2.0, keep_warm_s=1.0), (Kind.TOOL_ENQUEUE,)),
    "any number of cold servers": (pool(cold_start_s=2.0, keep_warm_s=1.0, servers=None), (Kind.TOOL_END,)),
    "lifo": (pool(discipline="lifo"), (Kind.TOOL_ENQUEUE,)),
    "oldest first": (pool(discipline="oldest", servers=1), (Kind.TOOL_ENQUEUE,)),
    "extra members": ({"workload.extra": 2} | pool(servers=1), (Kind.TRAJ_ABORT, Kind.TOOL_ABORT)),
    "extra members, oldest first": (
        {"workload.extra": 2} | pool(servers=1, discipline="oldest"),
        (Kind.TRAJ_ABORT, Kind.TOOL_ABORT),
    ),
    "drop": ({"drop": MaxStaleness(0), "admission": Capacity(3)}, (Kind.GROUP_DROP,)),
    "drop and requeue": (
        {"drop": MaxStaleness(0, then="requeue"), "admission": Capacity(3), "horizon_s": 200.0},
        (Kind.GROUP_DROP, Kind.GEN_ABORT),
    ),
    "drop by newest": ({"drop": MaxStaleness(0, "newest"), "admission": Capacity(3)}, (Kind.GROUP_DROP,)),
    "rounds": ({"admission": Rounds(), **ROUNDS}, (Kind.TRAIN_TAKE,)),
    "one step off": ({"admission": Rounds(ahead=1), **ROUNDS}, (Kind.TRAIN_TAKE,)),
    **{
        f"late groups: {late}": ({"admission": Rounds(over=1.0, late=late), **ROUNDS}, (event,))
        for late, event in (
            ("cancel", Kind.GROUP_DROP),
            ("requeue", Kind.GROUP_DROP),
            ("resume", Kind.GROUP_RESUME),
            ("tail", Kind.GROUP_DROP),
        )
    },
    "late groups, one step off": (
        {"admission": Rounds(ahead=1, over=1.0, late="resume"), **ROUNDS},
        (Kind.GROUP_HOLD, Kind.GROUP_RESUME),
    ),
    "token cap": (
        {"admission": Rounds(token_cap=30.0), "learner.whatever_is_complete": True, **ROUNDS},
        (Kind.GEN_PAUSE, Kind.GROUP_HOLD, Kind.GROUP_RESUME),
    ),
    "factors of prompts": (
        {"workload.prompt_length_sigma": 0.5, "workload.prompt_latency_sigma": 0.7},
        (Kind.TRAIN_TAKE,),
    ),
    "the world of every rung": (
        {"workload.task": seed_a(), "workload.habit": SEED_A_HABIT, "workload.tokens": (), "tools": ()},
        (Kind.TRAIN_TAKE,),
    ),
    "ties": (
        {
            "workload.tokens": tuple((action, Constant(20.0)) for action in ("a", "b", "answer")),
            "engines": Engines(count=2, base_s=0.05),
            "learner": Learner(batch=8, base_s=1.0),
            "sync": Sync("interrupt", 1.0),
        }
        | pool(latency=Constant(1.0)),
        (Kind.TOOL_ENQUEUE, Kind.GEN_PAUSE),
    ),
    "no time at all": (
        {
            "workload.tokens": tuple((action, Constant(0.0)) for action in ("a", "b", "answer")),
            "learner": Learner(batch=8),
            "sync": Sync("interrupt", 0.0),
        }
        | pool(latency=Constant(0.0)),
        (Kind.TOOL_ENQUEUE, Kind.TRAIN_TAKE),
    ),
}


@pytest.mark.parametrize(("changes", "happens"), FEATURES.values(), ids=FEATURES)
def test_feature(changes, happens):
    log = agree(base(changes))
    for kind in happens:
        assert len(log.of_kind(kind)) > 0, f"no {kind.name}: this config does not test what it is named after"


def test_tables_that_grow():
    """More rollouts than the first tables hold, and far more rows in the log; arrivals outrun the engines."""
    changes = {"admission": Arrivals(Constant(0.0001)), "engines.max_sequences": 3, "steps": 50, "horizon_s": 0.7}
    log = agree(base(changes))
    assert (log.kind == Kind.TRAJ_START).sum() > 10_000


def test_deadlock_is_told_alike():
    starved = {"workload.prompts": 16, "drop": MaxStaleness(0), "admission": Capacity(3), "learner.base_s": 30.0}
    cluster = base(starved)
    told = outcome(cluster, "simpy")
    assert "exhausted" in told
    assert outcome(cluster, "compiled") == told


# --- ways to run it -----------------------------------------------------------------------------------------------------

BUSY = ("drop and requeue", "late groups: resume", "failures", "extra members")


@pytest.mark.parametrize("feature", BUSY)
@pytest.mark.parametrize("chunk", [1, 7])
def test_run_in_chunks_is_the_same_run(feature, chunk):
    cluster = base(FEATURES[feature][0])
    made = plan(cluster)
    whole, cut = (run_compiled(made, Draws(made, 0, "agree"), True, None, None, n) for n in (2**20, chunk))
    assert_equal(whole, cut)


@pytest.mark.parametrize("feature", BUSY)
def test_books_do_not_depend_on_the_log(feature):
    cluster = base(FEATURES[feature][0])
    with_log, without = (simulate(cluster, engine="compiled", record=record) for record in (True, False))
    assert without.log is None
    assert len(with_log.log) > 500
    assert with_log.books == without.books


def test_versions_are_told_in_order():
    told = {}
    for engine in ("simpy", "compiled"):
        told[engine] = []
        simulate(base(), engine=engine, on_version=told[engine].append)
    assert told["simpy"] == told["compiled"] == [1, 2, 3, 4]


def seen(groups):
    """All that a learner can see of its groups."""
    of_group = ("id", "prompt", "play", "start_version", "take_version", "valid")
    of_rollout = (
        "id", "member", "choices", "nodes", "actions", "versions", "node", "start_s", "end_s", "valid", "cancelled", "turn",
        "tokens", "start_version", "oldest", "newest",
    )  # fmt: skip
    return [
        (
            *(getattr(group, name) for name in of_group),
            [
                (*(getattr(traj, name) for name in of_rollout), repr(traj.reward), traj.luck.kind)
                for traj in group.members
            ],
        )
        for group in groups
    ]


def shifting(made, rows):
    """A learner that prefers the first action by as much as it was rewarded, and now and then keeps its policy."""

    def learn(groups, version):
        rows.append((version, seen(groups)))
        if version % 3 == 2:
            return None
        reward = np.nanmean([traj.reward for group in groups for traj in group.members])
        thresholds = made.initial.copy()
        thresholds[thresholds < NEVER] *= 0.5 + 0.4 * reward
        return thresholds if version % 2 else thresholds.tolist()

    return learn


@pytest.mark.parametrize(
    "changes",
    [{}, FEATURES["the world of every rung"][0], FEATURES["extra members"][0], FEATURES["failing tools"][0]],
    ids=["chain", "world", "extra members", "failing tools"],
)
@pytest.mark.parametrize("mode", ["interrupt", "in_place", "pull"])
def test_learners_see_the_same_and_change_the_same(changes, mode):
    cluster = base({**changes, "sync.mode": mode, "steps": 8, "learner.minibatches": 2})
    made, saw, logs = plan(cluster), {}, {}
    for engine in ("simpy", "compiled"):
        saw[engine] = []
        logs[engine] = outcome(cluster, engine, learn=shifting(made, saw[engine]))
    assert saw["simpy"] == saw["compiled"]
    assert [version for version, _ in saw["simpy"]] == list(range(8))
    assert_equal(logs["simpy"], logs["compiled"])
    assert logs["simpy"][0] != outcome(cluster, "simpy")[0]  # the policies did matter
