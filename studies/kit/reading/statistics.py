"""What one episode adds to the means of its step, by the names of the columns that these means become.

Log-probabilities in a file are those of what was sampled, not whole distributions. What is computed from them is an
estimate, and is named so: the mean of log pi - log pi_ref over samples from pi is the sampled KL (k1), unbiased, and
negative now and then; the mean of -log pi is the surprisal, whose expectation is the entropy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
from numpy.typing import NDArray

from studies.kit.episodes import NO_ACTION

if TYPE_CHECKING:
    from studies.kit.episodes import Episode, Turn

__all__ = ["CLIP_BAND", "MOST_TURNS", "Lag", "Mean", "Part", "by_turn", "finite", "parts"]

MOST_TURNS = 32
"""Turns that have columns of their own. Later ones are counted in everything that is not by turn."""
CLIP_BAND = 0.2
"""Half-width of the band that ``drift/ratio_before/token/outside`` counts against, as at the other rungs."""

_UNIT = 1074  # every finite double is a multiple of 2**-1074

F64 = NDArray[np.float64]
Part = tuple[str, float, int]
"""Name of a column, a sum that is added to it, and of how many."""


class Mean:
    """A mean of sums that were added in any order: kept exactly, rounded once, so that no order shows in it.

    >>> mean = Mean()
    >>> for value in (0.1, 1e16, 0.1, -1e16):
    ...     mean.add(value)
    >>> mean.value
    0.05
    """

    __slots__ = ("_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._total = 0

    def add(self, total: float, count: int = 1) -> None:
        """Add the finite sum of ``count`` values."""
        numerator, denominator = total.as_integer_ratio()
        self._total += numerator << (_UNIT + 1 - denominator.bit_length())
        self.count += count

    @property
    def value(self) -> float:
        """The mean; NaN of nothing."""
        return self._total / (self.count << _UNIT) if self.count else math.nan


class Lag:
    """How many versions behind the learner rollouts were written, at the most and at the least."""

    __slots__ = ("newest", "oldest")

    def __init__(self) -> None:
        self.oldest: int | None = None
        self.newest: int | None = None

    def add(self, episode: Episode) -> None:
        """Take note of an episode that a learner took; others, and those without versions, say nothing."""
        taken, old, new = episode.take_version, episode.version_oldest, episode.version_newest
        if taken is None or old is None or new is None:
            return
        self.oldest = max(taken - old, taken - old if self.oldest is None else self.oldest)
        self.newest = min(taken - new, taken - new if self.newest is None else self.newest)


@lru_cache(maxsize=4096)
def by_turn(name: str, turn: int) -> str:
    """Return the name of a column's value at a turn."""
    return f"{name}/turn{turn}"


def parts(episode: Episode) -> Iterator[Part]:
    """Yield what an episode adds to the columns of its step that are means.

    - ``train/reward``, ``train/turns``, ``train/generated_tokens``, ``train/observed_tokens``: by rollout;
    - ``train/invalid_share``: of turns, those without an action;
    - ``decision/surprisal/turnT``, ``drift/kl_decision_sampled/turnT``, ``entropy/recorded/turnT``: by decision, nats;
    - ``drift/kl_decisions_sampled``: by rollout, the sum over its decisions, where all have both log-probabilities;
    - ``token/surprisal``, ``drift/kl_token_sampled`` (and that of ``/turnT``): by sampled token;
      ``drift/kl_trajectory_sampled``: by rollout, the sum over its sampled tokens, where all have both;
    - ``drift/ratio_before/token/distance`` and ``/outside``: by sampled token, mean |rho - 1| and the share outside
      the band, of learner before the update over sampler;
    - ``staleness/token_mean``: by sampled token whose version is known, versions behind the learner.
    """
    turns = episode.turns
    yield "train/turns", float(len(turns)), 1
    if finite(episode.reward):
        yield "train/reward", episode.reward, 1
    if turns:
        yield "train/invalid_share", float(sum(turn.action == NO_ACTION for turn in turns)), len(turns)
    yield from _lengths(turns)
    yield from _decisions(turns)
    yield from _tokens(turns, episode.take_version)


def finite(value: float | None) -> TypeGuard[float]:
    """Whether there is a number; a log-probability of minus infinity is none that a mean can take."""
    return value is not None and math.isfinite(value)


def _lengths(turns: tuple[Turn, ...]) -> Iterator[Part]:
    for name in ("generated_tokens", "observed_tokens"):
        counts = [getattr(turn, name) for turn in turns]
        if counts and None not in counts:
            yield f"train/{name}", float(sum(counts)), 1


def _decisions(turns: tuple[Turn, ...]) -> Iterator[Part]:
    gaps = []
    for t, turn in enumerate(turns):
        shown = t < MOST_TURNS
        if finite(turn.logp):
            if shown:
                yield by_turn("decision/surprisal", t), -turn.logp, 1
            if finite(turn.logp_reference):
                gaps.append(turn.logp - turn.logp_reference)
                if shown:
                    yield by_turn("drift/kl_decision_sampled", t), gaps[-1], 1
        if shown and finite(turn.entropy):
            yield by_turn("entropy/recorded", t), turn.entropy, 1
    if gaps and len(gaps) == len(turns):
        yield "drift/kl_decisions_sampled", math.fsum(gaps), 1


def _tokens(turns: tuple[Turn, ...], taken: int | None) -> Iterator[Part]:
    gaps, whole = [], True
    for t, turn in enumerate(turns):
        if turn.tokens is None or not turn.tokens.sampled.any():
            whole = whole and turn.tokens is not None
            continue
        mask, tokens = turn.tokens.sampled, turn.tokens
        logp, gap = tokens.logp_behaviour[mask], (tokens.logp_behaviour - tokens.logp_reference)[mask]
        yield from _sums(("token/surprisal",), -logp)
        yield from _sums(("drift/kl_token_sampled", *_at("drift/kl_token_sampled", t)), gap)
        yield from _ratio(tokens.logp_proximal[mask] - logp)
        version = tokens.version[mask]
        if taken is not None and (version >= 0).any():
            yield "staleness/token_mean", float((taken - version[version >= 0]).sum()), int((version >= 0).sum())
        gaps.append(float(gap.sum()))
    if gaps and whole and all(map(math.isfinite, gaps)):
        yield "drift/kl_trajectory_sampled", math.fsum(gaps), 1


def _at(name: str, turn: int) -> tuple[str, ...]:
    return (by_turn(name, turn),) if turn < MOST_TURNS else ()


def _sums(names: tuple[str, ...], values: F64) -> Iterator[Part]:
    """Yield the sum of the values that are known, for each column."""
    known = values[np.isfinite(values)]
    if len(known):
        total = float(known.sum())
        yield from ((name, total, len(known)) for name in names)


def _ratio(log_ratio: F64) -> Iterator[Part]:
    known = log_ratio[np.isfinite(log_ratio)]
    if len(known):
        distance = np.abs(np.expm1(np.minimum(known, 700.0)))  # beyond, a ratio is no number
        yield "drift/ratio_before/token/distance", float(distance.sum()), len(known)
        yield "drift/ratio_before/token/outside", float((distance > CLIP_BAND).sum()), len(known)
