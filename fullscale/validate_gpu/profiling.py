"""What NVIDIA's own tools see: hardware counters, accesses out of bounds, races. Absent tools are told as such."""

import csv
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fullscale.validate_gpu.cases import RECORD
from fullscale.validate_gpu.outcome import Outcome, skipped

__all__ = ["TOOLS", "Tool", "counters", "watch"]

FOUND = 86
"""Exit status that compute-sanitizer is asked for where it finds something; a program of ours has no such one."""
WANTED = re.compile(r"duration|tensor|throughput|long scoreboard|registers|occupancy|l2 hit|ipc", re.IGNORECASE)
"""Counters that are kept, by a part of their names."""
SECTIONS = (
    "SpeedOfLight",
    "ComputeWorkloadAnalysis",
    "MemoryWorkloadAnalysis",
    "WarpStateStats",
    "LaunchStats",
    "Occupancy",
)


@dataclass(frozen=True)
class Tool:
    """One program that runs another under watch."""

    name: str
    """How the record calls it."""
    program: str
    """What must be on the PATH."""
    options: tuple[str, ...]
    """Of the tool."""
    sizes: tuple[int, int, int]
    """Rows, hidden units, columns of the call that is watched."""
    direction: str
    """``forward``, or ``backward`` for both."""
    environment: Mapping[str, str]
    """Beside the present one."""


def _profiler(direction: str) -> Tool:
    sections = [word for section in SECTIONS for word in ("--section", section)]
    marked = ("--profile-from-start", "off", "--launch-count", "12")
    told = ("--csv", "--page", "details", "--print-details", "all")
    options = ("--clock-control", "none", *marked, *told, *sections)
    return Tool(f"counters, {direction}", "ncu", options, (4096, *RECORD[1:]), direction, {})


def _sanitizer(tool: str) -> Tool:
    options = ("--tool", tool, "--error-exitcode", str(FOUND))
    # Without torch's own allocator every tensor is an allocation of its own, whose ends the tool knows.
    return Tool(tool, "compute-sanitizer", options, (3, 72, 300), "backward", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})


TOOLS = (_profiler("forward"), _profiler("backward"), _sanitizer("memcheck"), _sanitizer("racecheck"))
"""All of them; the profiler leaves the clocks alone."""


def watch(tool: Tool, backend: str, timeout_s: float = 90.0) -> Outcome:
    """Return what a tool sees: counters by kernel, or whether it found an error.

    A tool that is not there, or cannot work on this machine (as in some containers), is skipped with its own words; only a
    fault that it finds is a failure.
    """
    program = shutil.which(tool.program)
    if program is None:
        return skipped("absent", f"{tool.program} is not on the PATH")
    words = ["-m", "fullscale.validate_gpu.one_call", *map(str, tool.sizes), backend, tool.direction]
    try:
        done = subprocess.run(
            [program, *tool.options, sys.executable, *words],
            env={**os.environ, **tool.environment},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return skipped("budget", f"{tool.program} took more than {timeout_s:g} s")
    if done.returncode == FOUND:
        return Outcome("failed", note=_end(done.stdout))
    if done.returncode:
        return skipped("absent", f"{tool.program} does not work here: {_end(done.stdout + done.stderr)}")
    if tool.program != "ncu":
        return Outcome("passed", note=_end(done.stdout))
    found = counters(done.stdout.splitlines())
    if not found:
        return skipped("absent", f"ncu told no counters: {_end(done.stdout + done.stderr)}")
    return Outcome("passed", found)


def counters(lines: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the counters of the two kernels that took longest, by kernel and name, from ncu's CSV."""
    table = [line for line in lines if line.startswith('"')]
    kernels: dict[str, dict[str, Any]] = {}
    for row in csv.DictReader(table):
        name, unit = row.get("Metric Name") or "", row.get("Metric Unit") or ""
        value = row.get("Metric Value") or ""
        if value and WANTED.search(name):
            kernel = f"{row.get('ID', '')} {row.get('Kernel Name', '')[:60]}"
            kernels.setdefault(kernel, {})[f"{name}, {unit}" if unit else name] = value
    return dict(sorted(kernels.items(), key=lambda item: -_duration(item[1]))[:2])


def _duration(found: Mapping[str, Any]) -> float:
    """Return how long a kernel took, ns."""
    units = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "nsecond": 1.0, "usecond": 1e3, "msecond": 1e6, "second": 1e9}
    for name, value in found.items():
        if name.startswith("Duration"):
            return float(value.replace(",", "")) * units.get(name.partition(", ")[2], 1.0)
    return 0.0


def _end(text: str) -> str:
    return " | ".join(line.strip() for line in text.strip().splitlines()[-4:])[-400:]
