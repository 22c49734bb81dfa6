"""What lies in a store, read from manifests alone: every folder is a row, also one that cannot be read."""

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sim.records.config import difference
from sim.records.fingerprint import code_fingerprint
from sim.records.run import SCHEMA
from studies.kit.words import CommandError

__all__ = ["Row", "against", "commonest", "find", "plain", "scan"]

_KEY = re.compile(r"[0-9a-f]{16}")
_UNFINISHED = {".writing-": "temporary", ".removing-": "temporary", ".incomplete-": "set aside"}
_FIELDS: Mapping[str, type] = {
    "key": str,
    "study": str,
    "rung": str,
    "seed": int,
    "fingerprint": str,
    "columns": list,
    "rows": int,
}
"""What a manifest must hold, beside its schema and the config, to be a run's."""


@dataclass(frozen=True)
class Row:
    """A folder of the store."""

    name: str
    """Name of the folder; of a run, its key."""
    path: Path
    """The folder."""
    kind: str
    """``run``; ``damaged`` or ``newer``, a run that cannot be read; ``incomplete``, without manifest; ``set aside`` by the
    store, which found it in the way; or ``temporary``, left by a writer or a remover that was killed."""
    size: int
    """Bytes on disk."""
    problem: str = ""
    """Why it cannot be read; empty for a run."""
    manifest: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Identity of a run; empty for what is none."""
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """How the run came about."""
    code: str = "unknown"
    """``this`` or ``other`` code than the one running made it; ``unknown`` where the rung's packages are not all here."""

    @property
    def is_run(self) -> bool:
        """Whether the manifest could be read."""
        return self.kind == "run"

    @property
    def key(self) -> str:
        """The key in the folder's name; empty where it holds none."""
        found = _KEY.search(self.name)
        return found[0] if found else ""

    @property
    def study(self) -> str:
        """Name of its study."""
        return str(self.manifest["study"])

    @property
    def config(self) -> Any:
        """The config as plain data."""
        return self.manifest["config"]

    @property
    def recorded(self) -> datetime | None:
        """When it was recorded; ``None`` where the provenance does not say."""
        try:
            when = datetime.fromisoformat(str(self.provenance["recorded_at"]))
        except (KeyError, ValueError):
            return None
        return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)

    def seconds(self, name: str) -> float | None:
        """``wall_s`` or ``cpu_s`` of the provenance; ``None`` where it is not a number."""
        found = self.provenance.get(name)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def scan(root: Path) -> list[Row]:
    """Return every folder of a store by name, hidden ones last; CommandError where there is no such folder.

    Manifest and provenance are read, arrays are not. What is no folder, or has a name of another kind, is not the
    store's and is left out.
    """
    if not root.is_dir():
        raise CommandError(f"no store {str(root)!r}: run a study first, or name the folder of the runs with --store")
    rows = [row for entry in os.scandir(root) if (row := _row(entry)) is not None]
    return sorted(rows, key=lambda row: (row.name.startswith("."), row.name))


def find(rows: Iterable[Row], key: str) -> Row:
    """Return the row whose name begins with ``key``; CommandError if there is none or more than one."""
    known = [row for row in rows if not row.name.startswith(".")]
    found = [row for row in known if row.name == key] or [row for row in known if key and row.name.startswith(key)]
    if len(found) == 1:
        return found[0]
    if not found:
        raise CommandError(f"no run {key!r} among the {len(known)} here: `metastable runs list` has their keys")
    names = ", ".join(row.name for row in found[:8]) + (f" and {len(found) - 8} more" if len(found) > 8 else "")
    raise CommandError(f"{key!r} begins the keys of {len(found)} runs: {names}; give more digits")


def commonest(rows: Iterable[Row]) -> dict[tuple[str, str], Any]:
    """Return the config that most runs of a study have at a rung, by (study, rung); of equals, the first as text."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for row in rows:
        counts.setdefault((row.study, row.manifest["rung"]), Counter())[_text(row.config)] += 1
    return {where: json.loads(min(found, key=lambda text: (-found[text], text))) for where, found in counts.items()}


def against(rows: Sequence[Row], base: Any = None) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Return in what the config of each run departs from ``base``: {key: {path: (there, here)}}.

    Without ``base`` it is held against the commonest of its study and rung among ``rows``.
    """
    usual = commonest(rows) if base is None else {}
    known: dict[tuple[str, str], dict[str, tuple[Any, Any]]] = {}
    found = {}
    for row in rows:
        there = base if base is not None else usual[row.study, row.manifest["rung"]]
        pair = (_text(there), _text(row.config))
        if pair not in known:
            known[pair] = difference(there, row.config)
        found[row.name] = known[pair]
    return found


def plain(row: Row, departs: Mapping[str, tuple[Any, Any]] | None = None) -> dict[str, Any]:
    """Return a row as plain data; ``departs`` as `against` gives it."""
    about: dict[str, Any] = {"key": row.name, "kind": row.kind, "size_bytes": row.size, "problem": row.problem}
    if row.is_run:
        about |= {name: row.manifest[name] for name in ("study", "rung", "seed", "fingerprint", "config")}
        about |= {"steps": row.manifest["rows"], "code": row.code, "recorded_at": row.provenance.get("recorded_at")}
        about |= {name: row.seconds(name) for name in ("wall_s", "cpu_s")}
        about["departs"] = {path: here for path, (_, here) in (departs or {}).items()}
    return about


def _text(config: Any) -> str:
    return json.dumps(config, sort_keys=True)


def _row(entry: "os.DirEntry[str]") -> Row | None:
    if not entry.is_dir():
        return None
    name, path = entry.name, Path(entry.path)
    kind = next((kind for start, kind in _UNFINISHED.items() if name.startswith(start)), "")
    if not kind and not _KEY.fullmatch(name):
        return None
    try:
        sizes = {file.name: file.stat().st_size for file in os.scandir(entry.path)}
    except OSError as error:
        return Row(name, path, kind or "damaged", 0, f"cannot be read ({error})")
    size = sum(sizes.values())
    if kind:
        return Row(name, path, kind, size, _LEFT[kind])
    if "manifest.json" not in sizes:
        return Row(name, path, "incomplete", size, "no manifest.json: not a run, and not in the way of one")
    return _run(name, path, sizes)


_LEFT = {
    "temporary": "left by a process that was killed, or still being written",
    "set aside": "a folder without manifest that was in the way of a run",
}


def _run(name: str, path: Path, sizes: Mapping[str, int]) -> Row:
    """Return the row of a folder that has a manifest."""
    size = sum(sizes.values())
    try:
        manifest = _read(path / "manifest.json")
        schema = manifest["schema"]
        if type(schema) is not int:
            raise ValueError(f"schema {schema!r}")
        if schema > SCHEMA:
            words = f"schema {schema}, this program reads up to {SCHEMA}: update it"
            return Row(name, path, "newer", size, words)
        _check(manifest, name, sizes)
        provenance = _read(path / "provenance.json")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return Row(name, path, "damaged", size, f"cannot be read ({type(error).__name__}: {error})"[:200])
    rung, code = manifest["rung"], "unknown"
    current = _current(rung)
    if current is not None:
        code = "this" if manifest["fingerprint"] == current else "other"
    return Row(name, path, "run", size, "", manifest, provenance, code)


def _check(manifest: Mapping[str, Any], name: str, files: Iterable[str]) -> None:
    """ValueError or KeyError where a manifest is not that of a run, or files it speaks of are missing."""
    for key, kind in _FIELDS.items():
        if type(manifest[key]) is not kind:
            raise ValueError(f"{key} is {str(manifest[key])[:40]!r}")
    manifest["config"]
    if manifest["key"] != name:
        raise ValueError(f"it holds the manifest of {manifest['key'][:40]!r}")
    needed = ["steps.npz", *(["rollouts.npz"] if manifest["rollouts_digest"] is not None else [])]
    missing = [file for file in needed if file not in files]
    if missing:
        raise ValueError(f"no {missing[0]}")


def _current(rung: str) -> str | None:
    """Fingerprint of the code that is running; None for a rung that is unknown or not installed."""
    try:
        return code_fingerprint(rung)
    except (ValueError, ModuleNotFoundError):
        return None


def _read(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds {type(content).__name__}, not an object")
    return content
