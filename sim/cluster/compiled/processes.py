"""The processes beside the learner: controller, arrivals, failures; how they begin, and how the run ends."""

from __future__ import annotations

from sim.cluster import rules
from sim.cluster.compiled import admission, calendar, engine, rollouts
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import Reason, SeriesRow, Then, What
from sim.cluster.compiled.state import READY, RUNNING, engine_at, group_at, real, series
from sim.cluster.draws import BLOCK
from sim.cluster.events import DropReason, Kind

__all__ = ["arrive", "control", "controlled", "draw", "drawn_already", "fail", "finish", "start", "stop_run", "up"]

CONTROL, ENGINE_FAIL, ENGINE_UP, STOP, GROUP_DROP = (
    int(kind) for kind in (Kind.CONTROL, Kind.ENGINE_FAIL, Kind.ENGINE_UP, Kind.STOP, Kind.GROUP_DROP)
)
GO_ON, SERIES, DONE = int(Reason.GO_ON), int(Reason.SERIES), int(Reason.DONE)
CONTROLLER, ARRIVAL, FAIL, UP, OVER = (
    int(what) for what in (What.CONTROLLER, What.ARRIVAL, What.FAIL, What.UP, What.DONE)
)
ROW_ARRIVAL, ROW_UP = int(SeriesRow.ARRIVAL), int(SeriesRow.UP)
NOTHING, SET = int(Then.NOTHING), int(Then.CONTROLLER)
STOPPED = float(DropReason.STOPPED)

aimd = compiled(rules.aimd)


# --- draws of laws of their own ------------------------------------------------------------------------------------------


@compiled
def drawn_already(w: Record, row: int) -> bool:
    """Return whether the next draw of a law is there; if not, say whose is missing."""
    s = series(w.series, row)
    if s.number // BLOCK == s.loaded:
        return True
    w.missing = row
    return False


@compiled
def draw(w: Record, row: int) -> float:
    """Return the next draw of a law; it has been asked for before."""
    s = series(w.series, row)
    value = real(w.series_values, row * BLOCK + s.number % BLOCK).x
    s.number += 1
    return value


# --- begin and end ------------------------------------------------------------------------------------------------------


@compiled
def start(w: Record) -> int:
    """Let the processes begin that begin after the learner."""
    if w.has_arrivals and not drawn_already(w, ROW_ARRIVAL):
        return SERIES
    if w.has_failures:
        for i in range(w.engine_n):
            if not drawn_already(w, ROW_UP + 2 * i):
                return SERIES
    if w.has_controller:
        calendar.after(w, w.interval_s, CONTROLLER, 0)
    if w.has_arrivals:
        calendar.after(w, draw(w, ROW_ARRIVAL), ARRIVAL, 0)
    if w.has_failures:
        for i in range(w.engine_n):
            calendar.after(w, draw(w, ROW_UP + 2 * i), FAIL, i)
    w.then = NOTHING
    return GO_ON


@compiled
def stop_run(w: Record) -> None:
    """End the run at this instant."""
    if not w.stopping:
        w.stopping = 1
        calendar.after(w, 0.0, OVER, 0)


@compiled
def finish(w: Record) -> int:
    """Abort whatever is open."""
    calendar.log(w, STOP, -1, -1, -1, w.published, 0.0)
    for i in range(w.engine_n):
        engine_at(w, i).stopped = 1
    rollouts.abort(w, w.head * w.members, w.traj_n)
    for i in range(w.head, w.group_n):
        fate = group_at(w, i).fate
        if fate in (RUNNING, READY):
            calendar.log(w, GROUP_DROP, i, -1, -1, w.published, STOPPED)
    w.then = NOTHING
    return DONE


# --- controller ---------------------------------------------------------------------------------------------------------


@compiled
def control(w: Record) -> None:
    """Set the width, and admit; :func:`controlled` follows."""
    occupancy = engine.occupancy(w, engine_at(w, 0))
    for i in range(1, w.engine_n):
        other = engine.occupancy(w, engine_at(w, i))
        if other > occupancy:
            occupancy = other
    width = aimd(w.width, occupancy, w.completed, w.grow, w.trim_at, w.trim, w.hard_at, w.hard, w.least, w.most_width)
    if width != w.width:
        w.completed = 0
    w.width = width
    calendar.log(w, CONTROL, -1, -1, -1, w.published, float(width))
    w.admitting = 1
    w.then = SET


@compiled
def controlled(w: Record) -> None:
    """Wait for the next decision."""
    calendar.after(w, w.interval_s, CONTROLLER, 0)
    w.then = NOTHING


# --- arrivals -----------------------------------------------------------------------------------------------------------


@compiled
def arrive(w: Record) -> int:
    """Start a group that has come by itself, and wait for the next; return a :class:`Reason`."""
    if not drawn_already(w, ROW_ARRIVAL):
        return SERIES
    why = admission.begin_group(w, False)
    if why > GO_ON:
        return why
    if why == GO_ON:  # else the source is empty
        calendar.after(w, draw(w, ROW_ARRIVAL), ARRIVAL, 0)
    w.then = NOTHING
    return GO_ON


# --- failures -----------------------------------------------------------------------------------------------------------


@compiled
def fail(w: Record) -> int:
    """Engine `who` fails; return a :class:`Reason`."""
    row = ROW_UP + 2 * w.who + 1
    if not drawn_already(w, row):
        return SERIES
    e = engine_at(w, w.who)
    calendar.log(w, ENGINE_FAIL, e.index, -1, -1, -1, 0.0)
    engine.fail(w, e)
    if e.draining:
        engine.drained(w, e)
    calendar.after(w, draw(w, row), UP, e.index)
    w.then = NOTHING
    return GO_ON


@compiled
def up(w: Record) -> int:
    """Engine `who` is back; return a :class:`Reason`."""
    row = ROW_UP + 2 * w.who
    if not drawn_already(w, row):
        return SERIES
    e = engine_at(w, w.who)
    engine.up(w, e)
    if not e.stopped:
        e.version = w.published
    calendar.log(w, ENGINE_UP, e.index, -1, -1, e.version, 0.0)
    engine.admit(w, e)
    calendar.after(w, draw(w, row), FAIL, e.index)
    w.then = NOTHING
    return GO_ON
