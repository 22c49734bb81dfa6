"""A cluster's rollouts as the project's record: a segment for each version that wrote, pauses where nothing was written.

What an interruption, a preemption or a swap of weights divides keeps its turn's number in both segments. Tokens are real
numbers in the simulator and whole ones in the record: a part of a turn has the tokens between the rounded sums before and
after it, so that a rollout's parts add up to its rounded total.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

import numpy as np

from sim.cluster.draws import BLOCK, Block, Draws
from sim.cluster.events import EventLog, Kind
from sim.cluster.plan import Plan, plan
from sim.cluster.run import ClusterRun
from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome, Reason

__all__ = ["to_rollouts"]

Chunk = tuple[int, int, float, float, float]  # turn, version, tokens, start and end in seconds


def to_rollouts(run: ClusterRun, step: int) -> Rollouts:
    """Return what the learner took at a step; the task of a rollout is its prompt's number.

    Log-probs are left out (NaN): the policies are not in the log. Times are those of the run's clock, and ``take_version``
    is `step`, so that :func:`sim.records.staleness.staleness` gives staleness at use.

    Raises
    ------
    ValueError
        When the run was not recorded, or took nothing at this step.
    """
    if run.log is None:
        raise ValueError("the run has no log, which says who wrote what when: simulate(..., record=True)")
    groups = np.flatnonzero(run.books.groups.taken & (run.books.groups.take_version == step))
    if not len(groups):
        made = int(np.isfinite(run.books.steps.started_s).sum())
        raise ValueError(f"nothing was taken at step {step}; the run began {made} steps, 0 to {made - 1}")
    rollouts = run.books.rollouts
    wanted = np.flatnonzero(np.isin(rollouts.group, groups) & ~rollouts.aborted)
    made_plan = plan(run.cluster)
    draws, chunks = _Remembered(Draws(made_plan, run.seed, run.study)), _chunks(run.log, wanted)
    taken_s = float(run.books.steps.started_s[step])
    return Rollouts.from_trajectories(
        [_trajectory(run, made_plan, draws, int(i), chunks[int(i)], step, taken_s) for i in wanted]
    )


class _Remembered:
    """Draws whose blocks are made once."""

    def __init__(self, draws: Draws) -> None:
        self.again, self._draws = draws.again, draws
        self._blocks: dict[int, Block] = {}

    def block(self, block: int) -> Block:
        """Return a block."""
        if block not in self._blocks:
            self._blocks[block] = self._draws.block(block)
        return self._blocks[block]


def _chunks(log: EventLog, wanted: np.ndarray) -> dict[int, list[Chunk]]:
    """Return the chunks of each rollout that left tokens, in order."""
    rows = log.of_kind(Kind.GEN_START, Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT)
    part = log.rows(rows[np.isin(log.traj[rows], wanted)])
    found: dict[int, list[Chunk]] = {int(i): [] for i in wanted}
    began: dict[int, float] = {}
    for event in part:
        if event.kind == Kind.GEN_START:
            began[event.traj] = event.t_s
        else:
            found[event.traj].append((event.turn, event.version, event.value, began[event.traj], event.t_s))
    return found


def _trajectory(
    run: ClusterRun, made: Plan, draws: _Remembered, i: int, chunks: list[Chunk], step: int, taken_s: float
) -> Trajectory:
    r, g = run.books.rollouts, run.books.groups
    return Trajectory(
        task=int(g.prompt[r.group[i]]),
        segments=tuple(_segments(run, made, i, chunks, step, taken_s)),
        reward=float(r.reward[i]),
        outcome=_outcome(run, made, draws, i),
        start=float(r.start_s[i]),
        end=float(r.end_s[i]),
    )


def _segments(run: ClusterRun, made: Plan, i: int, chunks: list[Chunk], step: int, taken_s: float) -> Iterator[Segment]:
    """Yield a segment for each stretch of chunks of one version."""
    written = 0.0
    for place, (version, stretch) in enumerate(groupby(chunks, key=lambda chunk: chunk[1])):
        parts = list(stretch)
        turns = []
        for turn, pieces in groupby(parts, key=lambda chunk: chunk[0]):
            before, written = written, written + sum(piece[2] for piece in pieces)
            turns.append(_turn(run, made, i, turn, round(written) - round(before)))
        gaps = [(a[4], b[3]) for a, b in pairwise(parts) if b[3] > a[4]]
        yield Segment(
            turns=tuple(turns),
            parent=place - 1,
            reason=Reason.RESUME if place else Reason.START,
            version_oldest=version,
            version_newest=version,
            start=parts[0][3],
            end=parts[-1][4],
            take_time=taken_s,
            take_version=step,
            pauses=tuple(gaps),
        )


def _turn(run: ClusterRun, made: Plan, i: int, turn: int, tokens: int) -> Turn:
    r = run.books.rollouts
    node = int(r.node[i, turn])
    return Turn(
        action=int(r.action[i, turn]),
        index=turn,
        context=int(made.graph.context[node]),
        state_id=node,
        generated=tokens,
    )


def _outcome(run: ClusterRun, made: Plan, draws: _Remembered, i: int) -> Outcome:
    """Return how a rollout ended, from the draw that decided it."""
    r, g, graph = run.books.rollouts, run.books.groups, made.graph
    if not r.valid[i]:
        return Outcome.INFRASTRUCTURE_FAILURE
    prompt, play = int(g.prompt[r.group[i]]), int(g.play[r.group[i]])
    members, last = run.cluster.workload.members, int(r.turns[i]) - 1
    if play:
        u = draws.again(prompt, play).outcome[r.member[i], last]
    else:
        u = draws.block(prompt // BLOCK).outcome[prompt % BLOCK * members + r.member[i], last]
    at = int(r.kind[i]), int(r.node[i, last]), int(r.action[i, last])
    end = graph.target[at[1], at[2], int(np.searchsorted(made.outcome[at], u, side="right"))]
    if end < graph.states:
        return Outcome.TURN_LIMIT
    return Outcome.SOLVED if graph.solved[end] else Outcome.WRONG
