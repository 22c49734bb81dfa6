"""``metastable escalate``: carry a claim to the next rung against a prediction that is written down before it runs there."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from studies import FOLDER
from studies.kit.words import CommandError

__all__ = ["escalate"]

_Claim = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="CLAIM")]


def escalate(
    claim: _Claim,
    to: Literal["minimodel", "fullscale"] | None = None,
    seeds: str | None = None,
    anyway: str = "",
    processes: int | None = None,
    register_only: bool = False,
    folder: Path = FOLDER,
) -> int:
    """Carry a claim to the next rung: write down what is predicted there, run it on fresh seeds, compare.

    The file escalations/CLAIM.toml is written before anything runs, and the result appended to it. A claim climbs only from
    a rung where it is supported and has held on fresh seeds. The status is 0 whatever came out, 1 where the study failed,
    2 where the claim may not climb.

    Args:
        claim: Id of the claim, as `metastable list` prints it.
        to: The rung; by default the lowest that is not on record.
        seeds: A number, or until-decided or until-decided:CAP; by default as many as the claim states. Always fresh ones.
        anyway: Run although the rung below does not hold, for this reason, which goes into the file.
        processes: Processes that train.
        register_only: Write the file and stop; the same command without this runs it.
        folder: Folder of the studies.
    """
    from studies.kit import climbing
    from studies.kit.escalation import comparison
    from studies.kit.escalation_file import EscalationError, attempts, place

    if processes is not None and processes < 1:
        raise CommandError(f"--processes {processes}: it takes 1 or more")
    try:
        climb = climbing.prepare(claim, to, folder, Path.cwd())
        attempt, new = climbing.registered(climb, seeds, anyway)
    except EscalationError as error:
        raise CommandError(str(error)) from error
    path = place(climb.files, claim, attempt.attempt)
    wanted = attempt.plan
    cost = f"{wanted.cpu_s:.0f} CPU seconds" if wanted.cpu_s is not None else "CPU time unknown"
    runs = "an unknown number of runs" if wanted.runs is None else f"at most {wanted.runs} runs"
    _say(f"{'registered' if new else 'already registered'}: {path} (seeds {wanted.seeds}, {runs}, {cost})")
    if register_only:
        _say("\n".join(comparison(attempt)))
        return 0
    try:
        done = climbing.result(climb, attempt, [] if processes is None else ["--processes", str(processes)])
    except (CommandError, EscalationError) as error:
        sys.stderr.write(f"metastable: {error}\n")
        return 1
    _say(f"\n{path}, attempt {done.attempt}:")
    _say("\n".join(comparison(done, attempts(climb.files, claim))))
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()  # before pytest writes, which has a buffer of its own
