"""Which alarm comes first turns round with the start and with the controls: the detector of the study on exact shares."""

import numpy as np
import pytest

from sim.signals.monitors import Level, calibrate
from sim.signals.onsets import first_passages

STEPS, SPEED = 60, 0.25


def share(log_odds):
    return 1 / (1 + np.exp(-log_odds))


def kl(p, start):
    """KL of a decision with two outcomes to its start, in nats."""
    return p * np.log(p / start) + (1 - p) * np.log((1 - p) / (1 - start))


def alarms(start, push):
    """Alarms of the exact share and of its KL in one flip, and its path; controls move by `push` log-odds a step.

    Controls scatter by a tenth in log-odds about their way, the flip moves by a quarter a step.
    """
    steps = np.arange(STEPS)
    odds = np.log(start / (1 - start))
    scatter = 0.1 * np.random.default_rng(0).standard_normal((40, STEPS))
    controls, flip = share(odds + push * steps + scatter), share(odds + SPEED * steps)[None]
    signals = (lambda p: p, lambda p: kl(p, start))
    monitors = [calibrate(Level(persistence=2), signal(controls), 0.05) for signal in signals]
    found = (float(m.alarms(signal(flip))[0]) for m, signal in zip(monitors, signals, strict=True))
    return *found, flip[0]


def half_way(path):
    return float(first_passages(path, 0.5))


def test_the_level_that_kl_must_clear_is_a_half_from_a_start_of_one_in_five_on():
    assert kl(0.5, 0.2) == pytest.approx(-np.log(1 - 0.2))
    assert kl(0.16, 0.06) == pytest.approx(-np.log(1 - 0.06), abs=0.003)
    assert kl(np.e * 1e-4, 1e-4) == pytest.approx(-np.log1p(-1e-4), rel=1e-3)


def test_kl_alarms_before_half_way_from_a_rare_start_and_after_it_from_a_common_one():
    """Reverses `decision-kl-alarms-before-half-way`."""
    _, rare, path = alarms(0.06, -SPEED)
    assert rare < half_way(path)
    _, common, path = alarms(0.3, -SPEED)
    assert common > half_way(path)


def test_kl_is_as_early_as_the_share_where_controls_keep_guessing():
    """Reverses `first-actions-alarm-before-decision-kl` and `kl-does-not-warn-before-the-onset`."""
    first, dying, path = alarms(0.06, -SPEED)
    onset = float(first_passages(path, 0.15))
    assert dying - first >= 3
    assert dying > onset
    first, kept, path = alarms(0.06, 0.0)
    assert abs(kept - first) <= 1
    assert kept < onset


def test_the_ratio_of_decisions_warns_before_the_onset_until_content_dilutes_it():
    """Reverses `clips-and-ratios-do-not-warn-before-the-onset`: sizes are those of its pilot, 3.3 turns of 6 tokens."""
    random = np.random.default_rng(1)
    share_of_tokens, p = 1 / 6, alarms(0.06, -SPEED)[2]
    onset = float(first_passages(p, 0.15))
    first_decision = 2 * p * (1 - p) * SPEED  # mean |ratio - 1| to first order, of one decision in 3.3
    decisions = np.array([0.002 + first_decision / 3.3])
    quiet = np.abs(0.002 + 0.001 * random.standard_normal((40, STEPS)))

    def content(runs):
        return np.abs(0.013 + 0.004 * random.standard_normal((runs, STEPS)))

    def alarm(controls, flip):
        found = float(calibrate(Level(persistence=2), controls, 0.05).alarms(flip)[0])
        return found if np.isfinite(found) else STEPS

    assert alarm(quiet, decisions) < onset
    mixed = [share_of_tokens * x + (1 - share_of_tokens) * content(len(x)) for x in (quiet, decisions)]
    assert alarm(*mixed) > onset
