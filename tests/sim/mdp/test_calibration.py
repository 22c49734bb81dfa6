"""The fit of one world and two policies to a table."""

from dataclasses import replace

import numpy as np
import pytest

from sim.mdp.calibration import FREE, POLICY, fit, model_table, simulate
from sim.mdp.exact import expected_return
from sim.mdp.policy import free_logits, tables
from sim.mdp.published import SEED_A
from sim.mdp.worlds import seed_a

COARSE = replace(seed_a(), unknown_kinds=3)


@pytest.fixture(scope="module")
def best():
    return fit(SEED_A, starts=3)


def test_one_world_and_two_policies_fit_within_a_point_and_a_half(best):
    assert best.max_residual_points <= 1.5
    assert best.parameters == 12
    assert best.agreeing == best.starts == 3
    # what the hazards say without any model
    np.testing.assert_allclose(1 - best.policies[:, 0], [0.984, 0.323], atol=0.01)


def test_one_policy_for_both_columns_fails():
    assert fit(SEED_A, one_policy=True, starts=2).max_residual_points > 10


def test_the_fit_returns_an_exact_table_to_the_world_that_made_it(best):
    again = fit(best.model, near=best)
    assert again.rms_points < 1e-3
    again = fit(best.model, starts=2)  # and from elsewhere
    assert again.rms_points < 0.01
    assert again.first_answer_accuracy == pytest.approx(best.first_answer_accuracy, abs=1e-3)
    np.testing.assert_allclose(again.policies[:, 0], best.policies[:, 0], atol=1e-3)


def test_three_quadrature_points_are_as_good_as_nine():
    logits = np.array([[-4.0, 4.0, -4.0], [0.7, 4.0, -2.5]])
    coarse = model_table(COARSE, logits, SEED_A.checkpoints, COARSE)
    fine = model_table(seed_a(), logits, SEED_A.checkpoints, seed_a())
    np.testing.assert_allclose(coarse.stacked(), fine.stacked(), atol=1e-12)
    one = replace(seed_a(), unknown_kinds=1)
    assert np.abs(model_table(one, logits, SEED_A.checkpoints, one).stacked() - fine.stacked()).max() > 0.01


def test_the_last_accuracy_is_the_exact_return(best):
    graph = best.world.graph().compiled()
    for row, logits in enumerate(best.logits):
        z = free_logits(graph, zip(POLICY, logits, strict=True))
        assert best.model.accuracy[row, -1] == pytest.approx(expected_return(graph, tables(graph, z)), abs=1e-12)


def test_simulated_tables_scatter_about_the_model(best):
    drawn = np.array([t.stacked() for t in simulate(best, tuple(range(40)), stream="test")])
    spread = drawn.std(0, ddof=1) / np.sqrt(len(drawn))
    away = (drawn.mean(0) - best.model.stacked()) / np.maximum(spread, 1e-4)
    assert (spread > 0).sum() >= 15
    assert (away**2).mean() < 2.5  # mean square of standard normals; 16 correlated entries


def test_holding_a_quantity_holds_it_and_an_unknown_one_is_refused():
    held = fit(SEED_A, fixed={"hit_known": 0.3}, starts=1)
    assert held.world.hit_known == 0.3
    assert held.parameters == 11
    with pytest.raises(ValueError, match=f"'hit' is not fitted here.*{FREE[0]}"):
        fit(SEED_A, fixed={"hit": 0.3})
