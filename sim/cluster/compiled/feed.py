"""Draws, from blocks of :class:`~sim.cluster.draws.Draws` into tables. Rows whose rollouts are all over are used again."""

from __future__ import annotations

import numpy as np

from sim.cluster.compiled import state
from sim.cluster.compiled.reasons import SeriesRow
from sim.cluster.compiled.tables import Tables
from sim.cluster.draws import BLOCK, Block, Draws
from sim.cluster.scheduling import Arrivals
from sim.mdp.latency import Latency

__all__ = ["Feed"]


class Feed:
    """The draws of one run, brought as they are asked for."""

    def __init__(self, tables: Tables, draws: Draws) -> None:
        self.tables, self.draws, self.w = tables, draws, tables.w
        block = BLOCK * int(self.w["members"])
        rows = block * (min(tables.plan.cluster.slots, 4096) // block + 3)
        tables.put("drawn", np.empty(rows, state.DRAWN))
        tables.put("draws", np.empty((rows, int(self.w["turn_limit"]), int(self.w["draw_width"]))))
        tables.put("shelves", np.zeros(8, state.SHELF))
        tables.put("series_values", np.empty((len(tables.arrays["series"]), BLOCK)))
        self._shelves = self._rows = 0

    def fresh(self) -> None:
        """Bring the block of the next fresh prompt."""
        number = int(self.w["fresh"]) // BLOCK
        self.w["block_row"], self.w["block_shelf"] = self._shelve(self.draws.block(number))
        self.w["block"] = number

    def again(self) -> None:
        """Bring the next prompt that is played again."""
        found = self.draws.again(int(self.w["again_prompt"]), int(self.w["again_play"]))
        self.w["again_row"], self.w["again_shelf"] = self._shelve(found)

    def series(self) -> None:
        """Bring the next draws of the law that is missing them."""
        row = int(self.w["missing"])
        name, index, law = self._law(row)
        series = self.tables.arrays["series"][row]
        block = int(series["number"]) // BLOCK
        values = self.tables.arrays["series_values"][row]
        values[:] = [self.draws.series(name, index, law, block * BLOCK + i) for i in range(BLOCK)]
        series["loaded"] = block

    def _law(self, row: int) -> tuple[str, int, Latency]:
        c = self.tables.plan.cluster
        if row == SeriesRow.JITTER:
            return "jitter", 0, c.learner.jitter
        if row == SeriesRow.ARRIVAL:
            assert isinstance(c.admission, Arrivals)
            return "arrival", 0, c.admission.interval
        engine, down = divmod(row - SeriesRow.UP, 2)
        assert c.engines.failures is not None
        return ("down", engine, c.engines.failures.down) if down else ("up", engine, c.engines.failures.up)

    def _shelve(self, block: Block) -> tuple[int, int]:
        """Write a block into rows that are free; return the first of them, and the shelf they make up."""
        rows = len(block.kind)
        shelves = self.tables.arrays["shelves"]
        made = shelves[: self._shelves]
        free = np.flatnonzero((made["rows"] == rows) & (made["live"] == 0))
        shelf = int(free[0]) if len(free) else self._more(rows)
        at = self.tables.arrays["shelves"][shelf]
        at["live"] = rows
        first = int(at["first"])
        here = slice(first, first + rows)
        drawn, draws = self.tables.arrays["drawn"][here], self.tables.arrays["draws"][here]
        drawn["kind"], drawn["length_factor"], drawn["latency_factor"] = (
            block.kind,
            block.length_factor,
            block.latency_factor,
        )
        latency, failure, width = (int(self.w[name]) for name in ("draw_latency", "draw_failure", "draw_width"))
        draws[..., 0], draws[..., 1] = block.route, block.outcome
        draws[..., 2:latency] = block.length
        draws[..., latency:failure] = block.latency.reshape(*block.route.shape, -1)
        if width > failure:
            draws[..., failure:width] = block.failure
        return first, shelf

    def _more(self, rows: int) -> int:
        shelf, first = self._shelves, self._rows
        self._shelves, self._rows = shelf + 1, first + rows
        if self._shelves > len(self.tables.arrays["shelves"]):
            self.tables.grow("shelves", 2 * shelf)
        if self._rows > len(self.tables.arrays["drawn"]):
            for name in ("drawn", "draws"):
                self.tables.grow(name, 2 * first + rows)
        at = self.tables.arrays["shelves"][shelf]
        at["rows"], at["first"], at["live"] = rows, first, 0
        return shelf
