"""The timeline of the story, span by span; every rule of the format broken once; random runs give sound traces."""

import copy
import gzip
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import timeline
from sim.cluster.events import EventLog, Kind
from sim.cluster.timeline import Names, trace_events, validate_trace, write_timeline
from tests.sim.cluster.legal_logs import LEGAL_LOGS, STORY, story

NAMES = Names(engines=("left",), pools=("search",))


def whole(start_s=None, end_s=None):
    data = trace_events(story(), start_s, end_s, names=NAMES)
    assert validate_trace(data) == []
    return data


def told(data):
    """Names of processes and of tracks."""
    events = data["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return processes, {e["tid"]: (processes[e["pid"]], e["args"]["name"]) for e in events if e["name"] == "thread_name"}


def found(data, **wanted):
    """Events with these values, as (process, track, name, ts in s, dur in s)."""
    _, tracks = told(data)
    return [
        (*tracks[e["tid"]], e["name"], e["ts"] / 1e6, e.get("dur", 0) / 1e6)
        for e in data["traceEvents"]
        if all(e.get(key) == value for key, value in wanted.items())
    ]


def counter(data, process, name):
    processes, _ = told(data)
    return [
        (e["ts"] / 1e6, e["args"]["value"])
        for e in data["traceEvents"]
        if e["ph"] == "C" and (processes[e["pid"]], e["name"]) == (process, name)
    ]


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_processes_and_tracks_have_names():
    processes, tracks = told(whole())
    assert processes == {1: "learner", 2: "slots", 3: "left", 4: "search"}
    assert sorted(tracks.values()) == [
        ("learner", "training"),
        ("left", "load 0"),
        ("left", "sequence 0"),
        ("left", "sequence 1"),
        ("search", "server 0"),
        ("slots", "slot 0"),
        ("slots", "slot 1"),
    ]


def test_trajectories_are_in_slots_that_are_used_again():
    assert found(whole(), cat="trajectory") == [
        ("slots", "slot 0", "traj 0", 0.0, 7.0),
        ("slots", "slot 1", "traj 1", 0.0, 5.0),
        ("slots", "slot 1", "traj 2", 6.0, 3.0),
        ("slots", "slot 0", "traj 3", 8.75, 1.25),
    ]


def test_chunks_are_on_their_engine_and_inside_their_trajectory():
    chunks = found(whole(), cat="chunk")
    assert [span for span in chunks if span[0] == "left"] == [
        ("left", "sequence 1", "v0 traj 1", 0.0, 3.0),
        ("left", "sequence 0", "v0 traj 0", 0.0, 2.0),
        ("left", "sequence 1", "v0 traj 2", 6.0, 1.5),
        ("left", "sequence 0", "v0 traj 0", 6.0, 1.0),
        ("left", "sequence 0", "v1 traj 2", 8.0, 1.0),
        ("left", "sequence 0", "v1 traj 3", 9.0, 1.0),
    ]
    assert [span[2:] for span in chunks if span[0] == "slots"] == [span[2:] for span in chunks if span[0] == "left"]


def test_tools_loads_training_and_versions():
    data = whole()
    assert found(data, cat="tool", pid=4) == [
        ("search", "server 0", "traj 0", 2.0, 2.0),
        ("search", "server 0", "traj 1", 4.0, 1.0),
        ("search", "server 0", "traj 0", 5.0, 1.0),
    ]
    assert found(data, cat="engine") == [("left", "load 0", "load v1", 7.5, 0.5)]
    assert found(data, cat="train") == [("learner", "training", "step 1", 8.5, 1.0)]
    assert [mark[2:4] for mark in found(data, ph="i")] == [
        ("version 1", 7.5),
        ("version 2", 9.5),
        ("group 1 dropped: run over", 10.0),
    ]


def test_arguments():
    args = {(e["cat"], e["pid"], e["ts"]): e["args"] for e in whole()["traceEvents"] if e["ph"] == "X"}
    assert args["trajectory", 2, 6e6] == {
        "traj": 2,
        "group": 1,
        "member": 0,
        "kind": 0,
        "version": 0,
        "turns": 1,
        "reward": 1.0,
        "outcome": "traj_end",
    }
    assert args["chunk", 3, 8e6] == {
        "traj": 2,
        "group": 1,
        "turn": 0,
        "version": 1,
        "context": 25.0,
        "tokens": 45.0,
        "outcome": "gen_end",
    }
    assert args["tool", 4, 5e6] == {"traj": 0, "group": 0, "turn": 0, "attempt": 1, "outcome": "tool_end"}
    assert args["train", 1, 8.5e6] == {
        "step": 1,
        "mini_batch": 0,
        "version": 1,
        "tokens": 60.0,
        "groups": [0],
        "outcome": "train_end",
    }


def test_an_arrow_leads_from_the_last_trajectory_of_a_group_to_the_step_that_took_it():
    data = whole()
    assert found(data, ph="s") == [("slots", "slot 0", "group 0", pytest.approx(7.0, abs=2e-9), 0.0)]
    assert found(data, ph="f") == [("learner", "training", "group 0", 8.5, 0.0)]
    assert [e["id"] for e in data["traceEvents"] if e["ph"] in "sf"] == [0, 0]


def test_counters():
    """Group 0 is complete at 7, one version old from 7.5 on, and taken at 8.5."""
    data = whole()
    active = [(0.0, 2), (2.0, 1), (3.0, 0), (6.0, 2), (7.0, 1), (7.5, 0), (8.0, 1), (9.0, 1), (10.0, 0)]
    assert counter(data, "left", "active sequences") == active
    assert counter(data, "search", "in service") == [(0.0, 0), (2.0, 1), (4.0, 1), (5.0, 1), (6.0, 0)]
    assert counter(data, "search", "waiting") == [(0.0, 0), (3.0, 1), (4.0, 0), (4.5, 1), (5.0, 0)]
    assert counter(data, "learner", "buffered groups") == [(0.0, 0), (7.0, 1), (8.5, 0)]
    assert counter(data, "learner", "mean lag") == [(0.0, 0), (7.0, 0), (7.5, 1), (8.5, 0), (9.5, 0)]
    running = [(0.0, 2), (5.0, 1), (6.0, 2), (7.0, 1), (8.75, 2), (9.0, 1), (10.0, 0)]
    assert counter(data, "slots", "running trajectories") == running


def test_the_mean_lag_of_the_buffer_weighs_tokens():
    """A trajectory with 10 tokens of version 0 and 30 of version 1 is 0.25 behind version 1, and 1.25 behind version 2."""
    rows = [
        (0.0, Kind.GROUP_ADMIT, 0, -1, 0, 0, 0.0),
        (0.0, Kind.TRAJ_START, 0, 0, 0, 0, 0.0),
        (0.0, Kind.GEN_START, 0, 0, 0, 0, 0.0),
        (1.0, Kind.VERSION, -1, -1, -1, 1, 0.0),
        (1.0, Kind.SYNC_START, -1, -1, -1, 1, 0.0),
        (1.0, Kind.GEN_PAUSE, 0, 0, 0, 0, 10.0),
        (1.0, Kind.SYNC_END, -1, -1, -1, 1, 0.0),
        (1.0, Kind.GEN_START, 0, 0, 0, 1, 10.0),
        (2.0, Kind.GEN_END, 0, 0, 0, 1, 30.0),
        (2.0, Kind.TRAJ_END, 0, 0, 1, 1, math.nan),
        (2.0, Kind.GROUP_READY, 0, -1, -1, 1, 1.0),
        (3.0, Kind.VERSION, -1, -1, -1, 2, 0.0),
        (4.0, Kind.STOP, -1, -1, -1, -1, 0.0),
        (4.0, Kind.GROUP_DROP, 0, -1, -1, 2, 3.0),
    ]
    data = trace_events(EventLog.of(rows))
    assert counter(data, "learner", "mean lag") == [(0.0, 0), (1.0, 0), (2.0, 0.25), (3.0, 1.25), (4.0, 0)]
    assert found(data, cat="engine") == [("learner", "load on all engines 0", "load v1", 1.0, 0.0)]
    assert next(e for e in data["traceEvents"] if e.get("cat") == "trajectory")["args"]["reward"] is None


def test_spans_are_cut_at_the_edges_of_the_window_and_say_so():
    data = whole(2.5, 6.5)
    assert found(data, cat="trajectory") == [
        ("slots", "slot 0", "traj 0", 2.5, 4.0),
        ("slots", "slot 1", "traj 1", 2.5, 2.5),
        ("slots", "slot 1", "traj 2", 6.0, 0.5),
    ]
    spans = [e for e in data["traceEvents"] if e["ph"] == "X"]
    assert all(2.5e6 <= e["ts"] <= e["ts"] + e["dur"] <= 6.5e6 for e in spans)
    uncut = {(e["cat"], e["args"]["traj"], e["ts"]) for e in spans if "cut" not in e["args"]}
    assert uncut == {("tool", 1, 4e6), ("tool", 0, 5e6)}
    assert counter(data, "left", "active sequences") == [(2.5, 1), (3.0, 0), (6.0, 2)]
    assert found(data, ph="s") == found(data, ph="i") == []
    assert data["metadata"] == {"clock": "simulated", "start_s": 2.5, "end_s": 6.5, "events": len(STORY)}


def test_what_the_log_leaves_open_says_so():
    data = trace_events(EventLog.of(STORY[:21]), 0.0, 9.0)
    assert validate_trace(data) == []
    outcome = {e["args"]["traj"]: e["args"]["outcome"] for e in data["traceEvents"] if e.get("cat") == "trajectory"}
    assert outcome == {0: "open", 1: "traj_end", 2: "open"}


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_holds_the_trace_and_its_compression_no_time_of_day(tmp_path):
    write_timeline(story(), tmp_path / "a.json", names=NAMES)
    write_timeline(story(), tmp_path / "a.json.gz", names=NAMES)
    write_timeline(story(), tmp_path / "b.json.gz", names=NAMES)
    assert json.loads((tmp_path / "a.json").read_text()) == whole()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.json.gz", "b.json.gz"]


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_timeline(story(), path)
    before = path.read_bytes()
    monkeypatch.setattr("pathlib.Path.replace", lambda self, target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_timeline(story(), path, 2.0, 3.0)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_too_many_events_want_a_window(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "MOST_EVENTS", 40)
    with pytest.raises(ValueError, match=r"all 41 events would not open, at most 40 .*: give start_s and end_s"):
        write_timeline(story(), tmp_path / "a.json", start_s=1.0)
    write_timeline(story(), tmp_path / "a.json", 1.0, 2.0)


# --- the check --------------------------------------------------------------------------------------------------------


def _sound():
    """A track with a span inside a span, one begun and ended by itself, an arrow between them, and a counter."""
    track = {"pid": 1, "tid": 10}
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "p"}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 10, "args": {"name": "t"}},
            {"ph": "X", "name": "outer", "ts": 0.0, "dur": 10.0, **track},
            {"ph": "X", "name": "inner", "ts": 2.0, "dur": 8.0, **track},
            {"ph": "s", "name": "arrow", "cat": "c", "id": 7, "ts": 9.0, **track},
            {"ph": "B", "name": "by itself", "ts": 10.0, **track},
            {"ph": "f", "bp": "e", "name": "arrow", "cat": "c", "id": 7, "ts": 11.0, **track},
            {"ph": "E", "name": "by itself", "ts": 12.0, **track},
            {"ph": "C", "name": "count", "ts": 1.0, "pid": 1, "tid": 0, "args": {"value": 2}},
        ],
    }


def _edit(index, **values):
    def change(data):
        data["traceEvents"][index].update(values)

    return change


def _drop(index):
    return lambda data: data["traceEvents"].pop(index)


BROKEN = [
    (lambda data: data.update(displayTimeUnit="s"), 'displayTimeUnit must be "ms" or "ns"'),
    (_edit(3, ph="Q"), "event 3: phase 'Q' must be one of X, B, E, i, s, f, C or M"),
    (_edit(3, tid="10"), "event 3: pid and tid must be integers"),
    (_edit(3, ts=math.nan), "event 3: ts = nan must be a number of at least 0"),
    (_edit(3, dur=-1.0), "event 3: dur = -1.0 must be a number of at least 0"),
    (_edit(8, args={"value": "2"}), "event 8: counter 'count' has args {'value': '2'}, which must be numbers"),
    (_edit(8, args={}), "event 8: counter 'count' has args {}, which must be numbers"),
    (
        lambda data: data["traceEvents"].append({**data["traceEvents"][8], "ts": 0.5}),
        "event 9: ts falls from 1.0 to 0.5 on track (1, 0)",
    ),
    (_edit(3, dur=8.5), "event 3: crosses event 2 (outer) on track (1, 10)"),
    (_drop(7), 'event 5: "B" on track (1, 10) has no "E"'),
    (
        lambda data: data["traceEvents"].append({**data["traceEvents"][7], "ts": 13.0}),
        'event 9: "E" on track (1, 10) ends',
    ),
    (_drop(4), "arrow 7 has ends ['f'], must have ['s', 'f']"),
    (_drop(6), "arrow 7 has ends ['s'], must have ['s', 'f']"),
    (_edit(6, id=8), "arrow 7 has ends ['s'], must have ['s', 'f']"),
    (_edit(6, bp="x"), 'event 6: arrow 7 binds to the next span, as its "bp" is not "e"'),
    (
        lambda data: data["traceEvents"].append({**data["traceEvents"][6], "ts": 12.5, "id": 8}),
        "event 9: an end of arrow 8 lies in no span of track (1, 10)",
    ),
    (_drop(0), "process 1 has no name"),
    (_drop(1), "track (1, 10) has no name"),
]


def test_a_sound_trace_passes():
    assert validate_trace(_sound()) == []


@pytest.mark.parametrize(("change", "message"), BROKEN, ids=[message[:40] for _, message in BROKEN])
def test_a_broken_rule_is_named(change, message):
    data = copy.deepcopy(_sound())
    change(data)
    assert [found for found in validate_trace(data) if found.startswith(message)], validate_trace(data)


def test_what_is_no_trace_is_named():
    assert validate_trace([]) == validate_trace({"events": []}) == ['a trace is an object with a list "traceEvents"']


# --- properties -------------------------------------------------------------------------------------------------------


@given(log=LEGAL_LOGS, edges=st.tuples(st.floats(0, 30), st.floats(0.25, 30)))
def test_every_window_of_every_run_is_sound(log, edges):
    first, length = edges
    data = json.loads(json.dumps(trace_events(log, first, first + length), allow_nan=False))
    assert validate_trace(data) == []


@given(log=LEGAL_LOGS)
def test_all_time_spent_is_shown(log):
    if log.t_s[-1] == 0:
        return
    events = trace_events(log)["traceEvents"]
    for cat, kind, shown in (
        ("trajectory", Kind.TRAJ_START, 1),
        ("chunk", Kind.GEN_START, 2),
        ("tool", Kind.TOOL_START, 2),
    ):
        mine = [e for e in events if e.get("cat") == cat]
        assert len(mine) == shown * len(log.of_kind(kind))
    chunks = sum(e["dur"] for e in events if e.get("cat") == "chunk" and e["pid"] != 2)
    starts = sum(log.t_s[log.of_kind(Kind.GEN_START)])
    ends = sum(log.t_s[log.of_kind(Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT, Kind.GEN_ABORT)])
    assert chunks / 1e6 == pytest.approx(ends - starts)
