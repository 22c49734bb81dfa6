"""The learner, a process that can be left and resumed at each of its stages; see :mod:`sim.cluster.model.learner`."""

from __future__ import annotations

from sim.cluster.compiled import calendar, engine, groups
from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.processes import draw, drawn_already, stop_run
from sim.cluster.compiled.reasons import Reason, SeriesRow, Stage, SyncMode, Then, What
from sim.cluster.compiled.state import engine_at, step, traj_at, whole
from sim.cluster.events import Kind

__all__ = ["go_on", "loaded", "swapped"]

TRAIN_START, TRAIN_END, VERSION, SYNC_START, SYNC_END = (
    int(kind) for kind in (Kind.TRAIN_START, Kind.TRAIN_END, Kind.VERSION, Kind.SYNC_START, Kind.SYNC_END)
)
GO_ON, SERIES, LEARN, TELL = (int(why) for why in (Reason.GO_ON, Reason.SERIES, Reason.LEARN, Reason.VERSION))
STEP, ASK, ASKED, TRAIN, TRAINED, LEARNT, SEND, LOAD, LOADED, SENT, TOLD = (int(stage) for stage in Stage)
BLOCKING, INTERRUPT, IN_PLACE, PULL = (int(mode) for mode in SyncMode)
NOTHING, START = int(Then.NOTHING), int(Then.START)
RESUME, SWAPPED, LOADED_ONE = int(What.LEARNER), int(What.SWAPPED), int(What.LOADED)
JITTER = int(SeriesRow.JITTER)
NAN = float("nan")


@compiled
def go_on(w: Record) -> int:
    """Go through one stage; return a :class:`Reason`. Afterwards the kernel goes on with the next, unless it waits."""
    if w.stage == STEP:
        _step(w)
    elif w.stage == ASK:
        _ask(w)
    elif w.stage == ASKED:
        w.stage = TRAIN
        if w.collecting:
            w.wake = 1
            _wait(w)
    elif w.stage == TRAIN:
        if not drawn_already(w, JITTER):
            return SERIES
        _train(w)
    elif w.stage == TRAINED:
        _trained(w)
    elif w.stage == LEARNT:
        w.stage = SEND
        if w.learns:
            return LEARN
        whole(w.policy, w.version + 1).x = whole(w.policy, w.version).x
    elif w.stage == SEND:
        w.version += 1
        _send(w)
    elif w.stage == LOAD:
        _stop_all(w)
        w.stage = LOADED
        calendar.after(w, w.sync_s, RESUME, 0)
        _wait(w)
    elif w.stage == LOADED:
        _loaded(w)
    elif w.stage == SENT:
        w.stage = TOLD
        if w.tells:
            return TELL
    else:
        w.step += 1
        w.stage = STEP
    return GO_ON


@compiled
def _wait(w: Record) -> None:
    """Let the calendar go on; at the very beginning, let the other processes begin."""
    w.then = NOTHING
    if w.starting:
        w.starting = 0
        w.then = START


@compiled
def _step(w: Record) -> None:
    if w.step == w.step_n:
        stop_run(w)
        _wait(w)
        return
    s = step(w.steps, w.step)
    s.asked_s, s.started_s, s.ended_s, s.published_s = w.now, NAN, NAN, NAN
    s.waited_s = s.trained_s = s.tokens = 0.0
    s.rollouts, s.taken_first = 0, w.taken_n
    w.part = 0
    w.stage = ASK


@compiled
def _ask(w: Record) -> None:
    w.asked_s = w.now
    w.need = w.needed // w.minibatches
    w.part_first, w.wake, w.collecting = w.taken_n, 0, 1
    groups.offer(w)
    w.admitting = 1
    w.stage = ASKED


@compiled
def _train(w: Record) -> None:
    s = step(w.steps, w.step)
    s.waited_s += w.now - w.asked_s
    if w.part == 0:
        s.started_s = w.now
    if w.colocated:
        _stop_all(w)
    rollouts, tokens = 0, 0.0
    for k in range(w.part_first, w.taken_n):
        group = whole(w.taken, k).x
        for i in range(group * w.members, (group + 1) * w.members):
            t = traj_at(w, i)
            if t.valid and t.end_s == t.end_s and not t.cancelled:
                rollouts += 1
                tokens += t.tokens
    s.rollouts += rollouts
    s.tokens += tokens
    took = w.train_s + w.rollout_s * rollouts + w.token_s * tokens
    took *= draw(w, JITTER)
    w.took_s = took
    calendar.log(w, TRAIN_START, w.step, -1, w.part, w.version, tokens)
    calendar.after(w, took, RESUME, 0)
    w.stage = TRAINED
    _wait(w)


@compiled
def _trained(w: Record) -> None:
    s = step(w.steps, w.step)
    s.trained_s += w.took_s
    calendar.log(w, TRAIN_END, w.step, -1, w.part, w.version, 0.0)
    w.part += 1
    if w.part < w.minibatches:
        w.stage = ASK
    else:
        s.ended_s = w.now
        w.stage = LEARNT


# --- weights on their way -----------------------------------------------------------------------------------------------


@compiled
def _send(w: Record) -> None:
    """Bring the new weights to the engines."""
    if w.sync_mode == PULL:
        _publish(w, w.version)
        groups.sweep(w)
        for i in range(w.engine_n):
            _request(w, engine_at(w, i))
        w.admitting = 1
        w.stage = SENT
        return
    calendar.log(w, SYNC_START, -1, -1, -1, w.version, 0.0)
    w.stage = LOAD
    if w.sync_mode == IN_PLACE:
        calendar.after(w, w.sync_s, SWAPPED, w.version)
        w.stage = SENT
    elif w.sync_mode == BLOCKING:
        for i in range(w.engine_n):
            engine_at(w, i).draining = 1
        if engine.any_active(w):
            w.draining = 1
            _wait(w)


@compiled
def _stop_all(w: Record) -> None:
    for i in range(w.engine_n):
        e = engine_at(w, i)
        engine.pause_all(w, e)
        e.stopped = 1


@compiled
def _loaded(w: Record) -> None:
    calendar.log(w, SYNC_END, -1, -1, -1, w.version, 0.0)
    _publish(w, w.version)
    groups.sweep(w)
    for i in range(w.engine_n):
        engine.load(w, engine_at(w, i), w.version)
    w.admitting = 1
    w.stage = SENT


@compiled
def _publish(w: Record, version: int) -> None:
    w.published = version
    w.settled += 1
    step(w.steps, version - 1).published_s = w.now
    calendar.log(w, VERSION, -1, -1, -1, version, 0.0)


@compiled
def swapped(w: Record, version: int) -> None:
    """The weights are swapped under running sequences."""
    calendar.log(w, SYNC_END, -1, -1, -1, version, 0.0)
    _publish(w, version)
    for i in range(w.engine_n):
        engine.swap(w, engine_at(w, i), version)
    groups.sweep(w)
    w.admitting = 1


@compiled
def _request(w: Record, e: Record) -> None:
    """Tell an engine that loads by itself that there is something newer."""
    if e.draining or e.stopped:
        return  # it is at it already, and looks again when done
    calendar.log(w, SYNC_START, e.index, -1, -1, w.published, 0.0)
    e.draining = 1
    if not e.n:
        engine.drained(w, e)


@compiled
def loaded(w: Record, e: Record) -> None:
    """An engine that loads by itself has loaded."""
    version = e.loading
    calendar.log(w, SYNC_END, e.index, -1, -1, version, 0.0)
    engine.load(w, e, version)
    if w.published > version:
        _request(w, e)
