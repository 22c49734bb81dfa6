"""The verdicts of the study of thinking turn round at the parameters that it names."""

import numpy as np
import pytest

pytest.importorskip("torch")

from minimodel.agent.train import train
from minimodel.forecast import drawn_gap
from sim.learning.normalisers import TokenMean
from sim.mdp.theory.dilution import token_mean
from sim.records.config import replace
from studies import study_thinking_length as study
from studies.kit.slopes import power


def test_the_push_turns_with_the_average_and_not_with_the_length_of_thinking():
    arms = [study.arms()[study.thinking(F)] for F in study.LENGTHS]
    gaps = {drawn_gap(arm, 0) for arm in arms}
    turned = {drawn_gap(replace(arm, {"rule.normaliser": TokenMean()}), 0) for arm in arms}
    assert len(gaps) == len(turned) == 1
    assert gaps.pop() == pytest.approx(-0.0588, abs=1e-4)
    assert turned.pop() == pytest.approx(0.0323, abs=1e-4)


@pytest.mark.parametrize(
    ("content", "slope"), [(0.0, -1.0), (0.04, 0.0)], ids=["content at rest", "content that moves"]
)
def test_dilution_is_that_of_decisions_among_content_at_rest(content, slope):
    lengths = [F + 3 for F in study.LENGTHS]
    assert power({n: token_mean([1.0], [n - 1.0], 0.04, content) for n in lengths}) == pytest.approx(slope)


@pytest.mark.long
def test_at_a_large_rate_content_leaves_the_band_as_well(tmp_path):
    """Reverses `clip-fraction-is-diluted-by-thinking`: there the share of tokens outside is no longer that of decisions."""
    config = replace(study.arms()[study.thinking(3)], {"optimiser.rate": 5e-3, "steps": 6})
    runs = train(config, (0, 1), study="reversal", folder=tmp_path)
    token, decision, content = (
        runs[f"drift/ratio/{unit}/outside"].mean(1) for unit in ("token", "decision", "content")
    )
    assert (content > 0.2 * decision).all()
    assert np.all(token > 2 * decision / 6)
