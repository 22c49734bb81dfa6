"""What a record says of the machine: card, driver, versions, commit. Nothing is set, clocks least of all."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import torch

from fullscale.kernels.unlocking import triton_version

__all__ = ["commit", "describe", "telemetry"]

_QUERIES = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit", "temperature.gpu")


def describe(device: str) -> dict[str, Any]:
    """Return card, capability, driver, versions, commit; null where there is none."""
    told = telemetry(device)
    cuda = device == "cuda"
    return {
        "card": torch.cuda.get_device_name() if cuda else None,
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if cuda else None,
        "driver": told.get("driver_version"),
        "clocks": told,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "triton": triton_version(),
            "numpy": _version("numpy"),
            "liger-kernel": _version("liger-kernel"),
            "cut-cross-entropy": _version("cut-cross-entropy"),
        },
        "git": commit(),
    }


def telemetry(device: str) -> dict[str, str]:
    """Return driver, clocks and power limit as nvidia-smi tells them; empty where it is absent or does not answer."""
    if device != "cuda" or shutil.which("nvidia-smi") is None:
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERIES)}", "--format=csv,noheader", "-i", visible]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(_QUERIES, (x.strip() for x in done.stdout.splitlines()[0].split(",")), strict=False))


def commit() -> str | None:
    """Return the commit of the clone this runs from, with ``+`` where files differ from it; None outside a clone."""
    here = Path(__file__).resolve().parents[2]

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=20, check=True)
        return done.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
