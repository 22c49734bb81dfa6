import dataclasses
import math

import numpy as np
import pytest

from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Groups, Outcome, Pauses, Reason, Rollouts, Segments, Tokens, Trajectories, Turns

NAN = math.nan


@pytest.fixture
def small():
    return _small


@pytest.fixture
def prompted():
    return _prompted


@pytest.fixture
def spans():
    return _spans


def _small(**changes):
    """Two groups of 2 and 1 trajectories; the first trajectory was compacted after its second turn."""
    tables = {
        "groups": Groups(task=np.array([7, 3]), offsets=np.array([0, 2, 3]), baseline=np.array([0.5, NAN])),
        "trajectories": Trajectories(
            reward=np.array([1.0, 0.0, NAN]),
            outcome=np.array([Outcome.SOLVED, Outcome.TURN_LIMIT, Outcome.INFRASTRUCTURE_FAILURE]),
            offsets=np.array([0, 2, 3, 4]),
            start=np.array([0.0, 0.0, 1.0]),
            end=np.array([9.0, 8.0, 2.0]),
        ),
        "segments": Segments(
            parent=np.array([-1, 0, -1, -1]),
            offsets=np.array([0, 2, 3, 5, 5]),
            reason=np.array([Reason.START, Reason.COMPACTION, Reason.START, Reason.START]),
            version_oldest=np.array([3, 4, 3, -1]),
            version_newest=np.array([3, 5, 3, -1]),
            start=np.array([0.0, 5.0, 0.0, NAN]),
            end=np.array([4.0, 9.0, 8.0, NAN]),
            take_time=np.array([10.0, 10.0, 10.0, NAN]),
            take_version=np.array([6, 6, 6, -1]),
            pause_offsets=np.array([0, 2, 2, 2, 2]),
        ),
        "turns": Turns(
            action=np.array([0, 0, 1, 0, 1]),
            index=np.array([0, 1, 2, 0, 1]),
            context=np.array([0, 1, 2, 0, 1]),
            generated=np.array([10, 20, 5, 30, 40]),
            observed=np.array([7, 7, 0, 7, 0]),
            logp_behaviour=np.array([-0.1, -0.2, -0.3, -0.4, -0.5]),
        ),
        "pauses": Pauses(start=np.array([1.0, 3.0]), end=np.array([2.0, 4.0])),
    }
    for path, value in changes.items():
        table, _, field = path.partition("__")
        tables[table] = dataclasses.replace(tables[table], **{field: np.array(value)})
    return Rollouts(**tables)


def _prompted(lengths=(2, 3, 4, 2)):
    """One trajectory with tokens: prompt, action, observation, action."""
    prompt, act, observation, again = lengths
    return Trajectory(
        task="q",
        reward=1.0,
        outcome=Outcome.SOLVED,
        segments=(
            Segment(
                turns=(
                    Turn(0, 0, generated=act, observed=observation, tokens=_spans((prompt, act, observation))),
                    Turn(1, 1, generated=again, tokens=_spans((0, again, 0))),
                )
            ),
        ),
    )


def _spans(lengths, version=-1):
    """Tokens of one turn: so many before, sampled, after."""
    sampled = np.repeat([False, True, False], lengths)
    return Tokens(
        id=np.arange(len(sampled)),
        sampled=sampled,
        train=sampled,
        version=np.where(sampled, version, -1),
        logp_behaviour=np.where(sampled, -1.0, NAN),
    )
