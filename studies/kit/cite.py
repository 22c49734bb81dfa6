"""Citing a claim: the project, the sentence, the verdict with its numbers, and how to make it again."""

import json
import shlex
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from studies import FOLDER
from studies.kit.family import declared
from studies.kit.records import Record, records
from studies.kit.words import CommandError, interval, near, number, probability

__all__ = ["FORMATS", "Citation", "Project", "as_bibtex", "as_json", "as_text", "cite", "project"]

FORMATS = ("text", "bibtex", "json")
"""The forms a citation is printed in."""
_CFF = Path(__file__).resolve().parents[2] / "CITATION.cff"
_TITLE = "metastable: a testbed for the training dynamics of agentic reinforcement learning"
_ESCAPES = {"\\": r"\textbackslash{}", **{mark: f"\\{mark}" for mark in "&%$#_{}"}, "~": r"\~{}", "^": r"\^{}"}


@dataclass(frozen=True)
class Project:
    """The software that is cited."""

    title: str
    """Its title."""
    authors: tuple[str, ...]
    """Its authors."""
    version: str
    """Version installed."""
    date: str
    """Date of its release, in ISO form; empty where unknown."""
    licence: str
    """Its licence."""


@dataclass(frozen=True)
class Citation:
    """What is on record for a claim at a rung, as it is cited."""

    claim: str
    """Id of the claim."""
    says: str
    """The claim as a sentence."""
    study: str
    """Name of the study."""
    rung: str
    """The rung."""
    verdict: str
    """The verdict."""
    effect: float | None
    """The number; ``None`` where nothing was measured."""
    low: float | None
    """Lower end of the 95 % interval."""
    high: float | None
    """Upper end; infinite when it lies beyond the run."""
    unit: str
    """Unit of the number."""
    region: str
    """Where it had to lie."""
    how: str
    """Name of the interval."""
    n: int
    """Units."""
    seeds: str
    """The seeds, as FIRST..LAST."""
    p: float | None
    """Smallest alpha at which the verdict stands."""
    held: int
    """Sets of fresh seeds that gave the same verdict."""
    sets: int
    """Sets of fresh seeds in all."""
    commit: str
    """Commit it was recorded from; with ``+`` the working tree had changes."""
    fingerprint: str
    """Fingerprint of the code that made it."""
    study_fingerprint: str
    """Fingerprint of the study's file."""
    place: dict[str, str]
    """Platform and versions."""
    rerun: str
    """The command that makes it again."""

    @property
    def number(self) -> str:
        """The effect with its interval and unit."""
        if self.effect is None:
            return "no number"
        effect = "beyond the run" if self.effect == float("inf") else number(self.effect)
        ends = interval(self.low, self.high)
        return " ".join(part for part in (effect, ends, self.unit) if part)


def cite(claim: str, folder: Path, rung: str | None = None) -> list[Citation]:
    """Return what there is to cite of a claim, a citation for each rung, from the lowest.

    Raises
    ------
    CommandError
        For a claim that is not there, or that has no record (at the rung asked for): nothing unrecorded is cited.
    """
    found = records(folder / "records")
    if claim not in found:
        known = declared(folder)
        if claim not in known:
            raise CommandError(
                f"no claim {claim!r}; {near(claim, {**known, **found})} (`metastable list` has them all)"
            )
        raise CommandError(
            f"{claim!r} is not on record, so there is nothing to cite: `metastable run {claim}{_elsewhere(folder)} --record`"
        )
    made = [_citation(at, entry) for at, entry in _ordered(found[claim]) if rung in (None, at)]
    cited = [each for each in made if each is not None]
    if not cited:
        have = ", ".join(at for at, entry in _ordered(found[claim]) if entry.finding is not None) or "no rung"
        raise CommandError(f"{claim!r} is not on record at {rung or 'any rung'}; on record at {have}")
    return cited


def _elsewhere(folder: Path) -> str:
    """Return the option that names a folder, but for that of the package."""
    return "" if folder.resolve() == FOLDER else f" --folder {shlex.quote(str(folder))}"


def _ordered(entries: dict[str, Record]) -> list[tuple[str, Record]]:
    from studies.kit.claims import RUNGS

    return [(rung, entries[rung]) for rung in RUNGS if rung in entries]


def _citation(rung: str, entry: Record) -> Citation | None:
    found = entry.finding
    if found is None:
        return None
    held, sets = entry.held(found.expect)
    return Citation(
        claim=found.claim,
        says=found.says,
        study=found.study,
        rung=rung,
        verdict=found.verdict,
        effect=found.effect,
        low=found.low,
        high=found.high,
        unit=found.unit,
        region=found.region,
        how=found.how,
        n=found.n,
        seeds=found.span,
        p=found.p,
        held=held,
        sets=sets,
        commit=entry.commit,
        fingerprint=found.fingerprint,
        study_fingerprint=found.study_fingerprint,
        place=dict(entry.place),
        rerun=found.rerun,
    )


def project(cff: Path = _CFF) -> Project:
    """Return the software as CITATION.cff states it, else as it was installed."""
    try:
        installed = version("metastable")
    except PackageNotFoundError:
        installed = ""
    said = _cff(cff.read_text(encoding="utf-8")) if cff.is_file() else {}
    authors = tuple(said.get("name", "The metastable authors").splitlines())
    return Project(
        said.get("title", _TITLE),
        authors,
        said.get("version", installed),
        said.get("date-released", ""),
        said.get("license", "Apache-2.0"),
    )


def _cff(text: str) -> dict[str, str]:
    """Return the plain fields of a CITATION.cff, and its authors' names a line; enough of YAML for that file."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.strip().removeprefix("- ").partition(":")
        value = value.strip().strip('"')
        if colon and value:
            found[name] = f"{found[name]}\n{value}" if name == "name" and name in found else value
    return found


# Forms ----------------------------------------------------------------------------------------------------------------


def as_text(cited: Citation, about: Project) -> str:
    """Return a citation in words."""
    released = f" ({about.date})" if about.date else ""
    made_with = ", ".join(f"{name} {value}" for name, value in cited.place.items() if value)
    commit = cited.commit or "unknown"
    p = "" if cited.p is None else f"p {'' if cited.p < 1e-4 else '= '}{probability(cited.p)}"
    basis = (f"n = {cited.n}, seeds {cited.seeds}", p, cited.how)
    return "\n".join(
        [
            f"{', '.join(about.authors)}. {about.title}, version {about.version}{released}. {about.licence}.",
            f"Claim {cited.claim}, rung {cited.rung}: “{cited.says}”",
            f"  {cited.verdict}: {cited.number}; needed {cited.region}",
            f"  {', '.join(part for part in basis if part)}; held on fresh seeds {cited.held} of {cited.sets}",
            f"  study {cited.study} ({cited.study_fingerprint}), code {cited.fingerprint[:16]}, commit {commit}",
            f"  {made_with}",
            f"  again: {cited.rerun}",
        ]
    )


def as_bibtex(cited: Citation, about: Project) -> str:
    """Return a citation as a BibTeX entry of the software, the claim in its note."""
    note = (
        f"Claim {cited.claim} at rung {cited.rung}: {cited.says} {cited.verdict.capitalize()}, {cited.number}, "
        f"n = {cited.n}, seeds {cited.seeds}. Code {cited.fingerprint[:16]}, commit {cited.commit or 'unknown'}. "
        f"Again: {cited.rerun}"
    )
    entries = {
        "author": " and ".join(f"{{{_tex(name)}}}" for name in about.authors),
        "title": f"{{{_tex(about.title)}}}",
        "version": _tex(about.version),
        **({"year": about.date[:4]} if about.date else {}),
        "note": _tex(note),
    }
    body = ",\n".join(f"  {name} = {{{value}}}" for name, value in entries.items())
    return f"@software{{metastable:{cited.claim}:{cited.rung},\n{body}\n}}"


def _tex(text: str) -> str:
    return "".join(_ESCAPES.get(mark, mark) for mark in text)


def as_json(cited: list[Citation], about: Project) -> str:
    """Return citations as strict JSON; an infinity is a string, as in a record."""

    def plain(value: object) -> object:
        return ("inf" if value > 0 else "-inf") if isinstance(value, float) and abs(value) == float("inf") else value

    claims = [{name: plain(value) for name, value in asdict(each).items()} for each in cited]
    return json.dumps({"software": asdict(about), "claims": claims}, indent=1, allow_nan=False, ensure_ascii=False)
