"""A run in lines, by hand: what stands where, and what is said of what was not measured."""

import io
from dataclasses import replace

import numpy as np
import pytest

from fullscale.agent import showing
from fullscale.agent.showing import Table, bar
from fullscale.environment import Task
from sim.learning.setup import Evaluation
from sim.mdp.worlds import Verify, World
from tests.fullscale.agent.small import begin, training


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when told to."""
    now = [100.0]
    monkeypatch.setattr(showing.time, "monotonic", lambda: now[0])
    return now


def made(turns=2, actions=("search", "answer"), **more):
    row = {
        "step": 0,
        "train/reward": 0.25,
        "behaviour/solved_share": 0.5,
        "behaviour/tool_share": 0.75,
        "drift/kl_token": 1.5e-3,
        "entropy/token": 2.125,
        "mismatch/mean": 3e-6,
        "mismatch/max": 2e-5,
    }
    for i, name in enumerate(actions):
        row |= {f"behaviour/{name}_share/turn{t}": (i + 1) / 8 + t / 4 for t in range(turns)}
    return row | more


def shown(rows, clock=None, turns=2, steps=12, after_s=0.0, **world):
    out = io.StringIO()
    config = replace(training(steps=steps), task=Task(World(turns=turns, **world)))
    table = Table(config, out)
    for row in rows:
        if clock is not None:
            clock[0] += after_s
        table.row(row)
    return out.getvalue().splitlines()


def test_a_line_by_hand(clock):
    header, line = shown([made()], clock, after_s=7.4)
    assert header.split() == (
        [
            "step",
            "reward",
            "solved",
            "tools",
            "search",
            "by",
            "turn",
            "answer",
            "by",
            "turn",
            "KL/token",
            "entropy",
            "|engine",
            "-",
            "learner|",
            "s",
        ]
    )
    assert line.split() == (
        [
            "1/12",
            "0.250",
            "0.500",
            "0.75",
            "0.12",
            "0.38",
            "0.25",
            "0.50",
            "1.5e-03",
            "2.125",
            "3e-06",
            "max",
            "2e-05",
            "7",
        ]
    )


def test_numbers_stand_under_their_words():
    header, line = shown([made()])
    for word, number in (("reward", "0.250"), ("solved", "0.500"), ("tools", "0.75"), ("entropy", "2.125")):
        assert header.index(word) + len(word) == line.index(number) + len(number)
    assert header.index("search by turn") == line.index("0.12")
    assert header.index("answer by turn") == line.index("0.25 0.50")


@pytest.mark.parametrize("turns", [1, 2, 4, 12])
def test_columns_stay_in_line_with_any_number_of_turns_and_tools(turns):
    world = {"verify": Verify()}
    actions = ("search", "verify", "answer")
    header, line = shown([made(turns, actions)], turns=turns, **world)
    for name in actions:
        first = f"{made(turns, actions)[f'behaviour/{name}_share/turn0']:.2f}"
        assert line[header.index(f"{name} by turn") :].startswith(first)
    assert header.index("entropy") + len("entropy") == line.index("2.125") + len("2.125")


def test_the_header_comes_once_and_time_is_that_of_each_step(clock):
    lines = shown([made(), made(step=1), made(step=11)], clock, after_s=3.0)
    assert len(lines) == 4
    assert [line.split()[0] for line in lines] == ["step", "1/12", "2/12", "12/12"]
    assert [line.split()[-1] for line in lines[1:]] == ["3", "3", "3"]


def test_held_out_numbers_have_a_line_of_their_own_where_there_are_any():
    looked = {"eval/reward": 0.5, "eval/solved_share": 0.625, "eval/tool_share": 1.0, "eval/closed_book": 0.125}
    lines = shown([made(**looked), made(step=1, **dict.fromkeys(looked, float("nan"))), made(step=2)])
    assert len(lines) == 5
    assert lines[2].split() == ["held", "out", "0.500", "0.625", "1.00", "without", "any", "tool", "0.125"]
    assert lines[2].index("0.625") == lines[1].index("0.500")  # under solved


def test_what_was_not_measured_is_not_a_number():
    absent = dict.fromkeys(("train/reward", "drift/kl_token", "entropy/token", "mismatch/mean", "mismatch/max"), np.nan)
    _, line = shown([made(**absent)])
    assert line.split().count("nan") == 5
    assert "0.50" in line


def test_it_shows_the_rows_of_a_run():
    out = io.StringIO()
    c = training(steps=2, evaluation=Evaluation(every=2, prompts=1, group=1))
    run = begin(c)
    table = Table(c, out)
    columns = run.go(table.row)
    header, first, held_out, second = out.getvalue().splitlines()
    assert first.split()[:2] == ["1/2", f"{columns['train/reward'][0]:.3f}"]
    assert held_out.split()[:3] == ["held", "out", f"{columns['eval/reward'][0]:.3f}"]
    assert f"{columns['entropy/token'][1]:.3f}" in second
    assert header.startswith("     step")


def test_work_that_takes_long_says_so_now_and_then(clock, capsys):
    report = bar("supervised start")
    for done in range(1, 7):
        clock[0] += 4.0
        report(done, 6)
    assert capsys.readouterr().out.splitlines() == [
        "supervised start: 1 of 6",
        "supervised start: 4 of 6",
        "supervised start: 6 of 6",
    ]
