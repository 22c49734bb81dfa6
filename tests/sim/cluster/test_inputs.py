"""Every refusal names the value, the bound and the way out; a run that cannot go on names who waits."""

import math

import pytest

from sim.cluster import run as run_module
from sim.cluster.draws import Draws
from sim.cluster.model.simulation import Deadlock
from sim.cluster.plan import plan
from sim.cluster.presets import base, split
from sim.cluster.run import simulate
from sim.cluster.scheduling import Aimd, Arrivals, Capacity, FixedWidth, MaxStaleness, Order, Rounds, fifo, greedy
from sim.cluster.spec import Cluster, Engines, Failures, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import CappedPareto, Constant, Exponential, LogNormal, Mixture
from sim.mdp.worlds import seed_a
from sim.records.config import ConfigError, replace
from tests.sim.cluster.small import a_tool, played, small, takes

TWO = Workload(task=Chain(turns=2, tools=("search",)), group=4)
CALLS = ToolPool("web", ("search",), Exponential(1.0))


def pool(**options):
    return lambda: ToolPool(**{"name": "web", "actions": ("search",), "latency": Exponential(1.0)} | options)


def cluster(changes=None, **options):
    """Two turns, groups of 4, batches of 8."""
    usual = {"workload": TWO, "tools": (CALLS,), "learner": Learner(batch=8)}
    return lambda: replace(Cluster(**usual), {**(changes or {}), **options})


def workload(**options):
    return lambda: Workload(**options)


ENGINES = [
    (lambda: Engines(count=0), "count = 0: a cluster needs at least 1 engine"),
    (lambda: Engines(base_s=-0.1), "base_s = -0.1 must be at least 0"),
    (lambda: Engines(per_sequence_s=-1.0), "per_sequence_s = -1.0 must be at least 0"),
    (lambda: Engines(base_s=math.nan), "base_s = nan: input should be a finite number"),
    (lambda: Engines(base_s=math.inf), "base_s = inf: input should be a finite number"),
    (lambda: Engines(base_s=0.0), "base_s + per_sequence_s = 0: tokens would take no time; give one of them more"),
    (lambda: Engines(prefill=-0.5), "prefill = -0.5 must be at least 0"),
    (
        lambda: Engines(prefill=1.5),
        "prefill = 1.5 must be at most 1: prefilling a token costs no more than decoding one",
    ),
    (lambda: Engines(max_sequences=0), "max_sequences = 0 must be at least 1; None for no limit"),
    (lambda: Engines(kv_tokens=0.0), "kv_tokens = 0.0 must be above 0; None for no limit"),
    (lambda: Engines(watermark=0.0), "watermark = 0.0 must lie in (0, 1]"),
    (lambda: Engines(watermark=1.1), "watermark = 1.1 must lie in (0, 1]"),
    (lambda: Engines(cout=2), "Engines has no field 'cout'; did you mean count?"),
    (lambda: Engines(count="2"), "Engines.count = '2'"),
    (lambda: Failures(Constant(0.0), Constant(1.0)), "up: a mean of 0.0 s would fail without end at one instant"),
    (lambda: Failures(Constant(9.0), Constant(0.0)), "down: a mean of 0.0 s would fail without end at one instant"),
    (
        lambda: Failures(Exponential(-1.0), Constant(1.0)),
        "up: latency mean = -1.0 is not a finite number of at least 0",
    ),
]

POOLS = [
    (pool(latency=Constant(-1.0)), "tool pool 'web': latency seconds = -1.0 is not a finite number of at least 0"),
    (pool(latency=LogNormal(-1.0, 0.5)), "tool pool 'web': latency median = -1.0 is not a finite number of at least 0"),
    (lambda: LogNormal(math.nan, 0.5), "median = nan: input should be a finite number"),
    (pool(latency=CappedPareto(1.0, 1.0, None)), "without a cap"),
    (pool(latency=CappedPareto(1.0, 0.8, None)), "infinite mean"),
    (pool(latency=Mixture(((0.5, Constant(1.0)), (0.6, Constant(2.0))))), "sum to 1.1, not 1; divide them by the sum"),
    (pool(actions=()), "tool pool 'web' serves no action"),
    (pool(servers=0), "tool pool 'web': servers = 0 must be at least 1; None for no limit"),
    (pool(discipline="sjf"), "discipline = 'sjf' must be 'fifo', 'lifo' or 'oldest'"),
    (pool(timeout_s=0.0), "timeout_s = 0.0 must be above 0; None for no limit"),
    (pool(keep_warm_s=-1.0), "keep_warm_s = -1.0 must be above 0; None for no limit"),
    (pool(retries=-1), "retries = -1 must be at least 0"),
    (pool(backoff_s=-1.0), "backoff_s = -1.0 must be at least 0"),
    (pool(cold_start_s=-1.0), "cold_start_s = -1.0 must be at least 0"),
    (pool(backoff_factor=0.5), "backoff_factor = 0.5 must be at least 1"),
    (pool(failure=1.5), "failure = 1.5 must lie in [0, 1]"),
    (
        cluster(tools=(pool(actions=("serach",))(),)),
        "serves 'serach', which is no action of the task; did you mean search",
    ),
    (cluster(tools=(CALLS, pool(name="other")())), "action 'search' is served by two pools, 'web' and 'other'"),
    (cluster(tools=(CALLS, pool(actions=("answer",))())), "two tool pools share a name among web, web"),
    (cluster(tools=(pool(retries=64, timeout_s=1.0)(),)), "retries = 64 must be at most 63"),
]

LEARNERS = [
    (lambda: Learner(batch=0), "batch = 0 must be at least 1"),
    (lambda: Learner(minibatches=0), "minibatches = 0 must be at least 1"),
    (lambda: Learner(base_s=-1.0), "base_s = -1.0 must be at least 0"),
    (lambda: Learner(per_rollout_s=-1.0), "per_rollout_s = -1.0 must be at least 0"),
    (lambda: Learner(per_token_s=-1.0), "per_token_s = -1.0 must be at least 0"),
    (lambda: Learner(jitter=Constant(-1.0)), "jitter: latency seconds = -1.0 is not a finite number of at least 0"),
    (lambda: Sync("swap"), "mode = 'swap' must be 'blocking', 'interrupt', 'in_place' or 'pull'"),
    (lambda: Sync("pull", -1.0), "seconds = -1.0 must be at least 0"),
    (
        cluster({"learner.batch": 10}),
        "batch = 10 is no multiple of the group of 4: a group is trained on whole; choose 8 or",
    ),
    (
        cluster({"learner.batch": 3}),
        "batch = 3 is no multiple of the group of 4: a group is trained on whole; choose 4",
    ),
    (
        cluster({"learner.batch": 24, "learner.minibatches": 4}),
        "minibatches = 4 does not divide the 6 groups of a batch",
    ),
    (cluster({"learner.colocated": True, "learner.minibatches": 2}), "minibatches = 2 with a colocated learner"),
    (cluster({"learner.colocated": True, "sync.mode": "in_place"}), "sync mode 'in_place' needs them running"),
    (cluster({"learner.colocated": True, "sync.mode": "pull"}), "sync mode 'pull' needs them running"),
    (cluster({"learner.whatever_is_complete": True}), "whatever_is_complete goes with admission=Rounds(...)"),
    (cluster(steps=0), "steps = 0 must be at least 1"),
    (cluster(horizon_s=0.0), "horizon_s = 0.0 must be above 0; None for no limit"),
    (lambda: split(base(1)), "1 device cannot be split between generation and training; use at least 2"),
]

SCHEDULES = [
    (lambda: Order(0), "window = 0 must be at least 1 group; None takes whatever is complete"),
    (lambda: Capacity(-1), "eta = -1"),
    (lambda: Capacity(math.nan), "eta = nan"),
    (lambda: FixedWidth(0), "width = 0 must be at least 1"),
    (lambda: FixedWidth(8, "started"), "of = 'started' must be one of 'running', 'unconsumed'"),
    (lambda: Aimd(start=50, most=40), "start = 50 must lie between least = 1 and most = 40"),
    (lambda: Aimd(start=5, most=40, least=0), "least = 0 must be at least 1"),
    (lambda: Aimd(start=5, most=40, interval_s=0.0), "interval_s = 0.0 must be above 0"),
    (lambda: Aimd(start=5, most=40, grow=0.9), "grow = 0.9 must be at least 1"),
    (lambda: Aimd(start=5, most=40, trim_at=0.95), "trim_at = 0.95 must be above 0 and at most hard_at = 0.9"),
    (lambda: Rounds(ahead=-1), "ahead = -1 must be at least 0"),
    (lambda: Rounds(over=-0.5), "over = -0.5 must be at least 0"),
    (lambda: Rounds(late="retry"), "late = 'retry' must be one of 'cancel', 'requeue', 'resume', 'tail'"),
    (lambda: Rounds(token_cap=0.0), "token_cap = 0.0 must be above 0: nothing would ever be written"),
    (lambda: Rounds(token_cap=9.0, over=0.5), "it goes with late='resume' and over=0 only"),
    (lambda: MaxStaleness(-1), "bound = -1 must be at least 0"),
    (lambda: MaxStaleness(1, "mean"), "by = 'mean' must be one of 'oldest', 'newest'"),
    (lambda: MaxStaleness(1, then="retry"), "then = 'retry' must be one of 'discard', 'requeue'"),
    (
        cluster(
            tools=(pool(servers=1, discipline="lifo")(),),
            admission=FixedWidth(8, "running"),
            order=Order(2),
            horizon_s=None,
        ),
        "tool pool 'web' serves the last call first, so a call may wait for ever while new rollouts are started",
    ),
    (cluster(admission=Arrivals(Constant(0.0))), "admission.interval has mean 0: groups would arrive without end"),
    (cluster(admission=Arrivals(Exponential(-1.0))), "admission.interval: latency mean = -1.0 is not a finite"),
    (cluster(admission=Rounds(token_cap=50.0), order=greedy()), "set learner.whatever_is_complete"),
    (
        cluster(admission=FixedWidth(16), order=Order(5)),
        "window = 5 groups is above the queue of 4 groups that width = 16 holds; choose at most 4, or None for no window",
    ),
]

WORKLOADS = [
    (lambda: Chain(turns=0), "turns = 0 must be at least 1"),
    (lambda: Chain(turns=2, tools=()), "turns = 2 needs at least one tool to call in between; tools is empty"),
    (lambda: Chain(solved=1.5), "solved = 1.5 must lie in [0, 1]"),
    (workload(group=0), "group = 0 must be at least 1"),
    (workload(extra=-1), "extra = -1 must be at least 0"),
    (workload(prompts=0), "prompts = 0 must be at least 1; None for a source without end"),
    (workload(prompt_tokens=-1.0), "prompt_tokens = -1.0 must be at least 0"),
    (workload(prompt_length_sigma=-1.0), "prompt_length_sigma = -1.0 must be at least 0"),
    (workload(prompt_latency_sigma=-1.0), "prompt_latency_sigma = -1.0 must be at least 0"),
    (workload(least_valid=1.0), "least_valid = 1.0 must lie in [0, 1)"),
    (workload(tokens=(("anwser", Constant(1.0)),)), "tokens: 'anwser' is no action of the task; did you mean answer?"),
    (workload(task=seed_a(), tokens=(("browse", Constant(1.0)),)), "tokens: 'browse' is no action of the task; known:"),
    (workload(tokens=(("answer", Constant(-5.0)),)), "tokens of 'answer': latency seconds = -5.0 is not a"),
    (workload(tokens=(("answer", CappedPareto(1.0, 0.9, None)),)), "tokens of 'answer'"),
    (workload(tokens=(("answer", Constant(1.0)), ("answer", Constant(2.0)))), "tokens names an action twice"),
]

DEADLOCKS = [
    (cluster(slots=3), "the scheduler would wait for ever to start a group of 4 rollouts, as at most 3 may run"),
    (cluster({"workload.extra": 2}, slots=5), "6 rollouts, as at most 5 may run (slots, width); allow at least 6"),
    (cluster(admission=FixedWidth(3, "running")), "a group of 4 rollouts, as at most 3 may run"),
    (cluster({"admission": Aimd(4, 9, 2), "engines.kv_tokens": 1e4}), "a group of 4 rollouts, as at most 2 may run"),
    (
        cluster({"workload.prompts": 5}, steps=3),
        "the learner would wait for ever for 6 groups (3 versions of 2), as the source holds 5 prompts; give it at least 6",
    ),
    (
        cluster({"engines.kv_tokens": 150.0}),
        "a rollout may grow to 200 tokens and an engine's KV memory holds 150: it would wait for ever to fit",
    ),
    (
        cluster({"workload.tokens": (("answer", LogNormal(9.0, 1.0)),), "engines.kv_tokens": 1e9}),
        "a rollout may grow to inf tokens and an engine's KV memory holds 1e+09",
    ),
    (cluster({"workload.prompt_length_sigma": 0.5, "engines.kv_tokens": 1e9}), "may grow to inf tokens"),
    (
        cluster(admission=Rounds(over=0.5, late="resume"), order=fifo()),
        "the learner would wait, in order (window = 1), for a group that is held until the learner is done",
    ),
    (
        cluster({"admission": Rounds(token_cap=50.0), "order": Order(2), "learner.whatever_is_complete": True}),
        "in order (window = 2), for a group that is held",
    ),
]

NOTHING = (("search", Constant(0.0)), ("answer", Constant(0.0)))
OTHERS = [
    (
        cluster({"workload.tokens": NOTHING, "tools": (), "admission": FixedWidth(8, "running")}),
        "no rollout takes any time (every law of tokens and of tool latency has mean 0)",
    ),
    (cluster(admission=Aimd(8, 16, 4)), "an Aimd controller watches KV memory, and kv_tokens is None: give"),
    (lambda: simulate(cluster()(), engine="numba"), "engine = 'numba' must be 'auto', 'simpy' or 'compiled'"),
    (cluster({"engine.count": 2}), "Cluster has no field 'engine'; did you mean engines?"),
    (lambda: Cluster(learner=Learner), "Cluster was given the class Learner; call it: Learner()"),
    (cluster(tools=(pool(name="w", actions=("answer",))(), CALLS), slots=2.5), "slots = 2.5"),
]

REFUSALS = {
    "engines": ENGINES,
    "pools": POOLS,
    "learners": LEARNERS,
    "schedules": SCHEDULES,
    "workloads": WORKLOADS,
    "deadlocks": DEADLOCKS,
    "others": OTHERS,
}


@pytest.mark.parametrize(
    ("build", "message"),
    [pytest.param(*case, id=f"{part}: {case[1][:40]}") for part, cases in REFUSALS.items() for case in cases],
)
def test_a_refusal_says_what_is_wrong_and_what_would_do(build, message):
    with pytest.raises(ValueError) as error:
        build()
    assert message in str(error.value)


def test_a_deadlock_seen_beforehand_says_so():
    for build, _ in DEADLOCKS:
        with pytest.raises(ConfigError, match="deadlock: "):
            build()


# --- while it runs ----------------------------------------------------------------------------------------------------


def test_dropped_prompts_may_exhaust_the_source():
    """Of 3 prompts two versions of one each are to be made; two are dropped for their tool, at 3 and 6 s."""
    tools = a_tool(timeout_s=2.0)
    cluster = small({"tools": tools, "steps": 2, "workload.prompts": 3}, turns=2)
    with pytest.raises(Deadlock) as error:
        played(cluster, [[1, 1]], tools=[[[9]], [[9]], [[1]]])
    said = "deadlock at 9 s: the learner waits for 1 more groups at version 1, 0 are complete, 0 incomplete, "
    assert str(error.value) == said + "the source of 3 prompts is exhausted; nothing else will happen"


def test_discards_may_exhaust_the_source():
    drop = MaxStaleness(0)
    cluster = small(
        {"admission": Capacity(1), "steps": 2, "drop": drop, "workload.prompts": 2, "sync.mode": "in_place"}
    )
    with pytest.raises(Deadlock, match="the learner waits for 1 more groups at version 1"):
        played(cluster, [3, 9])


def test_a_head_that_is_never_complete_is_no_deadlock():
    """It is dropped for want of valid members, and the head moves on."""
    cluster = small({"tools": a_tool(timeout_s=2.0), "order": fifo(), "admission": Capacity(1)}, turns=2)
    run = played(cluster, [[1, 1], [1, 5]], tools=[[[9]], [[1]]])
    assert takes(run) == [(7, 1)]


def test_a_horizon_ends_what_would_wait_for_ever():
    cluster = small({"tools": a_tool(timeout_s=2.0), "workload.prompts": 1, "horizon_s": 60.0}, turns=2)
    run = played(cluster, [[1, 1]], tools=[[[9]]])
    assert run.books.end_s == 60
    assert run.books.steps.rollouts.tolist() == [0]


def test_a_prompt_is_not_played_for_ever():
    """A requeue that never succeeds ends in an error."""
    with pytest.raises(ValueError, match="prompt 7 is played for the 4097th time; at most 4096 plays are indexed"):
        Draws(plan(cluster()()), 0, "inputs").again(7, 4096)


def test_the_compiled_engine_says_what_it_needs(monkeypatch):
    monkeypatch.setattr(run_module, "compiled_is_there", lambda: False)
    with pytest.raises(ValueError, match=r"needs numba, which is not installed: pip install 'metastable\[fast\]'"):
        simulate(cluster()(), engine="compiled")
    monkeypatch.setattr(run_module, "compiled_is_there", lambda: True)
    with pytest.raises(
        ValueError, match="the compiled engine has no user processes, and 1 were given: use engine='simpy'"
    ):
        simulate(cluster()(), engine="compiled", processes=[lambda env, sim: iter(())])


def test_an_error_of_a_users_process_is_not_taken_for_a_deadlock():
    def broken(env, sim):
        yield env.timeout(1.0)
        raise RuntimeError("waited until it broke")

    with pytest.raises(RuntimeError, match="waited until it broke") as error:
        simulate(cluster()(), engine="simpy", processes=[broken])
    assert not isinstance(error.value, Deadlock)
