"""Runs whose mechanism is known: the true one stands first, and intervals hold."""

from collections import Counter

import numpy as np
import pytest

from studies.kit.fitting.rank import rank
from studies.kit.fitting.trials import HORIZON, TRUE, Outcome, carry_out, confusion, coverage, quiet, trials
from studies.kit.fitting.words import world_words


def outcome(truth, first, inside):
    return Outcome(truth, 0, 30, (first,), (first,), first, True, 0.0, {0.5: inside, 0.9: 10}, {0.5: inside, 0.9: 10})


def test_confusion_and_coverage_by_hand():
    found = [outcome("push", "push", 4), outcome("push", "noise", 8), outcome("noise", "noise", 6)]
    table = confusion(found)
    assert table["push"] == {**dict.fromkeys(TRUE, 0), "push": 1, "noise": 1}
    assert table["noise"]["noise"] == 1
    share, error = coverage(found, 0.5)
    assert share == pytest.approx(0.6)
    assert error == pytest.approx(np.std([0.4, 0.8, 0.6], ddof=1) / np.sqrt(3))


@pytest.mark.parametrize("truth", TRUE)
def test_a_trial_ends_on_its_way(truth):
    found = trials(truth, 3, prompts=32, study="test/trials")
    assert len(found) == 3
    assert len({trial.seed for trial in found}) == 3
    for trial in found:
        assert trial.came.steps.tolist() == list(trial.seen.steps[-1] + 1 + np.arange(HORIZON))
        share = trial.seen.unsearched / 256
        assert 0.05 < share[-1] < 0.75
        assert abs(share[-1] - share[0]) > 0.03


def test_the_true_mechanism_stands_first():
    """One run of each: four of five right by chance less often than once in a hundred."""
    found = [carry_out(trial) for truth in TRUE for trial in trials(truth, 1, first=100, study="test/first")]
    right = sum(o.order[0] == o.truth for o in found)
    assert right >= 4, Counter((o.truth, o.order[0]) for o in found)
    assert coverage(found, 0.9)[0] > 0.6


def test_a_run_in_which_nothing_happens_says_nothing_for_one_rival():
    for seen in quiet(2, first=7, study="test/quiet"):
        found = rank(seen)
        assert seen.unsearched.max() < 60
        assert len(found.tied) > 1 or not found.informative
        assert any("what a guess earns is hardly seen" in line for line in world_words(found))


@pytest.mark.long
@pytest.mark.parametrize("prompts", [128, 32])
def test_twenty_runs_of_each(prompts):
    """The true mechanism stands first in most, and the forecast covers what it says within three errors."""
    found = [
        carry_out(t) for truth in TRUE for t in trials(truth, 20, first=5000, prompts=prompts, study="test/twenty")
    ]
    right = sum(o.order[0] == o.truth for o in found)
    assert right >= 0.75 * len(found)
    for nominal in (0.5, 0.9):
        share, error = coverage(found, nominal)
        assert share > nominal - 0.08 - 3 * error
