"""A batch of language-model episodes as the project's record: the form that is kept, read and shown at every rung."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fullscale.agent.rollouts import Played
from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome, Reason, Tokens

__all__ = ["Scores", "to_rollouts"]

F32 = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Scores:
    """Log-probs of the sampled tokens by other policies than the engine, [Q, G, T]; None where nobody scored them."""

    proximal: F32 | None = None
    """The learner before the update."""
    reference: F32 | None = None
    """The reference."""


def to_rollouts(
    batch: Played, step: int, scores: Scores | None = None, arrived: Flags | None = None, seconds: float = 0.0
) -> Rollouts:
    """Return a batch as rollouts with every token: ids as sampled, versions, and up to three log-probs each.

    The log-prob of a decision is that of the tag that made it, given what was thought before: the sum over its tokens.

    Parameters
    ----------
    step
        Optimiser step, the version that takes the batch.
    scores
        Further log-probs.
    arrived
        Episodes that the update may use, [Q, G]; None for those whose infrastructure did not fail. The others are kept, and
        no learner took them.
    seconds
        When the batch began, s.
    """
    there = batch.arrived if arrived is None else arrived & batch.arrived
    found = Scores() if scores is None else scores
    Q, G = batch.reward.shape
    return Rollouts.from_trajectories(
        [_trajectory(batch, found, step, q, g, bool(there[q, g]), seconds) for q in range(Q) for g in range(G)]
    )


def _trajectory(batch: Played, scores: Scores, step: int, q: int, g: int, there: bool, start: float) -> Trajectory:
    """Return one episode; `there` says whether a learner took it."""
    n, end = int(batch.length[q, g]), start + float(batch.latency_s[q, g].sum())
    segment, turn, sampled = batch.segment[q, g, :n], batch.turn[q, g, :n], batch.sampled[q, g, :n]
    segments: list[Segment] = []
    for s in np.unique(segment[sampled]) if sampled.any() else [0]:  # elsewhere nothing was decided
        inside = segment == s
        versions = batch.version[q, g, :n][inside & sampled]
        segments.append(
            Segment(
                turns=tuple(
                    _turn(batch, scores, q, g, int(k), np.flatnonzero(inside & (turn == k)), there)
                    for k in (np.unique(turn[inside & sampled]) if sampled.any() else [0])
                ),
                parent=len(segments) - 1,
                reason=Reason.COMPACTION if segments else Reason.START,
                version_oldest=int(versions.min()) if versions.size else -1,
                version_newest=int(versions.max()) if versions.size else -1,
                start=start,
                end=end,
                take_version=step if there else -1,
            )
        )
    return Trajectory(
        task=batch.questions[q].id,
        segments=tuple(segments),
        reward=float(batch.reward[q, g]),
        outcome=Outcome(int(batch.outcome[q, g])),
        start=start,
        end=end,
    )


def _turn(batch: Played, scores: Scores, q: int, g: int, k: int, at: NDArray[np.intp], there: bool) -> Turn:
    """Return turn k of an episode, whose tokens stand at `at`, a prompt's before them."""
    sampled, decision = batch.sampled[q, g, at], batch.decision[q, g, at]
    logp: dict[str, Any] = {
        name: np.full(len(at), np.nan) if x is None else np.where(sampled, x[q, g, at].astype(float), np.nan)
        for name, x in (
            ("logp_behaviour", batch.logp),
            ("logp_proximal", scores.proximal),
            ("logp_reference", scores.reference),
        )
    }
    decided: dict[str, Any] = {
        name: float(x[decision].sum()) if decision.any() else float("nan") for name, x in logp.items()
    }
    taken = k < int(batch.taken[q, g])
    return Turn(
        action=int(batch.action[q, g, k]) if taken else -1,
        index=k,
        context=int(batch.context[q, g, k]) if taken else -1,
        generated=int(sampled.sum()),
        observed=int(batch.tool_tokens[q, g, k]) if taken else 0,
        entropy=float(batch.entropy[q, g, at][sampled].mean()) if sampled.any() else float("nan"),
        **decided,
        tokens=Tokens(
            id=batch.ids[q, g, at],
            sampled=sampled,
            train=sampled & there,
            version=batch.version[q, g, at],
            **logp,
        ),
    )
