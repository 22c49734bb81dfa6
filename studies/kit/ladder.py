"""The ladder of rungs: a fixed sequence of tests, each at the same level, stopped at the first failure.

Tested in this order, the chance of any false support along the ladder is at most the level of one rung, without a
correction (fixed-sequence gatekeeping). Before a claim climbs, it must have held on fresh seeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from studies.kit.words import LETTERS

__all__ = ["Rung", "climb", "next_rung"]


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


def climb(claim: str, rungs: tuple[str, ...], known: Mapping[str, Rung], folder: str = "studies") -> str:
    """Return the ladder of a claim in a line, with the command that takes the next step."""
    steps = []
    for rung in rungs:
        here = known.get(rung)
        steps.append(f"{rung} {LETTERS[here.verdict]} ({here.n})" if here else f"{rung} not run")
    following, why = next_rung(rungs, known)
    command = ""
    if following is not None:
        command = f": pytest {folder} -k {claim}{_option(following)}"
    elif "fresh seeds first" in why:
        rung = why.split()[2].rstrip(":")
        command = f": pytest {folder} -k {claim}{_option(rung)} --seeds fresh --record"
    return f"{claim}  {' -> '.join(steps)}; {why}{command}"


def _option(rung: str) -> str:
    return "" if rung == "sim" else f" --rung {rung}"
