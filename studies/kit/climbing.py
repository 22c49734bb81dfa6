"""Carrying a claim to the next rung: may it climb, what is registered, what came out.

The order is fixed. The records are asked, the file is written, the studies run in a process of their own, and the finding
is held against the file.
"""

import dataclasses
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from studies import FOLDER
from studies.kit import escalation_file as files
from studies.kit import planned
from studies.kit.claims import RUNGS, Claim
from studies.kit.escalation import SCHEMA, Escalation, Made, Plan, below, foreseen, hold, rule
from studies.kit.family import file_fingerprint
from studies.kit.finding import Finding
from studies.kit.ladder import barrier, on_record, remedy
from studies.kit.library import Statement, statement
from studies.kit.records import load, place
from studies.kit.seeds import Seeds
from studies.kit.seeds import parse as parse_seeds
from studies.kit.session import git_commit, missing
from studies.kit.words import CommandError, near

__all__ = ["Climb", "prepare", "registered", "result", "target"]


@dataclass(frozen=True)
class Climb:
    """A claim that is to run at a rung."""

    made: Statement
    """The claim and its study."""
    to: str
    """The rung."""
    folder: Path
    """Folder of the studies."""
    files: Path
    """Folder of the escalations."""
    start: Path
    """Where the command was given; store and report lie below."""

    @property
    def claim(self) -> Claim:
        """The claim."""
        return self.made.claim


def prepare(claim: str, to: str | None, folder: Path, start: Path) -> Climb:
    """Return what is to climb. CommandError for a claim that is not there, or a rung it cannot be carried to."""
    if not folder.is_dir():
        raise CommandError(f"no folder {str(folder)!r}: give the one that holds study_*.py with --folder")
    try:
        made = statement(claim, folder)
    except ImportError as error:
        raise CommandError(str(error)) from error
    if made is None:
        from studies.kit.family import declared

        raise CommandError(f"no claim {claim!r}; {near(claim, declared(folder))} (`metastable list` has them all)")
    rung = target(made.claim, to, folder)
    wanting = missing(rung)
    if wanting:
        raise CommandError(wanting)
    return Climb(made, rung, folder, start / "escalations", start)


def target(claim: Claim, to: str | None, folder: Path) -> str:
    """Return the rung to run at: the one asked for, else the lowest above the first that is not on record."""
    if len(claim.rungs) < 2 and claim.rungs[0] != RUNGS[-1]:
        only, above = claim.rungs[0], RUNGS[RUNGS.index(claim.rungs[0]) + 1]
        known = on_record(folder, claim.id, (only,))
        why = barrier((only, above), known, above)
        stops = f"{claim.id} does not climb: {why}; {remedy(claim.id, (only, above), known, above)}. " if why else ""
        raise CommandError(
            f"{stops}Claim {claim.id!r} is made at {only} alone: state it for a second rung, as in rungs=({only!r}, "
            f"{above!r}), and what its study runs there"
        )
    if to is None:
        known = on_record(folder, claim.id, claim.rungs)
        to = next((rung for rung in claim.rungs[1:] if rung not in known), None)
        if to is None:
            raise CommandError(f"claim {claim.id!r} is on record at every rung it is made at; name one with --to")
    if to not in claim.rungs:
        raise CommandError(f"claim {claim.id!r} is not made at {to}; rungs: {', '.join(claim.rungs)}")
    if to == claim.rungs[0]:
        raise CommandError(f"{to} is the lowest rung of {claim.id!r}: nothing lies below it; `metastable run` runs it")
    return to


def registered(climb: Climb, seeds: str | None, anyway: str) -> tuple[Escalation, bool]:
    """Return the attempt that is to run, and whether it was registered by this call.

    An attempt that is open is taken up as it stands: it is refused only where the claim would now register other terms.
    CommandError where the rung below does not hold and there is no reason to run anyway.
    """
    claim, to = climb.claim, climb.to
    known = on_record(climb.folder, claim.id, claim.rungs)
    why = barrier(claim.rungs, known, to)
    if why and not anyway:
        raise CommandError(
            f"{claim.id} does not climb to {to}: {why}; {remedy(claim.id, claim.rungs, known, to, _more(climb))}. "
            "--anyway REASON runs it all the same, and says so in its file"
        )
    earlier = files.attempts(climb.files, claim.id)
    pending = earlier[-1] if earlier and earlier[-1].result is None else None
    option = _seeds(seeds, to, pending)
    here = _escalation(climb, option, anyway if why else "", len(earlier) + (pending is None))
    if pending is None:
        files.register(climb.files, here)
        return files.load(files.place(climb.files, claim.id, here.attempt)), True
    differ = [name for name in here.terms if here.terms[name] != pending.terms[name]]
    if differ:
        path = files.place(climb.files, claim.id, pending.attempt)
        raise CommandError(
            f"{path} is registered and has not run, and the claim now differs from it in {', '.join(differ)}: what is "
            "registered is not rewritten; restore the claim, or withdraw the file in a commit that says why"
        )
    return pending, False


def _more(climb: Climb) -> str:
    """Options that a command about the claim below needs."""
    under = climb.claim.rungs[climb.claim.rungs.index(climb.to) - 1]
    where = "" if climb.folder == FOLDER else f" --folder {shlex.quote(str(climb.folder))}"
    return where + (" --all" if climb.claim.is_long(under) else "")


def _seeds(asked: str | None, rung: str, pending: Escalation | None) -> Seeds:
    """Read the seeds asked for; those of a pending attempt where none are, as their base is drawn once."""
    if asked is not None and (asked.startswith("fresh:") or asked.count(":") > 1):
        raise CommandError(
            f"--seeds {asked}: the base is drawn and written down here, or seeds that were looked at before could be "
            "chosen; give a number, until-decided or until-decided:CAP"
        )
    try:
        if asked is None and pending is not None:
            return parse_seeds(pending.plan.seeds, rung)
        if asked is not None and asked.isdecimal():
            parse_seeds(asked, rung)  # what is wrong with the number is told of the number, not of the base drawn
            drawn = parse_seeds("fresh", rung)
            return parse_seeds(f"fresh:{drawn.base}:{asked}", rung)
        chosen = parse_seeds(asked or "fresh", rung)
    except ValueError as error:
        raise CommandError(str(error)) from None
    return chosen


def _escalation(climb: Climb, seeds: Seeds, anyway: str, attempt: int) -> Escalation:
    claim, to, folder = climb.claim, climb.to, climb.folder
    under = claim.rungs[claim.rungs.index(to) - 1]
    entry = load(folder / "records", claim.id, under)
    evidence = below(
        under,
        entry.finding if entry else None,
        on_record(folder, claim.id, claim.rungs).get(under),
        entry.commit if entry else "",
    )
    plan, configs = _planned(climb, seeds)
    return Escalation(
        schema=SCHEMA,
        claim=claim.id,
        says=claim.says,
        study=climb.made.name,
        attempt=attempt,
        to=to,
        below=evidence,
        prediction=foreseen(claim, to, evidence),
        rule=rule(claim, to),
        plan=plan,
        made=made_now(climb),
        anyway=anyway,
        configs=configs,
    )


def _planned(climb: Climb, seeds: Seeds) -> tuple[Plan, dict[str, dict[str, Any]]]:
    """Return the plan and the leaves of the configs, from a pass of the study up to its first sweep."""
    n = seeds.cap or len(seeds.of(climb.claim.seeds_at(climb.to)))
    points, note = planned.arms(climb.made, climb.to, seeds, climb.start)
    cost = planned.cpu_s(climb.start / "runs" / "store", climb.made.name, climb.to)
    runs = n * len(points) if points else None
    plan = Plan(
        seeds=seeds.option.removeprefix("--seeds "),
        n=n,
        runs=runs,
        cpu_s=None if cost is None or runs is None else cost * runs,
        configs=planned.digest(points),
        note=note or ("" if cost is not None else "no run of this study in the store says what it took"),
    )
    return plan, planned.leaves(points)


def made_now(climb: Climb) -> Made:
    """Return with what code, study and versions this is, and when."""
    from sim.records.fingerprint import code_fingerprint

    return Made(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=git_commit(climb.folder),
        fingerprint=code_fingerprint(climb.to),
        study_fingerprint=file_fingerprint(climb.made.path),
        place=place(climb.to),
    )


def result(climb: Climb, attempt: Escalation, options: Sequence[str] = ()) -> Escalation:
    """Run the study at the rung, append the result to the file, and return the attempt with it.

    CommandError where no finding came back, or a study that stopped or whose control failed: its file stays open.
    """
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "findings.jsonl"
        status = subprocess.call(_command(climb, attempt, out, options), cwd=climb.start)
        lines = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    found = next((f for f in map(Finding.from_json, lines) if f.claim == attempt.claim), None)
    path = files.place(climb.files, attempt.claim, attempt.attempt)
    if found is None:
        raise CommandError(f"no finding for {attempt.claim} came back (pytest ended with {status}); {path} stays open")
    if found.verdict == "no verdict" and found.fails:
        raise CommandError(f"{attempt.claim} has no verdict: {found.reason}; {path} stays open")
    came_out = hold(attempt, found, made_now(climb))
    files.append(climb.files, attempt, came_out)
    return dataclasses.replace(attempt, result=came_out)


def _command(climb: Climb, attempt: Escalation, out: Path, options: Sequence[str]) -> list[str]:
    node = f"{climb.made.path}::{climb.made.function.__name__}"
    ours = ["-p", "studies.kit.delivery", "--findings", str(out)]
    chosen = ["--rung", attempt.to, "--seeds", attempt.plan.seeds, "--all", "-k", attempt.claim]
    return [sys.executable, "-m", "pytest", node, *chosen, *ours, *options]
