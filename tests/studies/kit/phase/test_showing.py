import doctest

import pytest

from studies.kit.phase import showing as module
from studies.kit.phase import words
from studies.kit.phase.running import Progress
from studies.kit.phase.showing import Pace, showing
from studies.kit.progress import Status


def status(done, total=10):
    return Status("p: a", 0, 0, 0, done, total, 75.0)


@pytest.mark.parametrize("each", [module, words])
def test_the_examples_hold(each):
    found = doctest.testmod(each)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_pace_counts_what_is_made_now():
    pace = Pace()
    assert pace(status(4), 100.0) is None  # four were there before
    assert pace(status(6), 100.5) is None
    assert pace(status(8), 102.0) == pytest.approx(2.0)
    assert pace(status(0, total=20), 200.0) is None  # another round
    assert pace(status(6, total=20), 203.0) == pytest.approx(2.0)


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with showing() as watch:
        for second in range(100):
            now[0] = float(second)
            watch(Progress(second, 100, 1, status(second // 10)))
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "30 of 100 points (1 failed); 3 of 10 runs, .1 a second; about 75 s left",
        "60 of 100 points (1 failed); 6 of 10 runs, .1 a second; about 75 s left",
        "90 of 100 points (1 failed); 9 of 10 runs, .1 a second; about 75 s left",
    ]
