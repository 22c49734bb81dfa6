"""Runs on disk: one folder per run, named by the run's key.

    ROOT/3f1c0a5be2d94e77/manifest.json      identity, deterministic, written last
                          provenance.json    when, where and with what it was computed
                          steps.npz          the step table
                          rollouts.npz       the trajectories that were kept, if any

A run is written to a hidden folder beside the others and then renamed, so a run is visible whole or not at all and a
killed sweep resumes where it stopped. The key holds the fingerprint of the code: a run made by other code has another
name. It is never taken for the run asked for, and never deleted; `Store.find` shows it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sim.records.config import canonical_json
from sim.records.fingerprint import code_fingerprint
from sim.records.rollouts import Rollouts
from sim.records.run import SCHEMA, RunRecord, run_key
from sim.records.steps import StepTable

__all__ = ["Found", "Store", "StoreError"]

_KEY = re.compile(r"[0-9a-f]{16}")
_TEMPORARY = ".writing-"
_SET_ASIDE = ".incomplete-"


class StoreError(RuntimeError):
    """A folder of the store does not hold the run its name promises. The message names the folder and the way out."""


@dataclass(frozen=True)
class Found:
    """A run of the store that answers a question about one config, study, seed and rung."""

    key: str
    """Its name in the store."""
    same_code: bool
    """Whether the code that is running now made it."""
    manifest: Mapping[str, Any] = field(repr=False)
    """Its identity."""
    provenance: Mapping[str, Any] = field(repr=False)
    """When, where and with what it was computed."""

    @property
    def note(self) -> str:
        """``recorded with this code`` or ``recorded with other code``."""
        return f"recorded with {'this' if self.same_code else 'other'} code"


@dataclass(frozen=True)
class Store:
    """A folder of runs, which several processes may read and write at once."""

    root: Path
    """The folder. It is created when the first run is saved."""
    _identities: dict[str, str] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))

    def keys(self) -> list[str]:
        """The names of all complete runs, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(
            entry.name for entry in os.scandir(self.root) if _KEY.fullmatch(entry.name) and self.has(entry.name)
        )

    def has(self, key: str) -> bool:
        """Whether the run is there. A folder without manifest, which only a meddler can leave, does not count."""
        return (self.root / key / "manifest.json").is_file()

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Those of ``keys`` that are not there, in the order given."""
        return [key for key in keys if not self.has(key)]

    def save(self, record: RunRecord) -> bool:
        """Write a run; True if this call wrote it, False if it was there already or another writer came first.

        What is there stays as it is: a run is determined by its key. ``recorded_at`` is added to the provenance.
        """
        final = self.root / record.key
        if self.has(record.key):
            return False
        self.root.mkdir(parents=True, exist_ok=True)
        writing = self.root / f"{_TEMPORARY}{record.key}-{uuid.uuid4().hex}"
        writing.mkdir()
        try:
            _write(record, writing)
            return self._publish(writing, final)
        finally:
            shutil.rmtree(writing, ignore_errors=True)

    def load(self, key: str) -> RunRecord:
        """Read a run and check it against its manifest.

        KeyError if it is not there, StoreError if the folder is damaged or was written by a newer program.
        """
        if not self.has(key):
            raise KeyError(
                f"no run {key!r} among the {len(self.keys())} in {self.root}: compute it, or name another store"
            )
        folder = self.root / key
        try:
            manifest, provenance = _read_json(folder / "manifest.json"), _read_json(folder / "provenance.json")
            if manifest["schema"] > SCHEMA:
                raise StoreError(
                    f"{folder} has schema {manifest['schema']}, this program reads up to {SCHEMA}: update it"
                )
            steps = StepTable.load(folder / "steps.npz")
            rollouts = Rollouts.load(folder / "rollouts.npz") if manifest["rollouts_digest"] else None
            record = RunRecord(manifest, provenance, steps, rollouts)
            wrong = _disagreements(record, key)
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise StoreError(f"{folder} cannot be read ({error!r}): {_WAY_OUT}") from error
        if wrong:
            raise StoreError(f"{folder} does not agree with its manifest in {', '.join(wrong)}: {_WAY_OUT}")
        return record

    def find(
        self, config: Mapping[str, Any], study: str, seed: int, rung: str, fingerprint: str | None = None
    ) -> list[Found]:
        """All runs of this config, study, seed and rung, whatever code made them: this code's first, then the newest.

        ``fingerprint`` is the code to compare with; the code now running where it is None.
        """
        current = code_fingerprint(rung) if fingerprint is None else fingerprint
        wanted = run_key(config, study, seed, rung, fingerprint="")
        found = []
        for key in self.keys():
            if self._identity(key) == wanted:
                folder = self.root / key
                manifest, provenance = self._manifest(key), _read_json(folder / "provenance.json")
                found.append(Found(key, manifest["fingerprint"] == current, manifest, provenance))
        found.sort(key=lambda each: str(each.provenance.get("recorded_at", "")), reverse=True)
        return sorted(found, key=lambda each: not each.same_code)

    def sweep_temporary(self, older_than_s: float = 86_400.0) -> int:
        """Remove what killed writers left behind, if untouched for so long; return how many folders that was.

        Writing a run takes milliseconds, so that a day spares every writer that is still alive.
        """
        if not self.root.is_dir():
            return 0
        oldest = time.time() - older_than_s
        left = [entry for entry in os.scandir(self.root) if entry.name.startswith(_TEMPORARY)]
        stale = [entry.path for entry in left if entry.stat().st_mtime <= oldest]
        for path in stale:
            shutil.rmtree(path, ignore_errors=True)
        return len(stale)

    def _publish(self, writing: Path, final: Path) -> bool:
        """Give a finished folder its name, unless a complete one has it."""
        for _ in range(2):
            try:
                writing.rename(final)
            except OSError:
                if self.has(final.name):
                    return False  # another writer came first, with the same run
                if not final.exists():
                    raise
                final.rename(self.root / f"{_SET_ASIDE}{final.name}-{uuid.uuid4().hex}")  # not ours to delete
            else:
                return True
        raise StoreError(f"{final} is in the way: {_WAY_OUT}")

    def _manifest(self, key: str) -> Mapping[str, Any]:
        path = self.root / key / "manifest.json"
        try:
            manifest: Mapping[str, Any] = _read_json(path)
            self._identities[key] = run_key(
                manifest["config"], manifest["study"], manifest["seed"], manifest["rung"], fingerprint=""
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"{path.parent} cannot be read ({error!r}): {_WAY_OUT}") from error
        return manifest

    def _identity(self, key: str) -> str:
        """What a run is, whatever code made it. Manifests never change, so each is read once."""
        if key not in self._identities:
            self._manifest(key)
        return self._identities[key]


_WAY_OUT = "move the folder out of the store and compute the run again"


def _write(record: RunRecord, folder: Path) -> None:
    record.steps.save(folder / "steps.npz")
    if record.rollouts is not None:
        record.rollouts.save(folder / "rollouts.npz")
    provenance = {"recorded_at": datetime.now(UTC).isoformat(timespec="seconds"), **record.provenance}
    text = json.dumps(provenance, sort_keys=True, indent=1, allow_nan=False)
    (folder / "provenance.json").write_text(text + "\n", encoding="utf-8")
    (folder / "manifest.json").write_bytes(record.manifest_bytes())


def _read_json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds {type(content).__name__}, not an object")
    return content


def _disagreements(record: RunRecord, key: str) -> list[str]:
    """Which parts of a record are not what its manifest and its folder's name say."""
    manifest = record.manifest
    identity = (manifest["config"], manifest["study"], manifest["seed"], manifest["rung"], manifest["fingerprint"])
    checks = {
        "key": manifest["key"] == key == run_key(*identity),
        "columns": canonical_json(manifest["columns"]) == canonical_json(list(record.steps.names)),
        "steps": manifest["steps_digest"] == record.steps.digest(),
        "rollouts": record.rollouts is None or manifest["rollouts_digest"] == record.rollouts.digest(),
    }
    return [name for name, holds in checks.items() if not holds]
