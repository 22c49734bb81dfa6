"""One record: what the loop computes on is what is kept."""

from dataclasses import replace

import numpy as np
import pytest

from sim.learning.loop import train
from sim.learning.presets import null
from sim.learning.rule import Batch, Rule
from sim.learning.weights import ppo_clip
from sim.mdp.worlds import PRESETS
from sim.records.config import ConfigError
from sim.records.nested import describe
from sim.records.tables import Outcome


@pytest.fixture(scope="module")
def kept():
    config = replace(null(), steps=4, prompts=16, lag=2, keep_rollouts=3)
    return config, train(config, (0, 5), study="record")


def test_the_record_tells_what_the_columns_tell(kept):
    config, runs = kept
    graph = config.graph()
    for row, seed in enumerate((0, 5)):
        view = runs.rollouts[seed].padded()
        assert view.mask.shape == (16, 8, 4)
        assert view.reward.mean() == runs["train/reward"][row, 3] > 0
        search = graph.actions.index("search")
        for t in range(4):
            share = (view.mask[..., t] & (view.action[..., t] == search)).mean()
            assert share == runs[f"behaviour/search_share/turn{t}"][row, 3]
        assert view.mask.sum() / 128 == runs["train/turns"][row, 3]
        assert ((view.outcome == Outcome.SOLVED) == (view.reward == 1)).all()
        assert (view.outcome[view.reward == 0] == Outcome.TURN_LIMIT).all()


def test_a_rule_computes_the_same_on_the_record(kept):
    _, runs = kept
    view = runs.rollouts[5].padded()
    rule = Rule(weight=ppo_clip())
    prepared = rule.prepare(Batch(view.reward, view.mask, view.logp_behaviour))
    g = rule.coefficients(prepared, view.logp_proximal).scalars["logp"]
    assert (g[~view.mask] == 0).all()
    assert np.abs(g).sum() > 0
    # by hand for one rollout of a group that is not degenerate
    q = int(np.flatnonzero(np.ptp(view.reward, axis=1) > 0)[0])
    r = view.reward[q]
    advantage = (r - r.mean()) / r.std(ddof=1)
    ratio = np.exp(view.logp_proximal[q, 0, 0] - view.logp_behaviour[q, 0, 0])
    clipped = (advantage[0] > 0 and ratio > 1.2) or (advantage[0] < 0 and ratio < 0.8)
    assert g[q, 0, 0] == pytest.approx(0.0 if clipped else ratio * advantage[0] / 128, rel=1e-12)


def test_versions_and_log_probs_know_the_lag(kept):
    _, runs = kept
    view = runs.rollouts[0].padded()
    assert (view.version_oldest == 1).all()  # step 3, two behind
    assert not np.array_equal(view.logp_behaviour, view.logp_proximal)


def test_observed_tokens_are_those_of_what_came_back():
    config = replace(null(), world=PRESETS["seed-a"](), steps=1, prompts=8, keep_rollouts=0)
    runs = train(config, (0,), study="record")
    view, graph = runs.rollouts[0].padded(), config.graph()
    search = graph.actions.index("search")
    assert (view.observed[view.mask & (view.action == search)] == 500).all()
    assert (view.observed[view.mask & (view.action != search)] == 4).all()
    assert (view.observed[~view.mask] == 0).all()


def test_a_kept_rollout_can_be_read(kept):
    config, runs = kept
    graph = config.graph()
    text = describe(runs.rollouts[0], 0, action=graph.actions.__getitem__, context=graph.contexts.__getitem__)
    assert "context start" in text
    assert "search" in text


def test_keeping_changes_nothing_else_and_a_step_beyond_the_run_is_refused(kept):
    config, runs = kept
    plain = train(replace(config, keep_rollouts=None), (0, 5), study="record")
    assert all(np.array_equal(plain[name], runs[name], equal_nan=True) for name in plain.names)
    with pytest.raises(ConfigError, match="keep_rollouts = 4 must be a step of the run, 0 to 3"):
        replace(config, keep_rollouts=4)
