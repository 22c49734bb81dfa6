"""Whatever happens in whatever order: no ticket is lost, none is handed over twice, and no rule is broken."""

import json
from dataclasses import astuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fullscale.rollout.books import Books, PlayersFailed
from fullscale.rollout.ledger import Ticket
from sim.cluster.scheduling import Capacity, FixedWidth, MaxStaleness, Order

of = st.sampled_from
ADMISSIONS = (Capacity(0), Capacity(0.5), Capacity(2), FixedWidth(6, "unconsumed"), FixedWidth(6, "running"))
DROPS = (
    None,
    MaxStaleness(0),
    MaxStaleness(1, then="requeue"),
    MaxStaleness(1, running=False, then="requeue"),
    MaxStaleness(0, by="newest", then="requeue"),
)


class Interleaved(RuleBasedStateMachine):
    """Players and a learner who do everything at any time, and sometimes save, stop and go on."""

    @initialize(
        admission=of(ADMISSIONS),
        order=of([Order(1), Order(2), Order(None)]),
        drop=of(DROPS),
        batch=st.integers(1, 3),
        concurrent=st.integers(1, 4),
        failures=of([None, 2]),
    )
    def begin(self, admission, order, drop, **sizes):
        self.made = lambda: Books(admission, order, drop, group=2, **sizes)
        self.books, self.away, self.plays, self.handed, self.version = self.made(), [], {}, [], 0

    @rule()
    def start(self):
        ticket = self.books.start()
        if ticket is not None:
            assert ticket.version == self.version
            assert self.plays.get(ticket.number, -1) in (ticket.play, ticket.play - 1)
            self.plays[ticket.number] = ticket.play
            self.away.append(ticket)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def come_back(self, data):
        ticket = self.away.pop(data.draw(st.integers(0, len(self.away) - 1)))
        dropped = ticket.position in self.books.abandoned
        if data.draw(st.booleans()):
            oldest, newest = sorted(data.draw(st.tuples(*[st.integers(ticket.version, self.version)] * 2)))
            known = data.draw(st.booleans())
            kept = self.books.complete(ticket, *((oldest, newest) if known else (-1, -1)), ticket)
            assert not (kept and dropped)
        else:
            assert self.books.fail(ticket, "x") == (not dropped)

    @rule(by=st.integers(0, 2))
    def publish(self, by):
        self.version += by
        self.books.publish(self.version)

    @rule(reaches=of([True, True, False]))
    def take(self, reaches):
        try:
            batch = self.books.take()
        except PlayersFailed:
            return
        if batch is None:
            if self.version >= self.books.batches:  # what was trained is published, so somebody can go on
                assert self.books.stuck() is None
            return
        assert [held.ticket for held in batch] == [held.value for held in batch]
        assert len(batch) == self.books.batch
        if not reaches:
            self.books.put_back(batch)
            return
        positions = [held.ticket.position for held in batch]
        assert positions == sorted(positions)
        if self.books.order.window == 1:
            assert positions[0] > max((position for _, position in self.handed), default=-1)
        self.handed += [(held.ticket.number, held.ticket.position) for held in batch]

    @rule()
    def stop_and_go_on(self):
        state = self.books.state()
        for row in state["ready"] + state["part"]:
            row["value"] = astuple(row["value"])
        state = json.loads(json.dumps(state))
        for row in state["ready"] + state["part"]:
            row["value"] = Ticket(*row["value"])
        before, self.books, self.away = self.books, self.made(), []
        self.books.load(state)
        was = before.fates()
        assert self.books.fates() == {n: "again" if fate == "running" else fate for n, fate in was.items()}

    @invariant()
    def every_number_has_one_fate(self):
        fates = self.books.fates()
        assert sorted(fates) == list(range(self.books.cursor))
        taken = [number for number, _ in self.handed]
        assert sorted(taken) == sorted(number for number, fate in fates.items() if fate == "taken")
        counts = self.books.counts()
        assert sum(counts[fate] for fate in ("running", "complete", "again", "taken", "dropped", "failed")) == len(
            fates
        )

    @invariant()
    def no_rule_is_broken(self):
        b, rule = self.books, self.books.admission
        assert len(b.running) <= b.concurrent
        if isinstance(rule, Capacity):
            accepted = len(b.ready) + len(b.part) + len(b.taken) + len(b.running)
            assert accepted <= (rule.eta + self.version + 1) * b.batch
        elif rule.of == "unconsumed":
            assert len(b.ready) + len(b.running) <= rule.width // 2
        if b.drop is not None:
            assert not any(b._old(held) for held in b.ready.values())


Interleaved.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestInterleaved = Interleaved.TestCase
