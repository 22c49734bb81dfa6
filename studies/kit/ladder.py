"""The ladder of rungs: a fixed sequence of tests, each at the same level, stopped at the first failure.

Tested in this order, the chance of any false support along the ladder is at most the level of one rung, without a
correction (fixed-sequence gatekeeping). Before a claim climbs, it must have held on fresh seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.kit.records import load
from studies.kit.words import LETTERS

__all__ = ["Rung", "barrier", "climb", "next_rung", "on_record", "remedy"]


@dataclass(frozen=True)
class Rung:
    """What is known of a claim at one rung."""

    verdict: str
    """The verdict there."""
    n: int
    """Units it rests on."""
    held: int = 0
    """Sets of fresh seeds that gave the verdict on record."""
    sets: int = 0
    """Sets of fresh seeds in all."""


def next_rung(rungs: tuple[str, ...], known: Mapping[str, Rung]) -> tuple[str | None, str]:
    """Return the rung that may be run next and why, or ``None`` and what stands in the way.

    >>> next_rung(("sim", "minimodel"), {"sim": Rung("supported", 8, 3, 3)})
    ('minimodel', 'supported at sim')
    >>> next_rung(("sim", "minimodel"), {"sim": Rung("refuted", 8)})
    (None, 'stops at sim: refuted')
    """
    below = ""
    for rung in rungs:
        here = known.get(rung)
        if here is None:
            return rung, f"supported at {below}" if below else "not run yet"
        if here.verdict != "supported":
            return None, f"stops at {rung}: {here.verdict}"
        if rung != rungs[-1] and rungs[rungs.index(rung) + 1] not in known:
            if here.sets == 0:
                return None, f"waits at {rung}: fresh seeds first"
            if here.held < here.sets:
                return None, f"waits at {rung}: held on fresh seeds {here.held} of {here.sets}"
        below = rung
    return None, "supported at every rung it claims"


def on_record(folder: Path, claim: str, rungs: Sequence[str]) -> dict[str, Rung]:
    """Return what the records in a folder of studies say of a claim, at the rungs where it has a finding."""
    known: dict[str, Rung] = {}
    for rung in rungs:
        entry = load(folder / "records", claim, rung)
        if entry is not None and entry.finding is not None:
            known[rung] = Rung(entry.finding.verdict, entry.finding.n, *entry.held(entry.finding.expect))
    return known


def barrier(rungs: Sequence[str], known: Mapping[str, Rung], to: str) -> str:
    """Return what stands between a claim and a rung, in words; empty when it may be run there.

    >>> barrier(("sim", "minimodel"), {"sim": Rung("undecided", 8)}, "minimodel")
    'stops at sim: undecided'
    >>> barrier(("sim", "minimodel"), {"sim": Rung("supported", 8, 3, 3)}, "minimodel")
    ''
    """
    below = tuple(rungs[: rungs.index(to)])
    following, why = next_rung((*below, to), {rung: known[rung] for rung in below if rung in known})
    if following == to:
        return ""
    return why if following is None else f"not run yet at {following}"


def remedy(claim: str, rungs: Sequence[str], known: Mapping[str, Rung], to: str, more: str = "") -> str:
    """Return the command that may take a barrier away, with what it would do; ``more`` are options that it needs."""
    for rung in rungs[: rungs.index(to)]:
        here, run = known.get(rung), f"metastable run {claim}{_option(rung)}{more}"
        if here is None:
            return f"`{run} --record` runs it there"
        if here.verdict == "refuted":
            return f"a refuted claim does not climb; `metastable show {claim}` says by how much it missed"
        if here.verdict != "supported":
            return (
                f"`{run} --seeds until-decided` says how many seeds would settle it; then raise seeds= and record again"
            )
        if here.held < here.sets:
            return f"raise seeds= until fresh sets agree, record again, then `{run} --seeds fresh --record`"
        if here.sets == 0:
            return f"`{run} --seeds fresh --record` puts it to seeds that it has never seen"
    return ""


def climb(claim: str, rungs: tuple[str, ...], known: Mapping[str, Rung], folder: str = "studies") -> str:
    """Return the ladder of a claim in a line, with the command that takes the next step."""
    steps = []
    for rung in rungs:
        here = known.get(rung)
        steps.append(f"{rung} {LETTERS[here.verdict]} ({here.n})" if here else f"{rung} not run")
    following, why = next_rung(rungs, known)
    command = ""
    if following is not None:
        first = following == rungs[0]
        command = (
            f": pytest {folder} -k {claim}{_option(following)}"
            if first
            else f": metastable escalate {claim}{_folder(folder)}"
        )
    elif "fresh seeds first" in why:
        rung = why.split()[2].rstrip(":")
        command = f": pytest {folder} -k {claim}{_option(rung)} --seeds fresh --record"
    return f"{claim}  {' -> '.join(steps)}; {why}{command}"


def _folder(folder: str) -> str:
    return "" if folder == "studies" else f" --folder {folder}"


def _option(rung: str) -> str:
    return "" if rung == "sim" else f" --rung {rung}"
