"""Each preset builds, is written and read back, runs, and does what its name says."""

from functools import cache

import numpy as np
import pytest

from sim.cluster.events import Kind
from sim.cluster.measures import group_lag, step_columns, trained
from sim.cluster.presets import PRESETS, areal, base, forge, prime_rl, split, verl_async
from sim.cluster.run import simulate
from sim.cluster.scheduling import fifo
from sim.cluster.spec import Cluster
from sim.cluster.theory.lag import windowed_lag
from sim.records.config import canonical_json, difference, from_dict, replace, to_dict

VERSIONS = 4


@cache
def run(name):
    return smaller(PRESETS[name]())


def smaller(cluster, **changes):
    """Four versions of a quarter of the batch."""
    return simulate(
        replace(cluster, {"steps": VERSIONS, "learner.batch": 64} | changes), 1, engine="simpy", record=True
    )


def lag(name):
    return step_columns(run(name))["lag_start"].tolist()


# --- all of them ------------------------------------------------------------------------------------------------------


def test_there_are_ten_and_no_two_are_the_same():
    assert len(PRESETS) == 10
    assert len({canonical_json(preset()) for preset in PRESETS.values()}) == 10


@pytest.mark.parametrize("name", PRESETS)
def test_what_is_written_is_read_back(name):
    cluster = PRESETS[name]()
    assert isinstance(cluster, Cluster)
    assert from_dict(to_dict(cluster)) == cluster


@pytest.mark.parametrize("name", PRESETS)
def test_it_makes_its_versions(name):
    found = run(name)
    columns = step_columns(found)
    assert np.isfinite(columns["time_s"]).all()
    assert (np.diff(columns["time_s"]) > 0).all()
    assert (columns["tokens"] > 1000).all()
    if name != "kimi-partial":
        assert columns["rollouts"].tolist() == [64] * VERSIONS


@pytest.mark.parametrize("name", PRESETS)
def test_all_play_the_same_prompts_on_the_same_devices(name):
    changed = {path.split(".")[0] for path in difference(base(), PRESETS[name]())}
    assert changed <= {"admission", "order", "drop", "learner", "engines", "sync"}
    cluster = PRESETS[name]()
    generate = cluster.engines.count
    assert generate == (16 if cluster.learner.colocated else 8)
    share = 1.0 if cluster.learner.colocated else 0.5
    assert cluster.learner.per_token_s == pytest.approx(base().learner.per_token_s / share)


# --- each by itself ---------------------------------------------------------------------------------------------------


def test_synchronous_is_never_stale():
    assert lag("synchronous") == [0] * VERSIONS
    assert step_columns(run("synchronous"))["off_policy_tokens"].tolist() == [0] * VERSIONS


def test_one_step_off_is_one_version_stale():
    assert lag("one-step-off") == [0, 1, 1, 1]


def test_the_capacity_rule_of_areal_holds_at_every_version():
    """Four batches ahead at most; by order of completion a rollout may be older than that, in order of start it may not."""
    log = run("areal").log
    started = np.cumsum(log.kind == Kind.TRAJ_START)
    for version in range(VERSIONS):
        during = (log.kind == Kind.TRAJ_START) & (log.version == version)
        assert started[during].max() == (4 + version + 1) * 64
    ordered = smaller(replace(areal(eta=1), {"order": fifo()}))
    assert step_columns(ordered)["lag_start"].tolist() == [0, 1, 1, 1]


def test_verl_may_be_half_a_batch_ahead_and_takes_four_parts():
    log = run("verl-async").log
    assert np.sum((log.kind == Kind.TRAJ_START) & (log.version == 0)) == 96
    parts = log.turn[log.kind == Kind.TRAIN_TAKE]
    assert np.bincount(parts).tolist() == [2 * VERSIONS] * 4
    assert verl_async(staleness=0.1).admission.eta == 0.1


def test_pipeline_rl_never_stops_an_engine():
    """Every piece that a swap ends is followed by another of the same rollout at the same instant."""
    log = run("pipeline-rl").log
    paused = log.of_kind(Kind.GEN_PAUSE)
    assert len(paused) > 50
    for row in paused.tolist():
        same = np.flatnonzero((log.traj == log.traj[row]) & (np.arange(len(log)) > row))[0]
        assert (log.kind[same], log.t_s[same]) == (Kind.GEN_START, log.t_s[row])
        assert log.version[same] == log.version[row] + 1


def test_an_engine_that_pulls_writes_each_turn_under_one_version():
    log = run("per-engine-pull").log
    assert len(log.of_kind(Kind.GEN_PAUSE)) == 0
    loads = log.of_kind(Kind.SYNC_END)
    assert len(np.unique(log.entity[loads])) == 8
    assert len(np.unique(log.t_s[loads[log.version[loads] == 1]])) > 1  # not all at once


def test_kimi_trains_on_what_is_complete_and_goes_on_with_the_rest():
    found = run("kimi-partial")
    r = found.books.rollouts
    mine = trained(found)
    assert len(np.unique(step_columns(found)["rollouts"])) > 1
    assert (r.newest[mine] > r.oldest[mine]).any()
    assert found.books.groups.dropped.sum() == 0


def test_april_resumes_what_is_late():
    found = run("april")
    log, groups = found.log, found.books.groups
    held, resumed = log.entity[log.kind == Kind.GROUP_HOLD], log.entity[log.kind == Kind.GROUP_RESUME]
    assert len(held) >= len(resumed) > 0
    assert groups.taken[resumed].any()
    assert not groups.dropped.any()
    assert np.sum((log.kind == Kind.GROUP_ADMIT) & (log.version == 0)) == 12  # half as many again as the 8 needed


def test_forge_bounds_the_lag_in_groups():
    cluster = forge(width=128)
    assert cluster.order.window == 5  # .3 of 16 groups
    found = group_lag(smaller(cluster))
    assert 8 < found.max() <= windowed_lag(16, 5)
    assert forge().order.window == 19


def test_prime_rl_drops_what_is_older_than_its_bound():
    """Counted when weights are published: when they are taken the learner may be one version further."""
    found = smaller(prime_rl(bound=1), steps=6)
    assert step_columns(found)["lag_max"].max() <= 2
    assert found.books.groups.dropped.any()
    assert np.isin(Kind.CONTROL, found.log.kind)


def test_a_split_keeps_the_work_and_shares_the_devices():
    quarter = split(base(), 0.75)
    assert quarter.engines.count == 12
    assert quarter.learner.per_token_s == pytest.approx(4 * base().learner.per_token_s)
    assert split(base(2), 0.99).engines.count == 1
