"""The verdicts of the ratio-losses study at the parameters it names as those that reverse them."""

import numpy as np

from sim.learning.loop import train
from sim.records.config import replace
from studies import study_ratio_losses as study

PPO, CISPO = study.RULES["PPO (GRPO)"], study.RULES["CISPO"]
SEEDS = tuple(range(8))


def logits(rule, **changes):
    return train(replace(study.base(rule), changes), SEEDS, study="reversals")[study.LOGIT]


def test_at_two_updates_a_batch_the_losses_part_and_at_one_they_do_not():
    for updates, same in ((1, True), (3, False)):
        runs = {
            label: train(
                replace(study.base(rule), {"inner_updates": updates, "steps": 5, "prompts": 64}),
                SEEDS,
                study="reversals",
            )
            for label, rule in study.RULES.items()
        }
        found = study.distances(runs)
        assert len(found) == len(study.RULES) - 1
        assert (max(found.values()) == 0) is same
        if not same:
            assert min(found.values()) > 0
        assert np.ptp(runs["CISPO"][study.LOGIT], axis=1).min() > 0


def test_ppo_drops_winners_and_neither_cispo_nor_a_small_rate_does():
    assert (study.dropped_shares(PPO, SEEDS, "reversals") > 0).any(0).sum() >= 5
    assert not study.dropped_shares(CISPO, SEEDS, "reversals").any()
    assert not study.dropped_shares(PPO, SEEDS, "reversals", rate=0.02).any()


def test_the_first_update_drops_nothing():
    assert not study.dropped_shares(PPO, SEEDS, "reversals", updates=1).any()


def test_the_first_batch_is_that_of_the_run():
    """After three updates on it the run stands where the hand-written loop says: both drop from the same update on."""
    shares = study.dropped_shares(PPO, SEEDS, "reversals", updates=4)
    run = train(replace(study.base(PPO), {"inner_updates": 3, "steps": 2}), SEEDS, study="reversals")[study.VERIFY]
    assert ((shares[3] == 1) == (run[:, 1] / run[:, 0] > 1.2)).all()
    assert 0 < (shares[3] == 1).sum() < len(SEEDS)


def test_with_one_update_or_a_small_rate_cispo_grows_no_faster():
    grown = {name: logits(rule, inner_updates=1) for name, rule in (("cispo", CISPO), ("ppo", PPO))}
    np.testing.assert_array_equal(grown["cispo"], grown["ppo"])
    slow = {"optimiser.rate": 0.02}
    assert np.abs(logits(CISPO, **slow)[:, -1] - logits(PPO, **slow)[:, -1]).max() < 0.1
    assert np.mean(logits(CISPO)[:, -1] - logits(PPO)[:, -1]) > 2
