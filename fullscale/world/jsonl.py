"""Lines of JSON, with errors that name the line."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeVar

__all__ = ["DataError", "Row", "rows", "unlike"]


class DataError(ValueError):
    """A user's data cannot be used as they are; the message says where, why, and the way out."""


class _Named(Protocol):
    @property
    def id(self) -> str: ...


T = TypeVar("T", bound=_Named)


class Row(dict[str, Any]):
    """One JSON object of a file, which knows where it stands."""

    def __init__(self, fields: dict[str, Any], path: Path, number: int) -> None:
        super().__init__(fields)
        self.path, self.number = path, number

    def error(self, message: str) -> DataError:
        """Return the error that this row has."""
        return DataError(f"{self.path}:{self.number}: {message}")

    def text(self, name: str, default: str | None = None) -> str:
        """Return the field `name`, a text with something in it; `default` where there is no such field.

        Raises
        ------
        ValueError
            When it is missing without a default, is no text, or is blank.
        """
        if name not in self:
            if default is None:
                raise self.error(f"there is no {name!r}; the fields are {sorted(self)}")
            return default
        value = self[name]
        if not isinstance(value, str) or not value.strip():
            raise self.error(f"{name!r} = {value!r} must be a text that is not blank")
        return value

    @property
    def id(self) -> str:
        """The field ``id``, a text or an integer; the number of the line where there is none."""
        value = self.get("id", self.number)
        if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
            raise self.error(f"'id' = {value!r} must be a text or an integer")
        return str(value)


def rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSONL file, plain or gzipped (``.gz``), line by line; blank lines are passed over.

    Raises
    ------
    ValueError
        For a line that is not a JSON object; the message names file and line.
    """
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(value, dict):
                raise DataError(f"{path}:{number}: a {type(value).__name__}, not an object with fields")
            yield Row(value, path, number)


def unlike(found: Iterable[Row], make: Callable[[Row], T]) -> list[T]:
    """Return what `make` makes of every row; refuse two of one id.

    Raises
    ------
    ValueError
        For an id that comes twice, or what `make` raises; the message names file and line.
    """
    first: dict[str, int] = {}
    made = []
    for row in found:
        each = make(row)
        if each.id in first:
            raise row.error(f"id {each.id!r} is that of line {first[each.id]} too; each needs its own")
        first[each.id] = row.number
        made.append(each)
    return made
