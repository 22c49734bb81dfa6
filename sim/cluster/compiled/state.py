"""What the compiled engine remembers: one record type for each noun of the model, and the world that holds them together.

Fields bear the names of the attributes of :mod:`sim.cluster.model`. Sets of rollouts that the model keeps in deques are
linked through the rollouts themselves (`next`, `prev`), so that who leaves is gone at once; who would have been passed over
is never there, which changes nothing in who comes next.
"""

from __future__ import annotations

import numpy as np

from sim.cluster.compiled.memory import Record, compiled, pointer
from sim.cluster.model.state import Fate, Place

__all__ = [
    "BATCH", "BYTE", "DRAWN", "ENGINE", "EVENT", "FINISH", "GROUP", "INT", "POOL", "PROMPT", "REAL", "SERIES", "SHELF",
    "SHORT", "STEP", "TRAJ", "TURN", "WHOLE", "byte", "drawn", "engine_at", "event", "finish", "group_at", "int32", "member",
    "pool_at", "prompt", "real", "series", "shelf", "short", "step", "traj_at", "turn", "whole",
]  # fmt: skip

QUEUED, WRITING, WRITTEN, CALLING, SERVED, BACKOFF, HELD, OVER = (int(place) for place in Place)
RUNNING, READY, TAKEN, DROPPED = (int(fate) for fate in Fate)
NONE = -1


def _record(reals: str, ints: str) -> np.dtype[np.void]:
    """Return a record type of float64 and int64 fields: with two types only, a function is compiled once."""
    return np.dtype([(name, np.float64) for name in reals.split()] + [(name, np.int64) for name in ints.split()])


TRAJ = _record(
    "context written remaining chunk chunk_v chunk_prefill kv cached round_tokens tokens token_versions tool_s"
    " length_factor latency_factor start_s end_s reward",
    "job waits row id group member kind place turn node action attempt engine version oldest newest cache_engine"
    " cache_epoch next prev start_version shelf valid cancelled",
)
"""A rollout. row: its draws; shelf: the block they are in; next, prev: in an engine's queue or a pool's; waits:
the number of the calendar's entry that it waits for."""

GROUP = _record("ready_s", "prompt id play start_version fate done valid held in_round take_version next prev")
"""A group; its members' rollouts are id * members and those that follow. next, prev: in the list of those held."""

ENGINE = _record(
    "v t step_s kv_offset armed busy_s sequence_s",
    "n timer heap_n batch_n index version loading epoch stopped draining down unsettled queue_first queue_last",
)
"""An engine."""

POOL = _record(
    "t busy_s scale cap timeout failure cold warm",
    "servers busy calls attempts timeouts failures shape retries tries idle_n ordered_n"
    " index lifo by_group queue_first queue_last",
)
"""A pool and what the config says of it."""

STEP = _record("asked_s started_s waited_s trained_s ended_s published_s tokens", "rollouts taken_first")
"""A version. taken_first: where its groups begin in the table of those taken."""

SERIES = _record("", "number loaded")
"""A law's own draws: the number of the next, the block of numbers that is there."""

EVENT = _record("t", "sequence happens")
"""An entry of the calendar."""

FINISH = _record("at", "serial traj")
"""An entry of an engine's heap: the virtual time at which a rollout's chunk ends."""

BATCH = _record("", "serial traj")
"""An entry of an engine's batch, in order of admission."""

PROMPT = _record("", "prompt play")
"""A prompt to be played again."""

TURN = np.dtype([(name, np.int32) for name in ("node", "action", "version")])
"""What was chosen at one turn."""

DRAWN = _record("length_factor latency_factor", "kind")
"""What one rollout's draws have once; those of each turn stand in a table of reals."""

SHELF = _record("", "rows first live")
"""Rows of draws that were loaded together, and how many of their rollouts are not over."""

REAL = np.dtype([("x", np.float64)])
WHOLE = np.dtype([("x", np.int64)])
INT = np.dtype([("x", np.int32)])
SHORT = np.dtype([("x", np.int16)])
BYTE = np.dtype([("x", np.uint8)])
"""Tables of plain numbers."""

event = pointer(EVENT)
finish = pointer(FINISH)
member = pointer(BATCH)
turn = pointer(TURN)
prompt = pointer(PROMPT)
drawn = pointer(DRAWN)
shelf = pointer(SHELF)
series = pointer(SERIES)
step = pointer(STEP)
real = pointer(REAL)
whole = pointer(WHOLE)
int32 = pointer(INT)
short = pointer(SHORT)
byte = pointer(BYTE)
_traj, _group, _engine, _pool = pointer(TRAJ), pointer(GROUP), pointer(ENGINE), pointer(POOL)


@compiled
def traj_at(w: Record, i: int) -> Record:
    """Return a rollout."""
    return _traj(w.trajs, i)


@compiled
def group_at(w: Record, i: int) -> Record:
    """Return a group."""
    return _group(w.groups, i)


@compiled
def engine_at(w: Record, i: int) -> Record:
    """Return an engine."""
    return _engine(w.engines, i)


@compiled
def pool_at(w: Record, i: int) -> Record:
    """Return a pool."""
    return _pool(w.pools, i)
