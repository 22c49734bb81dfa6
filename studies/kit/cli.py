"""The command line: one function a command, in `COMMANDS`.

Each command is thin: studies run under pytest, and ``metastable run`` only spells the call. Commands with more to them
have a module of their own, ``*_cli.py``.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from studies import FOLDER
from studies.kit.cite_cli import cite
from studies.kit.cluster_cli import cluster
from studies.kit.escalate_cli import escalate
from studies.kit.export_cli import export
from studies.kit.fit_cli import fit
from studies.kit.inspect_cli import inspect_runs
from studies.kit.read_cli import read
from studies.kit.runs_cli import runs
from studies.kit.sweep_cli import sweep
from studies.kit.words import CommandError

if TYPE_CHECKING:
    from studies.kit.claims import Claim
    from studies.kit.records import Record

__all__ = ["COMMANDS", "main"]

Rung = Literal["sim", "minimodel", "fullscale"]
_ClaimId = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CLAIM")]
_ClaimIds = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[CLAIM ...]")]
_BROKEN_PIPE = 141  # as a shell reports a program ended by SIGPIPE


def list_claims(rung: Rung | None = None, ladder: bool = False, folder: Path = FOLDER) -> int:
    """List the claims: id, verdict on record, seeds, rungs, and the sentence.

    Args:
        rung: List only the claims made at this rung.
        ladder: Claims against rungs instead: verdict and n at each, of those made at more than one; where nothing is on
            record, what the attempts in escalations/ came to.
        folder: Folder of the studies.
    """
    if ladder:
        from studies.kit.crossing import ladder_table
        from studies.kit.escalation_file import EscalationError, escalations

        try:
            _say(ladder_table(_there(folder), attempts=escalations(Path("escalations"))))
        except EscalationError as error:
            raise CommandError(str(error)) from error
        return 0
    found = _stated(folder)
    claims = [claim for claim in found if rung is None or rung in claim.rungs]
    for claim in claims:
        at = rung or claim.rungs[0]
        long = ", long" if claim.is_long(at) else ""
        facts = f"{claim.expect_at(at) or 'new'}, {claim.seeds_at(at)} seeds{long}, {' -> '.join(claim.rungs)}"
        _say(f"{claim.id}  ({facts})\n    {claim.says}")
    _say(f"{len(claims)} claim{'' if len(claims) == 1 else 's'} in {folder}")
    return 0


def run(
    claims: _ClaimIds = (),
    rung: Rung = "sim",
    seeds: str | None = None,
    all: bool = False,  # noqa: A002 -- the option of the plugin
    record: bool = False,
    folder: Path = FOLDER,
) -> int:
    """Run the studies that make the named claims, or every study.

    Args:
        claims: Ids of claims, as ``metastable list`` prints them.
        rung: The rung to run them at.
        seeds: A number, ``fresh``, ``fresh:BASE``, ``until-decided`` or ``until-decided:CAP``; by default the seeds on
            record.
        all: Also run the claims marked long.
        record: Write the verdicts to the records.
        folder: Folder of the studies.
    """
    from studies.kit.family import declared

    known = declared(_there(folder))
    for claim in claims:
        _known(claim, known)
        if rung not in known[claim]:
            raise CommandError(f"claim {claim!r} is not made at {rung}; rungs: {', '.join(known[claim])}")
    options = ["--rung", rung, *(["--seeds", seeds] if seeds else [])]
    options += ["--all"] * all + ["--record"] * record
    if claims:
        options += ["-k", " or ".join(claims)]
    # A process of its own: pytest wants to be first to import the plugins that this one has loaded.
    return subprocess.call([sys.executable, "-m", "pytest", str(folder), *options])


def show(claim: _ClaimId, folder: Path = FOLDER) -> int:
    """Show what is on record for a claim, in words; without a record, what the claim says.

    Args:
        claim: Id of the claim, as ``metastable list`` prints it.
        folder: Folder of the studies.
    """
    from studies.kit.family import declared
    from studies.kit.records import records

    found = records(_there(folder) / "records")
    _known(claim, {**declared(folder), **found})
    if claim not in found:
        _say("\n".join(_unrecorded(next(stated for stated in _stated(folder) if stated.id == claim), folder)))
        return 0
    for rung, entry in found[claim].items():
        _say("\n".join(_words(rung, entry)))
    return 0


def draw(world: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORLD")]) -> int:
    """Draw the tool graph of a world as text.

    Args:
        world: One of seed-a, seed-a-final, verify, read-more.
    """
    from sim.mdp import worlds
    from studies.kit.words import near

    if world not in worlds.PRESETS:
        raise CommandError(f"no world {world!r}; {near(world, worlds.PRESETS)}")
    _say(worlds.PRESETS[world]().graph().text())
    return 0


COMMANDS: dict[str, Callable[..., int]] = {
    "list": list_claims,
    "run": run,
    "show": show,
    "escalate": escalate,
    "cite": cite,
    "sweep": sweep,
    "read": read,
    "fit": fit,
    "inspect": inspect_runs,
    "runs": runs,
    "export": export,
    "draw": draw,
    "cluster": cluster,
}
"""The commands by name."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status: 0, that of pytest, or 2 for a request that cannot be met.

    A reader that stops early, as in ``metastable list | head``, ends it quietly with 141.
    """
    description = "A testbed for the training dynamics of agentic reinforcement learning."
    try:
        status = int(
            tyro.extras.subcommand_cli_from_dict(
                COMMANDS, prog="metastable", description=description, args=arguments, sort_subcommands=False
            )
        )
        sys.stdout.flush()  # here, where a closed pipe can still be met, rather than as the interpreter exits
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    except CommandError as error:
        sys.stderr.write(f"metastable: {error}\n")
        return 2
    return status


def _there(folder: Path) -> Path:
    if not folder.is_dir():
        raise CommandError(f"no folder {str(folder)!r}: give the one that holds study_*.py with --folder")
    return folder


def _stated(folder: Path) -> "list[Claim]":
    from studies.kit.library import claims_in

    try:
        return claims_in(_there(folder))
    except ImportError as error:
        raise CommandError(str(error)) from error


def _known(claim: str, known: Iterable[str]) -> None:
    from studies.kit.words import near

    if claim not in known:
        raise CommandError(
            f"no claim {claim!r}; {near(claim, known)} (`metastable list` has them all; --folder looks elsewhere)"
        )


def _unrecorded(claim: "Claim", folder: Path) -> list[str]:
    """Put a claim without a record into words."""
    from studies.kit.words import number

    lines = [claim.says]
    for rung in claim.rungs:
        foreseen = claim.predicts_at(rung)
        predicted = "nothing"
        if foreseen is not None:
            predicted = f"{number(foreseen.value)} {claim.unit} ({foreseen.source or 'no source given'})"
        lines += [
            f"{rung}: not on record",
            f"  needed     {claim.region_at(rung).words}  ({claim.kind.sentence})",
            f"  predicted  {predicted}",
            f"  expected   {claim.expect_at(rung) or 'no verdict stated'}",
        ]
    where = "" if folder == FOLDER else f" --folder {folder}"
    needs = "" if claim.expect_at(claim.rungs[0]) else "  (once the claim states expect=)"
    return [*lines, f"  to record  metastable run {claim.id} --record{where}{needs}"]


def _words(rung: str, entry: "Record") -> list[str]:
    """Put a record into words."""
    from studies.kit.words import number, probability

    found = entry.finding
    if found is None:
        return [f"{rung}: only fresh seeds have run so far", *_fresh(entry, None)]
    made_with = ", ".join(f"{key} {value}" for key, value in entry.place.items())
    predicted = "nothing"
    if found.predicted is not None:
        agrees = {True: ", agrees", False: ", does not agree", None: ""}[found.agrees]
        predicted = f"{number(found.predicted)} {found.unit}{agrees} ({found.prediction_source or 'no source given'})"
    return [
        found.says,
        f"{rung}: {found.verdict}",
        f"  measured   {found.measurement}, n={found.n}, p={probability(found.p)}",
        f"  needed     {found.region}  ({found.measured})",
        f"  predicted  {predicted}",
        *(f"  control    {control.words}" for control in found.controls),
        *_fresh(entry, found.expect),
        f"  made with  {made_with}; commit {entry.commit or 'unknown'}",
        f"  again      {found.rerun}",
    ]


def _fresh(entry: "Record", expect: str | None) -> list[str]:
    if not entry.fresh:
        return ["  fresh      not yet run on fresh seeds"]
    sets = ", ".join(f"{item.base}: {item.verdict}" for item in entry.fresh)
    held, of = entry.held(expect)
    return [f"  fresh      held {held} of {of} ({sets})"]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
