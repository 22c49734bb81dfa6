"""What refers to a run: a study that would use it again, a record, an escalation, a sweep's ledger.

Records are read for what they say. Of the other files only words count, whatever their layout: a file that holds a run's
key refers to it, and so does one that holds the name of its study with its fingerprint or with the first of its fresh
seeds. That can keep a run too many; it cannot lose one.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.kit.records import RecordError, records
from studies.kit.runs.listing import Row
from studies.kit.seeds import FRESH_FROM
from studies.kit.words import CommandError

__all__ = ["Mention", "Reason", "References", "collect"]

_WORD = re.compile(rb"(?<![0-9a-f])[0-9a-f]{8,64}(?![0-9a-f])")
_NUMBER = re.compile(rb"(?<![0-9])[0-9]{7,10}(?![0-9])")
_KEY_DIGITS, _PRINT_DIGITS = 16, 12  # of a whole key; the least that names a fingerprint
_SET = 10_000  # more seeds than a set of fresh ones has


@dataclass(frozen=True)
class Reason:
    """Why a run is kept."""

    kind: str
    """In a word or two, by which kept runs are counted."""
    words: str
    """In full."""


@dataclass(frozen=True)
class Mention:
    """A file that may name runs."""

    path: Path
    """The file."""
    kind: str
    """What it is: ``escalation``, ``sweep`` or ``file``."""
    content: bytes
    """What it holds."""
    words: frozenset[str]
    """Its hexadecimal words of 8 to 64 digits."""
    bases: frozenset[int]
    """Its numbers that may be the first of a set of fresh seeds."""

    @classmethod
    def read(cls, path: Path, kind: str) -> "Mention":
        """Read a file; CommandError where that fails, since nobody could say what it refers to."""
        try:
            content = path.read_bytes()
        except OSError as error:
            raise CommandError(f"{path} cannot be read ({error}): nobody can say which runs it refers to") from error
        words = frozenset(word.decode() for word in _WORD.findall(content))
        numbers = (int(number) for number in _NUMBER.findall(content))
        return cls(path, kind, content, words, frozenset(number for number in numbers if number >= FRESH_FROM))

    def of(self, row: Row) -> bool:
        """Whether it names the row's key (or its beginning), or the run's study with its code or its set of fresh seeds."""
        if row.key in self.words or any(row.key.startswith(word) for word in self.words if len(word) < _KEY_DIGITS):
            return True
        if not row.is_run or row.study.encode() not in self.content:
            return False
        fingerprint, seed = row.manifest["fingerprint"], row.manifest["seed"]
        if any(base <= seed < base + _SET for base in self.bases):
            return True  # an escalation says which seeds it will run before there is a fingerprint to name
        return any(len(word) >= _PRINT_DIGITS and fingerprint.startswith(word) for word in self.words)


@dataclass(frozen=True)
class References:
    """All that may refer to runs of a store."""

    studies: frozenset[str]
    """Names of the studies in the folders looked at."""
    recorded: Mapping[tuple[str, str], tuple[str, ...]]
    """Claims by (study, fingerprint) of a finding on record or of fresh seeds; the study is empty where only fresh seeds
    have run, whose record does not name it."""
    mentions: tuple[Mention, ...] = ()
    """The files of escalations and of sweeps, and any other asked for."""
    asked: frozenset[str] = frozenset()
    """Studies that were named when choosing, so that they need not be in a folder."""

    def reasons(self, row: Row) -> list[Reason]:
        """Return why a row must stay; nothing for one that may go. A temporary folder is no run, whatever its name."""
        if row.kind == "temporary":
            return []
        found = [Reason(each.kind, f"named in {each.path}") for each in self.mentions if each.of(row)]
        if row.kind in ("damaged", "newer"):
            return [*found, Reason(row.kind, f"{row.problem}; nobody can say what refers to it")]
        if not row.is_run:
            return found
        study, fingerprint = row.study, str(row.manifest["fingerprint"])
        claims = (*self.recorded.get((study, fingerprint), ()), *self.recorded.get(("", fingerprint), ()))
        found += [Reason("record", f"claim {claim} was recorded with its study and code") for claim in claims]
        if row.code == "unknown":
            found.append(
                Reason("unknown code", f"rung {row.manifest['rung']} is not installed: its code cannot be told")
            )
        if study not in self.studies | self.asked:
            found.append(
                Reason("unknown study", f"study {study} is in no folder looked at: --folder or --study {study}")
            )
        if row.code == "this" and study in self.studies and row.manifest["seed"] < FRESH_FROM:
            found.append(Reason("current", f"study {study} would use it again: it was made with this code"))
        return found


def collect(folders: Sequence[Path], store: Path, others: Iterable[Path] = (), asked: Iterable[str] = ()) -> References:
    """Return all references there are: from folders of studies, from beside the store, and from ``others``.

    A folder of studies holds ``study_*.py``, ``records/*.json`` and perhaps ``escalations/``; so may its parent and the
    working directory. The ledgers of sweeps are in ``sweeps/`` beside the store and in ``runs/sweeps``. ``others`` are
    files or folders that name runs. CommandError for what cannot be read.
    """
    studies: set[str] = set()
    recorded: dict[tuple[str, str], tuple[str, ...]] = {}
    for folder in folders:
        if not folder.is_dir():
            raise CommandError(f"no folder {str(folder)!r}: give the one that holds study_*.py with --folder")
        studies |= {path.stem.removeprefix("study_") for path in folder.glob("study_*.py")}
        for where, claims in _recorded(folder).items():
            recorded[where] = (*recorded.get(where, ()), *claims)
    escalations = [base / "escalations" for folder in folders for base in (folder, folder.parent)]
    mentions = [
        *(Mention.read(path, "escalation") for path in _files([*escalations, Path("escalations")])),
        *(Mention.read(path, "sweep") for path in _files([store.parent / "sweeps", Path("runs/sweeps")])),
        *(Mention.read(path, "file") for path in _files(others, needed=True)),
    ]
    return References(frozenset(studies), recorded, tuple(mentions), frozenset(asked))


def _recorded(folder: Path) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the claims on record in a folder of studies, by (study, fingerprint)."""
    try:
        entries = records(folder / "records")
    except (RecordError, OSError) as error:
        raise CommandError(f"{error} (until then nobody can say which runs it refers to)") from error
    found: dict[tuple[str, str], set[str]] = {}
    for claim, by_rung in entries.items():
        for entry in by_rung.values():
            study = "" if entry.finding is None else entry.finding.study
            if entry.finding is not None:
                found.setdefault((study, entry.finding.fingerprint), set()).add(claim)
            for fresh in entry.fresh:
                found.setdefault((study, fresh.fingerprint), set()).add(claim)
    return {where: tuple(sorted(claims)) for where, claims in found.items()}


def _files(places: Iterable[Path], needed: bool = False) -> list[Path]:
    """Return all files at or below the places, links followed, each once; a place that is not there is passed over.

    CommandError for one that is not there but ``needed``, and for a folder that cannot be listed.
    """

    def stop(error: OSError) -> None:
        raise CommandError(f"{error.filename} cannot be listed ({error}): nobody can say which runs it refers to")

    found: dict[Path, Path] = {}
    for place in places:
        if needed and not place.exists():
            raise CommandError(f"there is no {place}, which was to be searched for runs to keep")
        paths = [place] if place.is_file() else _below(place, stop) if place.exists() else []
        found.update({path.resolve(): path for path in sorted(paths)})
    return list(found.values())


def _below(folder: Path, stop: Callable[[OSError], None]) -> list[Path]:
    """Return the files below a folder, each folder gone into once; ``stop`` is told of one that cannot be listed."""
    found, been = [], set()
    for at, folders, names in os.walk(folder, onerror=stop, followlinks=True):
        been.add(os.path.realpath(at))
        folders[:] = [each for each in folders if os.path.realpath(Path(at) / each) not in been]
        found += [Path(at) / name for name in names]
    return found
