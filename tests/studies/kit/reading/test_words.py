from dataclasses import replace

import numpy as np
import pytest

from studies.kit.reading.alarms import Alarm, Alarms
from studies.kit.reading.fold import fold
from studies.kit.reading.formats import Problem
from studies.kit.reading.transitions import transitions
from studies.kit.reading.words import UNCALIBRATED, chosen, printable, report
from tests.studies.kit.reading.hand import Stream, episode


def flipping(steps=40, flip=20, rollouts=40):
    for step in range(steps):
        for i in range(rollouts):
            searches = (i % 10 != step % 10) == (step < flip)
            yield episode("search answer" if searches else "answer", step=step, task=i // 4, reward=float(i % 4 > 0))


@pytest.fixture(scope="module")
def flip():
    reading = fold(Stream(flipping()), 0, name="seed A")
    return reading, transitions(reading)


def section(lines, title):
    """The lines below a title that stand further in."""
    start = lines.index(title) + 1
    end = next((i for i in range(start, len(lines)) if not lines[i].startswith("  ")), len(lines))
    return lines[start:end]


def test_the_table_is_that_of_the_steps_around_the_flip(flip):
    reading, found = flip
    lines = report(reading, found)
    assert lines[0] == "seed A: by hand, 1,600 rollouts in 40 steps (0 to 39), 40 a step"
    assert [name for _, name in chosen(reading, found)] == ["first", "before", "after", "last"]
    assert [step for step, _ in chosen(reading, found)] == [0, 19, 20, 39]
    first = section(lines, "searching at")[0]
    assert " ".join(first.split()) == "turn 0 .90 [.77, .96] .90 [.77, .96] .10 [.04, .23] .10 [.04, .23]"
    solved = section(lines, "solved by the end of")
    assert solved[1].split()[2::3] == [".75"] * 4
    assert [line.split()[0] for line in section(lines, "way of working")] == ["guess", "search-answer"]


def test_the_transition_is_told_with_both_levels_and_that_it_is_uncalibrated(flip):
    lines = report(*flip)
    at = lines.index("  half-way at step 20")
    assert lines[at - 1] == f"({UNCALIBRATED})"
    told = {line.rsplit("  ", 1)[0].strip(): line for line in lines[at + 1 : at + 4]}
    assert " ".join(lines[at + 1].split()) == "answer first .10 -> .90"
    assert not any("never search" in line for line in lines)  # it says what the answers at turn 0 say
    assert "turns" in told


def test_a_run_that_does_not_move_has_no_transition():
    reading = fold(Stream(flipping(flip=99)), 0)
    lines = report(reading, transitions(reading))
    assert f"no transition found, looking back over 40 steps ({UNCALIBRATED})" in lines
    short = fold(Stream(flipping(3)), 0)
    assert "transitions are looked for in 12 steps or more" in report(short, transitions(short))


def test_what_is_absent_is_told_by_reason(flip):
    reading, found = flip
    why = "this layout holds text only"
    lines = report(replace(reading, absent={"KL": why, "entropy": why, "reward": "nobody gave one"}), found)
    assert section(lines, "not there") == [f"  KL, entropy: {why}", "  reward: nobody gave one"]


def test_problems_are_counted_and_the_first_are_shown(flip):
    reading, found = flip
    problems = tuple(Problem("a.jsonl", line, "no JSON", '{"x') for line in range(1, 9))
    lines = report(replace(reading, problems=problems, counts={"problems": 70, "damaged": 8}), found)
    assert lines[-6] == 'problem: a.jsonl, line 1: no JSON: {"x'
    assert lines[-1] == "70 problems in reading; the first 5 are above"
    assert "counted: 8 damaged" in lines


def test_names_from_a_file_cannot_write_to_the_terminal():
    reading = fold(Stream([episode("\x1b[31mred answer"), episode("answer")], notes=["\u202ea note"]), 0, name="a\x07b")
    text = "\n".join(report(reading, ()))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\u202e" not in text
    assert "\\x1b[31mred" in text
    assert printable("x" * 50) == "x" * 40 + "..."


def test_alarms_say_what_they_rest_on(flip):
    reading, found = flip
    given = Alarms(
        (Alarm("behaviour/answer_share/turn0", 17, 0.3, 0.9), Alarm("train/turns", None, 0.3, 0.1)),
        "cusum", 0.05, 20, tuple(range(30)), ("steps after 29 are not watched",),
    )  # fmt: skip
    lines = report(reading, found, given)
    at = lines.index("alarms (cusum), thresholds from 20 control runs, steps 0 to 29")
    assert lines[at + 1] == "(each by itself alarms in .05 of ordinary runs, one of the 2 in up to .1)"
    assert lines[at + 2] == "  answer first  step 17, 3 steps before half-way at 20"
    assert lines[at + 3] == "  turns         no alarm"
    assert "not watched" in lines[at + 4]
    refused = replace(given, alarms=(), refused="3 control runs promise nothing")
    assert "no alarms: 3 control runs promise nothing" in report(reading, found, refused)


def test_every_line_fits_and_long_runs_say_what_is_left_out():
    tools = [f"tool{i}" for i in range(12)]
    many = [episode(f"{a} {b} " * 5 + "answer", step=s) for s in range(2) for a in tools for b in tools[:3]]
    reading = fold(Stream(many), 0)
    lines = report(reading, ())
    assert any("turns 6 to 10 are in the record" in line for line in lines)
    assert len(section(lines, "way of working")) == 8
    assert np.max([len(line) for line in lines]) <= 150
