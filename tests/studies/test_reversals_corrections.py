"""The verdicts of the corrections study at the parameters it names as those that reverse them."""

import numpy as np
import pytest

from sim.mdp.policy import tables
from sim.mdp.theory.drift import Objective
from sim.mdp.theory.spread import gradient_moments
from studies import study_corrections as study

SEEDS = range(8)


def of(*labels):
    return {label: study.WEIGHTS[label] for label in labels}


def test_within_the_clip_the_old_data_still_point_uphill():
    found = study.sample(SEEDS, "reversals", lag=0.25, uphill=True, batches=16, weights=of("PPO clip"))["PPO clip"]
    assert np.median(study.cosine(found)) > 0.9
    found = study.sample(SEEDS, "reversals", lag=1.0, uphill=True, batches=16, weights=of("PPO clip"))["PPO clip"]
    assert np.median(study.cosine(found)) < -0.9


def test_at_a_small_lag_the_clip_keeps_the_direction_too():
    found = study.sample(range(16), "reversals", lag=0.25, batches=24, weights=of("PPO clip", "decoupled"))
    assert np.median(study.cosine(found["decoupled"]) - study.cosine(found["PPO clip"])) < 0.1


def test_under_a_large_lag_sequence_ratios_are_visibly_noisier():
    found = study.sample(SEEDS, "reversals", lag=2.0, batches=24, weights=of("sequence ratio", "decoupled"))
    ratio = study.noise(found["sequence ratio"]) / study.noise(found["decoupled"])
    assert np.exp(np.log(ratio).mean()) > 2


def test_under_pure_lag_truncation_is_the_clip_and_removes_nothing():
    found = study.sample(SEEDS, "reversals", lag=1.0, batches=4, weights=of("PPO clip", "TIS", "IcePop", "MIS"))
    for label in ("TIS", "IcePop", "MIS"):
        np.testing.assert_array_equal(found[label], found["PPO clip"])
    assert np.abs(found["PPO clip"]).max() > 0.01
    noisy = study.sample(SEEDS, "reversals", mismatch=1.0, batches=4, weights=of("PPO clip", "TIS"))
    assert np.abs(noisy["TIS"] - noisy["PPO clip"]).max() > 0.001


def test_on_policy_every_weight_gives_the_exact_gradient():
    found = study.sample(SEEDS, "reversals", batches=32)
    for label, g in found.items():
        np.testing.assert_array_equal(g, found["PPO clip"], err_msg=label)
    centre = found["PPO clip"].mean((0, 1))
    np.testing.assert_allclose(centre, study.exact_gradient() * 7 / 8, atol=0.004)


@pytest.mark.parametrize("label", ["none, w = 1", "PPO clip", "decoupled", "DIS", "GSPO", "sequence ratio"])
def test_samples_agree_with_enumeration(label):
    found = study.sample(SEEDS, "reversals", lag=1.0, uphill=True, batches=40, weights=of(label))[label]
    now = tables(study.seed_a().graph().compiled(), study.LOGITS)
    stale = tables(study.seed_a().graph().compiled(), study.LOGITS - study.directions((0,), "", True)[0])
    graph = study.seed_a().graph().compiled()
    recent = now if label == "decoupled" else stale
    objective = Objective(study.CREDIT, group=8, prompts=32)
    exact = gradient_moments(graph, now, objective, study.WEIGHTS[label], stale, recent)
    error = np.sqrt(exact.variance / (40 * len(SEEDS)))
    assert np.linalg.norm(found.mean((0, 1)) - exact.mean) < 3.5 * error
    assert found.var((0, 1), ddof=1).sum() == pytest.approx(exact.variance, rel=0.25)
