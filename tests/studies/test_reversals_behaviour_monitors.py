"""Each verdict of the study of monitors at the parameter it names as the one that reverses it."""

import numpy as np
import pytest

from sim.learning.loop import train
from sim.mdp.exact import return_function
from sim.records.config import replace
from studies import study_behaviour_monitors as study
from studies import study_gradient_flow

SEEDS = 32


def run(**change):
    changed = {name.replace("__", "."): value for name, value in change.items()}
    return train(replace(study.config(), changed), tuple(range(SEEDS)), study="reversals")


def auroc(runs, signal, ahead=study.AHEAD):
    read = study.SIGNALS[signal] if isinstance(signal, str) else signal
    return study.aurocs(study.smooth(read(runs)), study.onsets(runs), np.zeros((0, SEEDS)), ahead)[0]


@pytest.fixture(scope="module")
def noisy():
    return run()


def test_clips_count_guesses_once_every_step_is_large(noisy):
    large = run(optimiser__b1=0.0)
    assert auroc(noisy, study.GUESS) - auroc(noisy, study.CLIP) > 0.1
    assert abs(auroc(large, study.GUESS) - auroc(large, study.CLIP)) < 0.05


def test_the_token_ratio_tells_once_there_is_no_content(noisy):
    bare = train(replace(study.config(), {"content.tokens": 0, "steps": 50}), (0, 1), study="reversals")
    np.testing.assert_array_equal(study.SIGNALS[study.DISTANCE](bare), study.SIGNALS[study.DECISIONS](noisy)[:2, :50])
    assert auroc(noisy, study.GUESS) - auroc(noisy, study.DISTANCE) > 0.1
    assert auroc(noisy, study.DECISIONS) > auroc(noisy, study.GUESS) - 0.05


def test_the_return_tells_where_no_rollout_is_sampled(noisy):
    """Reward of ever more rollouts becomes the exact return of the policy."""
    graph = noisy.config.graph()
    returns = return_function(graph)
    exact = auroc(noisy, lambda r: -returns(study_gradient_flow.logits(r, graph)))
    assert auroc(noisy, study.GUESS) - auroc(noisy, study.REWARD) > 0.1
    assert exact > auroc(noisy, study.GUESS) - 0.1


def test_aurocs_by_hand():
    """Onsets at 60 and 80, too near each other to be compared: the first against a lower signal and a tie, the second
    against two ties."""
    onset = np.array([60.0, 80.0, np.nan, np.nan])
    signal = np.zeros((4, 200))
    signal[:, 40] = [2.0, 9.0, 1.0, 2.0]
    weights = np.array([[1.0, 0, 1, 0], [1.0, 0, 0, 2], [3.0, 0, 1, 1]])
    assert study.aurocs(signal, onset, weights).tolist() == [0.625, 1, 0.5, 0.75]


def test_smoothing_by_hand():
    found = study.smooth(np.arange(8.0)[None])
    assert np.isnan(found[0, :4]).all()
    assert found[0, 4:].tolist() == [2, 3, 4, 5]
