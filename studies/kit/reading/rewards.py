"""Which rewards count as solved: said by the user, or by rewards that are 0 and 1; never guessed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sim.records.tables import Outcome

if TYPE_CHECKING:
    from studies.kit.reading.formats import Source

__all__ = ["outcome", "reward"]

_LARGEST = sys.float_info.max  # whole numbers of a file may be larger


def reward(source: Source, path: Path, line: int | None, value: object) -> float | None:
    """Return a reward as a number, or None where there is none; one that is no finite number is a problem."""
    if value is None:
        return None
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, int | float) and abs(value) <= _LARGEST:
        return float(value)
    source.count("rewards that are no finite number")
    source.problem(path, line, "the reward is no finite number", repr(value))
    return None


def outcome(source: Source, value: float | None, *, truncated: bool = False, failed: bool = False) -> Outcome:
    """Return how an episode of reward ``value`` ended.

    What the file says of failure and truncation holds. Then a reward of ``source.solved_at`` or more is solved and
    any other wrong; where that is not given, 1 is solved, 0 is wrong, and nothing is said of any other.
    """
    if failed:
        return Outcome.INFRASTRUCTURE_FAILURE
    if value is None:  # a record wants a reward for any other outcome
        return Outcome.NOT_RECORDED
    if truncated:
        return Outcome.TRUNCATED
    if source.solved_at is not None:
        return Outcome.SOLVED if value >= source.solved_at else Outcome.WRONG
    if value in (0.0, 1.0):
        return Outcome.SOLVED if value else Outcome.WRONG
    source.count("rewards neither 0 nor 1")
    number = source.counts["rewards neither 0 nor 1"]
    are = "rewards are" if number > 1 else "reward is"
    source.lacks("accuracy", f"{number} {are} neither 0 nor 1: name the reward that counts as solved with --solved-at")
    return Outcome.NOT_RECORDED
