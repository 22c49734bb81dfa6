"""What the books decide is what the cluster simulator decides: the same admissions and the same batches, event by event."""

import numpy as np
import pytest

from fullscale.rollout.books import Books
from sim.cluster.measures import survivorship
from sim.cluster.run import simulate
from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Order
from sim.cluster.spec import Cluster, Engines, Learner, Sync, ToolPool
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import CappedPareto, Exponential
from tests.fullscale.rollout.driving import recorded, replay


def cluster(admission, order, drop=None, *, group=2, slots=64, mode="interrupt", steps=12):
    """Two engines, a slow tool with a heavy tail, four groups a step: some groups live through several versions."""
    laws = tuple((name, Exponential(40.0)) for name in ("tool", "answer"))
    return Cluster(
        workload=Workload(task=Chain(turns=4), group=group, tokens=laws, prompt_latency_sigma=1.0),
        engines=Engines(count=2, base_s=0.01, per_sequence_s=0.001),
        tools=(ToolPool("tool", ("tool",), CappedPareto(0.5, 1.2, 30.0)),),
        admission=admission,
        slots=slots,
        order=order,
        drop=drop,
        learner=Learner(batch=4 * group, base_s=2.0),
        sync=Sync(mode),
        steps=steps,
    )


def books_for(c):
    size, batch = c.workload.group, c.groups_needed
    return Books(c.admission, c.order, c.drop, group=size, batch=batch, concurrent=c.slots // size)


DISCARD, REQUEUE = MaxStaleness(1), MaxStaleness(1, then="requeue")
CASES = [
    (admission, order, drop, mode)
    for admission in (Capacity(2), Capacity(0.5), FixedWidth(24, "unconsumed"))
    for order in (Order(1), Order(3), Order(None))
    for drop, mode in (
        (None, "interrupt"),
        (DISCARD, "interrupt"),
        (REQUEUE, "in_place"),
        (MaxStaleness(0, by="newest"), "in_place"),
        (MaxStaleness(2, running=False, then="requeue"), "interrupt"),
    )
]


@pytest.mark.parametrize(
    ("admission", "order", "drop", "mode"), CASES, ids=[f"{a}, {o.window}, {d}, {m}" for a, o, d, m in CASES]
)
def test_admissions_and_batches_are_the_simulators(admission, order, drop, mode):
    c = cluster(admission, order, drop, mode=mode)
    run = simulate(c, 3, engine="simpy", record=True)
    books = books_for(c)
    admitted, taken = replay(run, books)
    assert (admitted, taken) == recorded(run)
    assert len(taken) == 12
    g, fates = run.books.groups, books.fates()
    assert {number for number, fate in fates.items() if fate == "taken"} == set(g.prompt[g.taken].tolist())
    assert books.plays_dropped == g.dropped.sum()


def test_the_cases_drop_and_requeue_and_take_out_of_order():
    """That the agreement above is about something."""
    dropped = [simulate(cluster(*case[:3], mode=case[3]), 3).books.groups for case in CASES]
    assert sum(g.dropped.any() for g in dropped) >= 12
    assert sum(g.play.max() > 0 for g in dropped) >= 6
    run = simulate(cluster(Capacity(2), Order(3)), 3)
    taken = [positions for _, positions in replay(simulate(run.cluster, 3, record=True), books_for(run.cluster))[1]]
    order = [position for batch in taken for position in batch]
    assert order != sorted(order)


@pytest.mark.parametrize("admission", [Capacity(3), FixedWidth(12, "running"), FixedWidth(12, "unconsumed")], ids=str)
def test_slots_bind_as_in_the_simulator(admission):
    """With one rollout a group, where a slot is free for the next as soon as a rollout is over."""
    c = cluster(admission, Order(2), group=1, slots=5)
    run = simulate(c, 1, engine="simpy", record=True)
    admitted, taken = replay(run, books_for(c))
    assert (admitted, taken) == recorded(run)
    assert len({t for t, *_ in admitted}) > 20  # one by one, not a batch at a time


def test_a_queue_shorter_than_a_batch_is_served_as_in_the_simulator():
    """What may be taken is set aside at once and makes room: three are held, and a batch has four."""
    c = cluster(FixedWidth(3, "unconsumed"), Order(1), group=1)
    run = simulate(c, 1, engine="simpy", record=True)
    assert replay(run, books_for(c)) == recorded(run)


def test_survivorship_is_the_simulators():
    c = cluster(FixedWidth(24, "unconsumed"), Order(None), DISCARD)
    run = simulate(c, 3, engine="simpy", record=True)
    books = books_for(c)
    replay(run, books)
    found = books.survivorship(lambda number: number % 3, ("a", "b", "c"))
    theirs = survivorship(run, np.arange(1000) % 3, ("a", "b", "c"))
    for mine, other in zip(found, theirs, strict=True):
        assert (mine.name, mine.started, mine.trained) == (other.name, other.started, other.trained)
        assert mine.ratio == pytest.approx(other.ratio, rel=1e-12)
    assert min(row.trained for row in found) > 10
    assert min(row.started - row.trained for row in found) > 5
