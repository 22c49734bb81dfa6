"""Claims against rungs: a table for the terminal, and the effect at one rung against that at the next."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.kit.claims import RUNGS
from studies.kit.escalation import SCALE_FREE, Escalation, Result
from studies.kit.family import declared
from studies.kit.finding import Finding
from studies.kit.ladder import next_rung, on_record
from studies.kit.locations import Mean
from studies.kit.records import load
from studies.kit.words import LETTERS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Crossing", "Point", "crossings", "figure", "ladder_table"]

_RATIO = Mean(log=True).sentence  # a record tells a mean of ratios from one of differences by what it says it measured


@dataclass(frozen=True)
class Point:
    """A number at a rung."""

    rung: str
    """The rung."""
    verdict: str
    """The verdict there."""
    effect: float
    """The number."""
    low: float
    """Lower end of its interval."""
    high: float
    """Upper end."""
    n: int
    """Units."""


@dataclass(frozen=True)
class Crossing:
    """One claim at a rung and at the next, where its number means the same at both."""

    claim: str
    """Id of the claim, with the attempt where it is not the first."""
    kind: str
    """Name of the kind."""
    below: Point
    """The lower rung."""
    above: Point
    """The next."""


def ladder_table(folder: Path, every: bool = False, attempts: Sequence[Escalation] = ()) -> str:
    """Return the claims of a folder against the rungs: verdict's letter, n, fresh sets held, and what comes next.

    Only claims that are made at more than one rung, unless ``every``. Where a rung is not on record, what each of the
    ``attempts`` to carry the claim there came to.
    """
    claims = [(claim, rungs) for claim, rungs in sorted(declared(folder).items()) if every or len(rungs) > 1]
    rows = [_row(folder, claim, rungs, [each for each in attempts if each.claim == claim]) for claim, rungs in claims]
    if not rows:
        return f"no claim in {folder} is made at more than one rung"
    table = [("claim", *RUNGS, "next"), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table)
    letters = ", ".join(f"{letter} {verdict}" for verdict, letter in LETTERS.items())
    return "\n".join([*lines, f"{letters}; (n); fresh seeds held k/m; tried: not on record, by attempt; . not claimed"])


def _row(folder: Path, claim: str, rungs: Sequence[str], attempts: Sequence[Escalation]) -> tuple[str, ...]:
    known, made = on_record(folder, claim, rungs), tuple(rung for rung in RUNGS if rung in rungs)
    cells = []
    for rung in RUNGS:
        here = known.get(rung)
        if here is None:
            tried = [each.result for each in attempts if each.to == rung]
            words = [f"{LETTERS[found.verdict]} ({found.n})" if found else "registered" for found in tried]
            cells.append(f"tried {', '.join(words)}" if words else "not run" if rung in rungs else ".")
        else:
            cells.append(f"{LETTERS[here.verdict]} ({here.n}) {here.held}/{here.sets}")
    following, why = next_rung(made, known)
    return claim, *cells, f"{following}: {why}" if following else why


def crossings(folder: Path, attempts: Iterable[Escalation] = ()) -> list[Crossing]:
    """Return every claim with a scale-free number at a rung and at the next, from its records.

    Where the next rung is not on record each attempt to carry the claim there is one, so that none hides another.
    """
    tried = list(attempts)
    found = []
    for claim, rungs in sorted(declared(folder).items()):
        if len(rungs) < 2:
            continue
        entries = {rung: load(folder / "records", claim, rung) for rung in RUNGS if rung in rungs}
        findings = {rung: entry.finding for rung, entry in entries.items() if entry and entry.finding}
        for lower, upper in pairwise(entries):
            if lower not in findings or not _scale_free(findings[lower]):
                continue
            below, kind = _point(lower, findings[lower]), findings[lower].kind
            if upper in findings:
                above = {claim: _point(upper, findings[upper])}
            else:
                here = [each for each in tried if (each.claim, each.to) == (claim, upper)]
                above = {_label(each): _point(upper, each.result) for each in here}
            found += [Crossing(name, kind, below, point) for name, point in above.items() if below and point]
    return found


def _label(attempt: Escalation) -> str:
    return attempt.claim if attempt.attempt == 1 else f"{attempt.claim}, attempt {attempt.attempt}"


def _scale_free(finding: Finding) -> bool:
    return finding.kind in SCALE_FREE or finding.measured == _RATIO


def _point(rung: str, found: Finding | Result | None) -> Point | None:
    if found is None or found.effect is None or found.low is None or found.high is None:
        return None
    return Point(rung, found.verdict, found.effect, found.low, found.high, found.n)


def figure(found: Sequence[Crossing]) -> "Figure":
    """Return the effect at the next rung against that below, intervals on both, the diagonal dotted.

    ValueError where there is nothing to show.
    """
    from studies.kit import figures

    if not found:
        raise ValueError("no claim has a scale-free number at two rungs: there is nothing to draw")
    made, axes = figures.figure(title="What one rung says of the next", size=(8.2, 5.6))
    ends = [end for each in found for point in (each.below, each.above) for end in (point.low, point.high)]
    least, most = min(ends), max(ends)
    pad = 0.06 * (most - least) or 0.1
    axes.plot([least - pad, most + pad], [least - pad, most + pad], ":", color="#999999", linewidth=1.2)
    for number, each in enumerate(found):
        colour = figures.COLOURS[number % (len(figures.COLOURS) - 1)]
        x, y = each.below, each.above
        axes.errorbar(
            [x.effect],
            [y.effect],
            xerr=np.array([[x.effect - x.low], [x.high - x.effect]]),
            yerr=np.array([[y.effect - y.low], [y.high - y.effect]]),
            fmt="o",
            color=colour,
            capsize=2.5,
            alpha=0.75,  # claims may lie on each other
            label=f"{each.claim} ({x.rung} n={x.n}, {y.rung} n={y.n})",
        )
    axes.set_xlim(least - pad, most + pad)
    axes.set_ylim(least - pad, most + pad)
    axes.set_xlabel("effect at a rung, with its 95 % interval")
    axes.set_ylabel("effect at the next")
    axes.legend(loc="best", fontsize=8)
    return made
