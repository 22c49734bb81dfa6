"""Small clusters of every kind, for tests that compare engines: whatever a config can say is said by some of them.

Much happens at one instant on many of them (whole numbers, times of zero), as that is where two engines may part.
"""

from hypothesis import reject
from hypothesis import strategies as st

from sim.cluster.checks import largest_context
from sim.cluster.scheduling import Aimd, Arrivals, Capacity, FixedWidth, MaxStaleness, Order, Rounds
from sim.cluster.spec import Cluster, Engines, Failures, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Capped, CappedPareto, Constant, Exponential, LogNormal
from sim.mdp.worlds import SEED_A_HABIT, seed_a
from sim.records.config import ConfigError

__all__ = ["clusters"]

of = st.sampled_from


def laws(mean, zero=True):
    """Laws of about this mean; half of them without chance, some of no time at all."""
    return of(
        [
            Constant(mean),
            Constant(float(round(mean))),
            Constant(0.0 if zero else mean),
            Exponential(mean),
            Capped(LogNormal(mean, 1.0), 5 * mean),
            CappedPareto(0.3 * mean, 1.3, 8 * mean),
        ]
    )


@st.composite
def workloads(draw):
    """A chain or the world of every rung; groups of one to four, with or without extra members."""
    if draw(st.integers(0, 3)) == 0:
        task, habit = seed_a(), SEED_A_HABIT
    else:
        tools = draw(of([("a",), ("a", "b")]))
        task = Chain(
            turns=draw(st.integers(1, 4)), tools=tools, generated=draw(of([1, 10, 20])), observed=draw(of([0, 5]))
        )
        habit = ()
    return Workload(
        task=task,
        habit=habit,
        group=draw(of([1, 2, 4])),
        extra=draw(of([0, 0, 0, 1])),
        tokens=tuple((name, Capped(draw(laws(20.0)), 60.0)) for name in task.graph().actions if draw(st.booleans())),
        prompt_tokens=draw(of([0.0, 30.0])),
        prompt_length_sigma=draw(of([0.0, 0.0, 0.5])),
        prompt_latency_sigma=draw(of([0.0, 0.7])),
        least_valid=draw(of([0.0, 0.5])),
    )


@st.composite
def pools(draw, work):
    """Pools for some of the calls: few servers or any number, attempts that time out, fail, or start cold."""
    graph = work.task.graph()
    called = [name for name in graph.actions if name != "answer"]
    return tuple(
        ToolPool(
            f"pool {name}",
            (name,),
            draw(laws(2.0)),
            servers=draw(of([None, 1, 2, 3])),
            discipline=draw(of(["fifo", "lifo", "oldest"])),
            timeout_s=draw(of([None, None, 3.0])),
            retries=draw(st.integers(0, 2)),
            backoff_s=draw(of([0.0, 0.5])),
            failure=draw(of([0.0, 0.0, 0.3])),
            cold_start_s=draw(of([0.0, 0.0, 1.0])),
            keep_warm_s=draw(of([None, 2.0])),
        )
        for name in called
        if draw(st.integers(0, 6))
    )


@st.composite
def engines(draw, work, must_limit):
    """Engines whose memory holds one rollout, a few, or any number; some of them fail."""
    kv = None
    if must_limit or draw(st.integers(0, 2)) == 0:
        largest = largest_context(Cluster(workload=work, learner=Learner(batch=work.group)), work.task.graph())
        kv = largest * draw(of([1.0, 1.5, 3.0])) if 0 < largest < 1e9 else 1e6
    failures = Failures(draw(laws(30.0, zero=False)), draw(laws(5.0, zero=False))) if draw(of([0, 0, 0, 1])) else None
    return Engines(
        count=draw(st.integers(1, 3)),
        base_s=draw(of([0.01, 0.1])),
        per_sequence_s=draw(of([0.0, 0.01])),
        max_sequences=draw(of([None, None, 1, 3])),
        kv_tokens=kv,
        watermark=draw(of([0.8, 0.95, 1.0])),
        prefill=draw(of([0.0, 0.0, 0.1])),
        prefix_cache=draw(st.booleans()),
        failures=failures,
    )


@st.composite
def admissions(draw, members):
    """Every rule."""
    rule = draw(of(["capacity", "capacity", "running", "unconsumed", "aimd", "arrivals", "rounds", "rounds", "capped"]))
    if rule == "capacity":
        return Capacity(draw(st.integers(0, 3)))
    if rule in ("running", "unconsumed"):
        return FixedWidth(draw(st.integers(2 * members, 30)), rule)
    if rule == "aimd":
        start = members + draw(st.integers(0, 4))
        return Aimd(start=start, least=members, most=40, interval_s=draw(of([1.0, 5.0])))
    if rule == "arrivals":
        return Arrivals(draw(laws(3.0, zero=False)))
    if rule == "capped":
        return Rounds(token_cap=draw(of([10.0, 30.0])))
    late = draw(of(["cancel", "requeue", "resume", "tail"]))
    return Rounds(ahead=draw(st.integers(0, 1)), over=draw(of([0.0, 0.5, 1.0])), late=late)


@st.composite
def clusters(draw):
    """Clusters that pass their own checks, stopped after 300 s if a process of theirs would go on for ever."""
    work = draw(workloads())
    admission = draw(admissions(work.members))
    rounds, capped = isinstance(admission, Rounds), getattr(admission, "token_cap", None) is not None
    made = draw(engines(work, isinstance(admission, Aimd)))
    mode = draw(of(["blocking", "interrupt", "in_place", "pull"]))
    parts = 1 if capped else draw(of([1, 1, 2]))
    drop = None
    if draw(st.integers(0, 2)) == 0:
        drop = MaxStaleness(
            draw(st.integers(0, 2)),
            draw(of(["oldest", "newest"])),
            draw(st.booleans()),
            draw(of(["discard", "requeue"])),
        )
    goes_on = made.failures is not None or isinstance(admission, Aimd | Arrivals)
    try:
        return Cluster(
            workload=work,
            engines=made,
            tools=draw(pools(work)),
            admission=admission,
            slots=draw(of([work.members, 2 * work.members + 1, 40])),
            order=Order(None) if rounds else draw(of([Order(1), Order(2), Order(None)])),
            drop=drop,
            learner=Learner(
                batch=work.group * parts * draw(st.integers(1, 3)),
                minibatches=parts,
                base_s=draw(of([0.0, 1.0, 10.0])),
                per_token_s=draw(of([0.0, 0.001])),
                jitter=draw(of([Constant(1.0), LogNormal(1.0, 0.3)])),
                colocated=parts == 1 and mode in ("blocking", "interrupt") and draw(st.integers(0, 2)) == 0,
                whatever_is_complete=capped or (rounds and parts == 1 and draw(of([0, 0, 1])) == 1),
            ),
            sync=Sync(mode, draw(of([0.0, 0.0, 0.5, 3.0]))),
            steps=draw(st.integers(1, 5)),
            horizon_s=300.0 if goes_on else draw(of([None, 50.0])),
        )
    except ConfigError:
        reject()
