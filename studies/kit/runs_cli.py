"""``metastable runs``: list the runs of a store, show one, compare two, and remove those that nothing refers to."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union

import tyro

from studies import FOLDER
from studies.kit.runs.filters import Filters, Sort
from studies.kit.words import CommandError

if TYPE_CHECKING:
    from sim.records.run import RunRecord
    from studies.kit.runs.listing import Row
    from studies.kit.runs.references import References

__all__ = ["COMMANDS", "EVERY", "STORE", "Chosen", "Key", "Keys", "runs"]

STORE = Path("runs/store")
"""Where studies keep their runs, from the working directory."""
EVERY = Filters()
"""No filter."""
Chosen = Annotated[Filters, tyro.conf.arg(name="")]
"""Filters as options without a prefix."""
Key = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="KEY")]
Keys = Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[KEY ...]")]
_Folders = Annotated[tuple[Path, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="DIR")]
_Paths = Annotated[tuple[Path, ...], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="PATH")]


def list_runs(
    chosen: Chosen = EVERY,
    baseline: str | None = None,
    sort: Sort = "study",
    reverse: bool = False,
    limit: int | None = None,
    json: bool = False,
    store: Path = STORE,
) -> int:
    """List the runs: key, study, rung, seed, steps, code, when recorded, time taken, size, and in what the config departs.

    Args:
        baseline: Key of the run whose config the others are held against; by default the commonest of study and rung.
        sort: What to sort by.
        reverse: Sort the other way.
        limit: List at most so many.
        json: Write JSON, one run a line.
        store: Folder of the runs.
    """
    from studies.kit.runs.filters import ordered, select
    from studies.kit.runs.listing import against, find, scan
    from studies.kit.runs.tables import as_json, listed_lines, total

    if limit is not None and limit < 0:
        raise CommandError(f"--limit {limit}: it takes 0 or more")
    rows = scan(store)
    found = ordered(select(rows, chosen), sort, reverse)
    base = None if baseline is None else _legible(find(rows, baseline)).config
    departs = against(found, base)
    listed = found if limit is None else found[:limit]
    unread = [row for row in rows if row.kind in ("damaged", "newer", "incomplete")]
    if json:
        _say(as_json(listed, unread, departs))
        return 0
    _say("\n".join(listed_lines(listed, unread, departs)))
    _say(total(found, listed, rows))
    return 0


def show(key: Key, store: Path = STORE, folder: _Folders = ()) -> int:
    """Show a run: its config, how it came about, every column with its range and course, and what refers to it.

    Args:
        key: Key of the run, or its first digits.
        store: Folder of the runs.
        folder: Another folder of studies that may refer to it, beside those of the package.
    """
    from studies.kit.runs.listing import find, scan
    from studies.kit.runs.references import collect
    from studies.kit.runs.show import shown

    row = find(scan(store), key)
    record = _loaded(row, store)
    references = collect([FOLDER, *folder], store)
    _say("\n".join(shown(row, record, references.reasons(row))))
    return 0


def compare(
    first: Key,
    second: Key,
    column: str | None = None,
    figure: Path | None = None,
    store: Path = STORE,
) -> int:
    """Compare two runs: in what they were asked to differ, from which step each column does, and by how much.

    Args:
        first: Key of a run, or its first digits.
        second: Key of the other.
        column: Draw this column of both.
        figure: Where to draw it (.svg, .png or .pdf); by default compare-FIRST-SECOND.svg in the working directory.
        store: Folder of the runs.
    """
    from studies.kit.runs.compare import compare as compared
    from studies.kit.runs.compare import draw
    from studies.kit.runs.listing import find, scan
    from studies.kit.runs.tables import compared_lines

    if figure is not None and column is None:
        raise CommandError(f"--figure {figure}: name the column to draw with --column")
    rows = scan(store)
    a, b = (_loaded(find(rows, key), store) for key in (first, second))
    _say("\n".join(compared_lines(a, b, compared(a, b))))
    if column is not None:
        path = figure or Path(f"compare-{a.key[:8]}-{b.key[:8]}.svg")
        try:
            draw(a, b, column, path)
        except (ValueError, OSError) as error:
            raise CommandError(str(error)) from error
        _say(f"  wrote {path}")
    return 0


def prune(
    keys: Keys = (),
    chosen: Chosen = EVERY,
    incomplete: bool = False,
    temporary: bool = False,
    every: bool = False,
    dry_run: bool = False,
    yes: bool = False,
    store: Path = STORE,
    folder: _Folders = (),
    keep: _Paths = (),
) -> int:
    """Remove runs, after asking. What a study, a record, an escalation or a sweep refers to always stays.

    Args:
        keys: Keys of runs, or their first digits.
        incomplete: Also folders without a manifest, which are no runs.
        temporary: Also what killed processes left behind more than a day ago.
        every: Choose every run, where neither keys nor filters do.
        dry_run: Only say what would go.
        yes: Do not ask.
        store: Folder of the runs.
        folder: Another folder of studies that may refer to runs, beside those of the package.
        keep: Another file, or folder of files, that names runs to keep, such as a notebook.
    """
    from studies.kit.runs.listing import scan
    from studies.kit.runs.prune import plan, remove
    from studies.kit.runs.references import collect
    from studies.kit.runs.tables import planned_lines
    from studies.kit.runs.words import amount

    if not (keys or chosen.any_given or incomplete or temporary or every):
        raise CommandError(
            "prune what? name keys or a filter, such as --code other, or --temporary, --incomplete, --every"
        )

    def references() -> "References":
        return collect([FOLDER, *folder], store, keep, asked=chosen.study)

    rows = _to_prune(scan(store), keys, chosen, incomplete, temporary, every)
    planned = plan(rows, references())
    _say("\n".join(planned_lines(planned)))
    if dry_run or not planned.going:
        return 0
    if not yes and not _confirmed(f"Remove {len(planned.going)}?"):
        _say("nothing removed")
        return 1
    # Once more: between question and answer a sweep may have begun, or an escalation been written.
    planned = plan(planned.going, references())
    freed, failures = remove(planned.going)
    _say(f"removed {len(planned.going) - len(failures)}, {amount(freed)}")
    for line in failures:
        sys.stderr.write(f"not removed: {line}\n")
    return 1 if failures else 0


COMMANDS: dict[str, Callable[..., int]] = {"list": list_runs, "show": show, "compare": compare, "prune": prune}
"""The commands below ``metastable runs``, by name."""

if TYPE_CHECKING:
    _Command = int
else:
    _Command = Annotated[
        Union[  # noqa: UP007 -- of a tuple
            tuple(Annotated[Any, tyro.conf.subcommand(name, constructor=made)] for name, made in COMMANDS.items())
        ],
        tyro.conf.arg(name=""),
    ]


def runs(command: _Command) -> int:
    """List, show, compare and prune the runs of the store."""
    return command


def _to_prune(
    rows: "Sequence[Row]", keys: Sequence[str], chosen: Filters, incomplete: bool, temporary: bool, every: bool
) -> "list[Row]":
    """Return the rows that are chosen, each once, in the order of the store."""
    from studies.kit.runs.filters import select
    from studies.kit.runs.listing import find

    names = {find(rows, key).name for key in keys}
    if chosen.any_given or every:
        among = [row for row in rows if row.name in names] if keys else rows
        names = {row.name for row in select(among, chosen)}
    kinds = {"incomplete", "set aside"} if incomplete else set()
    kinds |= {"temporary"} if temporary else set()
    return [row for row in rows if row.name in names or row.kind in kinds]


def _confirmed(question: str) -> bool:
    """Ask, and take only y or yes for an answer; CommandError where there is nobody to ask."""
    if not sys.stdin.isatty():
        raise CommandError(
            "nobody is there to be asked: --yes removes without asking, --dry-run only says what would go"
        )
    sys.stdout.write(f"{question} [y/N] ")
    sys.stdout.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _loaded(row: "Row", store: Path) -> "RunRecord":
    from sim.records.store import Store, StoreError

    try:
        return Store(store).load(_legible(row).name)
    except StoreError as error:
        raise CommandError(str(error)) from error


def _legible(row: "Row") -> "Row":
    if not row.is_run:
        raise CommandError(f"{row.path} is {row.kind}: {row.problem}")
    return row


def _say(text: str) -> None:
    if text:
        sys.stdout.write(text + "\n")
