"""The kernel: whatever is to follow at this instant, then the next entry of the calendar, until the caller is needed.

Where a handler of the model may need something that has to be fetched (draws, room, a policy) it is cut: what is left of it
is noted in the world (`admitting`, `then`) and done before the calendar goes on. So the kernel may be left there and called
again, and between calls the whole run lies in arrays.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numba

from sim.cluster import rules
from sim.cluster.compiled import admission, calendar, engine, learner, pool, processes, walk
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.reasons import Reason, Then, What
from sim.cluster.compiled.state import WRITTEN, engine_at, event, int32, traj_at

__all__ = ["kernel"]

GO_ON, LIMIT, DEADLOCK = int(Reason.GO_ON), int(Reason.LIMIT), int(Reason.DEADLOCK)
NOTHING, NEXT_WRITTEN, LEARNER, SET, ARRIVAL, FAIL, UP, START, FINISH = (int(then) for then in Then)
TIMER, RETRY, TOOL_END, TOOL_FAIL = (int(what) for what in (What.TIMER, What.RETRY, What.TOOL_END, What.TOOL_FAIL))
RESUME, SWAPPED, LOADED, CONTROL, ARRIVES, FAILS, IS_UP, HORIZON = (
    int(what)
    for what in (
        What.LEARNER,
        What.SWAPPED,
        What.LOADED,
        What.CONTROLLER,
        What.ARRIVAL,
        What.FAIL,
        What.UP,
        What.HORIZON,
    )
)


@compiled
def _next_written(w: Record) -> None:
    """Go on with the next of the turns that an engine has written at this instant."""
    if w.done_i < w.done_n:
        t = traj_at(w, int32(w.done, w.done_i).x)
        w.done_i += 1
        if t.place == WRITTEN:  # else aborted at this very instant, by what another of them has completed
            walk.written(w, t)
        return
    e = engine_at(w, w.who)
    w.then = NOTHING
    if e.draining and not e.n:
        engine.drained(w, e)


@compiled
def _follow(w: Record) -> int:
    """Do the next part of what is to follow; return a :class:`Reason`."""
    then = w.then
    if then == NEXT_WRITTEN:
        _next_written(w)
    elif then == LEARNER:
        return learner.go_on(w)
    elif then == SET:
        processes.controlled(w)
    elif then == ARRIVAL:
        return processes.arrive(w)
    elif then == FAIL:
        return processes.fail(w)
    elif then == UP:
        return processes.up(w)
    elif then == START:
        return processes.start(w)
    else:
        return processes.finish(w)
    return GO_ON


@compiled
def _happen(w: Record) -> None:
    """Let the next entry of the calendar happen."""
    entry = event(w.calendar, 0)
    number, what, who = entry.sequence, entry.happens % calendar.WHATS, entry.happens // calendar.WHATS
    w.now = entry.t
    calendar.pop(w)
    if what == TIMER:
        engine.fired(w, engine_at(w, who), number)
    elif TOOL_END <= what <= TOOL_FAIL:
        walk.answered(w, who, number, what)
    elif what == RETRY:
        pool.retry(w, traj_at(w, who), number)
    elif what == RESUME:
        w.then = LEARNER
    elif what == SWAPPED:
        learner.swapped(w, who)
    elif what == LOADED:
        learner.loaded(w, engine_at(w, who))
    elif what == CONTROL:
        processes.control(w)
    elif what == HORIZON:
        processes.stop_run(w)
    else:
        w.who = who
        w.then = ARRIVAL if what == ARRIVES else FAIL if what == FAILS else UP if what == IS_UP else FINISH


@compiled
def _begin(w: Record) -> None:
    """Enter the horizon, which comes first of all that happens at its instant; the learner follows the first admission."""
    w.begun = w.starting = w.admitting = 1
    w.then = LEARNER
    if w.has_horizon:
        calendar.after(w, w.horizon_s, HORIZON, 0)


def _kernel(sources: int) -> Any:
    """Return the kernel. numba keeps it on disk by what it encloses: here the state of all files that it is made from."""

    @numba.njit(error_model="numpy", nogil=True, cache=True)
    def kernel(world: Any, limit: int) -> int:
        """Go on for at most `limit` parts of handlers; return a :class:`Reason`."""
        _ = sources
        w = world[0]
        if not w.begun:
            _begin(w)
        for _ in range(limit):
            why = calendar.full(w)
            if why != GO_ON:
                return why
            if w.admitting:
                why = admission.admit(w)
                if why == GO_ON:
                    w.admitting = 0
            elif w.then != NOTHING:
                why = _follow(w)
            elif w.calendar_n == 0:
                return DEADLOCK
            else:
                _happen(w)
            if why != GO_ON:
                return why
        return LIMIT

    return kernel


def _sources() -> int:
    files = [*sorted(Path(__file__).parent.glob("*.py")), Path(rules.__file__)]
    text = b"".join(file.read_bytes() for file in files)
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


kernel = _kernel(_sources())
