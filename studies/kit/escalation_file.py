"""The files of escalations: TOML, one an attempt, written before anything runs above and closed once by its result.

``escalations/CLAIM.toml`` is the first attempt, ``CLAIM.2.toml`` the second. What is registered is never rewritten: the
result is appended below it, and a file that has one is left alone.
"""

import dataclasses
import json
import math
import os
import tempfile
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from studies.kit.escalation import SCHEMA, Escalation, Result
from studies.kit.words import near

__all__ = ["EscalationError", "append", "attempts", "dumps", "escalations", "load", "loads", "place", "register"]

T = TypeVar("T")

_REGISTERED = "# Written before anything ran at {to}. Nothing above [result] is changed afterwards.\n"


class EscalationError(ValueError):
    """A file of an escalation cannot be read, or must not be written."""


# Files ----------------------------------------------------------------------------------------------------------------


def place(folder: Path, claim: str, attempt: int) -> Path:
    """Return the file of an attempt."""
    return folder / (f"{claim}.toml" if attempt == 1 else f"{claim}.{attempt}.toml")


def attempts(folder: Path, claim: str) -> list[Escalation]:
    """Return the attempts of a claim, oldest first. EscalationError where one is missing among them."""
    paths = [path for name in (f"{claim}.toml", f"{claim}.[0-9]*.toml") for path in folder.glob(name)]
    found = sorted((load(path) for path in paths), key=lambda each: each.attempt)
    for number, each in enumerate(found, 1):
        if each.attempt != number:
            raise EscalationError(
                f"{place(folder, claim, number)} is missing, and there is an attempt {each.attempt}: restore it from "
                "version control"
            )
    return found


def escalations(folder: Path) -> list[Escalation]:
    """Return all attempts in a folder, by claim and attempt."""
    found = [load(path) for path in folder.glob("*.toml")] if folder.is_dir() else []
    return sorted(found, key=lambda each: (each.claim, each.attempt))


def load(path: Path) -> Escalation:
    """Read a file. EscalationError, naming the file, for anything that ``dumps`` would not have written."""
    try:
        found = loads(path.read_text(encoding="utf-8"))
    except (EscalationError, OSError, UnicodeDecodeError) as error:
        raise EscalationError(f"{path}: {error}; restore it from version control") from error
    if path.name != place(path.parent, found.claim, found.attempt).name:
        raise EscalationError(f"{path} holds attempt {found.attempt} of {found.claim!r}: give it back its name")
    return found


def register(folder: Path, escalation: Escalation) -> Path:
    """Write an attempt that has not run; EscalationError where its file is there or an earlier attempt is open."""
    earlier = attempts(folder, escalation.claim)
    if escalation.result is not None or escalation.attempt != len(earlier) + 1:
        raise EscalationError(
            f"attempt {escalation.attempt} of {escalation.claim!r} with {len(earlier)} before it cannot be registered"
        )
    if earlier and earlier[-1].result is None:
        raise EscalationError(f"{place(folder, escalation.claim, len(earlier))} has no result yet: run it first")
    path = place(folder, escalation.claim, escalation.attempt)
    _write(path, dumps(escalation), new=True)
    return path


def append(folder: Path, escalation: Escalation, result: Result) -> Path:
    """Append the result to an attempt's file; what stands in it stays, to the byte."""
    path = place(folder, escalation.claim, escalation.attempt)
    there = load(path)
    if there.result is not None:
        raise EscalationError(f"{path} has its result; a further attempt has a file of its own")
    if there != escalation:
        raise EscalationError(f"{path} is not what was registered: restore it from version control")
    text = path.read_text(encoding="utf-8") + "".join(_table("result", _plain(result)))
    if loads(text) != dataclasses.replace(escalation, result=result):
        raise EscalationError(f"{path}: the result would not read back as it is; nothing was written")
    _write(path, text)
    return path


def _write(path: Path, text: str, new: bool = False) -> None:
    """Write a file in one move, or not at all; ``new`` refuses one that another process has written by now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(0o644)
        if new:
            os.link(temporary, path)  # unlike a rename it never replaces
        else:
            Path(temporary).replace(path)
    except FileExistsError:
        raise EscalationError(f"{path} was registered by another process meanwhile; look at it, then run it") from None
    finally:
        Path(temporary).unlink(missing_ok=True)


# Writing TOML ---------------------------------------------------------------------------------------------------------


def dumps(escalation: Escalation) -> str:
    """Return an escalation as TOML. EscalationError for a value that TOML cannot hold."""
    return _REGISTERED.format(to=escalation.to) + "".join(_table("", _plain(escalation))).lstrip("\n")


def _plain(value: Any) -> Any:
    """Return nested records as mappings, without what is None: TOML has no null."""
    if is_dataclass(value) and not isinstance(value, type):
        pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
        return {name: _plain(item) for name, item in pairs if item is not None}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items() if item is not None}
    return value


def _table(name: str, body: Mapping[str, Any]) -> list[str]:
    """Return a table's lines: its own values, then the tables in it."""
    lines = [f"{_key(key)} = {_value(f'{name}.{key}', item)}\n" for key, item in body.items() if not _is_table(item)]
    if name and (lines or not body):
        lines.insert(0, f"\n[{name}]\n")
    for key, item in body.items():
        if _is_table(item):
            lines += _table(f"{name}.{_key(key)}" if name else _key(key), item)
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _text(name)


def _value(where: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float) and not math.isnan(value):
        return repr(value) if math.isfinite(value) else ("inf" if value > 0 else "-inf")
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_value(f"{where}[{i}]", item) for i, item in enumerate(value)) + "]"
    raise EscalationError(f"{where} = {value!r} has no form in TOML")


def _text(value: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for DEL, which TOML wants escaped too."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# Reading it -----------------------------------------------------------------------------------------------------------


def loads(text: str) -> Escalation:
    """Read what ``dumps`` wrote. EscalationError for another schema, unknown or missing keys, or a value of another type."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EscalationError(f"not TOML: {error}") from error
    if data.get("schema") != SCHEMA:
        raise EscalationError(f"schema {data.get('schema')!r}; this version reads {SCHEMA}")
    return _read(Escalation, data, "")


def _read(cls: type[T], data: Any, where: str) -> T:
    """Build a record from a table, strictly."""
    if not isinstance(data, dict):
        raise EscalationError(f"{where} = {data!r} should be a table")
    known = {field.name: field for field in fields(cls)}  # type: ignore[arg-type]
    for name in data.keys() - known.keys():
        raise EscalationError(f"unknown key {(where + '.' + name).lstrip('.')!r}; {near(name, known)}")
    hints = typing.get_type_hints(cls)
    given = {}
    for name, field in known.items():
        path = f"{where}.{name}".lstrip(".")
        if name in data:
            given[name] = _cast(hints[name], data[name], path)
        elif type(None) in typing.get_args(hints[name]):
            given[name] = None
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise EscalationError(f"key {path!r} is missing")
    return cls(**given)


def _cast(hint: Any, value: Any, path: str) -> Any:
    """Return a value of a field's type. A whole number may stand for a float; nothing else is converted."""
    if isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    if is_dataclass(hint):
        return _read(hint, value, path)  # type: ignore[arg-type]
    origin = typing.get_origin(hint) or hint
    if origin is tuple and isinstance(value, list):
        return tuple(_cast(typing.get_args(hint)[0], item, f"{path}[{i}]") for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        inner = typing.get_args(hint)[1]
        return {name: _cast(inner, item, f"{path}.{name}") for name, item in value.items()}
    if origin is Any or type(value) is origin:
        return value
    if origin is float and type(value) is int:
        return float(value)
    raise EscalationError(f"{path} = {value!r} should be of type {origin.__name__}")
