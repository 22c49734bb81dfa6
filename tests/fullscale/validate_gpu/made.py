"""Records as a card would leave them, made up for tests."""

import json
from pathlib import Path
from typing import Any

from fullscale.kernels.unlocking import SCHEMA, Record, digest, read

CARD, TRITON, SOURCE = "NVIDIA H200", "3.6.0", "5" * 64
CASES = ("tails", "bits", "gradients")


def header(**changes: Any) -> dict[str, Any]:
    return {
        "kind": "header",
        "schema": SCHEMA,
        "date": "2026-11-01T12:00:00+00:00",
        "card": CARD,
        "capability": "9.0",
        "driver": "580.1",
        "versions": {"triton": TRITON, "torch": "2.11.0"},
        "git": None,
        "source_hash": SOURCE,
        "backend": "triton",
        "interpreted": False,
        "dry_run": False,
        "planned": {"correct": list(CASES)},
        "ceilings": {"copy_tb_s": 4.3, "product_tflop_s": 790.0},
    } | changes


def case(name: str, **changes: Any) -> dict[str, Any]:
    found = {"logp": 1e-6}
    return {
        "kind": "case",
        "phase": "correct",
        "case": name,
        "backend": "triton",
        "status": "passed",
        "values": found,
        "bounds": {"logp": 2e-5},
        "seconds": 0.1,
    } | changes


def lines(
    head: dict[str, Any], cases: list[dict[str, Any]], closing: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Header, cases, and a closing line that agrees with them but for what is given."""
    end = {"kind": "closing", "passed": True, "unlocks": None, "counts": {}, "digest": digest(head, cases)}
    return [head, *cases, end | (closing or {})]


def write(path: Path, content: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in content))
    return path


def record(
    folder: Path, cases: list[dict[str, Any]] | None = None, closing: dict[str, Any] | None = None, **head: Any
) -> Record:
    """A record of three cases that passed, but for what is given, by way of its file."""
    chosen = [case(name) for name in CASES] if cases is None else cases
    return read(write(folder / "2026-11-01-nvidia-h200.jsonl", lines(header(**head), chosen, closing)))
