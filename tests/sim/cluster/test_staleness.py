"""Versions by chunk and lags by what is known of them: known faults F22 and F23, and the two ways to count a lag."""

import math

import numpy as np
import pytest
from hypothesis import given

from sim.cluster.conservation import violations
from sim.cluster.events import EventLog, Kind
from sim.cluster.staleness import (
    chunks,
    lag_sums,
    published_at,
    staleness_at_generation,
    staleness_at_use,
    token_versions,
    versions_at,
)
from tests.sim.cluster.legal_logs import LEGAL_LOGS, story


def one_turn(pieces, take=None, first=3):
    """A trajectory whose one turn is written in pieces (version, tokens), on an engine that loads each version in time.

    Versions up to `first` are there before it starts, `take` is the learner's when its group is taken.
    """
    rows, t, published = [], 0.0, 0

    def log(kind, entity=-1, traj=-1, turn=-1, version=-1, value=0.0):
        rows.append((t, kind, entity, traj, turn, version, float(value)))

    def publish(version):
        nonlocal published
        for v in range(published + 1, version + 1):
            log(Kind.VERSION, version=v)
        published = max(published, version)

    def load(version):
        log(Kind.SYNC_START, 0, version=version)
        log(Kind.SYNC_END, 0, version=version)

    publish(first)
    log(Kind.GROUP_ADMIT, 0, turn=0, version=first)
    log(Kind.TRAJ_START, 0, 0, 0, first)
    for i, (version, tokens) in enumerate(pieces):
        publish(version)
        load(version)
        log(Kind.GEN_START, 0, 0, 0, version)
        t += 1.0
        log(Kind.GEN_END if i == len(pieces) - 1 else Kind.GEN_PAUSE, 0, 0, 0, version, tokens)
    log(Kind.TRAJ_END, 0, 0, 1, published, 1.0)
    log(Kind.GROUP_READY, 0, version=published, value=1)
    if take is not None:
        publish(take)
        log(Kind.TRAIN_TAKE, 0, turn=0, version=take, value=take)
    made = EventLog.of(rows)
    assert violations(made) == []
    return made


# --- worked by hand ---------------------------------------------------------------------------------------------------


def test_f22_tokens_have_the_version_that_wrote_them():
    """A request starts at version 3, version 4 is published in the middle: five tokens before, five after."""
    each = chunks(one_turn([(3, 5), (4, 5)]))
    assert np.repeat(each.version, each.tokens.astype(int)).tolist() == [3] * 5 + [4] * 5
    assert each.turn.tolist() == [0, 0]
    assert each.published.tolist() == [3, 4]


def test_f23_lags_count_every_version_not_the_last():
    """10 tokens of version 3, 30 of 4, 60 of 5, a learner at 6: (10 * 3 + 30 * 2 + 60 * 1) / 100 = 1.5."""
    lags = staleness_at_use(one_turn([(3, 10), (4, 30), (5, 60)], take=6))
    assert (lags.traj.tolist(), lags.oldest.tolist(), lags.newest.tolist()) == ([0], [3.0], [1.0])
    assert lags.token_mean.tolist() == [1.5]
    assert lags.coverage.tolist() == [1.0]


def test_f23_a_version_nobody_noted_is_no_lag_of_zero():
    log = one_turn([(3, 10), (4, 30), (5, 60)], take=6)
    log.version[(log.version == 4) & np.isin(log.kind, (Kind.GEN_START, Kind.GEN_PAUSE))] = -1
    lags = staleness_at_use(log)
    assert lags.coverage.tolist() == [0.7]
    assert lags.token_mean.tolist() == [pytest.approx((10 * 3 + 60 * 1) / 70)]
    log.version[np.isin(log.kind, (Kind.GEN_START, Kind.GEN_PAUSE, Kind.GEN_END))] = -1
    lags = staleness_at_use(log)
    assert lags.coverage.tolist() == [0.0]
    assert all(math.isnan(x[0]) for x in (lags.oldest, lags.newest, lags.token_mean))


def test_a_chunk_without_tokens_wrote_nothing():
    versions = token_versions(one_turn([(3, 0), (5, 20)]))
    assert (versions.oldest.tolist(), versions.token_mean.tolist()) == ([5.0], [5.0])


def test_the_story():
    """Trajectory 2 wrote 15 tokens under version 0 and 45 under 1; 3 lost its tokens; group 0 waited for one version."""
    versions = token_versions(story())
    assert versions.traj.tolist() == [0, 1, 2, 3]
    assert versions.oldest.tolist()[:3] == [0.0, 0.0, 0.0]
    assert versions.newest.tolist()[:3] == [0.0, 0.0, 1.0]
    assert versions.token_mean.tolist()[:3] == [0.0, 0.0, 0.75]
    assert math.isnan(versions.token_mean[3])
    assert math.isnan(versions.coverage[3])
    lags = staleness_at_use(story())
    assert (lags.traj.tolist(), lags.oldest.tolist(), lags.token_mean.tolist()) == ([0, 1], [1.0, 1.0], [1.0, 1.0])
    assert lag_sums(story()) == (2, 2)
    assert published_at(story(), np.array([0, 24, 25, 36, 37])).tolist() == [0, 0, 1, 1, 2]
    made, published = versions_at(story())
    assert (made.tolist(), published.tolist()) == ([24, 35], [24, 36])


def test_staleness_at_generation_is_by_turn_and_weighs_tokens():
    """Version 1 is published at once, and loaded only before turn 1; in turn 0, 30 of 40 tokens come after it."""
    rows = [
        (0.0, Kind.GROUP_ADMIT, 0, -1, 0, 0, 0.0),
        (0.0, Kind.TRAJ_START, 0, 0, 0, 0, 0.0),
        (0.0, Kind.GEN_START, 0, 0, 0, 0, 0.0),
        (1.0, Kind.GEN_PREEMPT, 0, 0, 0, 0, 10.0),
        (1.0, Kind.VERSION, -1, -1, -1, 1, 0.0),
        (1.0, Kind.GEN_START, 0, 0, 0, 0, 10.0),
        (2.0, Kind.GEN_END, 0, 0, 0, 0, 30.0),
        (2.0, Kind.SYNC_START, 0, -1, -1, 1, 0.0),
        (2.0, Kind.SYNC_END, 0, -1, -1, 1, 0.0),
        (2.0, Kind.GEN_START, 0, 0, 1, 1, 40.0),
        (3.0, Kind.GEN_END, 0, 0, 1, 1, 5.0),
    ]
    assert violations(EventLog.of(rows)) == []
    assert staleness_at_generation(EventLog.of(rows)).tolist() == [0.75, 0.0]
    assert staleness_at_generation(EventLog.of(rows[:2])).tolist() == []


def test_a_learner_ahead_of_what_is_published_counts_from_when_a_version_was_made():
    """It takes group 0 with version 1, which the engines only get afterwards; group 1 then starts under version 1."""
    rows = []
    for t, (group, start) in enumerate([(0, 0), (1, 1)]):
        rows += [
            (10.0 * t, Kind.GROUP_ADMIT, group, -1, 0, start, 0.0),
            (10.0 * t, Kind.TRAJ_START, group, group, 0, start, 0.0),
            (10.0 * t + 1, Kind.TRAJ_END, group, group, 0, start, 1.0),
            (10.0 * t + 1, Kind.GROUP_READY, group, -1, -1, start, 1.0),
            (10.0 * t + 2, Kind.TRAIN_START, t, -1, 0, t, 9.0),
            (10.0 * t + 3, Kind.TRAIN_END, t, -1, 0, t, 0.0),
            (10.0 * t + 3, Kind.TRAIN_TAKE, group, -1, 0, t + 1, t + 1.0),
            (10.0 * t + 4, Kind.VERSION, -1, -1, -1, t + 1, 0.0),
        ]
    assert violations(EventLog.of(rows)) == []
    assert lag_sums(EventLog.of(rows)) == (2, 2)
    assert lag_sums(EventLog.of(rows[:-1])) == (2, 2)  # version 2 is made, and never published


# --- properties -------------------------------------------------------------------------------------------------------


@given(log=LEGAL_LOGS)
def test_lags_are_ordered_and_at_least_zero(log):
    lags = staleness_at_use(log)
    written = lags.coverage > 0
    assert np.all(lags.newest[written] >= 0)
    assert np.all(lags.newest[written] <= lags.token_mean[written])
    assert np.all(lags.token_mean[written] <= lags.oldest[written])
    assert np.all(lags.coverage[written] == 1)


# --- agreement --------------------------------------------------------------------------------------------------------


@given(log=LEGAL_LOGS)
def test_versions_agree_with_labels_token_by_token(log):
    labels = {}
    for event in log:
        if event.kind == Kind.TRAJ_START:
            labels[event.traj] = []
        elif event.kind in (Kind.GEN_END, Kind.GEN_PAUSE, Kind.GEN_PREEMPT):
            labels[event.traj] += [event.version] * int(event.value)
    versions = token_versions(log)
    assert versions.traj.tolist() == sorted(labels)
    for i, traj in enumerate(versions.traj.tolist()):
        found = (versions.oldest[i], versions.newest[i], versions.token_mean[i])
        if labels[traj]:
            assert found == pytest.approx((min(labels[traj]), max(labels[traj]), np.mean(labels[traj])))
        else:
            assert np.isnan(found).all()


@given(log=LEGAL_LOGS)
def test_the_right_side_of_the_identity_counts_event_by_event(log):
    """Little's law on one path, with a plain loop: at each publication, those started and not yet taken, if ever taken."""
    groups = {event.entity for event in log if event.kind == Kind.TRAIN_TAKE}
    held, counted = {}, 0
    for event in log:
        if event.kind == Kind.TRAJ_START and event.entity in groups:
            held[event.traj] = event.entity
        elif event.kind == Kind.TRAIN_TAKE:
            held = {traj: group for traj, group in held.items() if group != event.entity}
        elif event.kind == Kind.VERSION:
            counted += len(held)
    assert lag_sums(log) == (counted, counted)
