"""The verdicts of the second rung turn round at the parameters that the studies name."""

import numpy as np
import pytest

pytest.importorskip("torch")

from minimodel import presets
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.schedule import Completion
from minimodel.agent.train import train
from minimodel.forecast import drawn_gap
from sim.learning.normalisers import MicrobatchMean, SequenceMean, TokenMean
from sim.mdp.worlds import Verify
from sim.records.config import replace

GUESS, VERIFY = "decision/share/start/answer", "decision/share/fresh/verify"
PLAIN = {"start.script.guess": 0.06, "steps": 45, "evaluation": None, "watched": 1}


def inside(**changes):
    return replace(presets.retry(), PLAIN | {name.replace("__", "."): value for name, value in changes.items()})


@pytest.mark.parametrize(
    ("config", "sign"),
    [
        (inside(), -1),
        (replace(presets.retry(hit=0.6), PLAIN), 1),
        (inside(rule__normaliser=TokenMean()), 1),
        (inside(rule__normaliser=MicrobatchMean(8)), 1),
        (inside(rule__normaliser=MicrobatchMean(1)), -1),
    ],
    ids=["inside", "hit rate .6", "token mean", "micro-batches of 8", "of 1"],
)
def test_what_is_predicted_turns_with_hit_rate_and_average(config, sign):
    assert np.sign(drawn_gap(config, 0)) == sign
    assert abs(drawn_gap(config, 0)) > 0.02


def test_micro_batches_of_one_are_the_sequence_mean():
    one, sequence = inside(rule__normaliser=MicrobatchMean(1)), inside(rule__normaliser=SequenceMean())
    assert drawn_gap(one, 0) == pytest.approx(drawn_gap(sequence, 0), rel=1e-9)


def test_a_verifier_is_worth_asking_from_one_half_on():
    def gap(right):
        world = Verify(sensitivity=right, specificity=right, hit_after_reject=0.5)
        return drawn_gap(
            replace(presets.verify(), {"task.world.verify": world}), 0, VERIFY.removeprefix("decision/share/")
        )

    assert gap(0.95) < gap(0.7) < -0.05
    assert gap(0.5) == pytest.approx(0, abs=1e-9)
    assert gap(0.3) > 0.05


@pytest.mark.parametrize(
    "other", [{"monitor": EvidenceFirst()}, {"schedule": Completion(0.5)}, {"temperature": 2.0}], ids=str
)
def test_what_the_sums_are_not_about_is_refused(other):
    with pytest.raises(ValueError, match=f"no exact sum for this run's {next(iter(other))}"):
        drawn_gap(replace(inside(), other), 0)


@pytest.mark.long
def test_where_more_is_known_than_is_found_the_flip_pays(tmp_path):
    """Reverses `the-flip-is-to-a-worse-habit`: at 60 % known and a hit rate of .35 guessing is the better habit."""
    config = replace(presets.retry(known=0.6), PLAIN)
    runs = train(config, (0, 1, 2), study="reversal", folder=tmp_path)
    assert (runs[GUESS][:, -1] > 0.5).all()
    assert (runs["train/reward"][:, -10:].mean(1) > runs["train/reward"][:, :5].mean(1) + 0.05).all()
