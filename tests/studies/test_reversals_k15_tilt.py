"""The verdicts of the K1.5 study at the parameters it names as those that reverse them."""

import numpy as np
import pytest

from studies import study_k15_tilt as study

SEEDS = tuple(range(6))
SHIPPED, DERIVED = study.RULES["shipped"], study.RULES["derived"]


@pytest.mark.parametrize(("tau", "first", "derived"), [(0.2, 0.114, 0.013), (1.0, 0.416, 0.396)])
def test_the_closed_form_tells_shipped_from_derived_except_at_large_tau(tau, first, derived):
    shipped = study.fixed_point(study.advantages("mean", tau, None), tau)
    assert shipped[0] == pytest.approx(first, abs=0.001)
    assert study.tilt(tau)[0] == pytest.approx(derived, abs=0.001)
    np.testing.assert_allclose(
        study.fixed_point(study.advantages("log-partition", tau, None), tau), study.tilt(tau), atol=1e-9
    )
    large = study.fixed_point(study.advantages("mean", 5.0, None), 5.0)
    assert abs(large[0] - study.tilt(5.0)[0]) < 0.001 < abs(shipped[0] - study.tilt(tau)[0])


def test_the_closed_form_is_stationary():
    for baseline, tau, group in (("mean", 0.2, 8), ("mean", 1.0, None), ("log-partition", 0.2, 8)):
        a = study.advantages(baseline, tau, group)
        pi = study.fixed_point(a, tau)
        u = study.PRIOR * (a - tau * np.log(pi / study.PRIOR))
        np.testing.assert_allclose(u - pi * u.sum(), 0, atol=1e-9)
        assert pi.sum() == pytest.approx(1)
        assert np.abs(u).max() > 1e-3


def test_the_log_partition_takes_the_idle_arm_down_and_large_tau_makes_them_agree():
    assert np.median(study.bandit_share(SEEDS, "reversals", SHIPPED, 0.2)) > 0.1
    assert np.median(study.bandit_share(SEEDS, "reversals", DERIVED, 0.2)) < 0.03
    for rule in (SHIPPED, DERIVED):
        assert np.median(study.bandit_share(SEEDS, "reversals", rule, 5.0)) == pytest.approx(
            study.tilt(5.0)[0], abs=0.02
        )


def test_at_large_tau_both_keep_the_same_guessing():
    kept = [study.guess_share(SEEDS, "reversals", rule, 5.0) for rule in (SHIPPED, DERIVED)]
    assert np.abs(kept[0] - kept[1]).max() < 0.01
    assert np.median(kept[0]) < 0.497  # it moved, from one half


def test_without_chance_the_derived_baseline_is_the_nearer_one():
    tilt = study.tilt(0.2)[0]  # on the bandit the optimum of E r - tau KL
    off = [np.abs(study.bandit_share(SEEDS, "reversals", rule, 0.2) - tilt) for rule in (SHIPPED, DERIVED)]
    assert (off[1] < off[0]).all()
    assert study.least_squares("log-partition", 0.2) < study.optimum(0.2) < study.least_squares("mean", 0.2)
