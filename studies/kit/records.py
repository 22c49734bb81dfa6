"""The record of verdicts: one JSON file a claim, beside the studies, under version control.

A file holds, for each rung, the finding made with seeds 0 .. n-1, where it was made (platform and versions), and every
verdict that fresh seeds have given since.
"""

import json
import os
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from studies.kit.finding import Finding
from studies.kit.words import VERDICTS

__all__ = ["SCHEMA", "Fresh", "Record", "RecordError", "append_fresh", "load", "place", "record", "records", "write"]

SCHEMA = 1
"""Version of the files' layout."""


class RecordError(ValueError):
    """A record cannot be read, or must not be written."""


@dataclass(frozen=True)
class Fresh:
    """What one set of fresh seeds gave."""

    base: int
    """First seed of the set."""
    n: int
    """Number of seeds."""
    verdict: str
    """The verdict they gave."""
    fingerprint: str
    """Fingerprint of the code that ran."""


@dataclass(frozen=True)
class Record:
    """What is on record for one claim at one rung."""

    finding: Finding | None
    """The finding at seeds 0 .. n-1; ``None`` while only fresh seeds have run."""
    place: Mapping[str, str]
    """Platform and versions it was made with."""
    commit: str
    """Commit of the working tree it was made from; empty outside a repository."""
    fresh: tuple[Fresh, ...] = ()
    """Every set of fresh seeds, oldest first."""

    def held(self, expect: str | None) -> tuple[int, int]:
        """Return (k, m): of m sets of fresh seeds, k gave the verdict on record."""
        return sum(entry.verdict == expect for entry in self.fresh), len(self.fresh)


def place(rung: str) -> dict[str, str]:
    """Return platform, instruction set and versions: what the bits of a run depend on."""
    found = {
        "platform": f"{platform.system()}-{platform.machine()}",
        "vectors": _vectors(),
        "python": ".".join(platform.python_version_tuple()[:2]),
        **{package: _version(package) for package in ("numpy", "scipy")},
    }
    if rung == "sim":
        return found
    return {**found, "torch": _version("torch"), "torch_vectors": _torch_vectors(), "decode": _decode()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"


def _vectors() -> str:
    """Widest vector instructions, on which numpy and BLAS choose their loops; empty where unknown."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return ""
    return next((name for name in ("avx512f", "avx2", "asimd") if name in flags), "")


def _torch_vectors() -> str:
    """Vector instructions that torch chose its kernels for; it may choose others than numpy on the same processor."""
    try:
        import torch
    except ImportError:
        return "absent"
    return str(torch.backends.cpu.get_cpu_capability())


def _decode() -> str:
    """Whether the tiny transformer samples in compiled code, which rounds otherwise than torch."""
    try:
        from minimodel.model.compiled import available
    except ImportError:
        return "absent"
    return "compiled" if available() else "torch"


def load(folder: Path, claim: str, rung: str) -> Record | None:
    """Return the record of a claim at a rung, or ``None``. RecordError for a file that cannot be read."""
    path = folder / f"{claim}.json"
    if not path.exists():
        return None
    return _read(path).get(rung)


def records(folder: Path) -> dict[str, dict[str, Record]]:
    """Return every record in a folder, by claim and rung."""
    return {path.stem: _read(path) for path in sorted(folder.glob("*.json"))}


def _read(path: Path) -> dict[str, Record]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["schema"] != SCHEMA:
            raise RecordError(f"{path}: schema {data['schema']!r}; this version reads {SCHEMA}: record it again")
        if data["claim"] != path.stem:
            raise RecordError(f"{path}: holds claim {data['claim']!r}; rename the file or record the claim again")
        return {rung: _entry(entry) for rung, entry in data["rungs"].items()}
    except RecordError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{path} is not a record ({error}): restore it, or delete it and record again") from error


def _entry(data: Mapping[str, Any]) -> Record:
    fresh = tuple(Fresh(**entry) for entry in data["fresh"])
    for entry in fresh:
        if entry.verdict not in VERDICTS or entry.base < 1 or entry.n < 1:
            raise ValueError(f"a fresh entry {entry} that cannot be")
    if sorted(data) != ["commit", "finding", "fresh", "place"]:
        raise ValueError(f"fields {sorted(data)}")
    finding = None if data["finding"] is None else Finding.from_dict(data["finding"])
    return Record(finding, dict(data["place"]), data["commit"], fresh)


def record(folder: Path, finding: Finding, commit: str) -> bool:
    """Put a finding on record; return whether the file changed.

    RecordError when there is no expected verdict, when it differs from the one found, or when the seeds are not those
    of the record.
    """
    if finding.expect is None:
        raise RecordError(f"{finding.claim}: {finding.verdict}, and the claim has no expect=; add it, then record")
    if finding.verdict != finding.expect:
        raise RecordError(
            f"{finding.claim}: {finding.verdict}, but the claim says expect={finding.expect!r}; not recorded"
        )
    if finding.fresh:
        raise RecordError(f"{finding.claim}: made with seeds {finding.span}; the record is made with seeds from 0")
    kept = replace(finding, q=None, status="on record", fails=False, reason="")
    old = load(folder, finding.claim, finding.rung)
    here = place(finding.rung)
    if old is not None and old.finding == kept and dict(old.place) == here:
        return False
    write(folder, finding.claim, finding.rung, Record(kept, here, commit, old.fresh if old else ()))
    return True


def append_fresh(folder: Path, finding: Finding) -> None:
    """Add what fresh seeds gave, whatever it is. RecordError when the set overlaps an earlier one."""
    old = load(folder, finding.claim, finding.rung) or Record(None, {}, "")
    for entry in old.fresh:
        if finding.base < entry.base + entry.n and entry.base < finding.base + finding.seeds:
            raise RecordError(
                f"{finding.claim}: seeds {finding.span} overlap the recorded set from {entry.base}; draw others with "
                "--seeds fresh"
            )
    entry = Fresh(finding.base, finding.seeds, finding.verdict, finding.fingerprint)
    write(folder, finding.claim, finding.rung, replace(old, fresh=(*old.fresh, entry)))


def write(folder: Path, claim: str, rung: str, entry: Record) -> None:
    """Write one rung of one claim's file; the others stay. The file is replaced in one move."""
    path = folder / f"{claim}.json"
    rungs = _read(path) if path.exists() else {}
    rungs[rung] = entry
    data = {"schema": SCHEMA, "claim": claim, "rungs": {name: _plain(item) for name, item in sorted(rungs.items())}}
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix=f".{claim}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(json.dumps(data, indent=1, sort_keys=True, allow_nan=False) + "\n")
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _plain(entry: Record) -> dict[str, Any]:
    return {
        "finding": None if entry.finding is None else entry.finding.to_dict(),
        "place": dict(entry.place),
        "commit": entry.commit,
        "fresh": [{"base": e.base, "n": e.n, "verdict": e.verdict, "fingerprint": e.fingerprint} for e in entry.fresh],
    }
