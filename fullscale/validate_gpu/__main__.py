"""Command line of the validation. torch and Triton are imported only once it is known how Triton is to run."""

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

if TYPE_CHECKING:
    from fullscale.kernels.unlocking import Record
    from fullscale.validate_gpu.sitting import Plan

DESCRIPTION = """\
Find out whether the fused kernels are right on this card, and how fast.

Writes a record (JSON lines) into the folder of --out, a line for every case as soon as it is done, and prints a table
last. If every correctness case of the fused backend passed on a card, the record is copied to your cache folder, and
backend="auto" uses the fused backend on this kind of card from then on. Ends after nine minutes (--budget-s), and can
be gone on with; clocks and other settings of the card are left alone.
"""
EXAMPLES = """\
examples:
  python -m fullscale.validate_gpu                                   everything
  python -m fullscale.validate_gpu --phase correct                   enough to unlock
  python -m fullscale.validate_gpu --resume runs/validate_gpu/X.jsonl  go on where a kill or the budget ended it
  python -m fullscale.validate_gpu --dry-run --backend interpret     no GPU: the same at tiny sizes, unlocks nothing

exit status: 0 all passed, 1 something did not pass or was left out, 2 could not begin, 130 interrupted.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m fullscale.validate_gpu",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/validate_gpu"), metavar="DIR", help="folder of the record (%(default)s)")
    add(
        "--phase",
        choices=["smoke", "correct", "bench", "profile", "all"],
        help="smoke: three cases; correct: against float64, and bits; bench: times beside other implementations; "
        "profile: ncu and compute-sanitizer; all (the default): correct, bench, profile",
    )
    add(
        "--backend",
        choices=["triton", "chunked", "interpret"],
        help="triton (the default) is the fused one; interpret is its kernels on the processor, with --dry-run",
    )
    add("--dry-run", action="store_true", help="tiny sizes, on the card or without one; tries the script itself")
    add("--resume", type=Path, metavar="FILE", help="go on with a record, on the same kind of card and the same code")
    add("--budget-s", type=float, default=540.0, metavar="S", help="no case begins after so many seconds (%(default)g)")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if not given.budget_s > 0:
        _stop(f"--budget-s = {given.budget_s:g} must be positive")
    asked = {"backend": given.backend or "triton", "dry_run": given.dry_run, "phases": _phases(given.phase or "all")}
    if given.resume is not None:
        asked = _resumed(given)
    if asked["backend"] == "interpret":
        if not asked["dry_run"]:
            _stop("the interpreter would take days at full size; add --dry-run")
        os.environ["TRITON_INTERPRET"] = "1"
    elif asked["backend"] == "triton" and os.environ.get("TRITON_INTERPRET", "0") != "0":
        _stop("TRITON_INTERPRET is set, so Triton would not compile; unset it, or pass --dry-run --backend interpret")
    from fullscale.kernels.unlocking import RecordError

    try:
        record = _sit(_plan(asked, given.budget_s), given)
    except (RecordError, OSError) as error:
        _stop(str(error))
    return 0 if _report(record) else 1


def _phases(phase: str) -> tuple[str, ...]:
    return ("correct", "bench", "profile") if phase == "all" else (phase,)


def _stop(reason: str) -> Never:
    sys.stderr.write(f"validate_gpu: {reason}\n")
    raise SystemExit(2)


def _resumed(given: argparse.Namespace) -> dict[str, Any]:
    """Return what the record asked for; options that say otherwise are refused."""
    from fullscale.kernels.unlocking import RecordError, read

    try:
        its = read(given.resume, finished=False).header
    except (RecordError, OSError) as error:
        _stop(str(error))
    found = {
        "backend": "interpret" if its["interpreted"] else its["backend"],
        "dry_run": its["dry_run"],
        "phases": tuple(its["planned"]),
    }
    said = {
        "backend": given.backend,
        "dry_run": given.dry_run or None,
        "phases": None if given.phase is None else _phases(given.phase),
    }
    for name, value in said.items():
        if value is not None and value != found[name]:
            option = {"backend": "--backend", "dry_run": "--dry-run", "phases": "--phase"}[name]
            _stop(f"{given.resume} was begun with {name} = {found[name]}, not {value}; leave {option} out")
    return found


def _plan(asked: dict[str, Any], budget_s: float) -> "Plan":
    import torch

    from fullscale.validate_gpu.sitting import Plan

    interpreted = asked["backend"] == "interpret"
    device = "cuda" if torch.cuda.is_available() and not interpreted else "cpu"
    if device == "cpu" and not (asked["dry_run"] and asked["backend"] != "triton"):
        _stop(
            "torch sees no CUDA device here. Run this where there is one (nvidia-smi shows it, and torch must be built for "
            "CUDA), or try the script without: --dry-run --backend interpret"
        )
    return Plan(
        backend="triton" if interpreted else asked["backend"],
        device=device,
        phases=asked["phases"],
        dry_run=asked["dry_run"],
        interpreted=interpreted,
        budget_s=budget_s,
    )


def _sit(plan: "Plan", given: argparse.Namespace) -> "Record":
    from fullscale.validate_gpu.journal import Journal
    from fullscale.validate_gpu.sitting import header, run

    def say(line: str) -> None:
        if sys.stderr.isatty() or ": passed," not in line:
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    if given.resume is not None:
        journal = Journal.resume(given.resume, header(plan, probe=False))
    else:
        journal = Journal.create(given.out, header(plan, probe=True))
    sys.stderr.write(f"record: {journal.path}\n")
    try:
        return run(plan, journal, say)
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted; go on with: python -m fullscale.validate_gpu --resume {journal.path}\n")
        raise SystemExit(130) from None


def _report(record: "Record") -> bool:
    """Print the table and where things are; return whether everything that was asked for ran and passed."""
    from fullscale.kernels.unlocking import INCOMPLETE
    from fullscale.validate_gpu.sitting import keep
    from fullscale.validate_gpu.table import table

    try:
        kept = keep(record)
    except (OSError, RuntimeError) as error:
        kept = None
        sys.stderr.write(f"not copied to your cache ({error}): copy {record.path} into fullscale/records/ yourself\n")
    if kept is not None:
        sys.stderr.write(f"copied to {kept}; in fullscale/records/ it unlocks for everyone who has the code\n")
    left = [c for c in record.cases if c.get("reason") in INCOMPLETE]
    if left:
        sys.stderr.write(f"{len(left)} cases were left out; run them with: --resume {record.path}\n")
    sys.stdout.write("\n".join(table(record)) + "\n")
    return not left and all(c["status"] in ("passed", "skipped") for c in record.cases)


if __name__ == "__main__":
    sys.exit(main())
