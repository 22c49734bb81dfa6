"""Turns of a sequence of tokens with masks: each run that the policy sampled, with what came back after it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.records.tables import Tokens
from studies.kit.episodes import NO_ACTION, Turn

if TYPE_CHECKING:
    from studies.kit.reading.tagged import Cutter

__all__ = ["COLUMNS", "FIRST", "Part", "first_mean", "parts", "table", "turns"]

COLUMNS = {"logp": "logp_behaviour", "logp_proximal": "logp_proximal", "logp_reference": "logp_reference"}
"""Names of log-probs in files, and in the record."""
FIRST = 16
"""How many of a turn's first tokens its entropy is the mean of."""

_ROUNDING = 1e-6  # of a log-probability near 0


@dataclass(frozen=True)
class Part:
    """The tokens of one turn."""

    start: int
    """Its first token: the first of the sequence, or the first that was sampled."""
    wrote: int
    """The first that was sampled."""
    heard: int
    """The first that came back."""
    stop: int
    """Where the next turn starts, or the sequence ends."""


def table(ids: Sequence[int], sampled: Sequence[Any], columns: Mapping[str, Sequence[Any] | None]) -> Tokens:
    """Return the tokens of a sequence; ``columns`` are ``train``, ``version`` and those of `COLUMNS`, None if absent.

    A log-prob or version of a token that was not sampled is left out, as nobody sampled it. ValueError if a column is not
    as long as ``ids`` or holds what it cannot.
    """
    mask = _column("sampled", sampled, len(ids), bool)
    found: dict[str, np.ndarray] = {"train": mask}
    for name, values in columns.items():
        if values is None:
            continue
        if name == "train":
            found[name] = _column(name, values, len(ids), bool)
            if (found[name] & ~mask).any():
                raise ValueError(f"train is set for token {int(np.argmax(found[name] & ~mask))}, which was not sampled")
        elif name == "version":
            found[name] = np.where(mask, _column(name, [-1 if v is None else v for v in values], len(ids), int), -1)
        else:
            found[COLUMNS[name]] = _logps(name, values, mask)
    return Tokens(id=_column("ids", ids, len(ids), int), sampled=mask, **found)


def parts(sampled: np.ndarray) -> list[Part]:
    """Return the turns of a sequence: a run of sampled tokens each, the prompt in the first; none if none was sampled.

    >>> [(p.start, p.wrote, p.heard, p.stop) for p in parts(np.array([0, 1, 1, 0, 1], bool))]
    [(0, 1, 3, 4), (4, 4, 5, 5)]
    """
    edges = np.flatnonzero(np.diff(np.concatenate(([0], sampled.astype(np.int8), [0]))))
    begins, ends = edges[::2].tolist(), edges[1::2].tolist()
    stops = [*begins[1:], *(len(sampled) for _ in begins[:1])]
    return [Part(0 if k == 0 else b, b, e, s) for k, (b, e, s) in enumerate(zip(begins, ends, stops, strict=True))]


def turns(tokens: Tokens, pieces: Sequence[str] | None, cut: Cutter | None, chat: bool = False) -> Iterator[Turn]:
    """Yield the turns of a sequence; a run of which ``pieces`` show several actions is several turns.

    Without ``pieces`` nothing says which action a run is.
    """
    for part in parts(tokens.sampled):
        if pieces is None or cut is None:
            yield _turn(tokens, part, NO_ACTION, None)
            continue
        written = "".join(pieces[part.wrote : part.heard])
        found = cut.message(written, replied=part.stop > part.heard, chat=chat) or (Turn(NO_ACTION, written),)
        ends = list(accumulate(len(piece) for piece in pieces[part.wrote : part.heard]))
        marks = [int(np.searchsorted(ends, end)) + 1 for end in accumulate(len(turn.generated) for turn in found)]
        bounds = [part.wrote, *(part.wrote + mark for mark in marks[:-1]), part.heard]
        for place, (turn, (a, b)) in enumerate(zip(found, pairwise(bounds), strict=True)):
            last = place == len(found) - 1
            here = Part(part.start if place == 0 else a, a, b, part.stop if last else b)
            yield _turn(tokens, here, turn.action, pieces)


def first_mean(values: Sequence[float | None]) -> float | None:
    """Return the mean over a turn's first tokens, or None where one of them has no value."""
    known = [value for value in values[:FIRST] if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known and len(known) == len(values[:FIRST]) else None


def _turn(tokens: Tokens, part: Part, action: str, pieces: Sequence[str] | None) -> Turn:
    texts = tuple(pieces[part.start : part.stop]) if pieces is not None else ()
    return Turn(
        action=action,
        generated="".join(pieces[part.wrote : part.heard]) if pieces is not None else "",
        observed="".join(pieces[part.heard : part.stop]) if pieces is not None else "",
        generated_tokens=part.heard - part.wrote,
        observed_tokens=part.stop - part.heard,
        tokens=tokens.rows(part.start, part.stop),
        pieces=texts,
    )


def _column(name: str, values: Sequence[Any], length: int, kind: type) -> np.ndarray:
    if len(values) != length:
        raise ValueError(f"{name} has {len(values)} values for {length} ids")
    array = np.asarray(values) if length else np.zeros(0, kind)
    if kind is bool and array.dtype.kind in "iu" and np.isin(array, (0, 1)).all():
        array = array.astype(bool)
    if array.dtype.kind != ("b" if kind is bool else "i"):
        raise ValueError(f"{name} holds what is no {'flag' if kind is bool else 'whole number'}")
    return array


def _logps(name: str, values: Sequence[Any], mask: np.ndarray) -> np.ndarray:
    if len(values) != len(mask):
        raise ValueError(f"{name} has {len(values)} values for {len(mask)} ids")
    try:
        found = np.array([math.nan if value is None else value for value in values], float)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} holds what is no number") from error
    found = np.where(mask, found, math.nan)
    if (found > _ROUNDING).any():
        raise ValueError(f"{name} is {np.nanmax(found)}: a log-probability is 0 or less")
    return np.minimum(found, 0.0)
