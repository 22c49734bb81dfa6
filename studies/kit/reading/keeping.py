"""A reading on disk: the record of a run in the store's layout, the rollouts that were kept, their words, and the page.

    FOLDER/manifest.json       identity: layout, options, the files' names, sizes and hashes, and the code that read them
           provenance.json     when and where it was read, and from where
           steps.npz           the step table
           reading.json        actions, workflows, what is absent, problems, counts, notes
           rollouts/step_12.npz  the rollouts that were kept of a step, without words
           episodes.jsonl.gz   the same with their words, in our plain layout (`studies.kit.reading.jsonl`), without tokens
           report.txt          what the terminal was told
           index.html          the page

It is written to a hidden folder beside and then renamed, so a reading is there whole or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import uuid
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.records.config import canonical_json, config
from sim.records.fingerprint import environment, tree_fingerprint
from sim.records.npz import read_npz
from sim.records.run import SCHEMA, RunRecord, run_key
from sim.records.steps import StepTable
from sim.records.tables import RecordError
from studies.kit.episodes import ANSWER, NO_ACTION, Episode, Turn, to_rollouts
from studies.kit.reading.fold import Reading
from studies.kit.reading.formats import Problem, ReadError, open_run
from studies.kit.reading.jsonl import FIELDS

if TYPE_CHECKING:
    from studies.kit.inspector.data import Inspected

__all__ = ["RUNG", "InputFile", "KeepingError", "Origin", "check", "fingerprint", "inputs", "is_kept", "load", "write"]

RUNG = "read"
"""What stands for the rung in the manifest: the run was made elsewhere."""

_CHUNK = 1 << 20
_WRITING, _REPLACED = ".writing-", ".replaced-"
_TURN = ("action", "generated", "observed", "generated_tokens", "observed_tokens", "context")
_NUMBERS = ("logp", "logp_reference", "entropy")
_VERSIONS = ("version_oldest", "version_newest", "take_version")


class KeepingError(RuntimeError):
    """A folder is in the way, or does not hold the reading that it should. The message names it and the way out."""


@config
class InputFile:
    """A file that was read."""

    name: str
    """Its path inside the folder that was read."""
    bytes: int
    """Its size."""
    sha256: str
    """Its hash."""


@config
class Origin:
    """What determines a reading, besides the code."""

    format: str
    """Layout."""
    tools: tuple[str, ...]
    """Tools that were said to be known."""
    solved_at: float | None
    """Reward from which a task counts as solved, where it was said."""
    keep: int
    """Most rollouts to keep."""
    files: tuple[InputFile, ...]
    """The files, in the order in which they were read."""


def inputs(paths: Sequence[Path], progress: Callable[[int], None] | None = None) -> tuple[InputFile, ...]:
    """Return names, sizes and hashes of files; ``progress`` is called with the bytes read so far."""
    root = Path(os.path.commonpath([path.resolve().parent for path in paths]))
    found, done = [], 0
    for path in paths:
        total, size = hashlib.sha256(), 0
        with path.open("rb") as stream:
            while piece := stream.read(_CHUNK):
                total.update(piece)
                size += len(piece)
                if progress is not None:
                    progress(done + size)
        done += size
        found.append(InputFile(path.resolve().relative_to(root).as_posix(), size, total.hexdigest()))
    return tuple(found)


@cache
def fingerprint() -> str:
    """Return the hash of the modules that read and fold, computed once per process."""
    return tree_fingerprint({"studies.kit.reading": Path(__file__).parent})


def is_kept(folder: Path) -> bool:
    """Whether a folder holds a reading."""
    try:
        return bool(_json(folder / "manifest.json").get("rung") == RUNG)
    except (OSError, ValueError):
        return False


def check(folder: Path) -> None:
    """KeepingError if a reading cannot be put there: something else is there, which is not ours to replace."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise KeepingError(f"{folder} is no folder: name another with --out")
    if folder.is_dir() and any(folder.iterdir()) and not is_kept(folder):
        raise KeepingError(f"{folder} holds something else than a reading: name another with --out, or move it away")


def write(
    reading: Reading,
    folder: Path,
    origin: Origin,
    *,
    report: str = "",
    inspected: Sequence[Inspected] = (),
    provenance: Mapping[str, Any] | None = None,
) -> Path:
    """Write a reading to ``folder`` and return it; an earlier reading there is replaced, anything else refused.

    ``inspected`` are the runs of the page, which is left out if there are none. A step whose rollouts contradict
    themselves has no record of them, and ``reading.json`` says so; their words are kept.
    """
    check(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    writing = folder.parent / f"{_WRITING}{folder.name}-{uuid.uuid4().hex}"
    writing.mkdir()
    try:
        _fill(writing, reading, origin, report, provenance or {})
        if inspected:
            from studies.kit.inspector.page import write as write_page

            write_page(writing / "index.html", inspected, reading.name)
        _publish(writing, folder)
    finally:
        shutil.rmtree(writing, ignore_errors=True)
    return folder


def _fill(folder: Path, reading: Reading, origin: Origin, report: str, provenance: Mapping[str, Any]) -> None:
    codes = _codes(reading)
    refused = _write_rollouts(folder / "rollouts", reading.episodes, codes)
    record = RunRecord.create(origin, RUNG, 0, RUNG, fingerprint(), reading.steps)
    about = {
        "name": reading.name,
        "format": reading.format,
        "actions": reading.actions,
        "codes": codes,
        "workflows": reading.workflows,
        "absent": {**reading.absent, **refused},
        "problems": [[each.path, each.line, each.what, each.text] for each in reading.problems],
        "counts": reading.counts,
        "notes": reading.notes,
    }
    reading.steps.save(folder / "steps.npz")
    _dump(folder / "reading.json", about)
    _write_words(folder / "episodes.jsonl.gz", reading.episodes)
    if report:
        (folder / "report.txt").write_text(report, encoding="utf-8")
    recorded = {"recorded_at": datetime.now(UTC).isoformat(timespec="seconds"), **environment(), **provenance}
    _dump(folder / "provenance.json", recorded)
    (folder / "manifest.json").write_bytes(record.manifest_bytes())  # last, as in the store


def _codes(reading: Reading) -> tuple[str, ...]:
    """Return the actions in order of their codes in the records: those with columns, then others that were kept."""
    there = {turn.action for episode in reading.episodes for turn in episode.turns}
    return (*reading.actions, *sorted(there - {*reading.actions, NO_ACTION, ANSWER}))


def _write_rollouts(folder: Path, episodes: Sequence[Episode], codes: Sequence[str]) -> dict[str, str]:
    """Write the rollouts of each step; return those that the record refuses, and why."""
    folder.mkdir()
    refused = {}
    for step, of_step in groupby(episodes, key=lambda episode: episode.step):
        try:
            to_rollouts(of_step, codes).save(folder / f"step_{step}.npz")
        except RecordError as error:
            refused[f"record of the rollouts of step {step}"] = str(error)
    return refused


def _write_words(path: Path, episodes: Sequence[Episode]) -> None:
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream:
        for episode in episodes:
            text = json.dumps(_plain(episode), allow_nan=False, separators=(",", ":"))
            stream.write(text.encode("ascii") + b"\n")


def _plain(episode: Episode) -> dict[str, Any]:
    """Return an episode as a line of our plain layout."""
    line: dict[str, Any] = {
        "step": episode.step,
        "task": episode.task,
        "prompt": episode.prompt,
        "role": episode.role,
        "reward": episode.reward,
        "outcome": episode.outcome.words,
        "turns": [_turn(turn) for turn in episode.turns],
    }
    line |= {name: getattr(episode, name) for name in _VERSIONS if getattr(episode, name) is not None}
    return line | {(f"{name} (extra)" if name in FIELDS else name): value for name, value in episode.extras.items()}


def _turn(turn: Turn) -> dict[str, Any]:
    values = {name: getattr(turn, name) for name in (*_TURN, *_NUMBERS)}
    return {name: value for name, value in values.items() if value not in (None, "") or name == "action"}


def _publish(writing: Path, folder: Path) -> None:
    """Give a finished folder its name. An earlier reading is moved aside first and removed afterwards."""
    aside = None
    if folder.exists():
        aside = folder.parent / f"{_REPLACED}{folder.name}-{uuid.uuid4().hex}"
        folder.rename(aside)
    try:
        writing.rename(folder)
    except OSError:
        if aside is not None:
            aside.rename(folder)
        raise
    if aside is not None:
        shutil.rmtree(aside, ignore_errors=True)


def load(folder: Path, *, words: bool = True) -> Reading:
    """Read what `write` wrote; without ``words``, without its episodes.

    KeepingError if there is no reading, if it is damaged, or if a newer program wrote it.
    """
    if not is_kept(folder):
        raise KeepingError(f"{folder} holds no reading: make one with `metastable read`")
    try:
        manifest, about = _json(folder / "manifest.json"), _json(folder / "reading.json")
        if manifest["schema"] > SCHEMA:
            raise KeepingError(
                f"{folder} has schema {manifest['schema']}, this program reads up to {SCHEMA}: update it"
            )
        steps = StepTable(read_npz((folder / "steps.npz").read_bytes()))  # of a damaged file numpy leaves a path open
        identity = (manifest["config"], manifest["study"], manifest["seed"], manifest["rung"], manifest["fingerprint"])
        if manifest["steps_digest"] != steps.digest() or manifest["key"] != run_key(*identity):
            raise KeepingError(f"{folder} does not agree with its manifest: {_WAY_OUT}")
        known = set(steps["step"].tolist())  # a record that grows and was stopped may hold words of one more
        kept = _words(folder / "episodes.jsonl.gz") if words else ()
        return Reading(
            name=about["name"],
            format=about["format"],
            steps=steps,
            actions=tuple(about["actions"]),
            workflows=tuple(about["workflows"]),
            episodes=tuple(each for each in kept if each.step in known),
            absent=about["absent"],
            problems=tuple(Problem(*each) for each in about["problems"]),
            counts=about["counts"],
            notes=tuple(about["notes"]),
        )
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise KeepingError(f"{folder} cannot be read ({error!r}): {_WAY_OUT}") from error


_WAY_OUT = "move it away and read the run again"


def _words(path: Path) -> Iterator[Episode]:
    """Yield the episodes that were kept, which may be none."""
    source = open_run(path, "jsonl")
    try:
        yield from source
    except ReadError:
        if source.counts["lines"]:
            raise
    if source.counts["damaged"]:
        raise KeepingError(f"{path}, {source.problems[0]}: {_WAY_OUT}")


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds {type(content).__name__}, not an object")
    return content


def _dump(path: Path, content: Mapping[str, Any]) -> None:
    text = json.dumps(json.loads(canonical_json(content)), sort_keys=True, indent=1, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
