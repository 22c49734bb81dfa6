"""Known faults of clusters and of simulations, each with its right value; see ``tests/test_known_faults.py``.

``known_fault_mutations.py`` puts each into the shipped code, and the last test here shows that its test then fails.
"""

import json
from dataclasses import replace

import numpy as np
import pytest
import simpy

from sim.cluster.draws import Draws
from sim.cluster.events import Kind
from sim.cluster.measures import step_columns, survivorship, trained
from sim.cluster.plan import plan
from sim.cluster.rules import capacity
from sim.cluster.run import simulate
from sim.cluster.scheduling import Arrivals, Capacity, FixedWidth, MaxStaleness, Order
from sim.cluster.spec import Cluster, Engines, Learner, ToolPool
from sim.cluster.staleness import staleness_at_use
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import CappedPareto, Exponential, LogNormal
from sim.records.config import to_dict
from tests.mutations import fails_under
from tests.sim.cluster.known_fault_mutations import MUTATIONS
from tests.sim.cluster.small import GIVEN, a_tool, chunks_of, played, rows, small

# --- versions ---------------------------------------------------------------------------------------------------------


def test_f22_every_token_has_the_version_that_wrote_it():
    """A request starts at version 3; version 4 is published when it has 5 of its 10 tokens."""
    for mode in ("interrupt", "in_place"):
        cluster = small({"admission": Capacity(1), "steps": 5, "sync.mode": mode})
        run = played(cluster, [1, 2, 2, 6, 10, 90])
        labels = [chunk[3] for chunk in chunks_of(run, 4) for _ in range(int(chunk[4]))]
        assert labels == [3] * 5 + [4] * 5
        assert run.books.rollouts.token_versions[4] == 5 * 3 + 5 * 4


def thirds():
    """A rollout of 10 tokens by version 3, 30 by 4 and 60 by 5, taken at version 6: it ends while that is trained."""
    cluster = small({"admission": Arrivals(GIVEN), "steps": 7, "learner.base_s": 1.0, "sync.mode": "in_place"})
    arrivals = {("arrival", 0): [0, 0, 0, 0, 0, 0, 4.5]}
    return played(cluster, [1, 2, 3, 13.5, 43.5, 104, 100], series=arrivals)


def test_f23_staleness_is_judged_by_token():
    run = thirds()
    columns = step_columns(run)
    assert [columns[f"lag_{which}"][6] for which in ("oldest", "newest", "tokens")] == [3, 1, 1.5]
    found = staleness_at_use(run.log)
    assert [x[6] for x in (found.oldest, found.newest, found.token_mean, found.coverage)] == [3, 1, 1.5, 1]


def test_f23_a_version_that_nobody_noted_is_no_lag_of_zero():
    log = thirds().log
    unknown = (log.traj == 6) & (log.version == 3) & np.isin(log.kind, (Kind.GEN_START, Kind.GEN_PAUSE))
    found = staleness_at_use(replace(log, version=np.where(unknown, -1, log.version)))
    assert found.coverage[6] == 0.9
    assert (found.oldest[6], found.newest[6]) == (2, 1)
    assert found.token_mean[6] == pytest.approx(6 - (30 * 4 + 60 * 5) / 90)


# --- what is trained --------------------------------------------------------------------------------------------------


def half_of_them_slow(**changes):
    """Steps of 2 s on two rollouts; even prompts take one step, odd ones live through three versions."""
    base = {"learner.base_s": 2.0, "steps": 10, "sync.mode": "in_place"}
    run = played(small(base | changes, batch=2), [2, 8.5] * 31)
    mine = run.books.groups.prompt[run.books.rollouts.group[trained(run)]]
    return run, np.mean(mine % 2 == 1), survivorship(run, np.arange(62) % 2, ("fast", "slow"))


def test_f24_admission_control_trains_slow_prompts_as_often_as_fast_ones():
    run, share, report = half_of_them_slow(admission=Capacity(2), order=Order(1))
    assert step_columns(run)["lag_oldest"].max() <= 2  # what the bound is for
    assert share == 0.5
    assert not run.books.groups.dropped.any()
    assert [(r.name, r.ratio) for r in report] == [("fast", 1), ("slow", 1)]


def test_f24_a_discard_that_was_chosen_reports_what_it_costs():
    run, share, report = half_of_them_slow(admission=FixedWidth(12, "running"), drop=MaxStaleness(2))
    assert share == 0
    assert run.books.groups.dropped.any()
    fast, slow = report
    assert (slow.ratio, slow.trained) == (0, 0)
    assert slow.started > 5
    assert fast.ratio > 1.5


def test_f25_the_rule_of_capacity():
    def allowed(version, accepted, running, eta):
        return capacity(version, accepted, running, eta=eta, batch=8, concurrency=100)

    assert [allowed(0, 0, 0, 0), allowed(0, 0, 8, 0), allowed(1, 8, 0, 0), allowed(0, 0, 0, 2)] == [8, 0, 8, 24]
    assert capacity(0, 0, 3, eta=2, batch=8, concurrency=5) == 2


def test_f25_a_quota_is_asked_for_again_when_a_rollout_fails():
    """Of two, one fails for good at 3 s: another starts at once. No version is published before 10 s."""
    cluster = small({"tools": a_tool(timeout_s=2.0), "horizon_s": 50.0}, batch=2, turns=2)
    run = played(cluster, [[1, 9], [1, 1], [1, 1]], tools=[[[0]], [[5]], [[1]]])
    assert rows(run, Kind.GROUP_ADMIT, show=("t_s", "entity")) == [(0, 0), (0, 1), (3, 2)]
    assert run.books.end_s == 10


# --- what a process waits for -----------------------------------------------------------------------------------------


def withdraw(request):
    """Take back a request that lost against a timeout."""
    request.cancel()


def beside_a_cluster(process):
    """Run a process of a user's beside a cluster that takes 20 s; return the simulation."""
    seen = []

    def watched(env, sim):
        seen.append(sim)
        yield from process(env)

    simulate(small({"workload.task": Chain(generated=20), "workload.tokens": ()}), engine="simpy", processes=[watched])
    assert seen[0].env.now == 20
    return seen[0]


def test_f26_a_get_that_timed_out_eats_nothing():
    """Three gets of 1 s; A, B and C are put at 2.5: the third gets A, and B and C stay."""
    got, left = [], []

    def process(env):
        store = simpy.Store(env)

        def put():
            yield env.timeout(2.5)
            for item in "ABC":
                yield store.put(item)

        env.process(put())
        for _ in range(3):
            get = store.get()
            found = yield get | env.timeout(1)
            if get in found:
                got.append((env.now, found[get]))
            else:
                withdraw(get)
        yield env.timeout(1)
        left.extend(store.items)

    beside_a_cluster(process)
    assert (got, left) == ([(2.5, "A")], ["B", "C"])


def with_a_drop_at_3(tokens, tools):
    """One server; rollouts 0, 1, 2 start at version 0, 3 at version 1, at .5 s, 4 at version 2, at 3 s. Then 2 is dropped,
    wherever it is, as it is two versions behind."""
    changes = {"admission": Capacity(2), "drop": MaxStaleness(1), "sync.mode": "in_place", "steps": 4}
    cluster = small(changes | {"tools": a_tool(servers=1), "horizon_s": 50.0}, turns=2)
    seen = []

    def watch(env, sim):
        seen.append(sim)
        yield env.timeout(0)

    run = played(cluster, tokens, tools=[[[x]] for x in tools], processes=(watch,))
    assert rows(run, Kind.GROUP_DROP, show=("t_s", "entity"))[0] == (3, 2)
    return run, seen[0]


def test_f26_a_call_that_was_cancelled_takes_no_server():
    """3 holds it from .5 to 4.5; 2 asks at 1 and is dropped at 3, when 4 asks: 4 gets it at 4.5."""
    run, sim = with_a_drop_at_3([[0, 0.5], [0, 3], [1, 1], [0, 1], [0, 1], [9, 9]], (0, 0, 1, 4, 1, 1))
    assert rows(run, Kind.TOOL_START, show=("t_s", "traj"))[-2:] == [(0.5, 3), (4.5, 4)]
    assert rows(run, Kind.TOOL_END, show=("t_s", "traj"))[-1] == (5.5, 4)
    assert sim.pools[0].busy == 0


def test_f27_a_slot_is_free_again_when_its_holder_is_interrupted():
    """The first is interrupted at 3, the second asks at 1: granted at 3, none held at the end."""
    seen = []

    def process(env):
        slot = simpy.Resource(env, 1)

        def holder():
            with slot.request() as mine:
                yield mine
                try:
                    yield env.timeout(10)
                except simpy.Interrupt:
                    seen.append(("interrupted", env.now))

        def second():
            yield env.timeout(1)
            with slot.request() as mine:
                yield mine
                seen.append(("granted", env.now))
                yield env.timeout(1)

        first = env.process(holder())
        env.process(second())
        yield env.timeout(3)
        first.interrupt()
        yield env.timeout(10)
        seen.append(("held", slot.count))

    beside_a_cluster(process)
    assert seen == [("interrupted", 3), ("granted", 3), ("held", 0)]


def test_f27_a_server_is_free_again_when_its_holder_is_cancelled():
    """2 holds it from 0 on and is dropped at 3; 3 asks at 1: granted at 3, none busy at the end."""
    run, sim = with_a_drop_at_3([[0, 0.5], [0, 3], [0, 1], [0.5, 1], [1, 1], [9, 9]], (0, 0, 10, 1, 1, 1))
    assert (1, 3) in rows(run, Kind.TOOL_ENQUEUE, show=("t_s", "traj"))
    assert (3, 3) in rows(run, Kind.TOOL_START, show=("t_s", "traj"))
    assert rows(run, Kind.TOOL_ABORT, show=("t_s", "traj")) == [(3, 2)]
    assert sim.pools[0].busy == 0
    assert run.books.pools.busy_s.tolist()[0] == 3 + 1 + 1


# --- randomness -------------------------------------------------------------------------------------------------------


def lucky(**changes):
    """Two tools to choose from, eight samples a prompt, everything random."""
    laws = (("search", LogNormal(50.0, 0.8)), ("answer", Exponential(50.0)))
    return Cluster(
        workload=Workload(task=Chain(turns=4, tools=("search", "read")), tokens=laws),
        engines=Engines(count=2, base_s=0.01, per_sequence_s=0.001),
        tools=tuple(ToolPool(name, (name,), CappedPareto(0.5, 1.5, 60.0), servers=3) for name in ("search", "read")),
        learner=Learner(batch=32, base_s=2.0, jitter=LogNormal(1.0, 0.3)),
        steps=3,
        **changes,
    )


def test_f28_every_sample_of_a_group_has_a_stream_of_its_own():
    block = Draws(plan(lucky()), 0, "f28").block(0)
    for column in ("route", "outcome", "length", "latency"):
        values = getattr(block, column).reshape(64, 8, -1)
        assert all(len(np.unique(group, axis=0)) == 8 for group in values)
    assert not np.intersect1d(block.route, Draws(plan(lucky()), 1, "f28").block(0).route).size


def test_f28_neither_the_order_nor_the_number_of_workers_changes_a_sample():
    def samples(cluster):
        r = (run := simulate(cluster, 3, engine="simpy")).books.rollouts
        done = ~r.aborted
        keys = zip(run.books.groups.prompt[r.group[done]], r.member[done], strict=True)
        return dict(zip(keys, zip(r.tokens[done], map(tuple, r.action[done]), strict=True), strict=True))

    one = samples(lucky())
    for other in (lucky(slots=17), lucky(admission=Capacity(2), order=Order(None))):
        both = one.keys() & (found := samples(other)).keys()
        assert len(both) > 60
        for key in both:
            assert found[key][0] == pytest.approx(one[key][0])  # chunks are summed, so to rounding
            assert found[key][1] == one[key][1]


PROGRAM = """
import hashlib, json
from sim.cluster.run import simulate
from sim.records.config import from_dict
for config in json.loads(CONFIGS):
    log = simulate(from_dict(config), 7, engine="simpy", record=True).log
    columns = (log.t_s, log.kind, log.entity, log.traj, log.turn, log.version, log.value)
    print(len(log), hashlib.sha256(b"".join(column.tobytes() for column in columns)).hexdigest())
"""


def test_f29_the_same_seed_gives_the_same_bytes_under_every_hash_seed(fresh_python):
    late = lucky(admission=Capacity(2), order=Order(None), drop=MaxStaleness(0, then="requeue"))
    program = f"CONFIGS = {json.dumps([to_dict(lucky()), to_dict(late)])!r}\n{PROGRAM}"
    one = fresh_python(program, hash_seed=0)
    assert min(int(line.split()[0]) for line in one.splitlines()) > 1000
    for seed in (1, 2):
        assert fresh_python(program, hash_seed=seed) == one


# --- the tests themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mutate"),
    [(n, m) for n, _, m in MUTATIONS],
    ids=[f"{n.split('_')[1]}: {fault}" for n, fault, _ in MUTATIONS],
)
def test_the_mutation_makes_its_test_fail(name, mutate, request, monkeypatch):
    fails_under(mutate, name, globals(), request, monkeypatch)


def test_every_fault_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == {name for name in globals() if name.startswith("test_f")}
