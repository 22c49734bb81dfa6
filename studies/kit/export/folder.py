"""Folders that an export makes: whole or not at all, and never over what it did not write itself."""

import json
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["MARKER", "ExportError", "check", "fresh_folder"]

MARKER = "metastable-export.json"
"""Name of the file that says what an export wrote; a folder is only replaced if it holds this and nothing else."""


class ExportError(ValueError):
    """The export cannot be made as asked; the message says why and what can be done."""


def check(out: Path) -> None:
    """ExportError unless ``out`` is free, empty, or an earlier export with no other files in it."""
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ExportError(f"{out} is no folder: name another with --out")
    if not out.is_dir() or not any(out.iterdir()):
        return
    try:
        wrote = set(json.loads((out / MARKER).read_text(encoding="utf-8"))["files"]) | {MARKER}
    except (OSError, ValueError, KeyError, TypeError):
        raise ExportError(f"{out} is there and was not made by an export: name another with --out") from None
    others = sorted(set(_files(out)) - wrote)
    if others:
        raise ExportError(f"{out} holds {others[0]!r}, which the export there did not write: name another with --out")


@contextmanager
def fresh_folder(out: Path, about: Mapping[str, Any]) -> Iterator[Path]:
    """Yield an empty folder that becomes ``out`` when the block ends well, with a marker that holds ``about``.

    An earlier export at ``out`` is replaced. When the block fails nothing is left and ``out`` is as it was.
    """
    check(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    writing = out.with_name(f".exporting-{out.name}-{uuid.uuid4().hex}")
    writing.mkdir()
    try:
        yield writing
        marker = {**about, "files": _files(writing)}
        (writing / MARKER).write_text(json.dumps(marker, sort_keys=True, indent=1) + "\n", encoding="utf-8")
        _swap(writing, out)
    finally:
        shutil.rmtree(writing, ignore_errors=True)


def _swap(made: Path, out: Path) -> None:
    """Give a finished folder its name. What had it is set aside first, and put back should that fail."""
    check(out)  # once more: it took a while to write
    if not out.exists():
        made.rename(out)
        return
    aside = out.with_name(f".replaced-{out.name}-{uuid.uuid4().hex}")
    out.rename(aside)
    try:
        made.rename(out)
    except OSError:
        aside.rename(out)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _files(folder: Path) -> Sequence[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
