"""Whether a backend may be chosen unasked on a card: only where a record shows that this very code was right there.

A record is what `python -m fullscale.validate_gpu` writes, JSON lines: a header, one line per case, a closing line. It
unlocks if it is whole, everything in it passed, and backend, card, source and Triton's minor version are those of the
question.
"""

import ast
import hashlib
import importlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minimodel.model.compiling import cache_folder

__all__ = [
    "INCOMPLETE",
    "SCHEMA",
    "SOURCES",
    "Decision",
    "Record",
    "RecordError",
    "decide",
    "digest",
    "folders",
    "read",
    "read_all",
    "shortfall",
    "source_hash",
    "triton_version",
]

SCHEMA = 1
"""Version of the record's layout."""
HEADER: Mapping[str, type | tuple[type, ...]] = {
    "schema": int,
    "date": str,
    "card": (str, type(None)),
    "capability": (str, type(None)),
    "driver": (str, type(None)),
    "versions": dict,
    "git": (str, type(None)),
    "source_hash": str,
    "backend": str,
    "interpreted": bool,
    "dry_run": bool,
    "planned": dict,
    "ceilings": dict,
}
"""What the header line says, and in what type; null where there is no card, driver or clone."""
INCOMPLETE = frozenset({"budget", "device lost"})
"""Reasons for which a case was skipped that another sitting would run."""
SOURCES: Mapping[str, str] = {
    "reference": "kernels/reference.py",
    "chunked": "kernels/chunked.py",
    "triton": "kernels/fused/backend.py",
}
"""Where each backend's own code begins, below the package."""
_PACKAGE = Path(__file__).resolve().parents[1]


class RecordError(ValueError):
    """A file does not hold a whole record. The message names the file and the way out."""


@dataclass(frozen=True)
class Record:
    """One run of the validation."""

    path: Path
    """The file."""
    header: Mapping[str, Any]
    """When, where, with what, and which cases were planned."""
    cases: tuple[Mapping[str, Any], ...]
    """One for every case, in the order they ran: phase, case, status, what was found and its bounds."""
    closing: Mapping[str, Any] | None
    """The summary; None where the run was cut off."""


@dataclass(frozen=True)
class Decision:
    """Whether a backend is unlocked, and why."""

    unlocked: bool
    """Whether it may be chosen unasked."""
    reason: str
    """What unlocks it, or what is missing."""
    record: Path | None = None
    """The record that unlocks it."""


def decide(
    backend: str, card: str, triton_version: str | None, source_hash: str, records: Iterable[Record]
) -> Decision:
    """Return whether any of the records unlocks a backend on a card.

    Triton counts by its major and minor version: a minor release brings other compiler passes, and with them other
    instructions and orders; a patch release repairs the same ones, and to ask for a new run after each would teach people to
    skip it. The exact version stands in the record.

    Parameters
    ----------
    card
        As the driver names it.
    triton_version
        The one that would compile; None if there is none.
    source_hash
        :func:`source_hash` of the code that would run.
    """
    if triton_version is None:
        return Decision(False, "Triton is not installed")
    furthest, why = -1, f"no record of {backend} on {card}"
    for record in sorted(records, key=lambda r: str(r.header["date"]), reverse=True):
        checks = _checks(record, backend, card, triton_version, source_hash)
        failed = next((i for i, reason in enumerate(checks) if reason), None)
        if failed is None:
            return Decision(True, f"{record.path.name} of {record.header['date']} passed", record.path)
        if failed > 1 and failed > furthest:  # a record of another backend or card is no news
            furthest, why = failed, f"{record.path.name} {checks[failed]}"
    return Decision(False, why)


def _checks(record: Record, backend: str, card: str, triton_version: str, source: str) -> list[str | None]:
    """Return what is wrong with a record for this purpose, gravest first; None for what is right."""
    header = record.header
    its_triton = str(header["versions"].get("triton"))
    return [
        None if header["backend"] == backend else "is of another backend",
        None if header["card"] == card else "is of another card",
        "was a dry run" if header["interpreted"] is not False or header["dry_run"] is not False else None,
        None if header["source_hash"] == source else "was made with other source",
        None
        if _minor(its_triton) == _minor(triton_version)
        else f"was made with Triton {its_triton}, this is {triton_version}",
        shortfall(record),
    ]


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def shortfall(record: Record) -> str | None:
    """Return why a record does not show that its backend was right; None if it does.

    Every correctness case planned must have been looked at and at least one have passed; a case may have been left out
    because the backend may refuse it or the card is too small, and nothing of the backend may have failed in any phase.
    Other backends' cases, which a record also holds, have no say.
    """
    own = [c for c in record.cases if c["backend"] == record.header["backend"]]
    bad = [c["case"] for c in own if c["status"] not in ("passed", "skipped")]
    if bad:
        return f"has {len(bad)} that did not pass, the first {bad[0]!r}"
    if record.closing is None:
        return "was not finished"
    if not any(c["status"] == "passed" and c["phase"] == "correct" for c in own):
        return "has no correctness case that passed"
    looked_at = {c["case"] for c in record.cases if c["phase"] == "correct" and c.get("reason") not in INCOMPLETE}
    planned = record.header["planned"].get("correct", [])
    left = [name for name in planned if name not in looked_at]
    if left:
        return f"left out {len(left)} of {len(planned)} correctness cases, the first {left[0]!r}"
    return None if record.closing.get("passed") is True else "did not pass"


# --- records on disk --------------------------------------------------------------------------------------------------


def folders() -> tuple[Path, ...]:
    """Return where records are looked for: those that came with the code, then this user's own."""
    try:
        return _PACKAGE / "records", cache_folder() / "kernels"
    except RuntimeError:  # a user without a home has no cache
        return (_PACKAGE / "records",)


def read_all(places: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """Return all whole records of some folders, and what is wrong with each file that is none."""
    found, damaged = [], []
    for path in (p for place in places for p in sorted(place.glob("*.jsonl"))):
        try:
            found.append(read(path))
        except (OSError, RecordError) as error:
            damaged.append(str(error))
    return found, damaged


def read(path: Path, *, finished: bool = True) -> Record:
    """Read a record and check that it is whole.

    Parameters
    ----------
    finished
        Whether a closing line is asked for. Without, a last line that a kill tore is left out.

    Raises
    ------
    RecordError
        For a file that is not a record, one of another schema, one with a line missing, changed or twice, and, if
        `finished`, one that was cut off.
    """
    header, *rest = list(_lines(path, torn=not finished)) or [{}]
    if header.get("kind") != "header" or not all(isinstance(header.get(k, ...), kind) for k, kind in HEADER.items()):
        raise RecordError(
            f"{path} does not begin with the header of a record: move it away and run the validation again"
        )
    if header["schema"] != SCHEMA:
        raise RecordError(
            f"{path} has schema {header['schema']}, this program reads {SCHEMA}: run the validation again"
        )
    closing = rest.pop() if rest and rest[-1].get("kind") == "closing" else None
    for line in rest:
        if line.get("kind") != "case" or not {"phase", "case", "status", "backend"} <= line.keys():
            raise RecordError(f"{path} is damaged: {str(line)[:80]} is no case. Run the validation again")
    if len({(c["phase"], c["case"]) for c in rest}) < len(rest):
        raise RecordError(f"{path} is damaged: it has a case twice. Run the validation again")
    if closing is not None and closing.get("digest") != digest(header, rest):
        raise RecordError(f"{path} is damaged: its lines are not those it was closed with. Run the validation again")
    if finished and closing is None:
        raise RecordError(f"{path} was cut off: go on with `python -m fullscale.validate_gpu --resume {path}`")
    return Record(path, header, tuple(rest), closing)


def digest(header: Mapping[str, Any], cases: Iterable[Mapping[str, Any]]) -> str:
    """Return the sha256 of what a record says before it is closed, whatever the layout of its lines."""
    lines = [json.dumps(line, sort_keys=True) for line in (header, *cases)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _lines(path: Path, *, torn: bool) -> Iterator[dict[str, Any]]:
    raw = path.read_bytes().split(b"\n")
    for number, line in enumerate(raw[:-1] if torn else raw, 1):
        if not line and number == len(raw):
            return
        try:
            found = json.loads(line)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RecordError(f"{path} is damaged: line {number} is no JSON object. Run the validation again")
        yield found


def triton_version() -> str | None:
    """Return the version of Triton that would compile; None without it."""
    if importlib.util.find_spec("triton") is None:
        return None
    return str(importlib.import_module("triton").__version__)


# --- the code ---------------------------------------------------------------------------------------------------------


def source_hash(backend: str, package: Path = _PACKAGE) -> str:
    """Return the sha256 of the code that a backend's bits depend on: its module and whatever of the kernels that imports.

    It is taken over syntax trees without docstrings, so that comments, layout and prose leave every record valid. What
    stands above a backend (:func:`linear_logprob`, this module) serves all backends alike and is not in it.
    """
    total = hashlib.sha256()
    for path in sorted(_reached(package / SOURCES[backend], package)):
        content = "".join(_words(ast.parse(path.read_bytes(), filename=str(path)))).encode()
        total.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


def _reached(start: Path, package: Path) -> set[Path]:
    """Return a module and those of fullscale.kernels that it imports, at any remove."""
    found: set[Path] = set()
    ahead = [start]
    while ahead:
        path = ahead.pop()
        if path in found:
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                continue
            ahead += [p for name in names if (p := _module(name, package)) is not None]
    return found


def _module(name: str, package: Path) -> Path | None:
    """Return the file of `name`, a module or a name in one; None outside fullscale.kernels."""
    top, *parts = name.split(".")
    if top != package.name or parts[:1] != ["kernels"]:
        return None
    for path in (package.joinpath(*parts), package.joinpath(*parts[:-1])):
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return file
    return None


def _words(node: Any) -> Iterator[str]:
    """Yield a syntax tree without docstrings and without empty fields, which later versions of Python add to old syntax.

    `sim.records.fingerprint` does the same for runs; it needs pydantic, which a bare machine with a GPU may lack.
    """
    if isinstance(node, ast.AST):
        yield f"{type(node).__name__}("
        for name, value in ast.iter_fields(node):
            if value is not None and value != []:
                yield f"{name}="
                yield from _words(value)
        yield ")"
    elif isinstance(node, list):
        for item in node:
            bare = (
                isinstance(item, ast.Expr)
                and isinstance(item.value, ast.Constant)
                and isinstance(item.value.value, str)
            )
            if not bare:
                yield from _words(item)
                yield ","
    else:
        yield repr(node)
