"""Heaps beside the calendar's: an engine's, by virtual time; numbers of groups or rollouts, smallest first."""

from __future__ import annotations

from sim.cluster.compiled.memory import Record, compiled
from sim.cluster.compiled.state import finish, traj_at, whole

__all__ = ["first_finish", "pop_finish", "pop_number", "push_finish", "push_number"]


@compiled
def push_finish(w: Record, e: Record, at: float, serial: int, traj: int) -> None:
    """Enter at which virtual time a chunk ends. Entries of chunks that ended before are forgotten now and then."""
    if e.heap_n > 2 * e.n + 64:
        _forget(w, e)
    _sift_up(e.index * w.row_cap, e.heap_n, w.heap, at, serial, traj)
    e.heap_n += 1


@compiled
def _sift_up(row: int, hole: int, heap: int, at: float, serial: int, traj: int) -> None:
    while hole > 0:
        parent = (hole - 1) >> 1
        above = finish(heap, row + parent)
        if above.at < at or (above.at == at and above.serial < serial):
            break
        _move(above, finish(heap, row + hole))
        hole = parent
    entry = finish(heap, row + hole)
    entry.at, entry.serial, entry.traj = at, serial, traj


@compiled
def _forget(w: Record, e: Record) -> None:
    row, n, kept = e.index * w.row_cap, e.heap_n, 0
    for i in range(n):
        entry = finish(w.heap, row + i)
        if traj_at(w, entry.traj).job == entry.serial:
            _sift_up(row, kept, w.heap, entry.at, entry.serial, entry.traj)  # kept <= i
            kept += 1
    e.heap_n = kept


@compiled
def first_finish(w: Record, e: Record) -> Record:
    """Return the first entry of an engine's heap."""
    return finish(w.heap, e.index * w.row_cap)


@compiled
def pop_finish(w: Record, e: Record) -> None:
    """Forget the first entry, as :func:`sim.cluster.compiled.calendar.pop` does."""
    row, n, heap = e.index * w.row_cap, e.heap_n - 1, w.heap
    e.heap_n = n
    last = finish(heap, row + n)
    at, serial, traj = last.at, last.serial, last.traj
    hole, child = 0, 1
    while child < n:
        first = finish(heap, row + child)
        if child + 1 < n:
            second = finish(heap, row + child + 1)
            child += (second.at < first.at) | ((second.at == first.at) & (second.serial < first.serial))
            first = finish(heap, row + child)
        _move(first, finish(heap, row + hole))
        hole, child = child, 2 * child + 1
    _sift_up(row, hole, heap, at, serial, traj)


@compiled
def _move(source: Record, target: Record) -> None:
    target.at, target.serial, target.traj = source.at, source.serial, source.traj


@compiled
def push_number(heap: int, n: int, number: int) -> None:
    """Add a number to a heap of n at an address."""
    hole = n
    while hole > 0:
        parent = (hole - 1) >> 1
        above = whole(heap, parent).x
        if above <= number:
            break
        whole(heap, hole).x = above
        hole = parent
    whole(heap, hole).x = number


@compiled
def pop_number(heap: int, n: int) -> int:
    """Take the smallest number out of a heap of n at an address."""
    smallest, last = whole(heap, 0).x, whole(heap, n - 1).x
    n -= 1
    hole, child = 0, 1
    while child < n:
        if child + 1 < n and whole(heap, child + 1).x < whole(heap, child).x:
            child += 1
        if last <= whole(heap, child).x:
            break
        whole(heap, hole).x = whole(heap, child).x
        hole, child = child, 2 * child + 1
    whole(heap, hole).x = last
    return smallest
