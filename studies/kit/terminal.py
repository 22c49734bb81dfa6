"""The terminal: one line a finding, the ladder, and where the report lies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

import pytest

from studies.kit.claims import RUNGS
from studies.kit.finding import Finding
from studies.kit.ladder import Rung, climb, on_record
from studies.kit.records import load
from studies.kit.registry import Registered
from studies.kit.session import FINDING, SESSION, StudySession
from studies.kit.words import LETTERS, VERDICTS, number, probability

__all__ = ["Line", "counts", "line", "lines", "status", "summarise"]

_HEADER = ("", "claim", "predicted", "effect [95 %]", "region", "n", "p", "q")


def status(report: Any) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Return category, letter and word of a study by the least settled of its verdicts; ``None`` for other tests."""
    verdicts = [Finding.from_json(str(text)).verdict for name, text in report.user_properties if name == FINDING]
    if not verdicts:
        return None
    worst = max(verdicts, key=VERDICTS.index)
    colour = "green" if worst in ("supported", "refuted") else "yellow"
    return worst, LETTERS[worst], (worst.upper(), {colour: True})


def summarise(reporter: Any, config: pytest.Config) -> None:
    """Print the findings section; write report and records. Does nothing where no study ran or was shown."""
    session = config.stash[SESSION]
    if session.worker or config.option.collectonly:
        return
    reports = [report for category in list(reporter.stats.values()) for report in list(category)]
    findings = session.finish(reports)
    shown = [(item, _recorded(item, session.rung)) for item in session.registered.values() if item.left_out]
    if reporter.hasopt("skipped"):
        for text in elsewhere(session):
            reporter.write_line(text)
    if not findings and not shown:
        if not session.kept and not any(hasattr(report, "when") for report in reports):
            _nothing(reporter, session)
        return
    reporter.section(f"findings, rung {session.rung}", sep="=")
    for found in findings:
        config.hook.pytest_studies_finding(finding=found)
    rows = [line(found) for found in findings]
    rows += [recorded_line(item, found, session) for item, found in shown]
    # Where nobody looks on (a log), 120 columns are fine whatever width pytest assumes.
    width = reporter._tw.fullwidth if reporter.isatty else max(120, reporter._tw.fullwidth)
    for text, verdict in lines(rows, width):
        reporter.write_line(text, **_colour(verdict))
    for text in ladders(findings, session):
        reporter.write_line(f"ladder: {text}")
    if session.seeds.fresh:
        reporter.write_line(f"fresh seeds: again with {session.seeds.option}")
    if session.recording:
        _record(reporter, session)
    if findings:
        from studies.kit.report import write

        path = write(session)
        reporter.write_line(counts(findings))
        with_card = len(findings) + sum(found is not None for _, found in shown)
        reporter.write_line(f"report: {_short(path, session.start)}{_part(with_card, len(session.family()))}")


def elsewhere(session: StudySession) -> list[str]:
    """Return a line for each study that was left out because it claims nothing at this rung."""
    rungs: dict[str, set[str]] = {}
    for item in session.registered.values():
        if item.elsewhere:
            rungs.setdefault(item.nodeid, set()).update(item.rungs)
    return [
        f"{node}: claimed at {', '.join(made)}, not at {session.rung}: --rung {made[0]}"
        for node, made in ((node, [rung for rung in RUNGS if rung in found]) for node, found in rungs.items())
    ]


def _nothing(reporter: Any, session: StudySession) -> None:
    """Say that all that was selected is claimed at other rungs, which is no error."""
    items = [item for item in session.registered.values() if item.elsewhere]
    if not items:
        return
    made = [rung for rung in RUNGS if any(rung in item.rungs for item in items)]
    claims = "the only claim here is" if len(items) == 1 else f"the {len(items)} claims here are"
    reporter.write_line(f"nothing to run at {session.rung}: {claims} made at {', '.join(made)} (--rung {made[0]})")
    if reporter._session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        reporter._session.exitstatus = pytest.ExitCode.OK


def counts(findings: Sequence[Finding]) -> str:
    """Return how many claims have which verdict; the last line of pytest counts studies."""
    by_verdict = {verdict: sum(found.verdict == verdict for found in findings) for verdict in VERDICTS}
    each = ", ".join(f"{count} {verdict}" for verdict, count in by_verdict.items() if count)
    return f"{len(findings)} claim{'' if len(findings) == 1 else 's'}: {each}"


def _part(shown: int, family: int) -> str:
    return f" ({shown} of {family} claims)" if shown < family else ""


@dataclass(frozen=True)
class Line:
    """A finding in the terminal."""

    cells: tuple[str, ...]
    """Verdict's letter, claim, predicted, effect, region, n, p, q."""
    unit: str
    """Unit of the effect."""
    status: str
    """How it stands to the record."""
    verdict: str
    """The verdict, which gives the colour."""


def line(found: Finding, status: str = "") -> Line:
    """Return the line of a finding; ``status`` replaces what it says of the record."""
    predicted = number(found.predicted)
    if found.predicted is not None and found.predicted_low is not None and found.predicted_low != found.predicted_high:
        predicted += f" ({number(found.predicted_low)} to {number(found.predicted_high)})"
    if not status:
        status = found.status
        if found.verdict == "undecided":
            status += f", {'no number of' if found.more_seeds is None else found.more_seeds} more seeds"
        elif found.verdict == "no verdict":
            status += f", {found.reason}"
    tests = ("-", "-") if found.p is None else (probability(found.p), probability(found.q))
    cells = (LETTERS[found.verdict], found.claim, predicted, found.number, found.region, str(found.n), *tests)
    return Line(cells, found.unit if found.effect is not None else "", status, found.verdict)


def recorded_line(item: Registered, found: Finding | None, session: StudySession) -> Line:
    """Return the line of a long claim that did not run, as recorded."""
    if found is None:
        return Line(("-", item.claim, *"------"), "", "long, not on record: --all", "no verdict")
    return line(found, f"recorded with {code(found, item, session)} code")


def code(found: Finding, item: Registered, session: StudySession) -> str:
    """Return ``this`` or ``other``: whether the code that runs now made a recorded finding."""
    from sim.records.fingerprint import code_fingerprint
    from studies.kit.family import file_fingerprint

    path = Path(item.folder) / f"study_{item.study}.py"
    same = found.fingerprint == code_fingerprint(session.rung) and found.study_fingerprint == file_fingerprint(path)
    return "this" if same else "other"


def lines(rows: Sequence[Line], width: int) -> list[tuple[str, str]]:
    """Lay findings out in columns; return (text, verdict, ``header`` or nothing) by line.

    Units stand with the effects where all fit the width, else on an indented line below, and so does a status that does
    not fit. Only where the numbers themselves do not fit do lines run over.
    """
    with_units = [(*row.cells[:3], f"{row.cells[3]} {row.unit}".rstrip(), *row.cells[4:]) for row in rows]
    widths = _widths([_HEADER, *with_units])
    fits = sum(widths) + 2 * len(widths) + max((len(row.status) for row in rows), default=0) <= width
    table = with_units if fits else [row.cells for row in rows]
    widths = _widths([_HEADER, *table])
    out = [(_columns((*_HEADER, "status"), (*widths, 0)), "header")]
    for row, cells in zip(rows, table, strict=True):
        text = _columns(cells, widths)
        whole = f"{text}  {row.status}".rstrip()
        below = [] if fits else [row.unit]
        if len(whole) > width:
            whole, below = text.rstrip(), [*below, row.status]
        out.append((whole, row.verdict))
        out += [(f"     {part}", "") for part in wrap("; ".join(filter(None, below)), width - 5)]
    return out


def _widths(table: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(len(row[i]) for row in table) for i in range(len(_HEADER))]


def _columns(cells: Iterable[str], widths: Iterable[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


def ladders(findings: Sequence[Finding], session: StudySession) -> list[str]:
    """Return a line for each claim that is made at more than one rung."""
    out = []
    for found in findings:
        if len(found.rungs) > 1:
            folder = Path(session.registered[found.claim].folder)
            out.append(climb(found.claim, found.rungs, known(found, folder), _short(folder, session.start)))
    return out


def known(found: Finding, folder: Path) -> dict[str, Rung]:
    """Return what is known of a claim at each rung: this finding, and the records of the other rungs."""
    entry = load(folder / "records", found.claim, found.rung)
    held, sets = entry.held(found.expect) if entry else (0, 0)
    return {**on_record(folder, found.claim, found.rungs), found.rung: Rung(found.verdict, found.n, held, sets)}


def _recorded(item: Registered, rung: str) -> Finding | None:
    entry = load(Path(item.folder) / "records", item.claim, rung)
    return entry.finding if entry else None


def _record(reporter: Any, session: StudySession) -> None:
    written, refusals = session.record()
    for text in written:
        reporter.write_line(text)
    for text in refusals:
        reporter.write_line(f"NOT recorded: {text}", red=True)
    if refusals and reporter._session.exitstatus == pytest.ExitCode.OK:
        reporter._session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _colour(verdict: str) -> dict[str, bool]:
    if verdict in ("", "header"):
        return {"bold": bool(verdict)}
    return {"green": True} if verdict in ("supported", "refuted") else {"yellow": True}


def _short(path: Path, start: Path) -> str:
    return path.relative_to(start).as_posix() if path.is_relative_to(start) else str(path)
