import math
import threading
import time
from queue import Empty

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.tools.toolbox import Call, Patience, Status, Toolbox
from sim.records.config import ConfigError

PATIENCE = Patience(timeout_s=2.0, attempts=3, backoff_s=0.5, concurrent=8, left_behind=8)


class Time:
    """A clock that moves when every tool waits for it: what is slow takes no time, and what hangs is let go at the end."""

    def __init__(self):
        self.now = 0.0
        self.asleep = {}  # thread -> (when it wakes, its alarm)
        self.others = set(threading.enumerate())  # threads that other tests left hanging are no concern of this clock
        self.lock = threading.Lock()

    def clock(self):
        return self.now

    def sleep(self, seconds):
        alarm = threading.Event()
        with self.lock:
            self.asleep[threading.current_thread()] = (self.now + seconds, alarm)
        assert alarm.wait(20), "nobody moved the clock"

    def hang(self):
        self.sleep(math.inf)

    def let_go(self):
        for thread in list(self.asleep):
            self._wake(thread)

    def _wake(self, thread):
        with self.lock:
            _, alarm = self.asleep.pop(thread)
        alarm.set()

    def take(self, finished, wait_s):
        until = self.now + max(wait_s, 0.0)
        while True:
            mine = set(threading.enumerate()) - self.others
            busy = any(t.name.startswith("tool") and t not in self.asleep for t in mine)
            try:
                return finished.get_nowait()
            except Empty:
                if wait_s <= 0:
                    return None
            if busy:
                time.sleep(0.0005)
                continue
            when, thread = min(((when, t) for t, (when, _) in self.asleep.items()), default=(math.inf, None), key=first)
            if when > until:
                self.now = until
                return None
            self.now = when
            self._wake(thread)


def first(pair):
    return pair[0]


@pytest.fixture
def fake():
    made = Time()
    yield made
    made.let_go()


def box(fake, patience=PATIENCE):
    return Toolbox(patience, clock=fake.clock, take=fake.take)


def failing(times, fake, value="found", error=OSError):
    """A tool that fails so many times; it notes when it was asked."""
    asked = []

    def run():
        asked.append(fake.now)
        if len(asked) <= times:
            raise error(f"attempt {len(asked)}")
        return value

    return Call("search", run), asked


def test_replies_stand_in_the_order_of_the_calls_not_of_their_return(fake):
    calls = [Call("search", lambda d=d: (fake.sleep(d), d)[1]) for d in (1.5, 0.25, 1.0)]
    replies = box(fake).run(calls)
    assert [reply.value for reply in replies] == [1.5, 0.25, 1.0]
    assert [reply.latency_s for reply in replies] == [1.5, 0.25, 1.0]
    assert fake.now == 1.5  # all at once


def test_a_tool_that_fails_is_asked_again_after_pauses_that_double(fake):
    call, asked = failing(2, fake)
    (reply,) = box(fake).run([call])
    assert asked == [0.0, 0.5, 1.5]
    assert (reply.status, reply.value, reply.attempts, reply.latency_s) == (Status.OK, "found", 3, 1.5)


def test_failure_after_the_last_attempt_is_a_reply(fake):
    call, asked = failing(99, fake, error=KeyError)
    good, _ = failing(0, fake)
    bad, other = box(fake).run([call, good])
    assert (bad.status, bad.failed, bad.value, len(asked)) == (Status.ERROR, True, None, 3)
    assert bad.reason == "search, 3 of 3 attempts: KeyError: 'attempt 3'"
    assert isinstance(bad.cause, KeyError)
    assert (other.status, other.value) == (Status.OK, "found")


def test_a_hanging_tool_is_left_behind_and_nobody_waits_for_it(fake):
    good, _ = failing(0, fake)
    made = box(fake)
    hung, other = made.run([Call("search", fake.hang), good])
    assert (hung.status, hung.attempts) == (Status.TIMEOUT, 3)
    assert hung.latency_s == 2 + 0.5 + 2 + 1 + 2
    assert other.value == "found"
    assert made.left_behind == 3


def test_a_reply_that_comes_too_late_is_not_used(fake):
    durations = iter([3.0, 0.125])  # the first attempt comes back at 3, when the second has long been asked
    call = Call("search", lambda: (d := next(durations), fake.sleep(d))[0])
    (reply,) = box(fake).run([call])
    assert (reply.status, reply.value, reply.attempts, reply.latency_s) == (Status.OK, 0.125, 2, 2.625)


def test_how_many_are_left_behind_is_bounded_and_they_count_while_they_run(fake):
    made = box(fake, Patience(timeout_s=1.0, attempts=1, concurrent=1, left_behind=2))
    replies = made.run([Call("search", fake.hang)] * 5)
    assert [reply.status for reply in replies] == [Status.TIMEOUT] * 2 + [Status.REFUSED] * 3
    assert [reply.attempts for reply in replies] == [1, 1, 0, 0, 0]
    assert made.left_behind == 2
    assert "2 late calls are still running" in replies[-1].reason
    fake.let_go()
    for thread in threading.enumerate():
        if thread.name.startswith("tool"):
            thread.join(5)
    assert made.left_behind == 0
    assert made.run([Call("search", lambda: "again")])[0].value == "again"


def test_calls_run_at_once_as_many_as_may():
    running, most, lock = [], [], threading.Lock()
    meet = threading.Barrier(3, timeout=10)  # nobody passes before three are there

    def run():
        with lock:
            running.append(None)
            most.append(len(running))
        meet.wait()
        with lock:
            running.pop()

    replies = Toolbox(Patience(timeout_s=20.0, concurrent=3, attempts=1)).run([Call("search", run)] * 9)
    assert all(reply.status is Status.OK for reply in replies)
    assert max(most) == 3


def test_a_tool_that_leaves_the_program_has_failed(fake):
    (reply,) = box(fake).run([Call("search", lambda: exit(3))])
    assert (reply.status, reply.reason[-13:]) == (Status.ERROR, "SystemExit: 3")


def test_a_tool_may_itself_run_calls():
    made = Toolbox()
    outer = Call("agent", lambda: [r.value for r in made.run([Call("search", lambda i=i: i) for i in (1, 2)])])
    assert [reply.value for reply in made.run([outer, outer])] == [[1, 2], [1, 2]]


def test_no_calls_no_replies():
    assert Toolbox().run([]) == []


def test_the_program_ends_while_a_tool_hangs(fresh_python):
    program = """
import threading
from fullscale.tools.toolbox import Call, Patience, Toolbox
box = Toolbox(Patience(timeout_s=0.05, attempts=2, backoff_s=0.0))
print([r.status.value for r in box.run([Call("search", threading.Event().wait), Call("search", lambda: 1)])])
"""
    assert fresh_python(program) == "['timeout', 'ok']\n"


SCRIPTS = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.25, 1.75, 2.5, math.inf])), min_size=1, max_size=6
)


def scripted(fake, fails, seconds):
    tries = []

    def run():
        tries.append(None)
        if seconds:
            fake.sleep(seconds)
        if len(tries) <= fails:
            raise OSError(len(tries))
        return (fails, seconds)

    return Call("search", run)


@given(SCRIPTS)
def test_a_reply_depends_on_its_own_call_alone(scripts):
    fake = Time()
    try:
        patience = Patience(timeout_s=2.0, attempts=3, backoff_s=0.5, concurrent=64, left_behind=64)
        replies = box(fake, patience).run([scripted(fake, *each) for each in scripts])
        for (fails, seconds), reply in zip(scripts, replies, strict=True):
            late, pauses = seconds > 2.0, (0.0, 0.5, 1.5)
            tries = 3 if late else min(fails + 1, 3)
            expected = Status.TIMEOUT if late else Status.ERROR if fails >= 3 else Status.OK
            assert (reply.status, reply.attempts) == (expected, tries)
            assert reply.latency_s == tries * min(seconds, 2.0) + pauses[tries - 1]
            assert reply.value == (None if reply.failed else (fails, seconds))
    finally:
        fake.let_go()


@pytest.mark.parametrize(
    ("field", "value"),
    [("timeout_s", 0.0), ("backoff_s", -1.0), ("attempts", 0), ("concurrent", 0), ("left_behind", 0)],
)
def test_impatience_beyond_reason_is_refused(field, value):
    with pytest.raises(ConfigError, match=f"{field} = {value}"):
        Patience(**{field: value})
