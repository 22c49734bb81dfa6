import contextlib
import io
import os
import pty
import re
import select
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest

from studies.kit import ticker
from studies.kit.progress import Status
from studies.kit.ticker import Ticker


class Line:
    """As much of pytest's terminal writer as a ticker uses; it counts what went through it, not what went past it."""

    def __init__(self, text, width):
        self.fullwidth, self._file, self._mine = width, io.StringIO(), ""
        self.write(text)

    @property
    def width_of_current_line(self):
        return len(self._mine.rsplit("\n", 1)[-1])

    def write(self, text):
        self._mine += text
        self._file.write(text)

    def line(self):
        self.write("\n")

    def flush(self):
        pass

    def getvalue(self):
        return self._file.getvalue()


@pytest.fixture
def made(monkeypatch):
    """Make a ticker, with what pytest has written before, and a clock to move."""
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(ticker, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def make(text="", *, isatty, verbosity=-1, width=80):
        line = Line(text, width)
        reporter = SimpleNamespace(isatty=isatty, _tw=line, verbosity=verbosity, currentfspath="study_x.py")
        capture = SimpleNamespace(global_and_fixture_disabled=contextlib.nullcontext)
        return Ticker(reporter, capture), line, reporter, clock

    return make


def at(done):
    return Status("low", 0, 0, 0, done, 40, None)


def screen(text):
    """What a terminal shows of text with the few controls that are used here."""
    rows, row, column = [""], 0, 0
    for control, count, plain in re.findall(r"\x1b\[(\d*)([AGK])|([\s\S])", text):
        count, control = (control, count) if count else ("", "")
        if control == "A":
            row -= 1
        elif control == "G":
            column = int(count) - 1
        elif control == "K":
            rows[row] = rows[row][:column]
        elif plain == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif plain == "\r":
            column = 0
        else:
            rows[row] = rows[row].ljust(column)[:column] + plain + rows[row][column + 1 :]
            column += 1
    return rows, (row, column)


def test_on_a_terminal_it_stands_below_and_the_cursor_goes_back(made):
    show, line, _, clock = made("SS?", isatty=True)
    show(at(9))
    assert screen(line.getvalue()) == (["SS?", "low: 9 of 40 runs"], (0, 3))
    clock.now += 1
    show(at(12))
    assert screen(line.getvalue()) == (["SS?", "low: 12 of 40 runs"], (0, 3))
    show(None)
    assert screen(line.getvalue()) == (["SS?", ""], (0, 3))


def test_on_a_terminal_it_is_not_redrawn_all_the_time_and_fits_the_width(made):
    show, line, _, clock = made(isatty=True, width=10)
    show(at(9))
    assert screen(line.getvalue())[0] == ["", "low: 9 of"]
    before = line.getvalue()
    clock.now += 0.1
    show(at(10))
    assert line.getvalue() == before


def test_a_log_gets_a_line_after_half_a_minute_of_quiet(made):
    show, line, _, clock = made("SS", isatty=False)
    for second in range(95):
        clock.now = 100.0 + second
        show(at(second))
    show(None)
    assert line.getvalue() == "SS\nlow: 30 of 40 runs\nlow: 60 of 40 runs\nlow: 90 of 40 runs\n"


def test_a_log_of_a_short_sweep_stays_as_it_was(made):
    show, line, _, clock = made("SS", isatty=False)
    for second in range(29):
        clock.now = 100.0 + second
        show(at(second))
    show(None)
    assert line.getvalue() == "SS"


def test_in_a_log_that_names_each_study_pytest_names_it_again(made):
    show, line, reporter, clock = made("study_x.py::study_x ", isatty=False, verbosity=1)
    clock.now += 31
    show(at(7))
    assert line.getvalue() == "study_x.py::study_x \nlow: 7 of 40 runs"
    assert reporter.currentfspath is None


STUDY = """
import time as clock
import numpy as np
from sim.records.fingerprint import code_fingerprint
from sim.records.run import Runs
from studies.kit import *

def train(config, seeds, *, study, progress):
    for step in range(4):
        progress(step, 4)
        clock.sleep(.4)
    x = np.ones((len(seeds), 1))
    return Runs(config, seeds, study, "sim", code_fingerprint("sim"), {"step": np.zeros((len(seeds), 1), int), "x": x})

@claim("swept", says="It ran.", kind=rate(), region=above(.3), seeds=6)
def study_swept(study):
    runs = study.sweep({"low": {"level": 1}}, run=train, block=3)
    study.conclude("swept", outcomes=runs["low"]["x"][:, 0] > 0)
"""


def test_on_a_real_terminal(tmp_path):
    (tmp_path / "study_swept.py").write_text(textwrap.dedent(STUDY))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", ".", "--processes", "1"]
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": str(Path.cwd())}
    terminal, inside = pty.openpty()
    running = subprocess.Popen(command, cwd=tmp_path, env=env, stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    shown = b""
    while select.select([terminal], [], [], 60)[0]:
        try:
            shown += os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
    os.close(terminal)
    assert running.wait(60) == 0
    text = shown.decode()
    assert "low: step 3 of 4; 0 of 6 runs; about " in text
    assert "low: step 2 of 4; 3 of 6 runs; about " in text
    rows, _ = screen(re.sub(r"\x1b\[[\d;]*m", "", text))
    assert re.match(r"S +\[100%\]", rows[0])  # pytest's line is whole, and nothing is left below it
    assert rows[1].startswith("=")
