"""CPU time of several ways of doing the same work, measured in turn so that all meet the same machine."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
Work = Callable[[], object]


def cpu_seconds(work: Work) -> float:
    """Return the CPU time of one call, s, all threads of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def cpu_in_turn(works: Mapping[str, Work], rounds: int = 5) -> dict[str, F64]:
    """Return the CPU times of each, s, [rounds]: one call of each a round, after one that warms caches and allocators."""
    for work in works.values():
        work()
    times = [[cpu_seconds(work) for work in works.values()] for _ in range(rounds)]
    return dict(zip(works, np.array(times).T, strict=True))


def cpu_ratio(ours: Work, peer: Work, rounds: int = 5) -> tuple[float, float, float]:
    """Return (ratio, ours, peer): the median over rounds of CPU time against CPU time, and both medians, s."""
    times = cpu_in_turn({"ours": ours, "peer": peer}, rounds)
    return float(np.median(times["ours"] / times["peer"])), *(float(np.median(x)) for x in times.values())


def at_least(times_as_fast: float | None, ratio: float, peer: str, **more: object) -> dict[str, object]:
    """Return what a benchmark stores that is to be so many times as fast as its peer; `ratio` is ours to the peer's.

    >>> at_least(2.0, 0.4, "a sum")
    {'peer': 'a sum', 'ratio': 0.4, 'target': 0.5, 'met': True, 'times_as_fast': 2.5, 'target_times_as_fast': 2.0}
    """
    found: dict[str, object] = {"peer": peer, "ratio": round(ratio, 3), "target": None, "met": None}
    if times_as_fast is not None:
        found |= {"target": round(1 / times_as_fast, 3), "met": ratio <= 1 / times_as_fast}
    return found | {"times_as_fast": round(1 / ratio, 2), "target_times_as_fast": times_as_fast} | more
