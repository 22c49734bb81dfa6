"""Milliseconds of a piece of work on a device, and the ceilings of a card: how fast it copies and multiplies."""

import statistics
import time
from collections.abc import Callable

import torch

__all__ = ["ceilings", "milliseconds", "settle"]


def milliseconds(work: Callable[[], object], device: str) -> float:
    """Return how long one call takes: between two events of the device on CUDA, by the clock on a processor."""
    if device != "cuda":
        began = time.perf_counter()
        work()
        return (time.perf_counter() - began) * 1e3
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def settle(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def ceilings(device: str) -> dict[str, float]:
    """Return what this very device does at best: TB/s of a copy, bytes read and written counted, and TFLOP/s in bf16.

    Random numbers, as a card multiplies zeros faster; medians of 20 after 5 that warm up.
    """
    full = device == "cuda"
    size = min(1 << 30, torch.cuda.mem_get_info()[0] // 16) if full else 1 << 16
    side = 8192 if full else 64
    source = torch.randn(size, device=device)
    copy_ms = _median(lambda: torch.clone(source), device)
    a, b = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    product_ms = _median(lambda: a @ b, device)
    return {"copy_tb_s": 8 * size / copy_ms / 1e9, "product_tflop_s": 2 * side**3 / product_ms / 1e9}


def _median(work: Callable[[], object], device: str) -> float:
    for _ in range(5):
        work()
    return statistics.median(milliseconds(work, device) for _ in range(20))
