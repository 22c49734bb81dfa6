"""``metastable read``: what a run made by another trainer shows, in a table, transitions, alarms and a page."""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from studies.kit.words import CommandError

if TYPE_CHECKING:
    from studies.kit.inspector.data import Inspected
    from studies.kit.reading.alarms import Alarms
    from studies.kit.reading.fold import Reading
    from studies.kit.reading.formats import Source
    from studies.kit.reading.transitions import Transition

__all__ = ["read"]

_Path = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]


def read(
    path: _Path,
    format: Literal["auto", "verl", "trl", "prime-rl", "search-r1", "jsonl"] = "auto",  # noqa: A002
    tools: tuple[str, ...] = (),
    solved_at: float | None = None,
    controls: tuple[Path, ...] = (),
    rate: float = 0.05,
    detector: Literal["cusum", "page-hinkley", "level"] = "cusum",
    against: Path | None = None,
    keep: int = 5000,
    name: str | None = None,
    out: Path | None = None,
) -> int:
    """Read a run made by another trainer: behaviour by turn, ways of working, transitions, and a page of its rollouts.

    Switches that make a trainer write what can be read: verl trainer.rollout_data_dir=DIR; TRL log_completions=True;
    prime-rl its file monitor or enable_token_export; Search-R1 any dump of its text. Anything else fits our plain
    layout, a JSON object a line. docs/reading.md has them all.

    Args:
        path: File or folder of the rollouts, or a folder that an earlier read has written.
        format: Layout of the files; by default it is made out from them.
        tools: Names of the tools, where other names should be counted as unknown.
        solved_at: Reward from which a task counts as solved, where rewards are not just 0 and 1.
        controls: Runs of the same recipe in which nothing happened, 20 or more: they calibrate the alarms.
        rate: Share of ordinary runs in which an alarm may go off, for each signal by itself.
        detector: What watches a signal: cusum and page-hinkley add up small excesses, level waits for a large one.
        against: A second run, read too and shown beside the first in the page.
        keep: Most rollouts to keep with their words, of every workflow at every step as many as there is room for.
        name: Name of the run; by default that of its file or folder.
        out: Folder to write to; by default runs/read/NAME. An earlier reading there is replaced, anything else is not.
    """
    from studies.kit.reading.formats import ReadError
    from studies.kit.reading.keeping import KeepingError

    try:
        if not 0 < rate < 1:  # before anything is read
            raise ValueError(f"--rate {rate:g} must lie between 0 and 1, as in 0.05")
        options = _Options(format, tools, solved_at)
        run = _Run(path, options, keep, name)
        other = None if against is None else _Run(against, options, keep)
        quiet = [_Run(each, options, 0) for each in controls]
        return _read(run, other, quiet, rate, detector, out)
    except (ReadError, KeepingError, ValueError) as error:
        raise CommandError(str(error)) from error
    except BrokenPipeError:
        raise  # nobody reads on, which is no error
    except OSError as error:
        raise CommandError(f"{error.filename or path}: {error.strerror or error}") from error


@dataclass(frozen=True)
class _Options:
    """How files are to be read."""

    layout: str
    tools: tuple[str, ...]
    solved_at: float | None


class _Run:
    """A run that was named: opened, so that a mistake is told before others are read, and not yet read."""

    def __init__(self, path: Path, options: _Options, keep: int, name: str | None = None) -> None:
        from studies.kit.reading.formats import open_run
        from studies.kit.reading.keeping import is_kept

        if keep < 0:
            raise ValueError(f"--keep {keep} must be 0 or more")
        self.path, self.options, self.keep = path, options, keep
        self.name = name or _name(path)
        self.source: Source | None = None
        if not is_kept(path):
            self.source = open_run(path, options.layout, options.tools, options.solved_at)

    def reading(self) -> "Reading":
        """Read it, or load what an earlier command has read."""
        from studies.kit.reading.fold import fold
        from studies.kit.reading.keeping import load

        source = self.source
        if source is None:
            return load(self.path, words=self.keep > 0)
        with _bar(f"reading {self.name}", source.bytes_total) as told:
            return fold(source, self.keep, lambda *counts: told(source.bytes_read, *counts), self.name)


def _name(path: Path) -> str:
    whole = path.resolve()
    return (whole.name if whole.is_dir() else whole.name.split(".")[0]) or "run"


def _read(run: _Run, other: _Run | None, quiet: Sequence[_Run], rate: float, detector: str, out: Path | None) -> int:
    from studies.kit.reading.keeping import check
    from studies.kit.reading.words import report

    folder = out or Path("runs", "read", run.name.replace("/", "-").lstrip(".") or "run")
    if run.source is not None:
        check(folder)
    began = time.monotonic()
    reading = run.reading()
    others = [] if other is None else [other.reading()]
    found = _Found(reading, [each.reading() for each in quiet], rate, detector)
    texts = ["\n".join(report(reading, found.transitions, found.alarms)) + "\n"]
    inspected = [found.inspected()]
    for each in others:
        beside = _Found(each, [], rate, detector)
        texts.append("\nagainst " + "\n".join(report(each, beside.transitions)) + "\n")
        inspected.append(beside.inspected())
    last = _there(run.path, found) if run.source is None else ""
    try:  # first what is to last, but what was found is told even where it cannot be written
        if run.source is not None:
            last = _write(run, reading, folder, texts, inspected, time.monotonic() - began)
    finally:
        sys.stdout.write("".join(texts))
    sys.stdout.write(last)
    return 0


class _Found:
    """What was found in a reading."""

    def __init__(self, reading: "Reading", controls: "Sequence[Reading]", rate: float, detector: str) -> None:
        from studies.kit.reading.alarms import alarms
        from studies.kit.reading.transitions import transitions

        self.reading = reading
        self.transitions: tuple[Transition, ...] = transitions(reading)
        self.alarms: Alarms | None = alarms(reading, controls, rate, detector) if controls else None

    def inspected(self) -> "Inspected":
        """Return the run as the page shows it."""
        from studies.kit.reading.showing import inspected

        return inspected(self.reading, self.transitions, self.alarms)


def _there(folder: Path, found: "_Found") -> str:
    """Say where the page of a record is; a record whose run was stopped has none yet, and gets it here."""
    from studies.kit.inspector.page import write

    page = folder / "index.html"
    if page.exists():
        return f"read from the record in {folder}: nothing was written; its page is {page}\n"
    write(page, [found.inspected()], found.reading.name)
    return f"read from the record in {folder}, which had no page yet\npage    {page}\n"


def _write(
    run: _Run, reading: "Reading", folder: Path, texts: Sequence[str], shown: "Sequence[Inspected]", wall_s: float
) -> str:
    """Write the record and the page, and return the lines that say where."""
    from studies.kit.reading.keeping import Origin, inputs, write

    assert run.source is not None
    with _bar("hashing the files", run.source.bytes_total) as told:
        files = inputs(reading.paths, told)
    grown = sum(each.bytes for each in files) != run.source.bytes_total
    origin = Origin(run.source.format, run.options.tools, run.options.solved_at, run.keep, files)
    provenance = {"path": str(run.path.resolve()), "wall_s": round(wall_s, 3)}
    write(reading, folder, origin, report="".join(texts), inspected=shown, provenance=provenance)
    note = "note: files grew while they were read: read again when the run has ended\n" if grown else ""
    return f"{note}page    {folder / 'index.html'}\nrecord  {folder}\n"


@contextmanager
def _bar(words: str, total: int) -> Iterator[Callable[..., None]]:
    """Show how far a file is read, with episodes and steps, where somebody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns: tuple[Any, ...] = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(words, total=total or None)

        def told(done: int, episodes: int = 0, steps: int = 0) -> None:
            counts = f": {episodes:,} rollouts, {steps} steps" if episodes else ""
            progress.update(task, completed=done, description=words + counts)

        yield told
