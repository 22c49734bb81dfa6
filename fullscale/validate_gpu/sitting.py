"""From a plan to a record: which cases there are, which of them are still to be run, and what becomes of each."""

import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fullscale.kernels.selection import named
from fullscale.kernels.unlocking import SCHEMA, Record, decide, source_hash
from fullscale.validate_gpu import bench, cases, checks, profiling
from fullscale.validate_gpu.journal import Journal, now, write_whole
from fullscale.validate_gpu.machine import describe
from fullscale.validate_gpu.outcome import Outcome, skipped
from fullscale.validate_gpu.timing import ceilings, settle
from minimodel.model.compiling import cache_folder

__all__ = ["PHASES", "Plan", "header", "keep", "planned", "run", "unlocks"]

PHASES = ("smoke", "correct", "bench", "profile")
"""In the order in which they run; smoke is a part of correct."""
UNTIL: Mapping[str, float] = {"smoke": 1.0, "correct": 1.0, "bench": 0.88, "profile": 1.0}
"""Share of the budget after which no case of a phase begins: times give way to counters, and both to correctness."""


@dataclass(frozen=True)
class Plan:
    """What a sitting is to do."""

    backend: str
    """The one the record is about."""
    device: str
    """``cuda`` or ``cpu``."""
    phases: tuple[str, ...]
    """Some of :data:`PHASES`."""
    dry_run: bool
    """Whether at tiny sizes."""
    interpreted: bool
    """Whether Triton's kernels run in its interpreter."""
    budget_s: float
    """Seconds after which no further case begins."""


@dataclass(frozen=True)
class _Piece:
    phase: str
    case: str
    backend: str
    work: Callable[[], Outcome]


def _pieces(plan: Plan) -> Iterator[_Piece]:
    sizes = cases.DRY if plan.dry_run else cases.FULL
    beside = () if plan.backend == "chunked" else ("chunked",)  # what computes on a card until ours is unlocked
    for phase in plan.phases:
        if phase in ("smoke", "correct"):
            for backend in (plan.backend, *beside):
                for case in cases.correctness(sizes):
                    if phase == "correct" or case.name in cases.SMOKE:
                        yield _Piece(phase, f"{backend}: {case.name}", backend, _correct(case, backend, plan))
        elif phase == "bench":
            for point in cases.grid(plan.dry_run):
                yield _Piece(phase, point.name, plan.backend, _timed(point, plan))
        else:
            for tool in profiling.TOOLS:
                yield _Piece(phase, tool.name, plan.backend, _watched(tool, plan))


def _correct(case: cases.Case, backend: str, plan: Plan) -> Callable[[], Outcome]:
    return lambda: checks.answer(case, named(backend), plan.device, may_refuse=backend != plan.backend)


def _timed(point: cases.Point, plan: Plan) -> Callable[[], Outcome]:
    return lambda: bench.measure(point, plan.backend, plan.device)


def _watched(tool: profiling.Tool, plan: Plan) -> Callable[[], Outcome]:
    if plan.device == "cpu":
        return lambda: skipped("absent", "watches a card, and this ran on a processor")
    return lambda: profiling.watch(tool, plan.backend)


def planned(plan: Plan) -> dict[str, list[str]]:
    """Return the names of all cases, by phase."""
    found: dict[str, list[str]] = {phase: [] for phase in plan.phases}
    for piece in _pieces(plan):
        found[piece.phase].append(piece.case)
    return found


def header(plan: Plan, *, probe: bool) -> dict[str, Any]:
    """Return the first line of a record; with `probe`, the ceilings of the card are measured for it."""
    top = ceilings(plan.device) if probe else {}  # first, so that the clocks told are those of work
    return {
        "kind": "header",
        "schema": SCHEMA,
        "date": now(),
        **describe(plan.device),
        "source_hash": source_hash(plan.backend),
        "backend": plan.backend,
        "interpreted": plan.interpreted,
        "dry_run": plan.dry_run,
        "planned": planned(plan),
        "ceilings": top,
    }


def run(plan: Plan, journal: Journal, say: Callable[[str], None]) -> Record:
    """Run what the journal does not have yet; return the record, closed. A case that breaks is written down like any other.

    Parameters
    ----------
    say
        Told a line about every case.
    """
    began, lost = time.monotonic(), None
    pieces = list(_pieces(plan))
    finished = journal.finished
    for number, piece in enumerate(pieces, 1):
        if (piece.phase, piece.case) in finished:
            continue
        start = time.monotonic()
        if lost is not None:
            outcome = skipped("device lost", f"since {lost!r}")
        elif start - began > plan.budget_s * UNTIL[piece.phase]:
            outcome = skipped("budget")
        else:
            outcome = _attempt(piece.work)
            lost = None if _alive(plan.device) else piece.case
        seconds = time.monotonic() - start
        journal.add(piece.phase, piece.case, piece.backend, outcome, seconds)
        told = outcome.note or outcome.reason
        say(
            f"[{number}/{len(pieces)}] {piece.phase:8} {piece.case}: {outcome.status}, {seconds:.1f} s"
            + (f" ({told})" if told and outcome.status != "passed" else "")
        )
    return journal.close(unlocks)


def _attempt(work: Callable[[], Outcome]) -> Outcome:
    try:
        return work()
    except Exception as error:  # whatever it is, the other cases are still to be run
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.lineno}"
        return Outcome("error", note=f"{type(error).__name__} at {place}: {str(error)[:500]}")


def _alive(device: str) -> bool:
    """Whether the device still answers: after an illegal access no call of this process does."""
    try:
        settle(device)
    except RuntimeError:
        return False
    if device == "cuda":
        torch.cuda.empty_cache()
    return True


def unlocks(record: Record) -> dict[str, str] | None:
    """Return what a record unlocks, or None: a dry run nothing, and only the fused backend is ever locked."""
    its = record.header
    card, triton = str(its["card"]), its["versions"]["triton"]
    if its["backend"] != "triton" or not decide("triton", card, triton, its["source_hash"], [record]).unlocked:
        return None
    return {"backend": "triton", "card": card, "source_hash": its["source_hash"], "triton": triton}


def keep(record: Record) -> Path | None:
    """Copy a record that unlocks something to where this user's programs look for it; return where, or None.

    Raises
    ------
    RuntimeError
        For a user without a home.
    OSError
        When it cannot be written there.
    """
    if record.closing is None or not record.closing["unlocks"]:
        return None
    path = cache_folder() / "kernels" / record.path.name
    write_whole(path, [record.header, *record.cases, record.closing])
    return path
