import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import Outcome, RecordError, Rollouts, Tokens
from sim.records.staleness import staleness


def sampled(count, version):
    """Tokens that one version sampled; -1 where nobody noted it."""
    ones = np.ones(count, dtype=bool)
    return Tokens(id=np.arange(count), sampled=ones, train=ones, version=np.full(count, version))


def labelled(counts, unlabelled=0):
    """One trajectory whose tokens were sampled by the versions given, each so many."""
    tokens = [sampled(count, version) for version, count in counts.items()]
    tokens += [sampled(unlabelled, -1)] if unlabelled else []
    turns = tuple(Turn(0, index, generated=len(each), tokens=each) for index, each in enumerate(tokens))
    return Rollouts.from_trajectories([Trajectory("q", (Segment(turns, take_version=8),), 0.0, Outcome.WRONG)])


def test_staleness_by_token():
    # Known fault: judged by the last version, or a missing version taken for no lag at all. 10 tokens by version 3, 30
    # by 4, 60 by 5; the learner is at 6. Mutations that fail here: newest version for all tokens (mean 1.0); mean over
    # versions instead of tokens (2.0); unlabelled tokens counted with lag 0 (mean 1.36, coverage 1).
    got = staleness(labelled({3: 10, 4: 30, 5: 60}), 6)
    assert (got.oldest, got.newest, got.token_mean, got.coverage) == (3, 1, 1.5, 1)
    part = staleness(labelled({3: 10, 4: 30, 5: 60}, unlabelled=10), 6)
    assert (part.oldest, part.newest, part.token_mean) == (3, 1, 1.5)
    assert part.coverage == pytest.approx(100 / 110)
    none = staleness(labelled({}, unlabelled=10), 6)
    assert none.coverage == 0
    assert all(math.isnan(value) for value in (none.oldest, none.newest, none.token_mean))


def test_staleness_at_use_takes_the_version_at_take():
    got = staleness(labelled({3: 10, 4: 30, 5: 60}))
    assert (got.oldest, got.newest, got.token_mean) == (5, 3, 3.5)


def test_staleness_without_tokens_knows_only_the_ends_of_a_mixed_segment(small):
    # 30 tokens by version 3, then 5 by versions 4 to 5, then 70 by version 3.
    got = staleness(small(), 6)
    assert (got.oldest, got.newest, got.token_mean) == (3, 1, 3)
    assert got.coverage == pytest.approx(100 / 105)
    # With the last 70 by version 5: (30 * 3 + 70 * 1) / 100. Mutation: a mean over turns gives 2.
    newer = small(segments__version_oldest=[3, 4, 5, -1], segments__version_newest=[3, 5, 5, -1])
    assert staleness(newer, 6).token_mean == pytest.approx(1.6)


def test_a_version_from_the_future_is_refused():
    with pytest.raises(RecordError, match="version 5 sampled in segment 0: must not be above the learner's 4"):
        staleness(labelled({5: 1}), 4)


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(st.integers(0, 9), st.integers(1, 20), min_size=1), st.integers(0, 5), st.integers(0, 20))
def test_staleness_moves_with_the_learner(counts, ahead, unlabelled):
    record, now = labelled(counts, unlabelled), max(counts)
    base, later = staleness(record, now), staleness(record, now + ahead)
    assert base.newest == 0
    assert base.newest <= base.token_mean <= base.oldest
    assert later.token_mean == pytest.approx(base.token_mean + ahead)
    assert later.coverage == base.coverage == pytest.approx(sum(counts.values()) / (sum(counts.values()) + unlabelled))
