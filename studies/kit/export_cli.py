"""``metastable export``: runs of the store as Parquet files or as event files of TensorBoard."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from studies.kit.runs.filters import Filters
from studies.kit.runs_cli import EVERY, STORE, Chosen, Keys
from studies.kit.words import CommandError

if TYPE_CHECKING:
    from sim.records.run import RunRecord

__all__ = ["export"]

_Out = Annotated[Path, tyro.conf.arg(metavar="DIR")]


def export(
    to: Literal["parquet", "tensorboard"],
    out: _Out,
    keys: Keys = (),
    chosen: Chosen = EVERY,
    store: Path = STORE,
) -> int:
    """Export runs, by key or filter, or all of them: every bit as Parquet, or as scalars (float32) of TensorBoard.

    Args:
        to: What to write; each is an extra of the same name.
        out: Folder to make. One that is there is replaced only if an export made it and nobody added to it.
        keys: Keys of runs, or their first digits.
        store: Folder of the runs.
    """
    from studies.kit.export import parquet, tensorboard
    from studies.kit.export.folder import ExportError, check, fresh_folder

    check_installed, write = {
        "parquet": (parquet.check_installed, parquet.write),
        "tensorboard": (tensorboard.check_installed, tensorboard.write),
    }[to]
    try:
        check_installed()
        check(out)
        names, left_out = _chosen(store, keys, chosen)
        with (
            fresh_folder(out, {"format": to, "runs": names, "left_out": left_out}) as folder,
            _bar(2 * len(names)) as advance,
        ):
            notes = write(lambda: _records(store, names, advance), folder)
    except (ExportError, OSError) as error:
        raise CommandError(str(error)) from error
    sys.stdout.write(f"{len(names)} run{'s' * (len(names) != 1)} to {out}\n")
    for line in (*notes, *(f"left out {name}: {why}" for name, why in left_out.items())):
        sys.stderr.write(line + "\n")
    return 1 if left_out else 0


def _chosen(store: Path, keys: Sequence[str], chosen: Filters) -> tuple[list[str], dict[str, str]]:
    """Return the keys of the runs that are meant, sorted, and why others that may be meant cannot be read."""
    from studies.kit.runs.filters import select
    from studies.kit.runs.listing import find, scan

    rows = scan(store)
    if keys:
        found = {row.name: row for row in (find(rows, key) for key in keys)}
        rows = [found[name] for name in sorted(found)]
        for row in rows:
            if not row.is_run:
                raise CommandError(f"{row.path} is {row.kind}: {row.problem}")
    names = [row.name for row in select(rows, chosen)]
    if not names:
        raise CommandError(f"none of the {sum(row.is_run for row in rows)} runs is meant: nothing to export")
    return names, {row.name: f"{row.kind}, {row.problem}" for row in rows if row.kind in ("damaged", "newer")}


def _records(store: Path, names: Sequence[str], advance: Callable[[], object]) -> "Iterator[RunRecord]":
    """Yield runs, each checked against its manifest; one at a time is in memory."""
    from sim.records.store import Store, StoreError

    here = Store(store)
    for name in names:
        try:
            yield here.load(name)
        except (StoreError, KeyError) as error:
            raise CommandError(f"{error.args[0]}; nothing was exported") from error
        advance()


@contextmanager
def _bar(total: int) -> "Iterator[Callable[[], object]]":
    """Show a bar of runs read, each twice, where somebody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("runs"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task)
