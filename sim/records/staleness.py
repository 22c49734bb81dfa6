"""How old the policy was that sampled what the learner now learns from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sim.records.rollouts import Rollouts
from sim.records.tables import Array, RecordError, parents

__all__ = ["Staleness", "staleness"]


@dataclass(frozen=True)
class Staleness:
    """Lags in versions. NaN where no version was noted: not knowing is not a lag of 0."""

    oldest: float
    """Lag of the oldest version that sampled any of it."""
    newest: float
    """Lag of the newest version that sampled any of it."""
    token_mean: float
    """Mean lag over the sampled tokens whose own version is known."""
    coverage: float
    """Share of the sampled tokens whose own version is known; NaN if none were sampled."""


def staleness(rollouts: Rollouts, learner_version: int | None = None) -> Staleness:
    """Lag = learner's version - version that sampled the token, over all sampled tokens of the record.

    ``learner_version`` is the learner's now; None takes each segment's ``take_version``, which is staleness at use.
    A token without a version of its own (or the count of tokens, where no tokens are kept) has its segment's, if its
    oldest and newest are the same. In a segment made by several versions only the two ends are known of such tokens:
    they enter oldest and newest, but neither mean nor coverage.
    RecordError if a version is newer than the learner's.
    """
    weight, oldest, newest, segment = _spans(rollouts)
    learner = np.full(len(rollouts.segments), -1 if learner_version is None else learner_version)
    if learner_version is None:
        learner = rollouts.segments.take_version
    now = learner[segment]
    noted = (newest >= 0) & (now >= 0) & (weight > 0)
    if np.any(noted & (newest > now)):
        row = int(np.argmax(noted & (newest > now)))
        raise RecordError(
            f"version {newest[row]} sampled in segment {segment[row]}: must not be above the learner's {now[row]}; "
            f"give the version of the learner that uses the record"
        )
    known = noted & (oldest == newest)
    total, covered = float(weight.sum()), float(weight[known].sum())
    return Staleness(
        oldest=float((now - oldest)[noted].max()) if noted.any() else math.nan,
        newest=float((now - newest)[noted].min()) if noted.any() else math.nan,
        token_mean=float(((now - newest) * weight)[known].sum()) / covered if covered else math.nan,
        coverage=covered / total if total else math.nan,
    )


def _spans(rollouts: Rollouts) -> tuple[Array, Array, Array, Array]:
    """Sampled tokens, their oldest and newest version, and their segment: by token, or by turn without tokens."""
    segments, turns, tokens = rollouts.segments, rollouts.turns, rollouts.tokens
    segment = parents(segments.offsets)
    if tokens is None:
        return turns.generated, segments.version_oldest[segment], segments.version_newest[segment], segment
    segment = segment[parents(turns.offsets)]
    # Of a token that nobody labelled, its segment's two ends are known, if they are.
    oldest = np.where(tokens.version < 0, segments.version_oldest[segment], tokens.version)
    newest = np.where(tokens.version < 0, segments.version_newest[segment], tokens.version)
    return tokens.sampled.astype(np.int64), oldest, newest, segment
