"""Folders that are expensive to make: made once per machine, checked at every use, and made again when damaged."""

import hashlib
import json
import logging
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

__all__ = ["made_once"]

_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


def made_once(place: Path, make: Callable[[Path], None]) -> Path:
    """Return `place`, a folder that holds what `make` writes into an empty folder it is given.

    It is written under another name and renamed, so that it is there whole or not at all; processes that want it at once
    wait for the one that makes it. Its manifest holds a digest of every file: a folder that does not agree with it is
    removed, with a warning, and made again.

    Raises
    ------
    OSError
        When the folder cannot be written.
    Exception
        What `make` raises. Nothing is left of its attempt.
    """
    place = Path(place)
    if _damage(place) == "":
        return place
    place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with FileLock(place.with_name(f".{place.name}.lock")):
        damage = _damage(place)  # another may have made it while we waited
        if damage == "":
            return place
        if place.exists():
            _log.warning("%s %s; it is made again", place, damage)
            _remove(place)
        for left in place.parent.glob(
            f".writing-{place.name}-*"
        ):  # by a process that was killed: nobody else writes now
            shutil.rmtree(left, ignore_errors=True)
        writing = place.with_name(f".writing-{place.name}-{uuid.uuid4().hex}")
        writing.mkdir()
        try:
            make(writing)
            text = json.dumps(_digests(writing), sort_keys=True, indent=1)
            (writing / _MANIFEST).write_text(text + "\n", encoding="utf-8")
            writing.rename(place)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
    return place


def _damage(place: Path) -> str:
    """Return what is wrong with a folder, "" for nothing."""
    try:
        stated = json.loads((place / _MANIFEST).read_text(encoding="utf-8"))
        found = _digests(place)
    except (OSError, ValueError) as error:
        return f"cannot be read ({error!r})"
    wrong = sorted(name for name in {*stated, *found} if stated.get(name) != found.get(name))
    return f"differs from its manifest in {', '.join(wrong)}" if wrong else ""


def _digests(place: Path) -> dict[str, str]:
    """Return the SHA-256 of every file but the manifest, by its path within the folder."""
    found = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and path != place / _MANIFEST:
            with path.open("rb") as file:
                found[path.relative_to(place).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _remove(place: Path) -> None:
    """Remove what is there, so that no reader meets half of it."""
    aside = place.with_name(f".writing-{place.name}-{uuid.uuid4().hex}")
    place.rename(aside)
    if aside.is_dir():
        shutil.rmtree(aside)
    else:
        aside.unlink()
