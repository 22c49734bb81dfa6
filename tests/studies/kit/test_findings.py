import numpy as np
import pytest

from studies.kit import ControlFinding, Prediction, above, agreement, below, identity, rate, within
from studies.kit.claims import build as claim
from studies.kit.findings import build, failures
from studies.kit.verdict import judge


def built(stated, estimate, seeds=range(8), **changes):
    given = {
        "study": "s", "rung": "sim", "here": True, "recorded": True, "controls": (), "ended": True, "error": "",
        "fingerprint": "f", "study_fingerprint": "s", "rerun": "pytest",
    }  # fmt: skip
    judged = None if estimate is None else judge(estimate, stated.region_at("sim"))
    return build(stated, estimate, judged, seeds=seeds, **{**given, **changes})


def flips(**changes):
    return claim(
        "it-flips", {"says": "It flips.", "kind": rate(), "region": above(0.3), "expect": "supported", **changes}
    )


YES, NO = rate().estimate(outcomes=np.ones(8, bool)), rate().estimate(outcomes=np.zeros(8, bool))
AS_SAID = ControlFinding("drive on", "supported", 1.0, 0.6, 1.0, 8, "> .5", "")
NOT_AS_SAID = ControlFinding("drive on", "undecided", 0.6, 0.2, 0.9, 8, "> .5", "")


def test_numbers_are_builtins():
    found = built(flips(), YES)
    assert (type(found.effect), type(found.n), type(found.p)) == (float, int, float)
    assert found.detail == (("count", "8/8"),)


@pytest.mark.parametrize(
    ("prediction", "agrees"),
    [(Prediction(1.0), True), (Prediction(0.5), False), (Prediction(0.5, 0.4, 0.7), True), (None, None)],
)
def test_a_prediction_is_held_against_the_interval(prediction, agrees):
    assert built(flips(predicts=prediction), YES).agrees is agrees


@pytest.mark.parametrize(
    ("prediction", "agrees"),
    [
        (Prediction(1.4), None),
        (Prediction(1.4, 1.3, 1.5), True),
        (Prediction(2.0, 1.8, 2.1), False),
        (Prediction(1.41), True),
    ],
)
def test_an_exact_number_agrees_with_a_range_or_within_its_tolerance(prediction, agrees):
    stated = claim(
        "it-fits", {"says": "It fits.", "kind": identity(0.001), "region": below(1.5), "predicts": prediction}
    )
    assert built(stated, stated.kind.estimate(value=1.4100001)).agrees is agrees


def test_a_control_that_failed_takes_the_verdict_away_and_fails():
    assert built(flips(), YES, controls=(AS_SAID,)).verdict == "supported"
    found = built(flips(), YES, controls=(AS_SAID, NOT_AS_SAID))
    assert (found.verdict, found.fails, found.p) == ("no verdict", True, None)
    assert found.effect == 1.0  # still shown
    assert "NOT as said" in failures([found])


def test_a_claim_that_was_not_concluded_fails():
    found = built(flips(), None)
    assert (found.verdict, found.effect, found.fails) == ("no verdict", None, True)
    assert "without concluding" in found.reason


def test_failures_are_silent_about_what_passes():
    assert failures([built(flips(), YES)]) == ""
    assert failures([built(flips(expect="refuted", region=above(0.5)), YES), built(flips(), YES)]).count("again:") == 1


def test_other_seeds_are_not_held_against_a_lost_verdict():
    assert built(flips(), NO).fails
    assert not built(flips(), NO, seeds=range(16)).fails
    assert not built(flips(), NO, seeds=range(1_000_000, 1_000_008)).fails
    assert not built(flips(), NO, here=False).fails


def test_agreement_within_its_tolerance():
    stated = claim("they-agree", {"says": "They agree.", "kind": agreement(1e-9), "expect": "supported"})
    found = built(stated, stated.kind.estimate(value=[1.0], reference=[1.0 + 1e-10]), seeds=range(1))
    assert (found.verdict, found.p, found.region) == ("supported", None, within(0, 1e-9).words)
