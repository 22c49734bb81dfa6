"""Times of one point of the grid: every provider in turn, round by round, so that all meet the same card."""

import functools
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fullscale.validate_gpu.cases import Point
from fullscale.validate_gpu.outcome import Outcome, skipped
from fullscale.validate_gpu.providers import Absent, Set, Work, providers, sets
from fullscale.validate_gpu.timing import milliseconds, settle

__all__ = ["measure"]

ROUNDS = 20
"""Rounds of a series; the median of each is kept."""
SERIES = 2
"""Series, whose medians show the spread."""
PATIENCE_MS = 1500.0
"""A peer takes no more than this in a series, but at least 5 rounds; ours and the bare products always take all."""


def measure(point: Point, backend: str, device: str) -> Outcome:
    """Return the median times, ms, of each series, the rounds behind them, and the memory beyond inputs and gradients, MB.

    The outcome is an error only where ours fails; what a peer lacks or breaks at is noted in its place.
    """
    rounds = ROUNDS if device == "cuda" else 2
    if device == "cuda" and (lacking := _memory(point)) is not None:
        return skipped("memory", lacking)
    given = sets(point, device)
    works: dict[str, Work] = {}
    told: dict[str, dict[str, Any]] = {}
    for name, make in providers(backend).items():
        if point.counting == 1 and name.endswith("gathered"):
            continue  # nothing to gather
        told[name] = _first(make, point, given, device)
        if "ms" in told[name]:
            works[name] = told[name].pop("work")
    count = {name: _rounds(name, told[name].pop("ms"), rounds) for name in works}
    series = [_series(works, count, given, device, rounds) for _ in range(SERIES)]
    for name in works:
        told[name] |= {"ms": [round(s[name], 4) for s in series], "rounds": count[name]}
    broken = {name: t["error"] for name, t in told.items() if "error" in t and name.startswith("ours")}
    note = "; ".join(f"{name}: {error}" for name, error in broken.items()) or None
    return Outcome("error" if broken else "passed", told, note=note)


def _first(make: Callable[[Point], Work], point: Point, given: tuple[Set, ...], device: str) -> dict[str, Any]:
    """Call a provider three times: to compile, for the memory it takes, and for a first idea of its time."""
    try:
        work = make(point)
        work(given[0])
        extra = _extra_memory(work, given[1], device)
        ms = milliseconds(lambda: work(given[0]), device)
    except Absent as reason:
        return {"absent": str(reason)}
    except Exception as error:
        if device == "cuda":
            torch.cuda.synchronize()  # raises where the card is lost, and ends the point
            torch.cuda.empty_cache()
        return {"error": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"work": work, "ms": ms, **extra}


def _extra_memory(work: Work, given: Set, device: str) -> dict[str, float]:
    """Return the peak of allocated memory during a call, less what was there and the gradients it returns, MB."""
    if device != "cuda":
        work(given)
        return {}
    for leaf in (given.hidden, given.gathered, given.weight):
        leaf.grad = None
    settle(device)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work(given)
    settle(device)
    peak = torch.cuda.max_memory_allocated() - before
    grads = sum(x.grad.nbytes for x in (given.hidden, given.gathered, given.weight) if x.grad is not None)
    return {"extra_mb": round((peak - grads) / 1e6, 1)}


def _rounds(name: str, ms: float, rounds: int) -> int:
    if name.startswith(("ours", "products")):
        return rounds
    return min(rounds, max(5, int(PATIENCE_MS / max(ms, 1e-3))))


def _series(
    works: Mapping[str, Work], count: Mapping[str, int], given: tuple[Set, ...], device: str, rounds: int
) -> dict[str, float]:
    """Return the median of each provider; the order turns round after every round and the inputs take turns."""
    times: dict[str, list[float]] = {name: [] for name in works}
    order = list(works)
    for number in range(rounds):
        inputs = given[number % len(given)]
        for name in order:
            if number < count[name]:
                times[name].append(milliseconds(functools.partial(works[name], inputs), device))
        order.reverse()
    return {name: statistics.median(found) for name, found in times.items()}


def _memory(point: Point) -> str | None:
    """Return what a card lacks for two sets of inputs, gradients, and the logits of the bare products."""
    n = round(point.rows * point.counting)
    needed = 3 * 2 * (point.rows + point.vocabulary) * point.hidden * 2 + 2 * n * point.vocabulary + (2 << 30)
    free, _ = torch.cuda.mem_get_info()
    return None if free >= needed else f"needs {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
