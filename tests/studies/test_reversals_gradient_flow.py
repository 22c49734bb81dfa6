"""Each verdict of the study of gradient flow at the parameter it names as the one that reverses it."""

import numpy as np
import pytest

from sim.learning.loop import train
from sim.learning.presets import length_window
from sim.mdp.exact import policy_gradient, return_function
from studies import study_gradient_flow as study
from studies.kit.slopes import power


@pytest.fixture(scope="module")
def graph():
    return length_window().graph()


@pytest.fixture(scope="module")
def fell(graph):
    """Drawdown by arm and rate, {arm: {rate: [seeds]}}, at the two ends."""
    returns = return_function(graph)

    def of(config, rate):
        runs = train(study.at_rate(config, rate), tuple(range(8)), study="reversals")
        return study.drawdown(returns(study.logits(runs, graph)))

    fields = study.fields()
    return {
        name: {rate: of(fields[name][0], rate) for rate in study.ENDS}
        for name in (study.COUPLED, study.TABULAR, study.LENGTH)
    }


def test_only_the_gradient_field_never_lowers_the_return(graph):
    returns = return_function(graph)
    P, z = study.coupling(0)
    rising = returns(study.flow(graph, P, z, policy_gradient))
    assert study.drawdown(rising) <= 1e-9
    assert rising[-1] > rising[0] + 0.005
    assert study.drawdown(returns(study.flow(graph, np.eye(3), study.start(), study.weighted, step=48.0))) > 0.005


def test_a_coupling_that_is_not_positive_lowers_it(graph):
    P, z = study.coupling(0)
    assert study.drawdown(return_function(graph)(study.flow(graph, -P, z, policy_gradient))) > 0.01


def test_the_drawdown_vanishes_with_the_rate_unless_the_loss_is_length_weighted(fell):
    assert power(fell[study.COUPLED]).mean() > 0.5
    assert power(fell[study.LENGTH]).mean() < 0.4


def test_at_the_smallest_rate_only_the_length_weighted_loss_loses_a_point(fell):
    assert np.median(fell[study.LENGTH][study.ENDS[0]]) > 0.01
    assert np.median(fell[study.TABULAR][study.ENDS[0]]) < 0.002


def test_drawdown_by_hand():
    assert study.drawdown(np.array([[0.0, 3.0, 1.0, 2.0, 5.0, 4.5], [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]])).tolist() == [2, 0]
