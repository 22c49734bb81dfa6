"""The tables of a run, made from its plan, and made larger when the kernel asks for room."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster.compiled import state
from sim.cluster.compiled.settings import settings
from sim.cluster.compiled.world import WORLD
from sim.cluster.events import EventLog
from sim.cluster.plan import Plan

__all__ = ["LOG_COLUMNS", "Tables"]

LOG_COLUMNS = {
    "log_t": np.float64,
    "log_kind": np.uint8,
    "log_entity": np.int32,
    "log_traj": np.int32,
    "log_turn": np.int16,
    "log_version": np.int32,
    "log_value": np.float64,
}

LOG_ROWS = 2**12
"""Rows logged before they are put aside."""


class Tables:
    """All arrays of a run. `world` is what the kernel takes; it holds the addresses of the others."""

    def __init__(self, plan: Plan, *, record: bool, learns: bool, tells: bool) -> None:
        self.plan = plan
        self.world = np.zeros(1, WORLD)
        self.w: Any = self.world[0]
        self.arrays: dict[str, NDArray[Any]] = {}
        self._logged: dict[str, NDArray[Any]] = {}
        self._logged_n = 0
        for name, value in settings(plan).items():
            self.w[name] = value
        self.w["record"], self.w["learns"], self.w["tells"] = record, learns, tells
        self._fixed(learns)
        c, members = plan.cluster, plan.cluster.workload.members
        groups = min(c.steps * c.groups_needed + 2 * (c.slots // members) + 64, 2**14)
        self._rows(groups)
        self._live(min(c.slots, 4096) + members)
        self._calendar(0)
        if record:
            # about as many rows as a rollout of full length leaves; what is never written costs nothing
            rows = min(groups * members * (5 * plan.graph.turns + 8), 2**22)
            self._logged = {name: np.empty(rows, kind) for name, kind in LOG_COLUMNS.items()}
            self.drain()

    def put(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """Make `array` the table of that name."""
        array = np.ascontiguousarray(array)
        self.arrays[name] = array
        self.w[name] = array.ctypes.data
        return array

    def grow(self, name: str, rows: int) -> None:
        """Give a table more rows."""
        old = self.arrays[name]
        new = np.empty((rows, *old.shape[1:]), old.dtype)
        new[: len(old)] = old
        self.put(name, new)

    # --- tables that never grow -------------------------------------------------------------------------------------

    def _fixed(self, learns: bool) -> None:
        plan, g, c = self.plan, self.plan.graph, self.plan.cluster
        ints, reals = np.int64, np.float64
        for name, whole in {
            "initial": g.initial,
            "context": g.context,
            "target": g.target,
            "pool_of": plan.pool,
        }.items():
            self.put(name, whole.astype(ints))
        for name, real in {"outcome": plan.outcome, "observed": g.observed, "reward": g.reward}.items():
            self.put(name, real.astype(reals))
        self.put("token_scale", plan.tokens.scale)
        self.put("token_shape", plan.tokens.shape)
        self.put("token_cap", plan.tokens.cap)
        self.put("wait_s", plan.wait_s.astype(reals))
        thresholds = self.put("thresholds", np.empty((c.steps + 1 if learns else 1, *plan.initial.shape)))
        thresholds[0] = plan.initial
        self.put("policy", np.zeros(c.steps + 1, ints))
        self.put("steps", np.zeros(c.steps, state.STEP))
        series = self.put("series", np.zeros(2 + 2 * c.engines.count, state.SERIES))
        series["loaded"] = -1
        engines = self.put("engines", np.zeros(c.engines.count, state.ENGINE))
        engines["index"] = np.arange(len(engines))
        engines["step_s"], engines["armed"] = c.engines.base_s, math.inf
        engines["queue_first"] = engines["queue_last"] = -1
        self.put("load", np.zeros(len(engines), ints))
        self._pools()

    def _pools(self) -> None:
        plan, specs = self.plan, self.plan.cluster.tools
        pools = self.put("pools", np.zeros(len(specs), state.POOL))
        pools["index"], pools["queue_first"], pools["queue_last"] = np.arange(len(specs)), -1, -1
        pools["scale"], pools["shape"], pools["cap"] = plan.tool.scale, plan.tool.shape, plan.tool.cap
        pools["tries"] = plan.attempts
        for p, spec in zip(pools, specs, strict=True):
            p["servers"] = spec.servers if spec.servers is not None else 2**62
            p["timeout"] = spec.timeout_s if spec.timeout_s is not None else math.inf
            p["retries"], p["failure"], p["cold"] = spec.retries, spec.failure, spec.cold_start_s
            p["warm"] = spec.keep_warm_s if spec.keep_warm_s is not None else math.inf
            p["lifo"], p["by_group"] = spec.discipline == "lifo", spec.discipline == "oldest"

    # --- tables that grow -------------------------------------------------------------------------------------------

    def more_rows(self) -> None:
        """Make room for more groups and their rollouts."""
        self._rows(2 * int(self.w["group_cap"]))

    def _rows(self, groups: int) -> None:
        members, begun = self.plan.cluster.workload.members, int(self.w["group_cap"])
        whole = np.dtype(np.int64)
        kinds: dict[str, np.dtype[Any]] = {"groups": state.GROUP, "again": state.PROMPT, "tail": state.PROMPT}
        kinds |= {"complete": whole, "ready": whole, "taken": whole}
        for name, kind in kinds.items():
            self._resize(name, kind, groups)
        self._resize("trajs", state.TRAJ, groups * members)
        self._resize("turns", state.TURN, groups * members * self.plan.graph.turns)
        fresh = self.arrays["turns"][begun * members * self.plan.graph.turns :]
        fresh.view(np.int32)[:] = -1
        self.w["group_cap"], self.w["traj_cap"] = groups, groups * members

    def _resize(self, name: str, kind: np.dtype[Any], rows: int) -> None:
        if name in self.arrays:
            self.grow(name, rows)
        else:
            self.put(name, np.empty(rows, kind))

    def more_live(self) -> None:
        """Make room for more rollouts that are alive at once."""
        self._live(2 * int(self.w["live_cap"]))

    def _live(self, live: int) -> None:
        c, most = self.plan.cluster, int(self.w["most"])
        row, ordered = 2 * min(most, live) + 80, 2 * live + 80
        self._widen("heap", state.FINISH, c.engines.count, row)
        self._widen("batch", state.BATCH, c.engines.count, row)
        self._widen("ordered", np.dtype(np.int64), len(c.tools), ordered)
        self._widen("idle", np.dtype(np.float64), len(c.tools), live)
        self._resize("scratch", np.dtype(np.int32), live)
        self._resize("done", np.dtype(np.int32), live)
        self.w["live_cap"], self.w["row_cap"], self.w["ordered_cap"] = live, row, ordered

    def _widen(self, name: str, kind: np.dtype[Any], rows: int, columns: int) -> None:
        new = np.empty((rows, columns), kind)
        if name in self.arrays:
            old = self.arrays[name]
            new[:, : old.shape[1]] = old
        self.put(name, new)

    def more_calendar(self) -> None:
        """Make room for more entries in the calendar."""
        self._calendar(int(self.w["calendar_cap"]))

    def _calendar(self, old: int) -> None:
        entries = 2 * old + 4 * int(self.w["live_cap"]) + int(self.w["room"])
        self._resize("calendar", state.EVENT, entries)
        self.w["calendar_cap"] = entries

    # --- the log ----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Put what is logged aside, and make room for what a handler may log beside :data:`LOG_ROWS`.

        So the kernel writes where it wrote shortly before, which is in the processor's cache.
        """
        n, end, cap = int(self.w["log_n"]), self._logged_n, int(self.w["log_cap"])
        if n > cap:
            raise RuntimeError(f"the log lost {n - cap} rows: a handler logged more than it left room for")
        rows = LOG_ROWS + 16 * int(self.w["live"] + self.w["buffered"] + self.w["members"]) + int(self.w["room"])
        for name, kind in LOG_COLUMNS.items():
            if end + n > len(self._logged[name]):
                column = np.empty(2 * (end + n), kind)
                column[:end] = self._logged[name][:end]
                self._logged[name] = column
            if n:
                self._logged[name][end : end + n] = self.arrays[name][:n]
            if rows > cap:
                self.put(name, np.empty(rows, kind))
        self._logged_n = end + n
        self.w["log_n"], self.w["log_cap"] = 0, max(rows, cap)

    def log(self) -> EventLog:
        """Return the log."""
        self.drain()
        return EventLog(*(self._logged[name][: self._logged_n] for name in LOG_COLUMNS))
