"""The claims that stand on collected studies, as builtins that travel from a worker to the controlling process."""

import dataclasses
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from studies.kit.claims import Claim

__all__ = ["Registered", "claims_of", "dump", "load", "name_of", "register"]


@dataclass(frozen=True)
class Registered:
    """A claim as collected."""

    claim: str
    """Its id."""
    says: str
    """Its sentence."""
    rungs: tuple[str, ...]
    """The rungs at which it is claimed."""
    expect: str | None
    """The verdict on record at the session's rung."""
    seeds: int | None
    """Seeds on record at the session's rung; ``None`` where it is not claimed there."""
    long: bool
    """Whether it runs only with ``--all`` at the session's rung."""
    source: str
    """Where the hypothesis comes from."""
    study: str
    """Name of its study."""
    folder: str
    """Folder of its study."""
    nodeid: str
    """Its pytest node."""
    left_out: bool = False
    """Whether it was selected but left out because it is long."""
    elsewhere: bool = False
    """Whether it was selected but left out because its study claims nothing at the session's rung."""


def name_of(path: Path) -> str:
    """Return a study's name: the stem of its file without ``study_``."""
    return path.stem.removeprefix("study_")


def claims_of(item: pytest.Item) -> list[Claim]:
    """Return the claims on a collected function, in the order they are written."""
    found = []
    for mark in item.iter_markers("claim"):
        if len(mark.args) != 1 or mark.kwargs or not isinstance(mark.args[0], Claim):
            raise pytest.UsageError(f"{item.nodeid}: write @claim(...) from studies.kit, not @pytest.mark.claim(...)")
        found.append(mark.args[0])
    return found[::-1]


def register(items: Iterable[pytest.Item], rung: str) -> dict[str, Registered]:
    """Return every claim on the items, by id. UsageError for an id that stands twice or a study without ``study``."""
    found: dict[str, Registered] = {}
    for item in items:
        for claim in claims_of(item):
            if claim.id in found:
                raise pytest.UsageError(
                    f"claim {claim.id!r} stands on {found[claim.id].nodeid} and on {item.nodeid}: an id is unique; "
                    "rename one (and its record)"
                )
            if "study" not in getattr(item, "fixturenames", ()):
                raise pytest.UsageError(f"{item.nodeid} carries claim {claim.id!r} but does not take `study`")
            here = rung in claim.rungs
            found[claim.id] = Registered(
                claim=claim.id,
                says=claim.says,
                rungs=claim.rungs,
                expect=claim.expect_at(rung) if here else None,
                seeds=claim.seeds_at(rung) if here else None,
                long=here and claim.is_long(rung),
                source=claim.source,
                study=name_of(item.path),
                folder=str(item.path.parent),
                nodeid=item.nodeid,
            )
    return found


def dump(registered: Sequence[Registered]) -> str:
    """Write registered claims as JSON."""
    return json.dumps([dataclasses.asdict(item) for item in registered])


def load(text: str) -> list[Registered]:
    """Read what ``dump`` wrote."""
    return [Registered(**{**item, "rungs": tuple(item["rungs"])}) for item in json.loads(text)]
