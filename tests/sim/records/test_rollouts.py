import dataclasses
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.records.nested import Segment, Trajectory, Turn
from sim.records.rollouts import (
    Outcome,
    Padded,
    Reason,
    RecordError,
    Rollouts,
    Tokens,
)

NAN = math.nan


def tokens_of(lengths):
    """So many tokens before, sampled, after."""
    sampled = np.repeat([False, True, False], lengths)
    return Tokens(id=np.arange(len(sampled)), sampled=sampled, train=sampled)


# --- any record at all ------------------------------------------------------------------------------------------------

LOGP = st.one_of(st.just(NAN), st.floats(-20, 0))
WORD = st.sampled_from(["main", "searcher", "critic"])


@st.composite
def turns(draw, index, with_tokens):
    lengths = draw(st.tuples(*[st.integers(0, 3)] * 3))
    return Turn(
        action=draw(st.integers(0, 3)),
        index=index,
        context=draw(st.integers(-1, 5)),
        state_id=draw(st.integers(-1, 99)),
        generated=lengths[1],
        observed=lengths[2],
        logp_behaviour=draw(LOGP),
        logp_proximal=draw(LOGP),
        logp_reference=draw(LOGP),
        entropy=draw(st.one_of(st.just(NAN), st.floats(0, 3))),
        tokens=tokens_of(lengths) if with_tokens else None,
    )


@st.composite
def segments(draw, place, with_tokens):
    parent = draw(st.integers(-1, place - 1))
    oldest = draw(st.integers(-1, 5))
    newest = oldest if oldest < 0 else oldest + draw(st.integers(0, 3))
    times = sorted(draw(st.lists(st.floats(0, 100), min_size=5, max_size=5)))
    timed = draw(st.booleans())
    count = draw(st.integers(0, 3))
    return Segment(
        turns=tuple(draw(turns(index, with_tokens)) for index in range(count)),
        parent=parent,
        role=draw(WORD),
        reason=draw(st.sampled_from(list(Reason))) if parent >= 0 else Reason.START,
        version_oldest=oldest,
        version_newest=newest,
        start=times[0] if timed else NAN,
        end=times[3] if timed else NAN,
        take_time=times[4] if timed else NAN,
        take_version=draw(st.sampled_from([-1, newest + 1])),
        pauses=((times[1], times[2]),) if timed and draw(st.booleans()) else (),
    )


@st.composite
def trajectories(draw, with_tokens):
    outcome = draw(st.sampled_from(list(Outcome)))
    failed = outcome is Outcome.INFRASTRUCTURE_FAILURE
    count = draw(st.integers(1, 3))
    return Trajectory(
        task=draw(st.integers(0, 3)),
        role=draw(WORD),
        reward=NAN if failed else draw(st.floats(-2, 2)),
        outcome=outcome,
        segments=tuple(draw(segments(place, with_tokens)) for place in range(count)),
    )


@st.composite
def batches(draw):
    with_tokens = draw(st.booleans())
    return draw(st.lists(trajectories(with_tokens), min_size=1, max_size=6))


@settings(deadline=None, max_examples=40)
@given(batches(), st.randoms(use_true_random=False))
def test_flat_tables_hold_all_that_the_trees_hold(batch, random):
    record = Rollouts.from_trajectories(batch)
    trees = [record.trajectory(row) for row in range(len(record))]
    assert Rollouts.from_trajectories(trees) == record
    expected = sorted(batch, key=lambda each: (each.task, each.role))  # stable, as groups are
    assert [repr(dataclasses.replace(tree, segments=())) for tree in trees] == [
        repr(dataclasses.replace(tree, segments=())) for tree in expected
    ]
    assert [len(s.turns) for t in trees for s in t.segments] == [len(s.turns) for t in expected for s in t.segments]
    assert [s.parent for t in trees for s in t.segments] == [s.parent for t in expected for s in t.segments]
    # Whole groups in another order give the same record.
    keys = sorted({(each.task, each.role) for each in batch})
    random.shuffle(keys)
    regrouped = [each for key in keys for each in batch if (each.task, each.role) == key]
    assert Rollouts.from_trajectories(regrouped).digest() == record.digest()


@settings(deadline=None, max_examples=25)
@given(batches())
def test_a_record_survives_its_bytes(tmp_path_factory, batch):
    record = Rollouts.from_trajectories(batch)
    path = tmp_path_factory.mktemp("rollouts") / "rollouts.npz"
    record.save(path)
    assert Rollouts.load(path) == record
    assert Rollouts.load(path).to_bytes() == record.to_bytes()
    assert pickle.loads(pickle.dumps(record)).digest() == record.digest()


@settings(deadline=None, max_examples=30)
@given(batches())
def test_padding_keeps_the_turns_of_the_role_in_order(batch):
    record = Rollouts.from_trajectories(batch)
    for role in ("main", "searcher", None):
        padded = record.padded(role)
        row = 0
        for q, size in enumerate(np.diff(record.groups.offsets)):
            assert padded.present[q].sum() == size
            for g in range(size):
                tree = record.trajectory(row)
                expected = [t for s in tree.segments if role in (None, s.role) for t in s.turns]
                mask = padded.mask[q, g]
                assert padded.action[q, g][mask].tolist() == [t.action for t in expected]
                np.testing.assert_array_equal(padded.logp_reference[q, g][mask], [t.logp_reference for t in expected])
                row += 1
        assert np.all(padded.logp_behaviour[~padded.mask] == 0.0)
        assert np.all(padded.action[~padded.mask] == -1)
        if record.tokens is not None:
            tokens = record.padded_tokens(role)
            assert tokens.sampled.sum() == padded.generated.sum()
            for q, g in np.argwhere(padded.present):
                counts = np.bincount(tokens.turn[q, g][tokens.sampled[q, g]], minlength=padded.mask.shape[2])
                assert counts.tolist() == padded.generated[q, g].tolist()


@st.composite
def rectangles(draw):
    """Padded arrays as a simulator makes them, with ragged groups and episodes."""
    Q, G, K = (draw(st.integers(1, 3)) for _ in range(3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    present = np.arange(G) < rng.integers(1, G + 1, size=(Q, 1))
    mask = (np.arange(K) < rng.integers(0, K + 1, size=(Q, G, 1))) & present[..., None]
    solved = rng.random((Q, G)) < 0.5
    return Padded(
        action=rng.integers(0, 4, (Q, G, K)),
        mask=mask,
        reward=solved.astype(float),
        outcome=np.where(solved, Outcome.SOLVED, Outcome.WRONG),
        context=rng.integers(0, 9, (Q, G, K)),
        state_id=rng.integers(0, 9, (Q, G, K)),
        generated=rng.integers(1, 50, (Q, G, K)),
        observed=rng.integers(0, 50, (Q, G, K)),
        logp_behaviour=-rng.random((Q, G, K)),
        logp_proximal=-rng.random((Q, G, K)),
        logp_reference=-rng.random((Q, G, K)),
        present=present,
        task=rng.permutation(Q),
        version_oldest=np.full((Q, G), 2),
        version_newest=np.full((Q, G), 3),
    )


@settings(deadline=None, max_examples=40)
@given(rectangles())
def test_padding_and_its_inverse(padded):
    record = Rollouts.from_padded(padded)
    assert len(record) == padded.present.sum()
    assert len(record.turns) == padded.mask.sum()
    assert record.turns.generated.sum() == padded.generated[padded.mask].sum()
    again = record.padded()
    assert Rollouts.from_padded(again) == record
    K = again.mask.shape[2]
    np.testing.assert_array_equal(again.mask, padded.mask[:, : again.mask.shape[1], :K])
    for name in ("action", "context", "logp_behaviour", "observed"):
        values = getattr(padded, name)[padded.mask]
        np.testing.assert_array_equal(getattr(again, name)[again.mask], values)


# --- cases worked by hand ---------------------------------------------------------------------------------------------


def test_the_padded_view_of_the_small_record(small):
    padded = small().padded()
    assert padded.mask.tolist() == [
        [[True, True, True], [True, True, False]],
        [[False, False, False], [False, False, False]],
    ]
    assert padded.present.tolist() == [[True, True], [True, False]]
    assert padded.action.tolist()[0] == [[0, 0, 1], [0, 1, -1]]
    assert padded.generated[0].tolist() == [[10, 20, 5], [30, 40, 0]]
    assert padded.logp_behaviour[0].tolist() == [[-0.1, -0.2, -0.3], [-0.4, -0.5, 0.0]]
    np.testing.assert_array_equal(padded.reward, [[1.0, 0.0], [NAN, NAN]])
    assert padded.version_oldest.tolist() == [[3, 3], [-1, -1]]
    assert padded.version_newest.tolist() == [[5, 3], [-1, -1]]
    assert padded.task.tolist() == [7, 3]


def test_a_sub_agent_does_not_enter_the_main_view():
    main = Segment((Turn(0, 0), Turn(1, 1)))
    helper = Segment((Turn(2, 2), Turn(3, 3)), parent=0, role="searcher")
    back = Segment((Turn(1, 4),), parent=0, reason=Reason.RESUME)
    record = Rollouts.from_trajectories([Trajectory("q", (main, helper, back), 1.0, Outcome.SOLVED)])
    assert record.padded().action.tolist() == [[[0, 1, 1]]]
    assert record.padded().index.tolist() == [[[0, 1, 4]]]
    assert record.padded("searcher").action.tolist() == [[[2, 3]]]
    assert record.padded(None).action.tolist() == [[[0, 1, 2, 3, 1]]]


def test_the_mask_is_on_exactly_what_was_sampled(prompted):
    # Known fault: training on observations, or on nothing else. Prompt 2, action 3, observation 4, action 2.
    # Mutations that fail here: the mask inverted (6), observations counted as sampled (9), the prompt included (7).
    record = Rollouts.from_trajectories([prompted()])
    tokens = record.padded_tokens()
    assert tokens.train.sum() == 5
    assert tokens.train[0, 0].tolist() == [False] * 2 + [True] * 3 + [False] * 4 + [True] * 2
    assert tokens.turn[0, 0].tolist() == [0] * 9 + [1] * 2
    assert tokens.mask.sum() == 11
    with pytest.raises(RecordError, match=r"tokens.train\[0\] = True: must be False where nothing was sampled"):
        dataclasses.replace(record, tokens=dataclasses.replace(record.tokens, train=~record.tokens.sampled))


def test_groups_are_by_task_and_role_and_never_by_trajectory():
    # Known fault: the group's key is the trajectory's own id, so that each baseline is the reward itself.
    # Mutations that fail here: a key with the row in it gives groups of one, advantages all 0; grouping by neighbours
    # only (itertools.groupby without sorting) gives more groups after shuffling.
    rewards, tasks = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0], ["a", "a", "a", "a", "b", "b"]
    for order in ([0, 1, 2, 3, 4, 5], [4, 0, 3, 5, 2, 1]):
        batch = [
            Trajectory(tasks[row], (Segment((Turn(row, 0),)),), rewards[row], Outcome(1 - int(rewards[row])))
            for row in order
        ]
        record = Rollouts.from_trajectories(batch)
        assert record.groups.task.tolist() == ["a", "b"]
        assert np.diff(record.groups.offsets).tolist() == [4, 2]
        padded = record.padded()
        advantage = padded.reward - np.nanmean(padded.reward, axis=1, keepdims=True)
        by_row = dict(zip(padded.action[..., 0].ravel().tolist(), advantage.ravel().tolist(), strict=True))
        assert [by_row[row] for row in range(6)] == [0.5, -0.5, 0.5, -0.5, 0.0, 0.0]


def test_taking_a_sample_keeps_trees_and_baselines(small):
    record = small()
    part = record.take([2, 0])
    assert part.groups.task.tolist() == [3, 7]
    np.testing.assert_array_equal(part.groups.baseline, [NAN, 0.5])
    assert repr(part.trajectory(1)) == repr(record.trajectory(0))
    assert len(part.pauses) == 2
