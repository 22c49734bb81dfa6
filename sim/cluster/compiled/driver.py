"""Run the kernel: fetch what it comes back for, and call it again until the run is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sim.cluster.books import Books
from sim.cluster.compiled.books import TakenGroup, books_of, taken
from sim.cluster.compiled.feed import Feed
from sim.cluster.compiled.kernel import kernel
from sim.cluster.compiled.reasons import Reason
from sim.cluster.compiled.tables import Tables
from sim.cluster.draws import Draws
from sim.cluster.events import EventLog
from sim.cluster.model.simulation import Deadlock
from sim.cluster.plan import Plan

__all__ = ["run_compiled"]

CHUNK = 2**20
"""Parts of handlers between two looks at the keyboard: some tenths of a second."""

Learn = Callable[[list[TakenGroup], int], Any]


def run_compiled(
    plan: Plan,
    draws: Draws,
    record: bool,
    learn: Learn | None,
    on_version: Callable[[int], None] | None,
    chunk: int = CHUNK,
) -> tuple[Books, EventLog | None]:
    """Return the books of a run, and its log if it is recorded.

    Parameters
    ----------
    plan
        The cluster as arrays.
    draws
        Its random numbers.
    record
        Whether to keep the event log.
    learn
        Called with the groups of a batch and the version that trained on them; returns the action thresholds of the next
        version ([context][action]), or None for the same.
    on_version
        Called after every version, for progress.
    chunk
        Parts of handlers that the kernel may do before it comes back; the run is the same whatever it is.

    Raises
    ------
    Deadlock
        When nothing is left to happen before the end; the message names who waits.
    """
    tables = Tables(plan, record=record, learns=learn is not None, tells=on_version is not None)
    feed = Feed(tables, draws)
    fetch: dict[int, Callable[[], None]] = {
        Reason.LIMIT: lambda: None,
        Reason.FRESH: feed.fresh,
        Reason.AGAIN: feed.again,
        Reason.SERIES: feed.series,
        Reason.LOG_FULL: tables.drain,
        Reason.CALENDAR_FULL: tables.more_calendar,
        Reason.ROWS_FULL: tables.more_rows,
        Reason.LIVE_FULL: tables.more_live,
    }
    if learn is not None:
        fetch[Reason.LEARN] = lambda: _learn(tables, learn)
    if on_version is not None:
        fetch[Reason.VERSION] = lambda: on_version(int(tables.w["version"]))
    while (why := kernel(tables.world, chunk)) != Reason.DONE:
        if why == Reason.DEADLOCK:
            raise Deadlock(_who_waits(tables))
        fetch[why]()
    return books_of(tables), tables.log() if record else None


def _learn(tables: Tables, learn: Learn) -> None:
    version = int(tables.w["version"])
    made = learn(taken(tables), version)
    policy = tables.arrays["policy"]
    policy[version + 1] = policy[version]
    if made is not None:
        tables.arrays["thresholds"][version + 1] = made
        policy[version + 1] = version + 1


def _who_waits(tables: Tables) -> str:
    w = {name: tables.w[name].item() for name in tables.world.dtype.names or ()}
    missing = w["needed"] // w["minibatches"] - (w["taken_n"] - w["part_first"])
    reasons = [f"the learner waits for {missing} more groups at version {w['version']}"]
    reasons.append(f"{w['buffered']} are complete, {w['incomplete']} incomplete")
    if 0 <= w["prompts"] <= w["fresh"]:
        reasons.append(f"the source of {w['prompts']} prompts is exhausted")
    return f"deadlock at {w['now']:g} s: " + ", ".join(reasons) + "; nothing else will happen"
