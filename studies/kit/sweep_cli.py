"""``metastable sweep``: run a study over a grid, or bisect to the boundary where a verdict changes."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from studies import FOLDER
from studies.kit.words import CommandError, number

if TYPE_CHECKING:
    from studies.kit.executors import Executor
    from studies.kit.phase.bisection import Boundaries
    from studies.kit.phase.sweeps import Swept

__all__ = ["sweep"]

_Study = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STUDY")]
_Options = tyro.conf.UseAppendAction[tuple[str, ...]]
_INTERRUPTED = 130  # as a shell reports a program ended by SIGINT
_SHOWN = 5  # errors; the table has them all


def sweep(
    study: _Study,
    grid: _Options = (),
    bisect: str | None = None,
    seeds: str | None = None,
    claim: str | None = None,
    rung: Literal["sim", "minimodel", "fullscale"] = "sim",
    executor: Literal["inline", "processes", "slurm"] = "processes",
    processes: int | None = None,
    slurm: _Options = (),
    arms: Literal["all", "some"] = "all",
    retry_failed: bool = False,
    store: Path = Path("runs/store"),
    ledgers: Path = Path("runs/sweeps"),
    folder: Path = FOLDER,
) -> int:
    """Run a study over a grid of its own settings and draw what its claim comes to, or bisect to a boundary.

    What is done is kept: a run in the store, a point in the sweep's ledger. The same command goes on where it stopped. A
    point that fails is recorded with its error and the others go on.

    Args:
        study: Name of a study, path of its file, or id of one of its claims.
        grid: KEY=A,B,C or KEY=LOW:HIGH:N or KEY=LOW:HIGH:N:log, once for each key. A key is a dotted path into the
            configs of the study's arms, such as world.known.
        bisect: KEY=LOW:HIGH or KEY=LOW:HIGH:TOLERANCE: find where along a key the verdict changes; with --grid in every
            row of it.
        seeds: A number, ``fresh``, or ``fresh:BASE``; by default each claim's own.
        claim: The claim that is drawn or bisected; by default the study's first.
        rung: The rung to run at.
        executor: Who makes the runs: this process, processes of this machine, or jobs of a Slurm cluster.
        processes: How many processes; by default the machine's processors.
        slurm: For jobs, such as partition=short,time=60,jobs=20 (minutes); cluster=local tries them without Slurm.
        arms: Whether every arm must have each key, set alike by the study (all), or keys are set where they are (some).
        retry_failed: Try points again that failed; those that failed by accident always are.
        store: Folder of the runs.
        ledgers: Folder of the sweeps.
        folder: Folder of the studies.
    """
    options: dict[str, Any] = {"seeds": seeds, "rung": rung, "store": store, "ledgers": ledgers, "arms": arms}
    options |= {"retry_failed": retry_failed, "folder": folder}
    try:
        with _told(), _executor(executor, processes, slurm, store, ledgers) as chosen:
            return _run(study, _grid(grid), bisect, claim, {**options, "executor": chosen})
    except KeyboardInterrupt:
        sys.stderr.write("metastable: stopped. What is done is kept; the same command goes on from there\n")
        return _INTERRUPTED


def _run(study: str, grid: dict[str, str], bisect: str | None, claim: str | None, options: dict[str, Any]) -> int:
    from studies.kit.phase.bisection import bisect_rows
    from studies.kit.phase.output import save, save_boundaries
    from studies.kit.phase.showing import showing
    from studies.kit.phase.sweeps import sweep_study
    from studies.kit.phase.target import find

    find(study, options["rung"], options["folder"]).claim(claim)  # an unknown one is refused before anything runs
    if bisect is not None:
        key, low, high, tolerance = _range(bisect)
        with showing() as watch:
            found = bisect_rows(study, key, low, high, claim, grid=grid, tolerance=tolerance, watch=watch, **options)
        _say("\n".join([*_boundaries(found), *_written(found.notes, save_boundaries(found))]))
        return int(any(row.failed for row in found.rows))
    with showing() as watch:
        swept = sweep_study(study, grid, watch=watch, **options)
    _say("\n".join([*_outcome(swept), *_written(swept.notes, save(swept, claim))]))
    return int(bool(swept.failed))


@contextmanager
def _told() -> Iterator[None]:
    """Turn what a user can mend into a message."""
    from studies.kit.executors import SweepError
    from studies.kit.phase.ledger import LedgerError
    from studies.kit.phase.places import GridError

    try:
        yield
    except (GridError, LedgerError, SweepError) as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise CommandError(f"{where}{error.strerror or error}. What is done is kept; start it again then") from error


@contextmanager
def _executor(
    name: str, processes: int | None, slurm: tuple[str, ...], store: Path, ledgers: Path
) -> "Iterator[Executor]":
    from studies.kit import executors

    if name != "slurm" and slurm:
        raise CommandError(f"--slurm {slurm[0]} without --executor slurm")
    if name != "processes" and processes is not None:
        raise CommandError(f"--processes {processes} goes with --executor processes, not {name}")
    if name == "inline":
        yield executors.inline
    elif name == "slurm":
        from studies.kit.slurm import parse
        from studies.kit.slurm import slurm as on_slurm

        yield on_slurm(store, ledgers / "jobs", **parse(slurm))
    else:
        n = (os.cpu_count() or 1) if processes is None else processes
        if n < 1:
            raise CommandError(f"--processes {n}: it takes 1 or more")
        with executors.processes(n) as made:
            yield made


def _grid(options: tuple[str, ...]) -> dict[str, str]:
    from studies.kit.phase.axes import check_keys, split

    pairs = [split(option) for option in options]
    check_keys([key for key, _ in pairs])
    return dict(pairs)


def _range(option: str) -> tuple[str, float, float, float | None]:
    from studies.kit.phase.axes import split
    from studies.kit.phase.places import GridError

    key, text = split(option)
    try:
        low, high, *rest = (float(part) for part in text.split(":"))
        (tolerance,) = rest or (None,)
    except ValueError:
        raise GridError(f"--bisect {option}: give KEY=LOW:HIGH or KEY=LOW:HIGH:TOLERANCE") from None
    return key, low, high, tolerance


# Words ----------------------------------------------------------------------------------------------------------------


def _outcome(swept: "Swept") -> list[str]:
    from studies.kit.phase.words import count, label, tally

    before = len(swept.entries) - swept.fresh
    known = f", {before} of them known before" if before else ""
    lines = [f"{swept.target.name}: {count(len(swept.entries), 'point')}{known}"]
    for stated in swept.target.claims:
        found = [entry.of(stated.id) for entry in swept.entries]
        verdicts = [each.verdict for each in found if each is not None]
        lines.append(f"  {stated.id}: {tally({verdict: verdicts.count(verdict) for verdict in verdicts}) or 'nothing'}")
        silent = [each.reason for each in found if each is not None and each.verdict == "no verdict" and each.reason]
        if silent:
            lines.append(f"    no verdict, most often: {max(set(silent), key=silent.count)}")
    lines += [f"  failed  {label(entry.point)}: {_brief(entry.failure)}" for entry in swept.failed[:_SHOWN]]
    if swept.failed:
        more = f"{len(swept.failed) - _SHOWN} more in the table; " if len(swept.failed) > _SHOWN else ""
        lines.append(f"  {more}tracebacks are in {swept.folder / 'points'}; --retry-failed tries them again")
    return lines


def _boundaries(found: "Boundaries") -> list[str]:
    from studies.kit.phase.words import count, label

    lines = [f"{found.target.name}: {found.claim.id} along {found.rows[0].key}"]
    for row in found.rows:
        at = f"{label(row.fixed)}: " if row.fixed else ""
        if row.failed:
            lines.append(f"  {at}no boundary. {row.failed}")
            continue
        ends = [number(end, 4) if end is not None else "nowhere" for end in (row.decided_low, row.decided_high)]
        lines.append(
            f"  {at}changes between {number(row.low, 4)} and {number(row.high, 4)}, {row.at_low} below; settled from "
            f"{ends[0]} down and {ends[1]} up ({count(len(row.probes), 'point')})"
        )
    return lines


def _brief(failure: Any) -> str:
    first = failure.error.splitlines()[0] if failure.error else ""
    log = f" ({failure.log})" if failure.log else ""
    return (first if len(first) <= 200 else first[:197] + "...") + log


def _written(notes: tuple[str, ...], paths: list[Path]) -> list[str]:
    return [*(f"  note  {note}" for note in notes), *(f"  {path}" for path in paths)]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
