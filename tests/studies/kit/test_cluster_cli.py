import json

import pytest

from sim.cluster.events import EventLog, Kind
from sim.cluster.measures import summary
from sim.cluster.presets import PRESETS, areal
from sim.cluster.run import simulate
from sim.records.config import replace
from studies.kit import cli

SMALL = (
    "--set",
    "steps=3",
    "learner.batch=16",
    "workload.group=4",
    "engines.count=2",
    "--skip",
    "1",
    "--engine",
    "simpy",
)
SMALLER = {"steps": 3, "learner.batch": 16, "workload.group": 4, "engines.count": 2}


def call(*arguments):
    return cli.main(["cluster", *(str(argument) for argument in arguments)])


def test_without_a_preset_all_are_listed(capsys):
    assert call() == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if not line.startswith(" ")] == list(PRESETS)
    assert "AReaL: the capacity rule" in out


def test_a_run_in_numbers(capsys):
    assert call("areal", *SMALL) == 0
    out = capsys.readouterr().out
    run = simulate(replace(areal(), SMALLER), 0, engine="simpy")
    assert "areal: 3 versions, seed 0" in out
    assert f"{summary(run, 1)['time of a version, s']:.3g}"[:3] in out
    assert len(out.splitlines()) == 1 + len(summary(run, 1))


def test_replicas_have_intervals_from_five_on(capsys):
    assert call("areal", *SMALL, "--replicas", 5) == 0
    assert "[" in capsys.readouterr().out
    assert call("areal", *SMALL, "--replicas", 2) == 0
    out = capsys.readouterr().out
    assert "[" not in out
    assert "five replicas or more" in out


def test_what_it_writes_can_be_read(tmp_path, capsys):
    timeline, gantt, log = tmp_path / "t.json", tmp_path / "g.svg", tmp_path / "l.npz"
    assert call("areal", *SMALL, "--timeline", timeline, "--gantt", gantt, "--log", log, "--window", 0, 60) == 0
    assert capsys.readouterr().out.count("wrote") == 3
    spans = [event for event in json.loads(timeline.read_text())["traceEvents"] if event["ph"] == "X"]
    assert spans
    assert max(span["ts"] + span["dur"] for span in spans) <= 60e6 + 1
    assert "<svg" in gantt.read_text()
    assert len(EventLog.load(log).of_kind(Kind.VERSION)) == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("arael",), "no preset 'arael'; did you mean 'areal'"),
        (("areal", "--set", "learner.bach=3"), "Learner has no field 'bach'; did you mean batch"),
        (("areal", "--set", "steps"), "give KEY=VALUE"),
        (("areal", "--set", "learner.batch=33"), "batch = 33 is no multiple of the group of 8"),
        (("areal", "--replicas", 0), "replicas = 0 must be at least 1"),
        (("areal", "--replicas", 2, "--log", "x.npz"), "would show one of 2 replicas"),
        (("areal", "--log", "x.csv"), "should end in .npz or .parquet"),
        (("areal", "--gantt", "nowhere/x.svg"), "there is no folder nowhere"),
        (
            ("areal", *SMALL[:-4], "--engine", "simpy", "--skip", 3),
            "skip = 3 must be at least 0 and below the 3 versions",
        ),
    ],
)
def test_what_cannot_be_done_is_said(arguments, words, capsys):
    assert call(*arguments) == 2
    assert words in capsys.readouterr().err
