"""Open what another trainer left on disk: which layout it is, and what is read, counted, damaged or not there at all.

A layout is a module with four names, see `Format`; the rest of the program sees a `Source`: an iterable of episodes that
keeps account of what it could not read.

    source = open_run(Path("rollouts"))
    for episode in source: ...
    source.problems, source.counts, source.absent
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from studies.kit.episodes import ANSWER, Episode
from studies.kit.reading.lines import head
from studies.kit.words import near

__all__ = ["ANSWERS", "FORMATS", "Format", "Problem", "ReadError", "Source", "clip", "open_run"]

FORMATS = {
    "verl": "studies.kit.reading.verl",
    "trl": "studies.kit.reading.trl",
    "prime-rl": "studies.kit.reading.prime_rl",
    "search-r1": "studies.kit.reading.search_r1",
    "jsonl": "studies.kit.reading.jsonl",
}
"""The module of each format, imported when it is asked for."""

ANSWERS = ("answer", "final_answer")
"""Names under which trainers let a policy answer."""

_DATA = (".jsonl", ".json", ".gz", ".parquet", ".log")  # what could be rollouts, beside those that are read
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_PICKLE = (
    "opening one runs what its writer put into it, so it is not opened. Where it comes from, load it with "
    "torch.load(file, weights_only=True), write each sample as a line of JSON (fields as in "
    "studies/kit/reading/jsonl.py) and read that"
)
_FEW = 5  # names in a message
_KEPT = 100  # problems; a file that is damaged throughout would fill memory with them
_NAMES = 200  # different things that are counted; names in a file are as many as its writer likes
_SHOWN = 80  # characters of a damaged line
_NAME = 60  # characters of a tool's name


class ReadError(ValueError):
    """What was asked for cannot be read. The message names the path, the reason and the way out."""


@dataclass(frozen=True)
class Problem:
    """Something in a file that could not be used."""

    path: str
    """The file."""
    line: int | None
    """Its line, from 1; None where it is not a matter of one line."""
    what: str
    """What is wrong."""
    text: str = ""
    """Its first characters, escaped."""

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{place}: {self.what}" + (f": {self.text}" if self.text else "")


class Format(Protocol):
    """What the module of a format offers."""

    LAYOUT: str
    """The layout in a line, for messages."""

    def files(self, path: Path) -> tuple[Path, ...]:
        """Return the files of this layout at ``path`` (a file or folder), in order of steps; empty if there are none.

        By name alone: a file that the user names is returned whatever it is called.
        """

    def detect(self, path: Path) -> bool:
        """Whether what is at ``path`` has this layout, by names and by the fields of one record; reads no further."""

    def read(self, source: Source) -> Iterator[Episode]:
        """Yield the episodes of ``source.paths``, a step's worth in memory at most.

        Whatever cannot be used goes to `Source.problem`, what the layout has not to `Source.lacks`, names of tools
        through `Source.action`, outcomes through `rewards.outcome`.
        """


class Source:
    """Episodes of a run, read once and in passing, with an account of what could not be read."""

    def __init__(
        self,
        format: str,  # noqa: A002 (what it is called on the command line)
        paths: Sequence[Path],
        tools: Sequence[str] = (),
        solved_at: float | None = None,
        module: Format | None = None,
    ) -> None:
        self.format = format
        """Name of the layout."""
        self.paths = tuple(paths)
        """The files, in the order in which they are read."""
        self.tools = tuple(dict.fromkeys(name.strip().lower() for name in tools))
        """The tools that are known; empty where every name is one."""
        self.solved_at = solved_at
        """Reward from which a task counts as solved; None where nobody said."""
        self.problems: list[Problem] = []
        """What could not be used: the first hundred; ``counts["problems"]`` has how many there were."""
        self.counts: Counter[str] = Counter()
        """How many lines, episodes, damaged lines, ... there were."""
        self.absent: dict[str, str] = {}
        """Quantity to why the files do not give it. Whole once all was read."""
        self.notes: list[str] = []
        """Choices made in reading that a reader should know of."""
        self.bytes_read = 0
        """Bytes of the files read so far."""
        self.bytes_total = sum(path.stat().st_size for path in self.paths)
        """Bytes of the files."""
        self._module = module
        self._begun = False

    def __iter__(self) -> Iterator[Episode]:
        if self._begun:
            raise ReadError(f"{self.name} was read already, and is read in passing: open it again")
        self._begun = True
        try:
            for episode in (self._module or _module(self.format)).read(self):
                self.counts["episodes"] += 1
                yield episode
        except OSError as error:
            raise ReadError(f"{error.filename or self.name} cannot be read: {error.strerror or error}") from error
        if not self.counts["episodes"]:
            first = f"; {self.problems[0]}" if self.problems else ""
            raise ReadError(f"{self.name} holds no episode ({self.counts['lines']} lines read){first}")

    @property
    def name(self) -> str:
        """The file, or the first of the files and how many more."""
        more = len(self.paths) - 1
        return f"{self.paths[0]}" + (f" (and {more} more)" if more else "")

    def problem(self, path: Path, line: int | None, what: str, text: str = "") -> None:
        """Keep account of something that cannot be used."""
        self.counts["problems"] += 1
        if len(self.problems) < _KEPT:
            self.problems.append(Problem(str(path), line, what, clip(text)))

    def damaged(self, path: Path, line: int | None, what: str, text: str = "") -> None:
        """Keep account of a line, or row, that holds no episode that can be read."""
        self.counts["damaged"] += 1
        self.problem(path, line, what, text)

    def count(self, name: str, number: int = 1) -> None:
        """Count something that is worth telling."""
        if name not in self.counts and len(self.counts) >= _NAMES:
            name = "others"
        self.counts[name] += number

    def lacks(self, quantity: str, why: str) -> None:
        """Say why the files do not give a quantity; what is said last holds."""
        self.absent[quantity] = why

    def note(self, words: str) -> None:
        """Tell of a choice made in reading, once."""
        if words not in self.notes:
            self.notes.append(words)

    def action(self, name: str) -> str:
        """Return the name of an action: a tool's in lower case, or `ANSWER`; count tools that are not known."""
        name = name.strip().lower()
        if name in ANSWERS:
            return ANSWER
        if self.tools and name not in self.tools:
            self.count(f"unknown tool: {clip(name, _NAME)}")
        return name


def clip(text: str, characters: int = _SHOWN) -> str:
    r"""Return the first characters of a text, escaped so that a terminal shows them as they are.

    >>> print(clip("tab" + chr(9) + chr(27) + "[31m"), clip("abcdef", 4))
    tab\t\x1b[31m abcd...
    """
    shown = text[:characters].encode("unicode_escape", "backslashreplace").decode("ascii")
    return shown + "..." * (len(text) > characters)


def open_run(
    path: Path,
    format: str = "auto",  # noqa: A002
    tools: Sequence[str] = (),
    solved_at: float | None = None,
) -> Source:
    """Return the episodes of a rollout dump at ``path``, a file or a folder; nothing is read but what tells its layout.

    ``tools`` are the tools that are known: others are counted as unknown. ``solved_at`` is the reward from which a
    task counts as solved. ReadError if the path, its layout or the format's name is not one that can be read.
    """
    path = Path(path)
    if format != "auto" and format not in FORMATS:
        raise ReadError(f"no format {format!r}: {near(format, ['auto', *FORMATS])}")
    if solved_at is not None and not math.isfinite(solved_at):
        raise ReadError(f"--solved-at {solved_at} is no reward: name a finite number")
    try:
        there = _there(path)
        name = _detected(path, there) if format == "auto" else format
        module = _module(name)
        files = module.files(path)
        if not files:
            raise ReadError(f"{path} holds no file of {name} ({module.LAYOUT}): it holds {_listed(there)}")
        source = Source(name, files, tools, solved_at)
    except OSError as error:
        raise ReadError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    if not source.bytes_total:
        raise ReadError(f"{source.name} is empty: no rollout was written to it yet")
    beside = [file.name for file in there if file.suffix in _DATA and file not in files]
    if beside and path.is_dir():
        more = ", ..." * (len(beside) > _FEW)
        source.note(f"not read, as they are no {name} or compressed copies: {', '.join(beside[:_FEW])}{more}")
    return source


def _there(path: Path) -> list[Path]:
    """Return the file, or what the folder holds, sorted; ReadError if there is nothing or it is a pickle."""
    if not path.exists():
        names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ReadError(f"there is no {path}" + (f": {near(path.name, names)}" if names else ""))
    there = sorted(path.iterdir()) if path.is_dir() else [path]
    if not there:
        raise ReadError(f"{path} is empty: name the folder or file that the trainer wrote its rollouts to")
    pickles = [each for each in there if each.is_file() and _is_pickle(each)]
    if pickles and len(pickles) == sum(each.is_file() for each in there):
        raise ReadError(f"{pickles[0]} is a pickle: {_PICKLE}")
    return there


def _detected(path: Path, there: Sequence[Path]) -> str:
    """Return the format of what is at ``path``; ReadError if there is none, or more than one."""
    found = [name for name in FORMATS if _module(name).detect(path)]
    if len(found) > 1:
        raise ReadError(
            f"{path} holds {' and '.join(found)}: say which to read with --format {' or --format '.join(found)}"
        )
    if found:
        return found[0]
    seen = [f"it holds {_listed(there)}"] if path.is_dir() else []
    named = path.is_file()  # whatever it is called
    records = (head(each) if named else _first(each) for each in there)
    first = next((record for record in records if record is not None), None)
    if first:
        seen.append(f"its first record has the fields {clip(', '.join(first))}")
    elif named:
        seen.append("its first lines hold no JSON object" if path.stat().st_size else "it is empty")
    layouts = "; ".join(f"{name}: {_module(name).LAYOUT}" for name in FORMATS)
    raise ReadError(f"{path} has no layout that is known: {'; '.join(seen)}. Known are {layouts}")


def _first(path: Path) -> dict[str, object] | None:
    return head(path) if path.is_file() and {".jsonl", ".json"} & set(path.suffixes) else None


def _listed(there: Sequence[Path]) -> str:
    names = [clip(each.name, _NAME) for each in there[:_FEW]]
    return ", ".join(names) + (f" and {len(there) - _FEW} more" if len(there) > _FEW else "")


def _is_pickle(path: Path) -> bool:
    """Whether a file was written by pickle, or by torch, which puts one into a zip."""
    with path.open("rb") as stream:
        begins = stream.read(2)
    if begins == b"PK":
        return path.suffix in _TORCH
    return len(begins) == 2 and begins[0] == 0x80 and 2 <= begins[1] <= 5


def _module(name: str) -> Format:
    return cast(Format, importlib.import_module(FORMATS[name]))
