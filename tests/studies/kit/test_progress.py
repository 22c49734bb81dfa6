import pytest

from studies.kit import progress
from studies.kit.executors import Task, inline
from studies.kit.progress import Status, carry_out

TASKS = [Task("low", None, (3,), "s"), Task("low", None, (4,), "s"), Task("high", None, (3, 4), "s")]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (Status("low", 0, 0, 0, 12, 40, None), "low: 12 of 40 runs"),
        (Status("low, seed 3", 0, 0, 1, 12, 40, 11.0), "low, seed 3 (1 more at work): 12 of 40 runs; about 15 s left"),
        (Status("a, seed 3", 40, 100, 0, 12, 40, 371.0), "a, seed 3: step 40 of 100; 12 of 40 runs; about 6 min left"),
        (Status("low", 0, 0, 0, 40, 40, 0.0), "low: 40 of 40 runs"),
    ],
)
def test_words(status, words):
    assert status.words == words


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until it is moved."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_the_time_left_goes_by_what_was_done_here(clock):
    """Five runs, one of them stored: four to make, in three tasks. Every step takes 5 s and every run four of them."""

    def run(config, seeds, *, study, progress):
        for step in range(1, 5):
            clock.now += 5.0 * len(seeds)
            progress(step, 4)
        return list(seeds)

    seen = []
    made = list(carry_out(run, TASKS, inline, seen.append, 1, 5))
    assert [(task.label, result) for task, result in made] == [("low", [3]), ("low", [4]), ("high", [3, 4])]
    assert seen.pop() is None
    assert seen[0] == Status("low, seed 3", 0, 0, 0, 1, 5, None)  # nothing to go by
    lefts = [(status.point, status.step, status.done, status.left_s) for status in seen if status.steps]
    assert lefts[:2] == [("low, seed 3", 1, 1, 75.0), ("low, seed 3", 2, 1, 70.0)]  # a quarter of a run in 5 s
    assert lefts[4] == ("low, seed 4", 1, 2, 55.0)
    assert lefts[8] == ("high", 1, 3, 30.0)  # a block of two
    assert (seen[-1].done, seen[-1].left_s) == (5, 0.0)


def test_starting_up_is_no_part_of_the_pace(clock):
    def slow_start(run, tasks, report):
        clock.now += 600.0
        report(0, 0, 0)
        clock.now += 10.0
        report(0, 1, 2)
        yield 0, None

    seen = []
    list(carry_out(lambda: None, TASKS[:1], slow_start, seen.append, 0, 1))
    assert seen[2].left_s == 10.0


def test_what_other_processes_are_at_is_counted(clock):
    def two_at_once(run, tasks, report):
        report(1, 1, 4)
        report(0, 1, 2)
        yield 1, None
        yield 0, None

    seen = []
    list(carry_out(lambda: None, TASKS[:2], two_at_once, seen.append, 0, 2))
    assert [(status.point, status.step, status.others, status.done) for status in seen[1:-1]] == [
        ("low, seed 4", 1, 0, 0),
        ("low, seed 3", 1, 1, 0),  # the first in order is named
        ("low, seed 3", 1, 0, 1),
        ("low, seed 3", 0, 0, 2),
    ]


def test_the_line_is_taken_away_whatever_happens():
    def fails(run, tasks, report):
        report(0, 0, 0)
        raise KeyboardInterrupt
        yield

    seen = []
    with pytest.raises(KeyboardInterrupt):
        list(carry_out(lambda: None, TASKS, fails, seen.append, 0, 4))
    assert seen[-1] is None


def test_without_anyone_to_show_to_nothing_is_asked_of_the_run():
    def run(config, seeds, *, study, progress="not given"):
        return progress

    assert [result for _, result in carry_out(run, TASKS[:1], inline, None, 0, 1)] == ["not given"]
    assert list(carry_out(run, [], inline, None, 0, 0)) == []
