"""Each verdict of the study of late groups at the parameter it names, and the calculation of what it foresaw.

Scores z of the prompt and x of the draw are standard normal, and log T = root(own) z + root(1 - own) x.
"""

import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import bdtr, ndtr, pdtr, pdtrc

from studies import late_rules as rules
from studies import study_late_groups as study

SCORES = np.linspace(-8, 8, 401)
MASS = np.exp(-(SCORES**2) / 2) / np.exp(-(SCORES**2) / 2).sum()
SEEDS = (0, 1)


def test_claims_predict_what_was_foreseen():
    claims = {mark.args[0].id: mark.args[0] for mark in study.study_late_groups.pytestmark}
    for name, label in (study.LOSES | study.KEEPS).items():
        assert claims[name].predicts.value == rules.FORESEEN[label].ratio
    for name, label in study.QUICK.items():
        assert claims[name].predicts.value == rules.FORESEEN[label].luck


def log_time(own):
    return math.sqrt(own) * SCORES[:, None] + math.sqrt(1 - own) * SCORES  # [z, x]


def summary(kept, own):
    """Ratio of the slow third, luck and mean factor of what is kept with probability kept [z, x]."""
    by_prompt, total = kept @ MASS, MASS @ kept @ MASS
    slow = SCORES > rules.CUT
    factor = np.exp(math.sqrt(own) * SCORES - own / 2)
    return (
        MASS[slow] @ by_prompt[slow] / MASS[slow].sum() / total,
        MASS @ kept @ (MASS * SCORES) / total,
        MASS @ (factor * by_prompt) / total,
    )


def kept_in_round(own):
    """P(among the 16 first of 24)."""
    launched = math.ceil(rules.NEEDED * (1 + rules.OVER))
    return bdtr(rules.NEEDED - 1, launched - 1, ndtr(log_time(own)))


def in_time(rate, own):
    """P(kept) and time spent, [z, x], and P(kept) of all plays, at so many completions per s.

    The bound is passed with completion j after the start: 4 x 16 and those its version lacked, all 16 after a drop.
    """
    T, B = np.exp(np.linspace(-12, 12, 1201)), rules.NEEDED
    j = rules.BOUND * B + np.arange(1, B + 1)[:, None]
    alive = pdtr(j - 1, rate * T)
    spent = T * alive + j / rate * pdtrc(j, rate * T)
    at = log_time(own).clip(-12, 12)

    def on(values):
        return np.interp(at, np.log(T), values)

    after_kept, after_drop = on(alive.mean(0)), on(alive[-1])
    p, q = MASS @ after_kept @ MASS, MASS @ after_drop @ MASS
    share = q / (1 - p + q)  # kept = kept p + (1 - kept) q
    return share * after_kept + (1 - share) * after_drop, share * on(spent.mean(0)) + (1 - share) * on(spent[-1])


def flow(own, again):
    """Return P(kept) and seconds a version where 64 slots are always in use."""

    def cycle(rate):
        kept, spent = in_time(rate, own)
        if again:
            plays = spent @ MASS, kept @ MASS
            return MASS @ (plays[0] / np.maximum(plays[1], 1e-300))
        return (MASS @ spent @ MASS) / (MASS @ kept @ MASS)

    rate = brentq(lambda r: rules.WIDTH / cycle(r) - r, 15.0, 200.0)
    return in_time(rate, own)[0], rules.NEEDED / rate


@pytest.mark.parametrize(("label", "own"), [("cancel", rules.OWN), ("cancel, rollout's", 0.0)])
def test_what_a_round_keeps(label, own):
    ratio, luck, factor = summary(kept_in_round(own), own)
    assert (ratio, luck) == pytest.approx(rules.FORESEEN[label], abs=0.004)
    if own:
        assert factor == pytest.approx(0.719, abs=0.001)
        p = 1 / (1 + rules.OVER)
        others = rules.FORESEEN["tail"].luck  # those left over are played without selection
        assert luck * p == pytest.approx(others, abs=0.001)
        assert (1 - p * factor) / (1 - p) / factor == pytest.approx(2.17, abs=0.01)


def test_what_a_round_keeps_that_plays_again():
    def kept(t):
        return ndtr((t - math.sqrt(rules.OWN) * SCORES) / math.sqrt(1 - rules.OWN))

    t = brentq(lambda t: MASS @ (1 / kept(t)) - 1 - rules.OVER, -1, 8)
    within = (log_time(rules.OWN) < t).astype(float)
    luck = MASS @ ((within @ (MASS * SCORES)) / np.maximum(within @ MASS, 1e-300))
    assert luck == pytest.approx(rules.FORESEEN["requeue"].luck, abs=0.004)


def test_what_a_bound_keeps():
    for label, own in (("old: discard", rules.OWN), ("old: discard, rollout's", 0.0)):
        kept, version_s = flow(own, again=False)
        assert summary(kept, own)[:2] == pytest.approx(rules.FORESEEN[label], abs=0.004)
        assert version_s == pytest.approx(0.368, abs=0.002)
    kept, version_s = flow(rules.OWN, again=True)
    luck = MASS @ ((kept @ (MASS * SCORES)) / np.maximum(kept @ MASS, 1e-300))
    assert luck == pytest.approx(rules.FORESEEN["old: requeue"].luck, abs=0.004)
    free = rules.NEEDED * math.exp(0.5) / rules.WIDTH
    assert version_s / free == pytest.approx(1.36, abs=0.01)


@pytest.fixture(scope="module")
def runs():
    arms = rules.arms()
    chosen = ("cancel", "cancel, rollout's", "resume", "requeue", "old: kept", "old: discard")
    return {label: rules.counted(arms[label], SEEDS, study="reversals") for label in chosen}


def test_the_owner_of_latency_decides_whether_a_dropped_round_biases(runs):
    ratio = {label: rules.ratio(r).mean() for label, r in runs.items()}
    assert ratio["cancel"] < 0.75 < 0.85 < ratio["cancel, rollout's"] < 1.15
    assert 0.9 < ratio["resume"] < 1.1


def test_a_fresh_draw_is_a_quick_one_and_a_resumed_one_is_not(runs):
    luck = {label: rules.late_half(r["luck"]).mean() for label, r in runs.items()}
    assert luck["requeue"] < -0.2 < -0.12 < luck["resume"]
    assert abs(rules.late_half(runs["resume"]["factor"]).mean() - 1) < 0.15


def test_discarding_makes_versions_shorter(runs):
    assert (rules.version_s(runs["old: discard"]) < rules.version_s(runs["old: kept"])).all()


def test_the_end_of_a_run_makes_an_unbiased_rule_look_biased(runs):
    """Slow prompts are under way for longest, and those under way are not trained on; known ends alone show nothing."""
    kept = runs["old: kept"]
    assert (rules.ratio(kept, rules.at_end) < 0.97).all()
    assert (kept["survivorship"] == 1).all()


def test_without_a_prompts_share_tail_rounds_gather_nobody():
    nobody = rules.counted(rules.rounds("tail", rules.NOBODY), SEEDS[:1], study="reversals")
    found = rules.tail_rounds(nobody)
    assert found["treated"] == pytest.approx(found["control"], rel=0.01)
