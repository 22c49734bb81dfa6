"""JSON lines, read in passing: a damaged line is told of, the rest is read, and no file is ever held in memory."""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["LONGEST", "extra", "extras", "head", "records", "texts"]

LONGEST = 64 * 2**20
"""Bytes of the longest line that is read; a file without line ends would fill memory."""
_WRITE = json.JSONEncoder(ensure_ascii=False).encode
_HEADS = 20  # lines among which a first whole record is looked for
_SHOWN = 400  # bytes of a damaged line that are decoded for showing
_EXACT = 2**53  # whole numbers up to here are floats without rounding
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error)


def records(source: Source, path: Path) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield (number of the line, its object, its text) of a file, which may be compressed (``.gz``).

    A line that is no object is counted as damaged and reported; a last line without an end that does not parse is cut
    off. Blank lines are passed over. OSError as from opening the file.
    """
    for number, text, ended in texts(source, path):
        if not text or text.isspace():
            continue
        source.counts["lines"] += 1
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            what = f"no JSON ({_reason(error)})" if ended else "cut off: the file ends in the middle of the line"
            source.damaged(path, number, what, text)
            continue
        if isinstance(record, dict):
            yield number, record, text
        else:
            source.damaged(path, number, f"no object but a {type(record).__name__}", text)


def texts(source: Source, path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield (number, text, whether the file goes on) of the lines of a file, and keep account of the bytes read.

    A line that is no UTF-8, or longer than `LONGEST`, is counted as a line and as damaged.
    """
    before, number = source.bytes_read, 0
    with path.open("rb") as raw:
        stream: IO[bytes] = raw if path.suffix != ".gz" else gzip.GzipFile(fileobj=raw)  # type: ignore[assignment]
        compressed = stream is not raw
        read = 0
        while True:
            try:
                line = stream.readline(LONGEST)
                long = len(line) == LONGEST and not line.endswith(b"\n") and _skip(stream)
            except _DAMAGE as error:
                source.counts["damaged files"] += 1
                source.problem(path, None, f"cut off or damaged after line {number} ({error})")
                break
            if not line:
                if not number:
                    source.problem(path, None, "the file is empty")
                break
            number += 1
            read += len(line)
            source.bytes_read = before + (raw.tell() if compressed else read)
            if long:
                source.counts["lines"] += 1
                source.damaged(path, number, f"longer than {LONGEST} bytes", _shown(line))
                continue
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                source.counts["lines"] += 1
                source.damaged(path, number, f"no UTF-8 ({error.reason} at byte {error.start})", _shown(line))
                continue
            yield number, text, line.endswith(b"\n")
    source.bytes_read = before + path.stat().st_size


def head(path: Path) -> dict[str, Any] | None:
    """Return the first whole object among the first lines of a file, or None if there is none."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for _ in range(_HEADS):
                line = stream.readline(LONGEST)
                if not line:
                    return None
                try:
                    record = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError):
                    continue
                if isinstance(record, dict):
                    return record
    except _DAMAGE:
        return None
    return None


def extras(record: Mapping[str, Any], known: Container[str]) -> dict[str, float | str]:
    """Return the other fields of a record: numbers as they are, the rest as text; so too numbers that no float holds.

    >>> extras({"score": 1, "acc": True, "pred": ["x"], "f1": math.nan, "uid": 2**53 + 1}, {"score"})
    {'acc': 1.0, 'pred': '["x"]', 'f1': 'nan', 'uid': '9007199254740993'}
    """
    kept: dict[str, float | str] = {}
    for name, value in record.items():
        if name not in known and value is not None:
            kept[name] = extra(value)
    return kept


def extra(value: Any) -> float | str:
    """Return a value as it is kept beside an episode: a number that is finite and exact as a float, else text."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return float(value) if isinstance(value, int) and abs(value) <= _EXACT else _WRITE(value)


def _skip(stream: IO[bytes]) -> bool:
    """Go to the end of a line that is too long."""
    while True:
        part = stream.readline(LONGEST)
        if not part or part.endswith(b"\n"):
            return True


def _shown(line: bytes) -> str:
    return line[:_SHOWN].decode("utf-8", "backslashreplace")


def _reason(error: Exception) -> str:
    """Return what is wrong, without the line itself."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos + 1}"
    return "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(":")[0]
