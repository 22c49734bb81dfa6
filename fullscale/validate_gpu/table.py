"""A record in at most 25 lines: what was right, how long it took, and whether that is what was meant to be reached."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from fullscale.kernels.unlocking import Record, shortfall
from fullscale.validate_gpu.cases import RECORD
from fullscale.validate_gpu.targets import CARD, TARGETS, Target

__all__ = ["LINES", "table"]

LINES = 25
"""The most there are."""
PEERS = ("products alone", "chunked", "plain torch", "Liger", "Liger, gathered", "CCE")
"""Shown beside ours at the shape of record."""


def table(record: Record) -> list[str]:
    """Return the lines."""
    lines = [*_head(record), *_correctness(record), *_failures(record), *_times(record), _tail(record)]
    return lines[: LINES - 1] + lines[-1:] if len(lines) > LINES else lines


def _head(record: Record) -> Iterator[str]:
    its, versions = record.header, record.header["versions"]
    yield (
        f"{its['card'] or 'no card'}, driver {its['driver']}, torch {versions['torch']}, Triton {versions['triton']}"
        f"{', interpreted' if its['interpreted'] else ''}{', dry run' if its['dry_run'] else ''}"
    )
    if its["ceilings"]:
        top = its["ceilings"]
        yield f"ceilings measured: {top['product_tflop_s']:.4g} TFLOP/s bf16, {top['copy_tb_s']:.3g} TB/s copied"


def _correctness(record: Record) -> Iterator[str]:
    for phase in dict.fromkeys(c["phase"] for c in record.cases):
        for backend in dict.fromkeys(c["backend"] for c in record.cases if c["phase"] == phase):
            found = [c for c in record.cases if c["phase"] == phase and c["backend"] == backend]
            counts = Counter(c["status"] if c["status"] != "skipped" else f"skipped ({c['reason']})" for c in found)
            yield f"{phase:8} {backend:8} {', '.join(f'{n} {status}' for status, n in sorted(counts.items()))}"
    worst = {
        part: max((c["values"][part] for c in _large(record) if isinstance(c["values"].get(part), float)), default=None)
        for part in ("logp", "entropy")
    }
    if worst["logp"] is not None and worst["entropy"] is not None:
        yield f"largest error at full size: log-prob {worst['logp']:.1e}, entropy {worst['entropy']:.1e} nats"


def _large(record: Record) -> list[Mapping[str, Any]]:
    """Return the cases at full size, which are named by their sizes alone."""
    ours = f"{record.header['backend']}: "
    return [c for c in record.cases if c["case"].startswith(ours) and c["case"].removeprefix(ours)[0].isdigit()]


def _failures(record: Record) -> Iterator[str]:
    bad = [c for c in record.cases if c["status"] in ("failed", "error")]
    for c in bad[:3]:
        beyond = [
            f"{k} {c['values'].get(k)} > {v:.2g}" for k, v in c["bounds"].items() if not _within(c["values"].get(k), v)
        ]
        yield f"{c['status'].upper()} {c['case']}: {', '.join(beyond) or c.get('note', '')}"[:120]
    if len(bad) > 3:
        yield f"... and {len(bad) - 3} more that did not pass"


def _within(value: Any, bound: float) -> bool:
    return isinstance(value, int | float) and value <= bound


def _times(record: Record) -> Iterator[str]:
    points = {c["case"]: c["values"] for c in record.cases if c["phase"] == "bench" and c["status"] != "skipped"}
    shown = [t for t in TARGETS if t.provider in points.get(t.point, {})]
    if shown:
        yield f"{'x'.join(map(str, RECORD)):34}{'':>16}{'found':>9}{'TFLOP/s':>9}{'must':>8}{'aim':>8}  met"
    for target in shown:
        yield _row(target, points[target.point][target.provider], record.header["card"] == CARD)
    for target in (t for t in shown if t.counting == 1 and t.quantity == "ms" and t.provider == "ours"):
        beside = points[target.point]
        told = [f"{p} {min(beside[p]['ms']):.4g}" for p in PEERS if "ms" in beside.get(p, {})]
        yield f"  {target.operation}, ms: {', '.join(told)}"


def _row(target: Target, found: Mapping[str, Any], judged: bool) -> str:
    label = f"{target.operation}, {'all rows' if target.counting == 1 else f'{target.counting:g} of the rows'}"
    if target.quantity not in found:
        why = found.get("error") or found.get("absent") or "not measured"
        return f"{label:34}{target.provider:>16}  {why}"[:120]
    value = max(found["ms"]) if target.quantity == "ms" else found["extra_mb"]
    rate = ""
    if target.quantity == "ms":
        rows, hidden, columns = RECORD
        rate = f"{2 * target.products * target.counting * rows * hidden * columns / value / 1e9:.0f}"
    aim = "" if target.aim is None else f"{target.aim:g}"
    unit = "ms" if target.quantity == "ms" else "MB"
    met = ("yes" if value <= target.must else "NO") if judged else f"of {CARD}"
    return f"{label:34}{target.provider:>16}{value:>7.4g} {unit}{rate:>8}{target.must:>8g}{aim:>8}  {met}"


def _tail(record: Record) -> str:
    closing = record.closing or {}
    if closing.get("unlocks"):
        its = closing["unlocks"]
        return f'UNLOCKED: backend="auto" uses {its["backend"]} on {its["card"]}, code {its["source_hash"][:12]}'
    why = shortfall(record)
    if why is not None:
        return f"nothing is unlocked: the record {why}"
    if record.header["dry_run"]:
        return "passed; a dry run unlocks nothing"
    return f"passed; {record.header['backend']} needs no unlocking"
