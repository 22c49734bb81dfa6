"""The Trace Event format, which Perfetto and chrome://tracing open: a writer, and a check of what was written.

Spans are complete events ("X"), arrows flow events ("s", "f"), marks instants ("i"), numbers counters ("C"). Times are
microseconds; inside they are whole nanoseconds, so that what touches does not overlap by rounding. Source: "Trace Event
Format" (Google, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.events import Kind
from sim.cluster.spans import Spans, lanes

__all__ = ["Trace", "validate_trace"]

_TRACKS = (
    100_000  # tracks per process: numbered apart, as viewers take one numbered like its process for its main thread
)
_OUTCOMES = [kind.name.lower() for kind in Kind]
_PHASES = ("X", "B", "E", "i", "s", "f", "C")


class Trace:
    """The events so far, each with its time, by which they are put in order at the end."""

    def __init__(self, start_s: float, end_s: float) -> None:
        self.window = (start_s, end_s)
        self._found: list[tuple[tuple[int, int, int], dict[str, Any]]] = []
        self._names: list[dict[str, Any]] = []

    def process(self, pid: int, name: str) -> None:
        """Name a process; they stand in the order of their numbers."""
        self._name(pid, 0, "process_name", {"name": name})
        self._name(pid, 0, "process_sort_index", {"sort_index": pid})

    def track(self, pid: int, number: int, name: str) -> int:
        """Name a track of a process, and return what it is called by the other methods."""
        track = _TRACKS * pid + number
        self._name(pid, track, "thread_name", {"name": name})
        self._name(pid, track, "thread_sort_index", {"sort_index": number})
        return track

    def lanes(self, of: Spans, pid: int, name: str, first: int = 0) -> NDArray[np.int64]:
        """Return the track of each span, in as many tracks (from number `first` on) as it takes for none to overlap."""
        lane = lanes(of)
        for number in range(int(lane.max(initial=-1)) + 1):
            self.track(pid, first + number, f"{name} {number}")
        return lane + (_TRACKS * pid + first)

    def spans(
        self,
        of: Spans,
        tracks: NDArray[np.int64] | int,
        category: str,
        name: Callable[[int], str],
        args: Callable[[int, int], dict[str, Any]],
    ) -> None:
        """Add spans, cut to the window. `name` is called with the row that opens each, `args` also with that of its end."""
        first, last = self.window
        rows = (of.start, of.end, of.start_s, of.end_s, np.broadcast_to(tracks, len(of)))
        for start, end, begin_s, end_s, track in zip(*(column.tolist() for column in rows), strict=True):
            begin, stop = _ns(max(begin_s, first)), _ns(min(end_s, last))
            outcome = _OUTCOMES[int(of.log.kind[end])] if end >= 0 else "open"
            cut = {"cut": True} if begin_s < first or end_s > last else {}
            told = {**args(start, end), "outcome": outcome, **cut}
            event = {"ph": "X", **_on(track), "cat": category, "name": name(start), "dur": (stop - begin) / 1e3}
            self._add(begin, 0, {**event, "args": told}, begin - stop)

    def mark(self, t_s: float, track: int, name: str) -> None:
        """Add a mark, if it is within the window."""
        if self.window[0] <= t_s <= self.window[1]:
            self._add(_ns(t_s), 1, {"ph": "i", "s": "p", **_on(track), "cat": "mark", "name": name})

    def arrow(self, identity: int, name: str, origin: tuple[float, float, int], target: tuple[float, int]) -> None:
        """Add an arrow from the end of a span (its start and end in s, its track) to the start of one (s, track).

        It leaves a nanosecond before the end, where viewers still see the span.
        """
        (start_s, end_s, origin_track), (at_s, target_track) = origin, target
        leaves = max(_ns(max(start_s, self.window[0])), _ns(end_s) - 1)
        both = {"cat": "take", "name": name, "id": identity}
        self._add(leaves, 2, {"ph": "s", **_on(origin_track), **both})
        self._add(_ns(at_s), 3, {"ph": "f", "bp": "e", **_on(target_track), **both})

    def counter(self, pid: int, name: str, t_s: NDArray[np.float64], values: NDArray[Any]) -> None:
        """Add a counter: its value when the window begins, and then the last at each instant at which it changes."""
        before, past = np.searchsorted(t_s, self.window[0]), np.searchsorted(t_s, self.window[1], "right")
        at = {_ns(self.window[0]): float(values[before - 1]) if before else 0.0}
        for when, value in zip(t_s[before:past].tolist(), values[before:past].tolist(), strict=True):
            at[_ns(when)] = float(value)
        for ns, value in at.items():
            self._add(ns, 4, {"ph": "C", "pid": pid, "tid": 0, "name": name, "args": {"value": value}})

    def data(self, about: dict[str, Any]) -> dict[str, Any]:
        """Return all in order of time; at one instant spans come first, the longest before those inside it."""
        self._found.sort(key=lambda each: each[0])
        events = self._names + [event for _, event in self._found]
        return {"traceEvents": events, "displayTimeUnit": "ms", "metadata": about}

    def _name(self, pid: int, tid: int, name: str, args: dict[str, Any]) -> None:
        self._names.append({"ph": "M", "pid": pid, "tid": tid, "name": name, "args": args})

    def _add(self, ns: int, rank: int, event: dict[str, Any], longest: int = 0) -> None:
        self._found.append(((ns, rank, longest), {**event, "ts": ns / 1e3}))


def validate_trace(data: Any) -> list[str]:
    """Return what a viewer would show wrongly or not at all, a message each; empty for a sound trace.

    On each track times never fall, and spans are apart or one inside the other; a span's length is at least 0, a "B" has its
    "E". An arrow has two ends, in order, each inside a span of its track. Counters have numbers. Tracks have names.
    """
    events = data.get("traceEvents") if isinstance(data, dict) else None
    if not isinstance(events, list):
        return ['a trace is an object with a list "traceEvents"']
    wrong = [] if data.get("displayTimeUnit") in ("ms", "ns") else ['displayTimeUnit must be "ms" or "ns"']
    timed = []
    for index, event in enumerate(events):
        if event.get("ph") != "M" and not (problem := _malformed(event)):
            timed.append((index, event))
        elif event.get("ph") != "M":
            wrong.append(f"event {index}: {problem}")
    on_tracks = [(index, event) for index, event in timed if event["ph"] != "C"]
    kept: dict[tuple[int, int], list[tuple[int, int]]] = {}
    wrong += _unordered(timed) + _badly_nested(on_tracks, kept)
    return wrong + _loose_arrows(on_tracks, kept) + _nameless(events, timed)


def _malformed(event: dict[str, Any]) -> str:
    """Say what is wrong with an event by itself."""
    if event.get("ph") not in _PHASES:
        return f"phase {event.get('ph')!r} must be one of {', '.join(_PHASES)} or M"
    if not all(isinstance(event.get(name), int) for name in ("pid", "tid")):
        return "pid and tid must be integers"
    if not _number(event.get("ts")) or event["ts"] < 0:
        return f"ts = {event.get('ts')!r} must be a number of at least 0"
    if event["ph"] == "X" and (not _number(event.get("dur")) or event["dur"] < 0):
        return f"dur = {event.get('dur')!r} must be a number of at least 0"
    args = event.get("args")
    if event["ph"] == "C" and not (isinstance(args, dict) and args and all(map(_number, args.values()))):
        return f"counter {event.get('name')!r} has args {args!r}, which must be numbers"
    return ""


def _unordered(timed: list[tuple[int, dict[str, Any]]]) -> list[str]:
    wrong: list[str] = []
    last: dict[Any, float] = {}
    for index, event in timed:
        key = (event["pid"], event["tid"], event["name"] if event["ph"] == "C" else None)
        if event["ts"] < last.get(key, 0):
            wrong.append(f"event {index}: ts falls from {last[key]} to {event['ts']} on track {key[:2]}")
        last[key] = event["ts"]
    return wrong


def _badly_nested(
    timed: list[tuple[int, dict[str, Any]]], kept: dict[tuple[int, int], list[tuple[int, int]]]
) -> list[str]:
    """Find spans that cross, and ends without beginnings; note the spans of each track in `kept`, ns."""
    wrong: list[str] = []
    open_spans: dict[tuple[int, int], list[tuple[float, int, int, str]]] = {}  # end (inf of a "B"), start, event, name
    for index, event in timed:
        track, at = (event["pid"], event["tid"]), round(event["ts"] * 1e3)
        stack = open_spans.setdefault(track, [])
        while stack and stack[-1][0] <= at:
            stack.pop()
        if event["ph"] == "E":
            if not stack or stack[-1][0] < math.inf:
                wrong.append(f'event {index}: "E" on track {track} ends no "B", or crosses a span')
            else:
                kept.setdefault(track, []).append((stack.pop()[1], at))
        elif event["ph"] in "XB":
            end = at + round(event["dur"] * 1e3) if event["ph"] == "X" else math.inf
            if event["ph"] == "X" and stack and end > stack[-1][0]:
                wrong.append(f"event {index}: crosses event {stack[-1][2]} ({stack[-1][3]}) on track {track}")
            stack.append((end, at, index, event.get("name", "")))
            if event["ph"] == "X":
                kept.setdefault(track, []).append((at, int(end)))
    for track, stack in open_spans.items():
        wrong += [f'event {index}: "B" on track {track} has no "E"' for end, _, index, _ in stack if end == math.inf]
    return wrong


def _loose_arrows(
    timed: list[tuple[int, dict[str, Any]]], kept: dict[tuple[int, int], list[tuple[int, int]]]
) -> list[str]:
    wrong: list[str] = []
    ends: dict[Any, list[tuple[str, float]]] = {}
    starts = {track: np.sort([begin for begin, _ in spans]) for track, spans in kept.items()}
    stops = {track: np.sort([end for _, end in spans]) for track, spans in kept.items()}
    for index, event in timed:
        if event["ph"] not in "sf":
            continue
        track, at = (event["pid"], event["tid"]), round(event["ts"] * 1e3)
        ends.setdefault((event.get("cat"), event.get("id")), []).append((event["ph"], event["ts"]))
        begun = np.searchsorted(starts.get(track, np.empty(0)), at, "right")
        if begun <= np.searchsorted(stops.get(track, np.empty(0)), at, "left"):
            wrong.append(f"event {index}: an end of arrow {event.get('id')} lies in no span of track {track}")
        if event["ph"] == "f" and event.get("bp") != "e":
            wrong.append(f'event {index}: arrow {event.get("id")} binds to the next span, as its "bp" is not "e"')
    for (_, identity), found in ends.items():
        if [phase for phase, _ in found] != ["s", "f"]:
            wrong.append(f"arrow {identity} has ends {[phase for phase, _ in found]}, must have ['s', 'f']")
    return wrong


def _nameless(events: list[dict[str, Any]], timed: list[tuple[int, dict[str, Any]]]) -> list[str]:
    named = {(e.get("pid"), e.get("tid")) for e in events if e.get("name") == "thread_name"}
    processes = {e.get("pid") for e in events if e.get("name") == "process_name"}
    tracks = {(e["pid"], e["tid"]) for _, e in timed if e["ph"] != "C"} - named
    missing = {e["pid"] for _, e in timed} - processes
    return [f"track {t} has no name" for t in sorted(tracks)] + [f"process {p} has no name" for p in sorted(missing)]


def _on(track: int) -> dict[str, int]:
    return {"pid": track // _TRACKS, "tid": track}


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
