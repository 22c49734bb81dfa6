"""CPU time of two ways of doing the same work, measured in turn so that both meet the same machine."""

import time
from collections.abc import Callable

import numpy as np


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of one call, s, all threads of this process."""
    began = time.process_time()
    work()
    return time.process_time() - began


def cpu_ratio(ours: Callable[[], object], peer: Callable[[], object], rounds: int = 5) -> tuple[float, float, float]:
    """Return (ratio, ours, peer): the median over rounds of CPU time against CPU time, and both medians, s."""
    ours(), peer()  # warm caches and allocators
    pairs = np.array([(cpu_seconds(ours), cpu_seconds(peer)) for _ in range(rounds)])
    return float(np.median(pairs[:, 0] / pairs[:, 1])), *map(float, np.median(pairs, axis=0))
