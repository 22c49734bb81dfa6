"""The report: one HTML file for each rung that carries everything it shows, a card for each claim.

Everything a study or a rollout wrote is escaped; figures alone are embedded as they are, and a content policy in the
page forbids scripts and the network in any case. The files of other rungs that lie beside it are linked.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studies.kit.claims import RUNGS
from studies.kit.crossing import crossings
from studies.kit.escalation import Escalation
from studies.kit.escalation_file import EscalationError, escalations
from studies.kit.exhibits import Exhibit
from studies.kit.family import declared
from studies.kit.finding import Finding
from studies.kit.gauge import Gauge, gauge
from studies.kit.ladder import climb
from studies.kit.phase.gallery import Hung, gallery
from studies.kit.records import Record, load
from studies.kit.session import StudySession, git_commit
from studies.kit.terminal import code, known
from studies.kit.words import VERDICTS, interval, number, probability

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "PAGES",
    "Beside",
    "Card",
    "Cell",
    "Climbs",
    "Row",
    "beside",
    "climbs",
    "environment",
    "navigation",
    "render",
    "write",
]

PAGES = {"sim": "index.html", "minimodel": "minimodel.html", "fullscale": "fullscale.html"}
"""The file of each rung in the report's folder."""


@dataclass(frozen=True)
class Card:
    """A claim as the report shows it."""

    finding: Finding
    """The verdict."""
    gauge: Gauge | None
    """The picture of prediction and measurement."""
    rule: str
    """When the claim counts as supported, in words."""
    exhibits: tuple[Exhibit, ...]
    """What the study shows."""
    commit: str
    """Commit the finding was made from."""
    fresh: str
    """How the claim held on fresh seeds, in words."""
    banner: str
    """A warning on top: recorded, and with which code; empty for a finding of this session."""
    ladder: str
    """The rungs and the next step; empty for a claim of one rung."""


@dataclass(frozen=True)
class Cell:
    """A claim at a rung, in the table on top."""

    verdict: str
    """The verdict, ``not run`` or ``not claimed``."""
    n: int
    """Units."""
    now: bool
    """Whether it is of this session."""


@dataclass(frozen=True)
class Row:
    """A claim, in the table on top."""

    claim: str
    """Its id."""
    says: str
    """Its sentence, if known."""
    card: bool
    """Whether the report holds its card."""
    cells: tuple[Cell, ...]
    """One for each rung."""


@dataclass(frozen=True)
class Beside:
    """What lies beside the report: diagrams of sweeps, and pages of rollouts."""

    diagrams: tuple[Hung, ...] = ()
    """Diagrams of sweeps of the session's studies."""
    pages: tuple[tuple[str, str], ...] = ()
    """Name and relative address of each page of rollouts."""


@dataclass(frozen=True)
class Climbs:
    """What was carried from rung to rung."""

    attempts: tuple[Escalation, ...] = ()
    """Escalations of the claims of these studies, by claim and attempt."""
    problem: str = ""
    """Why the files of escalations cannot be read, if so."""
    figure: str = ""
    """SVG of the effect at one rung against the next; empty where no scale-free number is known at two."""


def write(session: StudySession) -> Path:
    """Write the page of the session's rung into its report folder and return its path; link the pages that are there."""
    folder = session.report_dir
    folder.mkdir(parents=True, exist_ok=True)
    page = render(cards(session), rows(session), session.rung, session.seeds.option, climbs(session), beside(session))
    (folder / PAGES[session.rung]).write_text(page, encoding="utf-8")
    there = [rung for rung in RUNGS if (folder / PAGES[rung]).exists()]
    for rung in there:
        path = folder / PAGES[rung]
        # The first <nav> is the page's own: it stands above all that a study wrote.
        linked = re.sub(r"<nav>.*?</nav>", navigation(rung, there), path.read_text(encoding="utf-8"), count=1)
        path.write_text(linked, encoding="utf-8")
    return folder / PAGES[session.rung]


def navigation(rung: str, there: Sequence[str]) -> str:
    """Return the links from the page of a rung to those of the rungs that have one."""
    links = (f"<b>{name}</b>" if name == rung else f'<a href="{PAGES[name]}">{name}</a>' for name in there)
    return f"<nav>rung {' · '.join(links)}</nav>"


def render(
    cards: Sequence[Card],
    rows: Sequence[Row],
    rung: str,
    seeds: str = "",
    climbed: Climbs | None = None,
    beside: Beside | None = None,
) -> str:
    """Return the report as HTML, without links to other rungs."""
    counts = {verdict: sum(card.finding.verdict == verdict for card in cards) for verdict in VERDICTS}
    headline = next(
        ((card, shown) for card in cards for shown in card.exhibits if shown.headline and shown.sort == "figure"), None
    )
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            cards=cards,
            rows=rows,
            rungs=RUNGS,
            rung=rung,
            navigation=navigation(rung, [rung]),
            seeds=seeds,
            counts=counts,
            headline=headline,
            climbed=climbed or Climbs(),
            beside=beside or Beside(),
        )
    )


def environment() -> "Environment":
    """Return the Jinja2 environment: autoescape always on, an undefined name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        number=number, interval=interval, probability=probability, chip=lambda verdict: verdict.replace(" ", "-")
    )
    made.globals["embed"] = _Embed()
    return made


class _Embed:
    """Embeds SVG figures, giving the ids of each a prefix of its own: ids are global in an HTML page."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, svg: str) -> Any:
        from markupsafe import Markup

        self._count += 1
        prefix = f"f{self._count}-"
        svg = re.sub(r'(\bid=")', rf"\g<1>{prefix}", svg)
        svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{prefix}", svg)
        return Markup(svg)  # written by matplotlib, which escapes text


def cards(session: StudySession) -> list[Card]:
    """Return a card for each finding of the session and for each long claim that was left out."""
    commit = git_commit(session.start)
    made = []
    for found in session.findings:
        folder = Path(session.registered[found.claim].folder)
        entry = load(folder / "records", found.claim, session.rung)
        shown = tuple(exhibit for exhibit in session.exhibits if exhibit.claim == found.claim)
        made.append(_card(found, entry, folder, shown, commit, ""))
    for item in session.registered.values():
        entry = load(Path(item.folder) / "records", item.claim, session.rung) if item.left_out else None
        if entry is not None and entry.finding is not None:
            banner = (
                f"Recorded with {code(entry.finding, item, session)} code; not run in this session (--all runs it)."
            )
            made.append(_card(entry.finding, entry, Path(item.folder), (), entry.commit, banner))
    return made


def _card(
    found: Finding,
    entry: Record | None,
    folder: Path,
    shown: tuple[Exhibit, ...],
    commit: str,
    banner: str,
) -> Card:
    climbing = climb(found.claim, found.rungs, known(found, folder), folder.name) if len(found.rungs) > 1 else ""
    return Card(found, gauge(found), rule(found), shown, commit, fresh_words(entry, found.expect), banner, climbing)


def rule(found: Finding) -> str:
    """Say when the claim counts as supported."""
    if found.kind == "agreement":
        return f"Supported if the two computations differ by no more than {number(found.region_high)}."
    if found.region_low is None:
        where = f"below {number(found.region_high)}"
    elif found.region_high is None:
        where = f"above {number(found.region_low)}"
    else:
        where = f"between {number(found.region_low)} and {number(found.region_high)}"
        if found.region_low == found.region_high:
            where = f"at {number(found.region_low)}"
    if found.kind == "identity":
        return f"Supported if the computed value, give or take its tolerance, lies {where}."
    return f"Supported if the whole 95 % interval lies {where}; refuted if all of it lies outside; else undecided."


def fresh_words(entry: Record | None, expect: str | None) -> str:
    """Say how a claim held on fresh seeds."""
    if entry is None or not entry.fresh:
        return "not yet run on fresh seeds"
    held, sets = entry.held(expect)
    bases = ", ".join(f"{item.base}: {item.verdict}" for item in entry.fresh)
    return f"held on fresh seeds {held} of {sets} ({bases})"


def rows(session: StudySession) -> list[Row]:
    """Return a row for each claim that is made at this rung, of the registered family and of this session."""
    now = {found.claim: found for found in session.findings}
    with_card = set(now) | {item.claim for item in session.registered.values() if item.left_out}
    made = []
    for folder in session.folders():
        family = declared(folder)
        family.update({item.claim: item.rungs for item in session.registered.values() if item.folder == str(folder)})
        for claim, rungs in sorted((claim, rungs) for claim, rungs in family.items() if session.rung in rungs):
            entries = {rung: load(folder / "records", claim, rung) for rung in rungs}
            cells = tuple(_cell(rung, rungs, now.get(claim), entries.get(rung)) for rung in RUNGS)
            recorded = next((entry.finding.says for entry in entries.values() if entry and entry.finding), "")
            says = session.registered[claim].says if claim in session.registered else recorded
            card = claim in now or (claim in with_card and bool(recorded))
            made.append(Row(claim, says, card, cells))
    return made


def climbs(session: StudySession) -> Climbs:
    """Return the escalations of the claims in the session's folders, and the picture of what one rung says of the next."""
    folders = session.folders()
    family = {claim for folder in folders for claim in declared(folder)}
    try:
        found = tuple(each for each in escalations(session.start / "escalations") if each.claim in family)
    except EscalationError as error:
        return Climbs(problem=str(error))
    crossed = [each for folder in folders for each in crossings(folder, found)]
    if not crossed:
        return Climbs(found)
    from studies.kit.crossing import figure
    from studies.kit.figures import svg

    return Climbs(found, figure=svg(figure(crossed)))


def beside(session: StudySession) -> Beside:
    """Return what lies beside the session's report folder, as the commands ``sweep``, ``read`` and ``inspect`` leave it."""
    runs = session.report_dir.parent
    studies = {item.study.removeprefix("study_") for item in session.registered.values()}
    found = [*runs.glob("read/*/index.html"), *runs.glob("inspector*.html")]
    pages = (
        (p.parent.name if p.name == "index.html" else p.stem, f"../{p.relative_to(runs).as_posix()}") for p in found
    )
    return Beside(gallery(runs / "sweeps", studies), tuple(sorted(pages)))


def _cell(rung: str, rungs: Sequence[str], now: Finding | None, entry: Record | None) -> Cell:
    if rung not in rungs:
        return Cell("not claimed", 0, now=False)
    if now is not None and now.rung == rung:
        return Cell(now.verdict, now.n, now=True)
    if entry is not None and entry.finding is not None:
        return Cell(entry.finding.verdict, entry.finding.n, now=False)
    return Cell("not run", 0, now=False)
