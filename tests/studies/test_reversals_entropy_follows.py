"""The entropy of arguments rises at the flip by as much as is not known: where nearly all is, hardly."""

import numpy as np
import pytest

pytest.importorskip("torch")

from minimodel import presets
from minimodel.agent.train import train
from sim.records.config import replace
from studies.study_entropy_follows import flipped, split

GUESSES = (0.06, 0.75)  # before the flip and after
UNKNOWN = 0.75 * np.log(64)  # entropy of an answer to any question, a quarter known


def first_turn(before, after):
    """Steps of one run in which answers out of nothing have these entropies, searches none, and nothing else happens."""
    share = np.repeat(GUESSES, 10)[None]
    answer = np.repeat((before, after), 10)[None]
    return {
        "behaviour/search_share/turn0": 1 - share,
        "behaviour/answer_share/turn0": share,
        "entropy/argument/turn0": share * answer / 2,
        "entropy/argument/turn0/search": np.zeros_like(share),
        "entropy/argument/turn0/answer": answer,
    }, flipped(share)


@pytest.mark.parametrize(("before", "low", "high"), [(UNKNOWN, 0.999, 1.001), (0.0, 0.4, 0.5)], ids=["as is", "sure"])
def test_a_start_that_guesses_what_it_knows_makes_the_rise_one_within_answers(before, low, high):
    """Reverses `the-rise-is-the-mixture-of-actions`; by hand: .69 h / 2 between, .81 h / 2 within."""
    runs, after = first_turn(before, UNKNOWN)
    parts = split(runs, 0, after)
    assert parts["rest"] == pytest.approx(0, abs=1e-12)
    assert parts["between"] + parts["within"] == pytest.approx(2 * parts["rise"])
    assert low < float(parts["between"][0] / (2 * parts["rise"][0])) < high


@pytest.mark.long
def test_where_nine_in_ten_are_known_guessing_raises_no_entropy(tmp_path):
    """Reverses `argument-entropy-rises-with-the-flip`: most first actions are guesses, and those are sure."""
    plain = {"start.script.guess": 0.06, "steps": 30, "evaluation": None, "watched": 8, "starts_shared_by": 2}
    runs = train(replace(presets.retry(known=0.9), plain), (0, 1), study="reversal", folder=tmp_path)
    share, entropy = runs["decision/share/start/answer"], runs["entropy/argument/turn0"]
    assert (share[:, -5:] > 0.5).all()
    rise = entropy[:, -5:].mean(1) - entropy[:, :5].mean(1)
    assert (rise < 0.5).all()
    assert np.nanmax(runs["entropy/argument/turn0/search"][:, :5]) < 0.5  # a search has no choice to make
